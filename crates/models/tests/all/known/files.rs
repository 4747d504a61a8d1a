//! The files of a directory: shards, other formats, damage.

use std::collections::BTreeMap;
use std::path::Path;

use unisono::checkpoint::{Tensor, TensorDType, Tensors, write_model};
use unisono_models::{Gpt2, Pretrained};

use super::{Expected, case, error, predict, with_config};

const INDEX: &str = "model.safetensors.index.json";

/// Writes the weights as bf16 in two shards, and returns them.
fn write_shards(dir: &Path, base: &Pretrained<Gpt2>) -> Tensors {
    // bf16 is the upper half of an f32.
    let halved = |tensor: &Tensor| {
        let bytes = tensor.bytes().chunks_exact(4).flat_map(|word| [word[2], word[3]]).collect();
        Tensor::new(TensorDType::Bf16, tensor.shape().to_vec(), bytes).unwrap()
    };
    let all: Tensors = base.weights().iter().map(|(name, tensor)| (name.clone(), halved(tensor))).collect();
    let (mut map, mut shards) = (BTreeMap::new(), [Tensors::new(), Tensors::new()]);
    for (at, (name, tensor)) in all.iter().enumerate() {
        map.insert(name.clone(), format!("model-{}.safetensors", at % 2));
        shards[at % 2].insert(name.clone(), tensor.clone());
    }
    for (at, shard) in shards.iter().enumerate() {
        write_model(dir.join(format!("model-{at}.safetensors")), shard).unwrap();
    }
    let index = serde_json::json!({"metadata": {}, "weight_map": map}).to_string();
    std::fs::write(dir.join(INDEX), &index).unwrap();
    all
}

#[test]
fn shards_and_bf16_are_read() {
    let dir = with_config();
    let base = Pretrained::<Gpt2>::open(case("gpt2")).unwrap();
    let all = write_shards(dir.path(), &base);
    let index = std::fs::read_to_string(dir.path().join(INDEX)).unwrap();
    let sharded = Pretrained::<Gpt2>::open(dir.path()).unwrap();
    assert_eq!(sharded.weights(), &all);
    let expected = Expected::read(&case("gpt2"));
    let [exact, rounded] = [&base, &sharded].map(|base| predict(base, &expected, 1));
    assert!(exact != rounded && exact.iter().zip(&rounded).all(|(a, b)| (a - b).abs() < 0.2));

    std::fs::write(dir.path().join(INDEX), index.replace("model-1", "../model-1")).unwrap();
    assert!(error(dir.path()).contains("not the name of a file"), "{}", error(dir.path()));
}

/// Whatever is wrong in a file, the directory opens, or the error says where the file is: 400 times, and a
/// hundred thousand where `UNISONO_LONG` is set.
#[test]
fn damaged_shards_are_refused_by_name() {
    let dir = with_config();
    write_shards(dir.path(), &Pretrained::<Gpt2>::open(case("gpt2")).unwrap());
    let files = ["config.json", INDEX, "model-0.safetensors", "model-1.safetensors"];
    let files = files.map(|name| (name, std::fs::read(dir.path().join(name)).unwrap()));
    let mut state = 1_u64;
    let mut below = |most: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % most.max(1)
    };
    let count = if std::env::var_os("UNISONO_LONG").is_some() { 100_000 } else { 400 };
    let mut refused = 0;
    for _ in 0..count {
        let (name, whole) = &files[below(files.len())];
        // Most damage is done to what is read as text.
        let reach = if below(4) == 0 { whole.len() } else { whole.len().min(1500) };
        let (at, mut bytes) = (below(reach), whole.clone());
        match below(5) {
            0 => bytes.truncate(at),
            1 => bytes.extend_from_slice(&whole[at..]),
            2 => bytes.splice(at..at, b"9".repeat(1 + below(20))).for_each(drop),
            3 => bytes.drain(at..(at + 1 + below(20)).min(whole.len())).for_each(drop),
            _ => (0..=below(3)).for_each(|i| bytes[(at + i) % whole.len()] = below(256) as u8),
        }
        std::fs::write(dir.path().join(name), &bytes).unwrap();
        if let Err(error) = Pretrained::<Gpt2>::open(dir.path()) {
            refused += 1;
            let place = dir.path().display().to_string();
            assert!(error.to_string().contains(&place), "{name}, from {at} on: {error}");
        }
        std::fs::write(dir.path().join(name), whole).unwrap();
    }
    assert!(refused > count / 2 && refused < count, "{refused} of {count}");
    Pretrained::<Gpt2>::open(dir.path()).unwrap();
}

#[test]
fn files_of_other_kinds_are_named() {
    let dir = with_config();
    assert!(error(dir.path()).contains("neither model.safetensors nor"));
    std::fs::write(dir.path().join("tf_model.h5"), "").unwrap();
    assert!(error(dir.path()).contains("tf_model.h5 has Keras's format"));
    std::fs::write(dir.path().join("pytorch_model.bin"), "").unwrap();
    assert!(error(dir.path()).contains("pytorch_model.bin: no file of tensors by PyTorch"));
    std::fs::write(dir.path().join("model.safetensors"), b"\x89HDF\r\n\x1a\n........").unwrap();
    assert!(error(dir.path()).contains("an HDF5 file"));
    // Given a file itself, or one whose name says nothing.
    let given = error(&case("gpt2_bin").join("pytorch_model.bin"));
    assert!(
        given.contains("is a file, and the directory with config.json is opened; it is a file that"),
        "{given}"
    );
    let given = error(&case("gpt2").join("model.safetensors"));
    assert!(given.ends_with("it is a safetensors file: read it by `checkpoint::read_tensors`"), "{given}");
    let other = with_config();
    std::fs::write(other.path().join("weights"), b"GGUF\x03............").unwrap();
    assert!(error(other.path()).contains("weights is a GGUF file"), "{}", error(other.path()));
}

/// A pipe in the place of a file is not waited for.
#[cfg(unix)]
#[test]
fn what_is_no_file_is_refused() {
    for name in ["config.json", "model.safetensors.index.json", "model.safetensors", "pytorch_model.bin"] {
        let dir = with_config();
        let path = dir.path().join(name);
        drop(std::fs::remove_file(&path));
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let told = error(dir.path());
        assert!(told.contains(name) && told.contains("no regular file"), "{name}: {told}");
    }
}

#[test]
fn a_directory_of_older_days_has_pytorchs_file() {
    let [new, old] = ["gpt2", "gpt2_bin"].map(|name| Pretrained::<Gpt2>::open(case(name)).unwrap());
    assert_eq!(new.weights(), old.weights());
}
