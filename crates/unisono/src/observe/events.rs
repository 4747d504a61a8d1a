//! Events and spans for the crate `tracing`, with the feature of that name. Without it, nothing happens here.

use std::path::Path;

use crate::observe::observer::Step;
use crate::{Epoch, Evaluation};

/// A span that is entered until this is dropped.
pub(crate) struct Span {
    #[cfg(feature = "tracing")]
    _entered: tracing::span::EnteredSpan,
}

/// Calls a macro of `tracing` if the feature is on.
macro_rules! trace {
    ($level:ident, $($fields:tt)*) => {
        #[cfg(feature = "tracing")]
        tracing::$level!(target: "unisono", $($fields)*);
    };
}

/// Makes a span of `tracing` if the feature is on.
macro_rules! span {
    ($level:ident, $($fields:tt)*) => {
        Span {
            #[cfg(feature = "tracing")]
            _entered: tracing::$level!(target: "unisono", $($fields)*).entered(),
        }
    };
}

/// Enters the span `step`. `number` counts from 0.
pub(crate) fn step_span(number: u64) -> Span {
    let _ = number;
    span!(debug_span, "step", step = number)
}

/// Enters the span `save`: the run is copied off the devices. A thread of its own writes the copy later.
pub(crate) fn save_span(steps: u64) -> Span {
    let _ = steps;
    span!(info_span, "save", steps)
}

/// Says at the level debug that a step is done.
pub(crate) fn step_done(step: &Step) {
    let Step { step, epoch, samples, learning_rate, now: Evaluation { loss, .. }, committed, .. } = step;
    let _ = (step, epoch, samples, learning_rate, loss, committed);
    trace!(debug, step, epoch, samples, learning_rate, loss, committed, "step done");
}

/// Says at the level info that an epoch is done.
pub(crate) fn epoch_done(ended: &Epoch) {
    let Epoch { epoch, steps, train: Evaluation { loss, .. }, validation } = ended;
    let validation_loss = validation.as_ref().map(|validation| validation.loss);
    let _ = (epoch, steps, loss, validation_loss);
    trace!(info, epoch, steps, loss, validation_loss, "epoch done");
}

/// Says at the level info that a checkpoint is complete.
pub(crate) fn saved(path: &Path) {
    let _ = path;
    trace!(info, path = %path.display(), "checkpoint saved");
}

/// Says at the level warn that the run goes back to a step.
pub(crate) fn rolled_back(step: u64) {
    let _ = step;
    trace!(warn, step, "run goes back");
}

/// Says at the level warn that a replica left.
pub(crate) fn replica_left(why: &str) {
    let _ = why;
    trace!(warn, why, "replica left");
}

/// Gives a note for the user, at the level warn if it is a warning, else at the level info.
pub(crate) fn note(text: &str) {
    if text.starts_with("warning") {
        trace!(warn, note = text, "note");
    } else {
        trace!(info, note = text, "note");
    }
}
