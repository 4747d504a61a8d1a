//! Checks on the naga IR of an assembled module that no product reaches an addition (docs/NUMERICS.md).
//!
//! `a * b + c` may be rounded once or twice, as each compiler pleases. So shaders write `fma(a, b, c)`, and
//! this check finds every float product that may reach an operand of a float `+` or `-` before it is rounded
//! on its own.
//!
//! It errs on the side of finding: a variable is a product from the first store of one on, whatever the
//! control flow, and so are all components of a vector, array or struct that holds one; a parameter is one
//! when any call passes one. What ends a product: `fma`, division, `sqrt` and other functions that round,
//! comparisons, conversions to integers, bitcasts, and memory (storage, uniform and workgroup buffers).
//! Built-ins that add products of their own are findings by themselves.

mod builtins;
mod taint;
#[cfg(test)]
mod tests;

use naga::valid::{Capabilities, FunctionInfo, ModuleInfo, ValidationFlags, Validator};
use naga::{BinaryOperator, Expression, Function, Handle, Module, ScalarKind, Span, Statement, TypeInner};

use builtins::{Math, math};
use taint::{Kind, Taint};

/// Parses, validates and checks WGSL.
///
/// # Errors
/// One message for each addition that a product may reach, with function, line and text of the addition and
/// of the product; or the parser's or validator's message.
pub fn check(wgsl: &str) -> Result<(), Vec<String>> {
    look_for(Kind::Products, wgsl)
}

/// Parses, validates and checks WGSL that is handed to a compiler which may add numbers in another order:
/// finds every float sum that may reach an operand of a float `+` or `-` before it is rebuilt from its bits.
/// It errs on the side of finding as [`check`] does.
///
/// # Errors
/// As of [`check`], for sums.
pub fn check_sums(wgsl: &str) -> Result<(), Vec<String>> {
    look_for(Kind::Sums, wgsl)
}

fn look_for(kind: Kind, wgsl: &str) -> Result<(), Vec<String>> {
    let module = naga::front::wgsl::parse_str(wgsl).map_err(|error| vec![error.emit_to_string(wgsl)])?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .map_err(|error| vec![error.emit_to_string(wgsl)])?;
    let functions = Body::all(&module, &info);
    let taint = Taint::of(&module, &functions, kind);
    let (what, instead) = match kind {
        Kind::Products => ("product", "use fma()"),
        Kind::Sums => ("sum", "rebuild it from its bits before"),
    };
    let mut found: Vec<(u32, String)> = Vec::new();
    for (index, body) in functions.iter().enumerate() {
        body.additions(|at, operands| {
            let reason = match operands {
                Operands::Hidden => "adds products of its own".to_owned(),
                Operands::Added(operands) => {
                    let Some(origin) = operands.iter().find_map(|&operand| taint.expression(index, operand))
                    else {
                        return;
                    };
                    format!("adds the {what} {}", quote(origin, wgsl))
                }
            };
            let line = at.location(wgsl).line_number;
            found.push((line, format!("{}: {} {reason}; {instead}", body.name, quote(at, wgsl))));
        });
    }
    found.sort();
    found.dedup();
    if found.is_empty() { Ok(()) } else { Err(found.into_iter().map(|(_, message)| message).collect()) }
}

/// Returns the line and the text of a span, on one line and not too long.
pub(crate) fn quote(span: Span, wgsl: &str) -> String {
    const LONGEST: usize = 80;
    let text = span.to_range().and_then(|range| wgsl.get(range)).unwrap_or_default();
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.chars().count() > LONGEST {
        text = text.chars().take(LONGEST).chain("...".chars()).collect();
    }
    format!("`{text}` (line {})", span.location(wgsl).line_number)
}

/// A function or an entry point.
struct Body<'a> {
    name: String,
    function: &'a Function,
    info: &'a FunctionInfo,
    module: &'a Module,
}

/// The operands of an addition.
enum Operands<'a> {
    /// The addition adds products inside a built-in function.
    Hidden,
    /// The addition adds these expressions, which may be products.
    Added(&'a [Handle<Expression>]),
}

impl<'a> Body<'a> {
    /// Returns the module's functions in the order of their handles, then its entry points.
    fn all(module: &'a Module, info: &'a ModuleInfo) -> Vec<Self> {
        let functions = module.functions.iter().map(|(handle, function)| {
            let name = function.name.clone().unwrap_or_default();
            Body { name, function, info: &info[handle], module }
        });
        let entries = module.entry_points.iter().enumerate().map(|(index, entry)| Body {
            name: entry.name.clone(),
            function: &entry.function,
            info: info.get_entry_point(index),
            module,
        });
        functions.chain(entries).collect()
    }

    fn type_of(&self, expression: Handle<Expression>) -> &TypeInner {
        self.info[expression].ty.inner_with(&self.module.types)
    }

    fn is_float(&self, expression: Handle<Expression>) -> bool {
        let kind = self.type_of(expression).scalar_kind();
        matches!(kind, Some(ScalarKind::Float | ScalarKind::AbstractFloat))
    }

    /// Returns whether a multiplication sums products: that of a matrix with a vector or a matrix.
    fn is_matrix_product(&self, left: Handle<Expression>, right: Handle<Expression>) -> bool {
        let is_matrix = |side| matches!(self.type_of(side), TypeInner::Matrix { .. });
        let is_scalar = |side| matches!(self.type_of(side), TypeInner::Scalar(_));
        (is_matrix(left) || is_matrix(right)) && !is_scalar(left) && !is_scalar(right)
    }

    /// Calls `found` with every float addition, and with every built-in that hides one.
    fn additions(&self, mut found: impl FnMut(Span, Operands<'_>)) {
        for (handle, expression) in self.function.expressions.iter() {
            let at = self.function.expressions.get_span(handle);
            match *expression {
                Expression::Binary { op, left, right } if self.is_float(handle) => match op {
                    BinaryOperator::Add | BinaryOperator::Subtract => {
                        found(at, Operands::Added(&[left, right]));
                    }
                    // a - b * trunc(a / b)
                    BinaryOperator::Modulo => found(at, Operands::Hidden),
                    BinaryOperator::Multiply if self.is_matrix_product(left, right) => {
                        found(at, Operands::Hidden);
                    }
                    _ => {}
                },
                Expression::Math { fun, arg, .. } if self.is_float(arg) => match math(fun) {
                    Math::Hides => found(at, Operands::Hidden),
                    Math::Adds => found(at, Operands::Added(&[arg])),
                    Math::Product | Math::Passes | Math::Rounds => {}
                },
                Expression::CooperativeMultiplyAdd { .. } => found(at, Operands::Hidden),
                _ => {}
            }
        }
        statements(&self.function.body, &mut |statement, at| match *statement {
            Statement::Atomic {
                fun: naga::AtomicFunction::Add | naga::AtomicFunction::Subtract,
                value,
                ..
            } if self.is_float(value) => found(at, Operands::Added(&[value])),
            Statement::SubgroupCollectiveOperation { op: naga::SubgroupOperation::Add, argument, .. }
                if self.is_float(argument) =>
            {
                found(at, Operands::Added(&[argument]))
            }
            _ => {}
        });
    }
}

/// Calls `visit` with every statement, nested ones included.
fn statements(block: &naga::Block, visit: &mut impl FnMut(&Statement, Span)) {
    for (statement, &at) in block.span_iter() {
        visit(statement, at);
        match statement {
            Statement::Block(inner) => statements(inner, visit),
            Statement::If { accept, reject, .. } => {
                statements(accept, visit);
                statements(reject, visit);
            }
            Statement::Switch { cases, .. } => cases.iter().for_each(|case| statements(&case.body, visit)),
            Statement::Loop { body, continuing, .. } => {
                statements(body, visit);
                statements(continuing, visit);
            }
            _ => {}
        }
    }
}
