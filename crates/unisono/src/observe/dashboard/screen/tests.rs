use std::sync::{Arc, Mutex};

use super::*;
use crate::Observer;
use crate::observe::dashboard::Dashboard;

fn evaluation(loss: f64, accuracy: f64) -> Evaluation {
    Evaluation { loss, metrics: vec![("accuracy".into(), accuracy)], samples: 8, ..Evaluation::default() }
}

fn step(step: u64, epoch: u32) -> Step {
    let now = evaluation(2.0 / (step + 1) as f64, 0.5);
    Step {
        step,
        epoch,
        epochs: 3,
        done: 8 * (step % 10 + 1),
        of: 80,
        samples: 8,
        learning_rate: Some(8.1e-4),
        so_far: now.clone(),
        now,
        committed: true,
    }
}

/// Tells a dashboard of two epochs of ten steps.
fn watch(dashboard: &mut Dashboard) {
    for epoch in 0..2 {
        (0..10).for_each(|i| dashboard.step(&step(u64::from(epoch) * 10 + i, epoch)));
        let accuracy = 0.6 + f64::from(epoch) / 10.0;
        let steps = u64::from(epoch + 1) * 10;
        let (train, held_out) = (evaluation(0.3, accuracy), evaluation(0.4, accuracy - 0.1));
        dashboard.epoch(&Epoch { epoch, steps, train, validation: Some(held_out) });
    }
    dashboard.note("replica 1 left");
}

#[test]
fn it_shows_progress_curves_replicas_and_messages() {
    let mut dashboard = Dashboard::on(std::io::sink(), || [100, 40]);
    watch(&mut dashboard);
    let text = dashboard.text(100, 29).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 29);
    assert!(lines[0].starts_with("epoch 2/3  step 20  loss 0.1000  accuracy 0.5000  lr 8.1e-4  "), "{text}");
    assert!(lines[1].contains("100%"), "{text}");
    assert!(lines[2].starts_with("loss by step") && lines[2].contains("accuracy by epoch"), "{text}");
    for part in ["2.000 │", "0.1000│", "0.7000│", "0.5000│", "training", "held out"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The curve of the loss falls from the left to the right, so it touches the first line near the axis.
    assert!(text.chars().filter(|c| ('\u{2801}'..='\u{28ff}').contains(c)).count() > 20, "{text}");
    assert_eq!(lines[28], "replica 1 left");
    // A run without metrics has one chart, and one without steps has none yet.
    let empty = Dashboard::on(std::io::sink(), || [100, 40]).text(60, 12).unwrap();
    assert!(empty.starts_with("waiting for the first step"), "{empty}");
}

#[test]
fn curves_keep_their_shape_however_long_the_run_is() {
    let mut curve = Curve::default();
    (0..100_000).for_each(|i| curve.push(f64::from(i + 1), f64::from(i)));
    assert!(curve.points.len() < POINTS && curve.points.len() > POINTS / 4);
    assert!(curve.points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
    let (at, value) = curve.points[0];
    assert!((value - (at - 1.0) / 2.0).abs() < 1.0, "{:?}", curve.points[0]);
    curve.push(1e6, f64::NAN);
    assert!(curve.points.iter().all(|(_, value)| value.is_finite()));
}

#[test]
fn steps_that_are_made_again_are_forgotten() {
    let mut screen = Screen::default();
    (0..20).for_each(|i| screen.step(&step(i, (i / 10) as u32)));
    screen.epoch(&Epoch { epoch: 0, steps: 10, ..Epoch::default() });
    screen.rolled_back(5);
    assert!(screen.epochs.is_empty());
    assert_eq!(screen.losses.points.last().unwrap().0, 5.0);
}

/// A writer that several hold.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Each picture is drawn where the last one was, and nothing sets a mode that would have to be taken back.
#[test]
fn pictures_replace_each_other_and_the_terminal_keeps_its_mode() {
    let out = Shared::default();
    let mut dashboard = Dashboard::on(out.clone(), || [80, 20]);
    watch(&mut dashboard);
    dashboard.ended();
    let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
    assert!(!text.starts_with("\x1b[19A"), "nothing is above the first picture");
    let pictures = text.matches("\x1b[19A\r").count() + 1;
    assert!(pictures > 1);
    assert_eq!(text.matches('\n').count(), 19 * pictures);
    // Modes of a terminal begin with `ESC [ ?`.
    assert!(!text.contains("\x1b[?"), "{text:?}");
    assert!(text.ends_with("\x1b[0m\x1b[K\n"));
    // A terminal that has become very small is left alone.
    let out = Shared::default();
    watch(&mut Dashboard::on(out.clone(), || [30, 5]));
    assert!(out.0.lock().unwrap().is_empty());
}
