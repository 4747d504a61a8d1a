//! A witness beside a run on one device: it changes no bit, and finds what the device cannot find itself.

use unisono::{Arithmetic, Precision, Witness};
use unisono_gpu::Adapter;
use unisono_testkit::left_out;

use super::*;

/// Returns the trainer of a drill on one replica with a witness, and what it says.
fn witnessed(drill: &Drill, audits: Audits, scope: &str) -> (Trainer, Hears, Watching) {
    let (hears, watching) = (Hears::default(), Watching::default());
    let builder = perceptron(8).global_batch(16).replicas(drill.replicas).audits(audits);
    let builder =
        builder.digest_every(10).fault_scope(scope).observer(watching.clone()).observer(hears.clone());
    let builder = builder.witness(Witness::cpu().share(1.0));
    (builder.build(&data().fields().unwrap()).unwrap(), hears, watching)
}

/// Returns the drill of a device that makes the same wrong state of every step from one on.
fn always_wrong(step: u64) -> Drill {
    Drill::from(1, 0, step, "state:0")
}

#[test]
fn a_witness_changes_no_bit_and_confirms_the_last_step() {
    let expected = undisturbed();
    for every in [1, EVERY, 1000] {
        let sound = Drill { replicas: 1, points: vec![], wrong: 0 };
        let (mut trainer, hears, _) = witnessed(&sound, Audits::Every(every), &sound.scope());
        let dir = tempfile::tempdir().unwrap();
        trainer.checkpoints(dir.path(), 0).unwrap();
        trainer.fit(&data(), None, EPOCHS).unwrap();
        assert_eq!(trainer.state_sha256().unwrap(), expected, "every {every}");
        let witness = trainer.witness().unwrap();
        assert!(witness.agreed > 0 && witness.left.is_none(), "every {every}: {witness:?}");
        assert!(trainer.report().to_string().contains("of the steps and agreed"));
        assert!(hears.notes.lock().unwrap().iter().all(|note| !note.contains("witness")));
        drop(trainer);
        assert!(unisono::checkpoint::inspect::list(dir.path()).unwrap().iter().all(|saved| saved.trusted));
    }
}

#[test]
fn a_single_device_that_is_always_wrong_is_named_before_the_fit_ends() {
    for step in [0, 7, STEPS - 1] {
        let drill = always_wrong(step);
        // Alone it is believed: what it makes twice is the same.
        let (mut alone, _) = drill.trainer(Audits::Every(EVERY));
        alone.fit(&data(), None, EPOCHS).unwrap();
        let (mut trainer, _, watching) = witnessed(&drill, Audits::Every(EVERY), &drill.scope());
        let dir = tempfile::tempdir().unwrap();
        trainer.checkpoints(dir.path(), 0).unwrap();
        let error = trainer.fit(&data(), None, EPOCHS).unwrap_err();
        let Error::Refused { why, step: back } = &error else { panic!("{error}") };
        assert!(why.contains("the witness") && why.contains("replica 0"), "{why}");
        assert!(why.contains("each repeat their own result"), "{why}");
        assert!(*back <= step, "back at {back}, wrong from {step}");
        assert!(watching.0.lock().unwrap().is_empty());
    }
}

#[test]
fn a_fault_of_a_single_device_that_does_not_last_is_undone() {
    let expected = undisturbed();
    for step in [0, 3, STEPS - 1] {
        let drill = Drill::once(1, 0, step, "state:0");
        let (mut trainer, _, watching) = witnessed(&drill, Audits::Every(1), &drill.scope());
        trainer.fit(&data(), None, EPOCHS).unwrap();
        assert_eq!(trainer.state_sha256().unwrap(), expected, "step {step}");
        assert_eq!(watching.0.lock().unwrap().len(), 1, "step {step}");
    }
}

#[test]
fn a_witness_that_is_wrong_itself_leaves_and_the_run_goes_on() {
    let expected = undisturbed();
    for (action, why) in [
        ("return(zeros)", "known-answer"),
        ("1*return(state:0)->off", "with different results"),
        ("return(lose)", "lost"),
    ] {
        let sound = Drill { replicas: 1, points: vec![], wrong: 0 };
        let scope = sound.scope();
        fail::cfg(format!("{scope}witness:replica-0"), action).unwrap();
        let (mut trainer, hears, watching) = witnessed(&sound, Audits::Every(EVERY), &scope);
        trainer.fit(&data(), None, EPOCHS).unwrap();
        assert_eq!(trainer.state_sha256().unwrap(), expected, "{action}");
        let left = trainer.witness().unwrap().left.clone().unwrap_or_default();
        assert!(left.contains(why), "{action}: {left}");
        assert!(hears.notes.lock().unwrap().iter().any(|note| note.contains("the witness left")), "{action}");
        assert!(watching.0.lock().unwrap().is_empty());
    }
}

/// A step that the device makes wrongly once is found if it is audited, by the witness or where that is
/// busy by the device itself.
#[test]
fn single_wrong_steps_of_one_device_are_found_as_often_as_steps_are_audited() {
    let drills = if std::env::var_os("UNISONO_LONG").is_some() { 400 } else { 12 };
    let mut found = 0;
    for drill in 0..drills {
        let mut draws = Draws::of(drill, "test", "witnessed", 0, 0);
        let drill = Drill::once(1, 0, u64::from(draws.below(STEPS as u32 - 1)), "state:0");
        let (mut trainer, _, watching) = witnessed(&drill, Audits::Every(EVERY), &drill.scope());
        trainer.fit(&data(), None, EPOCHS).unwrap();
        found += u32::from(!watching.0.lock().unwrap().is_empty());
    }
    let chance = 1.0 / EVERY as f64;
    let error = (chance * (1.0 - chance) / drills as f64).sqrt();
    let share = f64::from(found) / drills as f64;
    assert!(
        (share - chance).abs() < 4.0 * error,
        "found {found} of {drills}: {share}, not {chance} +- {error}"
    );
}

#[test]
fn settings_that_make_no_sense_for_a_witness_are_refused() {
    let refused = |builder: unisono::Builder| {
        builder.build(&data().fields().unwrap()).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let with = |witness: Witness| perceptron(8).global_batch(16).replicas(1).witness(witness);
    for (builder, why) in [
        (with(Witness::cpu()).audits(Audits::Never), "audits none"),
        (with(Witness::cpu().share(0.0)), "above 0"),
        (with(Witness::cpu().share(f64::NAN)), "above 0"),
        (with(Witness::cpu()).replicas(2).shard_optimizer(1), "shard_optimizer"),
        (with(Witness::on("no such adapter")), "no such adapter"),
    ] {
        let error = refused(builder);
        assert!(error.contains(why), "{why}: {error}");
    }
    // Of another class it would accuse a device that is sound.
    let split = Arithmetic { fused: false, ..Arithmetic::default() };
    if Adapter::cpu(split).is_none() {
        left_out("no witness of another class is tried: this build has no CPU adapter");
        return;
    }
    let error = refused(with(Witness::on("cpu:split")).adapter("cpu"));
    assert!(error.contains("other bits") && error.contains("of class split"), "{error}");
    // The CPU computes as its run does.
    let mut trainer = with(Witness::cpu()).adapter("cpu:split").build(&data().fields().unwrap()).unwrap();
    trainer.fit(&data(), None, 1).unwrap();
    assert!(trainer.witness().unwrap().adapter.contains("split"), "{:?}", trainer.witness());
    // It does so for tensor cores, too.
    let by_unit = with(Witness::cpu()).precision(Precision::MatrixUnits).adapter("cpu:hopper");
    let mut trainer = by_unit.build(&data().fields().unwrap()).unwrap();
    trainer.fit(&data(), None, 1).unwrap();
    assert!(trainer.witness().unwrap().adapter.contains("hopper"), "{:?}", trainer.witness());
}
