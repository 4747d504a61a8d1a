//! The section `running`: the sums of the epoch that is not done, with the state of each metric.

use serde_json::{Value, json};
use unisono_checkpoint::Tensors;

use crate::Error;
use crate::objective::running::Running;
use crate::run::section::Section;

impl Section for Running {
    const VERSION: u32 = 2;
    /// What was measured is no part of the state that training goes on from.
    const TENSORS_ARE_DIGESTED: bool = false;

    /// Reads the sums. In version 1 all metrics are means over samples, of which the section has the sums
    /// alone: the weights are those of the loss.
    fn read(version: u32, mut value: Value) -> Result<Self, String> {
        if version == 1 {
            let weight = value["weight"].clone();
            let metrics = value.get_mut("metrics").and_then(Value::as_array_mut);
            for metric in metrics.into_iter().flatten() {
                *metric = json!({ "sums": [metric.take(), weight] });
            }
        }
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    fn value(&self) -> serde_json::Result<Value> {
        serde_json::to_value(self.without_tensors())
    }

    fn tensors(&self) -> Result<Tensors, Error> {
        Ok(self.tensors()?)
    }

    fn take_tensors(&mut self, _version: u32, tensors: &mut Tensors) -> Result<(), String> {
        self.take_tensors(tensors)
    }
}
