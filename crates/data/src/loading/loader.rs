//! The loader: what to read, in which order, and with how many threads.

mod parts;
mod settings;
mod start;

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use unisono_random::Draws;

use crate::loading::pace::{Prefetch, Settings};
use crate::loading::pipeline::{Pipeline, Stage, StageSpecs};
use crate::order::{Kind, Order};
use crate::sample::check::check_finite;
use crate::{
    Batches, BoxError, Buckets, DataError, Effects, FieldSpec, LoaderState, Position, Sample, Source,
};

/// The batch size of a loader for which none was set.
const DEFAULT_BATCH: usize = 32;

/// The name that errors and reports give to the check for finite values.
const REQUIRE_FINITE: &str = "require_finite";

/// An input pipeline (PyTorch's `DataLoader`, Keras's `tf.data.Dataset`): a source, an order, transforms,
/// batches, and threads that prepare batches ahead of time.
///
/// The number of threads decides when a batch is ready, never what is in it.
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
#[doc(alias = "DataLoader")]
#[derive(Clone)]
pub struct Loader {
    pipeline: Pipeline,
    /// `None` until it is set.
    batch: Option<usize>,
    drop_last: bool,
    /// The largest number of batches in an epoch, if it is limited.
    most_batches: Option<u64>,
    /// Whether the transform that was added last is one of batches.
    last_is_batch: bool,
    pace: Settings,
    /// The fields after each stage, and the stages' effects, found once for all clones, when first needed.
    specs: Arc<OnceLock<(Arc<StageSpecs>, Effects)>>,
    /// The flags that ask the loader and its iterators to stop.
    stop: Vec<Arc<AtomicBool>>,
}

impl Loader {
    /// Loads all samples of a source, in the source's order.
    pub fn new(source: impl Source + 'static) -> Self {
        let pipeline = Pipeline {
            source: Arc::new(source),
            stages: Vec::new(),
            batch_stages: Vec::new(),
            seed: 0,
            order: Order::plain(),
            skip: 0,
            rows: None,
        };
        let pace = Settings { threads: None, prefetch: Prefetch::Budget(None) };
        let specs = Arc::default();
        Self {
            pipeline,
            batch: None,
            drop_last: false,
            most_batches: None,
            last_is_batch: false,
            pace,
            specs,
            stop: Vec::new(),
        }
    }

    /// Sets the number of samples in a batch. Default: 32. `fit` of the crate `unisono` uses its global batch
    /// instead.
    pub fn batch(self, samples: usize) -> Self {
        Self { batch: Some(samples), ..self }
    }

    /// Shuffles every epoch differently, and sets the seed of the random draws of transforms. Default: no
    /// shuffle.
    ///
    /// The sample at a position is `unisono_random::permute(seed, epoch, position, len)`. It takes the place
    /// of [`shuffle_window`](Self::shuffle_window) if that was set before.
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.pipeline.order.shuffled = true;
        if let Kind::Window(_) = self.pipeline.order.kind {
            self.pipeline.order.kind = Kind::Plain;
        }
        self.seed(seed)
    }

    /// Shuffles within windows of this many samples, differently in every epoch. Use it for sources that are
    /// fast when they are read in sequence. A window of 0 samples is an error of the loader.
    ///
    /// The borders between windows are drawn in each epoch, so over several epochs samples cross any border.
    pub fn shuffle_window(mut self, seed: u64, samples: u64) -> Self {
        self.pipeline.order.shuffled = true;
        self.pipeline.order.set(Kind::Window(samples));
        self.seed(seed)
    }

    /// Makes each row of a batch continue where the same row of the previous batch stopped. Use it for
    /// stateful recurrent layers.
    ///
    /// With a batch of B samples, the source is cut into B stretches of nearly equal length. Row r reads
    /// stretch r, one sample for each batch. If B does not divide the number of samples, the first rows have
    /// one sample more, in a smaller last batch.
    pub fn lanes(mut self) -> Self {
        self.pipeline.order.set(Kind::Lanes(1));
        self
    }

    /// Returns whether epochs are shuffled, as a whole or within windows.
    pub fn is_shuffled(&self) -> bool {
        self.pipeline.order.shuffled
    }

    /// Returns whether samples come in the order of the source: they are not shuffled, nor in buckets or
    /// lanes.
    pub fn keeps_order(&self) -> bool {
        !self.is_shuffled() && matches!(self.pipeline.order.kind, Kind::Plain | Kind::Window(_))
    }

    /// Makes batches of sequences of similar length. See [`Buckets`].
    pub fn buckets(mut self, buckets: Buckets) -> Self {
        self.pipeline.order.set(Kind::Buckets(Arc::new(buckets)));
        self
    }

    /// Sets the seed of the random draws of transforms, without shuffling. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.pipeline.seed = seed;
        self
    }

    /// Adds a transform that cannot fail. Its random draws depend on (seed, name, epoch, position).
    ///
    /// A transform may change values, shapes, types and fields, but it must do the same for every sample: all
    /// samples must come out with the same fields as sample 0. To find these fields, the loader runs the
    /// transform on sample 0 when it starts. It runs it twice with the same draws, and a result with other
    /// bits is an error: take random numbers from the draws only.
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

    /// Adds a transform that may fail. Otherwise it is like [`map`](Self::map).
    pub fn try_map(
        self,
        name: impl Into<String>,
        transform: impl Fn(&mut Sample, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        let name = name.into();
        self.stage(
            Stage { label: format!("map '{name}'"), name, version: None, run: Arc::new(transform) },
            false,
        )
    }

    /// Adds a transform of whole batches. It runs after all other transforms. It gets each field stacked,
    /// with the samples as the first axis, and may change values only.
    ///
    /// Its random draws depend on (seed, name, epoch, position of the batch's first sample). Its result for a
    /// sample may depend on the other samples of the batch. A run that resumes in the middle of a batch
    /// therefore does not repeat it exactly.
    pub fn map_batch(
        self,
        name: impl Into<String>,
        transform: impl Fn(&mut Sample, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        let name = name.into();
        let label = format!("map_batch '{name}'");
        self.stage(Stage { label, name, version: None, run: Arc::new(transform) }, true)
    }

    /// Sets the version of the transform that was added last. Default: none. The run's identity then does not
    /// cover the transform's code.
    ///
    /// Closures cannot be compared. Change the version whenever you change the closure or a number in it.
    /// Resuming an older run with the new version is then an error.
    ///
    /// ```
    /// use unisono_data::{Loader, Memory};
    ///
    /// let numbers = Memory::labelled(vec![0.0; 8], [1], vec![0; 8])?;
    /// let loader = Loader::new(numbers).map("noise", |_, _| ()).version("2: normal, 0.01");
    /// assert_eq!(loader.settings()["transforms"], "map 'noise' version 2: normal, 0.01");
    /// # Ok::<(), unisono_data::DataError>(())
    /// ```
    pub fn version(mut self, version: impl Into<String>) -> Self {
        let pipeline = &mut self.pipeline;
        let stages = if self.last_is_batch { &mut pipeline.batch_stages } else { &mut pipeline.stages };
        if let Some(stage) = stages.last_mut() {
            stage.version = Some(version.into());
        }
        self
    }

    /// Leaves out up to `most` bad samples of the source instead of failing at the first. Default: 0.
    ///
    /// A sample is bad if fetching it, or a transform, fails. Its batch is then smaller by one, and the
    /// sample is not used again in this run or in one resumed from its [`LoaderState`]. If there are more bad
    /// samples than `most`, the next one is an error. A trainer notes in fits and evaluations what it left
    /// out. Predictions for a whole loader do not leave samples out.
    pub fn skip_bad(mut self, most: usize) -> Self {
        self.pipeline.skip = most;
        self
    }

    /// Adds a check: a sample that contains an infinity or a NaN at this stage is an error.
    pub fn require_finite(self) -> Self {
        let run = Arc::new(|sample: &mut Sample, _: &mut Draws| Ok(check_finite(sample)?));
        self.stage(Stage { label: REQUIRE_FINITE.into(), name: String::new(), version: None, run }, false)
    }

    /// Sets whether the last batch of an epoch is dropped if it is not full. Default: false. An evaluation or
    /// a prediction leaves out its samples as well, and says so.
    pub fn drop_last(self, drop_last: bool) -> Self {
        Self { drop_last, ..self }
    }

    /// Sets the number of threads that prepare batches. Each prepares one batch at a time. Default: adapts to
    /// the pace, up to one thread for each core.
    #[doc(alias = "num_workers")]
    pub fn threads(mut self, threads: usize) -> Self {
        self.pace.threads = Some(threads);
        self
    }

    /// Sets how many batches may be ready or in preparation, beyond one for each thread. Default: adapts to
    /// the pace within a budget. See [`prefetch_bytes`](Self::prefetch_bytes).
    pub fn prefetch(mut self, batches: usize) -> Self {
        self.pace.prefetch = Prefetch::Fixed(batches);
        self
    }

    /// Sets the budget in bytes for batches that are ready or in preparation. The numbers of threads and
    /// batches adapt to the pace within this budget. At least one batch is always prepared. Default: an
    /// eighth of the free memory.
    pub fn prefetch_bytes(mut self, bytes: u64) -> Self {
        self.pace.prefetch = Prefetch::Budget(Some(bytes));
        self
    }

    /// Adds a flag that asks the loader to stop, for example from a signal handler. Default: none.
    ///
    /// When a flag is true, an iterator's next batch is the error [`DataError::Stopped`], and the iterator
    /// ends. [`fields`](Self::fields) returns the same error. A wait for a sample notices the flag too, even
    /// if the source never returns that sample.
    pub fn stop_on(mut self, flag: Arc<AtomicBool>) -> Self {
        self.stop.push(flag);
        self
    }

    /// Fetches only some rows of each batch, for one of several machines that share a batch. `rows` gets the
    /// number of samples of a batch and returns the rows to fetch. It is called on the loader's threads.
    /// Default: all rows.
    ///
    /// The batch knows the indices of all its samples, and [`Batch::whole`](crate::Batch::whole) fetches the
    /// others. With [`map_batch`](Self::map_batch) and [`skip_bad`](Self::skip_bad), all rows are fetched.
    pub fn fetch_only(mut self, rows: impl Fn(usize) -> Range<usize> + Send + Sync + 'static) -> Self {
        self.pipeline.rows = Some(Arc::new(rows));
        self
    }

    /// Returns the batches of one epoch.
    ///
    /// # Errors
    /// A setting cannot work: a batch or a source without samples, a limit of 0 batches,
    /// [`Loader::drop_last`] with fewer samples than a batch, a shuffle together with [`Loader::lanes`], two
    /// of [`Loader::shuffle_window`], [`Loader::lanes`] and [`Loader::buckets`], buckets for another number
    /// of samples, two transforms with one name, or too many threads or prefetched batches. The errors of
    /// [`Loader::fields`]. The threads cannot be started. Bad samples and failing transforms are errors of
    /// the iterator.
    pub fn epoch(&self, epoch: u32) -> Result<Batches, DataError> {
        self.batches(Position { epoch, sample: 0 }.into(), u64::from(epoch) + 1)
    }

    /// Returns the batches from a position on, epoch after epoch, without end.
    ///
    /// Any position is allowed, also in the middle of a batch, and starting at any position is equally fast.
    /// If bad samples may be skipped, pass the [`LoaderState`].
    ///
    /// # Errors
    /// The errors of [`Loader::epoch`]. The position is beyond the end of an epoch. The state has more
    /// skipped samples than [`Loader::skip_bad`] allows.
    pub fn epochs_from(&self, from: impl Into<LoaderState>) -> Result<Batches, DataError> {
        self.batches(from.into(), 1 << 32)
    }

    /// Returns the batches from a position on, up to the start of epoch `end`.
    ///
    /// # Errors
    /// Those of [`Loader::epochs_from`].
    pub fn epochs(&self, from: impl Into<LoaderState>, end: u32) -> Result<Batches, DataError> {
        self.batches(from.into(), u64::from(end))
    }

    /// Returns the number of samples in the source.
    pub fn samples(&self) -> u64 {
        self.pipeline.source.len()
    }

    /// Returns the number of samples in a full batch.
    pub fn batch_size(&self) -> usize {
        self.batch.unwrap_or(DEFAULT_BATCH)
    }

    /// Returns the batch size if it was set with [`batch`](Self::batch), or `None` if it is the default.
    pub fn explicit_batch_size(&self) -> Option<usize> {
        self.batch
    }

    /// Returns the source.
    pub fn source(&self) -> &dyn Source {
        &*self.pipeline.source
    }

    /// Returns the source, shared with all clones of this loader.
    pub fn shared_source(&self) -> Arc<dyn Source> {
        self.pipeline.source.clone()
    }

    /// Asks the source for something beside its samples. `what` is the name of the function, such as
    /// "fingerprint".
    ///
    /// # Errors
    /// [`DataError::Panic`] if the source panics.
    pub fn ask_source<T>(&self, what: &str, ask: impl FnOnce(&dyn Source) -> T) -> Result<T, DataError> {
        crate::sample::check::ask(self.source(), what, ask)
    }

    /// Returns the fields of a sample after all transforms: what a model gets as its input.
    ///
    /// # Errors
    /// The source has no samples. Two transforms have one name. The first sample cannot be read, or a
    /// transform fails on it. (If [`Loader::skip_bad`] allows bad samples, the first samples are tried in
    /// turn.) Shapes differ from sample to sample, and no transform makes them equal. Buckets cut a field
    /// that samples do not have. [`DataError::Stopped`] if the loader is asked to stop.
    pub fn fields(&self) -> Result<Vec<FieldSpec>, DataError> {
        let fields = self.specs()?.last().cloned().unwrap_or_default();
        self.pipeline.order.check_fields(&fields)?;
        Ok(fields)
    }

    /// Returns what the transforms do to the fields, as far as they say it while the loader runs them on its
    /// first sample.
    ///
    /// # Errors
    /// Those of [`Loader::fields`].
    ///
    /// ```
    /// use unisono_data::{Loader, Memory, Values, augment};
    ///
    /// let pictures = Memory::new("x", [8, 8, 3], Values::F32(vec![0.5; 4 * 8 * 8 * 3]))?;
    /// let both = Loader::new(pictures.with("mask", [8, 8], Values::I32(vec![1; 4 * 8 * 8]))?);
    /// let apart = both.clone().try_map("flip", augment::flip_horizontal("x", 0.5)).effects()?.apart;
    /// assert_eq!((&*apart[0].transform, &*apart[0].left), ("map 'flip'", "mask"));
    /// let together = both.try_map("flip", augment::flip_horizontal(["x", "mask"], 0.5));
    /// assert!(together.effects()?.apart.is_empty());
    /// # Ok::<(), unisono_data::DataError>(())
    /// ```
    pub fn effects(&self) -> Result<Effects, DataError> {
        Ok(self.probed_once()?.1.clone())
    }

    fn stage(mut self, stage: Stage, of_batches: bool) -> Self {
        self.last_is_batch = of_batches;
        if of_batches {
            self.pipeline.batch_stages.push(stage);
            return self;
        }
        self.pipeline.stages.push(stage);
        self.specs = Arc::default();
        self
    }
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stages: Vec<_> = self.pipeline.stages.iter().map(|stage| &stage.label).collect();
        f.debug_struct("Loader")
            .field("samples", &self.samples())
            .field("batch", &self.batch_size())
            .field("seed", &self.pipeline.seed)
            .field("order", &self.pipeline.order)
            .field("stages", &stages)
            .field("pace", &self.pace)
            .finish_non_exhaustive()
    }
}
