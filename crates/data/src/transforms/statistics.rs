//! Statistics: mean and deviation of a whole source in one pass.

use crate::sample::check::check_finite;
use crate::sample::check::{fetch_checked, no_samples};
use crate::sample::field::elements;
use crate::{DataError, FieldDType, Source};

/// The number of samples summed by one thread at a time. It is a constant, so that the order of additions
/// never depends on the threads.
const CHUNK: u64 = 1024;

/// Mean and standard deviation (of the population) of a field, for each group of its elements.
///
/// Element `i` of a sample belongs to group `i % mean.len()`.
#[doc(alias = "StandardScaler")]
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    /// The number of values in each group.
    pub count: u64,
    /// The mean of each group.
    pub mean: Vec<f64>,
    /// The standard deviation of each group.
    pub deviation: Vec<f64>,
}

/// The grouping of a field's elements: which of them share a mean and a deviation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Per {
    /// All elements: there is one group.
    All,
    /// The elements at the same place on the last axis, which are the channels of an image stored channels
    /// last.
    Channel,
    /// Each element of the sample is a group of its own, so no two elements share a mean and a deviation.
    Element,
}

impl Statistics {
    /// Computes the statistics of an f32 field. Every sample is read once, on `threads` threads.
    ///
    /// The result is numerically stable (Welford's update in f64 within chunks of 1,024 samples, Chan's merge
    /// from chunk to chunk in order) and has the same bits for any number of threads.
    ///
    /// # Errors
    /// There is no f32 field of this name, it has no elements or its shape varies; the source has no samples;
    /// a sample cannot be read or has a value that is not finite, and the error names it.
    pub fn of(source: &dyn Source, field: &str, per: Per, threads: usize) -> Result<Self, DataError> {
        let spec = source.fields().iter().find(|spec| *spec.name == *field);
        let spec = spec.ok_or_else(|| DataError::field(field, "no such field"))?;
        if spec.dtype != FieldDType::F32 {
            return Err(DataError::field(field, format!("dtype {}, expected f32", spec.dtype)));
        }
        let size = elements(&spec.shape).filter(|&size| size > 0);
        let size = size.ok_or_else(|| DataError::field(field, format!("shape {:?}", spec.shape)))?;
        if source.is_empty() {
            return Err(no_samples(source));
        }
        let groups = match per {
            Per::All => 1,
            Per::Channel => spec.shape.last().copied().unwrap_or(1),
            Per::Element => size,
        };
        let moments = in_order(source, field, groups, threads.max(1) as u64)?;
        let deviation = moments.squares.iter().map(|squares| (squares / moments.count as f64).sqrt());
        Ok(Self { count: moments.count, deviation: deviation.collect(), mean: moments.mean })
    }
}

/// Computes chunks in waves of one a thread, and merges them in the chunks' order.
fn in_order(source: &dyn Source, field: &str, groups: usize, threads: u64) -> Result<Moments, DataError> {
    let chunks = source.len().div_ceil(CHUNK);
    let mut total = Moments::new(groups);
    let mut done = 0;
    while done < chunks {
        let wave = done..chunks.min(done + threads);
        done = wave.end;
        let parts: Vec<_> = std::thread::scope(|scope| {
            let handles: Vec<_> = wave
                .map(|chunk| {
                    std::thread::Builder::new()
                        .name("unisono-statistics".into())
                        .spawn_scoped(scope, move || of_chunk(source, field, groups, chunk))
                })
                .collect();
            let gone = || DataError::Threads("a thread panicked".into());
            let join = |handle: std::io::Result<std::thread::ScopedJoinHandle<'_, _>>| match handle {
                Ok(handle) => handle.join().unwrap_or_else(|_| Err(gone())),
                Err(error) => Err(DataError::Threads(error.to_string())),
            };
            handles.into_iter().map(join).collect()
        });
        for part in parts {
            total.merge(&part?);
        }
    }
    Ok(total)
}

fn of_chunk(source: &dyn Source, field: &str, groups: usize, chunk: u64) -> Result<Moments, DataError> {
    let mut moments = Moments::new(groups);
    let first = chunk * CHUNK;
    for index in first..source.len().min(first + CHUNK) {
        let sample = fetch_checked(source, index)?;
        check_finite(&sample).map_err(|cause| DataError::Stage {
            sample: source.describe(index),
            stage: "statistics".into(),
            cause: cause.into(),
        })?;
        if let Some(values) = sample.field(field).and_then(|field| field.values.as_f32()) {
            moments.add(values);
        }
    }
    Ok(moments)
}

/// Running moments of groups that have had equally many values each.
struct Moments {
    count: u64,
    mean: Vec<f64>,
    /// The sums of squared distances from the mean.
    squares: Vec<f64>,
}

impl Moments {
    fn new(groups: usize) -> Self {
        Self { count: 0, mean: vec![0.0; groups], squares: vec![0.0; groups] }
    }

    /// Adds values one by one, by Welford's update.
    fn add(&mut self, values: &[f32]) {
        for values in values.chunks(self.mean.len()) {
            self.count += 1;
            let count = self.count as f64;
            for ((mean, squares), &value) in self.mean.iter_mut().zip(&mut self.squares).zip(values) {
                let distance = f64::from(value) - *mean;
                *mean += distance / count;
                *squares += distance * (f64::from(value) - *mean);
            }
        }
    }

    /// Adds the moments of another set of values, by Chan's merge.
    fn merge(&mut self, other: &Moments) {
        let (own, new) = (self.count as f64, other.count as f64);
        let both = own + new;
        if both == 0.0 {
            return;
        }
        for group in 0..self.mean.len() {
            let distance = other.mean[group] - self.mean[group];
            self.mean[group] += distance * (new / both);
            self.squares[group] += other.squares[group] + distance * distance * (own * (new / both));
        }
        self.count += other.count;
    }
}

#[cfg(test)]
mod tests {
    use unisono_random::Draws;

    use super::*;
    use crate::Memory;

    fn noise(samples: usize, offset: f32) -> Memory {
        let mut draws = Draws::of(1, "test", "statistics", 0, 0);
        let values: Vec<f32> =
            (0..samples * 6).map(|i| offset + (1 + i % 3) as f32 * draws.normal()).collect();
        Memory::labelled(values, [2, 3], vec![0; samples]).unwrap()
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let source = noise(5000, 3.0);
        for per in [Per::All, Per::Channel, Per::Element] {
            let one = Statistics::of(&source, "x", per, 1).unwrap();
            for threads in [0, 2, 3, 8] {
                assert_eq!(one, Statistics::of(&source, "x", per, threads).unwrap());
            }
        }
    }

    #[test]
    fn values_are_right_and_survive_a_large_offset() {
        let (plain, far) = (noise(4000, 0.0), noise(4000, 4096.0));
        let plain = Statistics::of(&plain, "x", Per::Channel, 2).unwrap();
        let far = Statistics::of(&far, "x", Per::Channel, 2).unwrap();
        assert_eq!(plain.count, 8000);
        for group in 0..3 {
            let expected = (group + 1) as f64;
            assert!((plain.deviation[group] - expected).abs() < 0.05 * expected);
            assert!((far.deviation[group] - plain.deviation[group]).abs() < 1e-3);
            assert!((far.mean[group] - plain.mean[group] - 4096.0).abs() < 1e-3);
        }
        let small = Memory::labelled([1., 2., 3., 6.], [2], [0, 0]).unwrap();
        let all = Statistics::of(&small, "x", Per::All, 1).unwrap();
        assert_eq!((all.count, all.mean[0], all.deviation[0]), (4, 3.0, 3.5f64.sqrt()));
        let each = Statistics::of(&small, "x", Per::Element, 1).unwrap();
        assert_eq!((each.mean, each.deviation), (vec![2.0, 4.0], vec![1.0, 2.0]));
    }

    #[test]
    fn errors_name_the_culprit() {
        let message = |values: [f32; 4], field: &str| {
            let source = Memory::labelled(values, [2], [0, 0]).unwrap();
            Statistics::of(&source, field, Per::All, 2).unwrap_err().to_string()
        };
        assert_eq!(message([0., 1., 2., f32::NAN], "x"), "sample 1: statistics: field 'x': element 1 is NaN");
        assert_eq!(message([0.; 4], "z"), "field 'z': no such field");
        assert_eq!(message([0.; 4], "y"), "field 'y': dtype i32, expected f32");
    }
}
