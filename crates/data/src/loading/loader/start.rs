//! The way from a loader's settings to running threads.

use std::sync::Arc;

use crossbeam_channel::{RecvTimeoutError, bounded};

use super::{Loader, REQUIRE_FINITE};
use crate::loading::known::Known;
use crate::loading::pace::Pace;
use crate::loading::pipeline::StageSpecs;
use crate::loading::prefetch::{LOOK, is_asked};
use crate::order::Kind;
use crate::order::schedule::Schedule;
use crate::sample::check::no_samples;
use crate::{Batches, DataError, Effects, LoaderState};

impl Loader {
    pub(super) fn batches(&self, from: LoaderState, end_epoch: u64) -> Result<Batches, DataError> {
        self.pace.check()?;
        let wrong = |setting, what: String| Err(DataError::Setting { setting, what });
        let (mut pipeline, batch) = (self.pipeline.clone(), self.batch_size() as u64);
        let len = self.ask_source("len", |source| source.len())?;
        if len == 0 {
            return Err(no_samples(self.source()));
        }
        let (shuffled, mut len, mut in_buckets) = (pipeline.order.shuffled, len, None);
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
                if len == 0 {
                    return wrong(
                        "drop_last",
                        format!("no bucket has enough samples for a batch of {batch}"),
                    );
                }
                in_buckets = Some(buckets.clone());
            }
            _ => {}
        }
        if self.most_batches == Some(0) {
            return wrong("limit_batches", "an epoch needs at least one batch".into());
        }
        let schedule = Schedule::new(len, batch, self.drop_last, from.position, end_epoch)?;
        let schedule = schedule.in_buckets(in_buckets).limited(self.most_batches);
        let specs = self.specs()?;
        self.pipeline.order.check_fields(specs.last().map_or(&[], Vec::as_slice))?;
        let pace = Pace::new(&self.pace, specs.last().map_or(&[], Vec::as_slice), batch);
        let known = Known::new(from.skipped);
        if known.len() > pipeline.skip {
            let what = format!("{} samples were skipped, but only {} may be", known.len(), pipeline.skip);
            return wrong("skip_bad", what);
        }
        Batches::start(Arc::new(pipeline), specs, schedule, pace, known, self.stop.clone())
    }

    pub(super) fn specs(&self) -> Result<Arc<StageSpecs>, DataError> {
        Ok(self.probed_once()?.0.clone())
    }

    /// Returns what a first sample shows of the transforms.
    pub(super) fn probed_once(&self) -> Result<&(Arc<StageSpecs>, Effects), DataError> {
        self.check_names()?;
        if let Some(found) = self.specs.get() {
            return Ok(found);
        }
        if self.ask_source("is_empty", |source| source.is_empty())? {
            return Err(no_samples(&*self.pipeline.source));
        }
        let (specs, effects) = self.probed()?;
        Ok(self.specs.get_or_init(|| (Arc::new(specs), effects)))
    }

    /// Checks that no two transforms have one name.
    fn check_names(&self) -> Result<(), DataError> {
        let stages = [("map", &self.pipeline.stages), ("map_batch", &self.pipeline.batch_stages)];
        for (setting, stages) in stages {
            let named = stages.iter().filter(|stage| stage.label != REQUIRE_FINITE);
            let names: Vec<&String> = named.map(|stage| &stage.name).collect();
            let twice = |&at: &usize| names[..at].contains(&names[at]);
            if let Some(at) = (0..names.len()).find(twice) {
                let what = format!("two are called '{}', so they would draw alike", names[at]);
                return Err(DataError::Setting { setting, what });
            }
        }
        Ok(())
    }

    /// Finds the fields after each stage. If the loader can be stopped, a sample is read on a thread of its
    /// own, so that a source that does not return delays no stop. That thread then ends when the source
    /// returns.
    fn probed(&self) -> Result<(StageSpecs, Effects), DataError> {
        if self.stop.is_empty() || !self.pipeline.reads_to_probe() {
            return self.pipeline.probe();
        }
        let (pipeline, (answer, found)) = (self.pipeline.clone(), bounded(1));
        std::thread::Builder::new()
            .name("unisono-data-probe".into())
            .spawn(move || {
                // Nobody waits for the answer any more if the loader was stopped.
                let _ = answer.send(pipeline.probe());
            })
            .map_err(|error| DataError::Threads(error.to_string()))?;
        loop {
            match found.recv_timeout(LOOK) {
                Ok(found) => return found,
                Err(RecvTimeoutError::Timeout) if is_asked(&self.stop) => {
                    return Err(DataError::Stopped);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(DataError::Threads("the one that reads a first sample panicked".into()));
                }
            }
        }
    }
}
