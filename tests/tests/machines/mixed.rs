//! Adapters of different numeric classes are refused unless the user allows them. If they are allowed,
//! replicas never differ.

use std::sync::{Arc, Mutex};

use unisono::{Error, Observer, Trainer};
use unisono_gpu::{Backend, adapters};
use unisono_tests::{loader, perceptron};

/// Returns one adapter of each backend, if there are two backends. Adapters of GL count as of another class,
/// which the software drivers are not by themselves.
fn two() -> Option<[String; 2]> {
    fail::cfg("probe-gl", "return(state:0)").unwrap();
    let first = |backend: Backend| Some(format!("{backend}:{}", adapters(&[backend]).first()?.name));
    let names = first(Backend::Vulkan).zip(first(Backend::Gl));
    if names.is_none() {
        let install = unisono_testkit::install("mesa-vulkan-drivers libegl1 libgl1-mesa-dri");
        unisono_testkit::left_out(&format!(
            "nothing is mixed: this machine does not have both Vulkan and GL{install}"
        ));
    }
    names.map(Into::into)
}

/// The notes that observers were given.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Observer for Notes {
    fn note(&mut self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

fn trainer(names: &[String], mixed: bool) -> Result<Trainer, Error> {
    trainer_with(names, mixed, Notes::default())
}

fn trainer_with(names: &[String], mixed: bool, notes: Notes) -> Result<Trainer, Error> {
    let builder = perceptron(16).global_batch(32).digest_every(1).mixed(mixed).observer(notes);
    let builder = names.iter().fold(builder, |builder, name| builder.adapter(name)).replicas(names.len());
    builder.build(&loader(90, 5)?.fields()?)
}

fn trained(names: &[String; 2], mixed: bool) -> Result<Trainer, Error> {
    let mut trainer = trainer(names, mixed)?;
    trainer.fit(&loader(90, 5)?, None, 8)?;
    trainer.check_replicas()?;
    Ok(trainer)
}

#[test]
fn a_mixture_is_refused_by_name_and_trains_alike_where_it_is_allowed() {
    let Some(names) = two() else { return };
    let refused = trained(&names, false).err().unwrap().to_string();
    assert!(refused.starts_with("adapters of different numeric classes: "), "{refused}");
    assert!(refused.contains("[vulkan] is of class ") && refused.contains("[gl] is of class "), "{refused}");
    let mut first = trained(&names, true).unwrap();
    let mut second = trained(&names, true).unwrap();
    assert_eq!(
        first.state_sha256().unwrap(),
        second.state_sha256().unwrap(),
        "a run repeats on the same mixture"
    );
    assert!(first.reports().iter().all(|r| r.shards > 0 && r.left.is_none()), "{:?}", first.reports());
    let accuracy = first.evaluate(&loader(90, 6).unwrap()).unwrap().metrics[0].1;
    assert!(accuracy > 0.85, "{accuracy}");
}

#[test]
fn adapters_that_no_replica_runs_on_do_not_count() {
    let Some(names) = two() else { return };
    let one = |names: &[String], mixed: bool| {
        let builder = names.iter().fold(perceptron(16).mixed(mixed), |builder, name| builder.adapter(name));
        let mut trainer =
            builder.replicas(1).global_batch(32).build(&loader(90, 5).unwrap().fields().unwrap()).unwrap();
        trainer.fit(&loader(90, 5).unwrap(), None, 1).unwrap();
        (
            trainer.contents().unwrap().trainer["sections"]["classes"]["value"]["mixture"].clone(),
            trainer.state_sha256().unwrap(),
        )
    };
    let expected = one(&names[..1], false);
    assert_eq!(expected.0, serde_json::json!([]));
    assert_eq!(one(&names, false), expected);
    assert_eq!(one(&names, true), expected, "one replica is no mixture");
}

#[test]
fn who_is_of_another_class_does_not_join() {
    let Some([first, second]) = two() else { return };
    for mixed in [false, true] {
        let mut trainer = trainer(std::slice::from_ref(&first), mixed).unwrap();
        let error = trainer.join(&second).unwrap_err().to_string();
        assert!(error.starts_with("adapters of different numeric classes: "), "{error}");
        assert!(error.contains("a run that was started on one class accepts no other"), "{error}");
        assert_eq!(trainer.join(&first).unwrap(), 1);
        trainer.fit(&loader(90, 5).unwrap(), None, 1).unwrap();
        trainer.check_replicas().unwrap();
    }
}

/// After an adapter joined, the run is that of the larger mixture: it can be repeated, and a resume goes on
/// from its checkpoint on exactly these adapters.
#[test]
fn who_joins_a_mixture_makes_it_another_one() {
    let Some(names) = two() else { return };
    let data = loader(90, 5).unwrap();
    let [first, second] = names.clone();
    let three = [first.clone(), second, first.clone()];
    let joined = |dir: &std::path::Path| {
        let notes = Notes::default();
        let mut trainer = trainer_with(&names, true, notes.clone()).unwrap();
        trainer.checkpoints(dir, 0).unwrap();
        trainer.fit(&data, None, 1).unwrap();
        assert_eq!(trainer.join(&first).unwrap(), 2);
        let said = notes.0.lock().unwrap().clone();
        assert!(
            said.len() == 1 && said[0].starts_with("replica 2 (") && said[0].contains(" joined at step 3: "),
            "{said:?}"
        );
        trainer.fit(&data, None, 2).unwrap();
        trainer
    };
    let [dir, again] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let mut trainer = joined(dir.path());
    assert!(trainer.reports()[2].shards > 0, "{:?}", trainer.reports());
    let half = trainer.state_sha256().unwrap();
    trainer.fit(&data, None, 5).unwrap();
    let whole = trainer.state_sha256().unwrap();

    let mut other = joined(again.path());
    assert_eq!(other.state_sha256().unwrap(), half, "the same joins at the same steps, another answer");
    drop(other);
    let resumed = |names: &[String]| {
        let mut trainer = self::trainer(names, true)?;
        trainer.checkpoints(again.path(), 0)?;
        trainer.resume()?;
        Ok::<_, Error>(trainer)
    };
    let error = resumed(&names).err().unwrap().to_string();
    assert!(error.contains("the mixture of the run is vulkan "), "{error}");
    let mut resumed = resumed(&three).unwrap();
    assert_eq!(resumed.state_sha256().unwrap(), half);
    resumed.fit(&data, None, 5).unwrap();
    assert_eq!(resumed.state_sha256().unwrap(), whole, "the rest of the run is not the run's");
}

/// The assignment of shards follows from the shards and the machines in their order. Both are in the
/// checkpoint.
#[test]
fn a_mixed_run_goes_on_as_the_run_it_was_and_only_on_its_own_mixture() {
    let Some(names) = two() else { return };
    let dir = tempfile::tempdir().unwrap();
    let data = loader(90, 5).unwrap();
    let expected = trained(&names, true).unwrap().state_sha256().unwrap();
    let saved = |names: &[String]| {
        let mut trainer = trainer(names, true).unwrap();
        trainer.checkpoints(dir.path(), 0).unwrap();
        trainer
    };
    saved(&names).fit(&data, None, 3).unwrap();
    let [first, second] = names.clone();
    for others in [vec![second.clone(), first.clone()], vec![first.clone(), second, first]] {
        let error = saved(&others).resume().unwrap_err().to_string();
        assert!(error.contains("the mixture of the run is vulkan "), "{error}");
    }
    let mut again = saved(&names);
    assert_eq!(again.resume().unwrap().unwrap().step, 9);
    again.fit(&data, None, 8).unwrap();
    assert!(again.state_sha256().unwrap() == expected, "the rest of the run is not the run's");
}

/// The actions at a fault point of replica 1 of a mixture: whenever it runs, or in each of its steps.
type Faults<'a> = &'a [(&'a str, &'a str)];

/// Trains with faults of replica 1, and compares the replicas after every step. Returns the state.
fn with_faults(names: &[String; 2], scope: &str, faults: Faults<'_>) -> String {
    for (point, action) in faults {
        fail::cfg(format!("{scope}:replica-1{point}"), action).unwrap();
    }
    let builder = perceptron(16).global_batch(32).digest_every(1).mixed(true).replicas(2);
    let builder = builder.adapter(&names[0]).adapter(&names[1]).fault_scope(&format!("{scope}:"));
    let mut trainer = builder.build(&loader(90, 5).unwrap().fields().unwrap()).unwrap();
    trainer.fit(&loader(90, 5).unwrap(), None, 4).unwrap();
    trainer.check_replicas().unwrap();
    trainer.state_sha256().unwrap()
}

/// Replica 1 would make another update than replica 0, as adapters of another class do.
#[test]
fn one_replica_updates_for_all() {
    let Some(names) = two() else { return };
    let expected = with_faults(&names, "sound", &[]);
    assert_eq!(with_faults(&names, "updates", &[("", "return(exchange)")]), expected);
}

/// The gradients of replica 1 are other ones than those of replica 0, so the state depends on which shards it
/// has; and that does not depend on how long it takes.
#[test]
fn shards_stay_with_their_replica_however_fast_it_is() {
    let Some(names) = two() else { return };
    let wrong = ("", "return(gradient)");
    let expected = with_faults(&names, "even", &[wrong]);
    assert_ne!(expected, with_faults(&names, "none", &[]), "the fault shows");
    let steps: Vec<String> = (0..12).map(|step| format!(":step-{step}")).collect();
    let slow = steps.iter().map(|step| (&**step, "return(sample:1000)"));
    let faults: Vec<(&str, &str)> = slow.chain([wrong]).collect();
    assert_eq!(with_faults(&names, "slow", &faults), expected);
}
