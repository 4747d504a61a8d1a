//! Notes on a fit that works, and most likely not as its author wants. They change nothing.

use std::sync::Arc;

use unisono_data::{Batch, Field, Loader, Values};
use unisono_graph::StateKind;

use crate::compile::phases::Phase;
use crate::compile::programs::ProgramId;
use crate::model::context::SummaryLine;
use crate::run::scales::{MOST_RATIO, Scales};
use crate::saving::checkpoints::Checkpoints;
use crate::trainer::held_out::transforms_of;
use crate::{Error, Trainer};

/// The fewest samples of a first batch whose equal labels are noted.
const MOST_LIKELY_SORTED: usize = 8;
/// The number of labels, by the number of classes, among which each class is expected.
const MOST_LIKELY_THERE: usize = 8;
/// The fewest labels of a first batch whose order is noted.
const MOST_LIKELY_MIXED: usize = 16;
/// The largest value of pictures that are noted as dark.
const DARK: f32 = 0.01;
/// The largest ratio of two batches' standard deviations that is not noted, where their transforms have other
/// names.
const MOST_RATIO_OF_OTHERS: f64 = 2.5;
/// The number of the run's first samples whose scale a run keeps.
const FIRST: usize = 32;
/// The most epochs whose phases are counted.
const MOST_EPOCHS: u32 = 10_000;

impl Trainer {
    /// Tells observers once what is odd about the data of a fit and about the schedule for its steps.
    /// `reader` is the loader of the training data as the trainer reads it.
    pub(super) fn note_fit(&mut self, reader: &Loader, validation: Option<&Loader>, epochs: u32) {
        self.note_schedules(reader, epochs);
        self.known_data.repeated.validate(validation);
        if std::mem::replace(&mut self.monitor.told_fit, true) {
            return;
        }
        let mut notes = Vec::new();
        notes.extend(validation.and_then(|validation| note_on_validation(reader, validation)));
        if validation.is_none() {
            notes.extend(self.callbacks.note_on_training_values());
            let keeps_best = self.saver.as_ref().is_some_and(Checkpoints::keeps_best);
            notes.extend(keeps_best.then(|| {
                "keep_best compares training metrics, because this fit has no validation data: pass validation data \
                 to Trainer::fit".to_owned()
            }));
        }
        notes.extend(self.note_on_batch(reader));
        notes.extend(self.note_on_frozen());
        notes.iter().for_each(|note| self.monitor.note(&format!("note: {note}")));
    }

    /// Tells observers once of a schedule that is made for another number of steps than the run has. A later
    /// fit may have more.
    fn note_schedules(&mut self, reader: &Loader, epochs: u32) {
        if self.monitor.told_schedule {
            return;
        }
        let mut notes = Vec::new();
        if self.plan.parts.phases.is_empty() {
            notes.extend(self.plan.parts.optimizer.notes_on_steps(self.steps_until(reader, epochs)));
        }
        for (phase, steps) in self.plan.parts.phases.iter().zip(self.steps_of_phases(reader, epochs)) {
            let of_phase = |note| format!("phase '{}': {note}", phase.name);
            notes.extend(phase.optimizer.notes_on_steps(steps).into_iter().map(of_phase));
        }
        self.monitor.told_schedule = !notes.is_empty();
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

    /// Returns about how many steps each phase will have made after `epochs` epochs: in each epoch, phases
    /// share the steps as they share the turns. There is none for a number of epochs that stands for no end.
    fn steps_of_phases(&self, reader: &Loader, epochs: u32) -> Vec<u64> {
        let phases = &self.plan.parts.phases;
        let first = self.position().epoch;
        if epochs.saturating_sub(first) > MOST_EPOCHS {
            return Vec::new();
        }
        let steps = |epoch: u32, phase: &Phase| if phase.epochs.contains(&epoch) { phase.steps } else { 0 };
        let share = |epoch: u32, phase: &Phase| {
            let all = phases.iter().fold(0, |all: u64, phase| all.saturating_add(steps(epoch, phase))).max(1);
            (u128::from(reader.batches_per_epoch()) * u128::from(steps(epoch, phase)) / u128::from(all))
                as u64
        };
        let left = |phase: &Phase| (first..epochs).map(|epoch| share(epoch, phase)).sum::<u64>();
        phases.iter().map(|phase| self.state.phases.of(&phase.name).saturating_add(left(phase))).collect()
    }

    /// Parameters are frozen because they were trained before, and so they are loaded.
    fn note_on_frozen(&self) -> Option<String> {
        let (programs, is_new) =
            (&self.plan.programs, self.state.identity.is_from_start() && self.steps() == 0);
        let states = programs.train().states();
        let frozen = programs.states_of(&[StateKind::Parameter]).into_iter().map(|at| &*states[at].name);
        let mut frozen = frozen.filter(|name| !self.plan.parts.is_to_be_trained(name)).filter(|_| is_new);
        let first = frozen.next()?;
        let more = match frozen.count() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "parameters are frozen at their initial values, because nothing was loaded: {first}{more}; load trained \
             weights with Trainer::load_model before the fit"
        ))
    }

    /// A batch that is larger than the data has all of them, so that an epoch is a single step.
    fn note_on_batch(&self, reader: &Loader) -> Option<String> {
        let (samples, batch) = (reader.samples_per_epoch(), self.state.settings.global_batch as u64);
        (batch > samples).then(|| {
            format!("the global batch of {batch} is larger than the {samples} samples of an epoch, so every epoch is \
                     a single step: set a smaller Builder::global_batch")
        })
    }

    /// Remembers how large the values of the first training batch are, for [`Trainer::note_other_scale`].
    fn remember_scale(&mut self, batch: &Batch, train: &Loader) {
        let known = &mut self.known_data;
        if known.transforms.is_none() {
            known.scales = Scales::of(batch, batch.rows());
            known.transforms = Some(transforms_of(train));
            known.effects = train.effects().unwrap_or_default();
            self.note_effects(train);
        }
    }

    /// Records how large the values of the run's first samples are. Checkpoints contain this, so all machines
    /// record the same.
    ///
    /// # Errors
    /// A sample that another machine computes cannot be fetched.
    pub(super) fn keep_scales(&mut self, batch: &Batch) -> Result<(), Error> {
        if self.steps() > 0 || !self.state.scales.0.is_empty() {
            return Ok(());
        }
        let rows = 0..batch.len().min(FIRST);
        let fetched = match &batch.part {
            Some(part) => part.fetch_unless_loaded(&rows)?,
            None => None,
        };
        self.state.scales = Scales::of(fetched.as_ref().unwrap_or(batch), rows);
        Ok(())
    }

    /// Tells observers once if the values of a field are of another size in an evaluation or a prediction
    /// than in training: most likely one of the loaders lacks a transform such as `normalize`.
    pub(super) fn note_other_scale(&mut self, batch: &Batch, loader: &Loader, what: &str) {
        self.note_other_effects(loader, what);
        // A run that was resumed, or trained in a loop, knows the scale of its first samples.
        let most = match &self.known_data.transforms {
            Some(trained) if *trained != transforms_of(loader) => MOST_RATIO_OF_OTHERS,
            _ => MOST_RATIO,
        };
        let note = self.note_on_scale(batch, most, what);
        self.note_once(note);
    }

    /// Tells observers once if the values of a batch that is predicted by itself are of another size than in
    /// training. One batch is compared.
    pub(super) fn note_other_batch(&mut self, batch: &Batch) {
        if !std::mem::replace(&mut self.known_data.compared_batch, true) {
            let note = self.note_on_scale(batch, MOST_RATIO, "the prediction");
            self.note_once(note);
        }
    }

    /// Returns a note if the values of a field are of another size than in training.
    fn note_on_scale(&self, batch: &Batch, most: f64, what: &str) -> Option<String> {
        let own = Scales::of(batch, batch.rows());
        let other = own.0.iter().find_map(|(name, own)| {
            let known = self.known_data.scales.0.get(name).or(self.state.scales.0.get(name))?;
            own.is_other(known, most, MOST_RATIO).then_some((name, own, known))
        });
        other.map(|(name, own, known)| {
            format!(
                "the values of {name:?} are {own} in a batch of {what}, but {known} in one of the training batches \
                 (mean and standard deviation): apply transforms such as normalize or rescale to all loaders"
            )
        })
    }

    /// Returns a note if the model can copy its targets: they are the input itself, or the input's next ids
    /// in a model whose layers look ahead.
    fn note_on_leak(&self, batch: &Batch) -> Option<String> {
        let programs = &self.plan.programs;
        let ids = |name: &str| match batch.stacked.field(name)? {
            Field { shape, values: Values::I32(ids) } if shape.len() == 2 && shape[1] > 1 => {
                Some((shape[1], ids))
            }
            _ => None,
        };
        let targets: Vec<&str> =
            programs.losses.iter().filter_map(|(loss, _)| loss.on.target.as_deref()).collect();
        let mut inputs =
            batch.stacked.fields().map(|(name, _)| &**name).filter(|name| !targets.contains(name));
        let (Some(input), None) = (inputs.next(), inputs.next()) else { return None };
        let (steps, seen) = ids(input)?;
        let of_target = |target: &&str| ids(target).filter(|(own, _)| *own == steps).map(|(_, next)| next);
        if let Some(target) = targets.iter().find(|target| of_target(target) == Some(seen)) {
            return Some(format!(
                "note: the targets {target:?} are the input {input:?} itself, which a model can copy"
            ));
        }
        let layer = programs.notes.look_ahead.first()?;
        let is_next = |target: &&&str| {
            let Some(next) = of_target(target) else { return false };
            let mut rows = seen.chunks_exact(steps).zip(next.chunks_exact(steps));
            rows.all(|(seen, next)| seen[1..] == next[..steps - 1])
        };
        let target = targets.iter().find(is_next)?;
        Some(format!(
            "note: {target:?} are the next ids of {input:?}, and {layer} lets each position see later ones, so the \
             model can copy its targets: use causal() on attention, or a recurrent layer in one direction"
        ))
    }

    /// Tells observers if the first batch of a run has pixels as they are stored, or if it is not shuffled
    /// and has samples of one class only.
    ///
    /// # Errors
    /// As [`Trainer::keep_scales`].
    pub(super) fn note_first_batch(&mut self, batch: &Batch, train: &Loader) -> Result<(), Error> {
        self.note_first_values(batch, train)?;
        if self.steps() == 0 && batch.len() >= MOST_LIKELY_SORTED {
            let notes = self.notes_on_labels(batch, train);
            notes.iter().for_each(|note| self.monitor.note(&format!("note: {note}")));
        }
        Ok(())
    }

    /// Does what [`Trainer::note_first_batch`] does, except for the order of the samples.
    ///
    /// # Errors
    /// As [`Trainer::keep_scales`].
    pub(super) fn note_first_values(&mut self, batch: &Batch, train: &Loader) -> Result<(), Error> {
        self.remember_scale(batch, train);
        self.keep_scales(batch)?;
        if self.steps() > 0 || batch.len() < MOST_LIKELY_SORTED {
            return Ok(());
        }
        if let Some(name) = pixels(batch) {
            self.monitor.note_once(&format!(
                "note: the values of {name:?} are whole numbers up to 255, as pixels are stored: unless the model scales \
                 them, divide them by 255 in Loader::map, or use unisono::data::normalize"
            ));
        }
        if let Some((name, most)) = dark(batch) {
            self.monitor.note_once(&format!(
                "note: the values of {name:?} are at most {most}, as if divided by 255 twice: divide pixels by 255 \
                 only once"
            ));
        }
        if let Some(note) = self.note_on_padding(batch) {
            self.monitor.note_once(&note);
        }
        self.note_targets(batch);
        if let Some(note) = self.note_on_leak(batch) {
            self.monitor.note_once(&note);
        }
        Ok(())
    }

    /// Returns a note if most sequences of ids end in zeros, and a layer reads these as other ids: a
    /// recurrent one, or attention before one label for each sequence.
    fn note_on_padding(&self, batch: &Batch) -> Option<String> {
        let programs = &self.plan.programs;
        let target = programs.losses.first().and_then(|(loss, _)| loss.on.target.as_deref());
        let target = target.and_then(|target| batch.stacked.field(target));
        let has_one_label = target.is_some_and(|target| target.shape.len() == 1);
        let reads = |line: &&SummaryLine| match &*line.kind {
            "lstm" | "gru" | "simple_rnn" => true,
            "transformer_block" | "multi_head_attention" => has_one_label,
            _ => false,
        };
        let layer = programs.summary.iter().find(reads)?;
        // A model that takes more than the ids can mask the padding.
        let [input] = programs.get(ProgramId::Predict).inputs() else { return None };
        let Field { shape, values: Values::I32(ids) } = batch.stacked.field(&input.name)? else {
            return None;
        };
        let &[_, steps] = &**shape else { return None };
        let is_padded = |row: &&[i32]| row.len() > 2 && row.ends_with(&[0, 0]) && row[0] != 0;
        let padded = ids.chunks_exact(steps.max(1)).filter(is_padded).count();
        (2 * padded > batch.len()).then(|| {
            format!(
                "note: most sequences {:?} end in zeros, and {} ({}) reads these too: if the zeros are padding, mask \
                 them (unisono::data::mask and the layer's masked()) or, for a recurrent layer, pad in front",
                input.name, layer.path, layer.kind
            )
        })
    }

    /// Returns notes on the labels of a first batch that are of one class, sorted, or counted from 1.
    fn notes_on_labels(&self, batch: &Batch, train: &Loader) -> Vec<String> {
        let losses = self.plan.programs.losses.iter().filter(|(loss, _)| loss.loss.name() == "cross-entropy");
        let labels = losses.filter_map(|(loss, output)| {
            let target = loss.on.target.as_deref()?;
            match &batch.stacked.field(target)?.values {
                Values::I32(labels) => Some((target, labels, loss.loss.classes(output))),
                Values::F32(_) => None,
            }
        });
        labels
            .filter_map(|(target, labels, classes)| note_on_labels(target, labels, classes, train))
            .collect()
    }
}

/// Returns a note on the labels of a first batch that are of one class, sorted, or counted from 1.
fn note_on_labels(target: &str, labels: &[i32], classes: usize, train: &Loader) -> Option<String> {
    let (first, last) = (labels.first()?, labels.last()?);
    let shuffles =
        "and the loader does not shuffle: if the data are sorted by class, Loader::shuffle mixes them";
    if !train.is_shuffled() && labels.iter().all(|label| label == first) {
        return Some(format!("all labels {target:?} of the first batch are {first}, {shuffles}"));
    }
    let is_rising = labels.len() >= MOST_LIKELY_MIXED && labels.is_sorted() && first < last;
    if !train.is_shuffled() && is_rising {
        return Some(format!(
            "the labels {target:?} of the first batch rise from {first} to {last}, {shuffles}"
        ));
    }
    // With so many labels, a class is hardly missing by chance.
    let is_counted_from_1 = labels.len() >= MOST_LIKELY_THERE * classes
        && labels.iter().min() == Some(&1)
        && labels.iter().max().is_some_and(|most| *most as usize + 1 == classes);
    is_counted_from_1.then(|| {
        format!(
            "the first batch has no label {target:?} of 0, and the model has {classes} classes, which count from 0: \
             if your labels start at 1, subtract 1 in Loader::map"
        )
    })
}

/// Validation with the training data measures what the model has seen. A validation set that is the larger
/// one was most likely given in the place of the training data.
fn note_on_validation(train: &Loader, validation: &Loader) -> Option<String> {
    let sources = [train, validation].map(Loader::shared_source);
    if std::ptr::addr_eq(Arc::as_ptr(&sources[0]), Arc::as_ptr(&sources[1])) {
        let note = "the validation data are the training data, so they cannot show overfitting: hold some samples \
                    out with Loader::validation_split";
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

/// Returns the name of a field with pictures that are almost black, and their largest value.
fn dark(batch: &Batch) -> Option<(&str, f32)> {
    let mut fields = batch.stacked.fields();
    fields.find_map(|(name, field)| match &field.values {
        Values::F32(values) if field.shape.len() >= 3 => {
            let most = values.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            (most > 0.0 && most < DARK).then_some((&**name, most))
        }
        _ => None,
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
