//! New states that are not finite: the kernels that write them set a flag, which is read after a step.

use unisono_graph::Program;

use crate::coordinator::attempt::Attempt;
use crate::coordinator::replicas::Replicas;
use crate::error::ReplicaError;

/// A replica that ran the last segment, and whether its flag says that a new state is not finite.
pub(crate) type StateFlag = (usize, bool);

impl Attempt {
    /// Returns the flags of the replicas that ran the last segment.
    pub fn state_flags(&self, program: &Program) -> Vec<StateFlag> {
        let last = program.segments() - 1;
        let ran = self.kept.iter().filter(|kept| kept.segments.contains(&last));
        ran.map(|kept| (kept.replica, kept.results.bad_state)).collect()
    }
}

impl Replicas {
    /// Checks that no replica found a new state that is not finite.
    ///
    /// # Errors
    /// [`ReplicaError::StateNotFinite`] if all found one. [`ReplicaError::Digests`] if only some did, since
    /// then the replicas do not hold the same state. [`ReplicaError::NoneLeft`].
    pub(crate) fn check_state_flags(
        &mut self,
        program: usize,
        flags: &[StateFlag],
    ) -> Result<(), ReplicaError> {
        let bad = flags.iter().filter(|(_, bad)| *bad).count();
        if bad == 0 {
            return Ok(());
        }
        if bad < flags.len() {
            self.check_digests()?;
        }
        let tensors = self.not_finite(program)?;
        if tensors.is_empty() && bad < flags.len() {
            return Err(self.flags_differ(flags));
        }
        let tensor = tensors.first().cloned();
        // A device that reports what its memory does not hold is wrong, whatever it holds.
        let tensor = tensor.unwrap_or_else(|| "a tensor (which the host reads as finite)".to_owned());
        let more = tensors.len().saturating_sub(1);
        Err(ReplicaError::StateNotFinite { step: self.steps.saturating_sub(1), tensor, more })
    }

    /// Reads the state and returns the names of the tensors that a program updates and that are not finite.
    fn not_finite(&mut self, program: usize) -> Result<Vec<String>, ReplicaError> {
        let graph = self.ready(program)?.program.graph();
        let updated: Vec<(usize, String)> =
            graph.updates.keys().map(|&index| (index, graph.states[index].name.clone())).collect();
        let mut found = Vec::new();
        let mut memory = Vec::new();
        for (index, name) in updated {
            memory = self.read_states(&[index], memory)?;
            let is_bad = |&word: &[u8; 4]| !f32::from_le_bytes(word).is_finite();
            if memory.iter().any(|bytes| bytes.as_chunks::<4>().0.iter().any(is_bad)) {
                found.push(name);
            }
        }
        Ok(found)
    }

    /// Returns the error of replicas whose states are the same finite bytes, while the flag of some says
    /// otherwise.
    fn flags_differ(&mut self, flags: &[StateFlag]) -> ReplicaError {
        let mut groups = Vec::new();
        for (is_bad, says) in [(true, "has a new state that is not finite"), (false, "has none")] {
            let all = flags.iter().filter(|(_, bad)| *bad == is_bad);
            let all: Vec<usize> = all.map(|(replica, _)| *replica).collect();
            groups.push(format!("{} {says}", self.names(&all)));
        }
        let (wrong, why) = self.known_answers();
        ReplicaError::Digests { groups, wrong, why }
    }
}
