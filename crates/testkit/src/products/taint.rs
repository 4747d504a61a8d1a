//! Finds the expressions that may be products: a taint that flows through values, variables, parameters and
//! results until nothing changes.

use naga::{
    AddressSpace, BinaryOperator, Expression, Function, GlobalVariable, Handle, LocalVariable, Module,
    ScalarKind, Span, Statement, SubgroupOperation,
};

use super::{Body, Math, math, statements};

/// The origin of a product; once it is set, it stays.
type Origin = Option<Span>;

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Products,
    Sums,
}

/// The values of each function that may be products, or sums.
pub(super) struct Taint {
    kind: Kind,
    functions: Vec<Marks>,
    globals: Vec<Origin>,
    changed: bool,
}

/// What may be a product in one function. A pointer stands for what it points to.
struct Marks {
    expressions: Vec<Origin>,
    locals: Vec<Origin>,
    arguments: Vec<Origin>,
    result: Origin,
}

/// A place that is loaded from and stored to.
enum Place {
    Local(Handle<LocalVariable>),
    Argument(u32),
    Global(Handle<GlobalVariable>),
}

impl Taint {
    /// Computes the fixpoint for all functions of a module; `bodies` are in the order of [`Body::all`].
    pub(super) fn of(module: &Module, bodies: &[Body<'_>], kind: Kind) -> Self {
        let marks = |Body { function, .. }: &Body<'_>| Marks {
            expressions: vec![None; function.expressions.len()],
            locals: vec![None; function.local_variables.len()],
            arguments: vec![None; function.arguments.len()],
            result: None,
        };
        let functions = bodies.iter().map(marks).collect();
        let mut taint =
            Taint { kind, functions, globals: vec![None; module.global_variables.len()], changed: true };
        while taint.changed {
            taint.changed = false;
            for (index, body) in bodies.iter().enumerate() {
                taint.visit(index, body);
            }
        }
        taint
    }

    /// Returns the origin of the product that an expression of a function may be.
    pub(super) fn expression(&self, function: usize, expression: Handle<Expression>) -> Origin {
        self.functions[function].expressions[expression.index()]
    }

    /// Returns whether an operation of floats gives what is looked for.
    fn makes(&self, op: BinaryOperator) -> bool {
        match self.kind {
            Kind::Products => op == BinaryOperator::Multiply,
            Kind::Sums => matches!(op, BinaryOperator::Add | BinaryOperator::Subtract),
        }
    }

    fn visit(&mut self, index: usize, body: &Body<'_>) {
        for (handle, expression) in body.function.expressions.iter() {
            let origin = self.evaluate(index, body, handle, expression);
            self.changed |= join(&mut self.functions[index].expressions[handle.index()], origin);
        }
        for (handle, local) in body.function.local_variables.iter() {
            let origin = local.init.and_then(|init| self.expression(index, init));
            self.changed |= join(&mut self.functions[index].locals[handle.index()], origin);
        }
        statements(&body.function.body, &mut |statement, at| match *statement {
            Statement::Store { pointer, value } => {
                self.store(index, body, pointer, self.expression(index, value));
            }
            Statement::Return { value: Some(value) } => {
                let origin = self.expression(index, value);
                self.changed |= join(&mut self.functions[index].result, origin);
            }
            Statement::Call { function, ref arguments, .. } => self.call(index, body, function, arguments),
            Statement::SubgroupGather { argument, result, .. } => {
                let origin = self.expression(index, argument);
                self.changed |= join(&mut self.functions[index].expressions[result.index()], origin);
            }
            Statement::SubgroupCollectiveOperation { op, argument, result, .. } => {
                let origin = match op {
                    SubgroupOperation::Mul if body.is_float(argument) && self.kind == Kind::Products => {
                        Some(at)
                    }
                    SubgroupOperation::Add if body.is_float(argument) && self.kind == Kind::Sums => Some(at),
                    SubgroupOperation::Min | SubgroupOperation::Max => self.expression(index, argument),
                    _ => None,
                };
                self.changed |= join(&mut self.functions[index].expressions[result.index()], origin);
            }
            _ => {}
        });
    }

    fn evaluate(
        &self,
        index: usize,
        body: &Body<'_>,
        handle: Handle<Expression>,
        expression: &Expression,
    ) -> Origin {
        let of = |operand| self.expression(index, operand);
        let here = Some(body.function.expressions.get_span(handle));
        match *expression {
            Expression::Binary { op, .. } if body.is_float(handle) && self.makes(op) => here,
            Expression::Math { fun, arg, arg1, arg2, .. } if body.is_float(arg) => match math(fun) {
                Math::Product if self.kind == Kind::Products => here,
                Math::Product => None,
                Math::Passes => of(arg).or(arg1.and_then(of)).or(arg2.and_then(of)),
                Math::Hides | Math::Adds | Math::Rounds => None,
            },
            // A change of float width may be folded into a multiply-add of mixed widths.
            Expression::As { expr, kind: ScalarKind::Float, convert: Some(_) } => of(expr),
            Expression::Compose { ref components, .. } => components.iter().find_map(|&part| of(part)),
            Expression::Select { accept, reject, .. } => of(accept).or(of(reject)),
            Expression::Access { base: inner, .. }
            | Expression::AccessIndex { base: inner, .. }
            | Expression::Splat { value: inner, .. }
            | Expression::Swizzle { vector: inner, .. }
            | Expression::Load { pointer: inner }
            | Expression::Derivative { expr: inner, .. }
            | Expression::Unary { expr: inner, .. } => of(inner),
            Expression::FunctionArgument(argument) if !is_memory(body, handle) => {
                self.functions[index].arguments[argument as usize]
            }
            Expression::LocalVariable(local) => self.functions[index].locals[local.index()],
            Expression::GlobalVariable(global) if !is_memory(body, handle) => self.globals[global.index()],
            Expression::CallResult(function) => self.functions[function.index()].result,
            _ => None,
        }
    }

    /// Passes the taint of arguments to a called function, and that of what pointers point to back as well.
    fn call(
        &mut self,
        index: usize,
        body: &Body<'_>,
        callee: Handle<Function>,
        arguments: &[Handle<Expression>],
    ) {
        for (position, &argument) in arguments.iter().enumerate() {
            let origin = self.expression(index, argument);
            let parameter = &mut self.functions[callee.index()].arguments[position];
            self.changed |= join(parameter, origin);
            let origin = *parameter;
            if body.type_of(argument).pointer_space().is_some() {
                self.store(index, body, argument, origin);
            }
        }
    }

    fn store(&mut self, index: usize, body: &Body<'_>, pointer: Handle<Expression>, origin: Origin) {
        if is_memory(body, pointer) {
            return;
        }
        let marks = &mut self.functions[index];
        let place = match place(body.function, pointer) {
            Some(Place::Local(local)) => &mut marks.locals[local.index()],
            Some(Place::Argument(argument)) => &mut marks.arguments[argument as usize],
            Some(Place::Global(global)) => &mut self.globals[global.index()],
            None => return,
        };
        self.changed |= join(place, origin);
    }
}

/// Marks a place as a product. Returns whether that is new.
fn join(place: &mut Origin, origin: Origin) -> bool {
    let changes = place.is_none() && origin.is_some();
    if changes {
        *place = origin;
    }
    changes
}

/// Returns whether a pointer points to memory, where values are stored rounded, and not to a variable.
fn is_memory(body: &Body<'_>, pointer: Handle<Expression>) -> bool {
    let space = body.type_of(pointer).pointer_space();
    space.is_some_and(|space| !matches!(space, AddressSpace::Function | AddressSpace::Private))
}

/// Returns the variable into which a pointer points.
fn place(function: &Function, pointer: Handle<Expression>) -> Option<Place> {
    match function.expressions[pointer] {
        Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => place(function, base),
        Expression::LocalVariable(local) => Some(Place::Local(local)),
        Expression::FunctionArgument(argument) => Some(Place::Argument(argument)),
        Expression::GlobalVariable(global) => Some(Place::Global(global)),
        _ => None,
    }
}
