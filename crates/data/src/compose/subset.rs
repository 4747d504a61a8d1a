//! Parts of a source: chosen samples, and random splits.

use std::ops::Range;
use std::sync::Arc;

use unisono_random::Permutation;

use crate::{ContentHash, Coverage, DataError, FieldSpec, Fingerprint, Sample, Source};

/// Some samples of a source, in a given order.
#[derive(Clone, Debug)]
pub struct Subset<S> {
    source: S,
    chosen: Chosen,
}

#[derive(Clone, Debug)]
enum Chosen {
    Listed(Vec<u64>),
    /// `len` consecutive positions of a permutation, from `start`. This takes no list, however long the
    /// source.
    Permuted {
        order: Permutation,
        start: u64,
        len: u64,
    },
}

impl<S: Source> Subset<S> {
    /// Chooses the samples at `indices`, in that order.
    ///
    /// # Errors
    /// [`DataError::Index`] for the first index beyond the end of the source.
    pub fn new(source: S, indices: impl Into<Vec<u64>>) -> Result<Self, DataError> {
        let (indices, len) = (indices.into(), source.len());
        match indices.iter().find(|&&index| index >= len) {
            Some(&index) => Err(DataError::Index { index, len }),
            None => Ok(Self { source, chosen: Chosen::Listed(indices) }),
        }
    }

    /// Returns the index in the source of a sample of this subset.
    ///
    /// # Errors
    /// [`DataError::Index`] if the subset has no such sample.
    pub fn index_in_source(&self, index: u64) -> Result<u64, DataError> {
        let beyond = DataError::Index { index, len: self.len() };
        match &self.chosen {
            Chosen::Listed(indices) => {
                usize::try_from(index).ok().and_then(|at| indices.get(at).copied()).ok_or(beyond)
            }
            Chosen::Permuted { order, start, len } if index < *len => order.at(start + index).ok_or(beyond),
            Chosen::Permuted { .. } => Err(beyond),
        }
    }
}

/// Splits a source at random into two parts (PyTorch's `random_split`): `first` samples, and the rest. Every
/// sample is in exactly one part.
///
/// The split depends on (seed, source length) only.
///
/// # Errors
/// `first` is more than the number of samples.
#[doc(alias("random_split", "train_test_split"))]
pub fn split<S: Source>(source: S, first: u64, seed: u64) -> Result<[Subset<Arc<S>>; 2], DataError> {
    let total = source.len();
    if first > total {
        let what = format!("{first} samples for the first part, but there are {total}");
        return Err(DataError::Setting { setting: "split", what });
    }
    // This is the order of the last epoch that there may be; no training epoch in practice has it under the
    // same seed.
    let order = Permutation::new(seed, u32::MAX, total);
    let source = Arc::new(source);
    let part = |start, len| Subset {
        source: source.clone(),
        chosen: Chosen::Permuted { order: order.clone(), start, len },
    };
    Ok([part(0, first), part(first, total - first)])
}

/// Splits as [`split`] does. The size of the first part is a fraction of the source, rounded to the nearest
/// sample.
///
/// # Errors
/// The fraction is not within 0 and 1.
pub fn split_fraction<S: Source>(
    source: S,
    fraction: f64,
    seed: u64,
) -> Result<[Subset<Arc<S>>; 2], DataError> {
    if !(0.0..=1.0).contains(&fraction) {
        let what = format!("a fraction of {fraction} is not within 0 and 1");
        return Err(DataError::Setting { setting: "split", what });
    }
    let first = (source.len() as f64 * fraction).round() as u64;
    let first = first.min(source.len());
    split(source, first, seed)
}

impl<S: Source> Source for Subset<S> {
    fn len(&self) -> u64 {
        match &self.chosen {
            Chosen::Listed(indices) => indices.len() as u64,
            Chosen::Permuted { len, .. } => *len,
        }
    }

    fn fields(&self) -> &[FieldSpec] {
        self.source.fields()
    }

    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        match self.index_in_source(index) {
            Ok(index) => self.source.fetch(index),
            // An empty source may say why it is empty.
            Err(_) if self.source.is_empty() => self.source.fetch(index),
            Err(error) => Err(error),
        }
    }

    /// Describes the sample as the source does, with the index in the source.
    fn describe(&self, index: u64) -> String {
        match self.index_in_source(index) {
            Ok(index) => self.source.describe(index),
            Err(_) => format!("sample {index}"),
        }
    }

    fn field_classes(&self, field: &str) -> Option<&[String]> {
        self.source.field_classes(field)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.source.notes();
        if matches!(self.chosen, Chosen::Permuted { .. }) && self.source.overlaps() {
            notes.push(
                "samples overlap or come several times, and a random split puts what is in one part into the other: \
                 split a series itself (Windows::rows), and balance the training part after the split"
                    .into(),
            );
        }
        notes
    }

    /// Samples that come several times are in both parts of a split.
    fn overlaps(&self) -> bool {
        let repeats = match &self.chosen {
            Chosen::Listed(indices) => {
                let mut sorted = indices.clone();
                sorted.sort_unstable();
                sorted.windows(2).any(|pair| pair[0] == pair[1])
            }
            Chosen::Permuted { .. } => false,
        };
        repeats || self.source.overlaps()
    }

    /// Covers the source's fingerprint and which samples were chosen.
    fn fingerprint(&self) -> u64 {
        let hash = Fingerprint::new().word(self.source.fingerprint()).word(self.len());
        match &self.chosen {
            Chosen::Listed(indices) => indices.iter().fold(hash, |hash, &index| hash.word(index)).finish(),
            // The first samples identify the permutation, whose key is not accessible.
            Chosen::Permuted { order, start, len } => {
                let first = (0..(*len).min(16)).filter_map(|i| order.at(start + i));
                first.fold(hash.word(*start), Fingerprint::word).finish()
            }
        }
    }

    fn coverage(&self) -> Coverage {
        part_coverage([&self.source])
    }

    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        samples.into_iter().try_for_each(|index| hash_part(&self.source, self.index_in_source(index)?, hash))
    }
}

/// Returns the coverage of a source made of others: their samples are hashed, or named one by one.
pub(crate) fn part_coverage<S: Source>(sources: impl IntoIterator<Item = S>) -> Coverage {
    let is_unknown = |source: S| source.coverage() == Coverage::Unknown;
    if sources.into_iter().any(is_unknown) { Coverage::Unknown } else { Coverage::Hashed }
}

/// Adds a sample of one of the sources that another is made of to a hash.
pub(crate) fn hash_part(source: &dyn Source, index: u64, hash: &mut ContentHash) -> Result<(), DataError> {
    match source.coverage() {
        Coverage::Named(name) => {
            hash.text(&name);
            hash.word(source.len());
            hash.fields(source.fields());
            hash.word(index);
            Ok(())
        }
        Coverage::Hashed | Coverage::Unknown => source.hash_content(index..index + 1, hash),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    fn counting(len: u64) -> Memory {
        let labels: Vec<i32> = (0..len as i32).collect();
        Memory::labelled(vec![0.5; len as usize], [1], labels).unwrap()
    }

    fn labels(source: &impl Source) -> Vec<i32> {
        let label = |index| source.fetch(index).unwrap().field("y").unwrap().values.as_i32().unwrap()[0];
        (0..source.len()).map(label).collect()
    }

    #[test]
    fn a_split_shares_nothing_and_misses_nothing() {
        let [train, rest] = split(counting(1797), 1437, 42).unwrap();
        assert_eq!((train.len(), rest.len()), (1437, 360));
        let mut all = labels(&train);
        assert_ne!(all[..5], [0, 1, 2, 3, 4]);
        all.extend(labels(&rest));
        all.sort();
        assert_eq!(all, (0..1797).collect::<Vec<_>>());
        let [again, _] = split(counting(1797), 1437, 42).unwrap();
        assert_eq!(labels(&again), labels(&train));
        assert_eq!(again.fingerprint(), train.fingerprint());
        let [other, _] = split(counting(1797), 1437, 43).unwrap();
        assert_ne!(other.fingerprint(), train.fingerprint());
        assert!(train.fetch(1437).is_err() && rest.fetch(360).is_err());
    }

    #[test]
    fn a_subset_keeps_its_order_and_names_the_sources_index() {
        let subset = Subset::new(counting(10), [7, 3, 3]).unwrap();
        assert_eq!(labels(&subset), [7, 3, 3]);
        assert_eq!(subset.describe(0), "sample 7");
        assert_eq!(
            Subset::new(counting(10), [10]).unwrap_err().to_string(),
            "sample 10: the source's length is 10"
        );
    }

    #[test]
    fn fractions() {
        let [train, rest] = split_fraction(counting(10), 0.75, 1).unwrap();
        assert_eq!((train.len(), rest.len()), (8, 2));
        for fraction in [-0.1, 1.1, f64::NAN] {
            assert!(split_fraction(counting(10), fraction, 1).is_err());
        }
        assert!(split(counting(10), 11, 1).is_err());
        assert_eq!(split(counting(10), 10, 1).unwrap()[1].len(), 0);
    }
}
