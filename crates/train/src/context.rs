//! What a layer sees while the model is traced.

use unisono_graph::{GraphError, Lead, StateKind, Tape, Type, Var};

use crate::{Initializer, Layer};

/// Whether a trace is for training or for use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Dropout drops, statistics are updated.
    Train,
    /// The model as it is used afterwards.
    Evaluate,
}

/// A parameter that a layer asked for.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its full name, for example `0.weight`.
    pub name: String,
    /// Its value in the trace.
    pub var: Var,
    /// What it starts with.
    pub initializer: Initializer,
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
    summary: Vec<SummaryLine>,
    penalties: Vec<Var>,
}

impl Context {
    /// A context for one trace.
    pub fn new(tape: &Tape, mode: Mode) -> Self {
        Self { tape: tape.clone(), mode, path: vec![], parameters: vec![], summary: vec![], penalties: vec![] }
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
        let full = self.path.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".");
        let var = self.tape.state(&full, dims, StateKind::Parameter);
        self.parameters.push(Parameter { name: full, var: var.clone(), initializer });
        var
    }

    /// Applies a layer under a name of its own: its parameters are `path.name.*`.
    pub fn apply(&mut self, name: &str, layer: &dyn Layer, x: &Var) -> Var {
        self.path.push(name.into());
        let (first, line) = (self.parameters.len(), self.summary.len());
        let tape = self.tape.clone();
        let y = tape.scope(&format!("{name}.{}", layer.name()), || layer.forward(self, x));
        // Layers inside have lines of their own; their parameters are counted there.
        let inside: usize = self.summary[line..].iter().map(|l| l.parameters).sum();
        let all: usize = self.parameters[first..].iter().map(|p| p.var.ty().count()).sum();
        let own =
            SummaryLine { path: self.path(), kind: layer.name().into(), output: y.ty().clone(), parameters: all - inside };
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

    /// Reports an error of the layer being traced; the first one is what building the trainer returns.
    pub fn fail(&self, op: &str, problem: String) {
        self.tape.fail(GraphError::Op { scope: self.tape.path(), op: op.into(), problem });
    }

    /// The parameters asked for so far.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The summary so far, outer layers before inner ones.
    pub fn summary(&self) -> &[SummaryLine] {
        &self.summary
    }

    /// The sum of all penalties.
    pub(crate) fn penalties(&self) -> Option<Var> {
        self.penalties.iter().cloned().reduce(|a, b| a + b)
    }
}
