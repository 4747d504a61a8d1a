//! A step: segment by segment on all replicas, sums in between, a verdict, a commit.

use std::sync::Arc;

use unisono_graph::Program;

use crate::error::ReplicaError;
use crate::exchange::{Blocks, not_finite, sum};
use crate::feed::Feed;
use crate::layout::Layout;
use crate::message::{Harvest, Reply, Request, Work};
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

/// Buckets with their sums.
type Sums = Vec<(usize, Arc<Vec<f32>>)>;

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
                None => attempt.insert(Attempt { layout: self.lay_out(index, feed.rows)?, sums: Sums::new() }),
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
                if let Some(cut) = harvests.iter().find_map(|(_, harvest)| harvest.bad_cut) {
                    return Err(self.diagnose(index, &feed, layout, cut));
                }
                if !layout.is_whole() {
                    *sums = self.exchange(&program, layout, segments.start, &harvests, &mut outputs)?;
                }
                let harvests = self.keep_blocks(harvests);
                gather(&program, layout, harvests, &mut outputs);
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
    fn run(
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
        let harvest = |(replica, reply)| if let Reply::Harvest(h) = reply { Some((replica, h)) } else { None };
        Ok((round.replies.into_iter().filter_map(harvest).collect(), !round.failures.is_empty()))
    }

    /// Sums the buckets of a cut over all shards, and shows those sums that are outputs.
    fn exchange(
        &mut self,
        program: &Program,
        layout: &Layout,
        cut: usize,
        harvests: &[(usize, Harvest)],
        outputs: &mut Outputs,
    ) -> Result<Sums, ReplicaError> {
        let (mut all, mut bad) = (Sums::new(), Vec::new());
        for (bucket, decl) in program.buckets().iter().enumerate().filter(|(_, bucket)| bucket.cut == cut) {
            let mut blocks = Blocks::new();
            for (replica, harvest) in harvests {
                let share = layout.shares.iter().find(|share| share.replica == *replica);
                let values = harvest.blocks.iter().find(|(b, _)| *b == bucket);
                if let (Some(share), Some((_, values))) = (share, values) {
                    blocks.extend(share.run.blocks().into_iter().zip(values.chunks_exact(decl.len.max(1))));
                }
            }
            let mut sums = self.buffers.sums(decl.len);
            if !sum(&blocks, layout.shards, layout.leaves, self.buffers.threads, &mut sums) {
                return Err(ReplicaError::Incomplete { step: self.steps - 1, bucket });
            }
            bad.extend(not_finite(program, bucket, &sums));
            for (index, output) in program.outputs().iter().enumerate() {
                if let Some((_, first)) = output.sum.filter(|(of, _)| *of == bucket) {
                    outputs.set(index, bytemuck::cast_slice(&sums[first..first + output.ty.count()]));
                }
            }
            all.push((bucket, Arc::new(sums)));
        }
        let more = bad.len().saturating_sub(1);
        match bad.into_iter().next() {
            Some(what) => Err(ReplicaError::NotFinite { step: self.steps - 1, what, more }),
            None => Ok(all),
        }
    }

    /// Names what is not finite where the sums stayed on the device: runs the step up to that cut again, with its sums exposed.
    fn diagnose(&mut self, program: usize, feed: &Arc<Feed>, layout: &Layout, cut: usize) -> ReplicaError {
        let sizes = layout.shares.first().map_or(Vec::new(), |share| share.run.sizes.clone());
        let replica = layout.shares.first().map_or(0, |share| share.replica);
        let exposed = Layout::exposed(&sizes, replica);
        match self.look(program, feed, &exposed, cut) {
            Err(error) => error,
            Ok(()) => {
                let what = format!("a sum of segment {cut}");
                ReplicaError::NotFinite { step: self.steps - 1, what, more: 0 }
            }
        }
    }

    fn look(&mut self, index: usize, feed: &Arc<Feed>, layout: &Layout, cut: usize) -> Result<(), ReplicaError> {
        let program = Arc::clone(&self.ready(index)?.program);
        let (mut sums, mut outputs) = (Sums::new(), Outputs::new(program.outputs().len()));
        self.load(index, std::slice::from_ref(layout))?;
        for segment in 0..=cut {
            let (harvests, _) = self.run(index, feed, layout, segment..segment + 1, std::mem::take(&mut sums))?;
            sums = self.exchange(&program, layout, segment, &harvests, &mut outputs)?;
        }
        Ok(())
    }

    /// Keeps the memory of blocks for the worker that filled it.
    fn keep_blocks(&mut self, mut harvests: Vec<(usize, Harvest)>) -> Vec<(usize, Harvest)> {
        for (replica, harvest) in &mut harvests {
            // The worker takes the last first.
            self.buffers.blocks[*replica].extend(harvest.blocks.drain(..).rev().map(|(_, values)| values));
        }
        harvests
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

impl crate::replicas::Buffers {
    /// Memory that nobody reads any more, or new.
    fn sums(&mut self, len: usize) -> Vec<f32> {
        let free = self.sums.iter().position(|sums| sums.len() == len && Arc::strong_count(sums) == 1);
        let free = free.map(|at| self.sums.swap_remove(at));
        free.and_then(|sums| Arc::try_unwrap(sums).ok()).unwrap_or_else(|| vec![0.0; len])
    }
}

/// Takes the outputs of some segments, in the order of the samples.
fn gather(program: &Program, layout: &Layout, harvests: Vec<(usize, Harvest)>, outputs: &mut Outputs) {
    let complete = harvests.len() == layout.shares.len();
    let first_row = |replica| layout.shares.iter().find(|s| s.replica == replica).map_or(0, |s| s.first_row);
    let mut parts: Vec<(usize, Vec<(usize, Vec<u32>)>)> =
        harvests.into_iter().map(|(replica, harvest)| (first_row(replica), harvest.outputs)).collect();
    parts.sort_by_key(|(first, _)| *first);
    outputs.gather(program, parts.into_iter().map(|(_, part)| part).collect(), complete);
}
