//! The observer that shows a progress bar on standard error, or plain lines where that is no terminal.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::observe::observer::{Observer, Step};
use crate::{Epoch, Evaluation};

const BAR: &str = "{prefix} {bar:30} {pos}/{len} samples  {msg}  {eta} left";

/// Shows loss, metrics, samples a second and the time left, as a bar in a terminal and as a line for each
/// epoch elsewhere.
pub struct Progress {
    bar: Option<ProgressBar>,
    epoch_started: Option<(u32, Instant)>,
    trained: u64,
    out: Box<dyn Write + Send>,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// Shows the progress on standard error.
    pub fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = terminal.then(|| ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()));
        Self { bar, epoch_started: None, trained: 0, out: Box::new(std::io::stderr()) }
    }

    /// Creates a progress that writes plain lines to this writer.
    pub fn lines(out: impl Write + Send + 'static) -> Self {
        Self { bar: None, epoch_started: None, trained: 0, out: Box::new(out) }
    }

    /// Writes a line, above the bar where there is one. A full or closed standard error is no reason to stop
    /// a run.
    fn say(&mut self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => drop(writeln!(self.out, "{line}")),
        }
    }

    /// Returns the samples trained on in a second of the epoch.
    fn rate(&self) -> f64 {
        let seconds = self.epoch_started.map_or(0.0, |(_, at)| at.elapsed().as_secs_f64());
        if seconds > 0.0 { self.trained as f64 / seconds } else { 0.0 }
    }
}

impl Observer for Progress {
    fn step(&mut self, step: &Step) {
        if self.epoch_started.is_none_or(|(epoch, _)| epoch != step.epoch) {
            self.epoch_started = Some((step.epoch, Instant::now()));
            self.trained = 0;
            if let Some(bar) = &self.bar {
                bar.set_style(
                    ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar()),
                );
                bar.reset();
                bar.set_length(step.of);
            }
        }
        self.trained += step.samples;
        let message = format!("{}  {:.0} samples/s", shown(&step.so_far), self.rate());
        if let Some(bar) = &self.bar {
            bar.set_prefix(format!("epoch {}/{}", step.epoch + 1, step.epochs));
            bar.set_message(message);
            bar.set_position(step.done);
        }
    }

    fn epoch(&mut self, epoch: &Epoch) {
        let validation =
            epoch.validation.as_ref().map_or_else(String::new, |v| format!("  held out: {}", shown(v)));
        let line = format!(
            "epoch {}: {}{validation}  {:.0} samples/s",
            epoch.epoch + 1,
            shown(&epoch.train),
            self.rate()
        );
        self.say(&line);
    }

    fn saved(&mut self, path: &Path) {
        if self.bar.is_none() {
            self.say(&format!("saved {}", path.display()));
        }
    }

    fn note(&mut self, text: &str) {
        self.say(text);
    }
}

/// Writes loss and metrics, as in `loss 0.1234  accuracy 0.9722`.
fn shown(evaluation: &Evaluation) -> String {
    let metrics = evaluation.metrics.iter().map(|(name, value)| format!("  {name} {value:.4}"));
    format!("loss {:.4}{}", evaluation.loss, metrics.collect::<String>())
}
