//! A small machine for pickles: it knows the opcodes and classes that tensors need, and runs nothing.
//!
//! Python's own machine calls whatever a file names. This one builds values of its own, and a class that it
//! does not know is an error.

use std::rc::Rc;

use crate::tensors::info::TensorDType;

/// The deepest nesting of values.
const DEEPEST: usize = 64;
/// The most values that a pickle makes, those that it repeats included. Some take one byte of it and forty
/// here.
pub(super) const MOST_VALUES: usize = 1 << 22;
/// The most axes of a tensor, which are those of PyTorch. Many tensors may share one tuple.
const MOST_AXES: usize = 64;

/// A value that a pickle builds. Clones share what is inside.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// Something that is no tensor and leads to none: None, a truth value, a fraction.
    Other,
    Int(i64),
    Text(Rc<str>),
    Tuple(Rc<[Value]>, usize),
    List(Vec<Value>, usize),
    Dict(Vec<(Value, Value)>, usize),
    Class(Class),
    Storage(Rc<Storage>),
    Tensor(Rc<Slice>),
}

/// The classes and functions that files of tensors name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    OrderedDict,
    Size,
    RebuildTensor,
    RebuildParameter,
    Storage(TensorDType),
}

/// The elements of one or several tensors: an entry of the archive.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Storage {
    pub key: Rc<str>,
    pub dtype: TensorDType,
    pub elements: usize,
}

/// A tensor: a part of a storage, in elements.
#[derive(Debug)]
pub(super) struct Slice {
    pub storage: Rc<Storage>,
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

impl Class {
    fn named(module: &str, name: &str) -> Result<Self, String> {
        use TensorDType::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8};
        Ok(match (module, name) {
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("torch", "Size") => Self::Size,
            ("torch._utils", "_rebuild_tensor_v2") => Self::RebuildTensor,
            ("torch._utils", "_rebuild_parameter") => Self::RebuildParameter,
            ("torch", storage) => Self::Storage(match storage {
                "FloatStorage" => F32,
                "DoubleStorage" => F64,
                "HalfStorage" => F16,
                "BFloat16Storage" => Bf16,
                "LongStorage" => I64,
                "IntStorage" => I32,
                "ShortStorage" => I16,
                "CharStorage" => I8,
                "ByteStorage" => U8,
                "BoolStorage" => Bool,
                _ => return Err(unknown(module, name)),
            }),
            _ => return Err(unknown(module, name)),
        })
    }
}

fn unknown(module: &str, name: &str) -> String {
    format!(
        "it contains {module}.{name}, which is not a tensor, and code in a file is never run: in Python, save only the \
         weights, with `torch.save(model.state_dict(), ..)`"
    )
}

impl Value {
    fn depth(&self) -> usize {
        match self {
            Self::Tuple(_, depth) | Self::List(_, depth) | Self::Dict(_, depth) => *depth,
            _ => 0,
        }
    }
}

/// Returns the depth of a value around others.
fn around<'a>(inside: impl IntoIterator<Item = &'a Value>) -> Result<usize, String> {
    let depth = inside.into_iter().map(Value::depth).max().unwrap_or(0) + 1;
    if depth > DEEPEST { Err(format!("values are nested more than {DEEPEST} deep")) } else { Ok(depth) }
}

/// Reads a pickle.
///
/// # Errors
/// Why it is no pickle of tensors.
pub(super) fn read(bytes: &[u8]) -> Result<Value, String> {
    let mut machine = Machine { rest: bytes, ..Machine::default() };
    loop {
        let op = machine.byte()?;
        if op == b'.' {
            return machine.pop();
        }
        machine.step(op).map_err(|problem| {
            let at = bytes.len() - machine.rest.len();
            format!("{problem} (byte {at} of its pickle)")
        })?;
    }
}

#[derive(Default)]
struct Machine<'a> {
    rest: &'a [u8],
    /// The number of values, marks and kept values so far.
    made: usize,
    stack: Vec<Value>,
    /// The heights of the stack at its marks.
    marks: Vec<usize>,
    memo: Vec<(usize, Value)>,
}

impl<'a> Machine<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or("the pickle ends early")?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.take(1)?[0])
    }

    /// Reads a number of up to eight bytes, little endian.
    fn number(&mut self, bytes: usize) -> Result<u64, String> {
        let low = self.take(bytes)?;
        Ok(low.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn text(&mut self, length: u64) -> Result<Rc<str>, String> {
        let bytes = self.take(usize::try_from(length).map_err(|_| "a text is too long")?)?;
        Ok(std::str::from_utf8(bytes).map_err(|_| "a text is not UTF-8")?.into())
    }

    fn line(&mut self) -> Result<&'a str, String> {
        let end = self.rest.iter().position(|&byte| byte == b'\n').ok_or("the pickle ends early")?;
        let line = self.take(end + 1)?;
        std::str::from_utf8(&line[..end]).map_err(|_| "a name is not UTF-8".into())
    }

    fn pop(&mut self) -> Result<Value, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let value = if self.stack.len() > floor { self.stack.pop() } else { None };
        value.ok_or_else(|| "the pickle takes a value that is not there".into())
    }

    /// Takes what is above the last mark.
    fn marked(&mut self) -> Result<Vec<Value>, String> {
        let mark = self.marks.pop().ok_or("the pickle has no mark here")?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn tuple(&mut self, values: Vec<Value>) -> Result<Value, String> {
        let depth = around(&values)?;
        Ok(Value::Tuple(values.into(), depth))
    }

    fn small_tuple(&mut self, count: usize) -> Result<Value, String> {
        let mut values = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        values.reverse();
        self.tuple(values)
    }

    fn step(&mut self, op: u8) -> Result<(), String> {
        // An opcode makes one of them at most.
        self.made += 1;
        if self.made > MOST_VALUES {
            return Err(format!("it makes more than {MOST_VALUES} values"));
        }
        let value = match op {
            0x80 => return self.protocol(),
            0x95 => return self.take(8).map(drop),
            b'(' => {
                self.marks.push(self.stack.len());
                return Ok(());
            }
            b'q' | b'r' | 0x94 => return self.put(op),
            b'h' | b'j' => self.get(op)?,
            b'a' | b'e' => return self.append(op == b'e'),
            b's' | b'u' => return self.set(op == b'u'),
            b'b' => return self.build(),
            b')' => self.tuple(Vec::new())?,
            b't' => {
                let values = self.marked()?;
                self.tuple(values)?
            }
            0x85..=0x87 => self.small_tuple(usize::from(op - 0x84))?,
            b']' => Value::List(Vec::new(), 1),
            b'}' => Value::Dict(Vec::new(), 1),
            b'N' | 0x88 | 0x89 => Value::Other,
            b'G' => self.take(8).map(|_| Value::Other)?,
            b'J' => Value::Int(i64::from(self.number(4)? as u32 as i32)),
            b'K' => Value::Int(self.number(1)? as i64),
            b'M' => Value::Int(self.number(2)? as i64),
            0x8a => self.long()?,
            b'X' => {
                let length = self.number(4)?;
                Value::Text(self.text(length)?)
            }
            0x8c => {
                let length = self.number(1)?;
                Value::Text(self.text(length)?)
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                Value::Class(Class::named(module, name)?)
            }
            0x93 => match (self.pop()?, self.pop()?) {
                (Value::Text(name), Value::Text(module)) => Value::Class(Class::named(&module, &name)?),
                _ => return Err("a class has no name".into()),
            },
            b'Q' => self.persistent()?,
            b'R' => self.reduce()?,
            _ => return Err(format!("the opcode {op:#04x} is none that tensors need")),
        };
        self.stack.push(value);
        Ok(())
    }

    fn protocol(&mut self) -> Result<(), String> {
        match self.byte()? {
            2..=5 => Ok(()),
            other => Err(format!("version {other} of pickle is not read")),
        }
    }

    /// Reads a number of any length. One that does not fit is of no use here.
    fn long(&mut self) -> Result<Value, String> {
        let length = self.byte()?;
        if length > 8 {
            return self.take(usize::from(length)).map(|_| Value::Other);
        }
        let (bits, number) = (8 * u32::from(length), self.number(usize::from(length))?);
        let unused = 64 - bits;
        Ok(Value::Int(if length == 0 { 0 } else { ((number << unused) as i64) >> unused }))
    }

    fn put(&mut self, op: u8) -> Result<(), String> {
        let at = match op {
            b'q' => self.number(1)? as usize,
            b'r' => self.number(4)? as usize,
            _ => self.memo.len(),
        };
        let value = self.stack.last().cloned().ok_or("the pickle keeps a value that is not there")?;
        // What still grows is not kept: where it is asked for again, that is an error.
        if !matches!(value, Value::List(..) | Value::Dict(..)) {
            self.memo.push((at, value));
        } else if op == 0x94 {
            self.memo.push((at, Value::List(Vec::new(), 0)));
        }
        Ok(())
    }

    fn get(&mut self, op: u8) -> Result<Value, String> {
        let at = self.number(if op == b'h' { 1 } else { 4 })? as usize;
        // Values are kept in ascending order of their numbers, by all writers that are known.
        let found = match self.memo.binary_search_by_key(&at, |(at, _)| *at) {
            Ok(found) => Some(&self.memo[found].1),
            Err(_) => None,
        };
        match found {
            Some(value) if !matches!(value, Value::List(..)) => Ok(value.clone()),
            _ => Err("a list or dictionary is there twice, which is not read".into()),
        }
    }

    fn append(&mut self, many: bool) -> Result<(), String> {
        let new = if many { self.marked()? } else { vec![self.pop()?] };
        let depth = around(&new)?;
        match self.stack.last_mut() {
            Some(Value::List(values, own)) => {
                values.extend(new);
                *own = depth.max(*own);
                Ok(())
            }
            _ => Err("what is appended to is no list".into()),
        }
    }

    fn set(&mut self, many: bool) -> Result<(), String> {
        let new = if many {
            self.marked()?
        } else {
            let value = self.pop()?;
            vec![self.pop()?, value]
        };
        let (pairs, []) = new.as_chunks::<2>() else {
            return Err("a key of a dictionary has no value".into());
        };
        let depth = around(&new)?;
        match self.stack.last_mut() {
            Some(Value::Dict(values, own)) => {
                values.extend(pairs.iter().map(|[key, value]| (key.clone(), value.clone())));
                *own = depth.max(*own);
                Ok(())
            }
            _ => Err("what is set in is no dictionary".into()),
        }
    }

    /// Gives an object attributes: those of a dictionary say nothing of its tensors.
    fn build(&mut self) -> Result<(), String> {
        self.pop()?;
        match self.stack.last() {
            Some(Value::Dict(..) | Value::Tensor(_)) => Ok(()),
            _ => Err("an object of a class has attributes".into()),
        }
    }

    /// Names a storage: `("storage", class, key, device, elements)`.
    fn persistent(&mut self) -> Result<Value, String> {
        let wrong = || "a storage is not described as PyTorch does".to_owned();
        let Value::Tuple(parts, _) = self.pop()? else { return Err(wrong()) };
        match &*parts {
            [
                Value::Text(what),
                Value::Class(Class::Storage(dtype)),
                Value::Text(key),
                _,
                Value::Int(elements),
            ] if &**what == "storage" => {
                let elements = usize::try_from(*elements).map_err(|_| wrong())?;
                Ok(Value::Storage(Rc::new(Storage { key: Rc::clone(key), dtype: *dtype, elements })))
            }
            _ => Err(wrong()),
        }
    }

    fn reduce(&mut self) -> Result<Value, String> {
        let Value::Tuple(arguments, _) = self.pop()? else { return Err("a call has no arguments".into()) };
        let Value::Class(class) = self.pop()? else { return Err("what is called is no class".into()) };
        match (class, &*arguments) {
            (Class::OrderedDict, []) => Ok(Value::Dict(Vec::new(), 1)),
            (Class::Size, [sizes @ Value::Tuple(..)]) => Ok(sizes.clone()),
            (Class::RebuildParameter, [tensor @ Value::Tensor(_), ..]) => Ok(tensor.clone()),
            (
                Class::RebuildTensor,
                [
                    Value::Storage(storage),
                    Value::Int(offset),
                    Value::Tuple(shape, _),
                    Value::Tuple(strides, _),
                    ..,
                ],
            ) => {
                if shape.len() > MOST_AXES || strides.len() > MOST_AXES {
                    return Err(format!("a tensor has {} axes", shape.len().max(strides.len())));
                }
                let sizes = |values: &[Value]| values.iter().map(size).collect::<Result<Vec<_>, _>>();
                let (shape, strides) = (sizes(shape)?, sizes(strides)?);
                let slice = Slice {
                    storage: Rc::clone(storage),
                    offset: size(&Value::Int(*offset))?,
                    shape,
                    strides,
                };
                slice.check()?;
                Ok(Value::Tensor(Rc::new(slice)))
            }
            _ => Err(format!("{class:?} is called with other arguments than PyTorch gives it")),
        }
    }
}

fn size(value: &Value) -> Result<usize, String> {
    match value {
        Value::Int(size) => usize::try_from(*size).map_err(|_| format!("a size is {size}")),
        _ => Err("a size is no number".into()),
    }
}

impl Slice {
    /// Checks that all elements are in the storage, and no more than it has.
    fn check(&self) -> Result<(), String> {
        let Self { storage, offset, shape, strides } = self;
        let wrong =
            || format!("a tensor {shape:?} reaches beyond its storage of {} elements", storage.elements);
        let elements = shape.iter().try_fold(1_usize, |count, &extent| count.checked_mul(extent));
        let mut steps =
            shape.iter().zip(strides).map(|(&extent, &stride)| extent.saturating_sub(1).checked_mul(stride));
        let last = steps.try_fold(*offset, |last, step| last.checked_add(step?));
        let is_empty = elements == Some(0);
        let fits = elements.is_some_and(|count| count <= storage.elements)
            && (is_empty || last.is_some_and(|last| last < storage.elements));
        if shape.len() == strides.len() && fits { Ok(()) } else { Err(wrong()) }
    }
}
