//! How fast a worker is, as far as it was seen.

use std::collections::VecDeque;
use std::time::Duration;

/// Steps that are looked back on. Their median: one odd step changes nothing, three steps in a row do.
const SEEN: usize = 5;

/// Seconds a sample of one worker with one program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    seen: VecDeque<f64>,
}

impl Pace {
    /// A step's samples took so long.
    pub fn add(&mut self, samples: usize, spent: Duration) {
        if samples == 0 {
            return;
        }
        if self.seen.len() == SEEN {
            self.seen.pop_front();
        }
        self.seen.push_back((spent.as_secs_f64() / samples as f64).max(1e-12));
    }

    /// Seconds a sample; none while nothing was seen.
    pub fn seconds(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.seen.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_odd_step_is_passed_over_and_a_change_is_believed_after_three() {
        let mut pace = Pace::default();
        assert_eq!(pace.seconds(), None);
        pace.add(0, Duration::from_secs(9));
        assert_eq!(pace.seconds(), None);
        (0..5).for_each(|_| pace.add(4, Duration::from_secs(4)));
        for (spent, wanted) in [(40, 1.0), (40, 1.0), (40, 10.0)] {
            pace.add(4, Duration::from_secs(spent));
            assert_eq!(pace.seconds(), Some(wanted));
        }
    }
}
