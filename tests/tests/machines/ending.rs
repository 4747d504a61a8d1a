//! What ends a fit on several machines: a stop or a callback of one of them, on all after the same step.

use unisono::cluster::Script;
use unisono::{Cluster, Epoch, Error, Stop};
use unisono_tests::{CLASSES, loader, perceptron};

use crate::{on_ranks, train};

#[test]
fn a_stop_on_one_machine_ends_all_after_the_same_step() {
    let ended = on_ranks(3, Script::default(), |cluster| {
        let (rank, data) = (cluster.rank(), loader(40, 5).unwrap());
        let stop = Stop::new();
        let asks = (rank == 1).then(|| stop.clone());
        let builder = perceptron(8).global_batch(16).replicas(1).callback(StopsAfter { step: 4, asks });
        let mut trainer = builder.cluster(cluster).build(&data.fields().unwrap()).unwrap();
        trainer.stop_on(&stop);
        trainer.fit(&data, None, 5).unwrap();
        (trainer.steps(), trainer.state_sha256().unwrap())
    });
    assert_eq!(ended[0].0, 5);
    assert!(ended.iter().all(|end| *end == ended[0]), "{ended:?}");
}

#[test]
fn a_stop_that_is_taken_back_lets_all_machines_go_on() {
    let wanted = train(perceptron(8).global_batch(16).replicas(1), Cluster::alone(), 40).unwrap().0;
    let ended = on_ranks(2, Script::default(), |cluster| {
        let (rank, data, stop) = (cluster.rank(), loader(40, 5).unwrap(), Stop::new());
        let asks = (rank == 1).then(|| stop.clone());
        let builder = perceptron(8).global_batch(16).replicas(1).callback(StopsAfter { step: 1, asks });
        let mut trainer = builder.cluster(cluster).build(&data.fields().unwrap()).unwrap();
        trainer.stop_on(&stop);
        trainer.fit(&data, None, 2).unwrap();
        assert_eq!(trainer.steps(), 2);
        // It is still asked: predictions run to their end, fits do nothing.
        assert_eq!(trainer.predict(&data).unwrap().len(), 40 * CLASSES);
        trainer.fit(&data, None, 2).unwrap();
        assert_eq!(trainer.steps(), 2);
        stop.reset();
        trainer.evaluate(&data).unwrap();
        trainer.fit(&data, None, 2).unwrap();
        trainer.state_sha256().unwrap()
    });
    assert_eq!(ended, [wanted.clone(), wanted]);
}

/// Takes its time when a fit begins.
struct Late(std::time::Duration);

impl unisono::Callback for Late {
    fn name(&self) -> &str {
        "late"
    }

    fn fit_begins(&mut self, _: &mut unisono::Control<'_>) -> Result<(), Error> {
        std::thread::sleep(self.0);
        Ok(())
    }
}

#[test]
fn a_callback_that_looks_at_a_clock_ends_the_fit_on_all_machines_after_the_same_step() {
    let milliseconds = std::time::Duration::from_millis;
    let ended = on_ranks(3, Script::default(), |cluster| {
        // The clock of rank 1 begins later.
        let late = Late(milliseconds(if cluster.rank() == 1 { 200 } else { 0 }));
        let pause = unisono::PauseAfter::time(milliseconds(100));
        let builder = perceptron(8).global_batch(16).replicas(1).callback(late).callback(pause);
        let data = loader(40, 5).unwrap();
        let mut trainer = builder.cluster(cluster).build(&data.fields().unwrap()).unwrap();
        trainer.fit(&data, None, 100_000).unwrap();
        (trainer.steps(), trainer.state_sha256().unwrap())
    });
    assert!(ended[0].0 > 0 && ended.iter().all(|end| *end == ended[0]), "{ended:?}");
}

/// Ends the run, or pauses it, on one machine alone.
struct Ends {
    at: Option<u64>,
    pauses: bool,
}

impl Ends {
    fn now(&self, step: u64, run: &mut unisono::Control<'_>) -> Result<(), Error> {
        match (self.at == Some(step), self.pauses) {
            (true, true) => run.pause("it is late"),
            (true, false) => run.stop("it is late"),
            _ => {}
        }
        Ok(())
    }
}

impl unisono::Callback for Ends {
    fn name(&self) -> &str {
        "ends"
    }

    fn fit_begins(&mut self, run: &mut unisono::Control<'_>) -> Result<(), Error> {
        self.now(0, run)
    }

    fn step_ended(&mut self, step: &unisono::Step, run: &mut unisono::Control<'_>) -> Result<(), Error> {
        self.now(step.step + 1, run)
    }

    fn epoch_ended(&mut self, epoch: &Epoch, run: &mut unisono::Control<'_>) -> Result<(), Error> {
        self.now(1000 + u64::from(epoch.epoch), run)
    }
}

#[test]
fn a_callback_on_one_machine_ends_the_fit_on_all() {
    // Before the first step, after one, at the end of an epoch, at the end of the last.
    for (at, steps) in [(0, 0), (4, 4), (1000, 3), (1001, 6)] {
        for pauses in [true, false] {
            let ended = on_ranks(2, Script::default(), |cluster| {
                let at = (cluster.rank() == 1).then_some(at);
                let builder = perceptron(8).global_batch(16).replicas(1).callback(Ends { at, pauses });
                let data = loader(40, 5).unwrap();
                let mut trainer = builder.cluster(cluster).build(&data.fields().unwrap()).unwrap();
                trainer.fit(&data, None, 2).unwrap();
                let why = trainer.stopped().map(|stopped| (stopped.steps, stopped.reason.clone()));
                (trainer.steps(), why)
            });
            let why = (!pauses).then(|| (steps, "it is late".to_owned()));
            assert_eq!(ended, [(steps, why.clone()), (steps, why)], "at {at}");
        }
    }
}

/// Asks a stop when a step is done.
struct StopsAfter {
    step: u64,
    asks: Option<Stop>,
}

impl unisono::Callback for StopsAfter {
    fn name(&self) -> &str {
        "stops after"
    }

    fn step_ended(&mut self, step: &unisono::Step, _: &mut unisono::Control<'_>) -> Result<(), Error> {
        if step.step == self.step {
            self.asks.iter().for_each(|stop| _ = stop.ask());
        }
        Ok(())
    }
}

/// A rank that refuses to run as it was started has all refuse: `relaunch` does not start them again.
#[test]
fn a_refusal_of_one_rank_is_one_of_all() {
    let data = loader(40, 5).unwrap();
    let fields = data.fields().unwrap();
    let refused = |cluster: Cluster, batch: usize| {
        let builder = perceptron(8).global_batch(batch).replicas(1).cluster(cluster);
        builder.build(&fields).err().unwrap().is_refusal()
    };
    let of_rank = |cluster: Cluster| {
        let batch = if cluster.rank() == 1 { 0 } else { 16 };
        refused(cluster, batch)
    };
    assert_eq!(on_ranks(2, Script::default(), of_rank), [true, true]);
    let differs = |cluster: Cluster| {
        let batch = 16 + cluster.rank();
        refused(cluster, batch)
    };
    assert_eq!(on_ranks(2, Script::default(), differs), [true, true]);
    // What is lost is started again.
    let lost = on_ranks(2, Script::default(), |cluster| match cluster.rank() {
        0 => Some(perceptron(8).replicas(1).cluster(cluster).build(&fields).err().unwrap().is_refusal()),
        _ => None,
    });
    assert_eq!(lost, [Some(false), None]);
}

/// A callback that asks on one machine for the state from before the first step.
struct SavesFirst(bool);

impl unisono::Callback for SavesFirst {
    fn name(&self) -> &str {
        "saves first"
    }

    fn influence(&self) -> unisono::Influence {
        unisono::Influence::None
    }

    fn fit_begins(&mut self, run: &mut unisono::Control<'_>) -> Result<(), Error> {
        if self.0 {
            run.save();
        }
        Ok(())
    }
}

#[test]
fn a_save_that_one_machine_asks_for_at_the_beginning_is_made_by_all() {
    let dir = tempfile::tempdir().unwrap();
    on_ranks(3, Script::default(), |cluster| {
        let asks = SavesFirst(cluster.rank() == 2);
        let builder = perceptron(8).global_batch(16).replicas(1).callback(asks);
        let data = loader(40, 5).unwrap();
        let mut trainer = builder.cluster(cluster).build(&data.fields().unwrap()).unwrap();
        trainer.checkpoints(&dir.path().join("run"), 0).unwrap();
        trainer.fit(&data, None, 1).unwrap();
    });
    for name in ["run", "run.rank1"] {
        let found = unisono::checkpoint::list(dir.path().join(name)).unwrap();
        assert_eq!(found.iter().map(|found| found.0).collect::<Vec<_>>(), [3, 0], "{name}");
    }
}
