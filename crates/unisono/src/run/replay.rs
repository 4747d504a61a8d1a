//! The section `replay`: the samples that a run has made itself, and how many batches were drawn of them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use unisono_checkpoint::{Tensor, TensorDType, Tensors};
use unisono_data::Replay;

use crate::Error;
use crate::objective::tensors::take;
use crate::run::section::{Difference, Section};

/// The name of the tensor with the buffer, byte by byte.
const BUFFER: &str = "replay/buffer";

/// The replay buffer of a run, if it has one. Audits and saves share it with the run until it changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeptReplay {
    /// The number of samples that were ever added, as a checkpoint says it.
    pushed: u64,
    #[serde(skip)]
    buffer: Option<Arc<Replay>>,
}

impl KeptReplay {
    pub fn new(mut replay: Replay) -> Self {
        replay.mark();
        Self { pushed: 0, buffer: Some(Arc::new(replay)) }
    }

    pub fn get(&self) -> Option<&Replay> {
        self.buffer.as_deref()
    }

    pub fn get_mut(&mut self) -> Option<&mut Replay> {
        self.buffer.as_mut().map(Arc::make_mut)
    }

    /// Marks the end of a step. What is added and drawn from here on is for the next step.
    pub fn step_ended(&mut self) {
        self.buffer.as_mut().filter(|replay| replay.is_after_mark()).map(Arc::make_mut).map(Replay::mark);
    }

    /// Takes back what was added and drawn since the last step ended.
    pub fn rewind(&mut self) {
        self.buffer.as_mut().filter(|replay| replay.is_after_mark()).map(Arc::make_mut).map(Replay::rewind);
    }
}

impl Section for KeptReplay {
    // A digest would take all samples again after each step. What is drawn shows in the weights.
    const TENSORS_ARE_DIGESTED: bool = false;

    /// Runs without a buffer are saved as before there were any.
    fn is_written(&self) -> bool {
        self.buffer.is_some()
    }

    fn value(&self) -> serde_json::Result<Value> {
        Ok(json!({ "pushed": self.get().map_or(0, Replay::pushed) }))
    }

    fn absent() -> Option<Self> {
        Some(Self::default())
    }

    fn tensors(&self) -> Result<Tensors, Error> {
        let Some(replay) = self.get() else { return Ok(Tensors::new()) };
        let bytes = replay.to_bytes()?;
        let tensor = Tensor::new(TensorDType::U8, vec![bytes.len()], bytes)?;
        Ok(Tensors::from([(BUFFER.to_owned(), tensor)]))
    }

    fn take_tensors(&mut self, _: u32, tensors: &mut Tensors) -> Result<(), String> {
        let tensor = take(tensors, BUFFER)?;
        let replay = Replay::parse(tensor.bytes()).map_err(|problem| format!("{BUFFER}: {problem}"))?;
        if replay.pushed() != self.pushed {
            return Err(format!("pushed is {}, and the buffer has {}", self.pushed, replay.pushed()));
        }
        *self = Self::new(replay);
        Ok(())
    }

    fn differences(&self, saved: &Self) -> Vec<Difference> {
        let Some(own) = self.get() else { return Vec::new() };
        let Some(saved) = saved.get() else {
            let problem = "the checkpoint has no replay buffer, and this run keeps one".to_owned();
            return vec![Difference { problem, forcible: true }];
        };
        // A buffer that is empty yet takes any fields.
        let fields_count = own.pushed() > 0 && saved.pushed() > 0;
        let of = |replay: &Replay| {
            let fields = replay.fields().iter().map(|spec| format!("{} {:?}", spec.name, spec.shape));
            let fields = if fields_count { fields.collect::<Vec<_>>().join(", ") } else { String::new() };
            let fields = if fields.is_empty() { fields } else { format!(" of {fields}") };
            format!("one of {} samples{fields} with seed {}", replay.capacity(), replay.seed())
        };
        Difference::of("the replay buffer", &of(saved), &of(own), true).into_iter().collect()
    }

    fn resume(&mut self, saved: Self) {
        if saved.buffer.is_some() {
            *self = saved;
        }
    }
}
