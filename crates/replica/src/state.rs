//! The state that all replicas have: written to all, read from one, compared.

use std::collections::BTreeMap;
use std::sync::Arc;

use unisono_graph::StateDecl;

use crate::digest::Digest;
use crate::error::ReplicaError;
use crate::message::{Reply, Request};
use crate::replicas::Replicas;

impl Replicas {
    /// Sets tensor `index` of the state on all replicas, from little-endian bytes. A replica where that fails leaves.
    ///
    /// # Errors
    /// [`ReplicaError::NoState`], [`ReplicaError::StateBytes`], [`ReplicaError::NoneLeft`].
    pub fn write_state(&mut self, index: usize, bytes: &[u8]) -> Result<(), ReplicaError> {
        let decl = self.state(index)?;
        let wanted = 4 * decl.ty.count().max(1);
        if bytes.len() != wanted {
            let (name, ty, given) = (decl.name.clone(), decl.ty.to_string(), bytes.len());
            return Err(ReplicaError::StateBytes { name, ty, given, wanted });
        }
        let bytes: Arc<[u8]> = bytes.into();
        self.ask_all(&mut |_| Request::WriteState { index, bytes: Arc::clone(&bytes) })?;
        Ok(())
    }

    /// Tensor `index` of the state, as little-endian bytes, from the first replica that can give it.
    ///
    /// # Errors
    /// [`ReplicaError::NoState`], [`ReplicaError::NoneLeft`].
    pub fn read_state(&mut self, index: usize) -> Result<Vec<u8>, ReplicaError> {
        self.state(index)?;
        while let Some(&replica) = self.scheduler.present().first() {
            let replies = self.ask(vec![replica], self.options.deadline, &mut |_| Request::ReadState(index));
            if let Some((_, Reply::States(mut tensors))) = replies.into_iter().next() {
                return Ok(tensors.pop().unwrap_or_default());
            }
        }
        Err(self.none_left())
    }

    /// A digest of the whole state for each replica that has not left: its number and the digest.
    ///
    /// # Errors
    /// [`ReplicaError::NoneLeft`].
    pub fn digests(&mut self) -> Result<Vec<(usize, Digest)>, ReplicaError> {
        let replies = self.ask_all(&mut |_| Request::Digest)?;
        let digest =
            |(replica, reply)| if let Reply::Digest(digest) = reply { Some((replica, digest)) } else { None };
        Ok(replies.into_iter().filter_map(digest).collect())
    }

    /// Compares the state of all replicas.
    ///
    /// # Errors
    /// [`ReplicaError::Digests`] with the replicas that differ.
    pub fn check_digests(&mut self) -> Result<(), ReplicaError> {
        let mut groups: BTreeMap<Digest, Vec<usize>> = BTreeMap::new();
        for (replica, digest) in self.digests()? {
            groups.entry(digest).or_default().push(replica);
        }
        if groups.len() < 2 {
            return Ok(());
        }
        let mut groups: Vec<(Digest, Vec<usize>)> = groups.into_iter().collect();
        groups.sort_by_key(|(_, who)| (std::cmp::Reverse(who.len()), who.first().copied()));
        let describe = |(digest, who): &(Digest, Vec<usize>)| {
            let names: Vec<String> = who.iter().map(|&r| format!("{r} ({})", self.adapter(r))).collect();
            format!("replica {} has {:.16}", names.join(", "), digest.to_string())
        };
        Err(ReplicaError::Digests { groups: groups.iter().map(describe).collect() })
    }

    fn state(&self, index: usize) -> Result<&StateDecl, ReplicaError> {
        let states = self.ready(0)?.program.states();
        states.get(index).ok_or(ReplicaError::NoState { index, states: states.len() })
    }
}
