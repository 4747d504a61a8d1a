//! What the numbers of a saved run may be: those that a run can have had, and that it can go on from.

use unisono_graph::MAX_SHARDS;

use crate::run::state::RunState;

/// The most samples in a step. Kernels count samples in 32 bits.
pub(crate) const MAX_GLOBAL_BATCH: usize = (1 << 31) - 1;
/// The most of what a run counts, 2^53, as in [`unisono_checkpoint`]: every reader of JSON holds it
/// exactly, and no counter wraps soon after.
const MOST: u64 = 1 << 53;

/// Checks the numbers of a state that was read from a checkpoint.
///
/// # Errors
/// The first that is impossible, named as in `trainer.json`, with its value and what it may be.
pub(crate) fn check(state: &RunState) -> Result<(), String> {
    let RunState { settings, position, history, running, loss_scale, .. } = state;
    within("settings.global_batch", settings.global_batch as u64, 1, MAX_GLOBAL_BATCH as u64)?;
    within("settings.shards", settings.shards as u64, 1, MAX_SHARDS as u64)?;
    let step = position.step;
    within("position.step", step, 0, MOST)?;
    within("position.epoch", position.data.position.epoch.into(), 0, u64::from(u32::MAX) - 1)?;
    within("position.sample", position.data.position.sample, 0, MOST)?;
    if !position.data.skipped.is_sorted_by(|a, b| a < b) {
        return Err("position.skipped is not ascending".into());
    }
    for (index, epoch) in history.iter().enumerate() {
        within(&format!("history[{index}].steps"), epoch.steps, 0, step)?;
        for evaluation in std::iter::once(&epoch.train).chain(&epoch.validation) {
            within(&format!("history[{index}]: samples"), evaluation.samples, 0, MOST)?;
        }
    }
    let (samples, steps) = running.counts();
    within("running.samples", samples, 0, MOST)?;
    within("running.steps", steps, 0, MOST)?;
    within("position.weightless", position.weightless, 0, step)?;
    let Some(scaling) = loss_scale else { return Ok(()) };
    within("loss_scale.good", scaling.good, 0, step)?;
    scaling.check(step - position.weightless)
}

/// Checks that a number is in a range, its ends included.
fn within(name: &str, value: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(format!("{name} is {value}, which is not in {least}..={most}"))
}
