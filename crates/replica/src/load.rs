//! Plans and pipelines before they are needed.

use std::sync::Arc;
use std::time::Duration;

use unisono_graph::Run;

use crate::error::ReplicaError;
use crate::layout::Layout;
use crate::message::Request;
use crate::replicas::Replicas;

/// Compiling takes its time, also where steps are short.
const LOADING: Duration = Duration::from_secs(300);

impl Replicas {
    /// Plans a program and builds its pipelines for batches of these sizes, on all replicas at once, so that steps need not.
    /// (Steps do it themselves where it was not done: with [`crate::Assignment::Shuffled`], and after a loss.)
    ///
    /// # Errors
    /// [`ReplicaError::Load`] if the program does not run on one of the adapters.
    pub fn prepare(&mut self, program: usize, rows: &[usize]) -> Result<(), ReplicaError> {
        let global_batch = self.options.global_batch;
        if let Some(&rows) = rows.iter().find(|rows| !(1..=global_batch).contains(*rows)) {
            return Err(ReplicaError::Rows { rows, global_batch });
        }
        // The largest first: later ones then fit into its memory.
        let mut rows = rows.to_vec();
        rows.sort_unstable_by(|a, b| b.cmp(a));
        loop {
            let ready = self.ready(program)?;
            let layouts: Vec<Layout> =
                rows.iter().map(|&rows| self.layout(ready, rows, self.steps)).collect();
            if self.load(program, &layouts)? {
                return Ok(());
            }
        }
    }

    /// Loads what layouts need and what is not there. False if a replica left meanwhile.
    pub(crate) fn load(&mut self, program: usize, layouts: &[Layout]) -> Result<bool, ReplicaError> {
        let mut wanted: Vec<(usize, Vec<Arc<Run>>)> = Vec::new();
        for share in layouts.iter().flat_map(|layout| &layout.shares) {
            if self.loaded.contains(&(share.replica, program, Arc::clone(&share.run))) {
                continue;
            }
            match wanted.iter_mut().find(|(replica, _)| *replica == share.replica) {
                Some((_, runs)) => runs.push(Arc::clone(&share.run)),
                None => wanted.push((share.replica, vec![Arc::clone(&share.run)])),
            }
        }
        if wanted.is_empty() {
            return Ok(true);
        }
        let request =
            |(replica, runs): &(usize, Vec<_>)| (*replica, Request::Load { program, runs: runs.clone() });
        let round = self.team.ask(wanted.iter().map(request).collect(), self.options.deadline.max(LOADING));
        for (replica, runs) in
            wanted.into_iter().filter(|(r, _)| round.replies.iter().any(|(who, _)| who == r))
        {
            self.loaded.extend(runs.into_iter().map(|run| (replica, program, run)));
        }
        if let Some((replica, failure)) = round.failures.iter().find(|(_, failure)| failure.is_the_plans()) {
            let (replica, why) = (*replica, failure.to_string());
            return Err(ReplicaError::Load { program, replica, adapter: self.adapter(replica), why });
        }
        if round.failures.is_empty() {
            return Ok(true);
        }
        self.dismiss(&round.failures)?;
        Ok(false)
    }
}
