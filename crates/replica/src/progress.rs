//! The step as a state machine: what comes next, given what happened. No threads, no devices, no time.
//!
//! ```text
//!            loss                         loss, and nothing was to be committed
//!          +------+                    +----------------------------------------+
//!          v      |                    v                                        |
//!   start: Run 0 -> Run 1 -> ... -> Decide (asked once a step) -> Commit -> End
//!                                     \-> End, if the verdict is to skip
//! ```

/// What the caller of a step says before it commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Run the last segment.
    Commit,
    /// Leave the state as it is.
    Skip,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Run this segment, which is not the last, on everyone.
    Run(usize),
    /// Ask the caller.
    Decide,
    /// Run the last segment on everyone.
    Commit,
    /// The step is over.
    End { committed: bool },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    last: usize,
    /// Whether the last segment changes the state, so that it must not run twice.
    changes_state: bool,
    verdict: Option<Verdict>,
    task: Task,
}

impl Progress {
    pub fn new(segments: usize, changes_state: bool) -> Self {
        let last = segments.saturating_sub(1);
        let mut progress = Self { last, changes_state, verdict: None, task: Task::Decide };
        progress.go_to(0);
        progress
    }

    pub fn task(&self) -> Task {
        self.task
    }

    fn go_to(&mut self, segment: usize) {
        self.task = match self.verdict {
            _ if segment < self.last => Task::Run(segment),
            None => Task::Decide,
            Some(Verdict::Commit) => Task::Commit,
            Some(Verdict::Skip) => Task::End { committed: false },
        };
    }

    /// After [`Task::Run`]: all segments before `end` are done on everyone; or somebody was lost, and it starts again.
    pub fn ran(&mut self, end: usize, lost: bool) {
        self.go_to(if lost { 0 } else { end });
    }

    /// After [`Task::Decide`].
    pub fn decided(&mut self, verdict: Verdict) {
        self.verdict = Some(verdict);
        self.go_to(self.last);
    }

    /// After [`Task::Commit`]: it is done on everyone, or on all but those lost.
    pub fn committed(&mut self, lost: bool) {
        if lost && !self.changes_state {
            self.go_to(0);
        } else {
            self.task = Task::End { committed: true };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Losses may come whenever they like: it ends, the caller is asked once, and what changes the state runs once, after
        /// all that is before it ran in order without a loss.
        #[test]
        fn a_step_commits_once(
            segments in 1usize..6,
            changes_state: bool,
            losses in prop::collection::vec(any::<bool>(), 0..20),
            skip: bool,
        ) {
            let mut progress = Progress::new(segments, changes_state);
            let mut losses = losses.into_iter();
            let (mut asked, mut commits, mut done) = (0, 0, 0);
            for _ in 0..200 {
                match progress.task() {
                    Task::Run(segment) => {
                        prop_assert_eq!(segment, done);
                        let lost = losses.next().unwrap_or(false);
                        done = if lost { 0 } else { segment + 1 };
                        progress.ran(segment + 1, lost);
                    }
                    Task::Decide => {
                        prop_assert_eq!(done, segments - 1);
                        asked += 1;
                        progress.decided(if skip { Verdict::Skip } else { Verdict::Commit });
                    }
                    Task::Commit => {
                        prop_assert_eq!(done, segments - 1);
                        commits += 1;
                        let lost = losses.next().unwrap_or(false);
                        progress.committed(lost);
                        if progress.task() == Task::Run(0) {
                            done = 0;
                        }
                    }
                    Task::End { committed } => {
                        prop_assert_eq!(asked, 1);
                        prop_assert_eq!(committed, !skip);
                        prop_assert_eq!(committed, commits > 0);
                        prop_assert!(!changes_state || commits <= 1);
                        return Ok(());
                    }
                }
            }
            prop_assert!(false, "no end");
        }
    }
}
