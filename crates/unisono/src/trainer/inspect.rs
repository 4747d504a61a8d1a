//! What a user can ask a trainer about the model, the run and the replicas.

use std::path::Path;

use unisono_data::{Position, Seen};
use unisono_graph::Program;
use unisono_replica::{AuditReport, ReplicaReport};

use crate::compile::programs::ProgramId;
use crate::observe::trace;
use crate::{Error, History, Report, Scaling, Stop, Summary, Trainer};

impl Trainer {
    /// Returns the layers with their output shapes and parameter counts, and the device memory that a
    /// training step needs (Keras's `summary`).
    pub fn summary(&self) -> Summary {
        Summary {
            lines: self.plan.programs.summary.clone(),
            input: self.plan.programs.input.clone(),
            memory: Some(self.plan.memory.clone()),
        }
    }

    /// Returns warnings about the model and the settings, such as idle replicas or a result that depends on
    /// the number of replicas. Later notes of the run follow, such as a replica that left; observers get them
    /// as they happen ([`Observer::note`](crate::Observer::note)). Each text appears once.
    pub fn notes(&self) -> &[String] {
        &self.monitor.notes
    }

    /// Returns the compiled graph of a program, for inspection.
    pub fn program(&self, id: ProgramId) -> &Program {
        self.plan.program(id)
    }

    /// Returns all compiled graphs.
    pub fn programs(&self) -> impl Iterator<Item = (ProgramId, &Program)> {
        ProgramId::ALL.iter().map(|&id| (id, self.plan.program(id)))
    }

    /// Returns what each replica did so far.
    pub fn reports(&self) -> Vec<ReplicaReport> {
        self.replica_set.replicas.reports()
    }

    /// Returns what the input pipeline of the last [`Trainer::fit`] did, and what it waited for.
    pub fn input(&self) -> Option<&Seen> {
        self.monitor.input.as_ref()
    }

    /// Returns where the time of each replica went, and whether the input kept up.
    pub fn report(&self) -> Report {
        let memory = &self.plan.memory;
        let shards_at_once = memory.limited_by.is_some().then(|| memory.how());
        let scaling = self.state.loss_scale.clone();
        let audits = Some(self.audits()).filter(|audits| audits.passed > 0 && audits.interval > 0);
        let machines = self.monitor.machines.clone();
        Report {
            scaling,
            audits,
            witness: self.witness().cloned(),
            machines,
            rank: self.cluster().rank(),
            shards_at_once,
            ..Report::new(self.reports(), self.monitor.input.clone())
        }
    }

    /// Returns the results of the audits of training steps: how many passed, how often there is one, and how
    /// long they took.
    pub fn audits(&self) -> AuditReport {
        let mut all = self.replica_set.replicas.audits(ProgramId::Train.index());
        let numbers = self.plan.train_indices().into_iter().skip(1);
        let others = numbers.map(|number| self.replica_set.replicas.audits(number));
        for more in others.chain([self.plan.dropped]) {
            all.interval = if more.steps > all.steps { more.interval } else { all.interval };
            (all.steps, all.passed) = (all.steps + more.steps, all.passed + more.passed);
            (all.stepping, all.auditing) = (all.stepping + more.stepping, all.auditing + more.auditing);
        }
        all
    }

    /// Returns where the next step starts in the data.
    pub fn position(&self) -> Position {
        self.state.position.data.position
    }

    /// Returns the training samples that were bad and were left out, if the loader allows that.
    pub fn skipped(&self) -> &[u64] {
        &self.state.position.data.skipped
    }

    /// Returns the number of steps done.
    pub fn steps(&self) -> u64 {
        self.state.position.step
    }

    /// Returns the results of all epochs so far.
    pub fn history(&self) -> &History {
        &self.state.history
    }

    /// Returns the loss scale in mixed precision, and how many steps were skipped because of it.
    pub fn scaling(&self) -> Option<&Scaling> {
        self.state.loss_scale.as_ref()
    }

    /// Ends fits, evaluations and predictions early when you ask `stop` to. A fit ends after the current step
    /// and saves the run ([`Trainer::fit`]). Evaluations and predictions end with [`Error::Stopped`].
    ///
    /// A stop does not wait for data, even if a source never returns. It waits for the current step, for a
    /// device that hangs (up to [`Builder::deadline`](crate::Builder::deadline)), and for the last checkpoint
    /// to be written.
    ///
    /// On several machines, a stop on one of them ends the fit on all machines after the same step.
    /// Evaluations and predictions run to their end. [`Stop::reset`] on that machine lets the next fit
    /// continue.
    pub fn stop_on(&mut self, stop: &Stop) {
        match self.cluster().is_alone() {
            true => self.monitor.stop = stop.clone(),
            false => self.monitor.asked = stop.clone(),
        }
    }

    /// Writes what each replica did with its time, in Chrome's trace format for Perfetto. It covers the time
    /// since the last trace that was written. Requires [`crate::Builder::timeline`]. On several machines the
    /// first rank writes the times of all machines. Each has its own clock, which starts when its replicas
    /// start.
    ///
    /// # Errors
    /// [`crate::Builder::timeline`] is not set. The file cannot be written, on any rank. On several machines,
    /// a rank does not answer. Nothing is lost then: write the trace to another file.
    pub fn write_trace(&mut self, path: &Path) -> Result<(), Error> {
        let written = self.write_trace_here(path);
        self.agree(written)?;
        drop(self.replica_set.replicas.take_timeline());
        Ok(())
    }

    fn write_trace_here(&self, path: &Path) -> Result<(), Error> {
        let (cluster, replicas) = (self.cluster(), &self.replica_set.replicas);
        if !replicas.records_timeline() {
            return Err(Error::setting("write_trace", "no times are recorded: Builder::timeline does that"));
        }
        let name = (!cluster.is_alone()).then(|| cluster.name(cluster.rank()));
        let own = trace::events(cluster.rank(), name, &replicas.reports(), replicas.timeline());
        let machines = cluster.gather("the trace", &own)?;
        let machines: Vec<Vec<u8>> = machines.into_iter().map(|(_, events)| events).collect();
        if !cluster.is_first() {
            return Ok(());
        }
        trace::write(path, &machines).map_err(|source| Error::Trace { path: path.into(), source })
    }
}
