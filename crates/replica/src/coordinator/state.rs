//! The state that all replicas hold: it is written to all, read from one, and compared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use unisono_cluster::{ClusterError, pack, unpack};
use unisono_graph::{StateDecl, tree};

use crate::coordinator::replicas::Replicas;
use crate::error::ReplicaError;
use crate::worker::digest::Digest;
use crate::worker::message::{Reply, Request};

impl Replicas {
    /// Sets tensor `index` of the state on all replicas, from little-endian f32, which become canonical
    /// ([`tree::canonical_bytes`]). A replica on which this fails leaves.
    ///
    /// # Errors
    /// [`ReplicaError::NoState`], [`ReplicaError::StateBytes`], [`ReplicaError::NoneLeft`];
    /// [`ReplicaError::OwnersLost`] if no replica that keeps the tensor is left;
    /// [`ReplicaError::NoHostMemory`], and nothing has changed.
    pub fn write_state(&mut self, index: usize, bytes: &[u8]) -> Result<(), ReplicaError> {
        self.none_in_flight()?;
        let decl = self.state(index)?;
        let wanted = 4 * decl.ty.count().max(1);
        if bytes.len() != wanted {
            let (name, ty, given) = (decl.name.clone(), decl.ty.to_string(), bytes.len());
            return Err(ReplicaError::StateBytes { name, ty, given, wanted });
        }
        self.check_owners(index)?;
        let bytes = tree::canonical_bytes(bytes).map_err(|_| self.no_host_memory(index, wanted))?;
        let bytes = Arc::new(bytes);
        self.ask_all(&mut |_| Request::WriteState { index, bytes: Arc::clone(&bytes) })?;
        Ok(())
    }

    /// Reads tensor `index` of the state, as little-endian bytes, from the first replica that can.
    ///
    /// # Errors
    /// [`ReplicaError::NoState`], [`ReplicaError::NoneLeft`], [`ReplicaError::NoHostMemory`].
    pub fn read_state(&mut self, index: usize) -> Result<Vec<u8>, ReplicaError> {
        Ok(self.read_states(&[index], Vec::new())?.pop().unwrap_or_default())
    }

    /// Reads some tensors of the state, as little-endian bytes. Each replica reads a part of them, since all
    /// hold the same.
    ///
    /// `into` is memory to be used again, one vector for each of the first tensors; it may be empty.
    ///
    /// # Errors
    /// Those of [`Replicas::read_state`].
    pub fn read_states(
        &mut self,
        indices: &[usize],
        mut into: Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>, ReplicaError> {
        self.none_in_flight()?;
        let owned: BTreeSet<usize> =
            indices.iter().copied().filter(|&index| self.has_owners(index)).collect();
        if !owned.is_empty() {
            return self.read_with_owned(indices, &owned);
        }
        let sizes = indices.iter().map(|&index| Ok(self.state(index)?.ty.count().max(1)));
        let sizes: Vec<usize> = sizes.collect::<Result<_, ReplicaError>>()?;
        into.resize_with(indices.len(), Vec::new);
        let mut found: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        while found.len() < indices.len() {
            let missing: Vec<usize> = (0..indices.len()).filter(|at| !found.contains_key(at)).collect();
            // Here and not on the replicas: what the host lacks is no reason for a replica to leave.
            for &at in &missing {
                into[at].clear();
                let reserved = into[at].try_reserve_exact(4 * sizes[at]);
                reserved.map_err(|_| self.no_host_memory(indices[at], 4 * sizes[at]))?;
            }
            let shares =
                shares(missing, &sizes, &self.scheduler.present()).ok_or_else(|| self.none_left())?;
            let workers = shares.keys().copied().collect();
            let replies = self.ask(workers, self.options.deadline, &mut |worker| Request::ReadStates {
                indices: shares[&worker].iter().map(|&at| indices[at]).collect(),
                into: shares[&worker].iter().map(|&at| std::mem::take(&mut into[at])).collect(),
            });
            // The tensors of a replica that left are read from another one in the next turn.
            for (worker, reply) in replies {
                if let Reply::States(tensors) = reply {
                    found.extend(shares[&worker].iter().copied().zip(tensors));
                }
            }
        }
        Ok(found.into_values().collect())
    }

    /// Returns the error that the host has no memory for a copy of a tensor.
    fn no_host_memory(&self, index: usize, bytes: usize) -> ReplicaError {
        let name = self.state(index).map(|decl| decl.name.clone()).unwrap_or_default();
        ReplicaError::NoHostMemory { what: format!("the state {name}"), bytes }
    }

    /// Reads some tensors, of which only their owners have some.
    fn read_with_owned(
        &mut self,
        indices: &[usize],
        owned: &BTreeSet<usize>,
    ) -> Result<Vec<Vec<u8>>, ReplicaError> {
        let mut found = self.read_owned(owned)?;
        let others: Vec<usize> = indices.iter().copied().filter(|index| !owned.contains(index)).collect();
        let read = self.read_states(&others, Vec::new())?;
        found.extend(others.into_iter().zip(read));
        Ok(indices.iter().map(|index| found.get(index).cloned().unwrap_or_default()).collect())
    }

    /// Computes a digest of the whole state on each replica that has not left. Returns the replicas' numbers
    /// and digests.
    ///
    /// # Errors
    /// [`ReplicaError::NoneLeft`]; [`ReplicaError::InFlight`] while steps are in flight.
    pub fn digests(&mut self) -> Result<Vec<(usize, Digest)>, ReplicaError> {
        self.none_in_flight()?;
        let replies = self.ask_all(&mut |_| Request::Digest)?;
        let digest =
            |(replica, reply)| if let Reply::Digest(digest) = reply { Some((replica, digest)) } else { None };
        Ok(replies.into_iter().filter_map(digest).collect())
    }

    /// Compares the state of all replicas. Where it differs, replicas that are known to be wrong leave: those
    /// that have another one than more than half of all, or else those that do not pass the known-answer
    /// test.
    ///
    /// # Errors
    /// [`ReplicaError::Digests`], [`ReplicaError::NoneLeft`].
    pub fn check_digests(&mut self) -> Result<(), ReplicaError> {
        self.none_in_flight()?;
        let groups = self.states_by_digest()?;
        if groups.len() < 2 {
            return Ok(());
        }
        let all: usize = groups.iter().map(|(_, who)| who.len()).sum();
        let described = self.describe(&groups);
        let (wrong, why) = match groups.first() {
            Some((_, most)) if 2 * most.len() > all => {
                let others = groups[1..].iter().flat_map(|(_, who)| who.iter().copied());
                self.outvoted(others.collect())
            }
            _ => self.known_answers(),
        };
        if self.is_empty() {
            return Err(self.none_left());
        }
        Err(ReplicaError::Digests { groups: described, wrong, why })
    }

    /// Compares the state of all replicas as [`Replicas::check_digests`] does, and then that of all machines.
    ///
    /// # Errors
    /// [`ReplicaError::Digests`], also on machines whose state is that of most others; it names the ranks. No
    /// replica leaves for it. [`ReplicaError::Cluster`], [`ReplicaError::NoneLeft`].
    pub fn check_all_digests(&mut self) -> Result<(), ReplicaError> {
        let compared = self.check_digests();
        if self.cluster.is_alone() {
            return compared;
        }
        // The other machines wait for this one, whatever it has found.
        let own = match compared {
            Ok(()) => self.digests(),
            Err(error) => Err(error),
        };
        let (digest, problem) = match &own {
            Ok(all) => (all.first().map(|(_, digest)| digest.to_string()).unwrap_or_default(), String::new()),
            Err(error) => (String::new(), error.to_string()),
        };
        let records =
            self.cluster.gather("the digests of states", &pack(&[digest.as_bytes(), problem.as_bytes()]))?;
        own?;
        let mut groups: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
        for (rank, record) in records {
            match unpack(&record).as_deref() {
                Some([digest, []]) => groups.entry(digest.to_vec()).or_default().push(rank),
                Some([_, problem]) => {
                    let why = String::from_utf8_lossy(problem).into_owned();
                    return Err(ClusterError::Other {
                        rank: self.cluster.name(rank),
                        why,
                        is_refusal: false,
                    }
                    .into());
                }
                _ => return Err(ClusterError::Link(format!("rank {rank} sent digests that are none")).into()),
            }
        }
        if groups.len() < 2 {
            return Ok(());
        }
        let names = |ranks: &[usize]| {
            ranks.iter().map(|&rank| self.cluster.name(rank)).collect::<Vec<_>>().join(", ")
        };
        let mut groups: Vec<(Vec<u8>, Vec<usize>)> = groups.into_iter().collect();
        groups.sort_by_key(|(_, ranks)| (std::cmp::Reverse(ranks.len()), ranks.first().copied()));
        let group = |(digest, ranks): &(Vec<u8>, Vec<usize>)| {
            format!("{} has {:.16}", names(ranks), String::from_utf8_lossy(digest))
        };
        let groups = groups.iter().map(group).collect();
        Err(ReplicaError::Digests { groups, wrong: Vec::new(), why: "machines differ".into() })
    }

    /// Returns the replicas of each state, the largest group first.
    pub(super) fn states_by_digest(&mut self) -> Result<Vec<(Digest, Vec<usize>)>, ReplicaError> {
        // A single replica has nothing to differ from.
        if self.scheduler.present().len() == 1 {
            return Ok(Vec::new());
        }
        let mut groups: BTreeMap<Digest, Vec<usize>> = BTreeMap::new();
        for (replica, digest) in self.digests()? {
            groups.entry(digest).or_default().push(replica);
        }
        let mut groups: Vec<(Digest, Vec<usize>)> = groups.into_iter().collect();
        groups.sort_by_key(|(_, who)| (std::cmp::Reverse(who.len()), who.first().copied()));
        Ok(groups)
    }

    pub(super) fn describe(&mut self, groups: &[(Digest, Vec<usize>)]) -> Vec<String> {
        let describe = |(digest, who): &(Digest, Vec<usize>)| {
            format!("{} has {:.16}", self.names(who), digest.to_string())
        };
        groups.iter().map(describe).collect()
    }

    fn state(&self, index: usize) -> Result<&StateDecl, ReplicaError> {
        let states = self.ready(0)?.program.states();
        states.get(index).ok_or(ReplicaError::NoState { index, states: states.len() })
    }
}

/// Assigns tensors to workers, in order, such that each reads about as many bytes. Returns none if there are
/// no workers.
fn shares(tensors: Vec<usize>, sizes: &[usize], workers: &[usize]) -> Option<BTreeMap<usize, Vec<usize>>> {
    let all: usize = tensors.iter().map(|&at| sizes[at]).sum();
    let (mut shares, mut before) = (BTreeMap::<usize, Vec<usize>>::new(), 0);
    for at in tensors {
        let middle = before + sizes[at] / 2;
        let worker =
            *workers.get((middle * workers.len() / all.max(1)).min(workers.len().saturating_sub(1)))?;
        shares.entry(worker).or_default().push(at);
        before += sizes[at];
    }
    Some(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_reads_about_as_much() {
        let sizes = [10, 1, 9, 20, 5, 5];
        let read = |workers: &[usize]| shares((0..6).collect(), &sizes, workers);
        assert_eq!(read(&[4, 7]), Some(BTreeMap::from([(4, vec![0, 1, 2]), (7, vec![3, 4, 5])])));
        assert_eq!(read(&[4]), Some(BTreeMap::from([(4, (0..6).collect())])));
        assert_eq!(read(&[]), None);
        assert_eq!(shares(vec![3], &sizes, &[1, 2, 3]), Some(BTreeMap::from([(2, vec![3])])));
    }
}
