//! A history that an earlier process has written as CSV.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use unisono_checkpoint::open_regular;

use crate::observe::csv_log::{header, line};
use crate::{Epoch, Evaluation};

/// Returns the epochs of a run's file, whose line is whole; none of a file that is no history, or is that of
/// another run: all epochs of the run's history but the last, which may not be written yet, must be in it.
pub(super) fn epochs_of(path: &Path, history: &[Epoch]) -> Vec<Epoch> {
    let mut text = String::new();
    let read = open_regular(path).and_then(|mut file| file.read_to_string(&mut text));
    let found = read.ok().and_then(|_| {
        let (first, lines) = text.split_once('\n')?;
        let metrics = metrics_of(first)?;
        let whole = lines.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let epochs: Vec<Epoch> = whole.filter_map(|line| epoch_of(line, &metrics)).collect();
        let found: BTreeSet<String> = epochs.iter().map(|epoch| line(epoch, &metrics)).collect();
        let is_there = |own: &Epoch| found.contains(&line(own, &metrics));
        history.iter().rev().skip(1).all(is_there).then_some(epochs)
    });
    found.unwrap_or_default()
}

/// Returns the names of the metrics in a history's first line.
pub(super) fn metrics_of(first: &str) -> Option<Vec<String>> {
    let mut fields = vec![String::new()];
    let (mut is_quoted, mut chars) = (false, first.chars().peekable());
    while let Some(c) = chars.next() {
        match c {
            // Two quotes in a quoted field are one.
            '"' if is_quoted && chars.next_if_eq(&'"').is_some() => fields.last_mut()?.push('"'),
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(String::new()),
            _ => fields.last_mut()?.push(c),
        }
    }
    let each = fields.len().checked_sub(2)? / 2;
    let metrics = fields.get(3..2 + each)?.to_vec();
    (header(&metrics).strip_suffix('\n') == Some(first)).then_some(metrics)
}

/// Returns an epoch from its line.
fn epoch_of(line: &str, metrics: &[String]) -> Option<Epoch> {
    let cells: Vec<&str> = line.split(',').collect();
    let [number, steps, values @ ..] = cells.as_slice() else { return None };
    if values.len() != 2 * (1 + metrics.len()) {
        return None;
    }
    let (train, validation) = values.split_at(1 + metrics.len());
    let evaluation = |cells: &[&str]| -> Option<Evaluation> {
        let value = |cell: &str| cell.parse::<f64>().ok();
        let named = metrics.iter().zip(&cells[1..]);
        let metrics = named.filter_map(|(name, cell)| Some((name.clone(), value(cell)?))).collect();
        Some(Evaluation { loss: value(cells[0])?, metrics, ..Evaluation::default() })
    };
    Some(Epoch {
        epoch: number.parse::<u32>().ok()?.checked_sub(1)?,
        steps: steps.parse().ok()?,
        train: evaluation(train)?,
        validation: evaluation(validation),
    })
}
