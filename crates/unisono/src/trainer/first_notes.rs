//! What a user should know of a run before it begins.

use unisono_gpu::Adapter;

use crate::compile::advice::advice;
use crate::compile::programs::Programs;
use crate::model::context::SummaryLine;
use crate::run::loss_scale::LossScale;
use crate::run::settings::RunSettings;
use crate::trainer::builder::Builder;

impl Builder {
    /// Returns the notes that a user gets before the run starts. `replicas` counts those of all machines.
    pub(super) fn notes(&self, programs: &Programs, settings: &RunSettings, replicas: usize) -> Vec<String> {
        let mut notes = notes(replicas, settings.shards, settings.global_batch, self.per_replica);
        notes.extend(unprotected_note());
        notes.extend(advice(&self.parts, programs));
        notes.extend(self.accumulation_note(programs.train()));
        if self.loss_scale != LossScale::default() && !settings.precision.is_mixed() {
            notes
                .push("Builder::loss_scale is not used: gradients are scaled in mixed precision only".into());
        }
        if self.options.owners.is_some() && replicas == 1 {
            notes.push(
                "Builder::shard_optimizer saves no memory: there is a single replica, which keeps all".into(),
            );
        }
        if self.is_optimizer_set && !self.parts.phases.is_empty() {
            notes.push(
                "Builder::optimizer is not used: each phase has an optimizer of its own (Phase::optimizer)"
                    .into(),
            );
        }
        if settings.global_batch == 1 {
            const COMPARE: [&str; 4] = ["nt-xent", "in-batch softmax", "barlow twins", "triplet hard"];
            let compares = self.parts.all_losses().find(|loss| COMPARE.contains(&loss.loss.name()));
            notes.extend(compares.map(|loss| {
                format!(
                    "the loss {} compares the samples of a batch with each other, but a global batch of 1 has no \
                     others: set a larger Builder::global_batch",
                    loss.loss.name()
                )
            }));
            let of_batch = |line: &&SummaryLine| line.kind == "batch_norm" && line.output.dims.len() == 1;
            notes.extend(programs.summary.iter().find(of_batch).map(|line| {
                format!("{} (batch_norm) sees one sample a step, so all its normalized values are 0: set a larger \
                         Builder::global_batch", line.path)
            }));
        }
        notes
    }
}

/// Returns a note if nothing keeps compilers from changing kernels, so that the run's bits are promised to no
/// other machine.
fn unprotected_note() -> Option<String> {
    unisono_gpu::is_unprotected().then(|| {
        "the numeric class is not portable: compilers may change float operations, so other machines may give other \
         bits"
            .to_owned()
    })
}

/// Returns a note if one of the adapters is the CPU, in a build without optimization.
pub(super) fn unoptimized_note(adapters: &[Adapter]) -> Option<String> {
    let slow = adapters.iter().find(|adapter| adapter.is_unoptimized())?;
    Some(format!(
        "{} is compiled without optimization, so all steps are slow, above all the first one: build with --release, or \
         optimize unisono-cpu and its dependencies in [profile.dev.package]",
        slow.label()
    ))
}

/// Returns a note if one of the adapters is a CPU that has no instruction for its arithmetic.
pub(super) fn slow_fma_note(adapters: &[Adapter]) -> Option<String> {
    let slow = adapters.iter().find(|adapter| adapter.emulates_fma())?;
    Some(format!(
        "{} has no FMA3 instructions, so matrix products are very slow: choose the arithmetic `split` (--arithmetic \
         split, Builder::arithmetic), which gives other bits: those of software drivers",
        slow.label()
    ))
}

/// Returns what a user should know of the settings.
fn notes(replicas: usize, shards: usize, global_batch: usize, per_replica: Option<usize>) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(n) = per_replica {
        notes.push(format!(
            "{n} samples for each of {replicas} replicas make a global batch of {global_batch}: the result depends on the \
             number of replicas"
        ));
    }
    let working = shards.min(global_batch);
    if replicas > working {
        notes.push(format!(
            "{} of {replicas} replicas have nothing to do: a step has {working} shards, and {}",
            replicas - working,
            if shards < replicas {
                format!("Builder::shards({replicas}) makes more")
            } else {
                format!(
                    "a global batch of {global_batch} samples cannot have more: set a larger \
                         Builder::global_batch"
                )
            }
        ));
    } else if !working.is_multiple_of(replicas) {
        let most = working.div_ceil(replicas);
        notes.push(format!(
            "{working} shards do not divide evenly among {replicas} replicas: a step takes as long as {most} shards \
             take, while other replicas wait; use a multiple of {replicas} shards"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uneven_and_idle_replicas_are_noted() {
        assert!(notes(2, 8, 128, None).is_empty());
        assert!(notes(3, 8, 128, None)[0].contains("8 shards do not divide evenly among 3"));
        assert!(notes(10, 8, 128, None)[0].contains("2 of 10 replicas have nothing to do"));
        assert!(notes(2, 8, 64, Some(32))[0].contains("depends on the number of replicas"));
    }
}
