//! Several sources joined into one: one after another, or taking turns by weight.

use std::ops::Range;
use std::sync::Arc;

use crate::compose::subset::{hash_part, part_coverage};
use crate::{ContentHash, Coverage, DataError, FieldSpec, Fingerprint, Sample, Source};

/// Several sources, one after another (PyTorch's `ConcatDataset`).
#[doc(alias = "ConcatDataset")]
#[derive(Clone)]
pub struct Concat {
    sources: Vec<Arc<dyn Source>>,
    /// The index at which each source ends.
    ends: Vec<u64>,
}

impl Concat {
    /// Joins sources, which must have the same fields.
    ///
    /// # Errors
    /// There are no sources, or their fields differ.
    pub fn new(sources: impl IntoIterator<Item = Arc<dyn Source>>) -> Result<Self, DataError> {
        let sources: Vec<_> = sources.into_iter().collect();
        same_fields("concat", &sources)?;
        let ends = sources.iter().scan(0u64, |end, source| {
            *end = end.saturating_add(source.len());
            Some(*end)
        });
        Ok(Self { ends: ends.collect(), sources })
    }

    fn place(&self, index: u64) -> Option<(&dyn Source, u64)> {
        let at = self.ends.partition_point(|&end| end <= index);
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some((&**self.sources.get(at)?, index - start))
    }
}

/// Several sources that take turns by whole weights (`tf.data`'s `sample_from_datasets`, without randomness).
/// In each group of as many samples as the sum of the weights, each source has as many samples as its weight,
/// spread evenly and in its own order.
///
/// The source of each sample follows from the weights. No source begins again: the joined source ends when
/// the first of its sources is used up, so samples of the other sources may be left out.
#[derive(Clone)]
pub struct Interleave {
    sources: Vec<Arc<dyn Source>>,
    weights: Vec<u64>,
    /// One turn: for each place its source, and how many samples of that source came before it within the
    /// turn.
    turn: Vec<(usize, u64)>,
    len: u64,
}

/// The longest turn. A longer one is taken for a mistake.
const MOST_TURN: u64 = 1 << 20;

impl Interleave {
    /// Joins sources, each with its weight. They must have the same fields.
    ///
    /// # Errors
    /// There are no sources, or their fields differ; a weight is 0, or the weights add up to more than 2^20.
    pub fn new(sources: impl IntoIterator<Item = (Arc<dyn Source>, u32)>) -> Result<Self, DataError> {
        let (sources, weights): (Vec<_>, Vec<_>) =
            sources.into_iter().map(|(source, weight)| (source, u64::from(weight))).unzip();
        same_fields("interleave", &sources)?;
        let total: u64 = weights.iter().sum();
        if weights.contains(&0) || total > MOST_TURN {
            let what =
                format!("weights {weights:?} are not all above zero with a sum of at most {MOST_TURN}");
            return Err(DataError::Setting { setting: "interleave", what });
        }
        let turn = one_turn(&weights, total);
        let mut joined = Self { sources, weights, turn, len: 0 };
        let whole =
            joined.sources.iter().zip(&joined.weights).map(|(source, weight)| source.len() / weight).min();
        let rounds = whole.unwrap_or(0).min(u64::MAX / total - 1);
        // The turn after the whole ones ends at the first place whose source has no more samples.
        let more = joined
            .turn
            .iter()
            .take_while(|&&(at, before)| rounds * joined.weights[at] + before < joined.sources[at].len());
        joined.len = rounds * total + more.count() as u64;
        Ok(joined)
    }

    fn place(&self, index: u64) -> Option<(&dyn Source, u64)> {
        let turn = self.turn.len() as u64;
        let (at, before) = self.turn[(index % turn) as usize];
        (index < self.len).then(|| (&*self.sources[at], index / turn * self.weights[at] + before))
    }
}

/// Returns one turn of `total` places: the source at each, and how many of its samples came before.
///
/// It is the smooth weighted round robin: at each place every source gains its weight, and the one with the
/// most gives a sample and pays the total.
fn one_turn(weights: &[u64], total: u64) -> Vec<(usize, u64)> {
    let mut credit = vec![0i64; weights.len()];
    let mut given = vec![0; weights.len()];
    let mut turn = Vec::new();
    for _ in 0..total {
        for (credit, &weight) in credit.iter_mut().zip(weights) {
            *credit += weight as i64;
        }
        // Of equal ones the first.
        let at = (0..credit.len()).rev().max_by_key(|&at| credit[at]).unwrap_or(0);
        credit[at] -= total as i64;
        turn.push((at, given[at]));
        given[at] += 1;
    }
    turn
}

/// Checks that there are sources, and that all have the same fields and number their classes alike.
fn same_fields(setting: &'static str, sources: &[Arc<dyn Source>]) -> Result<(), DataError> {
    let wrong = |what: String| Err(DataError::Setting { setting, what });
    let Some(first) = sources.first() else { return wrong("no sources".into()) };
    match sources.iter().position(|source| source.fields() != first.fields()) {
        Some(at) => {
            wrong(format!("source {at} has fields {:?}, source 0 {:?}", sources[at].fields(), first.fields()))
        }
        None => same_classes(setting, sources),
    }
}

/// Checks that a number stands for the same class in all sources that know their classes.
fn same_classes(setting: &'static str, sources: &[Arc<dyn Source>]) -> Result<(), DataError> {
    for spec in sources.first().map_or(&[][..], |source| source.fields()) {
        let mut known: Option<(usize, &[String])> = None;
        for (at, source) in sources.iter().enumerate() {
            let Some(own) = source.field_classes(&spec.name) else { continue };
            let Some((first, other)) = known else {
                known = Some((at, own));
                continue;
            };
            if let Some(class) = other.iter().zip(own).position(|(other, own)| other != own) {
                let (other, own) = (&other[class], &own[class]);
                let what = format!(
                    "the field '{}' has other class numbers: {class} is {own:?} in source {at} and {other:?} in source \
                     {first}; use `like` of ImageFolder, WavFolder, Csv or Columnar",
                    spec.name
                );
                return Err(DataError::Setting { setting, what });
            }
            if own.len() > other.len() {
                known = Some((at, own));
            }
        }
    }
    Ok(())
}

/// Returns whether samples share values: because some source overlaps itself, or because one is joined twice.
/// Different subsets of one source are not recognized.
fn any_overlap(sources: &[Arc<dyn Source>]) -> bool {
    let comes_before = |at: usize| sources[..at].iter().any(|other| Arc::ptr_eq(other, &sources[at]));
    (0..sources.len()).any(|at| sources[at].overlaps() || comes_before(at))
}

macro_rules! joined_source {
    ($name:ident, $own:ident => $len:expr, $extra:expr) => {
        impl Source for $name {
            fn len(&self) -> u64 {
                let $own = self;
                $len
            }

            fn fields(&self) -> &[FieldSpec] {
                self.sources.first().map_or(&[], |source| source.fields())
            }

            fn fetch(&self, index: u64) -> Result<Sample, DataError> {
                let (source, at) = self.place(index).ok_or(DataError::Index { index, len: self.len() })?;
                source.fetch(at)
            }

            /// Describes the sample as the source that it comes from does.
            fn describe(&self, index: u64) -> String {
                self.place(index)
                    .map_or_else(|| format!("sample {index}"), |(source, at)| source.describe(at))
            }

            /// Returns the names that the sources agree on: the longest list that any of them has.
            fn field_classes(&self, field: &str) -> Option<&[String]> {
                let all = self.sources.iter().filter_map(|source| source.field_classes(field));
                all.reduce(|longest, own| if own.len() > longest.len() { own } else { longest })
            }

            fn notes(&self) -> Vec<String> {
                self.sources.iter().flat_map(|source| source.notes()).collect()
            }

            fn overlaps(&self) -> bool {
                any_overlap(&self.sources)
            }

            fn fingerprint(&self) -> u64 {
                let hash = Fingerprint::new().text(stringify!($name)).word(self.len());
                let $own = self;
                let hash = $extra.iter().fold(hash, |hash, &word| hash.word(word));
                self.sources.iter().fold(hash, |hash, source| hash.word(source.fingerprint())).finish()
            }

            fn coverage(&self) -> Coverage {
                part_coverage(&self.sources)
            }

            fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
                for index in samples {
                    let beyond = DataError::Index { index, len: self.len() };
                    let (source, at) = self.place(index).ok_or(beyond)?;
                    hash_part(source, at, hash)?;
                }
                Ok(())
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let lens: Vec<_> = self.sources.iter().map(|source| source.len()).collect();
                f.debug_struct(stringify!($name)).field("samples", &lens).finish_non_exhaustive()
            }
        }
    };
}

joined_source!(Concat, own => own.ends.last().copied().unwrap_or(0), own.ends);
joined_source!(Interleave, own => own.len, own.weights);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    fn counting(from: i32, len: i32) -> Arc<dyn Source> {
        let labels: Vec<i32> = (from..from + len).collect();
        Arc::new(Memory::labelled(vec![0.5; len as usize], [1], labels).unwrap())
    }

    fn labels(source: &impl Source) -> Vec<i32> {
        let label = |index| source.fetch(index).unwrap().field("y").unwrap().values.as_i32().unwrap()[0];
        (0..source.len()).map(label).collect()
    }

    #[test]
    fn one_after_another() {
        let joined = Concat::new([counting(0, 3), counting(9, 0), counting(10, 2)]).unwrap();
        assert_eq!(labels(&joined), [0, 1, 2, 10, 11]);
        assert_eq!((joined.describe(4), joined.fetch(5).is_err()), ("sample 1".into(), true));
        assert_eq!(Concat::new([]).unwrap_err().to_string(), "concat: no sources");
        let other = Arc::new(Memory::labelled([0.0; 4], [2], [0, 0]).unwrap());
        let error = Concat::new([counting(0, 1), other]).unwrap_err().to_string();
        assert!(error.starts_with("concat: source 1 has fields"), "{error}");
    }

    #[test]
    fn joined_sources_overlap_if_one_does_or_comes_twice() {
        let all = counting(0, 4);
        let twice = Arc::new(crate::Subset::new(Arc::clone(&all), [0, 0, 1]).unwrap());
        let overlap = |sources: [Arc<dyn Source>; 2]| {
            let joined = Interleave::new(sources.clone().map(|source| (source, 1))).unwrap();
            [Concat::new(sources).unwrap().overlaps(), joined.overlaps()]
        };
        assert_eq!(overlap([Arc::clone(&all), counting(9, 4)]), [false; 2]);
        assert_eq!(overlap([Arc::clone(&all), twice]), [true; 2]);
        assert_eq!(overlap([Arc::clone(&all), all]), [true; 2]);
    }

    #[test]
    fn turns_follow_the_weights() {
        let joined = Interleave::new([(counting(0, 7), 3), (counting(100, 50), 1)]).unwrap();
        assert_eq!(labels(&joined), [0, 1, 100, 2, 3, 4, 101, 5, 6]);
        let even = Interleave::new([(counting(0, 3), 1), (counting(10, 2), 1)]).unwrap();
        assert_eq!(labels(&even), [0, 10, 1, 11, 2]);
        assert!(Interleave::new([(counting(0, 3), 0)]).is_err());
        assert_ne!(joined.fingerprint(), even.fingerprint());
    }
}
