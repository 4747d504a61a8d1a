//! Adapters of different numeric classes: refused, unless asked for; then replicas never drift apart.

use unisono::{Error, Trainer};
use unisono_gpu::{Backend, adapters};
use unisono_tests::{loader, perceptron};

/// One adapter of each backend, where there are two.
fn two() -> Option<[String; 2]> {
    let first = |backend: Backend| Some(format!("{backend}:{}", adapters(&[backend]).first()?.name));
    Some([first(Backend::Vulkan)?, first(Backend::Gl)?])
}

fn trained(names: &[String; 2], mixed: bool) -> Result<Trainer, Error> {
    let data = loader(90, 5)?;
    let builder = perceptron(16).global_batch(32).digest_every(1).mixed(mixed);
    let builder = names.iter().fold(builder, |builder, name| builder.adapter(name)).replicas(2);
    let mut trainer = builder.build(&data.fields()?)?;
    trainer.fit(&data, None, 8)?;
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
