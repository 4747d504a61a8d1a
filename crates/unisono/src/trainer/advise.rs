//! Notes on a fit that works, and most likely not as its author wants. They change nothing.

use std::sync::Arc;

use unisono_data::{Batch, Loader, Values};

use crate::Trainer;

/// The fewest samples of a first batch whose equal labels are noted.
const MOST_LIKELY_SORTED: usize = 8;

impl Trainer {
    /// Tells observers once what is odd about the data of a fit and about the schedule for its steps.
    /// `reader` is the loader of the training data as the trainer reads it.
    pub(super) fn note_fit(&mut self, reader: &Loader, validation: Option<&Loader>, epochs: u32) {
        if std::mem::replace(&mut self.monitor.told_fit, true) {
            return;
        }
        let mut notes = Vec::new();
        notes.extend(validation.and_then(|validation| note_on_validation(reader, validation)));
        notes.extend(self.note_on_batch(reader));
        if self.plan.parts.phases.is_empty() {
            notes.extend(self.plan.parts.optimizer.notes_on_steps(self.steps_until(reader, epochs)));
        }
        notes.iter().for_each(|note| self.monitor.note(&format!("note: {note}")));
    }

    /// Returns how many steps the run will have made after `epochs` epochs, if it skips none.
    fn steps_until(&self, reader: &Loader, epochs: u32) -> u64 {
        let position = self.position();
        let left = u64::from(epochs.saturating_sub(position.epoch));
        let done = position.sample / (self.state.settings.global_batch as u64).max(1);
        let all = reader.batches_per_epoch().saturating_mul(left).saturating_sub(done);
        self.optimizer_step(None).saturating_add(all)
    }

    /// A batch that is larger than the data has all of them, so that an epoch is a single step.
    fn note_on_batch(&self, reader: &Loader) -> Option<String> {
        let (samples, batch) = (reader.samples_per_epoch(), self.state.settings.global_batch as u64);
        (batch > samples).then(|| {
            format!("the global batch of {batch} is larger than the {samples} samples of an epoch, which is one step")
        })
    }

    /// Tells observers if the first batch of a run has pixels as they are stored, or if it is not shuffled
    /// and has samples of one class only.
    pub(super) fn note_first_batch(&mut self, batch: &Batch, train: &Loader) {
        if self.steps() > 0 || batch.len() < MOST_LIKELY_SORTED {
            return;
        }
        if let Some(name) = pixels(batch) {
            self.monitor.note(&format!(
                "note: the values of {name:?} are whole numbers up to 255, as pixels are stored: unless the model scales \
                 them, divide them by 255 in Loader::map, or use unisono::data::normalize"
            ));
        }
        if train.is_shuffled() {
            return;
        }
        let labels = |target: &str| match &batch.stacked.field(target)?.values {
            Values::I32(labels) => labels.split_first(),
            Values::F32(_) => None,
        };
        let one_class = |target: &str| {
            let (first, rest) = labels(target)?;
            let alike = rest.len() + 1 >= batch.len() && rest.iter().all(|label| label == first);
            alike.then_some(*first)
        };
        let losses = self.plan.programs.losses.iter().filter(|(loss, _)| loss.loss.name() == "cross-entropy");
        let mut targets = losses.filter_map(|(loss, _)| loss.on.target.as_deref());
        let Some((target, label)) = targets.find_map(|name| Some((name, one_class(name)?))) else { return };
        let note = format!(
            "note: all labels {target:?} of the first batch are {label}, and the loader does not shuffle: if the data are \
             sorted by class, Loader::shuffle mixes them"
        );
        self.monitor.note(&note);
    }
}

/// Validation with the training data measures what the model has seen. A validation set that is the larger
/// one was most likely given in the place of the training data.
fn note_on_validation(train: &Loader, validation: &Loader) -> Option<String> {
    let sources = [train, validation].map(Loader::shared_source);
    if std::ptr::addr_eq(Arc::as_ptr(&sources[0]), Arc::as_ptr(&sources[1])) {
        let note = "the validation data are the training data, so they do not show how the model does on others: \
                    Loader::validation_split holds some out";
        return Some(note.into());
    }
    let [trained, held_out] = [train, validation].map(Loader::samples);
    (held_out > trained).then(|| {
        format!(
            "there are {held_out} validation samples and {trained} training samples: Trainer::fit takes the training data \
             first"
        )
    })
}

/// Returns the name of a field with pictures whose pixels are whole numbers in 0..=255.
fn pixels(batch: &Batch) -> Option<&str> {
    let is_pixel = |x: &f32| (0.0..=255.0).contains(x) && x.fract() == 0.0;
    let mut fields = batch.stacked.fields();
    fields.find_map(|(name, field)| match &field.values {
        Values::F32(values) if field.shape.len() >= 3 => {
            (values.iter().any(|x| *x > 127.0) && values.iter().all(is_pixel)).then_some(&**name)
        }
        _ => None,
    })
}
