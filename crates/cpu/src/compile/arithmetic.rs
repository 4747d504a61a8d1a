//! Operators, functions and conversions. Each is the CPU's own operation: `fma` rounds once or
//! twice, as the options say.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{self, InstBuilder, types};
use naga::{
    BinaryOperator, Expression, Handle, MathFunction, RelationalFunction, ScalarKind, TypeInner,
    UnaryOperator,
};

use super::Stop;
use super::half::is_half;
use super::translator::{Frame, Writer};
use super::value::{Lane, Val};

/// The kind of numbers that an operation computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Float,
    Signed,
    Unsigned,
    Bool,
}

fn kind(inner: &TypeInner) -> Result<Kind, Stop> {
    if is_half(inner) {
        return Err(Stop::unsupported("arithmetic with numbers of 16 bits"));
    }
    any_kind(inner)
}

fn any_kind(inner: &TypeInner) -> Result<Kind, Stop> {
    Ok(match inner.scalar_kind() {
        Some(ScalarKind::Float) => Kind::Float,
        Some(ScalarKind::Sint) => Kind::Signed,
        Some(ScalarKind::Uint) => Kind::Unsigned,
        Some(ScalarKind::Bool) => Kind::Bool,
        _ => return Err(Stop::unsupported(format!("arithmetic with {inner:?}"))),
    })
}

/// What is done to registers.
type Operation<'a, W> = dyn FnMut(&mut W, &[ir::Value]) -> Result<ir::Value, Stop> + 'a;

impl<'m> Writer<'m, '_> {
    /// Evaluates an operation.
    pub fn operation(
        &mut self,
        frame: &mut Frame<'m>,
        handle: Handle<Expression>,
        expression: &Expression,
    ) -> Result<Val, Stop> {
        match *expression {
            Expression::Unary { op, expr } => {
                let of = self.value(frame, expr)?;
                let kind = kind(self.inner(frame, expr))?;
                self.each(&[&of], &mut |writer, x| writer.unary(op, kind, x[0]))
            }
            Expression::Binary { op, left, right } => {
                let (a, b) = (self.value(frame, left)?, self.value(frame, right)?);
                let [of_a, of_b] = [left, right].map(|side| self.inner(frame, side).clone());
                let is_matrix = |inner: &TypeInner| matches!(inner, TypeInner::Matrix { .. });
                let is_scalar = |inner: &TypeInner| matches!(inner, TypeInner::Scalar(_));
                let scaled = is_scalar(&of_a) || is_scalar(&of_b);
                if (is_matrix(&of_a) || is_matrix(&of_b)) && op == BinaryOperator::Multiply && !scaled {
                    return Err(Stop::unsupported("a product of matrices"));
                }
                let kind = kind(&of_a)?;
                self.each(&[&a, &b], &mut |writer, x| writer.binary(op, kind, x[0], x[1]))
            }
            Expression::Select { condition, accept, reject } => {
                let wanted = self.value(frame, condition)?;
                let (yes, no) = (self.value(frame, accept)?, self.value(frame, reject)?);
                if let TypeInner::Scalar(_) = self.inner(frame, condition) {
                    let Val::One(condition) = wanted else {
                        return Err(Stop::unsupported("a condition with parts"));
                    };
                    return match self.known_number(condition) {
                        Some(known) => Ok(if known != 0 { yes } else { no }),
                        None => self.choose(condition, &yes, &no),
                    };
                }
                self.each(&[&wanted, &yes, &no], &mut |writer, x| {
                    let ty = writer.ty(x[1]);
                    if ty.is_vector() {
                        return Ok(writer.chosen(ty, x[0], x[1], x[2]));
                    }
                    Ok(writer.selected(x[0], x[1], x[2]))
                })
            }
            Expression::Relational { fun, argument } => {
                let of = self.value(frame, argument)?;
                let inner = self.inner(frame, argument).clone();
                let all = match fun {
                    RelationalFunction::All => true,
                    RelationalFunction::Any => false,
                    other => return Err(Stop::unsupported(format!("{other:?}"))),
                };
                if let Val::One(vector) = of
                    && self.ty(vector).is_vector()
                {
                    let found =
                        if all { self.b.ins().vall_true(vector) } else { self.b.ins().vany_true(vector) };
                    return Ok(Val::One(found));
                }
                let mut found = None;
                for scalar in self.scalars(&inner, &of)? {
                    found = Some(match found {
                        None => scalar,
                        Some(before) if all => self.b.ins().band(before, scalar),
                        Some(before) => self.b.ins().bor(before, scalar),
                    });
                }
                found.map(Val::One).ok_or_else(|| Stop::unsupported("an empty vector"))
            }
            Expression::Math { fun: MathFunction::Transpose, arg, .. } => {
                let of = self.value(frame, arg)?;
                let to = self.inner(frame, handle).clone();
                self.transpose(&to, &of)
            }
            Expression::Math { fun: MathFunction::Dot, arg, arg1: Some(arg1), .. } => {
                let (a, b) = (self.value(frame, arg)?, self.value(frame, arg1)?);
                let inner = self.inner(frame, arg).clone();
                let kind = kind(&inner)?;
                let (a, b) = (self.scalars(&inner, &a)?, self.scalars(&inner, &b)?);
                let mut sum = None;
                for (a, b) in a.into_iter().zip(b) {
                    let product = self.binary(BinaryOperator::Multiply, kind, a, b)?;
                    sum = Some(match sum {
                        None => product,
                        Some(before) => self.binary(BinaryOperator::Add, kind, before, product)?,
                    });
                }
                sum.map(Val::One).ok_or_else(|| Stop::unsupported("an empty vector"))
            }
            Expression::Math { fun, arg, arg1, arg2, .. } => {
                let mut of = Vec::new();
                for handle in [Some(arg), arg1, arg2].into_iter().flatten() {
                    of.push(self.value(frame, handle)?);
                }
                let kind = kind(self.inner(frame, arg))?;
                let of: Vec<&Val> = of.iter().collect();
                self.each(&of, &mut |writer, x| writer.function(fun, kind, x))
            }
            Expression::As { expr, kind: to, convert } => {
                let of = self.value(frame, expr)?;
                let from = any_kind(self.inner(frame, expr))?;
                let is_narrow = is_half(self.inner(frame, expr));
                let to = any_kind(&TypeInner::Scalar(naga::Scalar { kind: to, width: 4 }))?;
                match convert {
                    None if is_narrow => Err(Stop::unsupported("the bits of numbers of 16 bits")),
                    None => self.each(&[&of], &mut |writer, x| Ok(writer.reinterpreted(x[0], to))),
                    Some(2) if is_narrow => Ok(of),
                    Some(2) if from == Kind::Float => {
                        self.each(&[&of], &mut |writer, x| Ok(writer.rounded_half(x[0])))
                    }
                    Some(2) => Err(Stop::unsupported("numbers of 16 bits from integers")),
                    Some(width) => {
                        self.each(&[&of], &mut |writer, x| writer.converted(from, to, width == 8, x[0]))
                    }
                }
            }
            ref other => {
                let name = format!("{other:?}");
                let name = name.split([' ', '(']).next().unwrap_or_default().to_owned();
                Err(Stop::unsupported(format!("the expression {name}")))
            }
        }
    }

    pub fn ty(&self, value: ir::Value) -> ir::Type {
        self.b.func.dfg.value_type(value)
    }

    /// Applies an operation to registers: to each part of the values on its own, and to a scalar with each
    /// part of a value beside it.
    fn each(&mut self, of: &[&Val], operation: &mut Operation<'_, Self>) -> Result<Val, Stop> {
        let parts = of.iter().find_map(|value| match value {
            Val::Many(parts) => Some(parts.len()),
            _ => None,
        });
        if let Some(parts) = parts {
            let mut values = Vec::new();
            for at in 0..parts {
                let own: Vec<&Val> = of
                    .iter()
                    .map(|value| match value {
                        Val::Many(parts) => &parts[at],
                        whole => *whole,
                    })
                    .collect();
                values.push(self.each(&own, operation)?);
            }
            return Ok(Val::Many(values.into()));
        }
        let mut registers = Vec::new();
        for value in of {
            match value {
                Val::One(value) => registers.push(*value),
                _ => return Err(Stop::unsupported("arithmetic with pointers")),
            }
        }
        // A scalar beside a vector stands for a vector of it.
        let vector = registers.iter().map(|value| self.ty(*value)).find(|ty| ty.is_vector());
        if let Some(vector) = vector {
            for value in &mut registers {
                let own = self.ty(*value);
                if !own.is_vector() {
                    let ty = if own == types::F32 { types::F32X4 } else { vector };
                    *value = self.splat_of(ty, *value);
                }
            }
        }
        operation(self, &registers).map(Val::One)
    }

    /// Applies an operation of scalars to the lanes of vectors of integers.
    pub fn by_lane(
        &mut self,
        vectors: &[ir::Value],
        operation: &mut Operation<'_, Self>,
    ) -> Result<ir::Value, Stop> {
        let mut found = Vec::new();
        for lane in 0..4 {
            let own: Vec<_> = vectors.iter().map(|vector| self.lane(*vector, Lane::Known(lane))).collect();
            found.push(operation(self, &own)?);
        }
        let mut vector = self.b.ins().splat(types::I32X4, found[0]);
        for lane in 1..4u8 {
            vector = self.b.ins().insertlane(vector, found[usize::from(lane)], lane);
        }
        Ok(vector)
    }

    fn unary(&mut self, op: UnaryOperator, kind: Kind, x: ir::Value) -> Result<ir::Value, Stop> {
        Ok(match (op, kind) {
            (UnaryOperator::Negate, Kind::Float) => self.negated(x),
            (UnaryOperator::Negate, _) => self.b.ins().ineg(x),
            (UnaryOperator::LogicalNot, _) if self.ty(x).is_vector() => self.b.ins().bnot(x),
            (UnaryOperator::LogicalNot, _) => match self.known_number(x) {
                Some(known) => self.number(types::I8, known ^ 1),
                None => self.b.ins().bxor_imm_s(x, 1),
            },
            (UnaryOperator::BitwiseNot, _) => self.b.ins().bnot(x),
        })
    }

    fn binary(
        &mut self,
        op: BinaryOperator,
        kind: Kind,
        a: ir::Value,
        b: ir::Value,
    ) -> Result<ir::Value, Stop> {
        if kind == Kind::Float {
            return self.binary_float(op, a, b);
        }
        if let (Some(x), Some(y)) = (self.known_number(a), self.known_number(b))
            && let Some((ty, number)) = folded(op, kind, self.ty(a), x, y)
        {
            return Ok(self.number(ty, number));
        }
        let ty = self.ty(a);
        let is_signed = kind == Kind::Signed;
        Ok(match op {
            BinaryOperator::Add => self.b.ins().iadd(a, b),
            BinaryOperator::Subtract => self.b.ins().isub(a, b),
            BinaryOperator::Multiply => self.b.ins().imul(a, b),
            BinaryOperator::And | BinaryOperator::LogicalAnd => self.b.ins().band(a, b),
            BinaryOperator::InclusiveOr | BinaryOperator::LogicalOr => self.b.ins().bor(a, b),
            BinaryOperator::ExclusiveOr => self.b.ins().bxor(a, b),
            BinaryOperator::Divide | BinaryOperator::Modulo => {
                if ty.is_vector() {
                    return self.by_lane(&[a, b], &mut |writer, x| writer.binary(op, kind, x[0], x[1]));
                }
                self.quotient(op == BinaryOperator::Modulo, is_signed, a, b)
            }
            BinaryOperator::ShiftLeft | BinaryOperator::ShiftRight => {
                let by = match self.splats.get(&b) {
                    Some(&scalar) => scalar,
                    None if ty.is_vector() => {
                        return self.by_lane(&[a, b], &mut |writer, x| writer.binary(op, kind, x[0], x[1]));
                    }
                    None => b,
                };
                match op {
                    BinaryOperator::ShiftLeft => self.b.ins().ishl(a, by),
                    _ if is_signed => self.b.ins().sshr(a, by),
                    _ => self.b.ins().ushr(a, by),
                }
            }
            _ => {
                let condition = match (op, is_signed) {
                    (BinaryOperator::Equal, _) => IntCC::Equal,
                    (BinaryOperator::NotEqual, _) => IntCC::NotEqual,
                    (BinaryOperator::Less, true) => IntCC::SignedLessThan,
                    (BinaryOperator::Less, false) => IntCC::UnsignedLessThan,
                    (BinaryOperator::LessEqual, true) => IntCC::SignedLessThanOrEqual,
                    (BinaryOperator::LessEqual, false) => IntCC::UnsignedLessThanOrEqual,
                    (BinaryOperator::Greater, true) => IntCC::SignedGreaterThan,
                    (BinaryOperator::Greater, false) => IntCC::UnsignedGreaterThan,
                    (BinaryOperator::GreaterEqual, true) => IntCC::SignedGreaterThanOrEqual,
                    (BinaryOperator::GreaterEqual, false) => IntCC::UnsignedGreaterThanOrEqual,
                    _ => return Err(Stop::unsupported(format!("{op:?}"))),
                };
                self.compared(condition, a, b)
            }
        })
    }

    /// Compares integers. With a known number `<` and `>` are taken for `<=` and `>=`: of vectors, the
    /// CPU knows no others.
    pub fn compared(&mut self, condition: IntCC, a: ir::Value, b: ir::Value) -> ir::Value {
        let known = self.splats.get(&b).and_then(|scalar| self.known_number(*scalar));
        let number = known.filter(|_| self.ty(b) == types::I32X4).map(|number| number as u32 as i32);
        let strict = match (condition, number) {
            (IntCC::SignedLessThanOrEqual, Some(number)) => {
                number.checked_add(1).map(|next| (IntCC::SignedLessThan, next))
            }
            (IntCC::SignedGreaterThanOrEqual, Some(number)) => {
                number.checked_sub(1).map(|before| (IntCC::SignedGreaterThan, before))
            }
            _ => None,
        };
        let Some((condition, number)) = strict else { return self.b.ins().icmp(condition, a, b) };
        let number = self.number(types::I32, u64::from(number as u32));
        let b = self.splat_of(types::I32X4, number);
        self.b.ins().icmp(condition, a, b)
    }

    /// Changes the sign of a float, or of four.
    pub fn negated(&mut self, x: ir::Value) -> ir::Value {
        let ty = self.ty(x);
        if ty != types::F32X4 {
            return self.b.ins().fneg(x);
        }
        // Cranelift makes the number anew for each negation.
        let sign = self.b.func.dfg.constants.insert([0u8, 0, 0, 0x80].repeat(4).into());
        let sign = self.b.ins().vconst(types::I32X4, sign);
        let bits = self.bits_as(x, types::I32X4);
        let bits = self.b.ins().bxor(bits, sign);
        self.bits_as(bits, ty)
    }

    /// Returns a quotient or what remains. Where WGSL has no quotient, the CPU's instruction traps:
    /// there the divisor is 1.
    fn quotient(&mut self, remains: bool, is_signed: bool, a: ir::Value, b: ir::Value) -> ir::Value {
        let is_safe = self.known_number(b).is_some_and(|b| b != 0 && (!is_signed || b >> 31 == 0));
        let ty = self.ty(a);
        let divisor = if is_safe {
            b
        } else {
            let mut is_wrong = self.b.ins().icmp_imm_s(IntCC::Equal, b, 0);
            if is_signed {
                let least = if ty == types::I64 { i64::MIN } else { i64::from(i32::MIN) };
                let least = self.b.ins().icmp_imm_s(IntCC::Equal, a, least);
                let minus = self.b.ins().icmp_imm_s(IntCC::Equal, b, -1);
                let overflows = self.b.ins().band(least, minus);
                is_wrong = self.b.ins().bor(is_wrong, overflows);
            }
            let one = self.b.ins().iconst(ty, 1);
            self.b.ins().select(is_wrong, one, b)
        };
        match (remains, is_signed) {
            (false, false) => self.b.ins().udiv(a, divisor),
            (false, true) => self.b.ins().sdiv(a, divisor),
            (true, false) => self.b.ins().urem(a, divisor),
            (true, true) => self.b.ins().srem(a, divisor),
        }
    }

    fn binary_float(&mut self, op: BinaryOperator, a: ir::Value, b: ir::Value) -> Result<ir::Value, Stop> {
        let condition = match op {
            BinaryOperator::Add => return Ok(self.b.ins().fadd(a, b)),
            BinaryOperator::Subtract => return Ok(self.b.ins().fsub(a, b)),
            BinaryOperator::Multiply => return Ok(self.b.ins().fmul(a, b)),
            BinaryOperator::Divide => return Ok(self.b.ins().fdiv(a, b)),
            BinaryOperator::Equal => FloatCC::Equal,
            BinaryOperator::NotEqual => FloatCC::NotEqual,
            BinaryOperator::Less => FloatCC::LessThan,
            BinaryOperator::LessEqual => FloatCC::LessThanOrEqual,
            BinaryOperator::Greater => FloatCC::GreaterThan,
            BinaryOperator::GreaterEqual => FloatCC::GreaterThanOrEqual,
            _ => return Err(Stop::unsupported(format!("{op:?} of floats"))),
        };
        Ok(self.b.ins().fcmp(condition, a, b))
    }
}

/// Returns what an operator gives for integers of 32 bits or booleans that are known.
pub(super) fn folded(
    op: BinaryOperator,
    kind: Kind,
    ty: ir::Type,
    x: u64,
    y: u64,
) -> Option<(ir::Type, u64)> {
    if ty != types::I32 && ty != types::I8 {
        return None;
    }
    let (a, b) = (x as u32, y as u32);
    let turned = if kind == Kind::Signed { 0x8000_0000 } else { 0 };
    let (left, right) = (a ^ turned, b ^ turned);
    let number = |number: u32| Some((ty, u64::from(number)));
    let truth = |truth: bool| Some((types::I8, u64::from(truth)));
    match op {
        BinaryOperator::Add => number(a.wrapping_add(b)),
        BinaryOperator::Subtract => number(a.wrapping_sub(b)),
        BinaryOperator::Multiply => number(a.wrapping_mul(b)),
        BinaryOperator::Divide if turned == 0 && b != 0 => number(a / b),
        BinaryOperator::Modulo if turned == 0 && b != 0 => number(a % b),
        BinaryOperator::And | BinaryOperator::LogicalAnd => number(a & b),
        BinaryOperator::InclusiveOr | BinaryOperator::LogicalOr => number(a | b),
        BinaryOperator::ExclusiveOr => number(a ^ b),
        BinaryOperator::ShiftLeft if b < 32 => number(a << b),
        BinaryOperator::ShiftRight if turned == 0 && b < 32 => number(a >> b),
        BinaryOperator::Equal => truth(a == b),
        BinaryOperator::NotEqual => truth(a != b),
        BinaryOperator::Less => truth(left < right),
        BinaryOperator::LessEqual => truth(left <= right),
        BinaryOperator::Greater => truth(left > right),
        BinaryOperator::GreaterEqual => truth(left >= right),
        _ => None,
    }
}
