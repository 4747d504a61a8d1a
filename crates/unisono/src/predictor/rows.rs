//! Predictions row by row, of an iterator of samples.

use std::collections::VecDeque;

use unisono_data::Sample;

use crate::predictor::{Predictor, stack};
use crate::{Error, Prediction, Predictions};

/// The outputs of a model for one sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row(Vec<Prediction>);

impl Row {
    /// Returns an output by its name: its values, and in `shape` its axes, without the samples.
    pub fn get(&self, output: &str) -> Option<&Prediction> {
        self.iter().find(|prediction| prediction.name == output)
    }

    /// Returns the values of the first output, which is the only one of most models.
    pub fn values(&self) -> &[f32] {
        self.0.first().map(|prediction| &*prediction.values).unwrap_or_default()
    }

    /// Returns all outputs.
    pub fn iter(&self) -> impl Iterator<Item = &Prediction> {
        self.0.iter()
    }
}

/// The rows of an iterator of samples, predicted batch by batch. Made by [`Predictor::rows`].
pub struct Rows<'a, I> {
    predictor: &'a mut Predictor,
    samples: I,
    /// The first sample of the next batch, where another shape ended the batch before.
    next: Option<Sample>,
    /// The number of samples in the batches so far.
    done: u64,
    ready: VecDeque<Row>,
    /// Whether a batch has failed: no row follows.
    has_failed: bool,
}

impl Predictor {
    /// Predicts the samples of an iterator, in its order. Samples are taken and predicted in batches, as the
    /// rows are asked for; samples of another length begin a batch of their own.
    ///
    /// ```no_run
    /// use unisono::Predictor;
    /// use unisono::data::{Field, Sample};
    ///
    /// # fn main() -> Result<(), unisono::Error> {
    /// let mut predictor = Predictor::open("houses.safetensors")?;
    /// let houses = [[120.0, 4.0], [80.0, 3.0]].map(|x| Sample::new().with("x", Field::f32([2], x)));
    /// for row in predictor.rows(houses)? {
    ///     println!("{}", row?.values()[0]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The model carries something from batch to batch, so it has no single rows. A row is an error if its
    /// batch does not fit the model or a replica fails; no row follows it.
    pub fn rows<I: IntoIterator<Item = Sample>>(
        &mut self,
        samples: I,
    ) -> Result<Rows<'_, I::IntoIter>, Error> {
        self.check_rows()?;
        let (samples, ready) = (samples.into_iter(), VecDeque::new());
        Ok(Rows { predictor: self, samples, next: None, done: 0, ready, has_failed: false })
    }

    /// # Errors
    /// The model carries something from batch to batch.
    pub(super) fn check_rows(&self) -> Result<(), Error> {
        if self.programs.iter().any(|(program, _)| program.carries()) {
            let problem = "the model carries values from batch to batch, so it has no single rows";
            return Err(Error::setting("rows", problem));
        }
        Ok(())
    }

    /// Predicts samples of one shape. `first` is the position of the first one.
    pub(super) fn predict_samples(&mut self, samples: &[Sample], first: u64) -> Result<Vec<Row>, Error> {
        let batch = stack(&self.fields(), samples)?.starting_at(first);
        Ok(rows_of(&self.predict_batch(&batch)?, samples.len()))
    }
}

/// Returns whether two samples have the same fields with the same axes and types.
pub(super) fn are_alike(a: &Sample, b: &Sample) -> bool {
    a.specs() == b.specs()
}

/// Returns the predictions of a batch row by row.
fn rows_of(predictions: &Predictions, rows: usize) -> Vec<Row> {
    let row = |at: usize| {
        let outputs = predictions.iter().map(|all| {
            let width = all.values.len() / rows.max(1);
            let values = all.values[at * width..(at + 1) * width].to_vec();
            Prediction { name: all.name.clone(), shape: all.shape[1..].to_vec(), values }
        });
        Row(outputs.collect())
    };
    (0..rows).map(row).collect()
}

impl<I: Iterator<Item = Sample>> Iterator for Rows<'_, I> {
    type Item = Result<Row, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.is_empty() && !self.has_failed {
            let mut batch: Vec<Sample> = self.next.take().into_iter().collect();
            while batch.len() < self.predictor.batch {
                let Some(sample) = self.samples.next() else { break };
                if batch.first().is_some_and(|first| !are_alike(first, &sample)) {
                    self.next = Some(sample);
                    break;
                }
                batch.push(sample);
            }
            if batch.is_empty() {
                return None;
            }
            let first = self.done;
            self.done += batch.len() as u64;
            match self.predictor.predict_samples(&batch, first) {
                Ok(rows) => self.ready.extend(rows),
                Err(error) => {
                    self.has_failed = true;
                    return Some(Err(error));
                }
            }
        }
        self.ready.pop_front().map(Ok)
    }
}
