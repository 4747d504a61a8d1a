//! Which functions are the kernels' own, and are one operation here.

use naga::{BinaryOperator, Expression, Function, Handle, Literal, MathFunction, Statement, TypeInner};

use super::graph::Code;
use super::read::Reader;

impl Reader<'_> {
    /// Returns whether a function that has the name of an operation is the kernels' own.
    pub(super) fn is_own(&self, function: &Function, code: Code, number: Option<u32>) -> bool {
        let is_it = |expression: &Expression| match expression {
            Expression::Literal(Literal::U32(own)) => Some(*own) == number,
            Expression::Literal(Literal::I32(own)) => u32::try_from(*own).ok() == number,
            _ => false,
        };
        match code {
            Code::Div | Code::Sqrt => self.is_instruction(function, code),
            _ => function.expressions.iter().any(|(_, own)| is_it(own)),
        }
    }

    /// Returns whether a function returns the CPU's quotient or root of its arguments and does nothing else.
    /// For other devices, these two are made of integers.
    fn is_instruction(&self, function: &Function, code: Code) -> bool {
        let Some((Statement::Return { value: Some(result) }, before)) = function.body.split_last() else {
            return false;
        };
        let computes = |statement: &Statement| matches!(statement, Statement::Emit(_));
        if !before.iter().all(computes) || !function.local_variables.is_empty() {
            return false;
        }
        let is_argument = |handle, number| {
            let found = &function.expressions[self.shown(function, handle)];
            matches!(found, Expression::FunctionArgument(own) if *own == number)
        };
        match function.expressions[self.shown(function, *result)] {
            Expression::Binary { op: BinaryOperator::Divide, left, right } => {
                code == Code::Div && is_argument(left, 0) && is_argument(right, 1)
            }
            Expression::Math { fun: MathFunction::Sqrt, arg, .. } => {
                code == Code::Sqrt && is_argument(arg, 0)
            }
            _ => false,
        }
    }

    /// Returns the expression that a value hides from compilers. Both have the same bits: the value is a
    /// bitcast of it, or its exclusive or with `params.zero`.
    fn shown(&self, function: &Function, mut handle: Handle<Expression>) -> Handle<Expression> {
        loop {
            handle = match function.expressions[handle] {
                Expression::As { expr, convert: None, .. } => expr,
                Expression::Binary { op: BinaryOperator::ExclusiveOr, left, right }
                    if self.is_zero(function, right) =>
                {
                    left
                }
                _ => return handle,
            };
        }
    }

    /// Returns whether an expression is the parameter `zero`, which is 0 in every launch.
    fn is_zero(&self, function: &Function, handle: Handle<Expression>) -> bool {
        let Expression::Load { pointer } = function.expressions[handle] else { return false };
        let Expression::AccessIndex { base, index } = function.expressions[pointer] else { return false };
        let Expression::GlobalVariable(variable) = function.expressions[base] else { return false };
        let own = &self.module.global_variables[variable];
        let TypeInner::Struct { members, .. } = &self.module.types[own.ty].inner else { return false };
        let name = members.get(index as usize).and_then(|member| member.name.as_deref());
        own.space == naga::AddressSpace::Uniform && name == Some("zero")
    }
}
