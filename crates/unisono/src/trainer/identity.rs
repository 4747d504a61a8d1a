//! What makes a run this run: its identity, and the content of its data, which is hashed beside the training.

use std::fmt;
use std::time::{Duration, Instant};

use unisono_data::{Coverage, DataError, Hashing, Loader};

use crate::identity::part::Part;
use crate::run::ancestry::Ancestor;
use crate::run::content::{DataContent, SavedName};
use crate::{Error, Trainer};

/// How long a checkpoint waits for the data's hash before it is written without it.
const CHECKPOINT_WAITS: Duration = Duration::from_secs(1);
/// How long a wait for the data's hash lasts before it is seen whether the run was asked to stop.
const WAIT: Duration = Duration::from_millis(200);
/// How many times the data of a resumed run are hashed, where they cannot be read.
const MOST_TRIES: u32 = 3;
/// What [`Identity::not_covered`] says of steps outside of a fit.
const OWN_LOOP: &str = "the batches of one's own loop";

/// The hash of the data that is being computed.
#[derive(Debug, Default)]
pub(super) struct DataHash {
    pub(super) job: Option<Hashing>,
    /// Whether the answer of the job is still to come.
    pub(super) pending: bool,
    /// Whether a checkpoint has waited for the answer.
    waited: bool,
    /// How many times the data could not be read.
    failed: u32,
    /// Whether it is not tried again to read the data, unless another fit brings them.
    pub(super) gave_up: bool,
    /// Whether observers were told that the run waits for the answer.
    told_wait: bool,
    /// Whether observers were told that steps are not saved, because the answer did not come.
    told_unsaved: bool,
    /// Whether a save was due and is put off until the data are found to be those of the run.
    put_off: bool,
    /// The last step that was saved before the run's identity was known.
    saved_open: Option<u64>,
    /// Whether the run was on data before, which have to be found again.
    pub(super) expected: bool,
    /// The number of steps done when the data came.
    step: u64,
    /// The difference that was found. Nothing is saved after it.
    problem: Option<String>,
}

/// The identity of a run: hashes of everything that its result depends on, as far as they are known.
/// [`Trainer::identity`] returns it.
///
/// Two runs of equal identity, on machines of one numeric class, end in the same bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// The hash over all parts and ancestors, as 64 hexadecimal digits. `None` before a fit has seen the
    /// data, and while their content is being hashed.
    pub sha256: Option<String>,
    /// The parts with their hashes: the model, what parameters start with, the training step, the optimizer's
    /// settings, the other settings, the order of the data, and the data. `None` where a part is not known
    /// yet.
    pub parts: Vec<(String, Option<String>)>,
    /// The parts that depend on code without a name and version, so that a resume cannot compare them.
    pub not_covered: Vec<String>,
    /// The runs that this one continues after forced resumes, the first one first.
    pub ancestors: Vec<Ancestor>,
}

impl Trainer {
    /// Returns the run's identity. It is complete once a fit has seen the data and their content is hashed.
    /// The end of a fit waits for that.
    pub fn identity(&self) -> Identity {
        let own = &self.state.identity;
        let parts = own.parts().into_iter().map(|(name, part)| (name.to_owned(), part)).collect();
        let mut not_covered = own.not_covered.clone();
        if own.data == DataContent::NotCovered {
            not_covered.push("the content of the data".to_owned());
        }
        Identity { sha256: own.sha256.clone(), parts, not_covered, ancestors: own.ancestors.clone() }
    }

    /// Notes that the run goes on with something that differs from what it was.
    pub(super) fn diverge(&mut self, identity: Option<String>, differs: Vec<String>) {
        let step = self.steps();
        self.state.identity.leave(Ancestor { identity, step, differs, ..Ancestor::default() });
    }

    /// Notes that a step was done on a batch which no fit has read.
    pub(super) fn identify_own_loop(&mut self) {
        self.state.identity.not_covering(OWN_LOOP.to_owned());
    }

    /// Takes the order and the transforms of a loader into the run's identity.
    pub(super) fn identify_order(&mut self, train: &Loader) {
        let epoch = self.position().epoch;
        let order = Part::of_settings(train.settings());
        let step = self.steps();
        let transforms = train.unversioned();
        let own = &mut self.state.identity;
        own.set_transforms(transforms.iter().map(|what| format!("the code of {what}")), step);
        own.set_order(order, epoch);
    }

    /// Takes the content of a loader's source into the run's identity, and starts to hash it where it is to
    /// be hashed.
    ///
    /// # Errors
    /// The run was on other data, as far as is known at once.
    pub(super) fn identify_data(&mut self, train: &Loader) -> Result<(), Error> {
        let source = train.shared_source();
        let is_same = self.data_hash.job.as_ref().is_some_and(|job| job.is_of(&source));
        if is_same && !self.data_hash.gave_up {
            return self.data_hash.check();
        }
        if !is_same {
            self.leave_unhashed()?;
        }
        let found = match train.ask_source("coverage", |source| source.coverage())? {
            Coverage::Hashed => {
                let job = Some(self.start_hashing(source)?);
                self.leave_uncovered();
                let expected = self.state.identity.data.is_known();
                let step = if is_same { self.data_hash.step } else { self.steps() };
                self.data_hash = DataHash { job, pending: true, expected, step, ..DataHash::default() };
                if !expected {
                    self.state.identity.set_data(DataContent::NotYetHashed);
                }
                return Ok(());
            }
            Coverage::Named(name) => {
                self.leave_uncovered();
                DataContent::Named(train.ask_source("fields", |source| SavedName::new(name, source))?)
            }
            _ => DataContent::NotCovered,
        };
        self.data_hash = DataHash { step: self.steps(), ..DataHash::default() };
        self.take_content(found)
    }

    /// Starts to hash data once more that could not be read in an earlier fit, because steps on them are not
    /// saved before they are hashed, even where nothing is left to be trained.
    ///
    /// # Errors
    /// As [`Trainer::identify_data`].
    pub(super) fn identify_again(&mut self, train: &Loader) -> Result<(), Error> {
        let DataHash { job, gave_up, .. } = &self.data_hash;
        let is_same = job.as_ref().is_some_and(|job| job.is_of(&train.shared_source()));
        if *gave_up && is_same { self.identify_data(train) } else { Ok(()) }
    }

    /// Notes that the steps so far were done on data that nothing stands for, before data come of which
    /// something is known.
    fn leave_uncovered(&mut self) {
        let step = self.steps();
        let own = &mut self.state.identity;
        if step == 0 || own.data != DataContent::NotCovered {
            return;
        }
        own.not_covering(format!("the data of the first {step} steps"));
        let before = own.sha256.clone();
        self.diverge(before, vec!["the content of the data was not covered".to_owned()]);
    }

    /// Notes the steps that were done on data whose hash did not come, before other data come.
    ///
    /// # Errors
    /// The steps were done on data that are not those of the run, so the trainer has to be resumed.
    fn leave_unhashed(&mut self) -> Result<(), Error> {
        let DataHash { step: first, pending, gave_up, problem, .. } = &self.data_hash;
        let steps = self.steps();
        if steps <= *first {
            return Ok(());
        }
        let which = format!("steps {first} to {}", steps - 1);
        if *pending || *gave_up {
            self.state.identity.not_covering(format!("the data of {which}"));
            return Ok(());
        }
        problem.as_ref().map_or(Ok(()), |problem| {
            let problem = format!("{which} were done on other data: {problem}; resume the run");
            Err(Error::setting("data", problem))
        })
    }

    /// Takes the content of the data, where the hash is ready within a time.
    ///
    /// # Errors
    /// The run was on other data. The data of a resumed run could not be read, several times.
    pub(super) fn content_within(&mut self, most: Duration) -> Result<(), Error> {
        self.data_hash.check()?;
        let Some(job) = self.data_hash.job.as_ref().filter(|_| self.data_hash.pending) else { return Ok(()) };
        let content = match job.wait(most) {
            Ok(None) => return Ok(()),
            Ok(Some(content)) => DataContent::Hashed((&content).into()),
            Err(error) if self.data_hash.expected => return self.hash_again(error),
            Err(error) => {
                let what = "the content of the data is not covered by the run's identity";
                self.monitor.note(&format!("warning: {what}: {error}"));
                DataContent::NotCovered
            }
        };
        self.data_hash.pending = false;
        self.take_content(content)
    }

    /// Starts to hash the data of a resumed run once more, after an error.
    ///
    /// # Errors
    /// The error, where it came too often. Nothing is saved then before another fit has hashed the data.
    fn hash_again(&mut self, error: DataError) -> Result<(), Error> {
        self.data_hash.failed += 1;
        let tries = self.data_hash.failed;
        let source = self.data_hash.job.as_ref().and_then(Hashing::source);
        let error = match source.filter(|_| tries < MOST_TRIES).map(Hashing::start) {
            Some(Ok(job)) => {
                if self.data_hash.put_off {
                    job.hurry();
                }
                self.monitor.note(&format!("warning: the data are hashed once more: {error}"));
                self.data_hash.job = Some(job);
                return Ok(());
            }
            Some(Err(error)) => error,
            None => error,
        };
        (self.data_hash.pending, self.data_hash.gave_up) = (false, true);
        self.data_hash.problem = Some(format!("the data of the run cannot be hashed: {error}"));
        Err(error.into())
    }

    /// Puts a save within a fit off while the data of a resumed run are being hashed: training goes on, and
    /// the hashing hurries. Returns whether it does. Observers are told once.
    pub(super) fn puts_save_off(&mut self) -> bool {
        let hash = &mut self.data_hash;
        let puts_off = hash.pending && hash.expected;
        if puts_off && !std::mem::replace(&mut hash.put_off, true) {
            hash.job.iter().for_each(Hashing::hurry);
            let step = hash.step;
            self.monitor.note(&format!(
                "note: the steps after step {step} are saved once the data are hashed and found to be those of the run; if the \
                 process is killed before that, these steps are lost"
            ));
        }
        puts_off
    }

    /// Whether a save that was put off can be made now.
    pub(super) fn save_was_put_off(&self) -> bool {
        self.data_hash.put_off && !self.data_hash.pending
    }

    /// Waits for the data's hash as long as a checkpoint has to: until it is known where a run was resumed,
    /// since nothing may be saved of a run on other data. Otherwise, and where the run was asked to stop, the
    /// first checkpoint waits a moment.
    ///
    /// # Errors
    /// As [`Trainer::content_within`]. [`Error::Stopped`] if a resumed run was asked to stop and its data are
    /// not hashed: this step cannot be saved.
    pub(super) fn content_for_checkpoint(&mut self) -> Result<(), Error> {
        if self.data_hash.expected {
            self.content_unless_stopped()?;
        }
        if self.data_hash.pending {
            let first = !std::mem::replace(&mut self.data_hash.waited, true);
            self.content_within(if first { CHECKPOINT_WAITS } else { Duration::ZERO })?;
        }
        if self.data_hash.pending && self.data_hash.expected {
            return Err(Error::Stopped);
        }
        self.data_hash.check()
    }

    /// Waits for the data's hash at the end of a fit, unless the run was asked to stop.
    ///
    /// # Errors
    /// As [`Trainer::content_within`].
    pub(super) fn content_at_end(&mut self) -> Result<(), Error> {
        self.content_unless_stopped()?;
        self.data_hash.check()
    }

    /// Waits for the data's hash until the run is asked to stop. Observers are told if that takes long.
    fn content_unless_stopped(&mut self) -> Result<(), Error> {
        let since = Instant::now();
        while self.data_hash.pending && !self.monitor.stop.is_asked() {
            self.content_within(WAIT)?;
            let is_long = self.data_hash.pending && since.elapsed() >= CHECKPOINT_WAITS;
            if is_long && !std::mem::replace(&mut self.data_hash.told_wait, true) {
                self.monitor.note("note: waiting until the data are hashed before the run is saved");
            }
        }
        Ok(())
    }

    /// Notes that a step was handed over to be saved.
    pub(super) fn was_saved(&mut self, step: u64) {
        self.data_hash.put_off = false;
        self.data_hash.saved_open = self.state.identity.sha256.is_none().then_some(step);
    }

    /// Whether the last step was saved without the run's identity, which is known by now.
    pub(super) fn lacks_identity(&self, step: u64) -> bool {
        self.data_hash.saved_open == Some(step) && self.state.identity.sha256.is_some()
    }

    /// Tells observers once that the run's steps since its resume are not saved, because it was asked to stop
    /// before its data were hashed.
    pub(super) fn note_unsaved(&mut self) {
        if !std::mem::replace(&mut self.data_hash.told_unsaved, true) {
            let step = self.data_hash.step;
            self.monitor.note(&format!(
                "warning: the steps after step {step} are not saved: it is not yet known whether the data are those of the run"
            ));
        }
    }

    /// Takes what was found of the data, and compares it with what the run was on.
    pub(super) fn take_content(&mut self, found: DataContent) -> Result<(), Error> {
        let Some(problem) = found.problem(&self.state.identity.data) else {
            self.state.identity.set_data(found);
            return Ok(());
        };
        if !self.is_forced() {
            self.data_hash.problem = Some(problem);
            return self.data_hash.check();
        }
        self.monitor.note(&format!("warning: {problem}"));
        let identity = self.state.identity.sha256.clone();
        self.state.identity.set_data(found);
        let step = self.data_hash.step;
        let differs = vec![problem];
        self.state.identity.leave(Ancestor { identity, step, differs, ..Ancestor::default() });
        Ok(())
    }
}

impl DataHash {
    /// # Errors
    /// The difference that was found.
    fn check(&self) -> Result<(), Error> {
        self.problem.as_ref().map_or(Ok(()), |problem| Err(Error::setting("data", problem)))
    }

    /// Whether a save that was due is not made yet.
    pub(super) fn puts_off(&self) -> bool {
        self.put_off
    }
}

/// Writes the first 12 digits, or what they wait for.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sha256 {
            Some(sha256) => f.write_str(sha256.get(..12).unwrap_or(sha256)),
            None => f.write_str("not known before the data are hashed"),
        }
    }
}
