//! What is compared of data beside their content: the names of their classes, between the data that a run
//! trains on and others; and on several machines everything that decides what a loader gives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use unisono_cluster::ClusterError;
use unisono_data::{
    Batches, Coverage, DataError, Effects, Field, FieldDType, Fingerprint, Hashing, Loader, Source,
};

use crate::compile::programs::{ProgramId, Programs};
use crate::run::scales::Scales;
use crate::trainer::agree_on_data::{Blocks, is_hashed_by, joined, read, record_of};
use crate::trainer::guess::TargetSums;
use crate::trainer::repeated::Repeated;
use crate::{Error, Trainer};

/// How long a wait for hashes lasts before it is seen whether the run was asked to stop.
const WAIT: Duration = Duration::from_millis(200);
/// The most characters of a text that machines compare as it is. Of a longer one they compare a hash.
const MOST_TEXT: usize = 200;
/// The number of samples whose transformed values machines compare.
const PROBED: usize = 32;

/// What is known of the data that a trainer was given.
#[derive(Default)]
pub(super) struct KnownData {
    /// The names of the classes of the training data, by field.
    classes: Classes,
    /// The scales of the fields of the first training batch.
    pub(super) scales: Scales,
    /// What the transforms of the training data say of themselves.
    pub(super) effects: Effects,
    /// Whether a batch that was predicted by itself has been compared with the training data.
    pub(super) compared_batch: bool,
    /// The targets that were trained on.
    pub(super) targets: TargetSums,
    /// Samples of the training data that validation data should not have.
    pub(super) repeated: Repeated,
    /// The names of the transforms of the training data. `None` before the first batch.
    pub(super) transforms: Option<String>,
    /// What observers were told of the data.
    told: BTreeSet<String>,
    /// What other machines have too: sources, and for each the settings of its loader.
    compared: Vec<(Weak<dyn Source>, String)>,
}

/// The names of classes, by field.
type Classes = BTreeMap<String, Vec<String>>;

/// Returns the names of the classes of a source's fields, where it knows them.
///
/// # Errors
/// The source panics.
fn classes_of(loader: &Loader) -> Result<Classes, DataError> {
    let fields = loader.ask_source("fields", |source| source.fields().to_vec())?;
    loader.ask_source("field_classes", |source| {
        let ids = fields.iter().filter(|spec| spec.dtype == FieldDType::I32);
        let known =
            ids.filter_map(|spec| Some((spec.name.to_string(), source.field_classes(&spec.name)?.to_vec())));
        known.collect()
    })
}

/// Checks that no number stands for another class than in the training data, and that there are no classes
/// beyond those.
fn compare_classes(train: &Classes, other: &Classes, what: &str) -> Result<(), Error> {
    for (field, names) in other {
        let Some(known) = train.get(field) else { continue };
        let differs = (0..names.len()).find(|&class| known.get(class) != Some(&names[class]));
        let Some(class) = differs else { continue };
        let name = &names[class];
        let there = match known.get(class) {
            Some(there) => format!("and class {there:?} in the training data"),
            None => format!("and the training data have only {} classes", known.len()),
        };
        let advice = "give both the same class numbers: use `like` of ImageFolder, WavFolder, Csv or Columnar, or one \
             Vocabulary";
        let problem =
            format!("field '{field}': {class} is class {name:?} in the {what} data, {there}; {advice}");
        return Err(Error::setting("classes", problem));
    }
    Ok(())
}

/// Returns a note if an output has another number of classes than its targets have names.
fn other_classes(programs: &Programs, named: &Classes) -> Option<String> {
    programs.losses.iter().filter(|(loss, _)| loss.loss.name() == "cross-entropy").find_map(
        |(loss, output)| {
            let target = loss.on.target.as_deref()?;
            // A vocabulary is often rounded up, so texts are not compared.
            let &[classes] = &*output.dims else { return None };
            let named = named.get(target)?.len();
            (classes != named).then(|| {
                format!(
                    "the output {:?} has {classes} classes, but {target:?} has names of {named}: give the last layer \
                     one output for each class",
                    loss.on.output
                )
            })
        },
    )
}

/// Returns a text as it is compared: itself, or a hash of a long one.
fn short(text: String) -> String {
    if text.len() <= MOST_TEXT { text } else { format!("{:016x}", Fingerprint::new().text(&text).finish()) }
}

/// Returns what machines compare of a loader, beside the content of its data: always as many values.
///
/// # Errors
/// The source panics.
pub(super) fn described(what: &str, loader: Option<&Loader>) -> Result<Vec<(String, String)>, DataError> {
    let text = |part: &str, value: &dyn Fn(&Loader) -> Result<String, DataError>| {
        let value = loader.map_or_else(|| Ok("none".into()), value)?;
        Ok((format!("{part} of the {what} data"), short(value)))
    };
    let settings = |loader: &Loader| {
        let settings = loader.settings();
        Ok(settings.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join("; "))
    };
    let coverage = |loader: &Loader| match coverage_of(loader)? {
        Coverage::Named(name) => Ok(format!("{name:?}")),
        other => Ok(format!("{other:?}")),
    };
    let fingerprint = |loader: &Loader| {
        let fingerprint = loader.ask_source("fingerprint", |source| source.fingerprint())?;
        Ok(format!("{fingerprint:016x}"))
    };
    let number = |loader: &Loader| Ok(loader.ask_source("len", |source| source.len())?.to_string());
    Ok(vec![
        text("the number", &number)?,
        text("the classes", &|loader| Ok(format!("{:?}", classes_of(loader)?)))?,
        text("the order and the transforms", &settings)?,
        text("the fingerprint", &fingerprint)?,
        text("the kind", &coverage)?,
    ])
}

fn coverage_of(loader: &Loader) -> Result<Coverage, DataError> {
    loader.ask_source("coverage", |source| source.coverage())
}

impl Trainer {
    /// Takes the names of the classes of the training data, and compares those of the validation data with
    /// them. Tells observers once what was passed over when the data were read.
    ///
    /// # Errors
    /// A number stands for another class in the validation data; a source panics.
    pub(super) fn take_classes(&mut self, train: &Loader, validation: Option<&Loader>) -> Result<(), Error> {
        for loader in [Some(train), validation].into_iter().flatten() {
            self.note_data(loader)?;
        }
        self.known_data.classes = classes_of(train)?;
        self.note_once(other_classes(&self.plan.programs, &self.known_data.classes));
        if let Some(validation) = validation {
            self.same_classes(validation, "validation")?;
        }
        Ok(())
    }

    /// Compares the names of the classes of other data with those of the training data, where a fit has seen
    /// these.
    ///
    /// # Errors
    /// A number stands for another class.
    pub(super) fn same_classes(&self, other: &Loader, what: &str) -> Result<(), Error> {
        compare_classes(&self.known_data.classes, &classes_of(other)?, what)
    }

    /// Compares the names of the categories that a prediction reads with those of the training data. Labels
    /// are not read.
    ///
    /// # Errors
    /// A number stands for another category.
    pub(super) fn same_categories(&self, other: &Loader) -> Result<(), Error> {
        let inputs = self.plan.program(ProgramId::Predict).inputs();
        let mut own = classes_of(other)?;
        own.retain(|field, _| inputs.iter().any(|input| input.name == *field));
        compare_classes(&self.known_data.classes, &own, "predicted")
    }

    /// Tells observers once what a user should know of a loader's source.
    ///
    /// # Errors
    /// The source panics, here or when it is asked for its length, which has no other way to say so.
    pub(super) fn note_data(&mut self, loader: &Loader) -> Result<(), Error> {
        loader.ask_source("len", |source| source.len())?;
        for note in loader.ask_source("notes", |source| source.notes())? {
            if self.known_data.told.insert(note.clone()) {
                self.monitor.note(&format!("note: {note}"));
            }
        }
        Ok(())
    }

    /// Tells observers once that an evaluation or a prediction leaves out the last batch of a loader.
    pub(super) fn note_dropped(&mut self, loader: &Loader, what: &str) {
        let reader = self.reader(loader);
        self.note_once(dropped(&reader, what));
    }

    /// Tells observers once that what was evaluated or predicted was drawn at random.
    pub(super) fn note_drawn(&mut self, batches: &Batches, what: &str) {
        self.note_once(drawn(batches, what));
    }

    /// Tells observers a note, unless they know it.
    pub(super) fn note_once(&mut self, note: Option<String>) {
        if let Some(note) = note.filter(|note| self.known_data.told.insert(note.clone())) {
            self.monitor.note(&format!("note: {note}"));
        }
    }

    /// Compares data that are evaluated or predicted, and how they are read, between machines, once for each
    /// loader.
    ///
    /// # Errors
    /// A machine has other data or settings; the error is the same on all.
    pub(super) fn same_held_out(&mut self, loader: &Loader, what: &str) -> Result<(), Error> {
        if self.cluster().is_alone() || self.is_compared(loader) {
            return Ok(());
        }
        self.cluster().clone().compare(&described(what, Some(loader))?)?;
        self.same_transforms(loader, what)?;
        self.held_out_content(loader, what)
    }

    /// Compares what the transforms of a loader give for its first samples: their names say nothing of their
    /// settings, such as the degrees of a rotation.
    ///
    /// # Errors
    /// Two machines have other values; the error is the same on all ranks.
    pub(super) fn same_transforms(&self, loader: &Loader, what: &str) -> Result<(), Error> {
        if loader.settings().get("transforms").is_none_or(|transforms| transforms == "none") {
            return Ok(());
        }
        let cluster = self.cluster();
        let reader = loader.clone().batch(PROBED).limit_batches(1).drop_last(false).threads(1);
        let first = reader.stop_on(self.monitor.stop.flag()).epoch(0).map(|mut batches| batches.next());
        let own = match first {
            Ok(Some(Ok(batch))) => {
                let add = |hash: Fingerprint, (name, field): (&Arc<str>, &Field)| {
                    let hash =
                        field.shape.iter().fold(hash.text(name), |hash, &extent| hash.word(extent as u64));
                    hash.values(&field.values)
                };
                batch.stacked.fields().fold(Fingerprint::new(), add).finish().to_le_bytes().to_vec()
            }
            // The run was asked to stop, or a sample is bad, which the fit itself says.
            Ok(_) | Err(_) => Vec::new(),
        };
        let records = cluster.gather("what transforms give", &own)?;
        let mut known: Option<(usize, &Vec<u8>)> = None;
        for (rank, record) in records.iter().filter(|(_, record)| !record.is_empty()) {
            match known {
                Some((first, other)) if other != record => {
                    let [own, other] = [record, other].map(|hash| crate::identity::part::hex(hash));
                    let part = format!("the hash of the first transformed samples of the {what} data");
                    let text = format!("{}: {part} {own}, rank {first}: {other}", cluster.name(*rank));
                    return Err(ClusterError::Differs(text).into());
                }
                Some(_) => {}
                None => known = Some((*rank, record)),
            }
        }
        Ok(())
    }

    fn is_compared(&self, loader: &Loader) -> bool {
        let (source, settings) = (loader.shared_source(), settings_of(loader));
        let is_same = |(known, set): &(Weak<dyn Source>, String)| {
            std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(&source)) && *set == settings
        };
        self.known_data.compared.iter().any(is_same)
    }

    /// Compares the content of data that are held out, of which each machine hashes a part, and two hash each
    /// block. What cannot be read is not compared, and observers are told.
    ///
    /// # Errors
    /// Two machines have other samples in a block; the error is the same on all ranks.
    pub(super) fn held_out_content(&mut self, loader: &Loader, what: &str) -> Result<(), Error> {
        let (cluster, source) = (self.cluster().clone(), loader.shared_source());
        let is_known = |known: &Weak<dyn Source>| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(&source));
        let hashed = self.known_data.compared.iter().any(|(known, _)| is_known(known));
        // A fit has compared its training data, which may be those that are evaluated.
        let trained = self.data_hash.job.as_ref().is_some_and(|job| job.is_of(&source));
        let trained = trained && !self.data_hash.pending && !self.data_hash.gave_up;
        if coverage_of(loader)? == Coverage::Hashed && !hashed && !trained {
            let (place, ranks) = (cluster.place(), cluster.present().len());
            let which = move |block, blocks| is_hashed_by(place, ranks, block, blocks);
            let own = Hashing::start_some(source.clone(), which).and_then(|job| self.blocks_of(&job));
            let records = cluster.gather("the hashes of data that are held out", &record_of(&own))?;
            let (mut all, mut unreadable) = (Vec::new(), None);
            for (rank, record) in &records {
                match read(record) {
                    Some(Ok(blocks)) => all.push((*rank, blocks)),
                    // A machine was asked to stop, so all are.
                    Some(Err(why)) if why.is_empty() => {
                        self.monitor.stop.ask();
                        return Ok(());
                    }
                    Some(Err(why)) => unreadable = unreadable.or(Some((*rank, why))),
                    None => {
                        let what = format!("rank {rank} sent hashes that are none");
                        return Err(ClusterError::Link(what).into());
                    }
                }
            }
            if let Some((rank, why)) = unreadable {
                let told = "the machines have not compared the content of the";
                self.monitor.note(&format!("warning: {told} {what} data: {}: {why}", cluster.name(rank)));
            }
            joined(&cluster, &all, &format!("the {what} data's"))?;
        }
        let gone = |(known, _): &(Weak<dyn Source>, String)| known.strong_count() == 0;
        self.known_data.compared.retain(|known| !gone(known));
        self.known_data.compared.push((Arc::downgrade(&source), settings_of(loader)));
        Ok(())
    }

    /// Waits for a machine's part, until the run is asked to stop: then it is `None`.
    fn blocks_of(&self, job: &Hashing) -> Blocks {
        job.hurry();
        loop {
            match job.wait_blocks(WAIT)? {
                None if self.monitor.asked.is_asked() => return Ok(None),
                None => {}
                found => return Ok(found),
            }
        }
    }

    /// Returns what callbacks decide by, for a comparison between machines.
    pub(super) fn deciding(&self) -> (String, String) {
        ("what callbacks decide by".to_owned(), short(self.state.control.deciding()))
    }
}

/// Returns the names of the transforms of a loader.
pub(super) fn transforms_of(loader: &Loader) -> String {
    loader.settings().remove("transforms").unwrap_or_default()
}

fn settings_of(loader: &Loader) -> String {
    format!("{:?}", loader.settings())
}

/// Returns a note if samples that are not trained on were changed at random.
pub(crate) fn drawn(batches: &Batches, what: &str) -> Option<String> {
    let drawn = batches.drawn().join(", ");
    (!drawn.is_empty()).then(|| {
        format!(
            "{what} used samples that {drawn} changed at random: add augmentation after Loader::validation_split, to the \
             training loader only"
        )
    })
}

/// Returns a note if a loader leaves samples out because they do not fill a batch.
pub(crate) fn dropped(loader: &Loader, what: &str) -> Option<String> {
    let (read, all) = (loader.samples_per_epoch(), loader.clone().drop_last(false).samples_per_epoch());
    (read < all).then(|| {
        let left = all - read;
        format!(
            "{what} used only {read} of {all} samples: drop_last leaves out {left} in incomplete batches; \
             drop_last(false) includes them"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(names: &[&str]) -> Classes {
        Classes::from([("y".to_owned(), names.iter().map(|&name| name.to_owned()).collect())])
    }

    #[test]
    fn a_number_stands_for_one_class() {
        let train = classes(&["cat", "dog", "fox"]);
        let compared = |other: &Classes| compare_classes(&train, other, "validation");
        assert!(compared(&train).is_ok() && compared(&Classes::new()).is_ok());
        // Numbers of classes that the validation data lack are not there.
        assert!(compared(&classes(&["cat", "dog"])).is_ok());
        let error = compared(&classes(&["cat", "fox"])).unwrap_err().to_string();
        assert!(error.contains("field 'y': 1 is class \"fox\" in the validation data"), "{error}");
        assert!(error.contains("class \"dog\" in the training data"), "{error}");
        let error = compared(&classes(&["cat", "dog", "fox", "owl"])).unwrap_err().to_string();
        assert!(error.contains("3 is class \"owl\"") && error.contains("only 3 classes"), "{error}");
    }
}
