//! The parts of a step that several machines do together: sums over their shards, outputs, agreement.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use unisono_cluster::{ClusterError, Sum, pack, unpack};
use unisono_graph::{Lead, Program, tree};

use crate::batch::outputs::{Outputs, Part};
use crate::coordinator::attempt::Attempt;
use crate::coordinator::replicas::Replicas;
use crate::coordinator::step::Task;
use crate::error::ReplicaError;
use crate::observe::timeline::{Activity, Interval};
use crate::schedule::{Share, Verdict};
use crate::sums::tree_sum::{Blocks, not_finite, sum};
use crate::worker::fault;
use crate::worker::message::Sums;

/// What was exchanged with other machines in a step. It stands if a replica of this machine is lost, since
/// others then compute the same bytes again; it is forgotten if a machine is lost.
#[derive(Debug, Default)]
pub(crate) struct Exchanged {
    program: Option<Arc<Program>>,
    share: Option<Share>,
    /// The shards of each machine that was there when the step began: what this machine's blocks are of, also
    /// while it hears of a loss.
    runs: Arc<Vec<Range<usize>>>,
    /// This machine's place among them.
    place: usize,
    /// The buckets whose blocks were sent.
    begun: BTreeMap<usize, Instant>,
    /// The sums of the cuts that are done.
    sums: BTreeMap<usize, Sums>,
    /// The outputs up to each cut.
    outputs: BTreeMap<usize, Outputs>,
    /// The microseconds that each rank has worked, once the outputs of the last cut before a commit are here:
    /// all ranks that are left commit then, or none of them.
    times: Option<Vec<(usize, u32)>>,
}

/// What a machine says with its outputs.
struct Said {
    /// Whether they are those of all its shards.
    complete: bool,
    /// What it has decided of the step before, as [`Machines`](super::machines::Machines) has it.
    decided: u8,
    /// The microseconds that it has worked in the step so far.
    micros: u32,
}

impl Replicas {
    /// Begins the exchanges of a step, or begins them again with other shards.
    pub(crate) fn start_exchange(&mut self, program: &Arc<Program>, share: Option<Share>) {
        let runs = Arc::new(share.map_or_else(Vec::new, |share| self.runs(share.all)));
        let (program, place) = (Some(Arc::clone(program)), self.cluster.place());
        self.exchanged = Exchanged { program, share, runs, place, ..Exchanged::default() };
        self.machines.begin();
    }

    /// Returns the samples of each shard of this machine, and where these shards are in the batch.
    pub(crate) fn share_of(&self, all: &[usize]) -> (Vec<usize>, Option<Share>) {
        self.follow();
        let runs = self.runs(all.len());
        let run = runs.get(self.cluster.place()).cloned().unwrap_or_default();
        let first_row = all[..run.start].iter().sum();
        (all[run.clone()].to_vec(), Some(Share { first: run.start, first_row, all: all.len() }))
    }

    /// Sends the blocks of buckets that are complete on this machine, while its replicas go on.
    pub(crate) fn exchange_early(&mut self, buckets: &[usize]) {
        let Some(share) = self.exchanged.share else { return };
        let Some(program) = self.exchanged.program.clone() else { return };
        for &bucket in buckets {
            if self.exchanged.begun.contains_key(&bucket) {
                continue;
            }
            let len = program.buckets()[bucket].len;
            let Some((blocks, leaves)) = self.overlap.complete(bucket, len) else { continue };
            let own = own_blocks(&blocks, &self.run(), share.all, leaves, len, self.memory.threads);
            if let Some(own) = own {
                // Whatever is wrong shows when the sums are waited for.
                let _ = self.begin_exchange(share, bucket, len, &own);
            }
        }
    }

    /// Returns this machine's shards.
    fn run(&self) -> Range<usize> {
        self.exchanged.runs.get(self.exchanged.place).cloned().unwrap_or_default()
    }

    fn begin_exchange(
        &mut self,
        share: Share,
        bucket: usize,
        len: usize,
        own: &[f32],
    ) -> Result<(), ClusterError> {
        let runs = Arc::clone(&self.exchanged.runs);
        self.cluster.begin_exchange(Sum { bucket, len, leaves: share.all, shards: share.all, runs }, own)?;
        self.exchanged.begun.insert(bucket, Instant::now());
        Ok(())
    }

    /// Sums the buckets of a cut over the shards of all machines, and stores those sums that are outputs.
    /// Buckets that were sent before are not sent again, also where a replica was lost since.
    pub(crate) fn all_reduce_everywhere(
        &mut self,
        program: &Program,
        attempt: &mut Attempt,
        cut: usize,
        leaves: usize,
    ) -> Result<(), ReplicaError> {
        if !self.exchanged.sums.contains_key(&cut) {
            let sums = self.exchange_cut(program, attempt, cut, leaves)?;
            self.exchanged.sums.insert(cut, sums);
        }
        let sums = self.exchanged.sums.get(&cut).cloned().unwrap_or_default();
        let mut bad = Vec::new();
        for (bucket, sums) in sums {
            if !sums.iter().fold(true, |finite, sum| finite & sum.is_finite()) {
                bad.extend(not_finite(program, bucket, &sums));
            }
            attempt.take_sums(program, bucket, sums);
        }
        ReplicaError::of_sums(self.steps.saturating_sub(1), bad)
    }

    fn exchange_cut(
        &mut self,
        program: &Program,
        attempt: &Attempt,
        cut: usize,
        leaves: usize,
    ) -> Result<Sums, ReplicaError> {
        let step = self.steps.saturating_sub(1);
        let Some(share) = self.exchanged.share else { return Ok(Sums::new()) };
        let of_cut = || program.buckets().iter().enumerate().filter(|(_, bucket)| bucket.cut == cut);
        for (bucket, decl) in of_cut() {
            if self.exchanged.begun.contains_key(&bucket) {
                continue;
            }
            let blocks = attempt.blocks(cut, bucket, decl.len, leaves);
            let own = own_blocks(&blocks, &self.run(), share.all, leaves, decl.len, self.memory.threads);
            let own = own.ok_or(ReplicaError::Incomplete { step, bucket })?;
            self.begin_exchange(share, bucket, decl.len, &own)?;
        }
        fault::together(&self.options.fault_scope, "exchange", step);
        let mut sums = Sums::new();
        for (bucket, _) in of_cut() {
            sums.push((bucket, Arc::new(self.cluster.finish_exchange(bucket)?)));
            self.note_exchange(bucket);
        }
        Ok(sums)
    }

    /// Notes in the timeline how long a bucket was on its way.
    fn note_exchange(&mut self, bucket: usize) {
        let since = self.exchanged.begun.get(&bucket).filter(|_| self.options.timeline);
        if let Some(since) = since {
            let (from, to) = (since.saturating_duration_since(self.started), self.started.elapsed());
            let (step, activity) = (self.steps.saturating_sub(1), Activity::Machines);
            self.timeline.push(Interval { replica: bucket, step, steps: 1, activity, from, to });
        }
    }

    /// Joins the outputs of all machines up to a cut. `None`: those of the last segment.
    pub(crate) fn gather_outputs(
        &mut self,
        program: &Program,
        attempt: &mut Attempt,
        cut: Option<usize>,
    ) -> Result<(), ReplicaError> {
        if let Some(outputs) = cut.and_then(|cut| self.exchanged.outputs.get(&cut)) {
            attempt.take_parts();
            attempt.outputs = outputs.clone();
            return Ok(());
        }
        let (parts, complete) = attempt.take_parts();
        let said = Said { complete, decided: self.machines.decided, micros: self.machines.micros() };
        let record = encode(&parts, &said);
        // Whether all commit or none follows from these outputs, so that no other message has to.
        let commits = cut.is_some_and(|cut| cut + 2 == program.segments());
        let commits = commits && !program.graph().updates.is_empty();
        let step = self.steps.saturating_sub(1);
        if commits {
            fault::together(&self.options.fault_scope, "agree", step);
        }
        let records = match cut {
            // What has been committed cannot start again.
            None if !program.graph().updates.is_empty() => {
                self.cluster.gather("the outputs of a step", &record)?
            }
            _ => self.cluster.gather_once("the outputs of a step", &record)?,
        };
        let (mut all, mut times) = (Vec::new(), Vec::new());
        // The outputs of a machine that was lost during this step may be missing.
        let mut everyone = records.len() == self.exchanged.runs.len();
        for (rank, record) in &records {
            let wrong = || ClusterError::Link(format!("rank {rank} sent outputs that are none"));
            let (parts, said) = decode(record).ok_or_else(wrong)?;
            if commits && said.decided != self.machines.decided {
                let (step, rank) = (step.saturating_sub(1), self.cluster.name(*rank));
                return Err(ReplicaError::Disagrees { step, rank });
            }
            everyone &= said.complete;
            times.push((*rank, said.micros));
            all.push(parts);
        }
        attempt.outputs.gather(program, all, everyone);
        if commits {
            fault::together(&self.options.fault_scope, "agreed", step);
            self.exchanged.times = Some(times);
        }
        if let Some(cut) = cut {
            self.exchanged.outputs.insert(cut, attempt.outputs.clone());
        }
        Ok(())
    }

    /// Joins the outputs of the last segment, if it has any.
    pub(crate) fn gather_last_outputs(
        &mut self,
        program: &Program,
        attempt: &mut Attempt,
    ) -> Result<(), ReplicaError> {
        let last = program.segments() - 1;
        let has_rows = |lead: Lead| lead != Lead::Global || program.graph().updates.is_empty();
        if program.outputs().iter().any(|output| output.segment == last && has_rows(output.ty.lead)) {
            self.gather_outputs(program, attempt, None)?;
        }
        Ok(())
    }

    /// Agrees with the other machines before a step commits: after this, it commits on all that are left or
    /// on none. The outputs of the last cut have come from all of them at once or from none, and what a step
    /// commits by follows from them. A program without a cut has a message of its own for it.
    ///
    /// Each machine has said how long it has worked, so that their shares can follow their speed.
    pub(crate) fn agree(&mut self, task: &Task, verdict: Verdict) -> Result<(), ReplicaError> {
        let decided = 1 + u8::from(verdict == Verdict::Commit);
        let times = match self.exchanged.times.clone() {
            Some(times) => times,
            None => self.agree_without_outputs(decided)?,
        };
        self.machines.decided = decided;
        self.took(task.index, &self.sizes(task.feed.rows), &times);
        Ok(())
    }

    /// Says what this machine has decided, and how long it has worked. Returns how long each rank has.
    fn agree_without_outputs(&mut self, decided: u8) -> Result<Vec<(usize, u32)>, ReplicaError> {
        let step = self.steps.saturating_sub(1);
        let micros = self.machines.micros();
        fault::together(&self.options.fault_scope, "agree", step);
        let record = encode(&[], &Said { complete: true, decided, micros });
        let records = self.cluster.gather_once("the agreement on a step", &record)?;
        fault::together(&self.options.fault_scope, "agreed", step);
        let mut times = Vec::new();
        for (rank, record) in &records {
            match decode(record) {
                Some((_, said)) if said.decided == decided => times.push((*rank, said.micros)),
                _ => return Err(ReplicaError::Disagrees { step, rank: self.cluster.name(*rank) }),
            }
        }
        Ok(times)
    }
}

/// Returns the blocks of this machine, one after another: for each maximal subtree in `run` the sum of what
/// its replicas have summed. `leaves` are those of the replicas' tree, `all` those of the machines'.
fn own_blocks(
    blocks: &Blocks<'_>,
    run: &Range<usize>,
    all: usize,
    leaves: usize,
    len: usize,
    threads: usize,
) -> Option<Vec<f32>> {
    let mut own = Vec::new();
    for range in tree::blocks(run.clone(), all) {
        let mut sums = vec![0.0; len];
        if range == (0..all) {
            sum(blocks, all, leaves, threads, &mut sums, Vec::new())?;
        } else {
            // A subtree has the shape of a tree of its own.
            let inside = |(first, end): &(usize, usize)| range.start <= *first && *end <= range.end;
            let moved = blocks.iter().filter(|(key, _)| inside(key));
            let moved = moved.map(|((first, end), block)| ((first - range.start, end - range.start), *block));
            sum(&moved.collect(), range.len(), range.len(), threads, &mut sums, Vec::new())?;
        }
        own.extend(sums);
    }
    Some(own)
}

/// Packs outputs: what is said of them, and for each output its index and its words.
fn encode(parts: &[Part], said: &Said) -> Vec<u8> {
    let [a, b, c, d] = said.micros.to_le_bytes();
    let said = [u8::from(said.complete), said.decided, a, b, c, d];
    let heads: Vec<[u8; 8]> =
        parts.iter().flatten().map(|(index, _)| (*index as u64).to_le_bytes()).collect();
    let words = parts.iter().flatten().map(|(_, words)| bytemuck::cast_slice(words.as_slice()));
    let mut all: Vec<&[u8]> = vec![&said];
    all.extend(heads.iter().zip(words).flat_map(|(head, words)| [&head[..], words]));
    pack(&all)
}

/// Unpacks what [`encode`] has packed.
fn decode(record: &[u8]) -> Option<(Part, Said)> {
    let parts = unpack(record)?;
    let (said, outputs) = parts.split_first()?;
    let &[complete, decided, a, b, c, d] = *said else { return None };
    let said = Said { complete: complete == 1, decided, micros: u32::from_le_bytes([a, b, c, d]) };
    let word = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
    let output = |[head, words]: &[&[u8]; 2]| {
        let index = u64::from_le_bytes((*head).try_into().ok()?) as usize;
        Some((index, words.as_chunks::<4>().0.iter().map(word).collect()))
    };
    let outputs: Option<Vec<_>> = outputs.as_chunks::<2>().0.iter().map(output).collect();
    Some((outputs?, said))
}
