//! What leaves a trainer, or spreads from one replica to others, is compared first.

use std::path::Path;

use unisono::checkpoint::WeightPrecision;
use unisono::{Audits, Error, Trainer};
use unisono_tests::perceptron;

use super::{Drill, Watching, data};

#[test]
fn what_leaves_a_trainer_is_compared_first() {
    type Leaves = fn(&mut Trainer, &Path) -> Result<(), Error>;
    let leaves: [(&str, Leaves); 8] = [
        ("state_sha256", |trainer, _| trainer.state_sha256().map(drop)),
        ("predict", |trainer, _| trainer.predict(&data()).map(drop)),
        ("evaluate", |trainer, _| trainer.evaluate(&data()).map(drop)),
        ("contents", |trainer, _| trainer.contents().map(drop)),
        ("tensor", |trainer, _| trainer.tensor("0.weight").transpose().map(drop)),
        ("export", |trainer, dir| {
            trainer.export(dir.join("model.safetensors"), WeightPrecision::F32).map(drop)
        }),
        ("export_onnx", |trainer, dir| trainer.export_onnx(dir.join("model.onnx"))),
        ("save_model", |trainer, dir| {
            trainer.checkpoints(dir, 0)?;
            trainer.save_model().map(drop)
        }),
    ];
    for (name, leave) in leaves {
        let dir = tempfile::tempdir().unwrap();
        let files = || -> Vec<_> {
            let names = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name());
            names.filter(|name| name.to_string_lossy().starts_with("model")).collect()
        };
        let (mut trainer, _) = Drill::once(2, 1, 2, "state:0").trainer(Audits::Every(1000));
        let batches = data().batch(16).epoch(0).unwrap();
        for batch in batches.take(3) {
            trainer.step(&batch.unwrap()).unwrap();
        }
        let error = leave(&mut trainer, dir.path()).expect_err(name);
        assert!(matches!(error, Error::RolledBack { step: 0, .. }), "{name}: {error}");
        assert!(files().is_empty(), "{name}: {:?}", files());
        leave(&mut trainer, dir.path()).unwrap();
        assert_eq!(!files().is_empty(), name.contains("model") || name.contains("export"), "{name}");
    }
}

/// Weights that a callback keeps and restores are those of one replica, and become those of all.
#[test]
fn weights_that_a_callback_keeps_are_compared_first() {
    let run = |drill: &Drill| {
        let keeps = unisono::on_step("keeps", unisono::Influence::None, |step, run| {
            if step.step == 5 {
                run.keep_weights()?;
                run.restore_weights()?;
            }
            Ok(())
        });
        let watching = Watching::default();
        let builder = perceptron(8).global_batch(16).replicas(drill.replicas).audits(Audits::Every(1000));
        let builder = builder.fault_scope(&drill.scope()).observer(watching.clone()).callback(keeps);
        let mut trainer = builder.build(&data().fields().unwrap()).unwrap();
        trainer.fit(&data(), None, 2).unwrap();
        let back = watching.0.lock().unwrap().clone();
        (trainer.state_sha256().unwrap(), back)
    };
    let (expected, none) = run(&Drill { replicas: 1, points: vec![], wrong: 0 });
    assert!(none.is_empty());
    assert_eq!(run(&Drill::once(2, 0, 5, "state:0")), (expected, vec![0]));
}
