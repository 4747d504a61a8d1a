//! What a layer sees while the model is traced.

use unisono_graph::{Graph, GraphError, Lead, StateKind, Tape, Type, Var};

use crate::model::ids;
use crate::{Initializer, Layer};

/// Whether a trace is for training or for use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Dropout drops, statistics are updated.
    Train,
    /// The model as it is used afterwards.
    Evaluate,
}

/// A parameter or statistic that a layer asked for.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its full name, for example `0.weight`.
    pub name: String,
    /// Its value in the trace.
    pub var: Var,
    /// What it starts with.
    pub initializer: Initializer,
}

/// A carry that a layer asked for.
#[derive(Clone, Debug)]
pub(crate) struct Carry {
    /// Its value before the step.
    pub var: Var,
    /// Its value after it.
    pub kept: Option<Var>,
}

/// A line of the model's summary.
#[derive(Clone, Debug, PartialEq)]
pub struct SummaryLine {
    /// The layer's path, for example `0`.
    pub path: String,
    /// The kind of layer.
    pub kind: String,
    /// What it gives.
    pub output: Type,
    /// Elements of the parameters that it asked for itself.
    pub parameters: usize,
}

/// Traces a model: hands out parameters and knows where in the model it is.
#[derive(Debug)]
pub struct Context {
    tape: Tape,
    mode: Mode,
    path: Vec<String>,
    parameters: Vec<Parameter>,
    statistics: Vec<Parameter>,
    carries: Vec<Carry>,
    summary: Vec<SummaryLine>,
    penalties: Vec<Var>,
    ids: Vec<(Var, usize)>,
}

impl Context {
    /// A context for one trace.
    pub fn new(tape: &Tape, mode: Mode) -> Self {
        Self {
            tape: tape.clone(),
            mode,
            path: vec![],
            parameters: vec![],
            statistics: vec![],
            carries: vec![],
            summary: vec![],
            penalties: vec![],
            ids: vec![],
        }
    }

    /// The tape, for constants and errors of a layer's own.
    pub fn tape(&self) -> &Tape {
        &self.tape
    }

    /// Whether this trace is for training.
    pub fn is_training(&self) -> bool {
        self.mode == Mode::Train
    }

    /// The path of the layer being traced, for example `encoder.0`; empty for the model itself.
    pub fn path(&self) -> String {
        self.path.join(".")
    }

    /// A parameter of this layer: trained, saved as `path.name`.
    ///
    /// It starts with what `initializer` draws for that name, so adding a layer does not change the others.
    pub fn parameter(&mut self, name: &str, dims: &[usize], initializer: Initializer) -> Var {
        let parameter = self.declare(name, dims, StateKind::Parameter, initializer);
        let var = parameter.var.clone();
        self.parameters.push(parameter);
        var
    }

    /// A statistic of this layer: kept and saved like a parameter, but replaced by what [`Context::replace`] gives it.
    ///
    /// A layer asks for it in both modes, so that the model has the same tensors in training and in use.
    pub fn statistic(&mut self, name: &str, dims: &[usize], initializer: Initializer) -> Var {
        let statistic = self.declare(name, dims, StateKind::Statistic, initializer);
        let var = statistic.var.clone();
        self.statistics.push(statistic);
        var
    }

    /// A carry of this layer, `[B, ...]`: what the sample in the same row of the batch before gave [`Context::keep`], such as a
    /// recurrent layer's state; zeros at first, and after [`crate::Trainer::reset_carries`]. No gradient goes back through it.
    ///
    /// It follows the row (the lane), whatever replica the row's shard is on. Loaders whose rows each continue their own
    /// stretch of the data are made by [`unisono_data::Loader::lanes`]. A layer asks for it in both modes.
    ///
    /// ```
    /// use unisono::{Context, FromFn, Var};
    ///
    /// /// [B, features]: a mean over the samples of the row, the newest counting for a tenth.
    /// let smooth = FromFn::new("smooth", |cx: &mut Context, x: &Var| {
    ///     let before = cx.carry("mean", x.dims());
    ///     let mean = &before * 0.9 + x * 0.1;
    ///     cx.keep(&before, &mean);
    ///     mean
    /// });
    /// ```
    pub fn carry(&mut self, name: &str, dims: &[usize]) -> Var {
        let var = self.tape.carry(&self.full(name), Type::sample(dims));
        self.carries.push(Carry { var: var.clone(), kept: None });
        var
    }

    /// What a carry is for the next batch: of the same type. It counts when the training step commits.
    pub fn keep(&mut self, carry: &Var, value: &Var) {
        let problem = match self.carries.iter_mut().find(|own| own.var.id() == carry.id()) {
            Some(own) if own.var.ty() == value.ty() => {
                own.kept = Some(value.clone());
                return;
            }
            Some(own) => format!("a carry {} cannot become {}", own.var.ty(), value.ty()),
            None => "the first value is not a carry of this model".into(),
        };
        self.fail("keep", problem);
    }

    /// The name of something of this layer's.
    fn full(&self, name: &str) -> String {
        self.path.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".")
    }

    fn declare(&self, name: &str, dims: &[usize], kind: StateKind, initializer: Initializer) -> Parameter {
        let name = self.full(name);
        Parameter { var: self.tape.state(&name, dims, kind), name, initializer }
    }

    /// Replaces a statistic when the training step commits; nothing outside of training.
    pub fn replace(&mut self, statistic: &Var, value: &Var) {
        if self.is_training() {
            self.tape.update(statistic, value);
        }
    }

    /// Applies a layer under a name of its own: its parameters are `path.name.*`.
    pub fn apply(&mut self, name: &str, layer: &dyn Layer, x: &Var) -> Var {
        self.within(name, layer.name(), |cx| layer.forward(cx, x))
    }

    /// Runs `forward` as a layer of a kind under a name of its own, for layers that take more than one value.
    pub fn within(&mut self, name: &str, kind: &str, forward: impl FnOnce(&mut Self) -> Var) -> Var {
        self.path.push(name.into());
        let (first, line) = (self.parameters.len(), self.summary.len());
        let tape = self.tape.clone();
        let y = tape.scope(&format!("{name}.{kind}"), || forward(self));
        // Layers inside have lines of their own; their parameters are counted there.
        let inside: usize = self.summary[line..].iter().map(|l| l.parameters).sum();
        let all: usize = self.parameters[first..].iter().map(|p| p.var.ty().count()).sum();
        let output = y.ty().clone();
        let own = SummaryLine { path: self.path(), kind: kind.into(), output, parameters: all - inside };
        self.summary.insert(line, own);
        self.path.pop();
        y
    }

    /// Adds a term to the loss that has no samples in it, such as a norm of a weight. It counts once, whatever the batch.
    pub fn penalty(&mut self, term: &Var) {
        if term.ty().lead == Lead::Global && term.dims().is_empty() {
            self.penalties.push(term.clone());
        } else {
            self.fail("penalty", format!("{} is not one number without samples", term.ty()));
        }
    }

    /// Says that ids must be in 0..rows. Those that are elements of the model's input, however sliced, permuted, stacked or
    /// reshaped on the way, the trainer looks at before each step, evaluation and prediction; those that the model computes are its
    /// own business.
    pub fn limit_ids(&mut self, ids: &Var, rows: usize) {
        self.ids.push((ids.clone(), rows));
    }

    /// Reports an error of the layer being traced; the first one is what building the trainer returns.
    pub fn fail(&self, op: &str, problem: String) {
        self.tape.fail(GraphError::Op { scope: self.tape.path(), op: op.into(), problem });
    }

    /// The parameters asked for so far.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The statistics asked for so far.
    pub fn statistics(&self) -> &[Parameter] {
        &self.statistics
    }

    /// The carries asked for so far.
    pub(crate) fn carries(&self) -> &[Carry] {
        &self.carries
    }

    /// The summary so far, outer layers before inner ones.
    pub fn summary(&self) -> &[SummaryLine] {
        &self.summary
    }

    /// The limits of the ids among the elements of `input`, see [`ids::limits`].
    pub(crate) fn id_limits(&self, graph: &Graph, input: &Var) -> Option<Vec<usize>> {
        let ids: Vec<_> = self.ids.iter().map(|(ids, rows)| (ids.id(), *rows)).collect();
        ids::limits(graph, input.id(), &ids)
    }

    /// The sum of all penalties.
    pub(crate) fn penalties(&self) -> Option<Var> {
        self.penalties.iter().cloned().reduce(|a, b| a + b)
    }
}
