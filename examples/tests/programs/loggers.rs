//! The files of `--logdir` and `--csv`.

use std::fs;

use super::{csv, lines, trained};

/// The lines of CSV have the numbers of the JSON lines, also after a resume, and both runs of TensorBoard's
/// directory have events.
#[test]
fn logs_of_a_resumed_run_are_those_of_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(300));
    let (history, logs) = (dir.path().join("logs/history.csv"), dir.path().join("logs"));
    let flags = ["--csv", history.to_str().unwrap(), "--logdir", logs.to_str().unwrap()];
    let train = |more: &[&str]| trained(&data, &dir.path().join("out"), &[&flags, more].concat());
    train(&["--epochs", "1"]);
    let stdout = train(&["--epochs", "3", "--resume"]);

    let epochs = stdout.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let epochs = epochs.filter(|line| line["event"] == "epoch");
    let fields = ["epoch", "steps", "train_loss", "train_accuracy", "val_loss", "val_accuracy"];
    let expected: Vec<Vec<f64>> =
        epochs.map(|epoch| fields.iter().map(|field| epoch[field].as_f64().unwrap()).collect()).collect();
    let text = fs::read_to_string(&history).unwrap();
    let (header, rows) = text.split_once('\n').unwrap();
    assert_eq!(header, "epoch,steps,loss,accuracy,val_loss,val_accuracy");
    let row = |line: &str| line.split(',').map(|value| value.parse().unwrap()).collect::<Vec<f64>>();
    assert_eq!(rows.lines().map(row).collect::<Vec<_>>(), expected);
    assert_eq!(expected.len(), 3);
    // A file for each time that the run was started.
    for run in ["train", "validation"] {
        assert_eq!(fs::read_dir(logs.join(run)).unwrap().count(), 2, "{run}");
    }
}
