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
use crate::{Batches, BoxError, Buckets, DataError, FieldSpec, LoaderState, Position, Sample, Source};

/// The batch size of a loader for which none was set.
const DEFAULT_BATCH: usize = 32;

/// The name that errors and reports give to the check for finite values.
const REQUIRE_FINITE: &str = "require_finite";

/// An input pipeline: a source, an order, transforms, batches, and the threads that prepare them ahead of
/// time.
///
/// Threads and prefetch decide when a batch is ready, never what is in it.
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
    /// The fields after each stage, found once for all clones, when first needed.
    specs: Arc<OnceLock<Arc<StageSpecs>>>,
    /// The flags that ask the loader and its iterators to stop.
    stop: Vec<Arc<AtomicBool>>,
}

impl Loader {
    /// Loads all samples of a source, in its own order.
    pub fn new(source: impl Source + 'static) -> Self {
        let pipeline = Pipeline {
            source: Arc::new(source),
            stages: Vec::new(),
            batch_stages: Vec::new(),
            seed: 0,
            order: Order { shuffled: false, kind: Kind::Plain },
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

    /// Sets the number of samples in a batch. Default: 32. `fit` of the crate `unisono` takes its global
    /// batch instead.
    pub fn batch(mut self, samples: usize) -> Self {
        self.batch = Some(samples);
        self
    }

    /// Shuffles every epoch anew, and sets the seed that transforms draw from. Default: no shuffle.
    ///
    /// The sample at a position is `unisono_random::permute(seed, epoch, position, len)`.
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.pipeline.order.shuffled = true;
        self.seed(seed)
    }

    /// Shuffles within windows of this many samples, anew every epoch: for sources that read well in
    /// sequence.
    ///
    /// Where windows start is drawn each epoch, so over the epochs samples meet across any border.
    pub fn shuffle_window(mut self, seed: u64, samples: u64) -> Self {
        self.pipeline.order = Order { shuffled: true, kind: Kind::Window(samples.max(1)) };
        self.seed(seed)
    }

    /// Lets each row of the batches continue its own stretch of the source, in the source's order: for
    /// stateful recurrent layers.
    ///
    /// With a batch of B, row r reads the r-th of B stretches of nearly equal length, one sample a batch.
    /// Where B does not divide the source, the first rows have one sample more, in a smaller last batch.
    pub fn lanes(mut self) -> Self {
        self.pipeline.order.kind = Kind::Lanes(1);
        self
    }

    /// Returns whether every epoch is shuffled anew, as a whole or within windows.
    pub fn is_shuffled(&self) -> bool {
        self.pipeline.order.shuffled
    }

    /// Returns whether samples come in the order of the source: they are not shuffled, nor in buckets or
    /// lanes.
    pub fn keeps_order(&self) -> bool {
        !self.is_shuffled() && matches!(self.pipeline.order.kind, Kind::Plain | Kind::Window(_))
    }

    /// Makes batches of sequences of similar length; see [`Buckets`].
    pub fn buckets(mut self, buckets: Buckets) -> Self {
        self.pipeline.order.kind = Kind::Buckets(Arc::new(buckets));
        self
    }

    /// Sets the seed that transforms draw from, without shuffling. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.pipeline.seed = seed;
        self
    }

    /// Adds a transform that cannot fail. Its draws are keyed by (seed, name, epoch, position).
    ///
    /// A transform may change values, shapes, types and fields, but in the same way for every sample: all
    /// samples must come out with the fields that sample 0 comes out with. To find these, it is run once more
    /// on sample 0 when the loader starts.
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

    /// Adds a transform that may fail; otherwise like [`map`](Self::map).
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

    /// Adds a transform of whole batches, which runs after all others. It gets each field stacked, samples
    /// first, and may change values only.
    ///
    /// Its draws are keyed by (seed, name, epoch, position of the batch's first sample). What it makes of a
    /// sample may depend on the batch, so a run that resumes within a batch does not repeat it.
    pub fn map_batch(
        self,
        name: impl Into<String>,
        transform: impl Fn(&mut Sample, &mut Draws) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        let name = name.into();
        let label = format!("map_batch '{name}'");
        self.stage(Stage { label, name, version: None, run: Arc::new(transform) }, true)
    }

    /// Sets the version of the transform that was added last. Default: none, and the transform's code is not
    /// covered by the run's identity.
    ///
    /// A closure cannot be compared with another. Change the version whenever the closure, or a number in
    /// it, changes, and a run that the old one started is not resumed with the new one unnoticed.
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
    /// A sample is bad if fetching it, or any stage, fails on it. Its batch is then that much smaller, and
    /// the sample is not used again in this run or in one resumed from its [`LoaderState`]. The first bad
    /// sample beyond that number is the error. A trainer notes in fits and evaluations what it left out;
    /// predictions for a whole loader refuse to.
    pub fn skip_bad(mut self, most: usize) -> Self {
        self.pipeline.skip = most;
        self
    }

    /// Adds a check that refuses samples which hold an infinity or a NaN at this stage.
    pub fn require_finite(self) -> Self {
        let run = Arc::new(|sample: &mut Sample, _: &mut Draws| Ok(check_finite(sample)?));
        self.stage(Stage { label: REQUIRE_FINITE.into(), name: String::new(), version: None, run }, false)
    }

    /// Sets whether an epoch's last batch is left out if it is not full. Default: false.
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// Sets the number of threads that prepare batches, each one batch at a time. Default: as many as the
    /// pace asks for, up to one a core.
    #[doc(alias = "num_workers")]
    pub fn threads(mut self, threads: usize) -> Self {
        self.pace.threads = Some(threads);
        self
    }

    /// Fixes how many batches may be ready or in preparation beyond one a thread. Default: the number follows
    /// the pace within a budget, see [`prefetch_bytes`](Self::prefetch_bytes).
    pub fn prefetch(mut self, batches: usize) -> Self {
        self.pace.prefetch = Prefetch::Fixed(batches);
        self
    }

    /// Lets the number of threads and of batches follow the pace, with no more batches ready or in
    /// preparation than fit into this many bytes, but always one. Default: an eighth of the free memory.
    pub fn prefetch_bytes(mut self, bytes: u64) -> Self {
        self.pace.prefetch = Prefetch::Budget(Some(bytes));
        self
    }

    /// Adds a flag that asks to stop, for example from a handler of signals. Default: there is none.
    ///
    /// As soon as one is true, an iterator's next batch is the error [`DataError::Stopped`], after which the
    /// iterator ends, and so is the result of [`fields`](Self::fields). A wait for a sample notices the flag
    /// too, even if the source never returns that sample.
    pub fn stop_on(mut self, flag: Arc<AtomicBool>) -> Self {
        self.stop.push(flag);
        self
    }

    /// Fetches a part of each batch only, as one of several machines that share a batch needs it. `rows` is
    /// given the number of samples of a batch and returns the rows to fetch; it is called on the loader's
    /// threads. Default: all rows.
    ///
    /// The batch knows the indices of all its samples, and [`Batch::whole`](crate::Batch::whole) fetches the
    /// rest. With [`map_batch`](Self::map_batch) and [`skip_bad`](Self::skip_bad) all rows are fetched.
    pub fn fetch_only(mut self, rows: impl Fn(usize) -> Range<usize> + Send + Sync + 'static) -> Self {
        self.pipeline.rows = Some(Arc::new(rows));
        self
    }

    /// Returns the batches of one epoch.
    ///
    /// # Errors
    /// A setting cannot work: a batch or a source without samples, a limit of no batches,
    /// [`Loader::drop_last`] with fewer samples than a batch, a shuffle with [`Loader::lanes`], buckets of
    /// another number of samples, two transforms of one name, or too many threads or batches ahead. Those of
    /// [`Loader::fields`]. The threads cannot be started. A bad sample and a transform that fails are errors
    /// of the iterator.
    pub fn epoch(&self, epoch: u32) -> Result<Batches, DataError> {
        self.batches(Position { epoch, sample: 0 }.into(), u64::from(epoch) + 1)
    }

    /// Returns the batches from a position on, epoch after epoch, without end.
    ///
    /// Any position will do, at a whole number of batches or not, and all cost the same. Where bad samples
    /// may be skipped, give the [`LoaderState`].
    ///
    /// # Errors
    /// Those of [`Loader::epoch`]; a position beyond the end of an epoch; a state with more skipped samples
    /// than [`Loader::skip_bad`] allows.
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
    /// Whoever takes another batch size instead can tell the user so.
    pub fn explicit_batch_size(&self) -> Option<usize> {
        self.batch
    }

    /// Returns the source.
    pub fn source(&self) -> &dyn Source {
        &*self.pipeline.source
    }

    /// Returns the source as clones of this loader share it.
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

    /// Returns what the fields of a sample look like after all transforms, which is what a model will be fed.
    ///
    /// # Errors
    /// The source has no samples, two transforms have one name, or the first sample cannot be read or a
    /// transform fails on it (of the first ones, where [`Loader::skip_bad`] allows bad samples); shapes that
    /// vary from sample to sample, and no transform that makes them equal; [`DataError::Stopped`] if the
    /// loader is asked to stop.
    pub fn fields(&self) -> Result<Vec<FieldSpec>, DataError> {
        Ok(self.specs()?.last().cloned().unwrap_or_default())
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
