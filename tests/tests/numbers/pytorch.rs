//! Files of weights that PyTorch and Keras wrote load, and the models predict what PyTorch and Keras predict.

mod keras;

use std::path::Path;

use unisono::checkpoint::Plan;
use unisono::data::{Loader, Memory};
use unisono::{Dense, Relu, Sequential, Trainer};
use unisono_tests::conformance::{Case, Suite};

fn case() -> Case {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let suite = Suite::read(&root.join("oracle/training.json")).unwrap();
    suite.cases.into_iter().find(|case| case.name == "mlp_adamw").unwrap()
}

/// Returns the first batch of the case.
fn batch(case: &Case) -> Memory {
    let x: Vec<f32> = case.inputs["x0"].data.iter().map(|&x| x as f32).collect();
    let y: Vec<i32> = case.inputs["y0"].data.iter().map(|&y| y as i32).collect();
    Memory::labelled(x, [12], y).unwrap()
}

/// Returns the expected logits: those of the case's model with its initial weights, in f64.
fn logits(case: &Case) -> Vec<f64> {
    let layer = |x: &[f64], name: &str, rows: usize| -> Vec<f64> {
        let (w, b) =
            (&case.inputs[&format!("init.{name}.weight")], &case.inputs[&format!("init.{name}.bias")]);
        let dot = |row: &[f64]| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
        (0..rows).map(|r| dot(&w.data[r * x.len()..][..x.len()]) + b.data[r]).collect()
    };
    let one = |x: &[f64]| {
        let hidden: Vec<f64> = layer(x, "0", 24).into_iter().map(|h| h.max(0.0)).collect();
        layer(&hidden, "2", 5)
    };
    case.inputs["x0"].data.chunks(12).flat_map(one).collect()
}

#[test]
fn a_file_of_pytorchs_predicts_what_pytorch_predicts() {
    let case = case();
    let data = Loader::new(batch(&case));
    let model = Sequential::new().add(Dense::new(24)).add(Relu).add(Dense::new(5));
    let mut trainer = Trainer::builder(model).global_batch(16).build(&data.fields().unwrap()).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/pytorch_mlp.safetensors");

    let before = trainer.state_sha256().unwrap();
    let error = trainer.load_model(&path, &Plan::new()).unwrap_err().to_string();
    assert!(error.contains("missing: \"0.bias\", \"0.weight\", \"2.bias\", \"2.weight\""), "{error}");
    assert!(error.contains("unexpected: \"module.0.bias\", "), "{error}");
    assert_eq!(trainer.state_sha256().unwrap(), before, "nothing of it was taken");

    let plan = Plan::new().strip_prefix("module.").ignore("*.num_batches_tracked");
    let report = trainer.load_model(&path, &plan).unwrap();
    assert_eq!(report.to_string(), "all 4 tensors loaded");
    // This is the loss that PyTorch computed for these weights, before it took a step.
    let loss = trainer.evaluate(&data).unwrap().loss;
    let expected = case.expect["losses"].data[0];
    assert!((loss - expected).abs() <= 1e-6 * expected, "{loss}, {expected}");
    let (found, expected) = (trainer.predict(&data).unwrap(), logits(&case));
    assert_eq!(found.len(), expected.len());
    for (at, (found, expected)) in found.into_iter().zip(expected).enumerate() {
        assert!(
            (f64::from(found) - expected).abs() <= 1e-5 * (1.0 + expected.abs()),
            "{at}: {found}, {expected}"
        );
    }
}

#[test]
fn a_part_of_a_file_is_taken_by_pattern() {
    let case = case();
    let data = Loader::new(batch(&case));
    // This model has another head.
    let model = Sequential::new().add(Dense::new(24)).add(Relu).add(Dense::new(7));
    let mut trainer = Trainer::builder(model).global_batch(16).build(&data.fields().unwrap()).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/pytorch_mlp.safetensors");
    let head = trainer.tensor("2.weight").unwrap().unwrap();
    let plan = Plan::new().strip_prefix("module.").ignore("*.num_batches_tracked");
    let error = trainer.load_model(&path, &plan).unwrap_err().to_string();
    assert!(
        error.contains("size mismatch for 2.weight: F32[5, 24] in the file, F32[7, 24] in the model"),
        "{error}"
    );
    let report = trainer.load_model(&path, &plan.clone().only("0.*")).unwrap();
    assert_eq!(report.loaded, ["0.bias", "0.weight"]);
    let expected: Vec<f32> = case.inputs["init.0.weight"].data.iter().map(|&x| x as f32).collect();
    assert_eq!(trainer.tensor("0.weight").unwrap().unwrap(), expected);
    assert_eq!(trainer.tensor("2.weight").unwrap().unwrap(), head, "the head stays as it was");
}
