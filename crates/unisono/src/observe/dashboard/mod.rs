//! The observer that shows curves and replicas on a terminal.

mod ansi;
mod screen;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use console::Term;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use unisono_replica::ReplicaReport;

use crate::Epoch;
use crate::observe::logged::Logged;
use crate::observe::observer::{Observer, Start, Step};
use crate::observe::progress::Progress;
use crate::observe::shown::number;
use screen::Screen;

/// The shortest time between two pictures.
const EVERY: Duration = Duration::from_millis(200);
/// The most lines that the dashboard takes.
const MOST_LINES: u16 = 30;
/// The fewest columns and lines with which there is anything to see.
const FEWEST: [u16; 2] = [40, 12];

/// Shows a run in a terminal: its progress, the curves of loss and metrics, what each replica does with its
/// time, and the latest messages. It needs the feature `dashboard`. If standard error is not a terminal, or
/// is a very small one or a Windows console without escape sequences, it shows what
/// [`Progress`](crate::Progress) shows.
///
/// It is redrawn in place on the terminal's last lines, and everything above them stays. The mode of the
/// terminal is never changed, so the terminal works as before when the run ends, even by a signal or a panic.
///
/// ```
/// use unisono::{Dashboard, Dense, Trainer};
///
/// let builder = Trainer::builder(Dense::new(10)).observer(Dashboard::new());
/// ```
pub struct Dashboard(Shown);

enum Shown {
    Screen(Box<Drawn>),
    Lines(Progress),
}

/// A screen that is drawn on a terminal.
struct Drawn {
    screen: Screen,
    out: Box<dyn Write + Send>,
    /// Returns the columns and lines of the terminal.
    size: Box<dyn Fn() -> [u16; 2] + Send>,
    /// The lines of the last picture.
    lines: u16,
    at: Option<Instant>,
}

impl Default for Dashboard {
    fn default() -> Self {
        Self::new()
    }
}

impl Dashboard {
    /// Creates a dashboard on standard error.
    pub fn new() -> Self {
        let term = Term::stderr();
        // Windows has consoles that show escapes only after they are asked to, which this does.
        let has_escapes = !cfg!(windows) || term.features().colors_supported();
        let size = move || {
            let (lines, columns) = term.size();
            [columns, lines]
        };
        let [columns, lines] = size();
        let is_large = columns >= FEWEST[0] && lines >= FEWEST[1];
        if std::io::stderr().is_terminal() && has_escapes && is_large {
            Self::on(std::io::stderr(), size)
        } else {
            Self(Shown::Lines(Progress::new()))
        }
    }

    /// Creates a dashboard on a terminal of your own, given how many columns and lines that has.
    pub fn on(out: impl Write + Send + 'static, size: impl Fn() -> [u16; 2] + Send + 'static) -> Self {
        let (screen, out, size) = (Screen::default(), Box::new(out), Box::new(size));
        Self(Shown::Screen(Box::new(Drawn { screen, out, size, lines: 0, at: None })))
    }

    /// Returns a text of what is shown, in so many columns and lines, without colours. `None` where lines are
    /// shown.
    pub fn text(&self, columns: u16, lines: u16) -> Option<String> {
        match &self.0 {
            Shown::Screen(drawn) => Some(ansi::plain(&drawn.picture(columns, lines))),
            Shown::Lines(_) => None,
        }
    }
}

impl Drawn {
    fn picture(&self, columns: u16, lines: u16) -> Buffer {
        let area = Rect::new(0, 0, columns, lines);
        let mut buffer = Buffer::empty(area);
        self.screen.draw(area, &mut buffer);
        buffer
    }

    /// Draws the screen in the place of the last picture, if that is long enough ago.
    fn draw(&mut self, now: bool) {
        if !now && self.at.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.at = Some(Instant::now());
        let [columns, lines] = (self.size)();
        // The last line stays free, so that the terminal does not scroll.
        let lines = lines.saturating_sub(1).min(MOST_LINES);
        if columns < FEWEST[0] || lines + 1 < FEWEST[1] {
            return;
        }
        let text = format!("{}{}", ansi::back(self.lines), ansi::coloured(&self.picture(columns, lines)));
        // A closed terminal is no reason to stop a run.
        let _ = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        self.lines = lines;
    }

    /// Tells the user something.
    fn say(&mut self, text: &str) {
        self.screen.say(text);
        self.draw(false);
    }
}

impl Observer for Dashboard {
    fn started(&mut self, start: &Start<'_>) {
        match &mut self.0 {
            Shown::Lines(progress) => progress.started(start),
            Shown::Screen(drawn) => {
                drawn.screen.started(start.history);
                drawn.lines = 0;
                drawn.draw(true);
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match &mut self.0 {
            Shown::Lines(progress) => progress.step(step),
            Shown::Screen(drawn) => {
                drawn.screen.step(step);
                drawn.draw(false);
            }
        }
    }

    fn epoch(&mut self, epoch: &Epoch) {
        match &mut self.0 {
            Shown::Lines(progress) => progress.epoch(epoch),
            Shown::Screen(drawn) => {
                drawn.screen.epoch(epoch);
                drawn.draw(true);
            }
        }
    }

    fn replicas(&mut self, _step: u64, replicas: &[ReplicaReport]) {
        if let Shown::Screen(drawn) = &mut self.0 {
            drawn.screen.replicas(replicas);
        }
    }

    fn logged(&mut self, step: u64, tag: &str, value: &Logged) {
        match (&mut self.0, value) {
            (Shown::Lines(progress), value) => progress.logged(step, tag, value),
            (Shown::Screen(drawn), Logged::Scalar(value)) => drawn.say(&format!("{tag}: {}", number(*value))),
            (Shown::Screen(drawn), Logged::Text(text)) => drawn.say(&format!("{tag}: {text}")),
            (Shown::Screen(_), Logged::Histogram(_) | Logged::Image(_)) => {}
        }
    }

    fn saved(&mut self, path: &Path) {
        match &mut self.0 {
            Shown::Lines(progress) => progress.saved(path),
            Shown::Screen(drawn) => drawn.say(&format!("saved {}", path.display())),
        }
    }

    fn rolled_back(&mut self, step: u64) {
        match &mut self.0 {
            Shown::Lines(progress) => progress.rolled_back(step),
            Shown::Screen(drawn) => drawn.screen.rolled_back(step),
        }
    }

    fn note(&mut self, text: &str) {
        match &mut self.0 {
            Shown::Lines(progress) => progress.note(text),
            Shown::Screen(drawn) => drawn.say(text),
        }
    }

    fn ended(&mut self) {
        match &mut self.0 {
            Shown::Lines(progress) => progress.ended(),
            // The last picture stays, and what follows is written below it.
            Shown::Screen(drawn) => {
                drawn.draw(true);
                drawn.lines = 0;
            }
        }
    }
}
