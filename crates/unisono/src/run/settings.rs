//! The section `settings`: what a run's answer depends on beside the model, the data and the adapters.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use unisono_graph::Precision;

use crate::run::loss_scale::Scaling;
use crate::run::section::{Difference, Section};

/// The default number of samples in a step over all replicas together.
pub const GLOBAL_BATCH: usize = unisono_replica::DEFAULT_GLOBAL_BATCH;
/// The default number of lengths of samples, beside the longest, whose programs are kept.
pub(crate) const LENGTHS: usize = 64;
/// The default number of shards that a global batch is cut into.
pub const SHARDS: usize = unisono_replica::DEFAULT_SHARDS;

/// The settings that the result of a run depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RunSettings {
    /// The number of samples in a step over all replicas together. Default: 32.
    pub global_batch: usize,
    /// The number of shards that a global batch is cut into. Default: 8.
    pub shards: usize,
    /// The seed of initial weights and dropout. Default: 0.
    pub seed: u64,
    /// The precision of products. Default: [`Precision::F32`].
    #[serde(serialize_with = "write_precision", deserialize_with = "read_precision")]
    pub precision: Precision,
    /// The loss's name.
    pub loss: String,
    /// The optimizer's name.
    pub optimizer: String,
    /// The metrics' names, in the trainer's order.
    pub metrics: Vec<String>,
}

impl Default for RunSettings {
    fn default() -> Self {
        Self {
            global_batch: GLOBAL_BATCH,
            shards: SHARDS,
            seed: 0,
            precision: Precision::F32,
            loss: String::new(),
            optimizer: String::new(),
            metrics: Vec::new(),
        }
    }
}

impl RunSettings {
    /// Returns the settings by name, with that of the loss scale, for the run's identity.
    pub(crate) fn named(&self, scaling: Option<&Scaling>) -> Vec<(String, String)> {
        let Self { global_batch, shards, seed, precision, loss, optimizer, metrics } = self;
        let scale = scaling.map_or("none".to_owned(), |scaling| format!("{:?}", scaling.setting));
        [
            ("global_batch", global_batch.to_string()),
            ("shards", shards.to_string()),
            ("seed", seed.to_string()),
            ("precision", precision.to_string()),
            ("loss", loss.clone()),
            ("optimizer", optimizer.clone()),
            ("metrics", metrics.join(", ")),
            ("loss_scale", scale),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

impl Section for RunSettings {
    fn differences(&self, saved: &Self) -> Vec<Difference> {
        let text = |number: usize| number.to_string();
        let precisions = [saved.precision, self.precision].map(|precision| precision.to_string());
        [
            Difference::of("the global batch", &text(saved.global_batch), &text(self.global_batch), true),
            Difference::of("the number of shards", &text(saved.shards), &text(self.shards), true),
            Difference::of("the seed", &saved.seed.to_string(), &self.seed.to_string(), true),
            Difference::of("the precision", &precisions[0], &precisions[1], true),
            Difference::of("the loss", &saved.loss, &self.loss, true),
            Difference::of("the optimizer", &saved.optimizer, &self.optimizer, false),
            Difference::of("the metrics", &saved.metrics.join(", "), &self.metrics.join(", "), false),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// A resumed run keeps the settings of its trainer, which are the saved ones unless the resume was
    /// forced.
    fn resume(&mut self, _saved: Self) {}
}

fn write_precision<S: Serializer>(precision: &Precision, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(precision)
}

fn read_precision<'de, D: Deserializer<'de>>(from: D) -> Result<Precision, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(|problem| D::Error::custom(format!("the precision {text:?}: {problem}")))
}
