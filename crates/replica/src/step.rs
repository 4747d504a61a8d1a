//! A step: segment by segment on all replicas, sums in between, a verdict, a commit.

use std::sync::Arc;

use unisono_graph::Program;

use crate::error::ReplicaError;
use crate::feed::Feed;
use crate::layout::Layout;
use crate::message::{Harvest, Reply, Request, Sums, Work};
use crate::outputs::Outputs;
pub use crate::progress::Verdict;
use crate::progress::{Progress, Task};
use crate::replicas::Replicas;
use crate::report::Left;

/// What a step gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// All outputs, those of the last segment included if it ran.
    pub outputs: Outputs,
    /// Whether the last segment ran; false after [`Verdict::Skip`].
    pub committed: bool,
    /// Who left since the last step's outcome, this step included. The bits are as if they had never been there.
    pub left: Vec<Left>,
}

/// One try of a step.
struct Attempt {
    layout: Layout,
    sums: Sums,
}

impl Replicas {
    /// Runs a program on a batch, on all replicas as if they were one.
    ///
    /// `decide` is asked once, when everything but the last segment is done, with the outputs that are there by then. The
    /// state changes only after [`Verdict::Commit`], on all replicas.
    ///
    /// # Errors
    /// What is wrong with the feed, before anything runs; [`ReplicaError::NotFinite`], with the state unchanged;
    /// [`ReplicaError::Load`] if the program was not prepared and cannot be; [`ReplicaError::NoneLeft`].
    pub fn step(
        &mut self,
        program: usize,
        feed: &Feed,
        decide: &mut dyn FnMut(&Outputs) -> Verdict,
    ) -> Result<Outcome, ReplicaError> {
        let ready = self.ready(program)?;
        feed.check(&ready.program, self.options.global_batch)?;
        let (index, program, changes_state) = (program, Arc::clone(&ready.program), ready.changes_state);
        let feed = Arc::new(feed.clone());
        self.steps += 1;
        let mut progress = Progress::new(program.segments(), changes_state);
        let last = program.segments() - 1;
        let mut outputs = Outputs::new(program.outputs().len());
        let mut attempt = None;
        loop {
            let segments = match progress.task() {
                Task::Decide => {
                    progress.decided(decide(&outputs));
                    continue;
                }
                Task::End { committed } => {
                    self.count(attempt);
                    return Ok(Outcome { outputs, committed, left: std::mem::take(&mut self.untold) });
                }
                Task::Run(segment) => segment..segment + 1,
                Task::Commit => last..last + 1,
            };
            if segments.start == 0 {
                attempt = None;
                outputs = Outputs::new(program.outputs().len());
            }
            let trying = match &mut attempt {
                Some(trying) => trying,
                None => {
                    attempt.insert(Attempt { layout: self.lay_out(index, feed.rows)?, sums: Sums::new() })
                }
            };
            let Attempt { layout, sums } = trying;
            // Where nothing travels, nothing has to be waited for.
            let commit = segments.start == last;
            let segments = if layout.is_whole() && !commit { segments.start..last } else { segments };
            let (harvests, lost) = self.run(index, &feed, layout, segments.clone(), std::mem::take(sums))?;
            if commit {
                gather(&program, layout, harvests, &mut outputs);
                progress.committed(lost);
            } else if lost {
                progress.ran(segments.end, true);
            } else {
                let exchanged = match harvests.iter().find_map(|(_, harvest)| harvest.bad_cut) {
                    Some(cut) => Err(self.diagnose(index, &feed, layout, cut)),
                    None if layout.is_whole() => Ok(Sums::new()),
                    None => self.exchange(&program, layout, segments.start, &harvests, &mut outputs),
                };
                let harvests = self.keep_blocks(harvests);
                gather(&program, layout, harvests, &mut outputs);
                *sums = exchanged.map_err(|error| error.showing(&outputs))?;
                progress.ran(segments.end, false);
            }
        }
    }

    /// A layout that everyone in it is ready for.
    fn lay_out(&mut self, program: usize, rows: usize) -> Result<Layout, ReplicaError> {
        self.dismiss(&[])?;
        loop {
            let layout = self.layout(self.ready(program)?, rows, self.steps - 1);
            if self.load(program, std::slice::from_ref(&layout))? {
                return Ok(layout);
            }
        }
    }

    /// Some segments on everyone. Whoever fails leaves; whether somebody did is the second result.
    pub(crate) fn run(
        &mut self,
        program: usize,
        feed: &Arc<Feed>,
        layout: &Layout,
        segments: std::ops::Range<usize>,
        sums: Sums,
    ) -> Result<(Vec<(usize, Harvest)>, bool), ReplicaError> {
        let mut requests = Vec::with_capacity(layout.shares.len());
        for share in &layout.shares {
            let work = Work {
                program,
                run: Arc::clone(&share.run),
                step: self.steps - 1,
                segments: segments.clone(),
                feed: Arc::clone(feed),
                first_row: share.first_row,
                sums: sums.clone(),
                spare: std::mem::take(&mut self.buffers.blocks[share.replica]),
            };
            requests.push((share.replica, Request::Run(work)));
        }
        let round = self.team.ask(requests, self.options.deadline);
        self.buffers.sums.extend(sums.into_iter().map(|(_, sums)| sums));
        self.dismiss(&round.failures)?;
        let harvest =
            |(replica, reply)| if let Reply::Harvest(h) = reply { Some((replica, h)) } else { None };
        Ok((round.replies.into_iter().filter_map(harvest).collect(), !round.failures.is_empty()))
    }

    fn count(&mut self, attempt: Option<Attempt>) {
        for share in attempt.iter().flat_map(|attempt| &attempt.layout.shares) {
            let report = self.team.report(share.replica);
            if report.left.is_none() {
                report.steps += 1;
                report.shards += share.run.sizes.len() as u64;
                report.samples += share.run.rows() as u64;
            }
        }
    }
}

/// Takes the outputs of some segments, in the order of the samples.
fn gather(program: &Program, layout: &Layout, harvests: Vec<(usize, Harvest)>, outputs: &mut Outputs) {
    let complete = harvests.len() == layout.shares.len();
    let first_row = |replica| layout.shares.iter().find(|s| s.replica == replica).map_or(0, |s| s.first_row);
    let mut parts: Vec<_> =
        harvests.into_iter().map(|(replica, h)| (first_row(replica), h.outputs)).collect();
    parts.sort_by_key(|(first, _)| *first);
    outputs.gather(program, parts.into_iter().map(|(_, part)| part).collect(), complete);
}
