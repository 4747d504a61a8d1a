//! Overlap of sums and computation: a bucket is added as soon as all replicas have sent their blocks of it,
//! while they go on.
//!
//! The result is what would be added at the end from the same blocks. When a replica leaves, all early sums
//! are thrown away.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use unisono_graph::{Program, tree};

use crate::sums::tree_sum::{Blocks, sum};
use crate::sums::values::{HostMemory, Values};

/// Blocks of buckets, in the order in which a replica sent them.
type Sent = Vec<(usize, Values)>;

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
    }

    /// Takes the blocks of some buckets from a replica, and adds those buckets that all replicas have sent
    /// now, unless other machines have other shards.
    pub fn add(&mut self, replica: usize, blocks: Sent, memory: &mut HostMemory) {
        let buckets: Vec<usize> = blocks.iter().map(|(bucket, _)| *bucket).collect();
        self.sent.entry(replica).or_default().extend(blocks);
        let Some(program) = self.program.clone() else { return };
        // Where replicas run a few shards at once, it is not yet known who will run which.
        if self.is_shared || self.runs.values().map(Range::len).sum::<usize>() != self.shards {
            return;
        }
        for bucket in buckets {
            let len = program.buckets()[bucket].len;
            let mut blocks: Blocks<'_> = BTreeMap::new();
            for (replica, shards) in &self.runs {
                let sent = self.sent.get(replica).and_then(|sent| sent.iter().find(|(of, _)| *of == bucket));
                if let Some((_, values)) = sent {
                    let ranges = tree::blocks(shards.clone(), self.leaves).into_iter();
                    blocks.extend(ranges.map(|r| (r.start, r.end)).zip(values.chunks_exact(len.max(1))));
                }
            }
            let mut sums = memory.take(len);
            if let Some(finite) = sum(&blocks, self.shards, self.leaves, memory.threads, &mut sums) {
                self.sums.insert(bucket, (sums, finite));
            }
        }
    }

    /// Returns the blocks of a bucket, if all replicas of this machine have sent them, and the leaves of the
    /// tree.
    pub fn complete(&self, bucket: usize, len: usize) -> Option<(Blocks<'_>, usize)> {
        let mut blocks: Blocks<'_> = BTreeMap::new();
        if self.program.is_none() || self.runs.values().map(Range::len).sum::<usize>() != self.shards {
            return None;
        }
        for (replica, shards) in self.runs.iter().filter(|(_, shards)| !shards.is_empty()) {
            let (_, values) = self.sent.get(replica)?.iter().find(|(of, _)| *of == bucket)?;
            let ranges = tree::blocks(shards.clone(), self.leaves).into_iter();
            blocks.extend(ranges.map(|r| (r.start, r.end)).zip(values.chunks_exact(len.max(1))));
        }
        Some((blocks, self.leaves))
    }

    /// Takes what a replica has sent.
    pub fn sent(&mut self, replica: usize) -> Sent {
        self.sent.remove(&replica).unwrap_or_default()
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
        (self.runs, self.sent, self.sums) = Default::default();
    }

    /// Forgets all early sums after the loss of a replica, since other replicas will run its shards.
    pub fn lost(&mut self, replica: usize) {
        self.sent.remove(&replica);
        self.sums.clear();
        self.program = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono_graph::{Layout, StateKind, Tape, Type};

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
            early.add(0, vec![(0, Values::Own(vec![0.1; 8]))], &mut HostMemory::default());
            early
        };
        let mut early = begun();
        assert_eq!(early.take(0), None);
        // Shards 1 and 2 are no subtree: two blocks.
        early.add(1, vec![(0, Values::Own([[0.2; 8], [0.3; 8]].concat()))], &mut HostMemory::default());
        assert_eq!(early.take(0), Some((vec![tree::sum(&[0.1, 0.2, 0.3]); 8], true)));
        assert_eq!((early.take(1), early.sent(0).len()), (None, 1));
        let mut early = begun();
        early.lost(0);
        early.add(1, vec![(0, Values::Own([[0.2; 8], [0.3; 8]].concat()))], &mut HostMemory::default());
        assert_eq!((early.take(0), early.sent(0).len(), early.sent(1).len()), (None, 0, 1));
    }

    #[test]
    fn pieces_are_not_added_before_the_end() {
        let mut early = Overlap::default();
        early.start(&program(), 3, false);
        early.runs(0, 0..1, 3);
        early.add(0, vec![(0, Values::Own(vec![0.1; 8]))], &mut HostMemory::default());
        assert_eq!((early.take(0), early.sent(0).len()), (None, 1));
    }
}
