//! A directory with the checkpoints of another run is refused before the first step, not at the first save.

use std::path::Path;

use unisono::checkpoint::list;
use unisono::{Saving, Trainer};
use unisono_tests::{loader, perceptron};

/// The number of samples: three steps in an epoch.
const SAMPLES: usize = 40;

fn trainer(dir: &Path) -> Trainer {
    let fields = loader(SAMPLES, 5).unwrap().fields().unwrap();
    let mut trainer = perceptron(4).global_batch(16).replicas(1).build(&fields).unwrap();
    trainer.checkpoints(dir, 0).unwrap();
    trainer
}

#[test]
fn a_fresh_run_does_not_start_where_another_is_ahead() {
    let data = loader(SAMPLES, 5).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let steps = || list(dir.path()).unwrap().into_iter().map(|(step, _)| step).collect::<Vec<_>>();
    let mut first = trainer(dir.path());
    first.fit(&data, None, 2).unwrap();
    // The run itself may go on, and may save there with other settings.
    first.save_to(Saving::new(dir.path()).keep_last(5)).unwrap();
    first.fit(&data, None, 3).unwrap();
    drop(first);
    assert_eq!(steps(), [9, 6]);

    // The same holds for a run that would take more steps.
    let mut second = trainer(dir.path());
    let before = second.state_sha256().unwrap();
    for epochs in [1, 9] {
        let error = second.fit(&data, None, epochs).unwrap_err().to_string();
        let expected = format!(
            "checkpoints: {} holds step 9 of another run: resume it, remove it (Trainer::clear_checkpoints), or save to another \
             directory",
            dir.path().display()
        );
        assert_eq!(error, expected);
    }
    assert_eq!((second.steps(), second.state_sha256().unwrap()), (0, before));
    assert_eq!(steps(), [9, 6]);
    second.resume().unwrap().unwrap();
    second.fit(&data, None, 4).unwrap();
    assert_eq!(steps(), [12, 9, 6]);
    drop(second);

    // Broken checkpoints do not count.
    for step in [12, 9, 6] {
        std::fs::remove_file(dir.path().join(format!("checkpoints/step-{step:08}/manifest.json"))).unwrap();
    }
    let mut third = trainer(dir.path());
    third.fit(&data, None, 1).unwrap();
    drop(third);
    let mut fourth = trainer(dir.path());
    assert!(fourth.fit(&data, None, 1).is_err());
    fourth.clear_checkpoints().unwrap();
    fourth.fit(&data, None, 1).unwrap();
    assert_eq!(steps(), [3]);
}
