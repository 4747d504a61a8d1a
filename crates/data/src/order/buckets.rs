//! Buckets: batches of sequences of similar length.

use std::sync::Arc;

use unisono_random::Permutation;

use crate::transforms::padding::LENGTH;
use crate::{DataError, FieldSpec, Fingerprint, Sample, Values};

/// Samples grouped by length, so that no batch mixes short and long sequences.
///
/// Bucket i takes the sequences no longer than boundary i and longer than the one before. A batch comes from
/// one bucket, and the first axis of the named fields is cut to the bucket's boundary. What lies beyond must
/// be padding: a sample whose bucket cuts off rows that differ from each other is an error, unless its field
/// `length` (see [`pad`](crate::pad)) is within the boundary. Full batches come first, and then the rest of
/// each bucket as a smaller batch. If the loader shuffles, the order of the full batches and of the samples
/// within a bucket is shuffled each epoch. Every sample comes once an epoch, and none is added.
///
/// A trainer of the crate `unisono` is built for the longest samples
/// ([`Loader::fields`](crate::Loader::fields)), and compiles a program for each shorter length when the first
/// batch of it comes.
#[doc(alias = "bucket_by_sequence_length")]
#[derive(Clone, Debug)]
pub struct Buckets {
    boundaries: Vec<usize>,
    fields: Vec<Arc<str>>,
    /// The samples of each bucket, which all copies share.
    members: Arc<Vec<Vec<u64>>>,
    /// The fingerprint of which samples are in which bucket.
    grouping: u64,
    /// The number of full batches in the buckets before each one, and in all of them.
    full_before: Vec<u64>,
    /// The number of samples that fill no batch in the buckets before each one, and in all of them.
    rest_before: Vec<u64>,
    batch: u64,
}

impl Buckets {
    /// Groups samples by their lengths, one length a sample, at ascending boundaries. The last boundary must
    /// not be below the longest length.
    ///
    /// # Errors
    /// Boundaries that are not ascending numbers above 0, or a length beyond the last one.
    pub fn new(
        lengths: &[u32],
        boundaries: impl Into<Vec<usize>>,
        fields: &[&str],
    ) -> Result<Self, DataError> {
        let boundaries = boundaries.into();
        let wrong = |what: String| Err(DataError::Setting { setting: "buckets", what });
        if boundaries.is_empty() || boundaries[0] == 0 || !boundaries.is_sorted_by(|a, b| a < b) {
            return wrong(format!("boundaries {boundaries:?} do not ascend from above zero"));
        }
        let mut members = vec![Vec::new(); boundaries.len()];
        for (index, &length) in lengths.iter().enumerate() {
            match members.get_mut(boundaries.partition_point(|&boundary| boundary < length as usize)) {
                Some(bucket) => bucket.push(index as u64),
                None => return wrong(format!("sample {index} of length {length} is beyond {boundaries:?}")),
            }
        }
        let fields = fields.iter().map(|&field| field.into()).collect();
        let grouping = members.iter().fold(Fingerprint::new(), |hash, members| {
            members.iter().fold(hash.word(members.len() as u64), |hash, &index| hash.word(index))
        });
        let mut buckets = Self {
            boundaries,
            fields,
            members: Arc::new(members),
            grouping: grouping.finish(),
            full_before: Vec::new(),
            rest_before: Vec::new(),
            batch: 1,
        };
        buckets.set_batch(1);
        Ok(buckets)
    }

    /// Returns the number of samples.
    pub(crate) fn len(&self) -> u64 {
        self.members.iter().map(|members| members.len() as u64).sum()
    }

    /// Checks that samples of these fields have all the fields that are cut.
    pub(crate) fn check_fields(&self, specs: &[FieldSpec]) -> Result<(), DataError> {
        let is_missing = |name: &&Arc<str>| !specs.iter().any(|spec| spec.name == **name);
        let Some(missing) = self.fields.iter().find(is_missing) else { return Ok(()) };
        let names: Vec<&str> = specs.iter().map(|spec| &*spec.name).collect();
        let what = format!("no field '{missing}' to cut: the samples have {names:?}");
        Err(DataError::Setting { setting: "buckets", what })
    }

    /// Describes the boundaries, the fields cut to them, and a fingerprint of which samples are in which
    /// bucket.
    pub(crate) fn describe(&self) -> String {
        let Self { boundaries, fields, grouping, .. } = self;
        format!("buckets up to {boundaries:?} that cut {fields:?}, grouping {grouping:016x}")
    }

    /// Sets the number of samples in a batch.
    pub(crate) fn set_batch(&mut self, batch: u64) {
        self.batch = batch.max(1);
        let sums = |count: &dyn Fn(u64) -> u64| {
            let counts = self.members.iter().map(|members| count(members.len() as u64));
            let mut sums = vec![0];
            sums.extend(counts.scan(0, |sum, count| {
                *sum += count;
                Some(*sum)
            }));
            sums
        };
        self.full_before = sums(&|len| len / self.batch);
        self.rest_before = sums(&|len| len % self.batch);
    }

    /// Returns the number of positions that full batches take. What is left of the buckets follows.
    pub(crate) fn full(&self) -> u64 {
        self.full_before.last().map_or(0, |&batches| batches * self.batch)
    }

    /// Returns how many samples of the batch that holds a position come from there on, and the batch's number
    /// in the epoch.
    pub(crate) fn batch_at(&self, position: u64) -> (u64, u64) {
        match position.checked_sub(self.full()) {
            None => (self.batch - position % self.batch, position / self.batch),
            Some(beyond) => {
                let bucket = bucket_of(&self.rest_before, beyond);
                let rests = self.rest_before[..=bucket].windows(2).filter(|pair| pair[0] < pair[1]).count();
                (self.rest_before[bucket + 1] - beyond, self.full() / self.batch + rests as u64)
            }
        }
    }

    /// Returns the number of batches in an epoch.
    pub(crate) fn batches(&self) -> u64 {
        self.len().checked_sub(1).map_or(0, |last| self.batch_at(last).1 + 1)
    }

    /// Returns the order of an epoch.
    pub(crate) fn of_epoch(&self, seed: u64, epoch: u32, shuffled: bool) -> EpochBuckets<'_> {
        let order = |salt: u64, len: u64| {
            let key = Fingerprint::new().word(seed).word(salt).finish();
            shuffled.then(|| Permutation::new(key, epoch, len))
        };
        let members = self.members.iter().enumerate();
        EpochBuckets {
            buckets: self,
            batches: order(0, self.full() / self.batch),
            members: members.map(|(i, members)| order(1 + i as u64, members.len() as u64)).collect(),
        }
    }
}

/// Returns the part that holds a place, given for each part the sum of those before it.
fn bucket_of(before: &[u64], place: u64) -> usize {
    before.partition_point(|&before| before <= place).saturating_sub(1).min(before.len().saturating_sub(2))
}

/// Checks that cutting a sample's fields to `specs` removes only padding. What is cut off counts as padding
/// if it lies behind the sample's own `length`, or if all of its rows are equal.
pub(crate) fn check_cut(sample: &Sample, specs: &[FieldSpec]) -> Result<(), DataError> {
    for ((name, field), spec) in sample.fields().zip(specs) {
        let (Some(&rows), Some(&kept)) = (field.shape.first(), spec.shape.first()) else { continue };
        if rows <= kept {
            continue;
        }
        let length = sample.i32(LENGTH).and_then(|length| usize::try_from(*length.first()?).ok());
        let values: &[u32] = match &field.values {
            Values::F32(values) => bytemuck::cast_slice(values),
            Values::I32(values) => bytemuck::cast_slice(values),
        };
        let size = values.len() / rows;
        let cut = values.get(kept * size..).unwrap_or(&[]);
        let is_alike = cut.get(size..) == cut.get(..cut.len().saturating_sub(size));
        if length.is_none_or(|length| length > kept) && !is_alike {
            let what = format!(
                "its bucket cuts off what comes after the first {kept} of {rows}, and that is no padding: \
                 Buckets::new takes the lengths of these samples, in the order of the source"
            );
            return Err(DataError::field(name, what));
        }
    }
    Ok(())
}

/// The order of one epoch.
pub(crate) struct EpochBuckets<'a> {
    buckets: &'a Buckets,
    batches: Option<Permutation>,
    members: Vec<Option<Permutation>>,
}

impl EpochBuckets<'_> {
    /// Returns the bucket of a position, and which of the bucket's samples it is before they are shuffled, or
    /// `None` where the order of the batches has no such position.
    fn place(&self, position: u64) -> Option<(usize, u64)> {
        let buckets = self.buckets;
        match position.checked_sub(buckets.full()) {
            None => {
                let batch = position / buckets.batch;
                let batch = self.batches.as_ref().map_or(Some(batch), |order| order.at(batch))?;
                let bucket = bucket_of(&buckets.full_before, batch);
                Some((
                    bucket,
                    (batch - buckets.full_before[bucket]) * buckets.batch + position % buckets.batch,
                ))
            }
            Some(beyond) => {
                let bucket = bucket_of(&buckets.rest_before, beyond);
                let full = buckets.members[bucket].len() as u64 / buckets.batch * buckets.batch;
                Some((bucket, full + beyond - buckets.rest_before[bucket]))
            }
        }
    }

    /// Returns the index in the source of the sample at a position, or `None` beyond the epoch's end.
    pub fn at(&self, position: u64) -> Option<u64> {
        let (bucket, at) = self.place(position)?;
        let at = self.members[bucket].as_ref().map_or(Some(at), |order| order.at(at))?;
        self.buckets.members[bucket].get(at as usize).copied()
    }

    /// Returns what the fields look like in the batch at a position.
    pub fn cut_to(&self, first: u64, specs: &[FieldSpec]) -> Vec<FieldSpec> {
        let Some((bucket, _)) = self.place(first) else { return specs.to_vec() };
        let boundary = self.buckets.boundaries[bucket];
        let mut specs = specs.to_vec();
        for spec in specs.iter_mut().filter(|spec| self.buckets.fields.contains(&spec.name)) {
            if let Some(extent) = spec.shape.first_mut() {
                *extent = boundary.min(*extent);
            }
        }
        specs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Field;

    /// Each fit sets the batch of a copy that a loader has.
    #[test]
    fn a_copy_with_another_batch_shares_the_samples() {
        let buckets = Arc::new(Buckets::new(&[3; 100], [4], &[]).unwrap());
        let mut other = Arc::clone(&buckets);
        Arc::make_mut(&mut other).set_batch(8);
        assert_eq!((buckets.full(), other.full()), (100, 96));
        assert!(std::ptr::eq(&raw const buckets.members[0][0], &raw const other.members[0][0]));
    }

    #[test]
    fn what_is_cut_off_has_to_be_padding() {
        let spec = |rows| [Field::i32([rows, 2], []).spec("x"), Field::i32([], []).spec(LENGTH)];
        let sample = |values: [i32; 8]| Sample::new().with("x", Field::i32([4, 2], values));
        let padded = sample([1, 2, 3, 4, 0, 9, 0, 9]);
        assert!(check_cut(&padded, &spec(2)).is_ok() && check_cut(&padded, &spec(4)).is_ok());
        let error = check_cut(&padded, &spec(1)).unwrap_err().to_string();
        assert!(
            error.starts_with("field 'x': its bucket cuts off what comes after the first 1 of 4"),
            "{error}"
        );
        // Noise in the padding does not matter where the sample has its length.
        let with = |length| sample([1, 2, 3, 4, 0, 9, 9, 0]).with(LENGTH, Field::i32([], [length]));
        assert!(check_cut(&with(2), &spec(2)).is_ok());
        assert!(check_cut(&with(3), &spec(2)).is_err() && check_cut(&with(3), &spec(3)).is_ok());
    }
}
