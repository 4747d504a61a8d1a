//! The settings that a resumed run compares with its own.

use std::collections::BTreeMap;

use super::Loader;
use crate::loading::pipeline::Stage;
use crate::order::Kind;

impl Loader {
    /// Returns the settings that determine the order and the contents of the samples, each by its name: the
    /// seed (if anything is drawn), the order, the limit of batches in an epoch (if there is one), whether
    /// the last batch is dropped, and the transforms in their order, by kind, name and version. Equal
    /// settings over the same source give the same samples in the same order, as far as the names and
    /// versions of the transforms tell.
    ///
    /// Settings that only decide how fast batches come, or which samples may be refused, are left out.
    ///
    /// ```
    /// use unisono_data::{Loader, Memory};
    ///
    /// let numbers = Memory::labelled(vec![0.0; 8], [1], vec![0; 8])?;
    /// let settings = Loader::new(numbers).shuffle_window(7, 4).map("jitter", |_, _| ()).settings();
    /// let settings: Vec<_> = settings.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    /// let expected =
    ///     ["drop_last: false", "order: shuffled in windows of 4", "seed: 7", "transforms: map 'jitter'"];
    /// assert_eq!(settings, expected);
    /// # Ok::<(), unisono_data::DataError>(())
    /// ```
    pub fn settings(&self) -> BTreeMap<String, String> {
        let pipeline = &self.pipeline;
        let shuffled = pipeline.order.shuffled;
        let order = match &pipeline.order.kind {
            Kind::Plain => if shuffled { "shuffled" } else { "as in the source" }.to_owned(),
            Kind::Window(samples) => format!("shuffled in windows of {samples}"),
            Kind::Lanes(_) => "lanes".to_owned(),
            Kind::Buckets(buckets) if shuffled => format!("shuffled, {}", buckets.describe()),
            Kind::Buckets(buckets) => buckets.describe(),
        };
        // A check changes no value, so it may be added to a run that is resumed, to find a bad sample.
        let changing = pipeline.stages.iter().filter(|stage| stage.label != super::REQUIRE_FINITE);
        let transforms: Vec<_> = changing.chain(&pipeline.batch_stages).map(described).collect();
        let limit = self.most_batches.map(|most| ("limit", format!("{most} batches an epoch")));
        let seed = (shuffled || !transforms.is_empty()).then(|| ("seed", pipeline.seed.to_string()));
        let others = [
            ("order", order),
            ("drop_last", self.drop_last.to_string()),
            ("transforms", if transforms.is_empty() { "none".to_owned() } else { transforms.join(", ") }),
        ];
        seed.into_iter().chain(limit).chain(others).map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

impl Loader {
    /// Returns the transforms whose code no version stands for, by kind and name. [`Loader::settings`] tells
    /// them from others by their names alone.
    pub fn unversioned(&self) -> Vec<String> {
        let stages = self.pipeline.stages.iter().chain(&self.pipeline.batch_stages);
        let unversioned =
            stages.filter(|stage| stage.version.is_none() && stage.label != super::REQUIRE_FINITE);
        unversioned.map(|stage| stage.label.clone()).collect()
    }
}

/// Returns a transform's kind and name, and its version if it has one.
fn described(stage: &Stage) -> String {
    match &stage.version {
        Some(version) => format!("{} version {version}", stage.label),
        None => stage.label.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buckets, Memory};

    fn plain() -> Loader {
        Loader::new(Memory::labelled(vec![0.0; 6], [1], vec![0; 6]).unwrap())
    }

    /// Returns the names of the settings that differ.
    fn differ(a: &Loader, b: &Loader) -> Vec<String> {
        let (a, b) = (a.settings(), b.settings());
        let names = a.keys().chain(b.keys()).filter(|&name| a.get(name) != b.get(name)).cloned();
        names.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    }

    #[test]
    fn whatever_changes_samples_or_their_order_shows() {
        let buckets = |boundaries: [usize; 2], lengths: [u32; 6]| {
            plain().buckets(Buckets::new(&lengths, boundaries, &["x"]).unwrap())
        };
        let grouped = buckets([2, 4], [1, 2, 3, 4, 1, 2]);
        let mapped = plain().map("a", |_, _| ()).map("b", |_, _| ());
        for (a, b, expected) in [
            (plain().shuffle(1), plain().shuffle(2), &["seed"][..]),
            (plain().shuffle(1), plain(), &["order", "seed"]),
            (plain().shuffle(1), plain().shuffle_window(1, 6), &["order"]),
            (plain().shuffle_window(1, 3), plain().shuffle_window(1, 4), &["order"]),
            (plain().lanes(), plain(), &["order"]),
            (grouped.clone(), plain(), &["order"]),
            (grouped.clone(), buckets([3, 4], [1, 2, 3, 4, 1, 2]), &["order"]),
            (grouped.clone(), buckets([2, 4], [1, 3, 2, 4, 1, 2]), &["order"]),
            (plain().drop_last(true), plain(), &["drop_last"]),
            (plain().limit_batches(3), plain(), &["limit"]),
            (mapped.clone(), mapped.clone().seed(1), &["seed"]),
            (mapped.clone(), plain().map("b", |_, _| ()).map("a", |_, _| ()), &["transforms"]),
            (mapped.clone(), plain().map("a", |_, _| ()).map_batch("b", |_, _| Ok(())), &["transforms"]),
            // These change nothing: a seed from which nothing is drawn, checks, threads.
            (plain().seed(1), plain(), &[]),
            (mapped.clone(), mapped.clone().require_finite().skip_bad(3), &[]),
            (mapped.clone(), mapped.clone().threads(2).prefetch(5).batch(3), &[]),
        ] {
            assert_eq!(differ(&a, &b), expected, "{a:?} {b:?}");
        }
    }
}
