//! The content of the data on several machines: each hashes some blocks of its own files, and all compare
//! and join what they have.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use unisono_cluster::{Cluster, ClusterError, pack, unpack};
use unisono_data::{Content, DataError, Hashing, Loader, Source};

use crate::run::content::DataContent;
use crate::{Error, Trainer};

/// How many blocks all ranks hash, spread over the data, so that other files are noticed on any rank.
const COMMON: u64 = 16;
/// How long a wait for the hashes lasts before it is seen whether the run was asked to stop.
const WAIT: Duration = Duration::from_millis(200);

/// The hash of a block.
type Hash = [u8; 32];
/// The hashes of the blocks that a rank has hashed, or `None` if it was asked to stop.
pub(super) type Blocks = Result<Option<Vec<Option<Hash>>>, DataError>;

/// Returns whether the rank at a place among so many hashes a block. Each block is hashed by two ranks, so
/// that files that differ are noticed, and some blocks by all.
pub(super) fn is_hashed_by(place: usize, ranks: usize, block: u64, blocks: u64) -> bool {
    let (place, ranks) = (place as u64, ranks.max(1) as u64);
    let is_common = block.is_multiple_of(blocks.div_ceil(COMMON).max(1));
    is_common || block % ranks == place || (block + 1) % ranks == place
}

impl Trainer {
    /// Starts to hash the data, or the blocks of them that are this rank's.
    pub(super) fn start_hashing(&self, source: Arc<dyn Source>) -> Result<Hashing, DataError> {
        let cluster = self.cluster();
        if cluster.is_alone() {
            return Hashing::start(source);
        }
        let (place, ranks) = (cluster.place(), cluster.present().len());
        Hashing::start_some(source, move |block, blocks| is_hashed_by(place, ranks, block, blocks))
    }

    /// Joins the hashes of all ranks, and takes the content of the data from them.
    ///
    /// # Errors
    /// Two ranks have other samples in a block; the error is the same on all ranks. The run was on other
    /// data. The data of a resumed run cannot be read.
    pub(super) fn content_together(&mut self, train: &Loader) -> Result<(), Error> {
        let cluster = self.cluster().clone();
        // All ranks are in the same state of this: they have called the same functions.
        if !self.data_hash.pending {
            return Ok(());
        }
        let (mut own, mut blocks) = (self.own_blocks(), Vec::new());
        // Each further round follows another loss, so that there are fewer than ranks.
        for _ in 0..cluster.size() {
            let records = cluster.gather("the hashes of the data", &record_of(&own))?;
            let mut all = Vec::new();
            for (rank, record) in &records {
                match read(record) {
                    Some(Ok(blocks)) => all.push((*rank, blocks)),
                    Some(Err(why)) if why.is_empty() => return self.stopped_before(),
                    Some(Err(why)) => return self.unreadable(&cluster, *rank, why),
                    None => {
                        let what = format!("rank {rank} sent hashes that are none");
                        return Err(ClusterError::Link(what).into());
                    }
                }
            }
            let found = joined(&cluster, &all, "the data's")?;
            blocks.resize(found.len().max(blocks.len()), None);
            blocks.iter_mut().zip(found).for_each(|(block, found)| *block = block.or(found));
            let missing = missing(&blocks);
            if missing.is_empty() {
                break;
            }
            own = self.hash_missing(train.shared_source(), missing);
        }
        let source = train.source();
        let content = Content::of_blocks(source, blocks);
        let missing = || ClusterError::Link("the hashes of the ranks are not those of all data".into());
        let content = content.ok_or_else(missing)?;
        self.data_hash.pending = false;
        self.take_content(DataContent::Hashed((&content).into()))
    }

    /// Hashes some of the blocks that are missing because both ranks that were to hash them are lost. The
    /// ranks that are left share them out anew.
    fn hash_missing(&mut self, source: Arc<dyn Source>, missing: BTreeSet<u64>) -> Blocks {
        let cluster = self.cluster();
        let (place, ranks) = (cluster.place(), cluster.present().len());
        let which =
            move |block, blocks| missing.contains(&block) && is_hashed_by(place, ranks, block, blocks);
        self.data_hash.job = Some(Hashing::start_some(source, which)?);
        self.own_blocks()
    }

    /// Waits for this rank's part, until the run is asked to stop: then it is `None`.
    fn own_blocks(&mut self) -> Blocks {
        let Some(job) = &self.data_hash.job else { return Ok(None) };
        loop {
            match job.wait_blocks(WAIT)? {
                None if self.monitor.asked.is_asked() => return Ok(None),
                None => {}
                found => return Ok(found),
            }
        }
    }

    /// A rank was asked to stop before its part was hashed, so all are. Another fit hashes the data again.
    fn stopped_before(&mut self) -> Result<(), Error> {
        (self.data_hash.job, self.data_hash.pending, self.data_hash.gave_up) = (None, false, true);
        self.monitor.stop.ask();
        Ok(())
    }

    /// Goes on, or not, where a rank cannot read its part of the data.
    fn unreadable(&mut self, cluster: &Cluster, rank: usize, why: String) -> Result<(), Error> {
        self.data_hash.pending = false;
        if self.data_hash.expected {
            return Err(ClusterError::Other { rank: cluster.name(rank), why, is_refusal: false }.into());
        }
        let what = "the content of the data is not covered by the run's identity";
        self.monitor.note(&format!("warning: {what}: {}: {why}", cluster.name(rank)));
        self.take_content(DataContent::NotCovered)
    }
}

/// Returns the numbers of the blocks that no rank has hashed.
fn missing(blocks: &[Option<Hash>]) -> BTreeSet<u64> {
    (0..).zip(blocks).filter(|(_, hash)| hash.is_none()).map(|(at, _)| at).collect()
}

/// Joins the hashes that ranks have of the data called `whose_data`. A block that two ranks have must be the
/// same.
pub(super) fn joined(
    cluster: &Cluster,
    all: &[(usize, Vec<Option<Hash>>)],
    whose_data: &str,
) -> Result<Vec<Option<Hash>>, ClusterError> {
    let count = all.iter().map(|(_, blocks)| blocks.len()).max().unwrap_or_default();
    let mut joined: Vec<Option<Hash>> = vec![None; count];
    let mut whose = vec![0; count];
    for (rank, blocks) in all {
        for (at, hash) in blocks.iter().enumerate().filter_map(|(at, hash)| Some((at, (*hash)?))) {
            match joined[at] {
                None => (joined[at], whose[at]) = (Some(hash), *rank),
                Some(other) if other == hash => {}
                Some(other) => {
                    let [hash, other] = [hash, other].map(|hash| crate::identity::part::hex(&hash[..8]));
                    let what = format!("the hash of {whose_data} block {at} of {count}");
                    let text = format!("{}: {what} {hash}, rank {}: {other}", cluster.name(*rank), whose[at]);
                    return Err(ClusterError::Differs(text));
                }
            }
        }
    }
    Ok(joined)
}

/// Packs what a rank has: its hashes, or why it has none, which is empty for a rank that was asked to stop.
pub(super) fn record_of(own: &Blocks) -> Vec<u8> {
    match own {
        Ok(Some(blocks)) => {
            let parts = blocks.iter().map(|hash| hash.as_ref().map_or(&[][..], |hash| &hash[..]));
            pack(&std::iter::once(&[1][..]).chain(parts).collect::<Vec<_>>())
        }
        Ok(None) => pack(&[&[0], &[]]),
        Err(why) => pack(&[&[0], why.to_string().as_bytes()]),
    }
}

/// Unpacks what [`record_of`] has packed.
pub(super) fn read(record: &[u8]) -> Option<Result<Vec<Option<Hash>>, String>> {
    let parts = unpack(record)?;
    let (kind, rest) = parts.split_first()?;
    if *kind != [1] {
        return Some(Err(String::from_utf8_lossy(rest.first()?).into_owned()));
    }
    let hash = |part: &&[u8]| match part.len() {
        0 => Some(None),
        _ => Some(Some(Hash::try_from(*part).ok()?)),
    };
    rest.iter().map(hash).collect::<Option<Vec<_>>>().map(Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_hashed_by_two_ranks_and_a_rank_hashes_its_part() {
        for ranks in 1..9 {
            let by = |place, block| is_hashed_by(place, ranks, block, 1000);
            let common = (0..1000).filter(|block| (0..ranks).all(|place| by(place, *block))).count();
            for block in 0..1000 {
                let hashed = (0..ranks).filter(|&place| by(place, block)).count();
                assert!(hashed >= 2.min(ranks), "block {block} of {ranks} ranks");
            }
            for place in 0..ranks {
                let own = (0..1000).filter(|&block| by(place, block)).count();
                assert!(own <= 2 * 1000 / ranks + common + 2, "{own} of {ranks} ranks");
            }
        }
    }
}
