//! Sums over all shards of the run: each rank owns a slice of a bucket, receives the blocks of that slice
//! from all, adds them in the order of the tree, and sends the sums to all.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use unisono_graph::tree;

use super::Session;
use crate::cuts::slice;
use crate::error::ClusterError;
use crate::message::Kind;

/// The number of elements that are added at once: they fit the nearest cache together with the tree.
const CHUNK: usize = 4096;

/// A bucket to be added up over the ranks.
#[derive(Clone, Debug)]
pub struct Sum {
    /// The bucket's number, the same on all ranks, and different for each exchange between two gathers.
    pub bucket: usize,
    /// The number of its elements.
    pub len: usize,
    /// The leaves of the tree over shards. Those from `shards` on are zeros.
    pub leaves: usize,
    /// The number of shards.
    pub shards: usize,
    /// The shards of each rank that is there, in the order of the ranks. Together they are all shards.
    pub runs: Arc<Vec<Range<usize>>>,
}

impl Sum {
    /// Returns the number of blocks of the rank at a place: its maximal subtrees.
    fn blocks(&self, place: usize) -> usize {
        tree::blocks(self.runs[place].clone(), self.leaves).len()
    }
}

/// An exchange that this rank has begun.
#[derive(Debug)]
struct OpenExchange {
    sum: Sum,
    /// This rank's blocks of its own slice.
    own: Vec<u8>,
    /// The number of other ranks that send blocks.
    comes: usize,
    /// The sums so far.
    sums: Vec<f32>,
    /// The places of the ranks whose slices are in `sums`.
    has: Vec<bool>,
}

/// The messages of one bucket by the place of their rank.
type Parts = BTreeMap<usize, Vec<u8>>;

/// The exchanges between two gathers.
#[derive(Debug, Default)]
pub(crate) struct Exchanges {
    open: BTreeMap<usize, OpenExchange>,
    /// By the number of gathers before and the bucket: it may come before the exchange is begun here.
    blocks: BTreeMap<(u64, usize), Parts>,
    sums: BTreeMap<(u64, usize), Parts>,
}

impl Exchanges {
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets what belongs to steps before this gather, also what an error has left unfinished.
    pub fn forget_before(&mut self, sequence: u64) {
        self.open.clear();
        self.blocks.retain(|(at, _), _| *at >= sequence);
        self.sums.retain(|(at, _), _| *at >= sequence);
    }
}

impl Session {
    /// Begins to add up a bucket. `blocks` has this rank's blocks one after another, each of the bucket's
    /// length.
    pub fn begin_exchange(&mut self, sum: Sum, blocks: &[f32]) -> Result<(), ClusterError> {
        self.poll()?;
        // Whoever does not know of a change yet hears of it when it waits for the sums.
        if self.changed {
            return Ok(());
        }
        let ranks = self.present.clone();
        let place = ranks.iter().position(|&rank| rank == self.me).unwrap_or_default();
        let wrong = || ClusterError::Link(format!("bucket {}: blocks of another size", sum.bucket));
        if sum.runs.len() != ranks.len() {
            return Err(wrong());
        }
        let count = sum.blocks(place);
        if blocks.len() != count * sum.len {
            return Err(wrong());
        }
        let part = |place: usize| {
            let slice = slice(sum.len, place, ranks.len());
            let mut part = Vec::with_capacity(4 * slice.len() * count);
            for block in blocks.chunks_exact(sum.len.max(1)) {
                part.extend_from_slice(bytemuck::cast_slice(&block[slice.clone()]));
            }
            part
        };
        for (to, &rank) in ranks.iter().enumerate() {
            let part = if to == place { Vec::new() } else { part(to) };
            if !part.is_empty() {
                self.send(rank, Kind::Blocks, sum.bucket, &part);
            }
        }
        let has = (0..ranks.len()).map(|place| slice(sum.len, place, ranks.len()).is_empty()).collect();
        let comes = (0..ranks.len()).filter(|&from| from != place && sum.blocks(from) > 0).count();
        let open = OpenExchange { own: part(place), comes, sums: vec![0.0; sum.len], has, sum };
        let bucket = open.sum.bucket;
        self.exchanges.open.insert(bucket, open);
        self.advance_exchange(bucket)
    }

    /// Waits for the sums of a bucket.
    ///
    /// # Errors
    /// [`ClusterError::Changed`], after which those that are left begin again; others end the run.
    pub fn finish_exchange(&mut self, bucket: usize) -> Result<Vec<f32>, ClusterError> {
        self.take_change()?;
        if self.last_summed.replace(self.sequence) != Some(self.sequence) {
            self.in_a_row += 2;
        }
        let missing = |session: &Self| session.missing_in(bucket);
        let done = |session: &mut Self| {
            let done = session.exchanges.open.get(&bucket).is_none_or(|open| open.has.iter().all(|has| *has));
            if done {
                return Some(Ok(()));
            }
            session.concluded().or_else(|| session.crossed(&session.missing_in(bucket))).map(Err)
        };
        match self.wait(done, missing)? {
            Some(met) => met?,
            None => {
                self.go_through_change()?;
                self.changed = false;
                return Err(ClusterError::Changed);
            }
        }
        let none = || ClusterError::Link(format!("bucket {bucket}: its exchange was not begun"));
        self.exchanges.open.remove(&bucket).map(|open| open.sums).ok_or_else(none)
    }

    /// Returns the ranks for whose messages a bucket waits.
    fn missing_in(&self, bucket: usize) -> Vec<usize> {
        let Some(open) = self.exchanges.open.get(&bucket) else { return Vec::new() };
        let place = self.place();
        let key = (self.sequence, bucket);
        let missing = |at: &usize| match at {
            at if *at == place => false,
            at if !open.has[place] => {
                let came = self.exchanges.blocks.get(&key).is_some_and(|parts| parts.contains_key(at));
                !came && open.sum.blocks(*at) > 0
            }
            at => !open.has[*at],
        };
        (0..self.present.len()).filter(missing).map(|at| self.present[at]).collect()
    }

    /// Returns this rank's place among those that are there.
    pub fn place(&self) -> usize {
        self.present.iter().position(|&rank| rank == self.me).unwrap_or_default()
    }

    pub(super) fn take_blocks(
        &mut self,
        from: usize,
        sequence: u64,
        bucket: usize,
        body: &[u8],
    ) -> Result<(), ClusterError> {
        let Some(place) = self.present.iter().position(|&rank| rank == from) else { return Ok(()) };
        self.exchanges.blocks.entry((sequence, bucket)).or_default().insert(place, body.to_vec());
        self.advance_exchange(bucket)
    }

    pub(super) fn take_sums(
        &mut self,
        from: usize,
        sequence: u64,
        bucket: usize,
        body: &[u8],
    ) -> Result<(), ClusterError> {
        let Some(place) = self.present.iter().position(|&rank| rank == from) else { return Ok(()) };
        self.exchanges.sums.entry((sequence, bucket)).or_default().insert(place, body.to_vec());
        self.advance_exchange(bucket)
    }

    /// Adds up this rank's slice of a bucket if all blocks of it are here, and takes the sums that have come.
    fn advance_exchange(&mut self, bucket: usize) -> Result<(), ClusterError> {
        let (place, ranks, key) = (self.place(), self.present.len(), (self.sequence, bucket));
        let Some(mut open) = self.exchanges.open.remove(&bucket) else { return Ok(()) };
        for (from, part) in self.exchanges.sums.remove(&key).unwrap_or_default() {
            let slice = &mut open.sums[slice(open.sum.len, from, ranks)];
            if part.len() != 4 * slice.len() {
                return Err(ClusterError::Link(format!("bucket {bucket}: sums of another size")));
            }
            bytemuck::cast_slice_mut::<f32, u8>(slice).copy_from_slice(&part);
            open.has[from] = true;
        }
        // Ranks without blocks send none.
        let came = self.exchanges.blocks.get(&key).map_or(0, BTreeMap::len);
        if !open.has[place] && came >= open.comes {
            let mut parts = self.exchanges.blocks.remove(&key).unwrap_or_default();
            parts.insert(place, std::mem::take(&mut open.own));
            let own = slice(open.sum.len, place, ranks);
            let added = add(&open.sum, &parts, &mut open.sums[own.clone()]);
            added.ok_or_else(|| ClusterError::Link(format!("bucket {bucket}: blocks of another size")))?;
            open.has[place] = true;
            self.send_all(Kind::Sums, bucket, bytemuck::cast_slice(&open.sums[own]));
        }
        self.exchanges.open.insert(bucket, open);
        Ok(())
    }
}

/// Adds up a slice of a bucket in the order of the tree. `parts` has each rank's blocks of the slice. Returns
/// `None` if they are not as many as they should be.
fn add(sum: &Sum, parts: &Parts, into: &mut [f32]) -> Option<()> {
    let len = into.len();
    let mut blocks: BTreeMap<(usize, usize), Vec<f32>> = BTreeMap::new();
    for (place, part) in parts {
        let ranges = tree::blocks(sum.runs.get(*place)?.clone(), sum.leaves);
        if part.len() != 4 * len * ranges.len() {
            return None;
        }
        let block = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
        let ranges = ranges.into_iter().map(|range| (range.start, range.end));
        blocks.extend(ranges.zip(part.chunks_exact((4 * len).max(1)).map(block)));
    }
    let zeros = [0.0; CHUNK];
    for (i, chunk) in into.chunks_mut(CHUNK).enumerate() {
        let elements = i * CHUNK..i * CHUNK + chunk.len();
        let block = |range: &Range<usize>| match blocks.get(&(range.start, range.end)) {
            Some(block) => block.get(elements.clone()),
            None => (range.start >= sum.shards).then_some(&zeros[..elements.len()]),
        };
        tree::sum_blocks(sum.leaves, &block, chunk)?;
    }
    Some(())
}
