//! What a user can ask a trainer about the model, the run and the replicas.

use std::path::Path;

use unisono_data::{Position, Seen};
use unisono_graph::Program;
use unisono_replica::{AuditReport, ReplicaReport};

use crate::compile::programs::ProgramId;
use crate::observe::trace;
use crate::{Error, History, Report, Scaling, Stop, Summary, Trainer};

impl Trainer {
    /// Returns the layers with their output shapes and parameter counts, and what a training step takes of a
    /// device's memory.
    pub fn summary(&self) -> Summary {
        Summary {
            lines: self.plan.programs.summary.clone(),
            input: self.plan.programs.input.clone(),
            memory: Some(self.plan.memory.clone()),
        }
    }

    /// Returns what a user should know of the settings: replicas that will be idle or unevenly loaded,
    /// answers that depend on the number of replicas.
    pub fn notes(&self) -> &[String] {
        &self.watch.notes
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
        self.crew.replicas.reports()
    }

    /// Returns what the input pipeline of the last [`Trainer::fit`] did, and what it waited for.
    pub fn input(&self) -> Option<&Seen> {
        self.watch.input.as_ref()
    }

    /// Returns where the time went, replica by replica, and whether the input kept up.
    pub fn report(&self) -> Report {
        let memory = &self.plan.memory;
        let shards_at_once = memory.limited_by.is_some().then(|| memory.how());
        let scaling = self.state.loss_scale.clone();
        let audits = Some(self.audits()).filter(|audits| audits.passed > 0 && audits.interval > 0);
        let machines = self.watch.machines.clone();
        Report {
            scaling,
            audits,
            witness: self.witness().cloned(),
            machines,
            rank: self.world().rank(),
            shards_at_once,
            ..Report::new(self.reports(), self.watch.input.clone())
        }
    }

    /// Returns what is known about the audits of training steps: how many passed, how often there is one, and
    /// what they took.
    pub fn audits(&self) -> AuditReport {
        let mut all = self.crew.replicas.audits(ProgramId::Train.index());
        let numbers = self.plan.train_indices().into_iter().skip(1);
        let others = numbers.map(|number| self.crew.replicas.audits(number));
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

    /// Returns the samples of the training data that were found bad and left out, where the loader allows it.
    pub fn skipped(&self) -> &[u64] {
        &self.state.position.data.skipped
    }

    /// Returns the number of steps done.
    pub fn steps(&self) -> u64 {
        self.state.position.step
    }

    /// Returns the epochs so far.
    pub fn history(&self) -> &History {
        &self.state.history
    }

    /// Returns the loss scale in mixed precision, and the number of steps that were skipped for it.
    pub fn scaling(&self) -> Option<&Scaling> {
        self.state.loss_scale.as_ref()
    }

    /// Makes fits, evaluations and predictions end early once `stop` is asked: a fit after the current step,
    /// saved, as [`Trainer::fit`] says, evaluations and predictions with [`Error::Stopped`].
    ///
    /// Reading data does not delay it, even if a source never returns. A step does, by the time that it
    /// takes; a device that hangs does, up to [`Builder::deadline`](crate::Builder::deadline); and so does
    /// writing the last checkpoint.
    ///
    /// On several machines a stop that is asked on one of them ends the fit on all after the same step, and
    /// evaluations and predictions run to their end. [`Stop::reset`] on that machine lets the next fit go on.
    pub fn stop_on(&mut self, stop: &Stop) {
        match self.world().is_alone() {
            true => self.watch.stop = stop.clone(),
            false => self.watch.asked = stop.clone(),
        }
    }

    /// Writes what each replica did with its time since the last trace that was written, with
    /// [`crate::Builder::timeline`], in Chrome's trace format, to open in Perfetto. On several machines the
    /// first rank writes what all of them did, each by its own clock, which begins when its replicas start.
    ///
    /// # Errors
    /// The file cannot be written, on any rank. On several machines, a rank does not answer. Nothing is lost
    /// then: the trace can be written to another file.
    pub fn write_trace(&mut self, path: &Path) -> Result<(), Error> {
        let written = self.write_trace_here(path);
        self.together(written)?;
        drop(self.crew.replicas.take_timeline());
        Ok(())
    }

    fn write_trace_here(&self, path: &Path) -> Result<(), Error> {
        let (world, replicas) = (self.world(), &self.crew.replicas);
        let name = (!world.is_alone()).then(|| world.name(world.rank()));
        let own = trace::events(world.rank(), name, &replicas.reports(), replicas.timeline());
        let machines = world.gather("the trace", &own)?;
        let machines: Vec<Vec<u8>> = machines.into_iter().map(|(_, events)| events).collect();
        if !world.is_first() {
            return Ok(());
        }
        trace::write(path, &machines).map_err(|source| Error::Trace { path: path.into(), source })
    }
}
