//! The pipeline of one sample and of one batch: pure functions of (source, seed, epoch, position).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use unisono_random::Draws;

use crate::loading::known::Known;
use crate::loading::seen::Meters;
use crate::order::Order;
use crate::order::buckets::check_cut;
use crate::order::schedule::Unit;
use crate::sample::batch::Stack;
use crate::sample::check::{ask, check, fetch_checked, guarded};
use crate::sample::effects::{self, Effect};
use crate::{
    Batch, BoxError, DataError, Effects, FieldSpec, Fingerprint, MovedApart, Sample, Scaled, Source,
};

/// Returns whether two samples have the same fields with the same bits.
fn has_bits_of(a: &Sample, b: &Sample) -> bool {
    let bits = |sample: &Sample| -> Vec<u64> {
        sample.fields().map(|(_, field)| Fingerprint::new().values(&field.values).finish()).collect()
    };
    a.specs() == b.specs() && bits(a) == bits(b)
}

/// Adds an effect of a stage that has run on a sample. `before` is the sample as the stage got it.
fn take(effect: &Effect, drew: bool, before: &Sample, stage: &str, all: &mut Effects) {
    let transform = stage.to_owned();
    match effect {
        Effect::Scales { field, settings, samples } => {
            let (field, settings, samples) = (field.clone(), *settings, *samples);
            all.scaled.push(Scaled { transform, field, settings, samples });
        }
        Effect::Moves(fields) if drew => {
            let Some(size) = fields.first().and_then(|name| picture_size(before, name)) else { return };
            let is_left = |name: &str| {
                !fields.iter().any(|moved| moved == name) && picture_size(before, name) == Some(size)
            };
            let left = before.fields().map(|(name, _)| &**name).filter(|name| is_left(name));
            all.apart.extend(left.map(|left| MovedApart {
                transform: transform.clone(),
                moved: fields[0].clone(),
                left: left.to_owned(),
            }));
        }
        Effect::Moves(_) => {}
    }
}

/// Returns the height and the width of a field that may be a picture, with its channels last or first.
fn picture_size(sample: &Sample, name: &str) -> Option<[usize; 2]> {
    match *sample.field(name)?.shape.as_slice() {
        [1, height, width] | [height, width] | [height, width, _] => Some([height, width]),
        _ => None,
    }
}

type Run = dyn Fn(&mut Sample, &mut Draws) -> Result<(), BoxError> + Send + Sync;

/// Says which rows to fetch of a batch of so many samples.
pub(crate) type Rows = dyn Fn(usize) -> Range<usize> + Send + Sync;

/// A transform in its place.
#[derive(Clone)]
pub(crate) struct Stage {
    /// The name that its draws are keyed by.
    pub name: String,
    /// The name that errors use, such as "map 'crop'".
    pub label: String,
    /// The version of its code that the user gave.
    pub version: Option<String>,
    pub run: Arc<Run>,
}

/// All that decides a sample's bytes.
#[derive(Clone)]
pub(crate) struct Pipeline {
    pub source: Arc<dyn Source>,
    pub stages: Vec<Stage>,
    /// The stages over whole batches, which run after all others.
    pub batch_stages: Vec<Stage>,
    pub seed: u64,
    pub order: Order,
    /// The number of bad samples that may be skipped.
    pub skip: usize,
    /// The rows of each batch that are fetched. `None` means all.
    pub rows: Option<Arc<Rows>>,
}

/// The fields' names, types and shapes after each stage. It is never empty, and its last entry is what
/// batches are made of.
pub(crate) type StageSpecs = Vec<Vec<FieldSpec>>;

/// A batch, and the samples that it lacks because they failed: the index of each in the source, and its
/// error.
pub(crate) struct FetchedBatch {
    pub batch: Batch,
    pub failed: Vec<(u64, DataError)>,
    /// The rows that were fetched.
    pub rows: Range<usize>,
}

impl Pipeline {
    /// Returns the rows to fetch of a batch of so many samples: all of them where a transform sees whole
    /// batches, or where samples that turn out to be bad move others to another row.
    pub fn rows_of(&self, samples: usize) -> Range<usize> {
        match &self.rows {
            Some(rows) if self.fetches_part() => {
                let rows = rows(samples);
                rows.start.min(samples)..rows.end.clamp(rows.start.min(samples), samples)
            }
            _ => 0..samples,
        }
    }

    /// Returns whether only a part of each batch is fetched.
    pub fn fetches_part(&self) -> bool {
        self.rows.is_some() && self.skip == 0 && self.batch_stages.is_empty()
    }

    /// Makes these rows of the batch of a unit, on the thread that calls this.
    pub fn batch_of_rows(
        &self,
        unit: &Unit,
        rows: Range<usize>,
        specs: &StageSpecs,
    ) -> Result<Batch, DataError> {
        let own = Self { rows: Some(Arc::new(move |_| rows.clone())), ..self.clone() };
        let meters = Meters::new(own.stage_names());
        let made = own.batch(unit, specs, &Known::default(), Sample::new(), &meters, &AtomicBool::new(false));
        made.unwrap_or(Err(DataError::Stopped)).map(|made| made.batch)
    }

    /// Finds what each stage makes of the fields, and what stages say of their effects, by running sample 0
    /// as position 0 of epoch 0. Where bad samples may be skipped, the first sample that does not fail is
    /// taken.
    pub fn probe(&self) -> Result<(StageSpecs, Effects), DataError> {
        let mut index = 0;
        loop {
            match self.probe_with(index) {
                Err(_) if index < self.skip as u64 && index + 1 < self.source.len() => index += 1,
                outcome => return outcome,
            }
        }
    }

    /// Returns whether [`Pipeline::probe`] reads a sample.
    pub fn reads_to_probe(&self) -> bool {
        !self.stages.is_empty()
    }

    fn probe_with(&self, index: u64) -> Result<(StageSpecs, Effects), DataError> {
        let mut all = Effects::default();
        let mut specs = vec![ask(&*self.source, "fields", |source| source.fields().to_vec())?];
        let varying: Vec<_> = self.source.fields().iter().filter(|spec| spec.varies()).collect();
        let describe = || self.source.describe(index);
        if let (Some(spec), true) = (varying.first(), self.stages.is_empty()) {
            let shape = spec.shape.iter().map(|&extent| match extent {
                FieldSpec::VARIES => "?".to_owned(),
                extent => extent.to_string(),
            });
            let shape = shape.collect::<Vec<_>>().join(", ");
            let what = format!(
                "shape [{shape}] varies between samples, and no transform makes it the same: use ImageFolder::size \
                 or augment::resize for pictures, pad for sequences"
            );
            return Err(DataError::field(&spec.name, what));
        }
        if !self.stages.is_empty() {
            let mut sample = fetch_checked(&*self.source, index)?;
            for (at, stage) in self.stages.iter().enumerate() {
                let mut again = sample.clone();
                let (drew, said) = effects::listen(|| self.apply(stage, &mut sample, index, (0, 0)));
                let drew = drew?;
                said.iter().for_each(|effect| take(effect, drew, &again, &stage.label, &mut all));
                self.apply(stage, &mut again, index, (0, 0))?;
                if !has_bits_of(&sample, &again) {
                    let what = format!(
                        "{} gives another result for {} each time: take random numbers only from the Draws that its \
                         closure gets",
                        stage.label,
                        describe()
                    );
                    return Err(DataError::Setting { setting: "map", what });
                }
                let mut found = sample.specs();
                check(&sample, &found, &stage.label, describe)?;
                // An extent that varies at first may vary up to the last stage; only the samples themselves
                // could tell.
                let last = at + 1 == self.stages.len();
                for spec in found.iter_mut().filter(|_| !last) {
                    if varying.iter().any(|varying| varying.name == spec.name) {
                        spec.shape.fill(FieldSpec::VARIES);
                    }
                }
                specs.push(found);
            }
        }
        Ok((specs, all))
    }

    /// Makes the batch of a unit. Returns `None` as soon as `stop` is set. Samples known to be bad are not
    /// tried. The memory of `spare`, a batch no longer needed, is used again.
    pub fn batch(
        &self,
        unit: &Unit,
        specs: &StageSpecs,
        known: &Known,
        spare: Sample,
        meters: &Meters,
        stop: &AtomicBool,
    ) -> Option<Result<FetchedBatch, DataError>> {
        let mut order = self.order.of_epoch(self.seed, unit.epoch, self.source.len());
        let expected = order.cut_to(unit.first, specs.last().map_or(&[], Vec::as_slice));
        let rows = self.rows_of(unit.count as usize);
        let mut stack = match Stack::new(&expected, rows.len(), spare) {
            Ok(stack) => stack,
            Err(error) => return Some(Err(error)),
        };
        let mut clock = meters.clock();
        let (mut indices, mut failed) = (Vec::new(), Vec::new());
        let (mut skipped, mut gaps) = (Vec::new(), Vec::new());
        for position in unit.first..unit.first + unit.count {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            let Some(index) = order.at(position) else {
                let (epoch, len) = (unit.epoch, self.source.len());
                return Some(Err(DataError::Position { epoch, sample: position, len }));
            };
            if known.contains(index) {
                skipped.push(index);
                gaps.push(position);
                continue;
            }
            if !rows.contains(&((position - unit.first) as usize)) {
                indices.push(index);
                continue;
            }
            let sample = self.sample(index, (unit.epoch, position), specs, &mut clock);
            match sample.and_then(|sample| self.fit(index, sample, &expected)) {
                Ok(sample) => {
                    let since = Instant::now();
                    stack.push(&sample);
                    clock.add(self.stages.len() + 1, since);
                    indices.push(index);
                }
                Err(error) if self.skip > 0 => {
                    skipped.push(index);
                    gaps.push(position);
                    failed.push((index, error));
                }
                Err(error) => return Some(Err(error)),
            }
        }
        let Unit { epoch, first, index_in_epoch, after, .. } = *unit;
        let stacked = stack.finish();
        let part = None;
        let mut batch = Batch { epoch, first, index_in_epoch, indices, skipped, gaps, after, stacked, part };
        let batch_stages = if batch.indices.is_empty() { &[][..] } else { &self.batch_stages };
        for (at, stage) in batch_stages.iter().enumerate() {
            let since = Instant::now();
            match self.apply_to_batch(stage, &mut batch) {
                Ok(true) => clock.drew(self.stages.len() + 2 + at),
                Ok(false) => {}
                Err(error) => return Some(Err(error)),
            }
            clock.add(self.stages.len() + 2 + at, since);
        }
        clock.finish(rows.len().min(batch.indices.len()) as u64);
        Some(Ok(FetchedBatch { batch, failed, rows }))
    }

    /// Returns the stages' names as reports call them, in the order of their clocks.
    pub fn stage_names(&self) -> Vec<String> {
        let labels = self.stages.iter().map(|stage| stage.label.clone());
        let batch_labels = self.batch_stages.iter().map(|stage| stage.label.clone());
        ["fetch".to_owned()]
            .into_iter()
            .chain(labels)
            .chain(["stack".to_owned()])
            .chain(batch_labels)
            .collect()
    }

    /// Returns sample `index` of the source after all stages, each checked.
    fn sample(
        &self,
        index: u64,
        place: (u32, u64),
        specs: &StageSpecs,
        clock: &mut crate::loading::seen::Clock<'_>,
    ) -> Result<Sample, DataError> {
        let since = Instant::now();
        let mut sample = fetch_checked(&*self.source, index)?;
        let mut since = clock.add(0, since);
        for (at, (stage, expected)) in self.stages.iter().zip(specs.iter().skip(1)).enumerate() {
            if self.apply(stage, &mut sample, index, place)? {
                clock.drew(at + 1);
            }
            check(&sample, expected, &stage.label, || self.source.describe(index))?;
            since = clock.add(at + 1, since);
        }
        Ok(sample)
    }

    /// Returns a sample that loses nothing but padding in a batch of these fields.
    fn fit(&self, index: u64, sample: Sample, specs: &[FieldSpec]) -> Result<Sample, DataError> {
        guarded(|| self.source.describe(index), "buckets", || Ok(check_cut(&sample, specs)?))?;
        Ok(sample)
    }

    /// Runs one stage with its draws, keyed by (seed, "map", the stage's name, epoch, position). Returns
    /// whether it drew.
    fn apply(
        &self,
        stage: &Stage,
        sample: &mut Sample,
        index: u64,
        (epoch, position): (u32, u64),
    ) -> Result<bool, DataError> {
        let mut draws = Draws::of(self.seed, "map", &stage.name, epoch, position);
        guarded(|| self.source.describe(index), &stage.label, || (stage.run)(sample, &mut draws))?;
        Ok(draws.taken() > 0)
    }

    /// Runs one stage over a batch, with its draws keyed by (seed, "map_batch", the stage's name, epoch,
    /// first position). Returns whether it drew.
    fn apply_to_batch(&self, stage: &Stage, batch: &mut Batch) -> Result<bool, DataError> {
        let mut draws = Draws::of(self.seed, "map_batch", &stage.name, batch.epoch, batch.first);
        let name = format!("epoch {}, batch from position {}", batch.epoch, batch.first);
        let expected = batch.stacked.specs();
        guarded(|| name.clone(), &stage.label, || (stage.run)(&mut batch.stacked, &mut draws))?;
        check(&batch.stacked, &expected, &stage.label, || name.clone())?;
        Ok(draws.taken() > 0)
    }
}
