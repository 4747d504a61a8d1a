//! Prepares programs before their steps: plans and pipelines on all replicas at once.

use unisono_gpu::GpuError;

use crate::error::ReplicaError;
use crate::schedule::{Action, Event, Job, Roles};
use crate::worker::message::{Failure, Request};

use super::replicas::Replicas;
use super::residents::Residents;

impl Replicas {
    /// Plans a program and compiles its kernels for batches of these sizes, on all replicas at once, so that
    /// steps need not do it. (Steps do it where it was not done: when shards are assigned to replicas in
    /// another way, and after a loss.)
    ///
    /// Plans of a program that reads or fills resident memory may replace that memory. Afterwards it has to
    /// be filled again.
    ///
    /// # Errors
    /// [`ReplicaError::Load`] if the program does not run on one of the adapters;
    /// [`ReplicaError::OutOfMemory`] if there is no memory for it, before the first step. Later a replica
    /// without memory leaves.
    pub fn prepare(&mut self, program: usize, rows: &[usize]) -> Result<(), ReplicaError> {
        self.none_in_flight()?;
        let global_batch = self.options.global_batch;
        if let Some(&rows) = rows.iter().find(|rows| !(1..=global_batch).contains(*rows)) {
            return Err(ReplicaError::Rows { rows, global_batch });
        }
        if self.ready(program)?.program.is_resident() {
            self.residents = Residents::default();
        }
        // The largest batch comes first: the others then fit into its memory.
        let mut rows = rows.to_vec();
        rows.sort_unstable_by(|a, b| b.cmp(a));
        for rows in rows {
            let job = Job { load_only: true, ..self.job(program, rows)? };
            self.failures.clear();
            let loaded = self.load(program, job);
            // Those of replicas that go on with fewer shards are nobody's business any more.
            self.failures.clear();
            loaded?;
        }
        Ok(())
    }

    fn load(&mut self, program: usize, job: Job) -> Result<(), ReplicaError> {
        self.notify(Event::Begin(job));
        loop {
            match self.next() {
                Action::Load { worker, ticket, program, run } => {
                    self.send(worker, ticket, Request::Load { program, run });
                }
                Action::End { .. } => return Ok(()),
                Action::GivenUp { refused } => return Err(self.refused(program, refused)),
                Action::NoneLeft => return Err(self.none_left()),
                _ => {}
            }
        }
    }

    /// Describes a step to the scheduler.
    pub(crate) fn job(&self, program: usize, rows: usize) -> Result<Job, ReplicaError> {
        self.ready(program)?;
        let mut job = self.job_of(program, rows);
        if !self.cluster.is_alone() {
            (job.sizes, job.share) = self.share_of(&job.sizes);
        }
        Ok(job)
    }

    /// Describes a step of a program that is there, the one of the known-answer test included.
    pub(crate) fn job_of(&self, program: usize, rows: usize) -> Job {
        let ready = &self.programs[&program];
        Job {
            program,
            sizes: self.sizes(rows),
            share: None,
            segments: ready.program.segments(),
            changes_state: ready.changes_state,
            few_at_once: ready.few_at_once,
            load_only: false,
            roles: if ready.program.is_resident() { Roles::Even } else { Roles::Usual },
            audited: false,
        }
    }

    /// Returns the error for a plan that a replica refused.
    pub(crate) fn refused(&mut self, program: usize, replica: Option<usize>) -> ReplicaError {
        let replica = replica.unwrap_or_default();
        let failure = self.failures.remove(&replica);
        let adapter = self.adapter(replica);
        match failure {
            Some(Failure::Gpu(GpuError::OutOfMemory { what, bytes })) => {
                ReplicaError::OutOfMemory { replica, adapter, what, bytes }
            }
            other => {
                let why = other.map_or_else(String::new, |failure| failure.to_string());
                ReplicaError::Load { program, replica, adapter, why }
            }
        }
    }
}
