//! The plot of a run's history as SVG: a panel for the loss and for each metric.

mod axis;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::observe::file;
use crate::observe::observer::{Observer, Start};
use crate::observe::plot::axis::Axis;
use crate::{Epoch, Evaluation};

/// The width of the picture in pixels.
const WIDTH: f64 = 640.0;
/// The height of a panel in pixels.
const PANEL: f64 = 260.0;
/// The space left of the curves of a panel, for numbers.
const LEFT: f64 = 70.0;
/// The space right of the curves.
const RIGHT: f64 = 20.0;
/// The space above the curves, for the name of what is shown.
const TOP: f64 = 34.0;
/// The space below the curves, for numbers.
const BOTTOM: f64 = 40.0;
/// The shortest time between two pictures of a run that goes on.
const BETWEEN: Duration = Duration::from_secs(2);

/// What is shown of an evaluation.
type Measure<'a> = &'a dyn Fn(&Evaluation) -> Option<f64>;

/// Draws the history of a run as an SVG file: the loss and each metric by epoch, for the training and the
/// validation data.
///
/// The file is drawn again when epochs end, at most every two seconds, and at the end of a fit. The history
/// does not contain the epochs of your own training loop. After a resume, the picture has the epochs of fits,
/// and those that follow.
///
/// ```
/// use unisono::{Dense, Plot, Trainer};
///
/// let builder = Trainer::builder(Dense::new(10)).observer(Plot::new("runs/houses/history.svg"));
/// ```
pub struct Plot {
    path: PathBuf,
    epochs: Vec<Epoch>,
    drawn: Option<Instant>,
    is_current: bool,
    has_failed: bool,
    problem: Option<String>,
}

impl Plot {
    /// Creates a plot that is written to the file `path`. Its directory is created.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            epochs: vec![],
            drawn: None,
            is_current: true,
            has_failed: false,
            problem: None,
        }
    }

    /// Returns the picture of a history, such as that of [`Trainer::history`](crate::Trainer::history).
    pub fn svg(history: &[Epoch]) -> String {
        let mut names: Vec<&str> = Vec::new();
        let evaluations =
            history.iter().flat_map(|epoch| std::iter::once(&epoch.train).chain(&epoch.validation));
        for (name, _) in evaluations.flat_map(|evaluation| &evaluation.metrics) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let height = PANEL * (1 + names.len()) as f64;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
        );
        svg += &panel(history, "loss", 0.0, &|evaluation| Some(evaluation.loss));
        for (i, name) in names.into_iter().enumerate() {
            svg += &panel(history, name, PANEL * (i + 1) as f64, &|evaluation| evaluation.metric(name));
        }
        svg + "</svg>\n"
    }

    fn draw(&mut self) {
        let drawn = file::replace(&self.path, &[Self::svg(&self.epochs).as_bytes()]);
        (self.drawn, self.is_current) = (Some(Instant::now()), true);
        match drawn {
            Ok(()) => self.has_failed = false,
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    self.problem = Some(format!("warning: {} is not written: {error}", self.path.display()));
                }
            }
        }
    }
}

impl Observer for Plot {
    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }

    fn started(&mut self, start: &Start<'_>) {
        self.epochs = start.epochs(std::mem::take(&mut self.epochs));
        self.is_current = false;
    }

    fn epoch(&mut self, epoch: &Epoch) {
        // A loop of your own may end an epoch again.
        self.epochs.retain(|old| (old.epoch, old.steps) != (epoch.epoch, epoch.steps));
        self.epochs.push(epoch.clone().without_tables());
        self.is_current = false;
        if self.drawn.is_none_or(|drawn| drawn.elapsed() > BETWEEN) {
            self.draw();
        }
    }

    fn rolled_back(&mut self, step: u64) {
        self.epochs.retain(|epoch| epoch.steps <= step);
        self.is_current = false;
    }

    fn ended(&mut self) {
        if !self.is_current {
            self.draw();
        }
    }

    fn take_problem(&mut self) -> Option<String> {
        self.problem.take()
    }
}

/// Returns the panel of one measure, whose upper end is at `top`.
fn panel(history: &[Epoch], name: &str, top: f64, measure: Measure<'_>) -> String {
    let of = |evaluation: Option<&Evaluation>| evaluation.and_then(measure);
    let curves = [
        ("train", "#1f77b4", history.iter().map(|epoch| of(Some(&epoch.train))).collect::<Vec<_>>()),
        ("validation", "#ff7f0e", history.iter().map(|epoch| of(epoch.validation.as_ref())).collect()),
    ];
    let values = curves.iter().flat_map(|(_, _, values)| values.iter().flatten().copied());
    let [from, to] = [top + PANEL - BOTTOM, top + TOP];
    let y = Axis::of_values(values, from, to);
    let x = Axis::of_epochs(history.len(), LEFT, WIDTH - RIGHT);
    let mut svg = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\" font-weight=\"bold\">{}</text>",
        top + 22.0,
        escaped(name)
    );
    for (value, label) in y.ticks() {
        let at = y.pixel(value);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0
        );
    }
    for (value, label) in x.ticks() {
        let at = x.pixel(value);
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {from}v4\" stroke=\"#333\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            from + 17.0
        );
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let _ =
        writeln!(svg, "<path d=\"M{LEFT} {to}V{from}H{}\" stroke=\"#333\" fill=\"none\"/>", WIDTH - RIGHT);
    let _ = writeln!(svg, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">epoch</text>", from + 34.0);
    let mut right = WIDTH - RIGHT - 90.0;
    for (label, colour, values) in
        curves.iter().rev().filter(|(_, _, values)| values.iter().any(Option::is_some))
    {
        svg += &curve(values, colour, &x, &y);
        let at = top + 18.0;
        let _ = writeln!(
            svg,
            "<path d=\"M{right} {at}h18\" stroke=\"{colour}\" stroke-width=\"2\"/><text x=\"{}\" y=\"{}\">{label}</text>",
            right + 23.0,
            at + 4.0
        );
        right -= 70.0;
    }
    svg
}

/// Returns the curve of values by epoch. It has a gap where a value is missing or not finite.
fn curve(values: &[Option<f64>], colour: &str, x: &Axis, y: &Axis) -> String {
    let is_shown = |value: &Option<f64>| value.is_some_and(f64::is_finite);
    let mut svg = String::new();
    let mut path = String::new();
    for (i, value) in values.iter().enumerate() {
        let Some(value) = value.filter(|value| value.is_finite()) else { continue };
        let (at, high) = (x.pixel((i + 1) as f64), y.pixel(value));
        let goes_on = i > 0 && is_shown(&values[i - 1]);
        let _ = write!(path, "{}{at:.1} {high:.1}", if goes_on { "L" } else { "M" });
        if !goes_on && !values.get(i + 1).is_some_and(is_shown) {
            // A line needs two points.
            let _ = writeln!(svg, "<circle cx=\"{at:.1}\" cy=\"{high:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
    }
    let _ = writeln!(svg, "<path d=\"{path}\" stroke=\"{colour}\" stroke-width=\"2\" fill=\"none\"/>");
    svg
}

/// Returns a text as XML has it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(losses: &[f64]) -> Vec<Epoch> {
        let epoch = |(i, &loss): (usize, &f64)| {
            let train =
                Evaluation { loss, metrics: vec![("f<1>".into(), 0.5)], samples: 4, ..Evaluation::default() };
            let validation = (i % 2 == 1).then(|| train.clone());
            Epoch { epoch: i as u32, steps: 3 * i as u64, train, validation }
        };
        losses.iter().enumerate().map(epoch).collect()
    }

    #[test]
    fn a_picture_has_a_panel_for_each_measure_and_gaps_where_nothing_is() {
        let svg = Plot::svg(&history(&[4.0, 2.0, f64::NAN, 1.0, 0.5, 0.25]));
        assert_eq!(svg.matches(">epoch</text>").count(), 2);
        assert!(svg.contains("height=\"520\"") && svg.contains(">f&lt;1&gt;</text>"), "{svg}");
        assert_eq!((svg.matches(">train<").count(), svg.matches(">validation<").count()), (2, 2));
        // The loss of training has two parts, at the left and at the right end.
        let is_curve = |line: &&str| line.contains("#1f77b4") && line.contains("fill=\"none\"");
        let line = svg.lines().find(is_curve).unwrap();
        assert_eq!((line.matches('M').count(), line.matches('L').count()), (2, 3), "{line}");
        assert!(line.contains("M70.0") && line.contains("L620.0"), "{line}");
        // Of the validation losses each stands alone, as do those of the metric.
        assert_eq!(svg.matches("<circle").count(), 6);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn histories_of_one_epoch_and_of_none_are_pictures_too() {
        for losses in [&[][..], &[1.0], &[f64::INFINITY]] {
            let svg = Plot::svg(&history(losses));
            assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
