//! Observers of loops of one's own hear what those of a fit do.

use std::sync::{Arc, Mutex};

use unisono::{Epoch, Observer, Start, Step};
use unisono_tests::{loader, perceptron};

/// Keeps what it hears, in order.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn add(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }
}

impl Observer for Heard {
    fn started(&mut self, start: &Start<'_>) {
        self.add(format!("start at {} with {:?}", start.step, start.metrics));
    }

    fn step(&mut self, step: &Step) {
        self.add(format!("step {} of epoch {}: {}", step.step, step.epoch, step.now.loss));
    }

    fn epoch(&mut self, epoch: &Epoch) {
        let validation = epoch.validation.as_ref().map(|validation| validation.loss);
        self.add(format!("epoch {} at {}: {} {validation:?}", epoch.epoch, epoch.steps, epoch.train.loss));
    }

    fn ended(&mut self) {
        self.add("end".into());
    }
}

#[test]
fn observers_hear_of_a_loop_of_ones_own_what_they_hear_of_a_fit() {
    let (train, held_out) = (loader(50, 5).unwrap(), loader(20, 6).unwrap());
    let built = |heard: &Heard| {
        let builder = perceptron(8).global_batch(16).replicas(1).observer(heard.clone());
        builder.build(&train.fields().unwrap()).unwrap()
    };
    let (fitted, own) = (Heard::default(), Heard::default());
    built(&fitted).fit(&train, Some(&held_out), 2).unwrap();
    let mut trainer = built(&own);
    for epoch in 0..2 {
        let mut last = None;
        for batch in train.clone().batch(16).epoch(epoch).unwrap() {
            let step = trainer.step(&batch.unwrap()).unwrap();
            trainer.notify_step(&step);
            last = Some(step);
        }
        let validation = trainer.evaluate(&held_out).unwrap();
        trainer.notify_epoch_ended(&last.unwrap(), Some(validation)).unwrap();
    }
    trainer.notify_ended();
    let fitted = fitted.0.lock().unwrap();
    assert_eq!(fitted.len(), 1 + 8 + 2 + 1);
    assert_eq!(*own.0.lock().unwrap(), *fitted);
}
