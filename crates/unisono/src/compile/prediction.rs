//! A model compiled for prediction alone: no loss, no gradients, no optimizer.

use std::collections::BTreeMap;
use std::sync::Arc;

use unisono_data::Batch;
use unisono_graph::{Graph, InputKind, Layout, Precision, Program, Tape, Type, drop_unread_inputs};

use crate::compile::carries;
use crate::compile::feed;
use crate::compile::fields::Fields;
use crate::compile::programs::declare_predictions;
use crate::model::functional::Inputs;
use crate::model::{Mode, Model};
use crate::{Context, Error};

/// A model compiled for prediction on samples with certain fields.
pub(crate) struct PredictionProgram {
    pub program: Arc<Program>,
    /// The graph as the model made it.
    pub graph: Graph,
    /// The fields that the model asks for, in its order.
    pub fields: Fields,
    /// The names and types of the model's outputs.
    pub outputs: Vec<(String, Type)>,
    /// The axis of the output channels of each kernel by name.
    pub channels: BTreeMap<String, usize>,
}

impl PredictionProgram {
    /// Traces and compiles a model. It takes those of the fields that its outputs depend on.
    ///
    /// # Errors
    /// Those of the model, or it has no output, or one that no sample has.
    pub fn trace(model: &Model, precision: Precision, fields: &Fields) -> Result<Self, Error> {
        let tape = Tape::with_precision(precision);
        let mut cx = Context::new(&tape, Mode::Evaluate);
        let inputs = Inputs::new(&tape, fields.iter());
        let outputs = declare_predictions(&tape, &model.forward(&mut cx, &inputs))?;
        cx.limit_lookups();
        carries::trace(&tape, &cx);
        let whole = tape.finish()?;
        let graph = drop_unread_inputs(&whole);
        let is_read = |name: &String| graph.inputs.iter().any(|input| input.name == *name);
        let used: Vec<String> = inputs.used().into_iter().filter(is_read).collect();
        let mut own = fields.only(&used);
        let limits =
            used.iter().filter_map(|name| Some((name.clone(), cx.id_limits(&whole, inputs.get(name)?)?)));
        own.ids = limits.collect();
        if outputs.is_empty() {
            return Err(Error::setting("predictor", "the model has no output"));
        }
        let layout = Layout { f16: precision.is_mixed(), ..Layout::default() };
        let program = Arc::new(Program::compile_with(&graph, layout)?);
        Ok(Self { program, graph, fields: own, outputs, channels: cx.channels() })
    }

    /// Returns whether the model carries something from batch to batch.
    pub fn carries(&self) -> bool {
        self.program.inputs().iter().any(|input| input.kind == InputKind::Carry)
    }

    /// Checks the fields of a batch.
    ///
    /// # Errors
    /// The first thing that is wrong with one.
    pub fn check(&self, batch: &Batch) -> Result<(), Error> {
        self.check_but(batch, &BTreeMap::new())
    }

    /// Checks the fields of a batch but for those that are `given` elsewhere.
    ///
    /// # Errors
    /// The first thing that is wrong with one.
    pub fn check_but(&self, batch: &Batch, given: &BTreeMap<String, Arc<[u8]>>) -> Result<(), Error> {
        for (name, ty) in self.fields.iter().filter(|(name, _)| !given.contains_key(*name)) {
            feed::check_field(batch, name, ty, None)?;
        }
        feed::check_ids(batch, &self.fields, |_| true, None)
    }
}
