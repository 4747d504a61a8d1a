//! Balanced classes: equally many samples of every class.

use std::collections::BTreeMap;
use std::sync::Arc;

use unisono_random::Permutation;

use crate::sample::check::fetch_checked;
use crate::{DataError, Fingerprint, Source, Subset, Values};

/// The way in which classes of unequal size are made equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Balance {
    /// Takes as many samples of each class as the smallest class has. The seed chooses which samples of
    /// larger classes are left out.
    Fewest,
    /// Takes as many samples of each class as the largest class has. The samples of smaller classes
    /// come several times, in the last round perhaps only some of them.
    Most,
}

/// Counts the samples of each class, by an i32 field that is a scalar. Reads every sample once. A class
/// without samples has the count 0 if the source knows the names of its classes, and is left out otherwise.
///
/// # Errors
/// A sample cannot be read; the source has no i32 field of this name, or one with more than one label a
/// sample.
pub fn class_counts(source: &dyn Source, field: &str) -> Result<BTreeMap<i32, u64>, DataError> {
    let named = source.field_classes(field).map_or(0, <[String]>::len);
    let named = i32::try_from(named).map_err(DataError::other)?;
    let mut counts: BTreeMap<i32, u64> = (0..named).map(|class| (class, 0)).collect();
    counts.extend(by_class(source, field)?.into_iter().map(|(class, indices)| (class, indices.len() as u64)));
    Ok(counts)
}

/// Returns the samples of a source with the same number of samples of each class. The classes take turns.
/// (PyTorch's `WeightedRandomSampler` is similar.)
///
/// Within a class the order is a permutation by the seed. For another order in each epoch, shuffle in the
/// loader.
///
/// # Errors
/// Those of [`class_counts`].
pub fn balance<S: Source>(
    source: S,
    field: &str,
    how: Balance,
    seed: u64,
) -> Result<Subset<Arc<S>>, DataError> {
    let classes = by_class(&source, field)?;
    let counts = classes.values().map(Vec::len);
    let each = match how {
        Balance::Fewest => counts.min(),
        Balance::Most => counts.max(),
    };
    let orders: Vec<_> = classes
        .iter()
        .map(|(&class, indices)| {
            let seed = Fingerprint::new().word(seed).word(class as u64).finish();
            (indices, Permutation::new(seed, 0, indices.len() as u64))
        })
        .collect();
    let mut chosen = Vec::new();
    for turn in 0..each.unwrap_or(0) {
        for (indices, order) in &orders {
            let at = order.at((turn % indices.len()) as u64);
            chosen.extend(at.and_then(|at| indices.get(at as usize)));
        }
    }
    Subset::new(Arc::new(source), chosen)
}

fn by_class(source: &dyn Source, field: &str) -> Result<BTreeMap<i32, Vec<u64>>, DataError> {
    let mut classes: BTreeMap<i32, Vec<u64>> = BTreeMap::new();
    for index in 0..source.len() {
        let sample = fetch_checked(source, index)?;
        let values = sample.field(field).map(|field| &field.values);
        let Some(Values::I32(labels)) = values else {
            return Err(DataError::field(field, "no such i32 field"));
        };
        let &[class] = labels.as_slice() else {
            return Err(DataError::field(field, "not one label a sample"));
        };
        classes.entry(class).or_default().push(index);
    }
    Ok(classes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    #[test]
    fn classes_come_equally_often() {
        let labels = [7, 7, 1, 7, 1, 7, 7, -2];
        let source = || Memory::labelled([0.0; 8], [1], labels).unwrap();
        assert_eq!(class_counts(&source(), "y").unwrap(), BTreeMap::from([(-2, 1), (1, 2), (7, 5)]));
        let named =
            Memory::labelled([0.0; 3], [1], [3, 0, 3]).unwrap().with_classes("y", ["a", "b", "c", "d"]);
        let counts: Vec<u64> = class_counts(&named, "y").unwrap().into_values().collect();
        assert_eq!(counts, [1, 0, 0, 2]);
        for (how, each) in [(Balance::Fewest, 1), (Balance::Most, 5)] {
            let balanced = balance(source(), "y", how, 3).unwrap();
            assert_eq!(
                class_counts(&balanced, "y").unwrap(),
                BTreeMap::from([(-2, each), (1, each), (7, each)])
            );
            assert_eq!(balanced.fingerprint(), balance(source(), "y", how, 3).unwrap().fingerprint());
        }
        // All samples of the largest class come, each once.
        let most = balance(source(), "y", Balance::Most, 3).unwrap();
        let mut sevens: Vec<u64> = (0..15)
            .map(|at| most.index_in_source(at).unwrap())
            .filter(|&at| labels[at as usize] == 7)
            .collect();
        sevens.sort();
        assert_eq!(sevens, [0, 1, 3, 5, 6]);
        assert!(balance(source(), "x", Balance::Most, 3).is_err());
    }
}
