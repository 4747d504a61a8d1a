//! Whether validation data have samples of the training data, or classes that these lack. Only samples that
//! training and evaluation read anyway are compared: any other read could take long, or never return.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use unisono_data::{Batch, Fingerprint, Loader, Source, Values};
use unisono_graph::Type;

use crate::Trainer;
use crate::compile::objective::LossOn;

/// The most samples of the training data that are compared, and of an evaluation.
const MOST: usize = 1000;
/// The most values of them.
const MOST_VALUES: usize = 8 << 20;
/// Fewer common samples than this cause no note.
const FEWEST: usize = 3;
/// If a smaller share of the training samples is unique, a few common samples cause no note.
const DIFFERENT: f64 = 0.9;
/// A smaller share of validation samples with unknown classes causes no note.
const OTHERS: f64 = 0.02;

/// What is known of the training samples, and how an evaluation compares with them.
#[derive(Default)]
pub(super) struct Repeated {
    /// The number of samples of the training data.
    samples: u64,
    /// The hashes of the first samples that were trained on.
    hashes: BTreeSet<u64>,
    taken: Count,
    /// The classes that were trained on.
    labels: BTreeSet<i32>,
    /// Whether an epoch was trained on from its beginning, and to its end.
    is_begun: bool,
    is_whole: bool,
    /// The validation data of the fit.
    validation: Option<Weak<dyn Source>>,
    /// The samples of an evaluation, those of them that are known, and those of other classes.
    compared: Count,
    found: usize,
    others: usize,
    /// A class that was not trained on.
    other: Option<i32>,
}

/// A number of samples and of their values.
#[derive(Default)]
struct Count {
    samples: usize,
    values: usize,
}

impl Count {
    /// Counts a sample, unless there are enough.
    fn add(&mut self, values: usize) -> bool {
        let is_open = self.samples < MOST && self.values < MOST_VALUES;
        if is_open {
            self.samples += 1;
            self.values += values;
        }
        is_open
    }
}

impl Repeated {
    /// Takes a batch that was trained on, until an epoch is over. `target` is the field of the classes.
    fn train(&mut self, batch: &Batch, train: &Loader, target: Option<&str>) {
        if self.is_whole {
            return;
        }
        self.samples = train.samples();
        for row in 0..batch.rows().len() {
            if self.taken.add(values_of(batch)) {
                self.hashes.insert(hash(batch, row));
            }
        }
        self.is_begun |= batch.first == 0;
        self.labels.extend(labels(batch, target));
        self.is_whole = self.is_begun && batch.after.epoch > batch.epoch;
    }

    /// Takes the validation data of a fit.
    pub fn validate(&mut self, validation: Option<&Loader>) {
        self.validation = validation.map(|loader| Arc::downgrade(&loader.shared_source()));
    }

    /// Compares a batch of an evaluation.
    fn compare(&mut self, batch: &Batch, target: Option<&str>, is_first: bool) {
        if is_first {
            (self.compared, self.found, self.others, self.other) = (Count::default(), 0, 0, None);
        }
        for row in 0..batch.rows().len() {
            if self.compared.add(values_of(batch)) {
                self.found += usize::from(self.hashes.contains(&hash(batch, row)));
            }
        }
        for label in labels(batch, target).filter(|label| !self.labels.contains(label)) {
            self.others += 1;
            self.other.get_or_insert(label);
        }
    }

    /// Returns a note if the samples of an evaluation are those of the training.
    fn note_on_samples(&self, all: u64) -> Option<String> {
        let Self { samples, hashes, taken, compared, found, .. } = self;
        let (of, among) = (compared.samples, taken.samples);
        // Where samples come again by chance, all of them have to.
        let are_all = *found == of && all == *samples && hashes.len() >= FEWEST;
        let expected = among as f64 / (*samples).max(1) as f64;
        let are_some =
            hashes.len() as f64 >= DIFFERENT * among as f64 && *found as f64 >= 0.5 * expected * of as f64;
        (*found >= FEWEST && (are_all || are_some)).then(|| {
            format!(
                "the validation data have samples of the training data ({found} of {of} checked were found among \
                 {among} training samples), so validation does not show how the model generalizes: use \
                 Loader::validation_split, whose two loaders share no sample"
            )
        })
    }

    /// Returns a note if an evaluation has classes that were not trained on.
    fn note_on_classes(&self, all: u64) -> Option<String> {
        let Self { others, other, is_whole, .. } = self;
        let label = other.filter(|_| *is_whole && *others as f64 >= OTHERS * all as f64)?;
        Some(format!(
            "{others} of {all} validation samples are of classes that training has not seen, such as {label}: split \
             the data with Loader::validation_split, which draws at random even if they are sorted by class"
        ))
    }
}

/// Returns the number of values of a sample.
fn values_of(batch: &Batch) -> usize {
    batch.stacked.fields().map(|(_, field)| field.shape.iter().skip(1).product::<usize>()).sum()
}

/// Returns the classes of the samples of a batch that were fetched, where each has one.
fn labels<'a>(batch: &'a Batch, target: Option<&str>) -> impl Iterator<Item = i32> + use<'a> {
    let field = target.and_then(|target| batch.stacked.field(target)).filter(|field| field.shape.len() == 1);
    field.and_then(|field| field.values.as_i32()).into_iter().flatten().copied()
}

/// Returns the hash of a row of the values that were fetched.
fn hash(batch: &Batch, row: usize) -> u64 {
    let hash = batch.stacked.fields().fold(Fingerprint::new(), |hash, (name, field)| {
        let size = field.shape.iter().skip(1).product::<usize>();
        let own = row * size..(row + 1) * size;
        let add = |hash: Fingerprint, bits: u32| hash.word(bits.into());
        let hash = hash.text(name);
        match &field.values {
            Values::F32(values) => values[own].iter().map(|x| x.to_bits()).fold(hash, add),
            Values::I32(values) => values[own].iter().map(|x| *x as u32).fold(hash, add),
        }
    });
    hash.finish()
}

impl Trainer {
    /// Remembers samples that were trained on, for comparison with those of an evaluation and with a guess.
    pub(super) fn remember_samples(&mut self, batch: &Batch, train: &Loader) {
        let target = target_of_classes(&self.plan.programs.losses);
        self.known_data.repeated.train(batch, train, target);
        self.count_targets(batch);
    }

    /// Compares a batch of a fit's validation data with the training data.
    pub(super) fn compare_samples(&mut self, batch: &Batch, loader: &Loader, is_first: bool) {
        let repeated = &mut self.known_data.repeated;
        if repeated.validation.as_ref().is_some_and(|validation| is_of(validation, loader)) {
            repeated.compare(batch, target_of_classes(&self.plan.programs.losses), is_first);
        }
    }

    /// Tells observers once of validation data that have samples of the training data, or other classes.
    pub(super) fn note_compared(&mut self, loader: &Loader) {
        let repeated = &self.known_data.repeated;
        if !repeated.validation.as_ref().is_some_and(|validation| is_of(validation, loader)) {
            return;
        }
        let all = loader.samples();
        // A machine knows its own part of the training data.
        let classes = repeated.note_on_classes(all).filter(|_| self.cluster().is_alone());
        for note in [repeated.note_on_samples(all), classes] {
            self.note_once(note);
        }
    }
}

/// Whether a loader reads a source.
fn is_of(source: &Weak<dyn Source>, loader: &Loader) -> bool {
    std::ptr::addr_eq(source.as_ptr(), Arc::as_ptr(&loader.shared_source()))
}

/// Returns the field with the classes of the samples.
fn target_of_classes(losses: &[(LossOn, Type)]) -> Option<&str> {
    let mut all = losses.iter().filter(|(loss, _)| loss.loss.name() == "cross-entropy");
    all.next()?.0.on.target.as_deref()
}
