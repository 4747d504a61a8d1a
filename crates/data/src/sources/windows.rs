//! Windows of a time series: what was seen, and what comes next.

use std::ops::Range;
use std::sync::Arc;

use crate::{
    ContentHash, Coverage, DataError, Field, FieldSpec, Fingerprint, Memory, Sample, Source, Values,
};

/// Windows of a series [time, features]: "x", `length` rows, and "y", the `ahead` rows that come next.
///
/// A series `[time]` has one feature. The series is held once, however many windows overlap, and clones share
/// it. A window that would reach beyond the end of the series is left out.
///
/// It is Keras's `timeseries_dataset_from_array`, which takes the targets as an array of their own.
/// `sampling` is its `sampling_rate`, `stride` its `sequence_stride`, and `rows` its `start_index` and
/// `end_index`.
///
/// A setting that cannot work leaves no window. Whatever needs a sample, such as
/// [`Loader::fields`](crate::Loader::fields), then returns the error that says why.
///
/// ```
/// use unisono_data::{Field, Source, Windows};
///
/// // Temperature and pressure of six hours.
/// let weather = Field::f32([6, 2], [10., 1., 11., 2., 12., 3., 13., 4., 14., 5., 15., 6.]);
/// let windows = Windows::new(weather).length(3).ahead(2).targets([0]);
/// assert_eq!(windows.len(), 2);
/// let second = windows.fetch(1)?;
/// assert_eq!(second.field("x"), Some(&Field::f32([3, 2], [11., 2., 12., 3., 13., 4.])));
/// assert_eq!(second.field("y"), Some(&Field::f32([2, 1], [14., 15.])));
/// # Ok::<(), unisono_data::DataError>(())
/// ```
#[doc(alias("timeseries_dataset_from_array", "TimeseriesGenerator", "sliding_window"))]
#[derive(Clone, Debug)]
pub struct Windows {
    series: Arc<Field>,
    rows: Range<usize>,
    length: usize,
    ahead: usize,
    gap: usize,
    stride: usize,
    sampling: usize,
    /// The features in "y". `None` means all.
    targets: Option<Vec<usize>>,
    specs: Vec<FieldSpec>,
    /// The number of windows, or why there are none.
    windows: Result<usize, String>,
}

impl Windows {
    /// Takes a series `[time, features]` or `[time]` of f32 or i32, without a copy. Set
    /// [`length`](Self::length) as well.
    pub fn new(series: Field) -> Self {
        let rows = 0..series.shape.first().copied().unwrap_or(0);
        Self {
            series: Arc::new(series),
            rows,
            length: 0,
            ahead: 1,
            gap: 0,
            stride: 1,
            sampling: 1,
            targets: None,
            specs: vec![],
            windows: Ok(0),
        }
        .settled()
    }

    /// Takes a field of arrays in memory, such as the columns of a [`Csv`](crate::Csv) file, as a series: one
    /// sample is one row. It is not copied.
    ///
    /// # Errors
    /// There is no such field.
    pub fn of_memory(memory: Memory, field: &str) -> Result<Self, DataError> {
        memory.into_field(field).map(Self::new)
    }

    /// Sets the number of rows in "x". There is no default.
    pub fn length(mut self, rows: usize) -> Self {
        self.length = rows;
        self.settled()
    }

    /// Sets the number of rows in "y". With 0 there is no "y", as an autoencoder needs it. Default: 1.
    pub fn ahead(mut self, rows: usize) -> Self {
        self.ahead = rows;
        self.settled()
    }

    /// Sets how many rows are passed over between "x" and "y", of those that `sampling` takes. Default: 0.
    pub fn gap(mut self, rows: usize) -> Self {
        self.gap = rows;
        self.settled()
    }

    /// Sets how many rows of the series lie between the starts of two windows. Default: 1.
    pub fn stride(mut self, rows: usize) -> Self {
        self.stride = rows;
        self.settled()
    }

    /// Takes one row of this many, in "x" and in "y": with 6, hourly values of a series of ten minutes.
    /// Default: 1.
    pub fn sampling(mut self, rows: usize) -> Self {
        self.sampling = rows;
        self.settled()
    }

    /// Chooses the features in "y", by their numbers. Default: all.
    pub fn targets(mut self, features: impl Into<Vec<usize>>) -> Self {
        self.targets = Some(features.into());
        self.settled()
    }

    /// Takes only windows that lie within these rows, "y" included: the rows before a time to train on, and
    /// those after it to validate with. Default: all rows.
    pub fn rows(mut self, rows: Range<usize>) -> Self {
        self.rows = rows;
        self.settled()
    }

    /// Returns the series.
    pub fn series(&self) -> &Field {
        &self.series
    }

    /// Returns the number of features of a row.
    fn features(&self) -> usize {
        self.series.shape.get(1).copied().unwrap_or(1)
    }

    /// Returns the windows with the fields and the number that follow from the settings.
    fn settled(mut self) -> Self {
        let spec = |name: &str, rows: usize, features: usize| {
            let (name, dtype) = (name.into(), self.series.values.dtype());
            FieldSpec { name, dtype, shape: vec![rows, features] }
        };
        let mut specs = vec![spec("x", self.length, self.features())];
        if self.ahead > 0 {
            specs.push(spec("y", self.ahead, self.targets.as_ref().map_or(self.features(), Vec::len)));
        }
        self.windows = self.count();
        self.specs = specs;
        self
    }

    /// Returns how many windows there are, or why there are none.
    fn count(&self) -> Result<usize, String> {
        let shape = &self.series.shape;
        let is_full = self.series.check_length("series").is_ok();
        if !(1..=2).contains(&shape.len()) || shape.contains(&0) || !is_full {
            let values = self.series.values.len();
            return Err(format!("a series has the shape [time, features], not {shape:?} of {values} values"));
        }
        for (name, value) in [("length", self.length), ("stride", self.stride), ("sampling", self.sampling)] {
            if value == 0 {
                return Err(format!("set `Windows::{name}` to at least 1"));
            }
        }
        let features = self.features();
        if let Some(feature) = self.targets.iter().flatten().find(|&&feature| feature >= features) {
            return Err(format!("target {feature} is none of the {features} features, counted from 0"));
        }
        if self.ahead > 0 && self.targets.as_ref().is_some_and(Vec::is_empty) {
            return Err("no targets were chosen: for windows without \"y\" use `ahead(0)`".into());
        }
        let Range { start, end } = self.rows;
        if end > shape[0] || start >= end {
            return Err(format!("rows {start}..{end} of a series of {} rows", shape[0]));
        }
        let rows = end - start;
        let needed = self.span().filter(|&span| span <= rows).ok_or_else(|| {
            let (length, ahead, gap, sampling) = (self.length, self.ahead, self.gap, self.sampling);
            format!("{rows} rows hold no window of {length} rows, {gap} passed over and {ahead} ahead, one row of {sampling}")
        })?;
        Ok((rows - needed) / self.stride + 1)
    }

    /// Returns how many rows of the series lie from a window's first row to its last.
    fn span(&self) -> Option<usize> {
        let gap = if self.ahead > 0 { self.gap } else { 0 };
        let taken = self.length.checked_add(gap)?.checked_add(self.ahead)?;
        taken.checked_sub(1)?.checked_mul(self.sampling)?.checked_add(1)
    }

    /// Returns the rows of the series that a window reaches over.
    fn rows_of(&self, index: u64) -> Result<Range<usize>, DataError> {
        let windows = self
            .windows
            .as_ref()
            .map_err(|what| DataError::Setting { setting: "windows", what: what.clone() })?;
        let beyond = || DataError::Index { index, len: *windows as u64 };
        let at = usize::try_from(index).ok().filter(|at| at < windows).ok_or_else(beyond)?;
        let start = self.rows.start + at * self.stride;
        Ok(start..start + self.span().unwrap_or(0))
    }

    /// Returns some features of `count` rows from `first` on, one of `sampling`.
    fn gather(&self, first: usize, count: usize, targets: Option<&[usize]>) -> Values {
        fn rows<T: Copy>(
            all: &[T],
            starts: impl Iterator<Item = usize>,
            features: usize,
            targets: Option<&[usize]>,
        ) -> Vec<T> {
            let mut out = Vec::new();
            for start in starts {
                let row = &all[start..start + features];
                match targets {
                    None => out.extend_from_slice(row),
                    Some(targets) => out.extend(targets.iter().map(|&feature| row[feature])),
                }
            }
            out
        }
        let features = self.features();
        let starts = (0..count).map(|at| (first + at * self.sampling) * features);
        match &self.series.values {
            Values::F32(all) => Values::F32(rows(all, starts, features, targets)),
            Values::I32(all) => Values::I32(rows(all, starts, features, targets)),
        }
    }

    /// Returns the settings as numbers, for hashes.
    fn settings(&self) -> Vec<u64> {
        let own =
            [self.rows.start, self.rows.end, self.length, self.ahead, self.gap, self.stride, self.sampling];
        let targets = self.targets.iter().flatten();
        own.iter().chain(targets).map(|&value| value as u64).collect()
    }
}

impl Source for Windows {
    fn len(&self) -> u64 {
        *self.windows.as_ref().unwrap_or(&0) as u64
    }

    fn fields(&self) -> &[FieldSpec] {
        &self.specs
    }

    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        let first = self.rows_of(index)?.start;
        let mut sample = Sample::new();
        for (at, spec) in self.specs.iter().enumerate() {
            let (skip, count, targets) = match at {
                0 => (0, self.length, None),
                _ => (self.length + self.gap, self.ahead, self.targets.as_deref()),
            };
            let values = self.gather(first + skip * self.sampling, count, targets);
            sample.set(spec.name.clone(), Field { shape: spec.shape.clone(), values });
        }
        Ok(sample)
    }

    fn overlaps(&self) -> bool {
        self.rows_of(0).is_ok_and(|rows| rows.len() > self.stride)
    }

    /// Describes the window by its rows in the series.
    fn describe(&self, index: u64) -> String {
        match self.rows_of(index) {
            Ok(rows) => format!("sample {index} (rows {} to {})", rows.start, rows.end - 1),
            Err(_) => format!("sample {index}"),
        }
    }

    /// Covers the settings and the whole series.
    fn fingerprint(&self) -> u64 {
        let hash = Fingerprint::new().source(self.len(), &self.specs);
        let hash = self.settings().into_iter().fold(hash, Fingerprint::word);
        hash.values(&self.series.values).finish()
    }

    fn coverage(&self) -> Coverage {
        Coverage::Hashed
    }

    /// Hashes the settings and the rows that the windows reach over, each row once.
    fn hash_content(&self, samples: Range<u64>, hash: &mut ContentHash) -> Result<(), DataError> {
        self.settings().into_iter().for_each(|value| hash.word(value));
        if samples.is_empty() {
            return Ok(());
        }
        let features = self.features();
        let rows = self.rows_of(samples.start)?.start..self.rows_of(samples.end - 1)?.end;
        let values = rows.start * features..rows.end * features;
        match &self.series.values {
            Values::F32(all) => all.get(values).map(|values| hash.f32s(values)),
            Values::I32(all) => all.get(values).map(|values| hash.i32s(values)),
        }
        .ok_or(DataError::Index { index: samples.end, len: self.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Content, Loader, Subset};

    /// Returns a series in which a value tells its row and its feature.
    fn series(rows: usize, features: usize) -> Field {
        let values: Vec<f32> =
            (0..rows * features).map(|i| (100 * (i / features) + i % features) as f32).collect();
        Field::f32([rows, features], values)
    }

    /// Compares every window with the rows that its settings say, for many settings.
    #[test]
    fn windows_are_the_rows_that_the_settings_say() {
        let mut tried = 0;
        for (length, ahead, gap) in [(1, 1, 0), (3, 2, 0), (4, 0, 5), (2, 3, 1), (5, 1, 2)] {
            for (stride, sampling, rows) in [(1, 1, 0..40), (2, 3, 0..40), (7, 2, 3..38), (3, 1, 5..29)] {
                let windows = Windows::new(series(40, 2)).length(length).ahead(ahead).gap(gap);
                let windows = windows.stride(stride).sampling(sampling).rows(rows.clone()).targets([1]);
                let between = if ahead == 0 { 0 } else { gap };
                let reach = (length + between + ahead - 1) * sampling;
                let starts: Vec<usize> =
                    rows.clone().step_by(stride).filter(|start| start + reach < rows.end).collect();
                assert_eq!(windows.len(), starts.len() as u64);
                for (index, &start) in starts.iter().enumerate() {
                    let row = |at: usize| (100 * (start + at * sampling)) as f32;
                    let x: Vec<f32> = (0..length).flat_map(|at| [row(at), row(at) + 1.0]).collect();
                    let y: Vec<f32> = (0..ahead).map(|at| row(length + gap + at) + 1.0).collect();
                    let sample = windows.fetch(index as u64).unwrap();
                    assert_eq!(sample.field("x"), Some(&Field::f32([length, 2], x)));
                    assert_eq!(sample.field("y").is_some(), ahead > 0);
                    assert!(ahead == 0 || sample.field("y") == Some(&Field::f32([ahead, 1], y)));
                    assert_eq!(sample.specs(), windows.fields());
                    tried += 1;
                }
                assert!(windows.fetch(starts.len() as u64).is_err() && windows.fetch(u64::MAX).is_err());
            }
        }
        assert!(tried > 200, "{tried}");
        let one = Windows::new(Field::i32([4], [1, 2, 3, 4])).length(2);
        assert_eq!(one.fetch(1).unwrap().field("y"), Some(&Field::i32([1, 1], [4])));
    }

    /// Keras's own example of `timeseries_dataset_from_array`: 10 values a sequence, one of 2, two apart.
    #[test]
    fn the_sequences_of_kerass_example() {
        let data = Field::f32([100], (0..100).map(|i| i as f32).collect::<Vec<_>>());
        let windows = Windows::new(data).length(10).ahead(0).sampling(2).stride(3);
        assert_eq!(windows.len(), 28);
        let x = |at| windows.fetch(at).unwrap().field("x").unwrap().values.as_f32().unwrap().to_vec();
        assert_eq!(x(0), [0., 2., 4., 6., 8., 10., 12., 14., 16., 18.]);
        assert_eq!(x(1), [3., 5., 7., 9., 11., 13., 15., 17., 19., 21.]);
        assert_eq!(x(27), [81., 83., 85., 87., 89., 91., 93., 95., 97., 99.]);
    }

    #[test]
    fn no_value_is_copied_and_a_field_of_a_table_is_a_series() {
        let field = series(1000, 3);
        let held = field.values.as_f32().unwrap().as_ptr();
        let (train, validation) = (Windows::new(field).length(10).rows(0..800), 800..1000);
        let validation = train.clone().rows(validation);
        for windows in [&train, &validation] {
            assert_eq!(windows.series().values.as_f32().unwrap().as_ptr(), held);
        }
        assert_eq!((train.len(), validation.len()), (790, 190));
        assert_eq!(validation.describe(0), "sample 0 (rows 800 to 810)");
        let memory = Memory::labelled([1., 2., 3., 4., 5., 6.], [2], [0, 1, 2]).unwrap();
        let windows = Windows::of_memory(memory.clone(), "x").unwrap().length(1).ahead(1);
        assert_eq!(windows.fetch(1).unwrap().field("y"), Some(&Field::f32([1, 2], [5., 6.])));
        let error = Windows::of_memory(memory, "z").unwrap_err().to_string();
        assert_eq!(error, "field 'z': no such field");
    }

    #[test]
    fn settings_that_leave_no_window_say_why() {
        let message = |windows: Windows| Loader::new(windows).fields().unwrap_err().to_string();
        let windows = || Windows::new(series(10, 2)).length(4);
        for (windows, expected) in [
            (Windows::new(series(10, 2)), "windows: set `Windows::length` to at least 1"),
            (windows().stride(0), "windows: set `Windows::stride` to at least 1"),
            (windows().sampling(0), "windows: set `Windows::sampling` to at least 1"),
            (windows().targets([2]), "windows: target 2 is none of the 2 features, counted from 0"),
            (windows().rows(4..11), "windows: rows 4..11 of a series of 10 rows"),
            (
                windows().ahead(7),
                "windows: 10 rows hold no window of 4 rows, 0 passed over and 7 ahead, one row of 1",
            ),
        ] {
            assert_eq!(message(windows.clone()), expected);
            // A part of it says the same.
            assert_eq!(message_of(&Loader::new(Subset::new(windows, []).unwrap())), expected);
        }
        assert!(message(windows().targets([])).contains("ahead(0)"));
        assert!(message(windows().length(usize::MAX)).contains("hold no window"));
        let odd = Windows::new(Field::f32([2, 2, 2], [0.0; 8])).length(1);
        assert!(message(odd).contains("[time, features]"));
        assert!(message(Windows::new(Field::f32([3, 2], [0.0; 5])).length(1)).contains("of 5 values"));
    }

    fn message_of(loader: &Loader) -> String {
        loader.fields().unwrap_err().to_string()
    }

    /// Every change of a setting or of a value that a window uses changes both hashes.
    #[test]
    fn hashes_cover_settings_and_values() {
        let root = |windows: &Windows| Content::of(windows, || true).unwrap().unwrap().root();
        let base = Windows::new(series(30, 2)).length(4).ahead(2).targets([0]);
        let mut other = series(30, 2);
        if let Values::F32(values) = &mut other.values {
            values[17] = -1.0;
        }
        let others = [
            base.clone().length(5),
            base.clone().ahead(1),
            base.clone().gap(1),
            base.clone().stride(2),
            base.clone().sampling(2),
            base.clone().targets([1]),
            base.clone().rows(0..29),
            base.clone().rows(1..30),
            Windows::new(other).length(4).ahead(2).targets([0]),
        ];
        let mut prints = vec![(base.fingerprint(), root(&base))];
        assert_eq!(prints[0], (base.clone().fingerprint(), root(&base.clone())));
        for windows in &others {
            let print = (windows.fingerprint(), root(windows));
            assert!(prints.iter().all(|own| own.0 != print.0 && own.1 != print.1), "{windows:?}");
            prints.push(print);
        }
        assert_eq!(base.coverage(), Coverage::Hashed);
    }
}
