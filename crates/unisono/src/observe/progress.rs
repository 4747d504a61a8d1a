//! The observer that shows a progress bar on standard error, or plain lines where that is no terminal.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::Epoch;
use crate::observe::logged::Logged;
use crate::observe::observer::{Observer, Start, Step};
use crate::observe::shown::{clock, measured, number, short, thousands};

const BAR: &str = "{prefix} {bar:30} {pos}/{len} samples  {msg}  {eta} left";

/// Shows loss, metrics, samples per second and the remaining time of the epoch on standard error. In a
/// terminal it is a bar; elsewhere it is a line every ten seconds, and a line for each epoch.
///
/// ```text
/// epoch 3/20  41%  loss 0.3127  accuracy 0.9012  lr 8.1e-4  3,412 samples/s  0:41 left  2:07 elapsed
/// ```
pub struct Progress {
    bar: Option<ProgressBar>,
    out: Box<dyn Write + Send>,
    /// The shortest time between two lines of steps.
    every: Duration,
    said: Instant,
    /// When the fit began.
    started: Instant,
    /// The epoch of the last step.
    epoch: Option<u32>,
    /// When the epoch's first step of this fit began.
    began: Instant,
    /// When the last step ended.
    stepped: Instant,
    /// The number of samples trained on since the epoch began, or since the fit began within it.
    trained: u64,
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
        Self { bar, ..Self::lines(std::io::stderr()) }
    }

    /// Creates a progress that writes plain lines to a writer.
    pub fn lines(out: impl Write + Send + 'static) -> Self {
        let now = Instant::now();
        Self {
            bar: None,
            out: Box::new(out),
            every: Duration::from_secs(10),
            said: now,
            started: now,
            epoch: None,
            began: now,
            stepped: now,
            trained: 0,
        }
    }

    /// Sets the time between two lines within an epoch, if there is no bar. Default: 10 seconds.
    pub fn every(self, time: Duration) -> Self {
        Self { every: time, ..self }
    }

    /// Writes a line, above the bar where there is one. A full or closed standard error is no reason to stop
    /// a run.
    fn say(&mut self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => drop(writeln!(self.out, "{line}").and_then(|()| self.out.flush())),
        }
    }

    /// Returns the samples trained on in a second of the epoch.
    fn rate(&self) -> f64 {
        let seconds = self.stepped.saturating_duration_since(self.began).as_secs_f64();
        if seconds > 0.0 { self.trained as f64 / seconds } else { 0.0 }
    }

    /// Returns the line of a step, with the time that the rest of the epoch takes at its pace so far.
    fn line(&self, step: &Step) -> String {
        let rate = self.rate();
        let percent = if step.of > 0 { 100.0 * step.done as f64 / step.of as f64 } else { 100.0 };
        let learning_rate = step.learning_rate.map_or_else(String::new, |lr| format!("  lr {}", short(lr)));
        let left = step.of.saturating_sub(step.done) as f64 / rate.max(f64::MIN_POSITIVE);
        let left = Duration::try_from_secs_f64(left).map_or_else(|_| "?".to_owned(), clock);
        format!(
            "epoch {}/{}  {percent:.0}%  {}{learning_rate}  {} samples/s  {left} left  {} elapsed",
            step.epoch + 1,
            step.epochs,
            measured(&step.so_far),
            thousands(rate),
            clock(self.stepped.saturating_duration_since(self.started))
        )
    }
}

impl Observer for Progress {
    fn started(&mut self, _start: &Start<'_>) {
        let now = Instant::now();
        (self.started, self.epoch, self.began, self.said) = (now, None, now, now);
    }

    fn step(&mut self, step: &Step) {
        if self.epoch != Some(step.epoch) {
            (self.epoch, self.trained) = (Some(step.epoch), 0);
            if let Some(bar) = &self.bar {
                bar.set_style(
                    ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar()),
                );
                bar.reset();
                bar.set_length(step.of);
            }
        }
        self.trained += step.samples;
        self.stepped = Instant::now();
        if let Some(bar) = &self.bar {
            bar.set_prefix(format!("epoch {}/{}", step.epoch + 1, step.epochs));
            bar.set_message(format!("{}  {} samples/s", measured(&step.so_far), thousands(self.rate())));
            bar.set_position(step.done);
        } else if self.said.elapsed() >= self.every {
            self.say(&self.line(step));
            self.said = self.stepped;
        }
    }

    fn epoch(&mut self, epoch: &Epoch) {
        let validation =
            epoch.validation.as_ref().map_or_else(String::new, |v| format!("  validation: {}", measured(v)));
        let line = format!(
            "epoch {}: {}{validation}  {} samples/s",
            epoch.epoch + 1,
            measured(&epoch.train),
            thousands(self.rate())
        );
        self.say(&line);
        (self.epoch, self.began, self.said) = (None, Instant::now(), Instant::now());
    }

    fn logged(&mut self, _step: u64, tag: &str, value: &Logged) {
        match value {
            Logged::Scalar(value) => self.say(&format!("{tag}: {}", number(*value))),
            Logged::Text(text) => self.say(&format!("{tag}: {text}")),
            Logged::Histogram(_) | Logged::Image(_) => {}
        }
    }

    fn saved(&mut self, path: &Path) {
        if self.bar.is_none() {
            self.say(&format!("saved {}", path.display()));
        }
    }

    fn rolled_back(&mut self, _step: u64) {
        (self.epoch, self.began) = (None, Instant::now());
    }

    fn note(&mut self, text: &str) {
        self.say(text);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::Evaluation;

    /// A writer that several hold.
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Nobody flushes a writer that has buffered the last lines before a process is killed.
    #[test]
    fn lines_are_out_at_once() {
        let out = Shared::default();
        let mut progress = Progress::lines(std::io::BufWriter::new(out.clone()));
        progress.note("a note");
        let written = out.0.lock().unwrap().clone();
        assert_eq!(written, b"a note\n");
    }

    fn step(number: u64) -> Step {
        let evaluation = Evaluation {
            loss: 0.312_66,
            metrics: vec![("accuracy".into(), 0.901_23)],
            samples: 64,
            ..Evaluation::default()
        };
        Step {
            step: number,
            epoch: 2,
            epochs: 20,
            done: 410,
            of: 1000,
            samples: 205,
            learning_rate: Some(8.1e-4),
            now: evaluation.clone(),
            so_far: evaluation,
            committed: true,
        }
    }

    #[test]
    fn a_line_says_how_far_the_epoch_is_and_what_is_left() {
        let mut progress = Progress::lines(Vec::new());
        let now = Instant::now();
        (progress.began, progress.stepped, progress.trained) = (now, now + Duration::from_secs(2), 6824);
        progress.started = now;
        assert_eq!(
            progress.line(&Step { done: 410_000, of: 549_892, ..step(0) }),
            "epoch 3/20  75%  loss 0.3127  accuracy 0.9012  lr 8.1e-4  3,412 samples/s  0:41 left  0:02 elapsed"
        );
        // Before anything is measured, nobody knows.
        progress.trained = 0;
        assert!(progress.line(&step(0)).contains("  0 samples/s  ? left  "), "{}", progress.line(&step(0)));
    }

    #[test]
    fn lines_come_when_the_time_is_over_and_not_before() {
        let lines = |every| {
            let out = Shared::default();
            let mut progress = Progress::lines(out.clone()).every(every);
            (0..3).for_each(|i| progress.step(&step(i)));
            progress.logged(3, "sample", &"a text".into());
            let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lines(Duration::from_secs(600)), ["sample: a text"]);
        let all = lines(Duration::ZERO);
        assert_eq!(all.len(), 4);
        assert!(all[0].starts_with("epoch 3/20  41%  loss 0.3127  accuracy 0.9012  lr 8.1e-4  "), "{all:?}");
    }
}
