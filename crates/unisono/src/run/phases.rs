//! The section `phases`: whose turn it is, and how many steps each phase has done.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::compile::phases::Phase;
use crate::run::section::Section;

/// Where a run in phases is. It is empty for a run without.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PhaseCounts {
    /// The steps that the optimizer of each phase has done, by the phase's name.
    steps: BTreeMap<String, u64>,
    /// The phase whose turn it is or just was, with the steps of the turn.
    turn: Option<(String, u64)>,
    /// When each phase's optimizer did its last step: the epoch, and the steps of all of them until then.
    #[serde(default)]
    last: BTreeMap<String, (u32, u64)>,
}

impl PhaseCounts {
    /// Returns the number of the phase whose turn the next step is in an epoch, or `None` if no phase has
    /// turns in it.
    pub fn next(&self, phases: &[Phase], epoch: u32) -> Option<usize> {
        let has_turns = |phase: &Phase| phase.epochs.contains(&epoch);
        let Some((name, done)) = &self.turn else { return phases.iter().position(has_turns) };
        let last = phases.iter().position(|phase| phase.name == *name)?;
        if has_turns(&phases[last]) && *done < phases[last].steps {
            return Some(last);
        }
        (1..=phases.len()).map(|ahead| (last + ahead) % phases.len()).find(|&at| has_turns(&phases[at]))
    }

    /// Returns the steps that a phase's optimizer has done.
    pub fn of(&self, phase: &str) -> u64 {
        self.steps.get(phase).copied().unwrap_or_default()
    }

    /// Returns the epoch in which a phase's optimizer did its last step, and the number of that step among
    /// those of all phases. `None` stands for no step.
    pub fn last_of(&self, phase: &str) -> Option<(u32, u64)> {
        (self.of(phase) > 0).then(|| self.last.get(phase).copied().unwrap_or_default())
    }

    /// Notes a step of a phase in an epoch. `counts`: its optimizer has used it.
    pub fn stepped(&mut self, phase: &Phase, epoch: u32, counts: bool) {
        if counts {
            *self.steps.entry(phase.name.clone()).or_default() += 1;
            let all = self.steps.values().fold(0, |all: u64, steps| all.saturating_add(*steps));
            self.last.insert(phase.name.clone(), (epoch, all));
        }
        self.turn = Some(match self.turn.take() {
            Some((name, done)) if name == phase.name && done < phase.steps => (name, done + 1),
            _ => (phase.name.clone(), 1),
        });
    }
}

impl Section for PhaseCounts {
    /// A checkpoint of an earlier version is of a run without phases.
    fn absent() -> Option<Self> {
        Some(Self::default())
    }

    fn digest(&self, bytes: &mut Vec<u8>) {
        for (name, steps) in self.steps.iter().chain(self.turn.iter().map(|(name, done)| (name, done))) {
            bytes.extend(name.as_bytes());
            bytes.extend(steps.to_le_bytes());
        }
        for (name, (epoch, step)) in &self.last {
            bytes.extend(name.as_bytes());
            bytes.extend(epoch.to_le_bytes());
            bytes.extend(step.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(phases: &[Phase], epochs: &[u32]) -> String {
        let mut counts = PhaseCounts::default();
        let turn = |&epoch: &u32| {
            let Some(at) = counts.next(phases, epoch) else { return '-' };
            counts.stepped(&phases[at], epoch, true);
            phases[at].name.chars().next().unwrap_or('?')
        };
        epochs.iter().map(turn).collect()
    }

    #[test]
    fn phases_take_turns() {
        let phases = [Phase::new("a").steps(3), Phase::new("b"), Phase::new("c").steps(2)];
        assert_eq!(turns(&phases, &[0; 14]), "aaabccaaabccaa");
        assert_eq!(turns(&[Phase::new("a")], &[0; 3]), "aaa");
    }

    #[test]
    fn phases_come_and_go_with_their_epochs() {
        let phases = [Phase::new("a").epochs(0..2), Phase::new("b").steps(2).epochs(1..3)];
        assert_eq!(turns(&phases, &[0, 0, 1, 1, 1, 1, 2, 2, 2, 3]), "aabbabbbb-");
    }

    #[test]
    fn what_is_written_is_read() {
        let mut counts = PhaseCounts::default();
        (0..5).for_each(|at| counts.stepped(&Phase::new("a").steps(3), at, at % 2 == 0));
        assert_eq!((counts.of("a"), counts.of("b")), (3, 0));
        assert_eq!((counts.last_of("a"), counts.last_of("b")), (Some((4, 3)), None));
        let value = serde_json::to_value(&counts).unwrap();
        assert_eq!(PhaseCounts::read(1, value).unwrap(), counts);
    }
}
