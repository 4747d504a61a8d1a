//! A cache: samples are kept in memory once they were fetched.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{ContentHash, Coverage, DataError, FieldSpec, Sample, Source};

/// A source that keeps its samples in memory the first time they are fetched, within a budget of bytes
/// (`tf.data`'s `cache`). Samples that do not fit are fetched each time.
///
/// What is kept only affects the time, never a sample.
#[derive(Debug)]
pub struct Cache<S> {
    source: S,
    kept: Vec<OnceLock<Sample>>,
    /// The bytes left of the budget.
    left: AtomicU64,
}

impl<S: Source> Cache<S> {
    /// Keeps samples of `source` that take at most `bytes` together.
    ///
    /// # Errors
    /// There is no memory for a list of the samples. The samples themselves are allocated later, within the
    /// budget.
    pub fn new(source: S, bytes: u64) -> Result<Self, DataError> {
        let mut kept = Vec::new();
        let no_room = |_| DataError::Setting {
            setting: "cache",
            what: format!("no memory for {} samples", source.len()),
        };
        let len = usize::try_from(source.len()).map_err(|_| no_room(()))?;
        kept.try_reserve_exact(len).map_err(|_| no_room(()))?;
        kept.resize_with(len, OnceLock::new);
        Ok(Self { source, kept, left: AtomicU64::new(bytes) })
    }

    /// Returns the number of samples kept.
    pub fn kept(&self) -> usize {
        self.kept.iter().filter(|kept| kept.get().is_some()).count()
    }
}

impl<S: Source> Source for Cache<S> {
    fn len(&self) -> u64 {
        self.source.len()
    }

    fn fields(&self) -> &[FieldSpec] {
        self.source.fields()
    }

    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        let place = usize::try_from(index).ok().and_then(|at| self.kept.get(at));
        let place = place.ok_or(DataError::Index { index, len: self.len() })?;
        if let Some(sample) = place.get() {
            return Ok(sample.clone());
        }
        let sample = self.source.fetch(index)?;
        let bytes = sample.fields().map(|(_, field)| 4 * field.values.len() as u64).sum::<u64>() + 256;
        let take = |left: u64| left.checked_sub(bytes);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
            && place.set(sample.clone()).is_err()
        {
            // Another thread has kept it meanwhile.
            self.left.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(sample)
    }

    fn describe(&self, index: u64) -> String {
        self.source.describe(index)
    }

    fn field_classes(&self, field: &str) -> Option<&[String]> {
        self.source.field_classes(field)
    }

    fn notes(&self) -> Vec<String> {
        self.source.notes()
    }

    fn overlaps(&self) -> bool {
        self.source.overlaps()
    }

    fn fingerprint(&self) -> u64 {
        self.source.fingerprint()
    }

    fn coverage(&self) -> Coverage {
        self.source.coverage()
    }

    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        self.source.hash_content(samples, hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    #[test]
    fn what_fits_is_kept_and_the_rest_is_still_right() {
        let memory =
            Memory::labelled((0..300).map(|i| i as f32).collect::<Vec<_>>(), [3], vec![0; 100]).unwrap();
        let cache = Cache::new(&memory, 40 * (256 + 16) + 100).unwrap();
        for _ in 0..2 {
            for index in 0..100 {
                assert_eq!(cache.fetch(index).unwrap(), memory.fetch(index).unwrap());
            }
        }
        assert_eq!(cache.kept(), 40);
        assert!(cache.fetch(100).is_err());
        assert_eq!(cache.fingerprint(), memory.fingerprint());
    }
}
