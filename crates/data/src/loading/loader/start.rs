//! The way from a loader's settings to running threads.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Loader;
use crate::loading::pace::Pace;
use crate::loading::pipeline::StageSpecs;
use crate::order::Kind;
use crate::order::schedule::Schedule;
use crate::{Batches, DataError, LoaderState};

impl Loader {
    pub(super) fn batches(&self, from: LoaderState, end_epoch: u64) -> Result<Batches, DataError> {
        self.pace.check()?;
        let wrong = |setting, what: String| Err(DataError::Setting { setting, what });
        let (mut pipeline, batch) = (self.pipeline.clone(), self.batch_size() as u64);
        let (shuffled, mut len, mut in_buckets) = (pipeline.order.shuffled, self.samples(), None);
        match &mut pipeline.order.kind {
            Kind::Lanes(_) if shuffled => {
                return wrong("lanes", "a shuffle leaves nothing to continue".into());
            }
            Kind::Lanes(rows) => *rows = batch.max(1),
            Kind::Buckets(buckets) => {
                if buckets.len() != len {
                    return wrong("buckets", format!("{} lengths for {len} samples", buckets.len()));
                }
                Arc::make_mut(buckets).set_batch(batch);
                // Dropping batches that are not full leaves out the rests of the buckets, which come last.
                len = if self.drop_last { buckets.full() } else { len };
                in_buckets = Some(buckets.clone());
            }
            _ => {}
        }
        let schedule =
            Schedule::new(len, batch, self.drop_last, from.position, end_epoch)?.in_buckets(in_buckets);
        let specs = self.specs()?;
        let pace = Pace::new(&self.pace, specs.last().map_or(&[], Vec::as_slice), batch);
        let known: BTreeSet<u64> = from.skipped.into_iter().collect();
        if known.len() > pipeline.skip {
            let what = format!("{} samples were skipped, but only {} may be", known.len(), pipeline.skip);
            return wrong("skip_bad", what);
        }
        Batches::start(Arc::new(pipeline), specs, schedule, pace, known)
    }

    pub(super) fn specs(&self) -> Result<Arc<StageSpecs>, DataError> {
        if let Some(specs) = self.specs.get() {
            return Ok(specs.clone());
        }
        for stages in [&self.pipeline.stages, &self.pipeline.batch_stages] {
            let names: Vec<_> = stages.iter().map(|stage| &stage.name).collect();
            let twice = |(i, name): (usize, &&String)| !name.is_empty() && names[..i].contains(name);
            if let Some(at) = names.iter().enumerate().position(twice) {
                let what = format!("two are called '{}', so they would draw alike", names[at]);
                return Err(DataError::Setting { setting: "map", what });
            }
        }
        if self.pipeline.source.is_empty() {
            return Err(DataError::Setting { setting: "source", what: "it has no samples".into() });
        }
        let specs = Arc::new(self.pipeline.probe()?);
        Ok(self.specs.get_or_init(|| specs).clone())
    }
}
