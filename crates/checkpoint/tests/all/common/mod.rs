//! Contents that the tests save.

pub mod faulty;
pub mod gate;
pub mod mutate;
pub mod power;
pub mod random;

use std::path::Path;

use serde_json::json;
use unisono_checkpoint::{Contents, Tensor, Tensors};

/// Returns a small checkpoint that differs from step to step.
pub fn contents(step: u64) -> Contents {
    let x = step as f32;
    let named =
        |list: Vec<(&str, Tensor)>| list.into_iter().map(|(n, t)| (n.to_owned(), t)).collect::<Tensors>();
    Contents {
        model: named(vec![
            (
                "dense.weight",
                Tensor::f32(&[2, 3], &[x, 1.0, -0.0, f32::NAN, f32::MIN_POSITIVE / 2.0, 0.1]).unwrap(),
            ),
            ("dense.bias", Tensor::f32(&[2], &[0.5, -x]).unwrap()),
            ("empty", Tensor::f32(&[0, 4], &[]).unwrap()),
        ]),
        optimizer: named(vec![
            ("dense.weight.m", Tensor::f32(&[2, 3], &[x; 6]).unwrap()),
            ("count", Tensor::u32(&[], &[step as u32]).unwrap()),
        ]),
        carries: Tensors::new(),
        trainer: json!({ "step": step, "seed": u64::MAX, "scale": 0.1 + 0.2, "epochs": [1, 2] }),
    }
}

/// Returns the names in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
