//! A kernel's module, prepared: what each expression is, as scalars and their places.

use std::rc::Rc;

use naga::valid::{Capabilities, FunctionInfo, ModuleInfo, ValidationFlags, Validator};
use naga::{
    AddressSpace, Arena, ArraySize, Expression, Function, GlobalVariable, Handle, Literal, LocalVariable,
    Module, Scalar, TypeInner,
};

use super::arithmetic::F32;
use super::value::Value;

/// A scalar of a value: where it lies in memory, from the value's first byte on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf {
    pub at: u32,
    pub scalar: Scalar,
}

/// The variable that a pointer points into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Root {
    Global(Handle<GlobalVariable>),
    Local(Handle<LocalVariable>),
    /// What a pointer that is an argument points to, by the argument's number: a variable of the caller's.
    Argument(u32),
}

/// What is known of an expression before a kernel runs.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// The scalars of its value; of a pointer, those of what it points to. None in an array without an end.
    pub leaves: Rc<[Leaf]>,
    /// What a pointer points into.
    pub root: Option<Root>,
    /// Of an access: how far apart the elements are, or where the member is. In bytes behind a pointer into a
    /// buffer, else in scalars.
    pub step: u32,
    /// Of an access: the number of elements, where it is known.
    pub length: Option<u32>,
    /// Of a pointer to an array: the bytes from one element to the next.
    pub stride: u32,
    /// Of a matrix: its columns and rows.
    pub shape: [usize; 2],
    /// Whether it points to an atomic.
    pub is_atomic: bool,
}

impl Node {
    pub fn scalar(&self) -> Scalar {
        self.leaves.first().map_or(F32, |leaf| leaf.scalar)
    }
}

/// A function, and its expressions in order.
pub(super) struct Body<'a> {
    pub function: &'a Function,
    pub nodes: Vec<Node>,
    /// The values of literals and constants.
    pub constants: Vec<Option<Value>>,
    /// The scalars of each local variable.
    pub locals: Vec<Rc<[Leaf]>>,
}

/// A module, its functions in order, and behind them its entry point.
pub(super) struct Prepared<'a> {
    pub module: &'a Module,
    pub bodies: Vec<Body<'a>>,
    /// The scalars of each global variable, without those of a buffer.
    pub globals: Vec<Rc<[Leaf]>>,
}

/// Parses and validates a kernel.
pub(super) fn parse(wgsl: &str) -> Result<(Module, ModuleInfo), String> {
    let module = naga::front::wgsl::parse_str(wgsl).map_err(|error| error.emit_to_string(wgsl))?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .map_err(|error| error.emit_to_string(wgsl))?;
    Ok((module, info))
}

impl<'a> Prepared<'a> {
    /// # Errors
    /// If a constant is not emulated.
    pub fn new(module: &'a Module, info: &ModuleInfo) -> Result<Self, String> {
        let functions = module.functions.iter().map(|(handle, function)| (function, &info[handle]));
        let entries = module.entry_points.iter().enumerate();
        let entries = entries.map(|(index, entry)| (&entry.function, info.get_entry_point(index)));
        let bodies = functions.chain(entries).map(|(function, info)| body(module, function, info));
        let bodies = bodies.collect::<Result<_, _>>()?;
        let is_buffer = |space| matches!(space, AddressSpace::Storage { .. } | AddressSpace::Uniform);
        let global = |variable: &GlobalVariable| {
            let inner = &module.types[variable.ty].inner;
            if is_buffer(variable.space) { Rc::from([]) } else { leaves(module, inner) }
        };
        let globals = module.global_variables.iter().map(|(_, variable)| global(variable)).collect();
        Ok(Self { module, bodies, globals })
    }
}

/// Returns whether a pointer into a variable counts bytes, and not scalars.
fn counts_bytes(module: &Module, root: Root) -> bool {
    let Root::Global(variable) = root else { return false };
    matches!(module.global_variables[variable].space, AddressSpace::Storage { .. } | AddressSpace::Uniform)
}

fn body<'a>(module: &'a Module, function: &'a Function, info: &FunctionInfo) -> Result<Body<'a>, String> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut constants = Vec::new();
    for (handle, expression) in function.expressions.iter() {
        let inner = info[handle].ty.inner_with(&module.types);
        let behind = pointee(module, inner);
        let mut node = Node {
            leaves: leaves(module, inner),
            root: None,
            step: 0,
            length: None,
            stride: match behind {
                TypeInner::Array { stride, .. } => stride,
                _ => 0,
            },
            shape: match behind {
                TypeInner::Matrix { columns, rows, .. } => [columns as usize, rows as usize],
                _ => [0; 2],
            },
            is_atomic: matches!(behind, TypeInner::Atomic(_)),
        };
        constants.push(match *expression {
            Expression::Literal(_) | Expression::Constant(_) | Expression::ZeroValue(_) => {
                Some(Value::same(constant(module, &function.expressions, handle)?))
            }
            _ => None,
        });
        match *expression {
            Expression::GlobalVariable(variable) => node.root = Some(Root::Global(variable)),
            Expression::LocalVariable(variable) => node.root = Some(Root::Local(variable)),
            Expression::FunctionArgument(index) if is_lent(inner) => node.root = Some(Root::Argument(index)),
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => {
                node.root = nodes[base.index()].root;
                let bytes = node.root.is_some_and(|root| counts_bytes(module, root));
                let base = pointee(module, info[base].ty.inner_with(&module.types));
                let index = match *expression {
                    Expression::AccessIndex { index, .. } => Some(index),
                    _ => None,
                };
                (node.step, node.length) = place(module, &base, index, bytes);
            }
            _ => {}
        }
        nodes.push(node);
    }
    let locals = function.local_variables.iter();
    let locals = locals.map(|(_, local)| leaves(module, &module.types[local.ty].inner)).collect();
    Ok(Body { function, nodes, constants, locals })
}

/// Returns the scalars of a constant expression.
fn constant(
    module: &Module,
    all: &Arena<Expression>,
    handle: Handle<Expression>,
) -> Result<Vec<u64>, String> {
    Ok(match all[handle] {
        Expression::Literal(literal) => vec![bits(literal)],
        Expression::ZeroValue(ty) => vec![0; leaves(module, &module.types[ty].inner).len()],
        Expression::Constant(of) => constant(module, &module.global_expressions, module.constants[of].init)?,
        Expression::Splat { size, value } => constant(module, all, value)?.repeat(size as usize),
        Expression::Compose { ref components, .. } => {
            let mut scalars = Vec::new();
            for &part in components {
                scalars.extend(constant(module, all, part)?);
            }
            scalars
        }
        ref other => return Err(format!("the constant {other:?} is not emulated")),
    })
}

fn bits(literal: Literal) -> u64 {
    match literal {
        Literal::F32(x) => x.to_bits().into(),
        Literal::F16(x) => x.to_bits().into(),
        Literal::U32(x) => x.into(),
        Literal::I32(x) => u64::from(x as u32),
        Literal::U64(x) => x,
        Literal::Bool(x) => x.into(),
        Literal::I64(x) | Literal::AbstractInt(x) => x as u64,
        Literal::F64(x) | Literal::AbstractFloat(x) => x.to_bits(),
        Literal::U16(x) => x.into(),
        Literal::I16(x) => u64::from(x as u16),
    }
}

/// Returns whether an argument of this type is a pointer to a variable of one invocation.
fn is_lent(inner: &TypeInner) -> bool {
    let own = [Some(AddressSpace::Function), Some(AddressSpace::Private)];
    own.contains(&inner.pointer_space())
}

/// Returns the type behind a pointer, or the type itself.
fn pointee(module: &Module, inner: &TypeInner) -> TypeInner {
    match *inner {
        TypeInner::Pointer { base, .. } => module.types[base].inner.clone(),
        TypeInner::ValuePointer { size: Some(size), scalar, .. } => TypeInner::Vector { size, scalar },
        TypeInner::ValuePointer { size: None, scalar, .. } => TypeInner::Scalar(scalar),
        ref inner => inner.clone(),
    }
}

/// Returns how far apart the elements of a value are, or where its member `index` is, and how many there are.
fn place(module: &Module, base: &TypeInner, index: Option<u32>, bytes: bool) -> (u32, Option<u32>) {
    let count = |of: &TypeInner| leaves(module, of).len() as u32;
    let (step, length) = match *base {
        TypeInner::Vector { size, scalar } => {
            (if bytes { scalar.width.into() } else { 1 }, Some(size as u32))
        }
        TypeInner::Matrix { columns, rows, scalar } => {
            let stride = column_stride(rows as u32, scalar);
            (if bytes { stride } else { rows as u32 }, Some(columns as u32))
        }
        TypeInner::Array { base, size, stride } => {
            let length = match size {
                ArraySize::Constant(length) => Some(length.get()),
                _ => None,
            };
            (if bytes { stride } else { count(&module.types[base].inner) }, length)
        }
        TypeInner::Struct { ref members, .. } => {
            let before = &members[..index.unwrap_or(0) as usize];
            let scalars = before.iter().map(|member| count(&module.types[member.ty].inner)).sum();
            let at = index.and_then(|index| members.get(index as usize)).map_or(0, |member| member.offset);
            return (if bytes { at } else { scalars }, None);
        }
        _ => (0, None),
    };
    (index.map_or(step, |index| step * index), length)
}

fn column_stride(rows: u32, scalar: Scalar) -> u32 {
    rows.next_power_of_two() * u32::from(scalar.width)
}

/// Returns the scalars of a value of a type, or of what a pointer points to.
fn leaves(module: &Module, inner: &TypeInner) -> Rc<[Leaf]> {
    let mut found = Vec::new();
    collect(module, &pointee(module, inner), 0, &mut found);
    found.into()
}

fn collect(module: &Module, inner: &TypeInner, at: u32, found: &mut Vec<Leaf>) {
    match *inner {
        TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => found.push(Leaf { at, scalar }),
        TypeInner::Vector { size, scalar } => {
            let leaf = |i: u32| Leaf { at: at + i * u32::from(scalar.width), scalar };
            found.extend((0..size as u32).map(leaf));
        }
        TypeInner::Matrix { columns, rows, scalar } => {
            for column in 0..columns as u32 {
                let at = at + column * column_stride(rows as u32, scalar);
                collect(module, &TypeInner::Vector { size: rows, scalar }, at, found);
            }
        }
        TypeInner::Array { base, size: ArraySize::Constant(length), stride } => {
            for i in 0..length.get() {
                collect(module, &module.types[base].inner, at + i * stride, found);
            }
        }
        TypeInner::Struct { ref members, .. } => {
            for member in members {
                collect(module, &module.types[member.ty].inner, at + member.offset, found);
            }
        }
        _ => {}
    }
}
