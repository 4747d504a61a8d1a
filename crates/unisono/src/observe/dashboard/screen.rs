//! What the dashboard shows, and where.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Table, Widget};
use unisono_replica::ReplicaReport;

use crate::observe::observer::Step;
use crate::observe::report::EpochTimes;
use crate::observe::shown::{clock, measured, number, short, thousands};
use crate::{Epoch, Evaluation};

/// The most points of a curve of steps. Where there are more, neighbours become one.
const POINTS: usize = 512;
/// The number of messages that are shown.
const MESSAGES: usize = 4;
/// The most replicas that are shown.
const REPLICAS: usize = 6;

/// Everything that is shown.
#[derive(Default)]
pub(super) struct Screen {
    last: Option<Step>,
    losses: Curve,
    epochs: Vec<Epoch>,
    replicas: Vec<Replica>,
    times: EpochTimes,
    messages: VecDeque<String>,
    started: Option<Instant>,
    /// When the epoch began, and the samples since.
    epoch: Option<(u32, Instant, u64)>,
}

/// A replica: its number, its adapter, and the shares of an epoch in which it was busy, waited for input, and
/// waited for peers.
struct Replica {
    name: String,
    adapter: String,
    samples: u64,
    shares: [f64; 3],
    has_left: bool,
}

/// The means of groups of values, whose size doubles when there are too many.
#[derive(Default)]
struct Curve {
    points: Vec<(f64, f64)>,
    /// How many values a point is the mean of.
    each: u64,
    sum: f64,
    count: u64,
}

impl Curve {
    fn push(&mut self, at: f64, value: f64) {
        if !value.is_finite() {
            return;
        }
        (self.sum, self.count) = (self.sum + value, self.count + 1);
        if self.count >= self.each.max(1) {
            self.points.push((at, self.sum / self.count as f64));
            (self.sum, self.count) = (0.0, 0);
        }
        if self.points.len() >= POINTS {
            let halves = self.points.chunks(2).filter_map(|pair| {
                let (at, _) = *pair.last()?;
                Some((at, pair.iter().map(|(_, value)| value).sum::<f64>() / pair.len() as f64))
            });
            self.points = halves.collect();
            self.each = 2 * self.each.max(1);
        }
    }
}

impl Screen {
    pub fn started(&mut self, history: &[Epoch]) {
        self.started = Some(Instant::now());
        self.epochs = history.to_vec();
    }

    pub fn step(&mut self, step: &Step) {
        match &mut self.epoch {
            Some((epoch, _, samples)) if *epoch == step.epoch => *samples += step.samples,
            epoch => *epoch = Some((step.epoch, Instant::now(), 0)),
        }
        self.losses.push((step.step + 1) as f64, step.now.loss);
        self.last = Some(step.clone());
    }

    pub fn epoch(&mut self, epoch: &Epoch) {
        self.epochs.push(epoch.clone().without_tables());
    }

    pub fn rolled_back(&mut self, step: u64) {
        self.epochs.retain(|epoch| epoch.steps <= step);
        self.losses.points.retain(|(at, _)| *at <= step as f64);
        (self.last, self.epoch) = (None, None);
    }

    pub fn replicas(&mut self, replicas: &[ReplicaReport]) {
        self.replicas.clear();
        for report in replicas {
            let times = self.times.next(report);
            let all = times.iter().sum::<f64>().max(f64::MIN_POSITIVE);
            self.replicas.push(Replica {
                name: report.replica.to_string(),
                adapter: report.adapter.clone(),
                samples: report.samples,
                shares: times.map(|time| 100.0 * time / all),
                has_left: report.left.is_some(),
            });
        }
    }

    pub fn say(&mut self, text: &str) {
        self.messages.extend(text.lines().map(str::to_owned));
        while self.messages.len() > MESSAGES {
            self.messages.pop_front();
        }
    }

    /// Draws everything into an area.
    pub fn draw(&self, area: Rect, buffer: &mut Buffer) {
        let replicas = self.replicas.len().min(REPLICAS) as u16;
        let rows = [
            Constraint::Length(2),
            Constraint::Min(5),
            Constraint::Length(if replicas > 0 { replicas + 2 } else { 0 }),
            Constraint::Length(self.messages.len() as u16),
        ];
        let [head, curves, table, messages] = Layout::vertical(rows).areas(area);
        self.draw_head(head, buffer);
        let metric = self.metric();
        let halves = [Constraint::Fill(1), Constraint::Fill(u16::from(metric.is_some()))];
        let [left, right] = Layout::horizontal(halves).areas(curves);
        self.draw_losses(left, buffer);
        if let Some(metric) = metric {
            self.draw_metric(&metric, right, buffer);
        }
        self.draw_replicas(table, buffer);
        let lines: Vec<Line<'_>> = self.messages.iter().map(|text| Line::from(text.as_str())).collect();
        Paragraph::new(lines).style(Style::new().fg(Color::DarkGray)).render(messages, buffer);
    }

    fn draw_head(&self, area: Rect, buffer: &mut Buffer) {
        let [text, bar] = Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(area);
        let Some(step) = &self.last else {
            return Paragraph::new("waiting for the first step").render(text, buffer);
        };
        let rate = self.epoch.map_or(0.0, |(_, began, samples)| {
            samples as f64 / began.elapsed().as_secs_f64().max(f64::MIN_POSITIVE)
        });
        let left = step.of.saturating_sub(step.done) as f64 / rate.max(f64::MIN_POSITIVE);
        let left = Duration::try_from_secs_f64(left).map_or_else(|_| "?".to_owned(), clock);
        let elapsed = self.started.map_or_else(String::new, |at| clock(at.elapsed()));
        let learning_rate = step.learning_rate.map_or_else(String::new, |lr| format!("  lr {}", short(lr)));
        let line = format!(
            "epoch {}/{}  step {}  {}{learning_rate}  {} samples/s  {left} left  {elapsed} elapsed",
            step.epoch + 1,
            step.epochs,
            step.step + 1,
            measured(&step.so_far),
            thousands(rate)
        );
        Paragraph::new(line).style(Style::new().add_modifier(Modifier::BOLD)).render(text, buffer);
        let share = if step.of > 0 { step.done as f64 / step.of as f64 } else { 1.0 };
        Gauge::default()
            .gauge_style(Style::new().fg(Color::Cyan))
            .use_unicode(true)
            .ratio(share.clamp(0.0, 1.0))
            .render(bar, buffer);
    }

    fn draw_losses(&self, area: Rect, buffer: &mut Buffer) {
        let point = |epoch: &Epoch, of: &Evaluation| (epoch.steps as f64, of.loss);
        let held_out = self.epochs.iter().filter_map(|epoch| Some(point(epoch, epoch.validation.as_ref()?)));
        // A resumed run has epochs of which no step was seen.
        let mut train: Vec<(f64, f64)> = self.epochs.iter().map(|epoch| point(epoch, &epoch.train)).collect();
        let first = self.losses.points.first().map_or(f64::INFINITY, |(at, _)| *at);
        train.retain(|(at, _)| *at < first);
        train.extend(&self.losses.points);
        draw_chart("loss by step", [train, held_out.collect()], area, buffer);
    }

    /// Returns the name of the first metric.
    fn metric(&self) -> Option<String> {
        let measured = self.last.as_ref().map(|step| &step.so_far);
        let measured = measured.or_else(|| self.epochs.last().map(|epoch| &epoch.train))?;
        measured.metrics.first().map(|(name, _)| name.clone())
    }

    fn draw_metric(&self, name: &str, area: Rect, buffer: &mut Buffer) {
        let points = |of: &dyn Fn(&Epoch) -> Option<f64>| -> Vec<(f64, f64)> {
            let point = |epoch: &Epoch| Some((f64::from(epoch.epoch) + 1.0, of(epoch)?));
            self.epochs.iter().filter_map(point).collect()
        };
        let train = points(&|epoch| epoch.train.metric(name));
        let held_out = points(&|epoch| epoch.validation.as_ref()?.metric(name));
        draw_chart(&format!("{name} by epoch"), [train, held_out], area, buffer);
    }

    fn draw_replicas(&self, area: Rect, buffer: &mut Buffer) {
        if self.replicas.is_empty() {
            return;
        }
        let row = |line: &Replica| {
            let [busy, input, peers] = line.shares.map(|share| format!("{share:.0}%"));
            let adapter =
                if line.has_left { format!("{} (left)", line.adapter) } else { line.adapter.clone() };
            Row::new([line.name.clone(), adapter, thousands(line.samples as f64), busy, input, peers])
        };
        let widths = [
            Constraint::Length(7),
            Constraint::Fill(1),
            Constraint::Length(12),
            Constraint::Length(5),
            Constraint::Length(9),
            Constraint::Length(9),
        ];
        let more = self.replicas.len().saturating_sub(REPLICAS);
        let title = if more > 0 { format!("replicas, and {more} more") } else { "replicas".to_owned() };
        let head = Row::new(["replica", "adapter", "samples", "busy", "for input", "for peers"]);
        Table::new(self.replicas.iter().take(REPLICAS).map(row), widths)
            .header(head.style(Style::new().fg(Color::DarkGray)))
            .block(Block::new().title(title))
            .render(area, buffer);
    }
}

/// Draws two curves, of training and of validation, with the ranges that they have.
fn draw_chart(title: &str, [train, held_out]: [Vec<(f64, f64)>; 2], area: Rect, buffer: &mut Buffer) {
    let all = || train.iter().chain(&held_out).filter(|(_, y)| y.is_finite());
    let range = |of: &dyn Fn(&(f64, f64)) -> f64| {
        let (low, high) =
            all().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)));
        match low.partial_cmp(&high) {
            Some(std::cmp::Ordering::Less) => [low, high],
            Some(std::cmp::Ordering::Equal) => [low - 0.5, high + 0.5],
            // There are no points.
            _ => [0.0, 1.0],
        }
    };
    let (x, y) = (range(&|point| point.0), range(&|point| point.1));
    let curve = |name: &'static str, points, marker, kind, colour| {
        Dataset::default()
            .name(name)
            .marker(marker)
            .graph_type(kind)
            .style(Style::new().fg(colour))
            .data(points)
    };
    let mut curves = vec![curve("training", &train[..], Marker::Braille, GraphType::Line, Color::Cyan)];
    if !held_out.is_empty() {
        curves.push(curve("held out", &held_out[..], Marker::Dot, GraphType::Scatter, Color::Yellow));
    }
    let labels = |[low, high]: [f64; 2]| [number(low), number(high)];
    let whole = |[low, high]: [f64; 2]| [thousands(low), thousands(high)];
    Chart::new(curves)
        .block(Block::new().title(title.to_owned()))
        .x_axis(Axis::default().bounds(x).labels(whole(x)))
        .y_axis(Axis::default().bounds(y).labels(labels(y)))
        .render(area, buffer);
}

#[cfg(test)]
mod tests;
