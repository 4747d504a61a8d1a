//! The values of a kernel while it is translated, and how they lie in memory.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use cranelift_codegen::ir::{self, StackSlot, types};
use cranelift_frontend::Variable;
use naga::{ArraySize, Handle, LocalVariable, Module, ScalarKind, TypeInner, VectorSize};

use super::Stop;

/// The value of an expression.
#[derive(Clone, Debug)]
pub(super) enum Val {
    /// A scalar, or a vector of four 32-bit numbers or booleans, in a register. A scalar boolean is 0 or 1 in
    /// 8 bits, a vector of them has lanes of 32 bits that are all ones or all zeros.
    One(ir::Value),
    /// The parts of all else.
    Many(Rc<[Val]>),
    /// Where a value is.
    Pointer(Pointer),
}

/// Where a value is.
#[derive(Clone, Debug)]
pub(super) enum Pointer {
    /// In registers.
    Slot { root: Root, slot: Slot, lane: Option<Lane> },
    /// In memory.
    Memory(Memory),
}

/// A component of a vector in a register.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lane {
    Known(u8),
    Computed(ir::Value),
}

/// A place in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// The address of the variable.
    pub base: ir::Value,
    /// The bytes behind it: those that are computed, and those that are known.
    pub offset: Option<ir::Value>,
    pub known: i64,
    /// The bytes that a buffer is bound to, if accesses are checked.
    pub bound: Option<ir::Value>,
    /// The bytes that it surely has, if nobody writes it while the kernel runs.
    pub constant: Option<u64>,
    /// Whether it lies as WGSL says, and not as this compiler likes it.
    pub is_shared: bool,
    /// Whether it is a component of a vector of four booleans: 32 bits that are all ones or all zeros.
    pub is_mask: bool,
}

/// A variable in registers: a register for each scalar and each vector of four.
#[derive(Clone, Debug)]
pub(super) enum Slot {
    Leaf(Variable),
    Many(Rc<[Slot]>),
}

impl Slot {
    /// Calls `each` with all registers.
    pub fn for_each(&self, each: &mut dyn FnMut(Variable)) {
        match self {
            Self::Leaf(variable) => each(*variable),
            Self::Many(parts) => parts.iter().for_each(|part| part.for_each(each)),
        }
    }
}

/// A variable that is in registers unless it is indexed by what is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Root {
    /// A variable of the function with this number ([`ENTRY`] for the entry point).
    Local(usize, Handle<LocalVariable>),
    /// A private variable, by its number.
    Private(usize),
}

/// The number of the entry point among functions.
pub(super) const ENTRY: usize = usize::MAX;

/// Where a variable of a function or an invocation is.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Slot(Slot),
    Stack(StackSlot),
}

/// Returns the type of the register that holds a value, or `None` if it has parts.
pub(super) fn leaf(inner: &TypeInner) -> Result<Option<ir::Type>, Stop> {
    Ok(match *inner {
        TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => Some(match (scalar.kind, scalar.width) {
            (ScalarKind::Float, 2 | 4) => types::F32,
            (ScalarKind::Sint | ScalarKind::Uint, 4) => types::I32,
            (ScalarKind::Sint | ScalarKind::Uint, 8) => types::I64,
            (ScalarKind::Bool, _) => types::I8,
            (kind, width) => return Err(Stop::unsupported(format!("{kind:?} of {width} bytes"))),
        }),
        TypeInner::Vector { size: VectorSize::Quad, scalar } => match (scalar.kind, scalar.width) {
            (ScalarKind::Float, 2 | 4) => Some(types::F32X4),
            (ScalarKind::Sint | ScalarKind::Uint, 4) | (ScalarKind::Bool, _) => Some(types::I32X4),
            (kind, 8) => return Err(Stop::unsupported(format!("a vector of four {kind:?} of 8 bytes"))),
            _ => None,
        },
        _ => None,
    })
}

/// Returns whether a value is a boolean or a vector of them.
pub(super) fn is_bool(inner: &TypeInner) -> bool {
    inner.scalar_kind() == Some(ScalarKind::Bool)
}

/// How the parts of a value follow one another.
pub(super) struct Parts {
    /// The number of parts.
    pub count: u32,
    /// Where each part begins and what it is; for arrays, what the first one is.
    pub members: Vec<(u64, TypeInner)>,
    /// The bytes from one part to the next, if all are alike.
    pub stride: Option<u64>,
}

impl Parts {
    /// Returns where a part begins, and what it is.
    pub fn part(&self, index: u32) -> Option<(u64, &TypeInner)> {
        match self.stride {
            Some(stride) if index < self.count => Some((stride * u64::from(index), &self.members[0].1)),
            Some(_) => None,
            None => self.members.get(index as usize).map(|(offset, inner)| (*offset, inner)),
        }
    }
}

/// Returns the parts of a value as they lie in memory, of which `is_shared` tells whether WGSL says how.
pub(super) fn parts(module: &Module, inner: &TypeInner, is_shared: bool) -> Result<Parts, Stop> {
    let alike = |count: u32, part: TypeInner, stride: u64| Parts {
        count,
        members: vec![(0, part)],
        stride: Some(stride),
    };
    Ok(match *inner {
        TypeInner::Vector { size, scalar } => {
            let part = TypeInner::Scalar(scalar);
            let stride = if is_shared {
                u64::from(scalar.width)
            } else if scalar.kind != ScalarKind::Bool {
                u64::from(scalar.width.max(4))
            } else if size == VectorSize::Quad {
                4
            } else {
                1
            };
            alike(size as u32, part, stride)
        }
        TypeInner::Matrix { columns, rows, scalar } => {
            let part = TypeInner::Vector { size: rows, scalar };
            let stride = u64::from((rows as u32).next_power_of_two())
                * u64::from(if is_shared { scalar.width } else { scalar.width.max(4) });
            alike(columns as u32, part, stride)
        }
        TypeInner::Array { base, size, stride } => {
            let part = module.types[base].inner.clone();
            let count = match size {
                ArraySize::Constant(count) => count.get(),
                ArraySize::Dynamic => u32::MAX,
                ArraySize::Pending(_) => return Err(Stop::unsupported("an array whose size is overridden")),
            };
            let stride = if is_shared { u64::from(stride) } else { room(module, &part)?.0 };
            alike(count, part, stride)
        }
        TypeInner::Struct { ref members, .. } => {
            let mut all = Vec::new();
            let mut end = 0;
            for member in members {
                let part = module.types[member.ty].inner.clone();
                let offset = if is_shared {
                    u64::from(member.offset)
                } else {
                    let (bytes, alignment) = room(module, &part)?;
                    let offset = u64::next_multiple_of(end, alignment);
                    end = offset + bytes;
                    offset
                };
                all.push((offset, part));
            }
            Parts { count: all.len() as u32, members: all, stride: None }
        }
        ref other => return Err(Stop::unsupported(format!("a value of type {other:?}"))),
    })
}

/// Returns the bytes of a value as this compiler lays it out, with those between two of them, and its
/// alignment.
pub(super) fn room(module: &Module, inner: &TypeInner) -> Result<(u64, u64), Stop> {
    if let Some(ty) = leaf(inner)? {
        let bytes = u64::from(ty.bytes());
        return Ok((bytes, bytes));
    }
    let parts = parts(module, inner, false)?;
    let (mut end, mut alignment) = (0, 1);
    for (offset, part) in &parts.members {
        let (bytes, own) = room(module, part)?;
        end = offset + bytes;
        alignment = alignment.max(own);
    }
    if let Some(stride) = parts.stride {
        end = stride * u64::from(parts.count);
    }
    Ok((end.next_multiple_of(alignment), alignment))
}

/// Vectors that took the place of scalars, in the block that is being written.
#[derive(Clone, Debug, Default)]
pub(super) struct Packs {
    pub vectors: HashMap<[ir::Value; 4], ir::Value>,
    /// The vector and the place in it.
    pub lanes: HashMap<ir::Value, (ir::Value, u8)>,
}

/// The registers whose value is a known integer, or a known boolean.
#[derive(Clone, Debug, Default)]
pub(super) struct Known(BTreeMap<u32, u64>);

impl Known {
    pub fn get(&self, variable: Variable) -> Option<u64> {
        self.0.get(&variable.as_u32()).copied()
    }

    /// Notes what the value is, or that it is not known.
    pub fn set(&mut self, variable: Variable, number: Option<u64>) {
        match number {
            Some(number) => self.0.insert(variable.as_u32(), number),
            None => self.0.remove(&variable.as_u32()),
        };
    }

    /// Keeps what is known here as well as there.
    pub fn meet(&mut self, other: &Self) {
        self.0.retain(|variable, number| other.0.get(variable) == Some(number));
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}
