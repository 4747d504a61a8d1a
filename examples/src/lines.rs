//! A run's history as JSON, one object a line.

use std::io::Write;

use serde::Serialize;
use serde_json::Value;
use unisono::{Epoch, Evaluation, Observer};

use crate::Error;

/// Writes `{"event":"epoch",...}` for every epoch. There is no time in these lines: equal histories are equal
/// bytes.
pub struct Lines<W> {
    out: W,
}

impl<W: Write> Lines<W> {
    /// Creates a writer of lines to `out`, for example standard output.
    pub fn new(out: W) -> Self {
        Self { out }
    }

    /// Writes the line of an epoch. Its `epoch` counts from 1, as in "after 3 epochs".
    ///
    /// # Errors
    /// It returns the error of the writer.
    pub fn epoch(&mut self, epoch: &Epoch) -> Result<(), Error> {
        let mut fields = vec![field("epoch", u64::from(epoch.epoch) + 1), field("steps", epoch.steps)];
        fields.extend(measured("train", &epoch.train));
        fields.extend(epoch.validation.iter().flat_map(|v| measured("val", v)));
        self.write("epoch", fields)
    }

    /// Writes the last line:
    /// `{"event":"done","steps":...,"train_loss":...,"val_accuracy":...,"state_sha256":...}`.
    ///
    /// # Errors
    /// It returns the error of the writer.
    pub fn done(&mut self, steps: u64, last: Option<&Epoch>, state_sha256: &str) -> Result<(), Error> {
        let mut fields = vec![field("steps", steps)];
        if let Some(epoch) = last {
            fields.extend(measured("train", &epoch.train));
            fields.extend(epoch.validation.iter().flat_map(|v| measured("val", v)));
        }
        fields.push(field("state_sha256", state_sha256));
        self.write("done", fields)
    }

    fn write(&mut self, event: &str, fields: Vec<(String, Value)>) -> Result<(), Error> {
        let fields = std::iter::once(field("event", event)).chain(fields).collect();
        let line = serde_json::to_string(&Line(fields))?;
        let written = writeln!(self.out, "{line}").and_then(|()| self.out.flush());
        written.map_err(|error| format!("standard output: {error}").into())
    }
}

impl<W: Write + Send> Observer for Lines<W> {
    fn epoch(&mut self, epoch: &Epoch) {
        // Training goes on if nobody reads the lines. The program reports the error of the last line.
        let _ = Lines::epoch(self, epoch);
    }
}

/// Returns the fields of an evaluation: `train_loss`, `train_accuracy` and so on.
fn measured<'a>(part: &'a str, evaluation: &'a Evaluation) -> impl Iterator<Item = (String, Value)> + 'a {
    let loss = field(&format!("{part}_loss"), evaluation.loss);
    let metrics = evaluation.metrics.iter();
    std::iter::once(loss).chain(metrics.map(move |(name, value)| field(&format!("{part}_{name}"), *value)))
}

fn field(name: &str, value: impl Into<Value>) -> (String, Value) {
    (name.to_owned(), value.into())
}

/// A JSON object whose fields keep their order.
struct Line(Vec<(String, Value)>);

impl Serialize for Line {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_hold_what_was_measured_and_no_time() {
        let measured = |loss| {
            let mut evaluation = Evaluation::default();
            (evaluation.loss, evaluation.samples) = (loss, 4);
            evaluation.metrics.push(("accuracy".into(), 0.5));
            evaluation
        };
        let mut epoch = Epoch::default();
        (epoch.steps, epoch.train, epoch.validation) = (23, measured(1.5), Some(measured(0.1)));
        let mut lines = Lines::new(Vec::new());
        lines.epoch(&epoch).unwrap();
        lines.done(23, Some(&epoch), "ab").unwrap();
        let expected = concat!(
            r#"{"event":"epoch","epoch":1,"steps":23,"train_loss":1.5,"train_accuracy":0.5,"#,
            r#""val_loss":0.1,"val_accuracy":0.5}"#,
            "\n",
            r#"{"event":"done","steps":23,"train_loss":1.5,"train_accuracy":0.5,"#,
            r#""val_loss":0.1,"val_accuracy":0.5,"state_sha256":"ab"}"#,
            "\n",
        );
        assert_eq!(String::from_utf8(lines.out).unwrap(), expected);
    }
}
