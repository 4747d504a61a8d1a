//! Reads a kernel without loops: all functions are inlined, and variables are what was last written to them.

use std::collections::HashMap;

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{
    Binding, Block, BuiltIn, Expression, Function, Handle, LocalVariable, Module, RelationalFunction,
    Statement,
};

use super::graph::{Code, Graph, Id, Node, Store};

/// The most nodes of a kernel.
const MOST_NODES: usize = 4_000;

/// The deepest nesting of calls.
const DEPTH: usize = 40;

/// The functions of the kernels that are one operation here, each with a number that stands in its text.
/// A program's own op may have a function of the same name that computes something else. It does not have the
/// number. A quotient or a root has none: all that it does is compared (`own.rs`).
const FUNCTIONS: [(&str, Code, Option<u32>); 9] = [
    ("flush", Code::Flush, Some(0x0080_0000)),
    ("canonical", Code::Flush, Some(0x0080_0000)),
    ("exp_", Code::Exp, Some(98173)),
    ("log_", Code::Log, Some(0x3f2a_aaab)),
    ("tanh_", Code::Tanh, Some(0x4180_0000)),
    ("erf_", Code::Erf, Some(0x2000_0000)),
    ("sigmoid", Code::Sigmoid, Some(0x42d0_0000)),
    ("quotient", Code::Div, None),
    ("root", Code::Sqrt, None),
];

/// A value of an expression.
#[derive(Clone, Debug)]
pub(super) enum Val {
    One(Id),
    Many(Vec<Val>),
    Local(Handle<LocalVariable>, Vec<usize>),
    Buffer(u32, Spot),
}

/// A place in a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spot {
    All,
    /// A scalar, or a vector of four.
    Element(Id),
    /// A component of a vector.
    Part(Id, u8),
    /// A word.
    Word(Id),
}

pub(super) struct Frame<'m> {
    pub function: &'m Function,
    pub info: &'m FunctionInfo,
    pub arguments: Vec<Val>,
    pub locals: HashMap<Handle<LocalVariable>, Val>,
    pub values: HashMap<Handle<Expression>, Val>,
    pub depth: usize,
}

/// How a block ended.
enum End {
    Open,
    Returned(Option<Val>),
}

pub(super) struct Reader<'m> {
    pub module: &'m Module,
    pub info: &'m ModuleInfo,
    pub graph: Graph,
}

/// Returns what the entry point at this index computes, or `None` if it is more than this can do.
pub(super) fn read(module: &Module, info: &ModuleInfo, index: usize) -> Option<Graph> {
    let point = &module.entry_points[index];
    let [1..=1024, 1, 1] = point.workgroup_size else { return None };
    let mut reader = Reader { module, info, graph: Graph::default() };
    let mut arguments = Vec::new();
    for argument in &point.function.arguments {
        let Some(Binding::BuiltIn(BuiltIn::GlobalInvocationId)) = argument.binding else { return None };
        let place = (0..3).map(|axis| Val::One(reader.graph.node(Node::Place(axis))));
        arguments.push(Val::Many(place.collect()));
    }
    let mut frame = Frame::new(&point.function, info.get_entry_point(index), arguments, 0);
    match reader.block(&mut frame, &point.function.body, true)? {
        End::Open | End::Returned(None) => Some(reader.graph),
        End::Returned(Some(_)) => None,
    }
}

impl<'m> Frame<'m> {
    fn new(function: &'m Function, info: &'m FunctionInfo, arguments: Vec<Val>, depth: usize) -> Self {
        let (locals, values) = Default::default();
        Self { function, info, arguments, locals, values, depth }
    }
}

impl<'m> Reader<'m> {
    fn block(&mut self, frame: &mut Frame<'m>, block: &'m Block, is_main: bool) -> Option<End> {
        for statement in block {
            match statement {
                Statement::Emit(range) => {
                    for handle in range.clone() {
                        let value = self.evaluate(frame, handle)?;
                        frame.values.insert(handle, value);
                    }
                }
                Statement::Block(inner) => match self.block(frame, inner, is_main)? {
                    End::Open => {}
                    end => return Some(end),
                },
                Statement::If { condition, accept, reject } => {
                    if let Some(end) = self.branch(frame, (*condition, accept, reject), is_main)? {
                        return Some(end);
                    }
                }
                Statement::Call { function, arguments, result } => {
                    let given: Option<Vec<Val>> =
                        arguments.iter().map(|argument| self.value(frame, *argument)).collect();
                    let value = self.call(*function, given?, frame.depth + 1)?;
                    if let (Some(result), Some(value)) = (result, value) {
                        frame.values.insert(*result, value);
                    }
                }
                Statement::Store { pointer, value } => {
                    let (to, value) = (self.value(frame, *pointer)?, self.value(frame, *value)?);
                    self.store(frame, to, value, is_main)?;
                }
                Statement::Return { value } => {
                    let value = match value {
                        Some(value) => Some(self.value(frame, *value)?),
                        None => None,
                    };
                    return Some(End::Returned(value));
                }
                _ => return None,
            }
        }
        (self.graph.nodes.len() <= MOST_NODES).then_some(End::Open)
    }

    /// Reads an `if`: of a condition that is known, one side; otherwise one that ends the invocation, or that
    /// writes a number at a place.
    fn branch(
        &mut self,
        frame: &mut Frame<'m>,
        (condition, accept, reject): (Handle<Expression>, &'m Block, &'m Block),
        is_main: bool,
    ) -> Option<Option<End>> {
        let any = match frame.function.expressions[condition] {
            Expression::Relational { fun: RelationalFunction::Any, argument } => Some(argument),
            _ => None,
        };
        let words = match (self.value(frame, any.unwrap_or(condition))?, any) {
            (Val::One(word), None) => [word; 4],
            (Val::Many(words), Some(_)) => four(&words)?,
            _ => return None,
        };
        if let (None, Some(known)) = (any, self.graph.known(words[0])) {
            let side = if known != 0 { accept } else { reject };
            return Some(match self.block(frame, side, is_main)? {
                End::Open => None,
                end => Some(end),
            });
        }
        // Where nothing comes behind, both sides return.
        let (accept, returns) = match (&accept[..], &reject[..]) {
            ([inner @ .., Statement::Return { value: None }], [Statement::Return { value: None }]) => {
                (inner, true)
            }
            (accept, []) => (accept, false),
            _ => return None,
        };
        if !is_main || frame.depth > 0 {
            return None;
        }
        match accept {
            [Statement::Return { value: None }] if any.is_none() && self.graph.stores.is_empty() => {
                // All ends are computed for all invocations, and this one may be what keeps the others from
                // places outside a buffer.
                if !self.graph.ends.is_empty() && self.graph.loads_by_invocation(words[0]) {
                    return None;
                }
                self.graph.ends.push(words[0]);
            }
            [inner @ .., Statement::Store { pointer, value }] => {
                for statement in inner {
                    let Statement::Emit(range) = statement else { return None };
                    for handle in range.clone() {
                        // Nothing is loaded that others need not have.
                        if let Expression::Load { .. } = frame.function.expressions[handle] {
                            return None;
                        }
                        let value = self.evaluate(frame, handle)?;
                        frame.values.insert(handle, value);
                    }
                }
                self.conditional_store(frame, words, (*pointer, *value))?;
            }
            _ => return None,
        }
        Some(returns.then_some(End::Returned(None)))
    }

    fn conditional_store(
        &mut self,
        frame: &mut Frame<'m>,
        words: [Id; 4],
        (pointer, value): (Handle<Expression>, Handle<Expression>),
    ) -> Option<()> {
        let Val::Buffer(binding, Spot::Element(index)) = self.value(frame, pointer)? else { return None };
        let Val::One(value) = self.value(frame, value)? else { return None };
        let (at, value) = (self.graph.known(index)?, self.graph.known(value)?);
        self.graph.stores.push(Store::IfAny { binding, at, words, value });
        Some(())
    }

    fn call(&mut self, function: Handle<Function>, arguments: Vec<Val>, depth: usize) -> Option<Option<Val>> {
        let (own, info) = (&self.module.functions[function], &self.info[function]);
        // The variable of a pointer is one of the caller's, which the callee's frame does not have.
        let is_pointer = |argument: &Val| matches!(argument, Val::Local(..) | Val::Buffer(..));
        if depth > DEPTH || arguments.iter().any(is_pointer) {
            return None;
        }
        let name = own.name.as_deref().unwrap_or_default();
        if let Some((_, code, number)) = FUNCTIONS.iter().find(|(known, ..)| *known == name)
            && self.is_own(own, *code, *number)
        {
            let scalars: Option<Vec<Id>> = arguments.iter().map(one).collect();
            let operands = if *code == Code::Div { 2 } else { 1 };
            if let Some(scalars) = scalars.filter(|scalars| scalars.len() == operands) {
                return Some(Some(Val::One(self.graph.op(*code, &scalars))));
            }
        }
        let mut frame = Frame::new(own, info, arguments, depth);
        match self.block(&mut frame, &own.body, false)? {
            End::Open => Some(None),
            End::Returned(value) => Some(value),
        }
    }

    fn store(&mut self, frame: &mut Frame<'m>, to: Val, value: Val, is_main: bool) -> Option<()> {
        match (to, value) {
            (Val::Local(local, path), value) => {
                let mut place = self.local(frame, local)?;
                *inner(&mut place, &path)? = value;
                frame.locals.insert(local, place);
            }
            _ if !is_main || frame.depth > 0 => return None,
            (Val::Buffer(binding, Spot::Element(index)), Val::One(value)) => {
                self.graph.stores.push(Store::Word { binding, index, value });
            }
            (Val::Buffer(binding, Spot::Element(index)), Val::Many(values)) => {
                let values = four(&values)?;
                self.graph.stores.push(Store::Four { binding, index, values });
            }
            _ => return None,
        }
        Some(())
    }

    /// Returns what is in a variable.
    pub fn local(&mut self, frame: &mut Frame<'m>, local: Handle<LocalVariable>) -> Option<Val> {
        if let Some(value) = frame.locals.get(&local) {
            return Some(value.clone());
        }
        let own = &frame.function.local_variables[local];
        match own.init {
            Some(init) => self.value(frame, init),
            None => self.zero(own.ty),
        }
    }
}

pub(super) fn one(value: &Val) -> Option<Id> {
    match value {
        Val::One(id) => Some(*id),
        _ => None,
    }
}

fn four(values: &[Val]) -> Option<[Id; 4]> {
    values.iter().map(one).collect::<Option<Vec<_>>>()?.try_into().ok()
}

/// Returns a part of a variable.
pub(super) fn inner<'v>(value: &'v mut Val, path: &[usize]) -> Option<&'v mut Val> {
    path.iter().try_fold(value, |value, &at| match value {
        Val::Many(parts) => parts.get_mut(at),
        _ => None,
    })
}
