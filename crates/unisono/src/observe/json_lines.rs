//! The logger of a run's history as JSON, one object a line.

use std::io::{Result, Write};

use serde::Serialize;
use serde_json::Value;

use crate::objective::number::Number;
use crate::observe::logged::Logged;
use crate::observe::observer::{Observer, Start};
use crate::observe::tables;
use crate::{Epoch, Evaluation};

/// Writes a line of JSON for every epoch: `{"event":"epoch",...}`. The lines contain no times: equal
/// histories give equal bytes. A resumed run also writes the lines of the earlier epochs.
///
/// A table that was measured in an epoch, such as a confusion matrix, follows on a line of its own:
/// `{"event":"table","epoch":3,"part":"val","name":"confusion matrix","rows":[[50,2],[1,47]]}`. Histories
/// have no tables, so a resumed run does not repeat those of earlier epochs.
///
/// Losses and metrics that are not finite are the strings `"NaN"`, `"inf"` and `"-inf"`, as in a
/// [`History`](crate::History).
///
/// Numbers and texts that a program logs are lines with the event `log`. If steps are repeated because
/// replicas were wrong, their lines are written again.
///
/// ```
/// use unisono::{Dense, JsonLines, Trainer};
///
/// let builder = Trainer::builder(Dense::new(10)).observer(JsonLines::new(std::io::stdout()));
/// ```
pub struct JsonLines<W> {
    out: W,
    /// The number of epochs of the run whose lines are written.
    written: usize,
    has_failed: bool,
    problem: Option<String>,
}

impl<W: Write> JsonLines<W> {
    /// Creates a logger that writes lines to `out`, for example standard output or a file.
    pub fn new(out: W) -> Self {
        Self { out, written: 0, has_failed: false, problem: None }
    }

    /// Writes the line of an epoch. Its `epoch` counts from 1, as in "after 3 epochs".
    ///
    /// # Errors
    /// It returns the error of the writer.
    pub fn epoch(&mut self, epoch: &Epoch) -> Result<()> {
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
    pub fn done(&mut self, steps: u64, last: Option<&Epoch>, state_sha256: &str) -> Result<()> {
        let mut fields = vec![field("steps", steps)];
        if let Some(epoch) = last {
            fields.extend(measured("train", &epoch.train));
            fields.extend(epoch.validation.iter().flat_map(|v| measured("val", v)));
        }
        fields.push(field("state_sha256", state_sha256));
        self.write("done", fields)
    }

    /// Writes the lines of an epoch's tables.
    fn tables(&mut self, epoch: &Epoch) -> Result<()> {
        for (part, name, table) in tables::of_epoch(epoch) {
            let rows: Vec<Value> = table.rows().map(|row| row.iter().map(|x| whole(*x)).collect()).collect();
            let number = field("epoch", u64::from(epoch.epoch) + 1);
            self.write("table", vec![number, field("part", part), field("name", name), field("rows", rows)])?;
        }
        Ok(())
    }

    fn write(&mut self, event: &str, fields: Vec<(String, Value)>) -> Result<()> {
        let fields = std::iter::once(field("event", event)).chain(fields).collect();
        let line = serde_json::to_string(&Line(fields))?;
        writeln!(self.out, "{line}").and_then(|()| self.out.flush())
    }

    /// Keeps the error of the writer, once until it takes lines again. Training goes on if nobody reads them.
    fn keep(&mut self, result: Result<()>) {
        match result {
            Err(error) if !std::mem::replace(&mut self.has_failed, true) => {
                self.problem = Some(format!("warning: the JSON lines are not written: {error}"));
            }
            Err(_) => {}
            Ok(()) => self.has_failed = false,
        }
    }
}

impl<W: Write + Send> Observer for JsonLines<W> {
    fn started(&mut self, start: &Start<'_>) {
        for epoch in start.history.iter().skip(self.written) {
            let result = JsonLines::epoch(self, epoch);
            self.keep(result);
        }
        self.written = start.history.len();
    }

    fn epoch(&mut self, epoch: &Epoch) {
        self.written += 1;
        let result = JsonLines::epoch(self, epoch).and_then(|()| self.tables(epoch));
        self.keep(result);
    }

    fn logged(&mut self, step: u64, tag: &str, value: &Logged) {
        let value: Value = match value {
            Logged::Scalar(value) => number(*value),
            Logged::Text(text) => text.as_str().into(),
            Logged::Histogram(_) | Logged::Image(_) => return,
        };
        let result = self.write("log", vec![field("steps", step), field("tag", tag), field("value", value)]);
        self.keep(result);
    }

    fn take_problem(&mut self) -> Option<String> {
        self.problem.take()
    }
}

/// Returns the fields of an evaluation: `train_loss`, `train_accuracy` and so on.
fn measured<'a>(part: &'a str, evaluation: &'a Evaluation) -> impl Iterator<Item = (String, Value)> + 'a {
    let loss = field(&format!("{part}_loss"), number(evaluation.loss));
    let metrics = evaluation.metrics.iter();
    std::iter::once(loss)
        .chain(metrics.map(move |(name, value)| field(&format!("{part}_{name}"), number(*value))))
}

/// Returns a number, or the text of one that JSON does not have.
fn number(value: f64) -> Value {
    serde_json::to_value(Number(value)).unwrap_or_default()
}

/// Returns a number of a table, without a point where it is whole.
fn whole(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 { (value as i64).into() } else { value.into() }
}

fn field(name: &str, value: impl Into<Value>) -> (String, Value) {
    (name.to_owned(), value.into())
}

/// A JSON object whose fields keep their order.
struct Line(Vec<(String, Value)>);

impl Serialize for Line {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_lines_of_their_own() {
        let table = crate::Table::new(2, vec![50.0, 2.0, 1.0, 0.5]);
        let measured = Evaluation { tables: vec![("confusion".into(), table)], ..Evaluation::default() };
        let epoch = Epoch { epoch: 2, steps: 23, train: Evaluation::default(), validation: Some(measured) };
        let mut lines = JsonLines::new(Vec::new());
        Observer::epoch(&mut lines, &epoch);
        let text = String::from_utf8(lines.out).unwrap();
        let expected =
            r#"{"event":"table","epoch":3,"part":"val","name":"confusion","rows":[[50,2],[1,0.5]]}"#;
        assert_eq!(text.lines().nth(1), Some(expected), "{text}");
    }

    #[test]
    fn a_diverged_loss_says_which_number_it_is() {
        for (loss, expected) in [(f64::NAN, "\"NaN\""), (f64::INFINITY, "\"inf\""), (0.5, "0.5")] {
            let train = Evaluation { loss, ..Evaluation::default() };
            let mut lines = JsonLines::new(Vec::new());
            Observer::epoch(&mut lines, &Epoch { epoch: 0, steps: 1, train, validation: None });
            let text = String::from_utf8(lines.out).unwrap();
            assert!(text.contains(&format!("\"train_loss\":{expected}")), "{text}");
        }
    }

    /// A writer that fails while it is full.
    struct Disk(std::sync::Arc<std::sync::atomic::AtomicBool>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            match self.0.load(std::sync::atomic::Ordering::Relaxed) {
                true => Err(std::io::ErrorKind::StorageFull.into()),
                false => Ok(bytes.len()),
            }
        }
        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_time_that_lines_cannot_be_written_is_told_once() {
        let is_full = std::sync::Arc::default();
        let mut lines = JsonLines::new(Disk(std::sync::Arc::clone(&is_full)));
        let mut told = |full: bool, step: u64| {
            is_full.store(full, std::sync::atomic::Ordering::Relaxed);
            lines.logged(step, "a", &1.0.into());
            lines.take_problem().is_some()
        };
        let told = [true, true, false, true, true].map(|full| told(full, 3));
        assert_eq!(told, [true, false, false, true, false]);
    }

    #[test]
    fn lines_hold_what_was_measured_and_no_time() {
        let measured = |loss| Evaluation {
            loss,
            metrics: vec![("accuracy".into(), 0.5)],
            samples: 4,
            ..Evaluation::default()
        };
        let epoch = Epoch { epoch: 0, steps: 23, train: measured(1.5), validation: Some(measured(0.1)) };
        let mut lines = JsonLines::new(Vec::new());
        lines.epoch(&epoch).unwrap();
        lines.logged(23, "sample", &"a \"text\"".into());
        lines.done(23, Some(&epoch), "ab").unwrap();
        let expected = concat!(
            r#"{"event":"epoch","epoch":1,"steps":23,"train_loss":1.5,"train_accuracy":0.5,"#,
            r#""val_loss":0.1,"val_accuracy":0.5}"#,
            "\n",
            r#"{"event":"log","steps":23,"tag":"sample","value":"a \"text\""}"#,
            "\n",
            r#"{"event":"done","steps":23,"train_loss":1.5,"train_accuracy":0.5,"#,
            r#""val_loss":0.1,"val_accuracy":0.5,"state_sha256":"ab"}"#,
            "\n",
        );
        assert_eq!(String::from_utf8(lines.out).unwrap(), expected);
    }
}
