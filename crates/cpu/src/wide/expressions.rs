//! Values of expressions.

use naga::{
    AddressSpace, BinaryOperator, Expression, GlobalVariable, Handle, Literal, MathFunction,
    RelationalFunction, ScalarKind, Type, TypeInner, UnaryOperator,
};

use super::graph::{Code, Id, Node};
use super::read::{Frame, Reader, Spot, Val, inner, one};

impl<'m> Reader<'m> {
    pub(super) fn zero(&mut self, ty: Handle<Type>) -> Option<Val> {
        match &self.module.types[ty].inner {
            TypeInner::Scalar(scalar) if scalar.width <= 4 => Some(Val::One(self.graph.number(0))),
            TypeInner::Vector { size, scalar } if scalar.width <= 4 => {
                Some(Val::Many(vec![Val::One(self.graph.number(0)); *size as usize]))
            }
            _ => None,
        }
    }

    pub(super) fn value(&mut self, frame: &mut Frame<'m>, handle: Handle<Expression>) -> Option<Val> {
        if let Some(value) = frame.values.get(&handle) {
            return Some(value.clone());
        }
        match frame.function.expressions[handle] {
            // These are not emitted.
            Expression::Literal(_)
            | Expression::Constant(_)
            | Expression::ZeroValue(_)
            | Expression::FunctionArgument(_)
            | Expression::GlobalVariable(_)
            | Expression::LocalVariable(_)
            | Expression::Compose { .. }
            | Expression::Splat { .. } => self.evaluate(frame, handle),
            _ => None,
        }
    }

    fn literal(&mut self, literal: Literal) -> Option<Val> {
        let bits = match literal {
            Literal::F32(x) => x.to_bits(),
            Literal::U32(x) => x,
            Literal::I32(x) => x as u32,
            Literal::Bool(truth) => truths(truth),
            _ => return None,
        };
        Some(Val::One(self.graph.number(bits)))
    }

    fn constant(&mut self, handle: Handle<Expression>) -> Option<Val> {
        match &self.module.global_expressions[handle] {
            Expression::Literal(literal) => self.literal(*literal),
            Expression::ZeroValue(ty) => self.zero(*ty),
            Expression::Constant(constant) => self.constant(self.module.constants[*constant].init),
            Expression::Compose { components, .. } => {
                let parts: Option<Vec<Val>> = components.iter().map(|part| self.constant(*part)).collect();
                Some(Val::Many(parts?))
            }
            Expression::Splat { size, value } => {
                Some(Val::Many(vec![self.constant(*value)?; *size as usize]))
            }
            _ => None,
        }
    }

    pub(super) fn evaluate(&mut self, frame: &mut Frame<'m>, handle: Handle<Expression>) -> Option<Val> {
        let function = frame.function;
        Some(match &function.expressions[handle] {
            Expression::Literal(literal) => self.literal(*literal)?,
            Expression::Constant(constant) => self.constant(self.module.constants[*constant].init)?,
            Expression::ZeroValue(ty) => self.zero(*ty)?,
            Expression::FunctionArgument(at) => frame.arguments.get(*at as usize)?.clone(),
            Expression::GlobalVariable(variable) => Val::Buffer(self.binding(*variable)?, Spot::All),
            Expression::LocalVariable(local) => Val::Local(*local, vec![]),
            Expression::Compose { ty, components } => {
                let is_vector = matches!(self.module.types[*ty].inner, TypeInner::Vector { .. });
                let mut all = Vec::new();
                for part in components {
                    match self.value(frame, *part)? {
                        Val::Many(parts) if is_vector => all.extend(parts),
                        part => all.push(part),
                    }
                }
                Val::Many(all)
            }
            Expression::Splat { size, value } => Val::Many(vec![self.value(frame, *value)?; *size as usize]),
            Expression::Swizzle { size, vector, pattern } => {
                let Val::Many(parts) = self.value(frame, *vector)? else { return None };
                let parts = pattern[..*size as usize].iter().map(|&at| parts.get(at as usize).cloned());
                Val::Many(parts.collect::<Option<_>>()?)
            }
            Expression::Access { base, index } => {
                let base = self.value(frame, *base)?;
                let Val::One(index) = self.value(frame, *index)? else { return None };
                self.element(frame, handle, base, index)?
            }
            Expression::AccessIndex { base, index } => match self.value(frame, *base)? {
                Val::Many(parts) => parts.get(*index as usize)?.clone(),
                Val::Local(local, mut path) => {
                    path.push(*index as usize);
                    Val::Local(local, path)
                }
                Val::Buffer(binding, Spot::All) if self.is_uniform(binding) => {
                    let TypeInner::Struct { members, .. } = &self.module.types[self.ty_of(binding)?].inner
                    else {
                        return None;
                    };
                    let word = members.get(*index as usize)?.offset / 4;
                    let word = self.graph.number(word);
                    Val::Buffer(binding, Spot::Word(word))
                }
                base => {
                    let index = self.graph.number(*index);
                    self.element(frame, handle, base, index)?
                }
            },
            Expression::Load { pointer } => match self.value(frame, *pointer)? {
                Val::Local(local, path) => inner(&mut self.local(frame, local)?, &path)?.clone(),
                Val::Buffer(binding, spot) => {
                    let inner = frame.info[handle].ty.inner_with(&self.module.types);
                    self.load(binding, spot, inner)?
                }
                _ => return None,
            },
            Expression::Unary { op, expr } => {
                let (x, kind) = (self.value(frame, *expr)?, self.kind(frame, *expr)?);
                let (code, other) = match (op, kind) {
                    (UnaryOperator::Negate, ScalarKind::Float) => (Code::Xor, 0x8000_0000),
                    (UnaryOperator::Negate, _) => {
                        let zero = self.graph.number(0);
                        return self.each(Code::SubWord, &[&Val::One(zero), &x]);
                    }
                    _ => (Code::Xor, u32::MAX),
                };
                let other = self.graph.number(other);
                self.each(code, &[&x, &Val::One(other)])?
            }
            Expression::Binary { op, left, right } => {
                // A product of matrices is not one of each of their elements.
                let is_matrix = |handle: &Handle<Expression>| {
                    matches!(frame.info[*handle].ty.inner_with(&self.module.types), TypeInner::Matrix { .. })
                };
                if [left, right].into_iter().any(is_matrix) {
                    return None;
                }
                let (a, b) = (self.value(frame, *left)?, self.value(frame, *right)?);
                let kind = self.kind(frame, *left)?;
                self.binary(*op, kind, &a, &b)?
            }
            Expression::Select { condition, accept, reject } => {
                let condition = self.value(frame, *condition)?;
                let (yes, no) = (self.value(frame, *accept)?, self.value(frame, *reject)?);
                self.each(Code::Select, &[&condition, &yes, &no])?
            }
            Expression::Relational { fun, argument } => {
                let Val::Many(words) = self.value(frame, *argument)? else { return None };
                let code = match fun {
                    RelationalFunction::Any => Code::Or,
                    RelationalFunction::All => Code::And,
                    _ => return None,
                };
                let mut words = words.into_iter();
                let first = words.next()?;
                words.try_fold(first, |before, word| self.each(code, &[&before, &word]))?
            }
            Expression::Math { fun, arg, arg1, arg2, .. } => {
                let kind = self.kind(frame, *arg)?;
                let mut operands = Vec::new();
                for operand in [Some(*arg), *arg1, *arg2].into_iter().flatten() {
                    operands.push(self.value(frame, operand)?);
                }
                let code = match (fun, kind) {
                    (MathFunction::Fma, ScalarKind::Float) => Code::Fma,
                    (MathFunction::Sqrt, ScalarKind::Float) => return None,
                    (MathFunction::Abs, ScalarKind::Float) => {
                        let mask = self.graph.number(0x7fff_ffff);
                        return self.each(Code::And, &[&operands[0], &Val::One(mask)]);
                    }
                    (MathFunction::Min, ScalarKind::Uint) => Code::Min,
                    (MathFunction::Max, ScalarKind::Uint) => Code::Max,
                    (MathFunction::Min, ScalarKind::Sint) => Code::MinSigned,
                    (MathFunction::Max, ScalarKind::Sint) => Code::MaxSigned,
                    _ => return None,
                };
                self.each(code, &operands.iter().collect::<Vec<_>>())?
            }
            Expression::As { expr, kind, convert } => {
                let (x, from) = (self.value(frame, *expr)?, self.kind(frame, *expr)?);
                match (from, *kind, convert) {
                    (_, _, None) => x,
                    (from, to, Some(4)) if from == to => x,
                    (ScalarKind::Uint, ScalarKind::Sint, Some(4))
                    | (ScalarKind::Sint, ScalarKind::Uint, Some(4)) => x,
                    (ScalarKind::Uint, ScalarKind::Float, Some(4)) => self.each(Code::FloatOfWord, &[&x])?,
                    (ScalarKind::Sint, ScalarKind::Float, Some(4)) => {
                        self.each(Code::FloatOfSigned, &[&x])?
                    }
                    (ScalarKind::Float, ScalarKind::Uint, Some(4)) => self.each(Code::WordOfFloat, &[&x])?,
                    (ScalarKind::Float, ScalarKind::Sint, Some(4)) => {
                        self.each(Code::SignedOfFloat, &[&x])?
                    }
                    _ => return None,
                }
            }
            _ => return None,
        })
    }

    fn binary(&mut self, op: BinaryOperator, kind: ScalarKind, a: &Val, b: &Val) -> Option<Val> {
        use BinaryOperator as B;
        let is_float = kind == ScalarKind::Float;
        let is_signed = kind == ScalarKind::Sint;
        let code = match (op, is_float) {
            (B::Add, true) => Code::Add,
            (B::Subtract, true) => Code::Sub,
            (B::Multiply, true) => Code::Mul,
            (B::Divide, true) => Code::Div,
            (B::Modulo, true) => return None,
            (B::Add, _) => Code::AddWord,
            (B::Subtract, _) => Code::SubWord,
            (B::Multiply, _) => Code::MulWord,
            (B::Divide | B::Modulo, _) if is_signed => return None,
            (B::Divide | B::Modulo, _) => {
                let Val::One(divisor) = b else { return None };
                self.graph.known(*divisor).filter(|divisor| *divisor != 0)?;
                if op == B::Divide { Code::Quotient } else { Code::Rest }
            }
            (B::And | B::LogicalAnd, _) => Code::And,
            (B::InclusiveOr | B::LogicalOr, _) => Code::Or,
            (B::ExclusiveOr, _) => Code::Xor,
            (B::ShiftLeft | B::ShiftRight, _) => {
                // What is shifted by more than all bits differs between languages.
                let Val::One(by) = b else { return None };
                self.graph.known(*by).filter(|by| *by < 32)?;
                match op {
                    B::ShiftLeft => Code::ShiftLeft,
                    _ if is_signed => Code::ShiftRightSigned,
                    _ => Code::ShiftRight,
                }
            }
            (B::Equal | B::NotEqual, true) => Code::EqualFloat,
            (B::Equal | B::NotEqual, _) => Code::Equal,
            (B::Less | B::Greater, true) => Code::LessFloat,
            (B::LessEqual | B::GreaterEqual, true) => Code::LessEqualFloat,
            (B::Less | B::Greater, _) => {
                if is_signed {
                    Code::LessSigned
                } else {
                    Code::Less
                }
            }
            (B::LessEqual | B::GreaterEqual, _) => {
                if is_signed {
                    Code::LessEqualSigned
                } else {
                    Code::LessEqual
                }
            }
        };
        let turned = matches!(op, B::Greater | B::GreaterEqual);
        let found = self.each(code, &if turned { [b, a] } else { [a, b] })?;
        if op != B::NotEqual {
            return Some(found);
        }
        let all = self.graph.number(u32::MAX);
        self.each(Code::Xor, &[&found, &Val::One(all)])
    }

    /// Applies an operation to each part of its operands; a scalar stands beside each part.
    fn each(&mut self, code: Code, operands: &[&Val]) -> Option<Val> {
        let parts = operands.iter().find_map(|value| match value {
            Val::Many(parts) => Some(parts.len()),
            _ => None,
        });
        let Some(parts) = parts else {
            let words: Option<Vec<Id>> = operands.iter().map(|value| one(value)).collect();
            return Some(Val::One(self.graph.op(code, &words?)));
        };
        let all = (0..parts).map(|at| {
            let own: Option<Vec<&Val>> = operands
                .iter()
                .map(|value| match value {
                    Val::Many(parts) => parts.get(at),
                    whole => Some(*whole),
                })
                .collect();
            self.each(code, &own?)
        });
        Some(Val::Many(all.collect::<Option<_>>()?))
    }

    /// Returns a part of a value, or the place of one.
    fn element(
        &mut self,
        frame: &Frame<'m>,
        handle: Handle<Expression>,
        base: Val,
        index: Id,
    ) -> Option<Val> {
        let Val::Buffer(binding, spot) = base else { return None };
        match spot {
            Spot::All if !self.is_uniform(binding) => {
                let TypeInner::Array { base, .. } = self.module.types[self.ty_of(binding)?].inner else {
                    return None;
                };
                match self.module.types[base].inner {
                    TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) if scalar.width == 4 => {}
                    TypeInner::Vector { size: naga::VectorSize::Quad, scalar } if scalar.width == 4 => {}
                    _ => return None,
                }
                Some(Val::Buffer(binding, Spot::Element(index)))
            }
            Spot::Element(vector) => {
                // A component of a vector.
                let pointed = frame.info[handle].ty.inner_with(&self.module.types);
                let (TypeInner::ValuePointer { size: None, .. } | TypeInner::Pointer { .. }) = pointed else {
                    return None;
                };
                Some(match self.graph.known(index) {
                    Some(part) => Val::Buffer(binding, Spot::Part(vector, u8::try_from(part).ok()?)),
                    None => {
                        let two = self.graph.number(2);
                        let first = self.graph.op(Code::ShiftLeft, &[vector, two]);
                        Val::Buffer(binding, Spot::Word(self.graph.op(Code::AddWord, &[first, index])))
                    }
                })
            }
            _ => None,
        }
    }

    fn load(&mut self, binding: u32, spot: Spot, inner: &TypeInner) -> Option<Val> {
        let epoch = self.graph.stores.len() as u32;
        if self.is_uniform(binding) {
            let (Spot::Word(word), TypeInner::Scalar(scalar)) = (spot, inner) else { return None };
            let word = self.graph.known(word).filter(|_| scalar.width == 4)?;
            return Some(Val::One(self.graph.node(Node::Param { binding, word })));
        }
        let part = |part: u8, index| Node::LoadPart { binding, index, part, epoch };
        Some(match (spot, inner) {
            (Spot::Element(index) | Spot::Word(index), TypeInner::Scalar(_)) => {
                Val::One(self.graph.node(Node::Load { binding, index, epoch }))
            }
            (Spot::Part(index, at), TypeInner::Scalar(_)) => Val::One(self.graph.node(part(at, index))),
            (Spot::Element(index), TypeInner::Vector { .. }) => {
                Val::Many((0..4).map(|at| Val::One(self.graph.node(part(at, index)))).collect())
            }
            _ => return None,
        })
    }

    /// Returns the number of a buffer.
    fn binding(&self, variable: Handle<GlobalVariable>) -> Option<u32> {
        let own = &self.module.global_variables[variable];
        match own.space {
            AddressSpace::Uniform | AddressSpace::Storage { .. } => Some(own.binding.as_ref()?.binding),
            _ => None,
        }
    }

    fn global(&self, binding: u32) -> Option<&'m GlobalVariable> {
        let is_it = |own: &GlobalVariable| own.binding.as_ref().is_some_and(|own| own.binding == binding);
        self.module.global_variables.iter().map(|(_, own)| own).find(|own| is_it(own))
    }

    fn ty_of(&self, binding: u32) -> Option<Handle<Type>> {
        self.global(binding).map(|own| own.ty)
    }

    fn is_uniform(&self, binding: u32) -> bool {
        self.global(binding).is_some_and(|own| own.space == AddressSpace::Uniform)
    }

    fn kind(&self, frame: &Frame<'m>, handle: Handle<Expression>) -> Option<ScalarKind> {
        let scalar = frame.info[handle].ty.inner_with(&self.module.types).scalar()?;
        (scalar.width <= 4 && !(scalar.kind == ScalarKind::Float && scalar.width == 2)).then_some(scalar.kind)
    }
}

fn truths(truth: bool) -> u32 {
    if truth { u32::MAX } else { 0 }
}
