//! The policy of saving: where checkpoints go, how often, and which of them stay.

use std::path::PathBuf;
use std::sync::Arc;

use unisono_checkpoint::{Best, Disk, Metric, Options, StdDisk};

use crate::objective::history::names_of_numbers;
use crate::objective::metrics::{better, wrong_way};
use crate::{Better, Epoch, Error, Evaluation, History};

/// Where checkpoints are written, how often, and which of them are kept (Keras's `ModelCheckpoint`).
#[doc(alias("BackupAndRestore", "ModelCheckpoint"))]
#[derive(Clone, Debug, PartialEq)]
pub struct Saving {
    pub(crate) dir: PathBuf,
    every: u64,
    keep: usize,
    keep_every: u64,
    best: Option<BestBy>,
    pub(super) require: bool,
    /// The file system, unless it is the machine's own.
    disk: Option<OtherDisk>,
}

/// A file system that is not the machine's own.
#[derive(Clone, Debug)]
struct OtherDisk(Arc<dyn Disk>);

impl PartialEq for OtherDisk {
    /// Whether both are the same value, not only equal ones.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What makes a checkpoint the best: `loss` or a metric, by name. Uses validation metrics if available,
/// otherwise training metrics. A checkpoint with validation metrics always beats one that only has training
/// metrics. If the value is NaN or infinite, the checkpoint is not the best.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BestBy {
    /// The lowest value is the best, as of a loss.
    Lowest(String),
    /// The highest value is the best, as of an accuracy.
    Highest(String),
    /// The better value of a metric is the best, by what the metric says of itself ([`Metric::better`]):
    /// higher of an accuracy, lower of an error or of `loss`.
    ///
    /// [`Metric::better`]: crate::Metric::better
    Metric(String),
}

impl BestBy {
    fn name(&self) -> &str {
        match self {
            Self::Lowest(name) | Self::Highest(name) | Self::Metric(name) => name,
        }
    }

    /// Returns which of the values is taken to be better, as it is known so far.
    fn better(&self) -> Option<Better> {
        match self {
            Self::Lowest(_) => Some(Better::Lower),
            Self::Highest(_) => Some(Better::Higher),
            Self::Metric(_) => None,
        }
    }

    /// Returns what was measured in an epoch, with what it is called in manifests.
    fn of(&self, epoch: &Epoch) -> Option<Metric> {
        let held_out = epoch.validation.as_ref();
        let evaluation: &Evaluation = held_out.unwrap_or(&epoch.train);
        let value =
            if self.name() == "loss" { Some(evaluation.loss) } else { evaluation.metric(self.name()) };
        let [of_held_out, of_train] = self.names();
        Some(Metric::named(value?, if held_out.is_some() { of_held_out } else { of_train }))
    }

    /// Returns what it is called in manifests: on samples held out, and on those trained on.
    fn names(&self) -> [String; 2] {
        let name = match self {
            Self::Lowest(name) | Self::Metric(name) => format!("lowest {name}"),
            Self::Highest(name) => format!("highest {name}"),
        };
        [name.clone(), format!("{name} in training")]
    }
}

impl Saving {
    /// Saves into a directory at the end of each fit, also if an error of the data ends the fit. Keeps the
    /// last three checkpoints.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), every: 0, keep: 3, keep_every: 0, best: None, require: false, disk: None }
    }

    /// Also saves every `steps` steps. Default: 0, only at the end of a fit.
    pub fn every(self, steps: u64) -> Self {
        Self { every: steps, ..self }
    }

    /// Sets how many of the most recent checkpoints are kept; 0 keeps all. Default: 3.
    pub fn keep_last(self, checkpoints: usize) -> Self {
        Self { keep: checkpoints, ..self }
    }

    /// Also keeps every checkpoint whose step is a multiple of `steps`. Default: 0, none.
    pub fn keep_every(self, steps: u64) -> Self {
        Self { keep_every: steps, ..self }
    }

    /// Also keeps the best checkpoint, for [`crate::Trainer::load_best`]. The run is then also saved at the
    /// end of every epoch, when the metrics are measured. Checkpoints with another metric are not compared.
    /// Default: none.
    pub fn keep_best(self, best: BestBy) -> Self {
        Self { best: Some(best), ..self }
    }

    /// Returns whether the best checkpoints are kept.
    pub(crate) fn keeps_best(&self) -> bool {
        self.best.is_some()
    }

    /// Ends the run if a checkpoint cannot be written. Default: observers are told, the run continues, and
    /// the next interval tries again. Only if the last step cannot be saved, the fit returns an error.
    pub fn require(self) -> Self {
        Self { require: true, ..self }
    }

    /// Sets the file system of the directory, such as a storage of your own. Default: that of the machine
    /// ([`StdDisk`]).
    ///
    /// The trainer writes and reads the directory through it. The lock file of the directory also goes
    /// through it if the disk implements [`Disk::lock_file`] and [`Disk::is_lock_file`]. Otherwise the
    /// directory must exist on the machine as well.
    pub fn on(self, disk: Arc<dyn Disk>) -> Self {
        Self { disk: Some(OtherDisk(disk)), ..self }
    }

    /// Settles which checkpoint is the best, by the metrics that are measured. Returns a note where the
    /// metric says the opposite of itself.
    ///
    /// # Errors
    /// What makes a checkpoint the best is neither the loss nor one of the metrics, or a metric does not say
    /// which values are better.
    pub(crate) fn settle(
        &mut self,
        metrics: &[std::sync::Arc<dyn crate::Metric>],
    ) -> Result<Option<String>, Error> {
        let Some(best) = &self.best else { return Ok(None) };
        let (name, wrong) = (best.name().to_owned(), |problem| Err(Error::setting("keep best", problem)));
        let names = names_of_numbers(metrics);
        if name != "loss" && !names.contains(&name) {
            let known: Vec<&str> = std::iter::once("loss").chain(names.iter().map(String::as_str)).collect();
            return wrong(format!("nothing is called {name:?}; there is {}", known.join(", ")));
        }
        match (best.better(), better(metrics, &name)) {
            (Some(asked), _) => Ok(wrong_way(metrics, "Saving::keep_best", (&name, asked))),
            (None, Some(Better::Lower)) => {
                self.best = Some(BestBy::Lowest(name));
                Ok(None)
            }
            (None, Some(Better::Higher)) => {
                self.best = Some(BestBy::Highest(name));
                Ok(None)
            }
            (None, None) => wrong(format!(
                "{name:?} does not say which of its values are better: BestBy::Lowest or BestBy::Highest does"
            )),
        }
    }

    /// Returns the file system that the directory is on.
    pub(super) fn disk(&self) -> Arc<dyn Disk> {
        self.disk.as_ref().map_or_else(|| Arc::new(StdDisk) as Arc<dyn Disk>, |other| Arc::clone(&other.0))
    }

    /// Returns which checkpoints the store keeps.
    pub(super) fn retention(&self) -> Options {
        let best = self.best.as_ref().map(|best| match best {
            BestBy::Lowest(_) | BestBy::Metric(_) => Best::Lowest(1),
            BestBy::Highest(_) => Best::Highest(1),
        });
        let metrics = self.best.iter().flat_map(BestBy::names);
        Options::default().keep(self.keep).every(self.keep_every).best(best).metrics(metrics)
    }

    /// Whether a step is saved although the fit goes on: at the interval, and where the best checkpoint is
    /// measured.
    pub(super) fn is_due(&self, step: u64, history: &History) -> bool {
        let interval = self.every > 0 && step.is_multiple_of(self.every);
        interval || self.is_measured(step, history)
    }

    /// Whether it is this step that is saved, and not any of those around it: what is measured at it may be
    /// the best, or it is one of the steps that are kept.
    pub(super) fn is_due_itself(&self, step: u64, history: &History) -> bool {
        let is_kept = self.keep_every > 0 && step.is_multiple_of(self.keep_every);
        is_kept || self.is_measured(step, history)
    }

    fn is_measured(&self, step: u64, history: &History) -> bool {
        self.best.is_some() && history.last().is_some_and(|epoch| epoch.steps == step)
    }

    /// Returns which of some steps was the best by a run's history, the earliest one of equals.
    pub(super) fn best_of(&self, steps: impl Iterator<Item = u64>, history: &History) -> Option<u64> {
        let best = self.best.as_ref()?;
        let rank = |step: u64| {
            let epoch = history.iter().rfind(|epoch| epoch.steps == step);
            let metric = epoch.and_then(|epoch| Some((epoch.validation.is_none(), best.of(epoch)?.value)));
            let (is_train, metric) =
                metric.filter(|(_, value)| value.is_finite()).unwrap_or((true, f64::INFINITY));
            match best {
                BestBy::Highest(_) if metric < f64::INFINITY => (is_train, -metric),
                _ => (is_train, metric),
            }
        };
        let compare = |a: u64, b: u64| {
            let (a_rank, b_rank) = (rank(a), rank(b));
            a_rank.0.cmp(&b_rank.0).then(a_rank.1.total_cmp(&b_rank.1)).then(a.cmp(&b))
        };
        steps.min_by(|a, b| compare(*a, *b))
    }

    /// Returns what was measured at a step, for the retention of the best.
    pub(super) fn measured(&self, step: u64, history: &History) -> Option<Metric> {
        let epoch = history.last().filter(|epoch| epoch.steps == step)?;
        self.best.as_ref()?.of(epoch)
    }
}
