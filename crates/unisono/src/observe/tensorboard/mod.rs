//! The logger of event files that TensorBoard shows.

mod histogram;
mod run;
mod summary;
mod writer;

use std::path::Path;

use unisono_replica::ReplicaReport;

use crate::observe::logged::Logged;
use crate::observe::observer::{Observer, Start, Step};
use crate::observe::report::EpochTimes;
use crate::observe::tables;
use crate::observe::tensorboard::histogram::Histogram;
use crate::observe::tensorboard::run::Run;
use crate::observe::tensorboard::summary::{Hyperparameter, Summary};
use crate::observe::tensorboard::writer::now;
use crate::protobuf::Message;
use crate::{Epoch, Evaluation};

/// A logger that writes event files for TensorBoard: `tensorboard --logdir DIR` shows them while the run goes
/// on.
///
/// The steps of all values are the number of steps done since the run's start. The directory has a run
/// `train` and, where there is an evaluation after epochs, a run `validation`, whose values are in the same
/// charts:
///
/// | tag | value |
/// |---|---|
/// | `step/loss`, `step/accuracy` | the loss and the metrics of each step |
/// | `step/learning_rate` | the learning rate |
/// | `epoch/loss`, `epoch/accuracy` | the loss and the metrics of each epoch, in both runs |
/// | `epoch/confusion matrix` | an image of each table, dark where a row has much; `/table` is its text |
/// | `epoch/number` | the number of the epoch that has ended, from 1 |
/// | `replica 0/busy`, `replica 0/waiting for input`, `replica 0/waiting for peers` | seconds of each epoch |
/// | `weights/0.weight` | with [`TensorBoard::histograms`], a histogram of each parameter |
/// | `model` | the model's summary, as a text |
///
/// The settings of the run and of the optimizer are its hyperparameters.
/// [`Trainer::log`](crate::Trainer::log) adds numbers, texts, histograms and images. A loop of your own, with
/// [`Trainer::step`](crate::Trainer::step), logs its values with it too.
///
/// A resumed run writes a new file, which first tells readers to drop the steps that are repeated. No step is
/// therefore shown twice. A run that starts at its first step replaces what the directory showed before. If a
/// file cannot be written, a note says so and the run continues. Writing is tried again at the next epoch, or
/// after ten seconds, a time that doubles up to ten minutes. If a file is removed, a note says so within ten
/// seconds, and a new file gets the values from then on.
///
/// ```
/// use unisono::{Dense, TensorBoard, Trainer};
///
/// let logger = TensorBoard::new("runs/houses").histograms(5).hyperparameter("width", 10);
/// let builder = Trainer::builder(Dense::new(10)).observer(logger);
/// ```
#[doc(alias = "SummaryWriter")]
pub struct TensorBoard {
    train: Run,
    validation: Run,
    every: u64,
    histograms: u32,
    hyperparameters: Vec<(String, Hyperparameter)>,
    times: EpochTimes,
    /// Whether steps are told of: a fit or a loop of your own has begun and not ended.
    is_told: bool,
    /// The number of steps that were told of.
    told: u64,
    /// What a program has logged since then at the newest step and the one before it, each with its step. A
    /// start has readers drop what was written from its step on, and this is written again behind it.
    before: Vec<(u64, Message)>,
    /// The number of bytes of these.
    held: usize,
    /// Whether it was told that there are too many.
    has_told_held: bool,
    problem: Option<String>,
}

/// The most bytes that are held to be written again behind a start.
const MOST_HELD: usize = 64 << 20;

impl TensorBoard {
    /// Creates a logger that writes to the directory `dir`.
    pub fn new(dir: impl AsRef<Path>) -> Self {
        let run = |name| Run::new(dir.as_ref().join(name));
        Self {
            train: run("train"),
            validation: run("validation"),
            every: 1,
            histograms: 0,
            hyperparameters: vec![],
            times: EpochTimes::default(),
            is_told: false,
            told: 0,
            before: vec![],
            held: 0,
            has_told_held: false,
            problem: None,
        }
    }

    /// Writes the values of every `steps`-th step. 0 writes no steps. Epochs are always written. Default: 1.
    pub fn every(self, steps: u64) -> Self {
        Self { every: steps, ..self }
    }

    /// Writes histograms of all parameters every `epochs` epochs. 0 writes none. Default: 0.
    pub fn histograms(self, epochs: u32) -> Self {
        Self { histograms: epochs, ..self }
    }

    /// Adds a hyperparameter of your own to those of the run. A value that can be parsed as a number is shown
    /// as one.
    pub fn hyperparameter(mut self, name: &str, value: impl ToString) -> Self {
        self.hyperparameters.push(hyperparameter(name, value));
        self
    }

    /// Holds what was logged to be written again behind a start. A later start keeps what belongs to steps
    /// that were told of, and one at step 0 keeps nothing.
    fn hold(&mut self, step: u64, event: Message) {
        if self.is_told || step != 0 && step <= self.told {
            return;
        }
        if self.before.last().is_some_and(|(last, _)| *last != step) {
            self.before.retain(|(old, _)| *old <= step && old + 1 >= step);
            self.held = self.before.iter().map(|(_, event)| event.as_bytes().len()).sum();
        }
        let held = self.held.saturating_add(event.as_bytes().len());
        if held <= MOST_HELD {
            self.held = held;
            self.before.push((step, event));
        } else if !std::mem::replace(&mut self.has_told_held, true) {
            let mebibytes = MOST_HELD >> 20;
            self.problem = Some(format!(
                "note: more than {mebibytes} MiB were logged after step {step}: what comes behind them is not shown if a fit \
                 begins now"
            ));
        }
    }

    /// Holds nothing any more: no start drops it.
    fn forget(&mut self) {
        self.before.clear();
        (self.held, self.has_told_held) = (0, false);
    }

    /// Writes the values of an epoch.
    fn write_epoch(&mut self, epoch: &Epoch) {
        let number = f64::from(epoch.epoch) + 1.0;
        let of_epoch = |evaluation| shown(measured(Summary::default(), "epoch", evaluation), evaluation);
        self.train.write(epoch.steps, of_epoch(&epoch.train).scalar("epoch/number", number));
        if let Some(validation) = &epoch.validation {
            self.validation.write(epoch.steps, of_epoch(validation));
        }
    }
}

impl Observer for TensorBoard {
    fn started(&mut self, start: &Start<'_>) {
        let is_new = start.step == 0 || !self.train.has_events();
        // A value has the number of steps done, so what the run keeps has numbers up to `start.step`.
        let first = if start.step == 0 { 0 } else { start.step + 1 };
        self.train.go_on(first);
        self.validation.go_on(first);
        (self.is_told, self.told) = (true, start.step);
        // A loop of your own tells of its start with the end of its first step.
        for (step, event) in &self.before {
            if (first..=start.step + 1).contains(step) {
                self.train.write_event(event);
            }
        }
        // A fit that fails before its first step may be followed by another one.
        if start.step > 0 {
            self.forget();
        }
        if is_new {
            let mut all = self.hyperparameters.clone();
            all.extend(settings(start));
            self.train.write_at(0, |seconds| Summary::default().hyperparameters(&all, seconds));
            let model = format!("```text\n{}\n```", start.summary);
            self.train.write(0, Summary::default().text("model", &model));
            start.history.iter().for_each(|epoch| self.write_epoch(epoch));
        }
    }

    fn step(&mut self, step: &Step) {
        let done = step.step + 1;
        self.forget();
        self.told = done;
        if done.checked_rem(self.every) == Some(0) {
            let summary = measured(Summary::default(), "step", &step.now);
            let summary = match step.learning_rate {
                Some(learning_rate) => summary.scalar("step/learning_rate", learning_rate),
                None => summary,
            };
            self.train.write(done, summary);
        }
    }

    fn epoch(&mut self, epoch: &Epoch) {
        self.train.retry();
        self.validation.retry();
        self.write_epoch(epoch);
    }

    fn replicas(&mut self, step: u64, replicas: &[ReplicaReport]) {
        let mut summary = Summary::default();
        for report in replicas {
            let names = ["busy", "waiting for input", "waiting for peers"];
            for (what, seconds) in names.into_iter().zip(self.times.next(report)) {
                summary = summary.scalar(&format!("replica {}/{what}", report.replica), seconds);
            }
        }
        self.train.write(step, summary);
    }

    fn wants_weights(&self, epoch: u32) -> bool {
        (epoch + 1).checked_rem(self.histograms) == Some(0)
    }

    fn weights(&mut self, step: u64, weights: &[(&str, Vec<f32>)]) {
        let add = |summary: Summary, (name, values): &(&str, Vec<f32>)| {
            summary.histogram(&format!("weights/{name}"), &Histogram::of(values))
        };
        self.train.write(step, weights.iter().fold(Summary::default(), add));
    }

    fn logged(&mut self, step: u64, tag: &str, value: &Logged) {
        let summary = Summary::default();
        let summary = match value {
            Logged::Scalar(value) => summary.scalar(tag, *value),
            Logged::Text(text) => summary.text(tag, text),
            Logged::Histogram(values) => summary.histogram(tag, &Histogram::of(values)),
            Logged::Image(image) => summary.image(tag, image),
        };
        let event = summary.at(step, now());
        self.train.write_event(&event);
        self.hold(step, event);
    }

    fn ended(&mut self) {
        self.is_told = false;
    }

    fn resumed(&mut self, step: u64) {
        self.told = step;
        self.train.go_on(step + 1);
        self.validation.go_on(step + 1);
    }

    fn rolled_back(&mut self, step: u64) {
        self.resumed(step);
    }

    fn take_problem(&mut self) -> Option<String> {
        let runs = [self.train.take_problem(), self.validation.take_problem()];
        let all: Vec<String> = self.problem.take().into_iter().chain(runs.into_iter().flatten()).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// Adds the loss and the metrics of an evaluation, with tags that begin with `part`.
fn measured(summary: Summary, part: &str, evaluation: &Evaluation) -> Summary {
    let add =
        |summary: Summary, (name, value): &(String, f64)| summary.scalar(&format!("{part}/{name}"), *value);
    evaluation.metrics.iter().fold(summary.scalar(&format!("{part}/loss"), evaluation.loss), add)
}

/// Adds the tables of an epoch's evaluation, as images and as texts.
fn shown(summary: Summary, evaluation: &Evaluation) -> Summary {
    evaluation.tables.iter().fold(summary, |summary, (name, table)| {
        let tag = format!("epoch/{name}");
        let summary = summary.text(&format!("{tag}/table"), &tables::markdown(table));
        tables::image(table).iter().fold(summary, |summary, image| summary.image(&tag, image))
    })
}

/// Returns the settings of a run and of its optimizer as hyperparameters.
fn settings(start: &Start<'_>) -> Vec<(String, Hyperparameter)> {
    let settings = start.settings;
    let mut all = vec![
        hyperparameter("global_batch", settings.global_batch),
        hyperparameter("shards", settings.shards),
        hyperparameter("seed", settings.seed),
        hyperparameter("precision", settings.precision),
        hyperparameter("loss", &settings.loss),
        hyperparameter("optimizer", &settings.optimizer),
        hyperparameter("parameters", start.summary.parameters()),
    ];
    let optimizer = start.optimizer.entries().iter();
    all.extend(optimizer.map(|(name, value)| hyperparameter(&format!("optimizer/{name}"), value)));
    all
}

/// Returns a hyperparameter, as a number if it reads as one.
fn hyperparameter(name: &str, value: impl ToString) -> (String, Hyperparameter) {
    let text = value.to_string();
    let value = match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Hyperparameter::Number(number),
        _ => Hyperparameter::Text(text),
    };
    (name.to_owned(), value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LoggedImage;

    #[test]
    fn what_is_logged_after_training_is_not_held_and_what_comes_before_it_within_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let mut logger = TensorBoard::new(dir.path());
        let held = |logger: &TensorBoard| logger.before.len();
        // Noise, which PNG does not make smaller.
        let noise = |at: u32| ((at ^ at >> 7).wrapping_mul(2_246_822_519) ^ at.wrapping_mul(at)) >> 19;
        let pixels = (0..512 * 512 * 3).map(|at| noise(at) as u8).collect();
        let picture = Logged::from(LoggedImage::new(512, 512, 3, pixels).unwrap());
        let log = |logger: &mut TensorBoard| {
            logger.logged(0, "picture", &picture);
            logger.take_problem()
        };
        let told: Vec<String> = (0..90).filter_map(|_| log(&mut logger)).collect();
        assert!((80..86).contains(&held(&logger)), "{}", held(&logger));
        assert!(told.len() == 1 && told[0].contains("more than 64 MiB were logged after step 0"), "{told:?}");
        for step in [4, 5] {
            logger.logged(step, "a", &1.0.into());
        }
        assert_eq!(held(&logger), 2);
        logger.resumed(5);
        logger.logged(5, "a", &1.0.into());
        assert_eq!(held(&logger), 2);
        logger.logged(6, "a", &1.0.into());
        logger.logged(7, "a", &1.0.into());
        assert_eq!(held(&logger), 2);
    }
}
