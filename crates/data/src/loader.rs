//! The builder: what to read, in which order, with how many threads.

use std::sync::{Arc, OnceLock};

use unisono_random::Draws;

use crate::pipeline::{Pipeline, Stage, StageSpecs};
use crate::schedule::Schedule;
use crate::transform::check_finite;
use crate::{Batches, BoxError, DataError, FieldSpec, Position, Sample, Source};

/// Beyond these, a setting is taken for a mistake.
const MOST_THREADS: usize = 1024;
const MOST_PREFETCH: usize = 65_536;

/// An input pipeline: a source, an order, transforms, batches, and the threads that prepare them ahead of time.
///
/// Threads and prefetch change when a batch is ready, never what is in it.
///
/// ```
/// use unisono_data::{Loader, Memory, Position};
///
/// let numbers = Memory::labelled((0..10).map(|i| i as f32).collect::<Vec<_>>(), [1], vec![0; 10])?;
/// let loader = Loader::new(numbers).batch(4).shuffle(7).threads(2).map("jitter", |sample, draws| {
///     for x in sample.f32_mut("x").into_iter().flatten() {
///         *x += draws.range(-0.1, 0.1);
///     }
/// });
///
/// let whole: Vec<_> = loader.epoch(3)?.collect::<Result<_, _>>()?;
/// assert_eq!(whole.iter().map(|batch| batch.len()).collect::<Vec<_>>(), [4, 4, 2]);
///
/// // Starting at the second batch gives the second batch.
/// let mut resumed = loader.epochs_from(Position { epoch: 3, sample: 4 })?;
/// assert_eq!(resumed.next().unwrap()?, whole[1]);
/// # Ok::<(), unisono_data::DataError>(())
/// ```
#[derive(Clone)]
pub struct Loader {
    pipeline: Pipeline,
    batch: usize,
    drop_last: bool,
    threads: usize,
    prefetch: usize,
    /// Found once, when first needed.
    specs: OnceLock<Arc<StageSpecs>>,
}

impl Loader {
    /// All samples of a source in its own order, in batches of 32.
    pub fn new(source: impl Source + 'static) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pipeline = Pipeline { source: Arc::new(source), stages: Vec::new(), seed: 0, shuffled: false };
        Self {
            pipeline,
            batch: 32,
            drop_last: false,
            threads: cores.min(8),
            prefetch: 2,
            specs: OnceLock::new(),
        }
    }

    /// How many samples make a batch.
    pub fn batch(mut self, samples: usize) -> Self {
        self.batch = samples;
        self
    }

    /// Shuffles every epoch anew, and sets the seed that transforms draw from.
    ///
    /// The sample at a position is `unisono_random::permute(seed, epoch, position, len)`.
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.pipeline.shuffled = true;
        self.seed(seed)
    }

    /// Sets the seed that transforms draw from, without shuffling. It is 0 unless told.
    pub fn seed(mut self, seed: u64) -> Self {
        self.pipeline.seed = seed;
        self
    }

    /// Adds a transform that cannot fail. Its draws are keyed by (seed, name, epoch, position).
    ///
    /// A transform may change values, shapes, types and fields, but alike for every sample: what it makes of sample 0
    /// is what it must make of all. For that it is run once more when the loader starts.
    pub fn map(
        self,
        name: impl Into<String>,
        transform: impl Fn(&mut Sample, &mut Draws) + Send + Sync + 'static,
    ) -> Self {
        self.try_map(name, move |sample, draws| {
            transform(sample, draws);
            Ok(())
        })
    }

    /// [`map`](Self::map), for a transform that may fail.
    pub fn try_map(
        self,
        name: impl Into<String>,
        transform: impl Fn(&mut Sample, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        let name = name.into();
        self.stage(Stage { label: format!("map '{name}'"), name, run: Arc::new(transform) })
    }

    /// Refuses samples that hold an infinity or a NaN at this stage.
    pub fn require_finite(self) -> Self {
        let run = Arc::new(|sample: &mut Sample, _: &mut Draws| Ok(check_finite(sample)?));
        self.stage(Stage { label: "require_finite".into(), name: String::new(), run })
    }

    /// Whether to leave out an epoch's last batch when it is not full. It is kept unless told.
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// How many threads prepare batches, each one batch at a time. One a core, at most eight, unless told.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// How many batches may be ready or in the making beyond one a thread. Two unless told.
    pub fn prefetch(mut self, batches: usize) -> Self {
        self.prefetch = batches;
        self
    }

    /// The batches of one epoch.
    pub fn epoch(&self, epoch: u32) -> Result<Batches, DataError> {
        self.batches(Position { epoch, sample: 0 }, u64::from(epoch) + 1)
    }

    /// The batches from a position on, epoch after epoch, without end.
    ///
    /// Any position will do, a whole number of batches or not, and all cost the same.
    pub fn epochs_from(&self, position: Position) -> Result<Batches, DataError> {
        self.batches(position, 1 << 32)
    }

    /// The batches from a position on, up to the start of epoch `end`.
    pub fn epochs(&self, from: Position, end: u32) -> Result<Batches, DataError> {
        self.batches(from, u64::from(end))
    }

    /// How many samples the source has.
    pub fn samples(&self) -> u64 {
        self.pipeline.source.len()
    }

    /// How many batches make an epoch.
    pub fn batches_per_epoch(&self) -> u64 {
        let batch = (self.batch as u64).max(1);
        if self.drop_last { self.samples() / batch } else { self.samples().div_ceil(batch) }
    }

    /// How many samples make a full batch.
    pub fn batch_size(&self) -> usize {
        self.batch
    }

    /// The source.
    pub fn source(&self) -> &dyn Source {
        &*self.pipeline.source
    }

    /// What the fields of a sample look like after all transforms: what a model will be fed.
    pub fn fields(&self) -> Result<Vec<FieldSpec>, DataError> {
        Ok(self.specs()?.last().cloned().unwrap_or_default())
    }

    fn stage(mut self, stage: Stage) -> Self {
        self.pipeline.stages.push(stage);
        self.specs = OnceLock::new();
        self
    }

    fn batches(&self, from: Position, end_epoch: u64) -> Result<Batches, DataError> {
        let wrong = |setting, what: String| Err(DataError::Setting { setting, what });
        if !(1..=MOST_THREADS).contains(&self.threads) {
            return wrong("threads", format!("{} is not within 1 and {MOST_THREADS}", self.threads));
        }
        if self.prefetch > MOST_PREFETCH {
            return wrong("prefetch", format!("{} is more than {MOST_PREFETCH} batches", self.prefetch));
        }
        let schedule = Schedule::new(self.samples(), self.batch as u64, self.drop_last, from, end_epoch)?;
        let specs = self.specs()?;
        Batches::start(Arc::new(self.pipeline.clone()), specs, schedule, self.threads, self.prefetch)
    }

    fn specs(&self) -> Result<Arc<StageSpecs>, DataError> {
        if let Some(specs) = self.specs.get() {
            return Ok(specs.clone());
        }
        let names: Vec<_> = self.pipeline.stages.iter().map(|stage| &stage.name).collect();
        let twice = |(i, name): (usize, &&String)| !name.is_empty() && names[..i].contains(name);
        if let Some(at) = names.iter().enumerate().position(twice) {
            let what = format!("two are called '{}', so they would draw alike", names[at]);
            return Err(DataError::Setting { setting: "map", what });
        }
        if self.pipeline.source.is_empty() {
            return Err(DataError::Setting { setting: "source", what: "it has no samples".into() });
        }
        let specs = Arc::new(self.pipeline.probe()?);
        Ok(self.specs.get_or_init(|| specs).clone())
    }
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stages: Vec<_> = self.pipeline.stages.iter().map(|stage| &stage.label).collect();
        f.debug_struct("Loader")
            .field("samples", &self.samples())
            .field("batch", &self.batch)
            .field("seed", &self.pipeline.seed)
            .field("shuffled", &self.pipeline.shuffled)
            .field("stages", &stages)
            .field("threads", &self.threads)
            .field("prefetch", &self.prefetch)
            .finish_non_exhaustive()
    }
}
