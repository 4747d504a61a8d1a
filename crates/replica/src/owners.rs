//! Which replica keeps the optimizer's state of which tensors, where it is shared out among replicas.

use std::collections::BTreeSet;
use std::sync::Arc;

use unisono_graph::{Program, UpdateGroup};

/// Where the optimizer's state of a run is. A replica is named by the rank of its machine and by its number
/// there.
///
/// Tensors that are updated together have the same owners. An owner updates them and gives the new parameters
/// to all replicas; the others have the parameters and nothing that the optimizer keeps for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    groups: Vec<Owned>,
    /// The bytes of each tensor of the state.
    bytes: Vec<u64>,
}

/// Tensors that are updated together, and the replicas that do so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    pub group: UpdateGroup,
    /// The owners: rank and replica.
    pub owners: Vec<(usize, usize)>,
}

/// The tensors that a replica does without.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holding {
    /// All tensors that some replica updates for others, by index.
    pub shared_out: BTreeSet<usize>,
    /// Those of them that the optimizer keeps.
    pub kept: BTreeSet<usize>,
    /// Those that another replica updates for this one.
    pub foreign: BTreeSet<usize>,
    /// Those that this replica does not have.
    pub absent: BTreeSet<usize>,
}

impl Owners {
    /// Shards the optimizer state of a training step across replicas, so that each stores about the same
    /// number of bytes. The training step is the first of `programs`. Optimizer state that another program
    /// reads is stored on all replicas. `replicas` has the number of replicas of each rank. Each tensor has
    /// `copies` owners, but at most as many as there are replicas. The owners are on different machines if
    /// there are several machines.
    pub fn new(programs: &[Arc<Program>], replicas: &[usize], copies: usize) -> Self {
        let Some((program, others)) = programs.split_first() else { return Self::default() };
        let bytes = program.states().iter().map(|state| 4 * state.ty.count().max(1) as u64).collect();
        let mut slots: Vec<(usize, usize)> = Vec::new();
        for replica in 0..replicas.iter().copied().max().unwrap_or_default() {
            let ranks = replicas.iter().enumerate().filter(|(_, count)| replica < **count);
            slots.extend(ranks.map(|(rank, _)| (rank, replica)));
        }
        let mut owners = Self { groups: Vec::new(), bytes };
        let mut groups = program.update_groups(others);
        // The largest first, so that the small ones even out.
        groups.sort_by_key(|group| std::cmp::Reverse(owners.kept_bytes(group)));
        let mut loads = vec![0; slots.len()];
        for group in groups {
            let mut own: Vec<usize> = Vec::new();
            for _ in 0..copies.clamp(1, slots.len().max(1)) {
                let is_elsewhere = |slot: &usize| own.iter().all(|other| slots[*other].0 != slots[*slot].0);
                let free: Vec<usize> = (0..slots.len()).filter(|slot| !own.contains(slot)).collect();
                let elsewhere: Vec<usize> = free.iter().copied().filter(is_elsewhere).collect();
                let among = if elsewhere.is_empty() { free } else { elsewhere };
                own.extend(among.into_iter().min_by_key(|&slot| (loads[slot], slot)));
            }
            own.iter().for_each(|&slot| loads[slot] += owners.kept_bytes(&group));
            let own = own.into_iter().map(|slot| slots[slot]).collect();
            owners.groups.push(Owned { group, owners: own });
        }
        owners
    }

    /// Returns the bytes that a replica has of the state: all parameters and statistics, and its part of what
    /// the optimizer keeps.
    pub fn state_bytes(&self, rank: usize, replica: usize) -> u64 {
        let absent = self.holding(rank, replica).absent;
        self.bytes
            .iter()
            .enumerate()
            .filter(|(state, _)| !absent.contains(state))
            .map(|(_, bytes)| bytes)
            .sum()
    }

    /// Returns the bytes of the whole state.
    pub fn all_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Returns whether tensors have owners.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(crate) fn groups(&self) -> &[Owned] {
        &self.groups
    }

    /// Returns the group that a tensor that the optimizer keeps belongs to.
    pub(crate) fn group_of_kept(&self, state: usize) -> Option<usize> {
        self.groups.iter().position(|owned| owned.group.kept.contains(&state))
    }

    /// Returns what a replica does without.
    pub(crate) fn holding(&self, rank: usize, replica: usize) -> Holding {
        let mut holding = Holding::default();
        for Owned { group, owners } in &self.groups {
            holding.shared_out.extend(group.shared.iter().chain(&group.kept));
            holding.kept.extend(&group.kept);
            if !owners.contains(&(rank, replica)) {
                holding.foreign.extend(group.shared.iter().chain(&group.kept));
                holding.absent.extend(&group.kept);
            }
        }
        holding
    }

    fn kept_bytes(&self, group: &UpdateGroup) -> u64 {
        group.kept.iter().map(|&state| self.bytes[state]).sum()
    }
}

#[cfg(test)]
mod tests {
    use unisono_graph::{StateKind, Tape, Type};

    use super::*;

    /// A step with momentum on tensors of 8, 6, 4, 4 and 2 numbers.
    fn program() -> Arc<Program> {
        let tape = Tape::new();
        let x = tape.input("x", Type::sample(&[1]));
        let sizes = [8, 6, 4, 4, 2];
        let state = |(at, size): (usize, &usize), kind| tape.state(&format!("{kind:?} {at}"), &[*size], kind);
        let parameters: Vec<_> = sizes.iter().enumerate().map(|at| state(at, StateKind::Parameter)).collect();
        let momenta: Vec<_> = sizes.iter().enumerate().map(|at| state(at, StateKind::Optimizer)).collect();
        for (parameter, momentum) in parameters.iter().zip(&momenta) {
            let gradient = (&x * parameter).sum_shards();
            let new = momentum * 0.9 + &gradient;
            tape.update(parameter, &(parameter - &(&new * 0.1)));
            tape.update(momentum, &new);
        }
        Arc::new(Program::compile(&tape.finish().unwrap()).unwrap())
    }

    #[test]
    fn everyone_keeps_about_as_much_and_each_tensor_has_its_owners() {
        let programs = [program()];
        let whole = 2 * 4 * (8 + 6 + 4 + 4 + 2);
        // Of two machines with two copies each keeps one, so that a machine with one replica keeps all there.
        for (replicas, copies, most) in
            [(vec![2], 1, 12), (vec![3], 2, 18), (vec![1, 1], 1, 12), (vec![2, 1], 2, 24)]
        {
            let owners = Owners::new(&programs, &replicas, copies);
            assert_eq!((owners.groups.len(), owners.all_bytes()), (5, whole));
            for (rank, &count) in replicas.iter().enumerate() {
                for replica in 0..count {
                    let kept = owners.state_bytes(rank, replica) - whole / 2;
                    assert!(kept <= 4 * most, "rank {rank}, replica {replica} keeps {kept} bytes");
                }
            }
            for owned in &owners.groups {
                assert_eq!(owned.owners.len(), copies);
                let ranks: BTreeSet<usize> = owned.owners.iter().map(|(rank, _)| *rank).collect();
                assert_eq!(ranks.len(), copies.min(replicas.len()), "owners are on different machines");
            }
        }
        let alone = Owners::new(&programs, &[1], 2);
        assert_eq!(alone.state_bytes(0, 0), whole);
        assert!(alone.holding(0, 0).absent.is_empty());
    }
}
