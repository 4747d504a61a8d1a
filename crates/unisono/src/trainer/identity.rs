//! What makes a run this run: its identity, and the content of its data, which is hashed beside the training.

use std::fmt;
use std::time::Duration;

use unisono_data::{Coverage, Hashing, Loader};

use crate::identity::part::Part;
use crate::run::ancestry::Ancestor;
use crate::run::content::DataContent;
use crate::{Error, Trainer};

/// How long a checkpoint waits for the data's hash before it is written without it.
const CHECKPOINT_WAITS: Duration = Duration::from_secs(1);
/// How long a wait for the data's hash lasts before it is seen whether the run was asked to stop.
const WAIT: Duration = Duration::from_millis(200);

/// The hash of the data that is being computed.
#[derive(Debug, Default)]
pub(super) struct DataHash {
    job: Option<Hashing>,
    /// Whether the answer of the job is still to come.
    pending: bool,
    /// Whether a checkpoint has waited for the answer.
    waited: bool,
    /// Whether the run was on data before, which have to be found again.
    expected: bool,
    /// The number of steps done when the data came.
    step: u64,
    /// The difference that was found. Nothing is saved after it.
    problem: Option<String>,
}

/// What makes a run this run and no other, as far as it is known. [`Trainer::identity`] returns it.
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
    /// What code decides and no name and version stands for.
    pub not_covered: Vec<String>,
    /// The runs that this one was made of by force, the first one first.
    pub ancestors: Vec<Ancestor>,
}

impl Trainer {
    /// Returns what makes this run the run that it is. It is whole once a fit has seen the data and their
    /// content is hashed, which the end of a fit waits for.
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
        self.state.identity.leave(Ancestor { identity, step, differs });
    }

    /// Takes the order and the transforms of a loader into the run's identity.
    pub(super) fn identify_order(&mut self, train: &Loader) {
        let epoch = self.position().epoch;
        let order = Part::of_settings(train.settings());
        let own = &mut self.state.identity;
        own.not_covered.retain(|what| !what.starts_with(TRANSFORM));
        own.not_covered.extend(train.unversioned().iter().map(|what| format!("{TRANSFORM}{what}")));
        own.set_order(order, epoch);
    }

    /// Takes the content of a loader's source into the run's identity, and starts to hash it where it is to
    /// be hashed.
    ///
    /// # Errors
    /// The run was on other data, as far as is known at once.
    pub(super) fn identify_data(&mut self, train: &Loader) -> Result<(), Error> {
        let source = train.shared_source();
        let found = match source.coverage() {
            Coverage::Hashed if self.data_hash.job.as_ref().is_some_and(|job| job.is_of(&source)) => {
                return self.data_hash.check();
            }
            Coverage::Hashed => {
                let job = Some(Hashing::start(source)?);
                let expected = self.state.identity.data.is_known();
                let step = self.steps();
                self.data_hash = DataHash { job, pending: true, expected, step, ..DataHash::default() };
                if !expected {
                    self.state.identity.set_data(DataContent::NotYetHashed);
                }
                return Ok(());
            }
            Coverage::Named(name) => DataContent::Named(name),
            _ => DataContent::NotCovered,
        };
        self.data_hash = DataHash { step: self.steps(), ..DataHash::default() };
        self.take_content(found)
    }

    /// Takes the content of the data, where the hash is ready within a time.
    ///
    /// # Errors
    /// The run was on other data. The data cannot be read.
    pub(super) fn content_within(&mut self, most: Duration) -> Result<(), Error> {
        self.data_hash.check()?;
        let Some(job) = self.data_hash.job.as_ref().filter(|_| self.data_hash.pending) else { return Ok(()) };
        let content = match job.wait(most) {
            Ok(None) => return Ok(()),
            Ok(Some(content)) => DataContent::Hashed((&content).into()),
            Err(error) if self.data_hash.expected => return Err(error.into()),
            Err(error) => {
                let what = "the content of the data is not covered by the run's identity";
                self.watch.note(&format!("warning: {what}: {error}"));
                DataContent::NotCovered
            }
        };
        self.data_hash.pending = false;
        self.take_content(content)
    }

    /// Waits for the data's hash as long as a checkpoint has to: until it is known where a run was resumed,
    /// since nothing may be saved of a run on other data. Otherwise the first checkpoint waits a moment.
    ///
    /// # Errors
    /// As [`Trainer::content_within`].
    pub(super) fn content_for_checkpoint(&mut self) -> Result<(), Error> {
        if !self.data_hash.expected {
            let first = !std::mem::replace(&mut self.data_hash.waited, true);
            return self.content_within(if first { CHECKPOINT_WAITS } else { Duration::ZERO });
        }
        while self.data_hash.pending {
            self.content_within(WAIT)?;
        }
        self.data_hash.check()
    }

    /// Waits for the data's hash at the end of a fit, unless the run was asked to stop.
    ///
    /// # Errors
    /// As [`Trainer::content_within`].
    pub(super) fn content_at_end(&mut self) -> Result<(), Error> {
        while self.data_hash.pending && !self.watch.stop.is_asked() {
            self.content_within(WAIT)?;
        }
        self.data_hash.check()
    }

    /// Takes what was found of the data, and compares it with what the run was on.
    fn take_content(&mut self, found: DataContent) -> Result<(), Error> {
        let differs = match found.problem(&self.state.identity.data) {
            Some(problem) if self.is_forced() => {
                self.watch.note(&format!("warning: {problem}"));
                problem
            }
            Some(problem) => {
                self.data_hash.problem = Some(problem);
                return self.data_hash.check();
            }
            None if self.state.identity.data == DataContent::NotCovered && found.is_known() => {
                "the content of the data was not covered".to_owned()
            }
            None => {
                self.state.identity.set_data(found);
                return Ok(());
            }
        };
        let before = self.state.identity.sha256.clone();
        self.state.identity.set_data(found);
        let step = self.data_hash.step;
        self.state.identity.leave(Ancestor { identity: before, step, differs: vec![differs] });
        Ok(())
    }
}

/// How [`Identity::not_covered`] begins where it names a transform.
const TRANSFORM: &str = "the code of ";

impl DataHash {
    /// # Errors
    /// The difference that was found.
    fn check(&self) -> Result<(), Error> {
        self.problem.as_ref().map_or(Ok(()), |problem| Err(Error::setting("data", problem)))
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
