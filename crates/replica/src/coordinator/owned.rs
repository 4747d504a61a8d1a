//! What the optimizer keeps, where it is shared out among replicas: owners hand round what they updated, and
//! it is read from them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use unisono_cluster::{ClusterError, pack, unpack};

use crate::coordinator::replicas::Replicas;
use crate::error::ReplicaError;
use crate::worker::message::{Reply, Request};

/// Tensors of the state with their bytes.
type Tensors = BTreeMap<usize, Vec<u8>>;

impl Replicas {
    /// After a step has changed the state: gives all replicas the parameters that others updated for them.
    ///
    /// # Errors
    /// [`ReplicaError::OwnersLost`], after which the state has to be resumed; [`ReplicaError::Cluster`];
    /// [`ReplicaError::NoneLeft`].
    pub(crate) fn hand_round(&mut self) -> Result<(), ReplicaError> {
        if self.owners.is_empty() {
            return Ok(());
        }
        let groups: Vec<usize> = (0..self.owners.groups().len()).collect();
        let new = self.read_from_owners(&groups, &|owned| owned.group.shared.clone())?;
        // What this machine's replicas all updated themselves need not be written.
        let is_foreign = |(state, _): &(usize, Vec<u8>)| {
            let rank = self.cluster.rank();
            let present = self.scheduler.present();
            let holds = |&replica: &usize| self.owners.holding(rank, replica).foreign.contains(state);
            present.iter().any(holds)
        };
        let new: Vec<(usize, Vec<u8>)> = new.into_iter().filter(is_foreign).collect();
        if !new.is_empty() {
            let new = Arc::new(new);
            self.ask_all(&mut |_| Request::TakeStates(Arc::clone(&new)))?;
        }
        Ok(())
    }

    /// Returns whether a tensor is one that only its owners have.
    pub(crate) fn has_owners(&self, state: usize) -> bool {
        self.owners.group_of_kept(state).is_some()
    }

    /// Checks that somebody is left to keep a tensor that only its owners have. On several machines this is
    /// seen when it is read.
    pub(crate) fn check_owners(&mut self, state: usize) -> Result<(), ReplicaError> {
        match self.owners.group_of_kept(state).filter(|_| self.cluster.is_alone()) {
            Some(group) => self.providers(&[group]).map(drop),
            None => Ok(()),
        }
    }

    /// Returns whether some of what the optimizer keeps is on other machines alone, so that all machines have
    /// to read it together.
    pub fn reads_together(&self) -> bool {
        !self.owners.is_empty() && !self.cluster.is_alone()
    }

    /// Reads tensors that only their owners have. All machines do so together.
    ///
    /// # Errors
    /// As [`Replicas::hand_round`].
    pub(crate) fn read_owned(&mut self, states: &BTreeSet<usize>) -> Result<Tensors, ReplicaError> {
        let groups: BTreeSet<usize> =
            states.iter().filter_map(|&state| self.owners.group_of_kept(state)).collect();
        let groups: Vec<usize> = groups.into_iter().collect();
        let wanted = |owned: &crate::owners::Owned| {
            owned.group.kept.iter().copied().filter(|state| states.contains(state)).collect()
        };
        self.read_from_owners(&groups, &wanted)
    }

    /// Reads tensors of some groups from an owner of each, on this machine or on another one.
    fn read_from_owners(
        &mut self,
        groups: &[usize],
        tensors: &dyn Fn(&crate::owners::Owned) -> Vec<usize>,
    ) -> Result<Tensors, ReplicaError> {
        let owners = Arc::clone(&self.owners);
        let mut found = Tensors::new();
        let mut missing: Vec<usize> = groups.to_vec();
        while !missing.is_empty() {
            let providers = self.providers(&missing)?;
            let mut own = Tensors::new();
            let mut of_worker: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for (group, (rank, worker)) in &providers {
                if *rank == self.cluster.rank() {
                    of_worker.entry(*worker).or_default().extend(tensors(&owners.groups()[*group]));
                }
            }
            let workers = of_worker.keys().copied().collect();
            let replies = self.ask(workers, self.options.deadline, &mut |worker| Request::ReadStates {
                indices: of_worker[&worker].clone(),
                into: Vec::new(),
            });
            for (worker, reply) in replies {
                if let Reply::States(read) = reply {
                    own.extend(of_worker[&worker].iter().copied().zip(read));
                }
            }
            found.extend(self.of_all_machines(own)?);
            // What an owner could not give any more is asked of another one.
            missing.retain(|&group| {
                tensors(&owners.groups()[group]).iter().any(|state| !found.contains_key(state))
            });
        }
        Ok(found)
    }

    /// Returns an owner of each group that is left: its rank, and its number there if it is on this machine.
    /// All machines choose the same.
    fn providers(&mut self, groups: &[usize]) -> Result<BTreeMap<usize, (usize, usize)>, ReplicaError> {
        let (owners, me) = (Arc::clone(&self.owners), self.cluster.rank());
        let present = self.scheduler.present();
        if present.is_empty() {
            return Err(self.none_left());
        }
        let here = |group: usize| {
            let mut own = owners.groups()[group].owners.iter();
            own.find(|(rank, replica)| *rank == me && present.contains(replica)).map(|(_, replica)| *replica)
        };
        let mask: Vec<u8> = groups.iter().map(|&group| u8::from(here(group).is_some())).collect();
        let masks = match self.cluster.is_alone() {
            true => vec![(me, mask)],
            false => self.cluster.gather("the owners of tensors", &mask)?,
        };
        let mut providers = BTreeMap::new();
        for (at, &group) in groups.iter().enumerate() {
            let can = |rank: usize| masks.iter().any(|(of, mask)| *of == rank && mask.get(at) == Some(&1));
            let mut owners = owners.groups()[group].owners.iter().map(|(rank, _)| *rank);
            let Some(rank) = owners.find(|&rank| can(rank)) else { return Err(self.owners_lost(group)) };
            providers.insert(group, (rank, here(group).unwrap_or_default()));
        }
        Ok(providers)
    }

    fn owners_lost(&self, group: usize) -> ReplicaError {
        let states = self.programs[&0].program.states();
        let owned = &self.owners.groups()[group];
        let tensor = owned.group.kept.first().and_then(|&state| states.get(state));
        let tensor = tensor.map(|state| state.name.clone()).unwrap_or_default();
        let name = |(rank, replica): &(usize, usize)| match self.cluster.is_alone() {
            true => format!("replica {replica}"),
            false => format!("replica {replica} of {}", self.cluster.name(*rank)),
        };
        let owners = owned.owners.iter().map(name).collect::<Vec<_>>().join(" and ");
        ReplicaError::OwnersLost { tensor, owners }
    }

    /// Returns the tensors of all machines.
    fn of_all_machines(&mut self, own: Tensors) -> Result<Tensors, ReplicaError> {
        if self.cluster.is_alone() {
            return Ok(own);
        }
        let heads: Vec<[u8; 8]> = own.keys().map(|&state| (state as u64).to_le_bytes()).collect();
        let parts: Vec<&[u8]> =
            heads.iter().zip(own.values()).flat_map(|(head, bytes)| [&head[..], bytes]).collect();
        let mut all = Tensors::new();
        for (rank, record) in self.cluster.gather("the tensors of owners", &pack(&parts))? {
            let wrong = || ClusterError::Link(format!("rank {rank} sent tensors that are none"));
            let parts = unpack(&record).ok_or_else(wrong)?;
            for [head, bytes] in parts.as_chunks::<2>().0 {
                let state = <[u8; 8]>::try_from(*head).map_err(|_| wrong())?;
                all.insert(u64::from_le_bytes(state) as usize, bytes.to_vec());
            }
        }
        Ok(all)
    }
}
