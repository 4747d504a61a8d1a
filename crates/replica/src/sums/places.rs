//! Memory that replicas lend while they compute: their devices will read the sums over all shards there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use unisono_gpu::{MappedUpload, UploadPart};
use unisono_graph::Run;

/// The memory of a segment of a plan for the sums that it waits for.
#[derive(Debug)]
pub(crate) struct Places {
    /// What the plan is for. Its program is the one that runs.
    pub run: Arc<Run>,
    pub segment: usize,
    /// The memory of each bucket's sums.
    pub empty: BTreeMap<usize, MappedUpload>,
}

/// The buckets whose sums lie where a device reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filled {
    pub all: BTreeSet<usize>,
    /// Those whose sums lay there before all replicas had answered.
    pub early: BTreeSet<usize>,
}

/// What all replicas have lent.
#[derive(Debug, Default)]
pub(crate) struct Lent(BTreeMap<usize, (Places, Filled)>);

impl Lent {
    /// Takes what a replica lends, in place of what it lent before.
    pub fn take(&mut self, replica: usize, places: Places) {
        self.0.insert(replica, (places, Filled::default()));
    }

    /// Sums a bucket into the memory of all replicas for it. Returns what `sum` does, which is none if there
    /// is no sum.
    pub fn fill<T>(
        &mut self,
        bucket: usize,
        early: bool,
        sum: impl FnOnce(Vec<UploadPart<'_>>) -> Option<T>,
    ) -> Option<T> {
        let lent = self.0.values_mut().filter_map(|(places, filled)| {
            let memory = places.empty.remove(&bucket)?;
            Some((memory, filled))
        });
        let mut lent: Vec<(MappedUpload, &mut Filled)> = lent.collect();
        let sums = sum(lent.iter_mut().map(|(memory, _)| memory.part()).collect())?;
        for (_, filled) in lent {
            filled.all.insert(bucket);
            if early {
                filled.early.insert(bucket);
            }
        }
        Some(sums)
    }

    /// Gives back what a replica has lent. Returns what lies in it, if it is for this segment of this run.
    pub fn give_back(&mut self, replica: usize, run: &Arc<Run>, segment: usize) -> Filled {
        let lent = self.0.remove(&replica);
        let lent = lent.filter(|(lent, _)| lent.run == *run && lent.segment == segment);
        lent.map(|(_, filled)| filled).unwrap_or_default()
    }

    /// Gives everything back.
    pub fn give_back_all(&mut self) {
        self.0.clear();
    }
}
