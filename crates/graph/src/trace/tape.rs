//! Tracing: a model's code runs once and leaves a graph.
//!
//! The first error is kept and returned by [`Tape::finish`]; until then every op gives a value back, so that
//! model code reads like arithmetic.

mod gradients;
mod lasting;
mod lookups;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use crate::trace::pointwise::takes_f32;
use crate::trace::{
    AttentionResult, Constant, Graph, GraphError, Input, InputDecl, InputKind, Lowering, Node, NodeId, Op,
    Output, OutputKind, RandomKey, State, StateDecl, StateKind, Var,
};
use crate::values::{DType, Lead, Type};

/// Records the ops of a model. Clones of a tape share one recording.
#[derive(Clone, Debug, Default)]
pub struct Tape {
    inner: Rc<RefCell<Recording>>,
}

#[derive(Debug, Default)]
struct Recording {
    graph: Graph,
    scopes: Vec<String>,
    scope: Arc<str>,
    error: Option<GraphError>,
    /// The names that are taken.
    names: BTreeSet<Name>,
    /// The input with the key and position of random ops, if it is declared.
    random: Option<usize>,
    /// The ranges of nodes that gradients compute a second time, in order.
    regions: Vec<Range<NodeId>>,
    /// How many regions the trace is in, one inside the other.
    depth: usize,
    /// The op that rounds the operands of products. `None` where they are not rounded.
    rounding: Option<Arc<dyn Op>>,
    /// Whether [`Tape::in_f32`] keeps the tape from rounding.
    is_in_f32: bool,
    /// The products that were recorded inside [`Tape::in_f32`].
    in_f32: BTreeSet<NodeId>,
    /// For each value that was rounded for a product, the rounded one.
    rounded: BTreeMap<NodeId, NodeId>,
    /// The number of loops whose steps are recorded.
    loops: usize,
    /// For each node that is in a loop the number of the innermost one.
    loop_of: BTreeMap<NodeId, usize>,
    /// The group of each value that is saved together with others, and its place in the group.
    saved: BTreeMap<NodeId, [usize; 2]>,
    /// The number of groups of such values.
    groups: usize,
    /// The indices that look something up, each with the number of elements that it may be the index of.
    lookups: Vec<(NodeId, usize)>,
    /// Whether indices that are used now may be outside of what they look up.
    takes_any_index: bool,
}

/// A name, which is unique among those of one kind.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Input(InputKind, String),
    State(String),
    Output(OutputKind, String),
}

impl Tape {
    /// Returns a tape with nothing recorded.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a tape that passes the operands of every product through an op, and the products of samples
    /// too.
    pub(crate) fn with_rounding(op: Arc<dyn Op>) -> Self {
        let tape = Self::default();
        tape.inner.borrow_mut().rounding = Some(op);
        tape
    }

    /// Runs `f` with products of f32 operands, whatever the tape's precision. An optimizer's rule or a loss
    /// is such an `f`.
    pub fn in_f32<T>(&self, f: impl FnOnce() -> T) -> T {
        let (outer, was_in_f32) = {
            let inner = &mut *self.inner.borrow_mut();
            let outer = inner.rounding.take();
            let is_in_f32 = inner.is_in_f32 || outer.is_some();
            (outer, std::mem::replace(&mut inner.is_in_f32, is_in_f32))
        };
        let result = f();
        let inner = &mut *self.inner.borrow_mut();
        (inner.rounding, inner.is_in_f32) = (outer, was_in_f32);
        result
    }

    /// Declares data that the caller brings with each step. Two inputs of one name are an error.
    pub fn input(&self, name: &str, ty: Type) -> Var {
        self.declare_input(name, ty, InputKind::Data)
    }

    /// Returns the key and position from which dropout draws. They are declared once, however often they are
    /// asked for.
    pub fn random(&self) -> Var {
        let found = self.inner.borrow().random;
        match found {
            Some(index) => self.push(Arc::new(Input(index)), &[], Some(RandomKey::ty())),
            None => self.declare_input(RandomKey::INPUT, RandomKey::ty(), InputKind::Random),
        }
    }

    fn declare_input(&self, name: &str, ty: Type, kind: InputKind) -> Var {
        let (index, known) = {
            let mut inner = self.inner.borrow_mut();
            let known = !inner.names.insert(Name::Input(kind, name.into()));
            let index = inner.graph.inputs.len();
            inner.graph.inputs.push(InputDecl { name: name.into(), ty: ty.clone(), kind });
            if kind == InputKind::Random {
                inner.random.get_or_insert(index);
            }
            (index, known)
        };
        if known {
            let kind = match kind {
                InputKind::Carry => "carry",
                InputKind::Resident(_) => "resident memory",
                InputKind::Data | InputKind::Random => "input",
            };
            self.fail(GraphError::Duplicate { kind, name: name.into() });
        }
        self.push(Arc::new(Input(index)), &[], Some(ty))
    }

    /// Declares a tensor that outlives the step. Two states of one name are an error, and so is a tensor of
    /// no elements, or of more than 2^48.
    pub fn state(&self, name: &str, dims: &[usize], kind: StateKind) -> Var {
        let ty = Type::global(dims);
        let (index, known) = {
            let mut inner = self.inner.borrow_mut();
            let known = !inner.names.insert(Name::State(name.into()));
            inner.graph.states.push(StateDecl { name: name.into(), ty: ty.clone(), kind });
            (inner.graph.states.len() - 1, known)
        };
        if known {
            self.fail(GraphError::Duplicate { kind: "state", name: name.into() });
        }
        let problem = has_elements(&ty).err().or_else(|| (!ty.is_countable()).then(|| too_large(&ty)));
        if let Some(problem) = problem {
            self.fail_here("state", format!("{name}: {problem}"));
            return self.push(Arc::new(State(index)), &[], Some(Type::global(&vec![1; dims.len()])));
        }
        self.push(Arc::new(State(index)), &[], Some(ty))
    }

    /// Returns a number as a value.
    pub fn constant(&self, x: f32) -> Var {
        self.push(Arc::new(Constant(x)), &[], Some(Type::global(&[])))
    }

    /// Applies an op. Where the op cannot take the operands, the error is kept for [`Tape::finish`], and the
    /// first operand is returned.
    pub fn apply(&self, op: impl Op, inputs: &[&Var]) -> Var {
        self.apply_dyn(Arc::new(op), inputs)
    }

    /// Applies an op whose type is not known, as [`Tape::apply`] does.
    pub fn apply_dyn(&self, op: Arc<dyn Op>, inputs: &[&Var]) -> Var {
        if !self.owns(op.name(), inputs) {
            return self.constant(0.0);
        }
        let (operands, rounds_result) = factors(&op.lowering());
        let rounding = self.inner.borrow().rounding.clone().filter(|_| operands > 0);
        let Some(rounding) = rounding else {
            let y = self.record(op, inputs);
            let inner = &mut *self.inner.borrow_mut();
            if operands > 0 && inner.is_in_f32 {
                inner.in_f32.insert(y.id);
            }
            return y;
        };
        let round = |(index, x): (usize, &&Var)| {
            if index < operands { self.rounded(x, &rounding) } else { (*x).clone() }
        };
        let rounded: Vec<Var> = inputs.iter().enumerate().map(round).collect();
        let y = self.record(op, &rounded.iter().collect::<Vec<_>>());
        if rounds_result && y.ty.lead == Lead::Sample { self.rounded(&y, &rounding) } else { y }
    }

    /// Returns whether a node is a product that was traced by [`Tape::in_f32`], on a tape that rounds the
    /// operands of others. Its gradients are such products too.
    pub(crate) fn is_in_f32(&self, id: NodeId) -> bool {
        self.inner.borrow().in_f32.contains(&id)
    }

    /// Notes that a copy is such a product where the original is.
    pub(crate) fn copy_in_f32(&self, original: NodeId, copy: NodeId) {
        if self.is_in_f32(original) {
            self.inner.borrow_mut().in_f32.insert(copy);
        }
    }

    /// Returns the rounded value. A value is rounded once, however often it is asked for, so that its
    /// gradient is summed over the shards once.
    fn rounded(&self, x: &Var, rounding: &Arc<dyn Op>) -> Var {
        if x.ty.dtype != DType::F32 || self.node(x.id).op.key() == rounding.key() {
            return x.clone();
        }
        if let Some(&id) = self.inner.borrow().rounded.get(&x.id) {
            return self.var(id);
        }
        let rounded = self.record(rounding.clone(), &[x]);
        self.inner.borrow_mut().rounded.insert(x.id, rounded.id);
        rounded
    }

    /// Records an op on operands that are not rounded.
    pub(crate) fn record(&self, op: Arc<dyn Op>, inputs: &[&Var]) -> Var {
        match infer(&*op, inputs) {
            Ok(ty) => self.push(op, inputs, Some(ty)),
            Err(problem) => {
                let scope = self.inner.borrow().scope.to_string();
                self.fail(GraphError::Op { scope, op: op.name().into(), problem });
                inputs.first().map_or_else(|| self.constant(0.0), |v| (*v).clone())
            }
        }
    }

    /// Checks that values are of this tape. The number of one of another tape means something else here. The
    /// error is one of all tapes that meet, because each may be the one that is finished.
    pub(crate) fn owns(&self, op: &str, values: &[&Var]) -> bool {
        let is_foreign = |value: &&&Var| !Rc::ptr_eq(&self.inner, &value.tape.inner);
        let Some(first) = values.iter().find(is_foreign) else { return true };
        let problem =
            format!("a value {} is of another trace: values belong to the tape that recorded them", first.ty);
        self.fail_here(op, problem.clone());
        values.iter().filter(is_foreign).for_each(|value| value.tape.fail_here(op, problem.clone()));
        false
    }

    fn push(&self, op: Arc<dyn Op>, inputs: &[&Var], ty: Option<Type>) -> Var {
        let mut inner = self.inner.borrow_mut();
        let ty = ty.unwrap_or_else(|| Type::global(&[]));
        let scope = inner.scope.clone();
        let inputs = inputs.iter().map(|v| v.id).collect();
        inner.graph.nodes.push(Node { op, inputs, ty: ty.clone(), scope });
        Var { tape: self.clone(), id: inner.graph.nodes.len() - 1, ty }
    }

    /// Runs `f` inside of a layer, so that errors name the layer's path.
    pub fn scope<T>(&self, name: &str, f: impl FnOnce() -> T) -> T {
        self.inner.borrow_mut().enter(name);
        let result = f();
        self.inner.borrow_mut().leave();
        result
    }

    /// Returns the number of nodes so far.
    pub(crate) fn len(&self) -> usize {
        self.inner.borrow().graph.nodes.len()
    }

    /// Runs `f` as a part of the layer `scope`, whatever layer is being traced.
    pub(crate) fn in_scope_of<T>(&self, scope: &Arc<str>, f: impl FnOnce() -> T) -> T {
        let outer = std::mem::replace(&mut self.inner.borrow_mut().scope, scope.clone());
        let result = f();
        self.inner.borrow_mut().scope = outer;
        result
    }

    /// Returns the path of the layer that is being traced, for example `encoder.0`.
    pub fn path(&self) -> String {
        self.inner.borrow().scope.to_string()
    }

    /// Keeps an error for [`Tape::finish`] to return, if it is the first one.
    pub fn fail(&self, error: GraphError) {
        self.inner.borrow_mut().error.get_or_insert(error);
    }

    /// Keeps an error of an op in the layer that is being traced, as [`Tape::fail`] does.
    pub fn fail_here(&self, op: &str, problem: String) {
        let scope = self.path();
        self.fail(GraphError::Op { scope, op: op.into(), problem });
    }

    /// Returns the first error so far.
    pub fn error(&self) -> Option<GraphError> {
        self.inner.borrow().error.clone()
    }

    /// Returns the value that a node stands for.
    pub(crate) fn var(&self, id: NodeId) -> Var {
        let ty = self.inner.borrow().graph.nodes[id].ty.clone();
        Var { tape: self.clone(), id, ty }
    }

    /// Returns a copy of a node.
    pub(crate) fn node(&self, id: NodeId) -> Node {
        self.inner.borrow().graph.nodes[id].clone()
    }

    /// Makes `x` an output of the step. Two outputs of one name are an error.
    pub fn output(&self, name: &str, x: &Var) {
        self.show(name, OutputKind::Value, x);
    }

    fn show(&self, name: &str, kind: OutputKind, x: &Var) {
        if !self.owns("output", &[x]) {
            return;
        }
        if let Err(problem) = has_elements(&x.ty) {
            self.fail_here("output", format!("{name}: {problem}"));
        }
        let known = {
            let mut inner = self.inner.borrow_mut();
            inner.graph.outputs.push(Output { name: name.into(), kind, node: x.id });
            !inner.names.insert(Name::Output(kind, name.into()))
        };
        if known {
            let kind = match kind {
                OutputKind::Value => "output",
                OutputKind::Carry => "kept carry",
                OutputKind::Resident(_) => "kept resident memory",
            };
            self.fail(GraphError::Duplicate { kind, name: name.into() });
        }
    }

    /// Replaces `state` by `value` when the step commits. Within the step, all states have their values from
    /// before the step, so a state may take over the value that another state had.
    pub fn update(&self, state: &Var, value: &Var) {
        if !self.owns("update", &[state, value]) {
            return;
        }
        let index = self.state_index(state);
        match index {
            Some(index) if state.ty == value.ty => {
                self.inner.borrow_mut().graph.updates.insert(index, value.id);
            }
            Some(_) => self.fail_here("update", format!("a state {} cannot become {}", state.ty, value.ty)),
            None => self.fail_here("update", "the first operand is not a state".into()),
        }
    }

    fn state_index(&self, state: &Var) -> Option<usize> {
        let op = self.inner.borrow().graph.nodes.get(state.id).map(|node| node.op.clone())?;
        op.downcast_ref().map(|&State(index)| index)
    }

    /// Returns the name of a state. `None` if the value is no state.
    pub fn state_name(&self, state: &Var) -> Option<String> {
        let index = self.state_index(state).filter(|_| Rc::ptr_eq(&self.inner, &state.tape.inner))?;
        Some(self.inner.borrow().graph.states[index].name.clone())
    }

    /// Returns the states declared so far, in order.
    pub fn states(&self) -> Vec<StateDecl> {
        self.inner.borrow().graph.states.clone()
    }

    /// Returns a copy of the graph as it is now.
    ///
    /// # Errors
    /// The first error of the trace.
    pub fn finish(&self) -> Result<Graph, GraphError> {
        let inner = self.inner.borrow();
        inner.error.clone().map_or_else(|| Ok(inner.graph.clone()), Err)
    }
}

/// Returns how many of an op's first operands are factors of products, and whether its result is one.
fn factors(lowering: &Lowering) -> (usize, bool) {
    use AttentionResult::{LogSums, Values};
    match lowering {
        Lowering::MatMul { .. } | Lowering::Contract => (2, true),
        // q, k and v, and dy of the gradients.
        Lowering::Attention { result: Values, .. } => (3, true),
        Lowering::Attention { result: LogSums, .. } => (3, false),
        Lowering::Attention { .. } => (4, true),
        _ => (0, false),
    }
}

/// Returns the type of what an op makes of operands, or why it cannot be a node on them.
fn infer(op: &dyn Op, inputs: &[&Var]) -> Result<Type, String> {
    if matches!(op.lowering(), Lowering::Leaf) {
        return Err("reads data from outside, which only declared inputs and states do".into());
    }
    // Their kernels add up f32, and would read the bits of an integer as those of another number.
    use Lowering::{Contract, MatMul, Reduce, SumShards};
    let adds_up = matches!(op.lowering(), MatMul { .. } | Contract | Reduce(_) | SumShards);
    if let Some(other) = inputs.iter().find(|v| adds_up && v.ty.dtype != DType::F32) {
        return Err(takes_f32(&other.ty));
    }
    let (least, given) = (least_operands(&op.lowering()), inputs.len());
    if given < least {
        return Err(format!("takes at least {least} operands, got {given}"));
    }
    op.fields().map_err(|problem| format!("its fields cannot be encoded: {problem}"))?;
    inputs.iter().try_for_each(|input| has_elements(&input.ty))?;
    let ty = op.infer(&inputs.iter().map(|v| &v.ty).collect::<Vec<_>>())?;
    has_elements(&ty)?;
    if ty.is_countable() { Ok(ty) } else { Err(too_large(&ty)) }
}

/// Returns the operands that a lowering has at least.
fn least_operands(lowering: &Lowering) -> usize {
    match lowering {
        Lowering::Leaf | Lowering::Constant(_) => 0,
        Lowering::Pointwise(e) => {
            (0..9).rfind(|at| e.wgsl.contains(&format!("${at}"))).map_or(0, |last| last + 1)
        }
        Lowering::View(_) | Lowering::Pad(_) | Lowering::Im2Col { .. } | Lowering::Col2Im { .. } => 1,
        Lowering::Reduce(_) | Lowering::SumShards | Lowering::Concat(_) => 1,
        Lowering::MatMul { .. } | Lowering::Contract | Lowering::RowSums { .. } => 2,
        Lowering::Take | Lowering::Embed => 2,
        Lowering::Attention { result: AttentionResult::Values | AttentionResult::LogSums, .. } => 3,
        Lowering::Attention { .. } => 6,
    }
}

/// Refuses a type without elements: there is no memory for such values, nor a kernel that computes them.
fn has_elements(ty: &Type) -> Result<(), String> {
    if ty.dims.contains(&0) { Err(format!("{ty} has no elements")) } else { Ok(()) }
}

/// Returns the problem of a type whose elements cannot be counted.
fn too_large(ty: &Type) -> String {
    format!("{ty} has more than 2^48 elements")
}

impl Recording {
    fn enter(&mut self, name: &str) {
        self.scopes.push(name.into());
        self.scope = self.scopes.join(".").into();
    }

    fn leave(&mut self) {
        self.scopes.pop();
        self.scope = self.scopes.join(".").into();
    }
}

#[cfg(test)]
mod tests;
