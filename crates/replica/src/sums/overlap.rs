//! Overlap of sums and computation: a bucket is added as soon as all replicas have sent their blocks of it,
//! while they go on, and its sums are written where their devices will read them.
//!
//! The result is what would be added at the end from the same blocks. When a replica leaves, all early sums
//! are thrown away.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use unisono_graph::{Program, Run, tree};

use crate::sums::places::{Filled, Lent};
use crate::sums::tree_sum::{Blocks, sum};
use crate::sums::values::{HostMemory, Values};

/// Blocks of buckets, in the order in which a replica sent them.
pub(crate) type Sent = Vec<(usize, Arc<Values>)>;

#[derive(Debug, Default)]
pub(crate) struct Overlap {
    program: Option<Arc<Program>>,
    /// The shards of each replica that runs the segment.
    runs: BTreeMap<usize, Range<usize>>,
    /// The leaves of the tree over shards.
    leaves: usize,
    /// The number of shards of the batch, or of this machine's part of it.
    shards: usize,
    /// Whether other machines have other shards, so that nothing is added up here.
    is_shared: bool,
    sent: BTreeMap<usize, Sent>,
    /// The sums of each bucket that is added, and whether all are finite.
    sums: BTreeMap<usize, (Vec<f32>, bool)>,
    /// The replicas that have answered for the segment.
    finished: BTreeSet<usize>,
    /// The memory for sums that replicas have lent.
    pub lent: Lent,
    /// The time that each replica's device and driver took for what it has sent.
    spent: BTreeMap<usize, Duration>,
}

impl Overlap {
    /// Begins a step, or a new attempt at it.
    pub fn start(&mut self, program: &Arc<Program>, shards: usize, is_shared: bool) {
        *self = Self { program: Some(Arc::clone(program)), shards, is_shared, ..Self::default() };
    }

    /// Notes that a replica runs these shards.
    pub fn runs(&mut self, replica: usize, shards: Range<usize>, leaves: usize) {
        self.leaves = leaves;
        self.runs.insert(replica, shards);
        self.finished.remove(&replica);
    }

    /// Takes the blocks of some buckets from a replica that goes on, and adds those buckets that all replicas
    /// have sent now, unless other machines have other shards.
    pub fn add(&mut self, replica: usize, blocks: Sent, memory: &mut HostMemory) {
        let buckets: Vec<usize> = blocks.iter().map(|(bucket, _)| *bucket).collect();
        self.sent.entry(replica).or_default().extend(blocks);
        let Some(program) = self.program.clone().filter(|_| self.is_covered() && !self.is_shared) else {
            return;
        };
        let mut lent = std::mem::take(&mut self.lent);
        for bucket in buckets {
            let len = program.buckets()[bucket].len;
            let Some((blocks, leaves)) = self.complete(bucket, len) else { continue };
            let mut sums = memory.take(len);
            let finite = lent.fill(bucket, true, |parts| {
                sum(&blocks, self.shards, leaves, memory.threads, &mut sums, parts)
            });
            self.sums.extend(finite.map(|finite| (bucket, (sums, finite))));
        }
        self.lent = lent;
    }

    /// Takes the last blocks of a replica that has answered. The buckets that all replicas have sent now are
    /// added if others go on; if not, nothing is left to overlap with.
    pub fn finish(&mut self, replica: usize, blocks: Sent, memory: &mut HostMemory) {
        self.finished.insert(replica);
        if !self.is_finished() {
            self.add(replica, blocks, memory);
        }
    }

    /// Returns whether it is known who runs which shard: not where replicas run a few at once.
    fn is_covered(&self) -> bool {
        self.runs.values().map(Range::len).sum::<usize>() == self.shards
    }

    /// Returns whether all replicas have answered for the segment.
    pub fn is_finished(&self) -> bool {
        self.runs.keys().all(|replica| self.finished.contains(replica))
    }

    /// Returns the blocks of a bucket, if all replicas of this machine have sent them, and the leaves of the
    /// tree.
    pub fn complete(&self, bucket: usize, len: usize) -> Option<(Blocks<'_>, usize)> {
        let mut blocks: Blocks<'_> = BTreeMap::new();
        if self.program.is_none() || !self.is_covered() {
            return None;
        }
        for (replica, shards) in self.runs.iter().filter(|(_, shards)| !shards.is_empty()) {
            let (_, values) = self.sent.get(replica)?.iter().find(|(of, _)| *of == bucket)?;
            let ranges = tree::blocks(shards.clone(), self.leaves).into_iter();
            blocks.extend(ranges.map(|r| (r.start, r.end)).zip(values.chunks_exact(len.max(1))));
        }
        Some((blocks, self.leaves))
    }

    /// Returns what a replica has sent.
    pub fn sent(&self, replica: usize) -> Sent {
        self.sent.get(&replica).cloned().unwrap_or_default()
    }

    /// Forgets what a replica has sent, and gives back what it has lent for other work than this. Returns
    /// which sums lie where this work looks for them.
    pub fn begin(&mut self, replica: usize, run: &Arc<Run>, segment: usize) -> Filled {
        self.sent.remove(&replica);
        self.lent.give_back(replica, run, segment)
    }

    /// Takes the sums of a bucket, if they are there already, and whether all are finite.
    pub fn take(&mut self, bucket: usize) -> Option<(Vec<f32>, bool)> {
        self.sums.remove(&bucket)
    }

    /// Adds to the time that a replica's device and driver took for what it has sent.
    pub fn spent(&mut self, replica: usize, time: Duration) {
        *self.spent.entry(replica).or_default() += time;
    }

    /// Takes the time that a replica's device and driver took for what it has sent.
    pub fn take_spent(&mut self, replica: usize) -> Duration {
        self.spent.remove(&replica).unwrap_or_default()
    }

    /// Forgets a segment that is done.
    pub fn next(&mut self) {
        (self.runs, self.sent, self.sums, self.finished) = Default::default();
    }

    /// Forgets all early sums after the loss of a replica, since other replicas will run its shards.
    pub fn lost(&mut self, replica: usize) {
        self.sent.remove(&replica);
        self.sums.clear();
        self.stop();
    }

    /// Adds nothing more until a step begins, and gives back what replicas have lent.
    pub fn stop(&mut self) {
        self.lent.give_back_all();
        self.program = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono_graph::{Layout, StateKind, Tape, Type};

    fn own(values: Vec<f32>) -> Arc<Values> {
        Arc::new(Values::Own(values))
    }

    /// Two buckets of eight.
    fn program() -> Arc<Program> {
        let tape = Tape::new();
        let x = tape.input("x", Type::sample(&[8]));
        for name in ["a", "b"] {
            let state = tape.state(name, &[8], StateKind::Parameter);
            tape.update(&state, &(&x + &state).tanh().sum_shards());
        }
        Arc::new(
            Program::compile_with(&tape.finish().unwrap(), Layout { bucket_bytes: 32, ..Layout::default() })
                .unwrap(),
        )
    }

    #[test]
    fn a_bucket_is_added_when_all_have_sent_it_and_forgotten_when_one_leaves() {
        let program = program();
        assert_eq!(program.buckets().len(), 2);
        let begun = || {
            let mut early = Overlap::default();
            early.start(&program, 3, false);
            early.runs(0, 0..1, 3);
            early.runs(1, 1..3, 3);
            early.add(0, vec![(0, own(vec![0.1; 8]))], &mut HostMemory::default());
            early
        };
        let mut early = begun();
        assert_eq!(early.take(0), None);
        // Shards 1 and 2 are no subtree: two blocks.
        early.add(1, vec![(0, own([[0.2; 8], [0.3; 8]].concat()))], &mut HostMemory::default());
        assert_eq!(early.take(0), Some((vec![tree::sum(&[0.1, 0.2, 0.3]); 8], true)));
        assert_eq!((early.take(1), early.sent(0).len()), (None, 1));
        let mut early = begun();
        early.lost(0);
        early.add(1, vec![(0, own([[0.2; 8], [0.3; 8]].concat()))], &mut HostMemory::default());
        assert_eq!((early.take(0), early.sent(0).len(), early.sent(1).len()), (None, 0, 1));
    }

    #[test]
    fn blocks_of_one_that_has_answered_are_added_while_another_goes_on() {
        let mut early = Overlap::default();
        early.start(&program(), 2, false);
        (0..2).for_each(|replica| early.runs(replica, replica..replica + 1, 2));
        let block = |value| own(vec![value; 8]);
        early.finish(0, vec![(0, block(1.0)), (1, block(2.0))], &mut HostMemory::default());
        assert_eq!((early.take(0), early.take(1)), (None, None));
        early.add(1, vec![(1, block(3.0))], &mut HostMemory::default());
        assert_eq!(early.take(1), Some((vec![5.0; 8], true)));
        // When all have answered, what is left is added at the end.
        early.finish(1, vec![(0, block(4.0))], &mut HostMemory::default());
        assert_eq!((early.take(0), early.is_finished()), (None, true));
    }

    #[test]
    fn blocks_of_another_program_are_not_added() {
        let mut early = Overlap::default();
        early.start(&program(), 1, false);
        early.next();
        early.add(0, vec![(7, own(vec![0.1; 8]))], &mut HostMemory::default());
        assert_eq!(early.take(7), None);
    }

    #[test]
    fn pieces_are_not_added_before_the_end() {
        let mut early = Overlap::default();
        early.start(&program(), 3, false);
        early.runs(0, 0..1, 3);
        early.add(0, vec![(0, own(vec![0.1; 8]))], &mut HostMemory::default());
        assert_eq!((early.take(0), early.sent(0).len()), (None, 1));
    }
}
