use serde_json::Value;

use crate::{csv, digits, done, err, lines};

/// The run goes on to an epoch that is no better than the one before it, whose weights are restored.
#[test]
fn what_is_said_of_a_run_that_stops_early_is_true_of_the_model_that_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let data = csv(dir.path(), &lines(250));
    let flags = ["--json", "--replicas", "1", "--epochs", "1000", "--early-stopping", "1"];
    let output = digits(["--data", data.to_str().unwrap()].iter().chain(&flags));
    assert!(output.status.success(), "{}", err(&output));
    let history = String::from_utf8(output.stdout.clone()).unwrap();
    let events: Vec<Value> = history.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let epochs: Vec<&Value> = events.iter().filter(|event| event["event"] == "epoch").collect();
    assert!(epochs.len() < 1000, "it did not stop");
    let loss = |event: &Value| event["val_loss"].as_f64().unwrap();
    let best = epochs.iter().min_by(|a, b| loss(a).total_cmp(&loss(b))).unwrap();
    assert!(loss(best) < loss(epochs.last().unwrap()), "{history}");
    for field in ["val_loss", "val_accuracy", "train_loss"] {
        assert_eq!(done(&history, field), best[field], "{field}: {history}");
    }
    let shown = format!("validation: {:.2}% correct", 100.0 * best["val_accuracy"].as_f64().unwrap());
    assert!(err(&output).contains(&shown), "{shown}: {}", err(&output));
}
