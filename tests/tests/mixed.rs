//! Adapters of different numeric classes: refused, unless asked for; then replicas never drift apart.

use unisono::{Error, Trainer};
use unisono_gpu::{Backend, adapters};
use unisono_tests::{loader, perceptron};

/// One adapter of each backend, where there are two.
fn two() -> Option<[String; 2]> {
    let first = |backend: Backend| Some(format!("{backend}:{}", adapters(&[backend]).first()?.name));
    Some([first(Backend::Vulkan)?, first(Backend::Gl)?])
}

fn trainer(names: &[String], mixed: bool) -> Result<Trainer, Error> {
    let builder = perceptron(16).global_batch(32).digest_every(1).mixed(mixed);
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
    let Some(names) = two() else {
        eprintln!("only one backend here: nothing to mix");
        return;
    };
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
fn who_is_of_another_class_does_not_join() {
    let Some([first, second]) = two() else {
        eprintln!("only one backend here: nothing to mix");
        return;
    };
    for mixed in [false, true] {
        let mut trainer = trainer(std::slice::from_ref(&first), mixed).unwrap();
        let error = trainer.join(&second).unwrap_err().to_string();
        assert!(error.starts_with("adapters of different numeric classes: "), "{error}");
        assert_eq!(trainer.join(&first).unwrap(), 1);
        trainer.fit(&loader(90, 5).unwrap(), None, 1).unwrap();
        trainer.check_replicas().unwrap();
    }
}

/// Who runs what follows from the shards and the machines in their order, and both are in the checkpoint.
#[test]
fn a_mixed_run_goes_on_as_the_run_it_was_and_only_on_its_own_mixture() {
    let Some(names) = two() else {
        eprintln!("only one backend here: nothing to mix");
        return;
    };
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
