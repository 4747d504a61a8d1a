//! Resident memory: what stays of samples on the devices that compute them, from one step to the next.
//!
//! A step that leaves resident memory and reads none fills it: every replica gets an even share of the
//! samples. The steps after it have the same shares as long as no replica is lost. If one is lost, its rows
//! are gone, and others compute samples whose rows they do not have. The step is then an error, and the
//! caller fills the memory again. So it is after a step that a replica ran twice, and after one that failed,
//! since nobody knows how often they changed the memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use unisono_graph::{InputKind, OutputKind, Program, Run, Type};

use crate::coordinator::replicas::Replicas;
use crate::error::ReplicaError;
use crate::worker::message::Request;

/// Which samples' resident memory each replica has.
#[derive(Debug, Default)]
pub(crate) struct Residents {
    /// The type of each memory that was left.
    types: BTreeMap<usize, Type>,
    /// The last run of each replica since the memory was filled.
    runs: BTreeMap<usize, Arc<Run>>,
    /// The replicas that have run the step's last segment.
    done: BTreeSet<usize>,
    /// Whether a replica ran other samples than those whose memory it has, or ran the same ones twice in a
    /// step.
    is_moved: bool,
    /// Whether the memory has to be filled again. It is so while a step runs, and after one that failed.
    is_lost: bool,
}

impl Residents {
    /// Begins a step of a program.
    ///
    /// # Errors
    /// [`ReplicaError::ResidentsLost`] if the program reads what is not there.
    pub fn begin(&mut self, program: &Program) -> Result<(), ReplicaError> {
        let (reads, leaves) = (reads(program), leaves(program));
        if !reads.is_empty() && (self.is_lost || reads.iter().any(|(n, ty)| self.types.get(n) != Some(ty))) {
            return Err(ReplicaError::ResidentsLost);
        }
        if reads.is_empty() && !leaves.is_empty() {
            *self = Self::default();
        }
        if program.is_resident() {
            self.types.extend(leaves);
            self.done.clear();
            (self.is_moved, self.is_lost) = (false, true);
        }
        Ok(())
    }

    /// Notes that a replica runs the last segment of a step.
    pub fn note(&mut self, program: &Program, replica: usize, run: &Arc<Run>) {
        if program.is_resident() {
            let before = self.runs.insert(replica, Arc::clone(run));
            let is_same = before.map_or(reads(program).is_empty(), |before| before == *run);
            self.is_moved |= !is_same || !self.done.insert(replica);
        }
    }

    /// Ends a step of a program.
    ///
    /// # Errors
    /// [`ReplicaError::ResidentsLost`] if the memory is not that of the samples where it is.
    pub fn end(&mut self, program: &Program) -> Result<(), ReplicaError> {
        if program.is_resident() {
            self.is_lost = self.is_moved;
        }
        if program.is_resident() && self.is_lost { Err(ReplicaError::ResidentsLost) } else { Ok(()) }
    }
}

/// Returns the resident memories that a program reads, with their types.
fn reads(program: &Program) -> BTreeMap<usize, Type> {
    let memory = |kind| if let InputKind::Resident(number) = kind { Some(number) } else { None };
    let inputs = program.inputs().iter();
    inputs.filter_map(|input| Some((memory(input.kind)?, input.ty.clone()))).collect()
}

/// Returns the resident memories that a program leaves, with their types.
fn leaves(program: &Program) -> BTreeMap<usize, Type> {
    let memory = |kind| if let OutputKind::Resident(number) = kind { Some(number) } else { None };
    let outputs = program.outputs().iter();
    outputs.filter_map(|output| Some((memory(output.kind)?, output.ty.clone()))).collect()
}

impl Replicas {
    /// Drops the resident memory of all devices between two steps. A program that reads it is an error until
    /// another one has filled it.
    ///
    /// # Errors
    /// [`ReplicaError::InFlight`]; [`ReplicaError::NoneLeft`].
    pub fn drop_residents(&mut self) -> Result<(), ReplicaError> {
        self.none_in_flight()?;
        self.residents = Residents::default();
        self.ask_all(&mut |_| Request::DropResidents)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use unisono_graph::Tape;

    use super::*;

    /// Returns a program that reads resident memory of rows of some length, or fills it.
    fn program(reads: bool, len: usize) -> Program {
        let tape = Tape::new();
        let x = tape.input("x", Type::sample(&[len]));
        let kept = if reads { tape.resident(0, Type::sample(&[len])) + &x } else { x };
        tape.keep_resident(0, &kept);
        Program::compile(&tape.finish().unwrap()).unwrap()
    }

    /// Makes a step in which replicas run samples from a first one on.
    fn step(of: &mut Residents, program: &Program, runs: &[(usize, usize)]) -> Result<(), ReplicaError> {
        of.begin(program)?;
        for &(replica, first) in runs {
            of.note(program, replica, &Arc::new(Run { first, sizes: vec![1; 2], shards: 4 }));
        }
        of.end(program)
    }

    #[test]
    fn whoever_runs_other_samples_has_lost_the_memory() {
        let (fills, reads, lost) = (program(false, 2), program(true, 2), Err(ReplicaError::ResidentsLost));
        let (residents, both) = (&mut Residents::default(), &[(0, 0), (1, 2)]);
        assert_eq!(step(residents, &reads, both), lost, "nothing is filled");
        assert_eq!(step(residents, &fills, both), Ok(()));
        assert_eq!(step(residents, &reads, both), Ok(()));
        assert_eq!(step(residents, &program(true, 3), both), lost, "memory of another type");
        assert_eq!(step(residents, &reads, both), Ok(()));
        // Replica 1 is lost in the middle of a step, and replica 0 takes its samples.
        assert_eq!(step(residents, &reads, &[(0, 0), (1, 2), (0, 2)]), lost);
        assert_eq!(step(residents, &reads, &[(0, 0)]), lost);
        assert_eq!(step(residents, &fills, &[(0, 0)]), Ok(()));
        assert_eq!(step(residents, &reads, &[(0, 0)]), Ok(()));
        assert_eq!(step(residents, &reads, both), lost, "a replica that did not fill its memory has none");
    }

    #[test]
    fn memory_that_was_changed_twice_or_in_a_step_that_failed_is_lost() {
        let (fills, reads, lost) = (program(false, 2), program(true, 2), Err(ReplicaError::ResidentsLost));
        let residents = &mut Residents::default();
        assert_eq!(step(residents, &fills, &[(0, 0)]), Ok(()));
        assert_eq!(step(residents, &reads, &[(0, 0), (0, 0)]), lost);
        assert_eq!(step(residents, &fills, &[(0, 0)]), Ok(()));
        residents.begin(&reads).unwrap();
        residents.note(&reads, 0, &Arc::new(Run { first: 0, sizes: vec![1; 2], shards: 4 }));
        // The step fails: it does not end.
        assert_eq!(step(residents, &reads, &[(0, 0)]), lost);
    }
}
