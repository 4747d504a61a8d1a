//! What the ranks of a run on several machines do together beside their steps: they compare what they were
//! started with, agree on stopping and saving, and end with the same errors.
//!
//! A process that is alone does nothing here.

use unisono_cluster::{Cluster, ClusterError, Problem, pack, unpack};
use unisono_data::{Loader, Position};
use unisono_gpu::Adapter;
use unisono_replica::{Audits, Class, Classes, Options, machine};

use crate::observe::machines::MachineReport;
use crate::run::identity::RunIdentity;
use crate::run::settings::RunSettings;
use crate::trainer::builder::{AUDIT_SHARE, Builder};
use crate::trainer::held_out::described;
use crate::{Error, Trainer};

/// Ends a part of the run on all ranks. Returns the result if it is the same error or none everywhere, and
/// otherwise the error of this rank, or else that of the first rank that has one.
pub(super) fn agree<T>(cluster: &Cluster, result: Result<T, Error>) -> Result<T, Error> {
    if cluster.is_alone() {
        return result;
    }
    let problem_of = |error: &Error| Problem { why: error.to_string(), is_refusal: error.is_refusal() };
    let problem = result.as_ref().err().map(problem_of);
    let all = cluster.conclude(problem.as_ref());
    match (result, all) {
        (Err(error), Ok(all)) if all.iter().all(|(_, other)| *other == problem) => Err(error),
        (Err(error), Err(_)) => Err(error),
        (Err(error), Ok(_)) => Err(Error::Here(Box::new(error))),
        (Ok(_), Err(error)) => Err(error.into()),
        (Ok(value), Ok(all)) => match all.into_iter().find_map(|(rank, problem)| Some((rank, problem?))) {
            Some((rank, problem)) => Err(problem.of(cluster.name(rank)).into()),
            None => Ok(value),
        },
    }
}

/// Returns the number of replicas of each rank, by its number: 0 for one that is lost.
pub(super) fn replicas_of_ranks(cluster: &Cluster, own: usize) -> Result<Vec<usize>, Error> {
    if cluster.is_alone() {
        return Ok(vec![own]);
    }
    let count = |record: Vec<u8>| record.try_into().map_or(1, |bytes| u64::from_le_bytes(bytes) as usize);
    let mut all = vec![0; cluster.size()];
    for (rank, record) in cluster.gather("the numbers of replicas", &(own as u64).to_le_bytes())? {
        all[rank] = count(record);
    }
    Ok(all)
}

/// Compares what each rank was started with.
///
/// # Errors
/// The first difference, which names the rank.
pub(super) fn compare_start(
    cluster: &Cluster,
    settings: &RunSettings,
    identity: &RunIdentity,
    adapters: &[Adapter],
) -> Result<(), Error> {
    let text = |name: &str, value: &dyn ToString| (name.to_owned(), value.to_string());
    let mut own = vec![
        text("version", &env!("CARGO_PKG_VERSION")),
        text("--global-batch", &settings.global_batch),
        text("--shards", &settings.shards),
        text("--seed", &settings.seed),
        text("--precision", &settings.precision),
        text("loss", &settings.loss),
        text("optimizer", &settings.optimizer),
        text("metrics", &settings.metrics.join(", ")),
    ];
    let parts = identity.parts().into_iter();
    own.extend(parts.map(|(name, hash)| (format!("the hash of {name}"), hash.unwrap_or_default())));
    cluster.compare(&own)?;
    compare_classes(cluster, adapters)
}

/// Compares what decides what the ranks of a run do together: which of them has which shards, what they hand
/// round, and when they compare their states.
///
/// # Errors
/// The first difference, which names the rank.
pub(super) fn compare_ways(cluster: &Cluster, options: &Options, digest_every: u64) -> Result<(), Error> {
    let owners = options.owners.map_or_else(|| "none".to_owned(), |owners| owners.to_string());
    let own = [
        ("--shard-optimizer", owners),
        ("the assignment of shards", format!("{:?}", options.assignment)),
        ("the interval at which states are compared", digest_every.to_string()),
    ];
    Ok(cluster.compare(&own.map(|(name, value)| (name.to_owned(), value)))?)
}

/// Compares the numeric classes of all ranks, which are probed if their adapters differ.
fn compare_classes(cluster: &Cluster, adapters: &[Adapter]) -> Result<(), Error> {
    let own = adapters.first().map(machine).unwrap_or_default();
    let all = cluster.gather("the adapters", own.as_bytes())?;
    if all.iter().all(|(_, other)| other == own.as_bytes()) {
        return Ok(());
    }
    // The adapters of a rank are of one class.
    let classes = Classes::new(adapters.iter().take(1).cloned().collect()).probed()?;
    let class = |class: &Class| format!("{} {class}", class.rounding.name());
    let text = classes.first().map(class).unwrap_or_default();
    Ok(cluster.compare(&[("the numeric class of the adapter".to_owned(), text)])?)
}

impl Builder {
    /// Returns the audits of the run: by default a share of the time, and none on several machines.
    ///
    /// # Errors
    /// The caller has set some for a run on several machines. An audit there would need the rows of another
    /// machine's shards, which a machine does not read, and a way back for all of them together.
    pub(super) fn settled_audits(&self) -> Result<Audits, Error> {
        match (self.audits, self.cluster.is_alone()) {
            (None, true) => Ok(Audits::Share(AUDIT_SHARE)),
            (None, false) => Ok(Audits::Never),
            (Some(audits), true) => Ok(audits),
            (Some(audits @ (Audits::Never | Audits::Every(0))), false) => Ok(audits),
            (Some(_), false) => Err(Error::setting(
                "audits",
                "in a run on several machines no step is audited: their states are compared (Builder::digest_every)",
            )),
        }
    }
}

impl Trainer {
    /// Returns the machines of the run.
    pub fn cluster(&self) -> &Cluster {
        self.replica_set.replicas.cluster()
    }

    /// Ends a part of the run on all ranks, see [`agree`].
    pub(super) fn agree<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        agree(self.cluster(), result)
    }

    /// Compares the data of all ranks before a fit, those held out as well, and their order, once they are
    /// hashed; what callbacks decide by; and whether the run was asked to stop.
    pub(super) fn begin_together(
        &mut self,
        train: &Loader,
        validation: Option<&Loader>,
        epochs: u32,
    ) -> Result<(), Error> {
        if self.cluster().is_alone() {
            return Ok(());
        }
        let cluster = self.cluster().clone();
        let fingerprint = train.ask_source("fingerprint", |source| source.fingerprint())?;
        let mut own = vec![
            ("--epochs".to_owned(), epochs.to_string()),
            ("steps".to_owned(), self.steps().to_string()),
            self.deciding(),
            ("the fingerprint of the data".to_owned(), format!("{fingerprint:016x}")),
        ];
        own.extend(described("training", Some(train))?);
        own.extend(described("validation", validation)?);
        cluster.compare(&own)?;
        self.content_together(train)?;
        self.same_transforms(train, "training")?;
        if let Some(validation) = validation {
            self.same_transforms(validation, "validation")?;
            self.held_out_content(validation, "validation")?;
        }
        let parts = self.identity().parts.into_iter();
        let part = |(name, hash): (String, Option<String>)| {
            (format!("the hash of {name}"), hash.unwrap_or_default())
        };
        cluster.compare(&parts.map(part).collect::<Vec<_>>())?;
        self.agree_on_saving(false, Ok(())).map(drop)
    }

    /// Returns whether all ranks are at the same place of the run and hold the state of the step before an
    /// error. Each rank has an error: its own, or that of another one.
    pub(super) fn are_whole(&self, error: &Error) -> bool {
        let whole = error.leaves_state_whole();
        if self.cluster().is_alone() {
            return whole;
        }
        let Position { epoch, sample } = self.position();
        let place =
            [self.steps(), u64::from(epoch), sample, self.history().len() as u64].map(u64::to_le_bytes);
        let own = [&[u8::from(whole)], place.as_flattened()].concat();
        // What ends the run may have been that there is no answer.
        self.cluster()
            .gather("the place of the run", &own)
            .is_ok_and(|all| whole && all.iter().all(|(_, other)| *other == own))
    }

    /// Collects what each machine did, for the report.
    pub(super) fn report_together(&mut self) -> Result<(), Error> {
        let cluster = self.cluster().clone();
        if cluster.is_alone() {
            return Ok(());
        }
        let records = cluster
            .gather("the report", &MachineReport::numbers(&cluster, &self.replica_set.replicas.reports()))?;
        let report = |(rank, numbers): &(usize, Vec<u8>)| MachineReport::of(&cluster, *rank, numbers);
        self.monitor.machines = records.iter().filter_map(report).collect();
        Ok(())
    }

    /// Calls this rank's observers from now on, if those before it are lost.
    fn take_observers_over(&mut self) {
        if self.monitor.forwards && self.cluster().is_first() {
            self.monitor.forwards = false;
            self.notify_start_at(self.state.position.step);
        }
    }

    /// Tells all ranks whether this one was asked to stop, whether a callback ends the fit or the run here,
    /// whether a save is due here, and what went wrong with saves. Returns whether a save is due on any rank,
    /// and makes the run stop, or end, where it does on any.
    ///
    /// # Errors
    /// Saves failed on a rank: the same error on all.
    pub(super) fn agree_on_saving(&mut self, due: bool, saves: Result<(), Error>) -> Result<bool, Error> {
        let cluster = self.cluster().clone();
        if cluster.is_alone() {
            return saves.map(|()| due);
        }
        let problem = saves.err().map(|error| error.to_string());
        let stopped = self.stopped().and_then(|stopped| serde_json::to_vec(stopped).ok()).unwrap_or_default();
        let pause = self.callbacks.pause.clone().unwrap_or_default();
        let flags = [u8::from(due), u8::from(self.monitor.asked.is_asked()), u8::from(problem.is_some())];
        let mut any_due = false;
        let mut failed = None;
        let problem = problem.unwrap_or_default();
        let unheard = std::mem::take(&mut self.monitor.unheard);
        let mut own: Vec<&[u8]> = vec![&flags, problem.as_bytes(), &stopped, pause.as_bytes()];
        own.extend(unheard.iter().map(String::as_bytes));
        let records = cluster.gather("the agreement on saving", &pack(&own))?;
        self.take_observers_over();
        // Ranks whose callbacks look at a clock have decided differently: the first one counts.
        (self.callbacks.pause, self.state.control.stopped) = (None, None);
        for (rank, record) in records {
            let parts = unpack(&record).unwrap_or_default();
            let [flags, problem, stopped, pause, unheard @ ..] = &parts[..] else { continue };
            for text in unheard {
                let text = format!("{}: {}", cluster.name(rank), String::from_utf8_lossy(text));
                self.monitor.note(&text);
            }
            any_due |= flags.first() == Some(&1);
            if flags.get(1) == Some(&1) {
                self.monitor.stop.ask();
            }
            if flags.get(2) == Some(&1) && failed.is_none() {
                let why = String::from_utf8_lossy(problem).into_owned();
                failed = Some(ClusterError::Other { rank: cluster.name(rank), why, is_refusal: false });
            }
            if let Ok(stopped) = serde_json::from_slice(stopped) {
                self.state.control.stopped.get_or_insert(stopped);
            }
            if !pause.is_empty() {
                let why = || String::from_utf8_lossy(pause).into_owned();
                self.callbacks.pause.get_or_insert_with(why);
            }
        }
        let lost = cluster.lost();
        for (rank, why) in lost.iter().skip(self.monitor.lost_told) {
            self.monitor
                .note(&format!("{} was lost: {why}; the others continue without it", cluster.name(*rank)));
        }
        self.monitor.lost_told = lost.len();
        failed.map_or(Ok(any_due), |error| Err(error.into()))
    }
}
