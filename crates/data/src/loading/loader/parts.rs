//! Parts of a loader: fewer batches of each epoch, and samples that are held out.

use std::sync::Arc;

use super::Loader;
use crate::order::{Kind, Order};
use crate::{DataError, split};

impl Loader {
    /// Ends each epoch after this many batches (Keras's `steps_per_epoch` and `validation_steps`, Lightning's
    /// `limit_train_batches` and `limit_val_batches`). Default: an epoch has all samples.
    ///
    /// If the loader shuffles, each epoch has other samples. The limit is a part of the order of the data,
    /// and so of a run's identity.
    ///
    /// ```
    /// use unisono_data::{Loader, Memory};
    ///
    /// let all = Loader::new(Memory::labelled(vec![0.0; 10], [1], vec![0; 10])?).batch(4);
    /// let loader = all.limit_batches(2);
    /// assert_eq!((loader.batches_per_epoch(), loader.samples_per_epoch()), (2, 8));
    /// assert_eq!(loader.epoch(0)?.count(), 2);
    /// # Ok::<(), unisono_data::DataError>(())
    /// ```
    #[doc(alias("limit_train_batches", "steps_per_epoch", "validation_steps"))]
    pub fn limit_batches(self, batches: u64) -> Self {
        Self { most_batches: Some(batches), ..self }
    }

    /// Returns the number of batches in an epoch.
    pub fn batches_per_epoch(&self) -> u64 {
        self.full_epoch().min(self.most_batches.unwrap_or(u64::MAX))
    }

    /// Returns the number of samples in an epoch: all that batches are made of, those included that turn out
    /// to be bad.
    pub fn samples_per_epoch(&self) -> u64 {
        let batch = (self.batch_size() as u64).max(1);
        let batches = self.batches_per_epoch();
        if batches == self.full_epoch() && !self.drop_last {
            return self.samples();
        }
        let full = match &self.pipeline.order.kind {
            Kind::Buckets(buckets) => {
                let mut buckets = (**buckets).clone();
                buckets.set_batch(batch);
                let full = buckets.full();
                let rests = batches.saturating_sub(full / batch);
                return (0..rests).fold(full.min(batches * batch), |at, _| at + buckets.batch_at(at).0);
            }
            _ => batches.saturating_mul(batch),
        };
        full.min(self.samples())
    }

    /// Returns the number of batches in an epoch without a limit.
    fn full_epoch(&self) -> u64 {
        let batch = (self.batch_size() as u64).max(1);
        if let Kind::Buckets(buckets) = &self.pipeline.order.kind {
            let mut buckets = (**buckets).clone();
            buckets.set_batch(batch);
            return if self.drop_last { buckets.full() / batch } else { buckets.batches() };
        }
        if self.drop_last { self.samples() / batch } else { self.samples().div_ceil(batch) }
    }

    /// Splits the samples at random into a training loader and a validation loader that have no sample in
    /// common, and returns both. (Keras's `validation_split` takes the last samples of the data instead,
    /// which may all be of one class.)
    ///
    /// `fraction` is the share of the samples that goes to validation, rounded to the nearest sample. The
    /// split depends only on the loader's seed and the number of samples. Both loaders keep the transforms
    /// added so far, and the validation loader does not shuffle. Add augmentation to the training loader
    /// after the split.
    ///
    /// ```
    /// use unisono_data::{Loader, Memory};
    ///
    /// let all = Loader::new(Memory::labelled(vec![0.0; 10], [1], vec![0; 10])?).shuffle(7);
    /// let (train, validation) = all.validation_split(0.2)?;
    /// assert_eq!((train.samples(), validation.samples()), (8, 2));
    /// # Ok::<(), unisono_data::DataError>(())
    /// ```
    ///
    /// # Errors
    /// A part would be empty; the loader has buckets or lanes, whose source has to be split instead.
    pub fn validation_split(&self, fraction: f64) -> Result<(Self, Self), DataError> {
        let wrong = |what: String| Err(DataError::Setting { setting: "validation_split", what });
        if let Kind::Buckets(_) | Kind::Lanes(_) = &self.pipeline.order.kind {
            return wrong("buckets and lanes are those of all samples: split the source first".into());
        }
        let samples = self.samples();
        let held_out = (samples as f64 * fraction).round();
        if !(held_out >= 1.0 && held_out < samples as f64) {
            return wrong(format!("a fraction of {fraction} of {samples} samples leaves one part empty"));
        }
        let parts = split(self.shared_source(), samples - held_out as u64, self.pipeline.seed)?;
        let [train, mut validation] = parts.map(|part| {
            let mut loader = self.clone();
            loader.pipeline.source = Arc::new(part);
            loader.specs = Arc::default();
            loader
        });
        validation.pipeline.order = Order::plain();
        Ok((train, validation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buckets, Memory};

    fn loader(samples: i32) -> Loader {
        let labels: Vec<i32> = (0..samples).collect();
        Loader::new(Memory::labelled(vec![0.0; 4 * samples as usize], [4], labels).unwrap()).batch(4)
    }

    fn labels(loader: &Loader, epoch: u32) -> Vec<i32> {
        let batches = loader.epoch(epoch).unwrap().map(|batch| batch.unwrap().i32("y").unwrap().to_vec());
        batches.flatten().collect()
    }

    #[test]
    fn a_limit_takes_the_first_batches_of_each_epoch() {
        let all = loader(18).shuffle(3);
        let some = all.clone().limit_batches(2);
        for epoch in [0, 1] {
            assert_eq!(labels(&some, epoch), labels(&all, epoch)[..8]);
        }
        assert_ne!(labels(&some, 0), labels(&some, 1));
        assert_eq!((some.batches_per_epoch(), some.samples_per_epoch()), (2, 8));
        let more = all.limit_batches(50);
        assert_eq!((more.batches_per_epoch(), more.samples_per_epoch()), (5, 18));
        assert!(more.limit_batches(0).epoch(0).is_err());
    }

    #[test]
    fn a_limit_counts_batches_of_buckets_too() {
        let lengths: Vec<u32> = (0..18).map(|at| 1 + at % 3).collect();
        let buckets = loader(18).buckets(Buckets::new(&lengths, [1, 2, 4], &["x"]).unwrap());
        for most in 1..=buckets.batches_per_epoch() {
            let some = buckets.clone().limit_batches(most);
            assert_eq!(some.epoch(0).unwrap().count() as u64, most);
            assert_eq!(some.samples_per_epoch(), labels(&some, 0).len() as u64);
        }
    }

    #[test]
    fn what_is_held_out_is_not_trained_on() {
        let (train, held_out) = loader(10).shuffle(5).validation_split(0.3).unwrap();
        let (mut seen, rest) = (labels(&train, 0), labels(&held_out, 0));
        assert_eq!(rest, labels(&held_out, 1));
        seen.extend(&rest);
        seen.sort_unstable();
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
        assert_ne!(labels(&train, 0), labels(&train, 1));
        for fraction in [0.0, 0.04, 1.0, -0.5, f64::NAN] {
            assert!(loader(10).validation_split(fraction).is_err(), "{fraction}");
        }
        assert!(loader(10).lanes().validation_split(0.5).is_err());
    }
}
