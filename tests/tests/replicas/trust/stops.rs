//! A fit that is stopped while it waits for data or evaluates looks at its last step too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use unisono::{AdamW, Schedule, Stop};

use super::*;

/// Returns data that ask a run to stop when a thread reads their sample with this number, and make it wait.
fn asks(stop: &Stop, at: u64) -> Loader {
    let (stop, read) = (stop.clone(), AtomicU64::new(0));
    let loader = data().threads(1).prefetch(0).map("asks", move |_, _| {
        if read.fetch_add(1, Ordering::Relaxed) == at {
            stop.ask();
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    loader.version("1")
}

/// In each case the device changes its state in the step which is made for the audit at the stop.
#[test]
fn a_fit_that_is_stopped_while_it_waits_or_evaluates_is_audited() {
    // A sample is read before the first step, to learn what samples look like.
    let evaluation = SAMPLES as u64 / 2;
    for (train, validation, steps) in [(Some(97), None, 6), (None, Some(evaluation), 4)] {
        let (stop, watching) = (Stop::new(), Watching::default());
        // The evaluation's batches have numbers of their own.
        let points = (steps..steps + 8).map(|step| (format!(":step-{step}"), "1*return(state:0)".to_owned()));
        let drill = Drill { replicas: 1, points: points.collect(), wrong: 0 };
        let builder =
            perceptron(8).global_batch(16).replicas(1).audits(Audits::Every(1000)).steps_in_flight(1);
        let builder = builder.fault_scope(&drill.scope()).observer(watching.clone());
        let mut trainer = builder.build(&data().fields().unwrap()).unwrap();
        trainer.stop_on(&stop);
        let train = train.map_or_else(data, |at| asks(&stop, at));
        let validation = validation.map(|at| asks(&stop, at));
        trainer.fit(&train, validation.as_ref(), EPOCHS).unwrap();
        assert!(stop.is_asked() && trainer.steps() < STEPS);
        assert_eq!(watching.0.lock().unwrap().as_slice(), [0], "{steps} steps");
    }
}

/// The step that is made for the audit at a stop needs no learning rate that the run does not have.
#[test]
fn a_schedule_may_end_with_the_fit() {
    let rates = [0.01; 6];
    let schedule = Schedule::function(move |step| rates[step as usize]).named("six rates", 1);
    let builder = perceptron(8).global_batch(16).replicas(2).audits(Audits::Every(1000));
    let builder = builder.optimizer(AdamW::new(schedule)).callback(pause_after_six());
    let mut trainer = builder.build(&data().fields().unwrap()).unwrap();
    trainer.fit(&data(), None, EPOCHS).unwrap();
    assert_eq!(trainer.steps(), 6);
}
