//! The context: what a layer asks while the model is traced.

mod added;
mod average;
mod carry;
mod given;
mod kernel;
mod notes;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use unisono_graph::{Graph, GraphError, Lead, NodeId, StateKind, Tape, Type, Var};

pub(crate) use added::Added;
pub(crate) use carry::Carry;
pub(crate) use notes::LayerNotes;

use crate::model::ids;
use crate::model::reparametrize::Reparametrize;
use crate::model::{Initializer, Layer};

/// The most layers inside of one another. Layers are traced by a recursion, which needs a few kilobytes of
/// the stack for each.
pub(crate) const MAX_NESTING: usize = 128;

/// Accepts the names of statistics that keep their values.
pub(crate) type FrozenNames = dyn Fn(&str) -> bool + Send + Sync;

/// Says whether a model is traced for training or for evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// The model as it is trained: dropout drops, statistics are updated.
    Train,
    /// The model as it is evaluated and as it predicts.
    Evaluate,
}

/// A parameter or statistic that a layer has declared.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Parameter {
    /// The full name, for example `0.weight`.
    pub name: String,
    /// The value before the step.
    pub var: Var,
    /// What the values are before the first step.
    pub initializer: Initializer,
    /// The axis of the output channels, if the layer has declared a kernel ([`Context::kernel`]).
    pub channels: Option<usize>,
}

/// A line of the model's summary: one layer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SummaryLine {
    /// The layer's path, for example `0`.
    pub path: String,
    /// The kind of layer, for example `dense`.
    pub kind: String,
    /// The type of the layer's output.
    pub output: Type,
    /// The number of elements of the layer's own parameters, without those of layers inside.
    pub parameters: usize,
}

/// The context of a model while it is traced. Layers use it to declare parameters, statistics and carries,
/// and to apply other layers. It knows the path of the current layer.
pub struct Context {
    tape: Tape,
    mode: Mode,
    path: Vec<String>,
    parameters: Vec<Parameter>,
    statistics: Vec<Parameter>,
    carries: Vec<Carry>,
    /// The number of each carry in `carries` by its node.
    carry_at: BTreeMap<NodeId, usize>,
    summary: Vec<SummaryLine>,
    penalties: Vec<Var>,
    added: Added,
    /// The values that are ids, each with the number of rows of its table.
    ids: Vec<(NodeId, usize)>,
    /// How often each layer has drawn numbers.
    drawn: BTreeMap<String, usize>,
    /// How often each path was entered.
    entered: BTreeMap<String, usize>,
    /// The number of layers around this point that are applied again.
    again: usize,
    /// The number of layers around this point that are applied frozen.
    frozen: usize,
    /// What the layer at each path is.
    kinds: BTreeMap<String, String>,
    /// The names of the parameters that were used where no layer around them was applied frozen, or as
    /// averages.
    not_frozen: BTreeSet<String>,
    /// The decay of the averages that stand for weights at this point.
    averaged: Option<f32>,
    /// Accepts the statistics that keep their values.
    frozen_statistics: Option<Arc<FrozenNames>>,
    /// What statistics became so far, by the nodes of their states.
    replaced: BTreeMap<NodeId, Var>,
    /// The states of statistics by the nodes of what they became.
    states: BTreeMap<NodeId, Var>,
    /// Values for tensors by name, which are declared already.
    given: BTreeMap<String, Var>,
    notes: LayerNotes,
    /// What layers get in place of their parameters.
    pub(super) reparametrize: Option<Arc<Reparametrize>>,
}

impl Context {
    /// Creates a context that traces on `tape`. A trainer does this for you. Call it to trace a model for a
    /// step of your own.
    pub fn new(tape: &Tape, mode: Mode) -> Self {
        Self {
            tape: tape.clone(),
            mode,
            path: vec![],
            parameters: vec![],
            statistics: vec![],
            carries: vec![],
            carry_at: BTreeMap::new(),
            summary: vec![],
            penalties: vec![],
            added: Added::default(),
            ids: vec![],
            drawn: BTreeMap::new(),
            entered: BTreeMap::new(),
            again: 0,
            frozen: 0,
            kinds: BTreeMap::new(),
            not_frozen: BTreeSet::new(),
            averaged: None,
            frozen_statistics: None,
            replaced: BTreeMap::new(),
            states: BTreeMap::new(),
            given: BTreeMap::new(),
            notes: LayerNotes::default(),
            reparametrize: None,
        }
    }

    /// Returns the tape, for constants and for ops of your own.
    pub fn tape(&self) -> &Tape {
        &self.tape
    }

    /// Returns whether this trace is for training.
    pub fn is_training(&self) -> bool {
        self.mode == Mode::Train
    }

    /// Returns the path of the layer that is being traced, for example `encoder.0`. The model's own path is
    /// empty.
    pub fn path(&self) -> String {
        self.path.join(".")
    }

    /// Declares a parameter of this layer (PyTorch's `nn.Parameter`, Keras's `add_weight`). It is trained,
    /// and saved as `path.name`. Returns its value, `dims`.
    ///
    /// Its initial value depends on `initializer` and on that name only. Adding a layer therefore does not
    /// change the other parameters.
    ///
    /// Errors: an axis has the length 0.
    #[doc(alias = "add_weight")]
    pub fn parameter(&mut self, name: &str, dims: &[usize], initializer: Initializer) -> Var {
        let var = self.shared(&self.parameters, name, dims).unwrap_or_else(|| {
            let parameter = self.declare(name, dims, StateKind::Parameter, initializer);
            let var = parameter.var.clone();
            self.parameters.push(parameter);
            var
        });
        // An average of a weight that nobody trains is most likely a mistake.
        if self.frozen == 0 || self.averaged.is_some() {
            self.not_frozen.insert(self.full(name));
        }
        let var = if self.frozen > 0 { var.detach() } else { var };
        self.in_use(name, var)
    }

    /// Declares a statistic of this layer (PyTorch's `register_buffer`), such as a running mean. It is saved
    /// like a parameter, but only [`Context::replace`] changes it. Returns its value, `dims`.
    ///
    /// Declare it in both modes, so that the model has the same tensors in training and in evaluation.
    #[doc(alias = "register_buffer")]
    pub fn statistic(&mut self, name: &str, dims: &[usize], initializer: Initializer) -> Var {
        if let Some(shared) = self.shared(&self.statistics, name, dims) {
            // Where the layer was applied before, the statistic goes on from what it became there.
            return self.replaced.get(&shared.id()).cloned().unwrap_or(shared);
        }
        let statistic = self.declare(name, dims, StateKind::Statistic, initializer);
        let var = statistic.var.clone();
        self.statistics.push(statistic);
        var
    }

    /// Returns the full name of a tensor of this layer.
    pub(super) fn full(&self, name: &str) -> String {
        self.path.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".")
    }

    /// Returns the value of a tensor that this layer declared where it was applied before.
    fn shared(&self, declared: &[Parameter], name: &str, dims: &[usize]) -> Option<Var> {
        if self.again == 0 {
            return None;
        }
        let full = self.full(name);
        let known = &declared.iter().find(|parameter| parameter.name == full)?.var;
        if known.dims() != dims {
            let before = known.dims();
            self.fail(
                "declare",
                format!("{full} is {dims:?} here, and {before:?} where the layer was applied before"),
            );
        }
        Some(known.clone())
    }

    /// Returns the name that this layer's random ops draw by: the path of the layer, and a number if the
    /// layer is applied several times.
    pub fn stream(&self) -> String {
        let path = self.path();
        match self.times_entered() {
            1 => path,
            times => format!("{path} ({times})"),
        }
    }

    /// Returns how often this layer, or one around it, was entered.
    fn times_entered(&self) -> usize {
        let paths = (1..=self.path.len()).map(|depth| self.path[..depth].join("."));
        paths.filter_map(|path| self.entered.get(&path).copied()).max().unwrap_or(1)
    }

    fn declare(&self, name: &str, dims: &[usize], kind: StateKind, initializer: Initializer) -> Parameter {
        if dims.contains(&0) {
            self.fail("declare", format!("{name} {dims:?} has no elements"));
        }
        let name = self.full(name);
        let given = self.given.get(&name).filter(|given| given.dims() == dims).cloned();
        let var = given.unwrap_or_else(|| self.tape.state(&name, dims, kind));
        Parameter { var, name, initializer, channels: None }
    }

    /// Returns whether a statistic of this layer stays unchanged in training, because
    /// [`Builder::freeze_statistics`](crate::Builder::freeze_statistics) selects it. The layer then uses it
    /// as in evaluation.
    pub fn is_statistic_frozen(&self, name: &str) -> bool {
        self.keeps(&self.full(name))
    }

    fn keeps(&self, full: &str) -> bool {
        self.frozen_statistics.as_ref().is_some_and(|accepts| accepts(full))
    }

    /// Lets the statistics that `accepts` accepts keep their values.
    pub(crate) fn freeze_statistics(&mut self, accepts: Option<Arc<FrozenNames>>) {
        self.frozen_statistics = accepts;
    }

    /// Sets the value of a statistic after the training step. It has no effect outside of training.
    pub fn replace(&mut self, statistic: &Var, value: &Var) {
        if !self.is_training() || self.frozen > 0 || self.is_given(statistic) {
            return;
        }
        if let Some(parameter) = self.parameters.iter().find(|own| own.var.id() == statistic.id()) {
            let problem = format!(
                "{} is a parameter, which the optimizer changes: declare a statistic",
                parameter.name
            );
            return self.fail("replace", problem);
        }
        let state = self.states.get(&statistic.id()).unwrap_or(statistic).clone();
        if self.tape.state_name(&state).is_some_and(|name| self.keeps(&name)) {
            return;
        }
        self.tape.update(&state, value);
        self.replaced.insert(state.id(), value.clone());
        self.states.insert(value.id(), state);
    }

    /// Applies a layer under a name. Its parameters are called `path.name.*`. Applying a layer again under
    /// the same name shares its weights. Its statistics continue from the previous application, and its
    /// dropout draws new numbers.
    ///
    /// Errors: more than 128 layers are nested.
    pub fn apply(&mut self, name: &str, layer: &dyn Layer, x: &Var) -> Var {
        self.within(name, layer.name(), |cx| layer.forward(cx, x))
    }

    /// Applies a layer as [`Context::apply`] does, without training it here: its parameters get no gradient,
    /// and its statistics stay unchanged. Gradients flow through it to `x`. Other applications under the same
    /// name still train it.
    ///
    /// ```
    /// use unisono::{Dense, Model, Outputs};
    ///
    /// // A GAN: the critic learns from real and generated values, the generator from the critic's answers.
    /// let (generator, critic) = (Dense::new(2), Dense::new(1));
    /// let gan = Model::new(move |cx, x| {
    ///     let made = cx.apply("generator", &generator, &x["noise"]);
    ///     Outputs::new()
    ///         .with("real", &cx.apply("critic", &critic, &x["point"]))
    ///         .with("fake", &cx.apply("critic", &critic, &made.detach()))
    ///         .with("fooled", &cx.apply_frozen("critic", &critic, &made))
    /// });
    /// ```
    pub fn apply_frozen(&mut self, name: &str, layer: &dyn Layer, x: &Var) -> Var {
        self.frozen += 1;
        let y = self.apply(name, layer, x);
        self.frozen -= 1;
        y
    }

    /// Traces `forward` as a layer of kind `kind` under a name. Use it for layers that take more than one
    /// value.
    ///
    /// Errors: more than 128 layers are nested. `forward` is then not called, and the returned value is a
    /// number.
    pub fn within(&mut self, name: &str, kind: &str, forward: impl FnOnce(&mut Self) -> Var) -> Var {
        if self.path.len() == MAX_NESTING {
            self.fail("nesting", format!("more than {MAX_NESTING} layers are inside of one another"));
            return self.tape.constant(0.0);
        }
        self.path.push(name.into());
        let times = self.entered.entry(self.path.join(".")).or_default();
        *times += 1;
        let is_again = *times > 1;
        let known = self.kinds.entry(self.path.join(".")).or_insert_with(|| kind.to_owned());
        if known != kind {
            let problem = format!(
                "the name is that of a {known} already, and two layers cannot share it: name one of them otherwise"
            );
            self.tape.scope(&format!("{name}.{kind}"), || self.fail("name", problem));
        }
        self.again += usize::from(is_again);
        let (first, line) = (self.parameters.len(), self.summary.len());
        let tape = self.tape.clone();
        let y = tape.scope(&format!("{name}.{kind}"), || forward(self));
        // The parameters of layers inside are counted in those layers' lines.
        let inside: usize = self.summary[line..].iter().map(|l| l.parameters).sum();
        let all: usize = self.parameters[first..].iter().map(|p| p.var.ty().count()).sum();
        let output = y.ty().clone();
        let own = SummaryLine { path: self.path(), kind: kind.into(), output, parameters: all - inside };
        self.summary.insert(line, own);
        self.path.pop();
        self.again -= usize::from(is_again);
        y
    }

    /// Adds a penalty to the loss (Keras's `add_loss`): one number that depends on no sample, such as a norm
    /// of a weight. It is added once for each step, whatever the batch size.
    ///
    /// Errors: the term has samples or axes.
    #[doc(alias = "add_loss")]
    pub fn penalty(&mut self, term: &Var) {
        if term.ty().lead == Lead::Global && term.dims().is_empty() {
            self.penalties.push(term.clone());
        } else {
            self.fail("penalty", format!("{} is not one number without samples", term.ty()));
        }
    }

    /// Declares that ids must be in 0..rows. Before each step, evaluation and prediction, the trainer checks
    /// ids that come from the model's input, also if they were sliced, permuted, stacked or reshaped. Ids
    /// that the model computes are not checked.
    ///
    /// Ids that look something up are known without this: those of [`Var::embed`], [`Var::take`],
    /// [`Var::gather`] and [`Var::gather_rows`]. It is for ids that other ops accept whatever they are, such
    /// as labels of a loss of your own that is made with [`Var::one_hot`], where a class that is not there is
    /// a row of zeros.
    pub fn limit_ids(&mut self, ids: &Var, rows: usize) {
        self.ids.push((ids.id(), rows));
    }

    /// Declares the ids that the model has looked something up by so far.
    pub(crate) fn limit_lookups(&mut self) {
        self.ids.extend(self.tape.lookups());
    }

    /// Reports an error of the current layer. Building the trainer returns the first one.
    pub fn fail(&self, op: &str, problem: String) {
        self.tape.fail(GraphError::Op { scope: self.tape.path(), op: op.into(), problem });
    }

    /// Returns the parameters that layers have declared so far.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Returns whether a parameter should be trained: whether it was used outside of
    /// [`Context::apply_frozen`].
    pub(crate) fn is_trained(&self, parameter: &str) -> bool {
        self.not_frozen.contains(parameter)
    }

    /// Returns the statistics that layers have declared so far.
    pub fn statistics(&self) -> &[Parameter] {
        &self.statistics
    }

    /// Returns the new values of the statistics that training moves, by their names.
    pub(crate) fn moved_statistics(&self) -> Vec<(String, Var)> {
        let moved = |statistic: &Parameter| {
            Some((statistic.name.clone(), self.replaced.get(&statistic.var.id())?.clone()))
        };
        self.statistics.iter().filter_map(moved).collect()
    }

    /// Returns the summary so far, with outer layers before inner ones.
    pub fn summary(&self) -> &[SummaryLine] {
        &self.summary
    }

    /// Returns for each element of `input` the limit of ids there, see [`ids::limits`].
    pub(crate) fn id_limits(&self, graph: &Graph, input: &Var) -> Option<Vec<usize>> {
        ids::limits(graph, input.id(), &self.ids)
    }

    /// Returns the sum of all penalties, or `None` if there are none.
    pub(crate) fn penalties(&self) -> Option<Var> {
        self.penalties.iter().cloned().reduce(|a, b| a + b)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, parameters, statistics, .. } = self;
        let names = |all: &[Parameter]| all.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
        f.debug_struct("Context")
            .field("mode", mode)
            .field("path", &self.path())
            .field("parameters", &names(parameters))
            .field("statistics", &names(statistics))
            .finish_non_exhaustive()
    }
}
