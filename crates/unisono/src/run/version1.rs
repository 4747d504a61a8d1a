//! `trainer.json` version 1, which had the values of all sections side by side: what it says as sections.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use unisono_checkpoint::Tensors;

use crate::run::section::Sections;

/// The fields of version 1. Those that came later than the first files may be missing.
#[derive(Deserialize)]
struct Version1 {
    step: u64,
    epoch: u32,
    sample: u64,
    #[serde(default)]
    skipped: Vec<u64>,
    seed: u64,
    global_batch: usize,
    shards: usize,
    /// The precision of products. Files of versions that knew f32 only do not have it.
    #[serde(default)]
    precision: Option<String>,
    #[serde(default)]
    scaling: Value,
    optimizer: String,
    loss: String,
    metrics: Vec<String>,
    data: Option<String>,
    #[serde(default)]
    loader: Option<BTreeMap<String, String>>,
    #[serde(default)]
    class: Value,
    #[serde(default)]
    mixture: Vec<String>,
    history: Value,
    running: Value,
}

/// Converts a `trainer.json` of version 1. The tensors are those of `carries.safetensors`.
///
/// # Errors
/// It is not what version 1 wrote.
pub(crate) fn sections(trainer: Value, tensors: Tensors) -> Result<Sections, String> {
    let old: Version1 = serde_json::from_value(trainer).map_err(|error| error.to_string())?;
    let section = |value: Value| json!({ "version": 1, "value": value });
    let sections = json!({
        "settings": section(json!({
            "global_batch": old.global_batch,
            "shards": old.shards,
            "seed": old.seed,
            "precision": old.precision.as_deref().unwrap_or("f32"),
            "loss": old.loss,
            "optimizer": old.optimizer,
            "metrics": old.metrics,
        })),
        "position": section(json!({
            "step": old.step,
            "epoch": old.epoch,
            "sample": old.sample,
            "skipped": old.skipped,
        })),
        "loss_scale": section(old.scaling),
        "classes": section(json!({ "class": old.class, "mixture": old.mixture })),
        "data": section(json!(old.data)),
        "loader": section(json!(old.loader)),
        "history": section(old.history),
        "running": section(old.running),
        "carries": section(json!(tensors.keys().collect::<Vec<_>>())),
    });
    Sections::parse(sections, tensors)
}
