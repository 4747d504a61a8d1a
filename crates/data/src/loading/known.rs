//! The bad samples of a run so far.

use std::collections::BTreeSet;
use std::sync::Arc;

/// The most samples that a copy of the set copies. More of them join those that copies share.
const MOST_OWN: usize = 1024;

/// The samples that were found bad, of which each ticket has a copy as they were then. A copy is cheap, and
/// so is a sample that is added while there are copies, however many samples there are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    shared: Arc<BTreeSet<u64>>,
    own: BTreeSet<u64>,
}

impl Known {
    pub fn new(samples: impl IntoIterator<Item = u64>) -> Self {
        Self { shared: Arc::new(samples.into_iter().collect()), own: BTreeSet::new() }
    }

    pub fn len(&self) -> usize {
        self.shared.len() + self.own.len()
    }

    pub fn contains(&self, sample: u64) -> bool {
        self.own.contains(&sample) || self.shared.contains(&sample)
    }

    /// Returns the samples, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.shared.union(&self.own).copied()
    }

    /// Adds a sample that is not among them.
    pub fn insert(&mut self, sample: u64) {
        self.own.insert(sample);
        if self.own.len() > MOST_OWN {
            Arc::make_mut(&mut self.shared).append(&mut self.own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_is_added_copies_no_others() {
        let mut known = Known::new((0..5000).map(|i| 7 * i));
        let (before, shared) = (known.clone(), Arc::as_ptr(&known.shared));
        for i in 0..MOST_OWN as u64 {
            known.insert(7 * i + 1);
        }
        assert_eq!((known.len(), before.len()), (5000 + MOST_OWN, 5000));
        assert!(known.contains(8) && known.contains(7) && !known.contains(9) && !before.contains(8));
        assert_eq!(Arc::as_ptr(&known.shared), shared);
        known.insert(3);
        assert!(known.own.is_empty() && known.iter().is_sorted() && known.contains(3));
        assert_eq!((known.iter().count(), before.iter().count()), (5001 + MOST_OWN, 5000));
    }
}
