//! PyTorch's files, as `make_torch.py` wrote them: read equal, and nothing run.
#![cfg(feature = "torch")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use unisono_checkpoint::{Tensor, TensorDType, parse_torch, read_torch};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch").join(name)
}

fn number(dtype: TensorDType, bytes: &[u8]) -> f64 {
    match (dtype, bytes) {
        (TensorDType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
        (TensorDType::F64, _) => f64::from_le_bytes(bytes.try_into().unwrap()),
        (TensorDType::I64, _) => i64::from_le_bytes(bytes.try_into().unwrap()) as f64,
        (TensorDType::I32, &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]).into(),
        (TensorDType::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).into(),
        (TensorDType::Bf16, &[a, b]) => half::bf16::from_le_bytes([a, b]).into(),
        (TensorDType::Bool, &[a]) => a.into(),
        _ => panic!("{dtype}"),
    }
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.bytes().chunks(tensor.dtype().size()).map(|bytes| number(tensor.dtype(), bytes)).collect()
}

type Expected = BTreeMap<String, BTreeMap<String, (String, Vec<usize>, Vec<f64>)>>;

#[test]
fn tensors_are_those_of_pytorch() {
    let expected: Expected = serde_json::from_slice(&std::fs::read(file("expected.json")).unwrap()).unwrap();
    for (name, tensors) in expected {
        let found = read_torch(file(&name)).unwrap();
        assert!(found.keys().eq(tensors.keys()), "{name}: {:?}", found.keys());
        for (key, (_, shape, values)) in tensors {
            assert_eq!((found[&key].shape(), numbers(&found[&key])), (&*shape, values), "{name}: {key}");
        }
    }
}

#[test]
fn other_objects_are_named_and_not_run() {
    let problem = |name: &str| read_torch(file(name)).unwrap_err().to_string();
    assert!(
        problem("module.pt").contains("it contains torch.nn.modules.linear.Linear"),
        "{}",
        problem("module.pt")
    );
    assert!(problem("expected.json").contains("no file of tensors by PyTorch"));
    // A pickle that would run a command: the name of what it calls is refused.
    let file = std::fs::read(file("parameter.pt")).unwrap();
    let (old, new) = (b"ctorch._utils\n_rebuild_parameter\n", b"cposix\nsystem\n");
    let at = file.windows(old.len()).position(|part| part == old).unwrap();
    let mut evil = file.clone();
    evil[at..at + old.len()].fill(b'(');
    evil[at..at + new.len()].copy_from_slice(new);
    let error = parse_torch(Path::new("evil.pt"), &evil).unwrap_err().to_string();
    // The archive's check sum no longer holds, or the name is refused: whichever comes first, it is named.
    assert!(error.starts_with("evil.pt: no file of tensors by PyTorch: "), "{error}");
}

/// Every byte of a file changed, and every length cut: an error, or tensors.
#[test]
fn changed_files_are_errors() {
    for name in ["parameter.pt", "weights.pt"] {
        let file = std::fs::read(file(name)).unwrap();
        let step = if std::env::var_os("UNISONO_LONG").is_some() { 1 } else { 7 };
        for at in (0..file.len()).step_by(step) {
            let mut changed = file.clone();
            for value in [0, 0xFF, file[at] ^ 1, file[at].wrapping_add(1)] {
                changed[at] = value;
                let _ = parse_torch(Path::new("changed.pt"), &changed);
            }
            assert!(parse_torch(Path::new("cut.pt"), &file[..at]).is_err(), "{name} cut at {at}");
        }
    }
}
