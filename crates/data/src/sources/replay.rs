//! A replay buffer: samples that are added while one trains, and random batches of them.

use std::path::Path;

use ::safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use unisono_random::Draws;

use crate::sample::field::elements;
use crate::sample::regular::replace;
use crate::sources::budget::{Budget, DECODED_BYTES};
use crate::sources::files::Bytes;
use crate::{Batch, DataError, Field, FieldSpec, Position, Sample, Values};

/// The newest samples of a run that makes its own data, as reinforcement learning does, and batches that are
/// drawn from them at random for `Trainer::step`.
///
/// It is not a [`Source`](crate::Source), because the sample at an index changes. The draws are a function of
/// the seed, the number of batches drawn so far and the number of samples there are, so a run that adds the
/// same samples gets the same batches. A trainer that was given the buffer with `Trainer::keep_replay` saves
/// it in its checkpoints and continues with it after a resume. Without a trainer, [`save`](Self::save) and
/// [`open`](Self::open) do the same with a file.
///
/// ```
/// use unisono_data::{Field, Replay, Sample};
///
/// let mut replay = Replay::new(1000, 42);
/// for step in 0..20 {
///     let state = Field::f32([2], [step as f32, 0.5]);
///     replay.push(&Sample::new().with("x", state).with("action", Field::i32([], [step % 3])))?;
/// }
/// let batch = replay.draw(8)?;
/// assert_eq!(batch.field("x").unwrap().shape, [8, 2]);
/// # Ok::<(), unisono_data::DataError>(())
/// ```
#[doc(alias("ReplayBuffer", "replay buffer", "experience replay"))]
#[derive(Clone, Debug)]
pub struct Replay {
    capacity: usize,
    seed: u64,
    specs: Vec<FieldSpec>,
    /// The array of each field, a place after the other.
    arrays: Vec<Values>,
    /// The number of samples that were ever added.
    pushed: u64,
    /// The number of batches, and of samples, that were drawn.
    batches: u64,
    drawn: u64,
    mark: Option<Mark>,
}

/// What [`Replay::rewind`] needs to go back.
#[derive(Clone, Debug)]
struct Mark {
    pushed: u64,
    batches: u64,
    drawn: u64,
    /// The samples that were replaced since the mark, oldest first.
    replaced: Vec<Vec<Values>>,
}

/// Buffers are equal if they have the same samples and draw the same batches. Marks do not count.
impl PartialEq for Replay {
    fn eq(&self, other: &Self) -> bool {
        let of = |r: &Self| (r.capacity, r.seed, r.pushed, r.batches, r.drawn);
        of(self) == of(other) && self.specs == other.specs && self.arrays == other.arrays
    }
}

impl Replay {
    /// Makes an empty buffer of at most `capacity` samples. The oldest make room for new ones.
    pub fn new(capacity: usize, seed: u64) -> Self {
        let (specs, arrays) = (vec![], vec![]);
        Self { capacity, seed, specs, arrays, pushed: 0, batches: 0, drawn: 0, mark: None }
    }

    /// Marks this state, in place of an earlier one, as the one that [`rewind`](Self::rewind) goes back to.
    /// From then on, the buffer keeps a copy of each of its samples that a new one replaces.
    pub fn mark(&mut self) {
        let Self { pushed, batches, drawn, .. } = *self;
        self.mark = Some(Mark { pushed, batches, drawn, replaced: Vec::new() });
    }

    /// Whether samples were added or batches drawn since [`mark`](Self::mark).
    pub fn is_after_mark(&self) -> bool {
        self.mark.as_ref().is_some_and(|mark| (mark.pushed, mark.batches) != (self.pushed, self.batches))
    }

    /// Goes back to the state at the last [`mark`](Self::mark). Without a mark it does nothing.
    pub fn rewind(&mut self) {
        let Some(mark) = self.mark.take() else { return };
        // Until the buffer was full, no sample was replaced.
        for (number, rows) in (mark.pushed.max(self.capacity as u64)..).zip(&mark.replaced) {
            self.replace(self.place_of(number), rows);
        }
        (self.pushed, self.batches, self.drawn) = (mark.pushed, mark.batches, mark.drawn);
        let len = self.len();
        for (array, spec) in self.arrays.iter_mut().zip(&self.specs) {
            array.truncate(len * elements(&spec.shape).unwrap_or(0));
        }
        if len == 0 {
            (self.specs, self.arrays) = (vec![], vec![]);
        }
        self.mark();
    }

    /// Returns the number of samples there are.
    pub fn len(&self) -> usize {
        usize::try_from(self.pushed).unwrap_or(usize::MAX).min(self.capacity)
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the most samples that there may be.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the seed of the draws.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the number of samples that were ever added.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Returns the names, types and shapes of the fields, for `Trainer::build`. There are none before the
    /// first sample.
    pub fn fields(&self) -> &[FieldSpec] {
        &self.specs
    }

    /// Adds a sample, in place of the oldest one if the buffer is full.
    ///
    /// # Errors
    /// The sample has other fields than the first one, or a field whose values do not fill its shape; the
    /// capacity is 0; memory does not suffice.
    pub fn push(&mut self, sample: &Sample) -> Result<(), DataError> {
        if self.capacity == 0 {
            return Err(DataError::Setting { setting: "replay", what: "a capacity of 0 samples".into() });
        }
        for (name, field) in sample.fields() {
            field.check_length(name)?;
        }
        let specs = sample.specs();
        if self.pushed == 0 {
            if specs.is_empty() {
                return Err(DataError::field("", "a sample needs at least one field"));
            }
            let none = |spec: &FieldSpec| Values::with_capacity(spec.dtype, 0, None);
            self.arrays = specs.iter().filter_map(none).collect();
            self.specs = specs;
        } else if specs != self.specs {
            let what = format!("the fields {specs:?} are not those of the first sample, {:?}", self.specs);
            return Err(DataError::field("", what));
        }
        let place = self.place_of(self.pushed);
        let is_new = self.pushed < self.capacity as u64;
        if is_new {
            for (array, (name, field)) in self.arrays.iter_mut().zip(sample.fields()) {
                if !room_for(array, field.values.len()) {
                    return Err(DataError::field(name, "no memory for another sample"));
                }
            }
            for (array, (_, field)) in self.arrays.iter_mut().zip(sample.fields()) {
                array.append_first(&field.values, field.values.len());
            }
        } else {
            self.keep_for_mark(place);
            self.replace(place, sample.fields().map(|(_, field)| &field.values));
        }
        self.pushed += 1;
        Ok(())
    }

    /// Copies the sample at a place before another one replaces it, if it was there at the mark.
    fn keep_for_mark(&mut self, place: usize) {
        let (pushed, capacity) = (self.pushed, self.capacity as u64);
        let Some(mark) = self.mark.as_mut().filter(|mark| pushed - mark.pushed < capacity) else { return };
        let row = |(array, spec): (&Values, &FieldSpec)| {
            let size = elements(&spec.shape)?;
            array.slice(place * size..(place + 1) * size)
        };
        mark.replaced.push(self.arrays.iter().zip(&self.specs).filter_map(row).collect());
    }

    /// Writes the values of a sample's fields, in their order, to a place.
    fn replace<'a>(&mut self, place: usize, fields: impl IntoIterator<Item = &'a Values>) {
        for (array, own) in self.arrays.iter_mut().zip(fields) {
            let size = own.len();
            match (array, own) {
                (Values::F32(all), Values::F32(own)) => all[place * size..][..size].copy_from_slice(own),
                (Values::I32(all), Values::I32(own)) => all[place * size..][..size].copy_from_slice(own),
                _ => {}
            }
        }
    }

    /// Returns the place of a sample by its number, from the first that was ever added.
    fn place_of(&self, number: u64) -> usize {
        (number % self.capacity as u64) as usize
    }

    /// Draws a batch: each of its samples uniformly from all there are, with replacement. Its indices count
    /// the samples from the first that was ever added.
    ///
    /// # Errors
    /// There are no samples, or a batch of none is asked for; memory does not suffice.
    #[doc(alias = "sample")]
    pub fn draw(&mut self, samples: usize) -> Result<Batch, DataError> {
        let len = self.len();
        if len == 0 || samples == 0 {
            let what = format!("a batch of {samples} from {len} samples");
            return Err(DataError::Setting { setting: "replay", what });
        }
        let mut draws = Draws::of(self.seed, "replay", "", 0, self.batches);
        let below = u32::try_from(len).unwrap_or(u32::MAX);
        let places: Vec<usize> = (0..samples).map(|_| draws.below(below) as usize).collect();
        let mut stacked = Sample::new();
        for (spec, array) in self.specs.iter().zip(&self.arrays) {
            let size = elements(&spec.shape).unwrap_or(0);
            let no_memory = || DataError::field(&spec.name, format!("no memory for {samples} samples"));
            let room = size.checked_mul(samples).ok_or_else(no_memory)?;
            let mut values = Values::with_capacity(spec.dtype, room, None).ok_or_else(no_memory)?;
            for &place in &places {
                let row = array.slice(place * size..(place + 1) * size).ok_or_else(no_memory)?;
                values.append_first(&row, size);
            }
            let shape = std::iter::once(samples).chain(spec.shape.iter().copied()).collect();
            stacked.set(spec.name.clone(), Field { shape, values });
        }
        let mut batch = Batch::of_fields(stacked)?;
        batch.indices = places.iter().map(|&place| self.number_of(place)).collect();
        // Dropout and the like draw by the position, so it has to move on.
        batch.first = self.drawn;
        batch.index_in_epoch = self.batches;
        self.batches += 1;
        self.drawn += samples as u64;
        batch.after = Position { epoch: 0, sample: self.drawn };
        Ok(batch)
    }

    /// Returns the number, from the first that was ever added, of the sample at a place.
    fn number_of(&self, place: usize) -> u64 {
        let (place, capacity) = (place as u64, self.capacity as u64);
        // The last sample at this place that was added before now.
        place + (self.pushed - 1 - place) / capacity * capacity
    }

    /// Saves the samples and the state of the draws as a safetensors file. The file is replaced by a rename,
    /// so it is never there in part.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), DataError> {
        replace(path.as_ref(), &self.to_bytes()?)
    }

    /// Returns the bytes of the file that [`save`](Self::save) writes.
    ///
    /// # Errors
    /// The samples do not fit the format.
    pub fn to_bytes(&self) -> Result<Vec<u8>, DataError> {
        let mut tensors = Vec::new();
        let bytes: Vec<Vec<u8>> = self.arrays.iter().map(little_endian).collect();
        for (spec, bytes) in self.specs.iter().zip(&bytes) {
            let dtype = match spec.dtype {
                crate::FieldDType::F32 => Dtype::F32,
                crate::FieldDType::I32 => Dtype::I32,
            };
            let shape = std::iter::once(self.len()).chain(spec.shape.iter().copied()).collect();
            let view = TensorView::new(dtype, shape, bytes).map_err(DataError::other)?;
            tensors.push((spec.name.to_string(), view));
        }
        let Self { capacity, seed, pushed, batches, drawn, .. } = *self;
        let fields = self.specs.iter().map(|spec| spec.name.to_string()).collect();
        let state = State { capacity: capacity as u64, seed, pushed, batches, drawn, fields };
        let state = serde_json::to_string(&state).map_err(DataError::other)?;
        // One entry, because several would come in any order.
        let metadata = [(STATE.to_owned(), state)].into_iter().collect();
        ::safetensors::serialize(tensors, Some(metadata)).map_err(DataError::other)
    }

    /// Opens a buffer that was saved. It draws what the saved one would have drawn next.
    ///
    /// # Errors
    /// The file cannot be read, is larger than 1 GiB, or is not a replay buffer.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let file = Bytes::open(path)?;
        let budget = Budget { most: DECODED_BYTES / 2, setting: "a smaller capacity" };
        budget.check(path, "the replay buffer", Some(file.len()))?;
        let bytes = file.to_vec(0, file.len())?;
        Self::parse(&bytes).map_err(|what| DataError::format(path, format!("replay buffer: {what}")))
    }

    /// Reads what [`to_bytes`](Self::to_bytes) returned.
    ///
    /// # Errors
    /// The bytes are not a replay buffer; the error is the message.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
        let state = header.metadata().as_ref().and_then(|metadata| metadata.get(STATE));
        let state: State = serde_json::from_str(state.ok_or("no state of the draws")?)
            .map_err(|error| format!("the state of the draws: {error}"))?;
        let capacity = usize::try_from(state.capacity).map_err(|error| error.to_string())?;
        let mut replay = Self::new(capacity, state.seed);
        if [state.pushed, state.batches, state.drawn].iter().any(|&number| number > MOST) {
            return Err(format!("more than {MOST} samples or batches"));
        }
        (replay.pushed, replay.batches, replay.drawn) = (state.pushed, state.batches, state.drawn);
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
        for name in state.fields {
            let view = tensors.tensor(&name).map_err(|error| error.to_string())?;
            let words = view.data().as_chunks::<4>().0;
            let values = match view.dtype() {
                Dtype::F32 => Values::F32(collected(words, f32::from_le_bytes)?),
                Dtype::I32 => Values::I32(collected(words, i32::from_le_bytes)?),
                other => return Err(format!("the field {name} is of {other:?}")),
            };
            match view.shape() {
                [samples, shape @ ..] if *samples == replay.len() => {
                    let (dtype, shape) = (values.dtype(), shape.to_vec());
                    replay.specs.push(FieldSpec { name: name.into(), dtype, shape });
                }
                shape => return Err(format!("the field {name} has the shape {shape:?}")),
            }
            replay.arrays.push(values);
        }
        let fits = replay.specs.is_empty() == (replay.pushed == 0);
        if fits { Ok(replay) } else { Err("samples without fields".into()) }
    }
}

/// The most samples and batches of a file. No run gets so far, and no sum of them overflows.
const MOST: u64 = 1 << 60;

/// The key of the state in a file's metadata.
const STATE: &str = "replay";

/// The fields of a saved buffer, without its samples.
#[derive(Deserialize, Serialize)]
struct State {
    capacity: u64,
    seed: u64,
    pushed: u64,
    batches: u64,
    drawn: u64,
    fields: Vec<String>,
}

/// Makes room for more elements, and says whether the memory could be had.
fn room_for(array: &mut Values, elements: usize) -> bool {
    match array {
        Values::F32(values) => values.try_reserve(elements).is_ok(),
        Values::I32(values) => values.try_reserve(elements).is_ok(),
    }
}

/// Decodes values. That memory does not suffice is an error.
fn collected<T>(words: &[[u8; 4]], decode: impl Fn([u8; 4]) -> T) -> Result<Vec<T>, String> {
    let mut values = Vec::new();
    values.try_reserve_exact(words.len()).map_err(|_| format!("no memory for {} values", words.len()))?;
    values.extend(words.iter().map(|&word| decode(word)));
    Ok(values)
}

fn little_endian(values: &Values) -> Vec<u8> {
    match values {
        Values::F32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Values::I32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

#[cfg(test)]
mod tests;
