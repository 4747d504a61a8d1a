//! Batches of sequences of similar length.

use std::sync::Arc;

use unisono_random::Permutation;

use crate::{DataError, FieldSpec, Fingerprint};

/// Samples grouped by length, so that no batch mixes short and long sequences.
///
/// Bucket i takes the sequences no longer than boundary i and longer than the one before. A batch comes from one bucket,
/// and the first axis of the fields named is cut to the bucket's boundary; what is beyond must be padding. Full batches
/// come first (in an order shuffled each epoch, if the loader shuffles, as the samples within a bucket are), then each
/// bucket's rest as a smaller batch: every sample comes once an epoch, and none is added.
///
/// For loops of one's own: the trainer of the facade takes one shape of each field, so with it only buckets that cut no field train.
#[derive(Clone, Debug)]
pub struct Buckets {
    boundaries: Vec<usize>,
    fields: Vec<Arc<str>>,
    /// The samples of each bucket.
    members: Vec<Vec<u64>>,
    /// Of each bucket and after the last: how many full batches, and how many samples left over, came in those before.
    full_before: Vec<u64>,
    rest_before: Vec<u64>,
    batch: u64,
}

impl Buckets {
    /// Groups samples by their lengths, one a sample, at ascending boundaries; the last must be the longest or above.
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
        let mut buckets =
            Self { boundaries, fields, members, full_before: Vec::new(), rest_before: Vec::new(), batch: 1 };
        buckets.set_batch(1);
        Ok(buckets)
    }

    /// How many samples there are.
    pub(crate) fn len(&self) -> u64 {
        self.members.iter().map(|members| members.len() as u64).sum()
    }

    /// The boundaries, the fields that are cut to them, and a fingerprint of which samples are where.
    pub(crate) fn describe(&self) -> String {
        let members = self.members.iter().fold(Fingerprint::new(), |hash, members| {
            members.iter().fold(hash.word(members.len() as u64), |hash, &index| hash.word(index))
        });
        let Self { boundaries, fields, .. } = self;
        format!("buckets up to {boundaries:?} that cut {fields:?}, grouping {:016x}", members.finish())
    }

    /// Fixes how many samples make a batch.
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

    /// How many positions full batches take; the rests follow.
    pub(crate) fn full(&self) -> u64 {
        self.full_before.last().map_or(0, |&batches| batches * self.batch)
    }

    /// How many samples the batch that holds a position has from there on, and its number in the epoch.
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

    /// How many batches an epoch has.
    pub(crate) fn batches(&self) -> u64 {
        self.len().checked_sub(1).map_or(0, |last| self.batch_at(last).1 + 1)
    }

    /// The order of an epoch.
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

/// The part that holds a place, given the sums of the parts before each.
fn bucket_of(before: &[u64], place: u64) -> usize {
    before.partition_point(|&before| before <= place).saturating_sub(1).min(before.len().saturating_sub(2))
}

/// The order of one epoch.
pub(crate) struct EpochBuckets<'a> {
    buckets: &'a Buckets,
    batches: Option<Permutation>,
    members: Vec<Option<Permutation>>,
}

impl EpochBuckets<'_> {
    /// The bucket of a position, and which of its samples, before they are shuffled.
    fn place(&self, position: u64) -> (usize, u64) {
        let buckets = self.buckets;
        match position.checked_sub(buckets.full()) {
            None => {
                let batch = position / buckets.batch;
                let batch = self.batches.as_ref().map_or(batch, |order| order.at(batch));
                let bucket = bucket_of(&buckets.full_before, batch);
                (bucket, (batch - buckets.full_before[bucket]) * buckets.batch + position % buckets.batch)
            }
            Some(beyond) => {
                let bucket = bucket_of(&buckets.rest_before, beyond);
                let full = buckets.members[bucket].len() as u64 / buckets.batch * buckets.batch;
                (bucket, full + beyond - buckets.rest_before[bucket])
            }
        }
    }

    /// The source's index of the sample at a position.
    pub fn at(&self, position: u64) -> u64 {
        let (bucket, at) = self.place(position);
        let at = self.members[bucket].as_ref().map_or(at, |order| order.at(at));
        self.buckets.members[bucket][at as usize]
    }

    /// What the fields look like in the batch at a position.
    pub fn cut_to(&self, first: u64, specs: &[FieldSpec]) -> Vec<FieldSpec> {
        let (bucket, _) = self.place(first);
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
