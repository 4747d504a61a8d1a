//! Small models that transformers made (`make_cases.py`), compared with what PyTorch computes in float64.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use unisono::checkpoint::{Tensor, TensorDType, TensorFile, Tensors, write_model};
use unisono::data::{Batch, Loader, Memory, Values};
use unisono::{AdamW, Predictor, Sgd, Trainer};
use unisono_models::{Architecture, Bert, DistilBert, Gpt2, Llama, Pretrained, ResNet, Vit};

#[derive(Deserialize)]
struct Expected {
    x: Vec<f64>,
    x_shape: Vec<usize>,
    y: Vec<i32>,
    y_shape: Vec<usize>,
    logits: Vec<f64>,
    loss: f64,
    gradients: BTreeMap<String, f64>,
    losses: Vec<f64>,
}

impl Expected {
    fn read(dir: &Path) -> Self {
        serde_json::from_slice(&std::fs::read(dir.join("expected.json")).unwrap()).unwrap()
    }

    fn loader(&self) -> Loader {
        let x = match self.x_shape.len() {
            2 => Values::I32(self.x.iter().map(|&x| x as i32).collect()),
            _ => Values::F32(self.x.iter().map(|&x| x as f32).collect()),
        };
        let memory = Memory::new("x", &self.x_shape[1..], x).unwrap();
        Loader::new(memory.with("y", &self.y_shape[1..], Values::I32(self.y.clone())).unwrap()).batch(4)
    }

    fn batch(&self) -> Batch {
        self.loader().epoch(0).unwrap().next().unwrap().unwrap()
    }
}

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name)
}

fn close(what: &str, found: f64, expected: f64, most: f64) {
    assert!(
        (found - expected).abs() <= most * expected.abs().max(1e-3),
        "{what}: {found}, expected {expected}"
    );
}

fn predict<M: Architecture>(base: &Pretrained<M>, expected: &Expected, replicas: usize) -> Vec<f32> {
    let fields = expected.loader().fields().unwrap();
    let builder = Predictor::builder().replicas(replicas).batch(4).shards(4);
    let mut predictor = base.predictor(builder, &fields[..1]).unwrap();
    predictor.predict(&expected.loader()).unwrap().get("output").unwrap().values.clone()
}

/// Logits, gradients and steps are those of PyTorch; the model is saved back as it was; replicas agree.
fn is_pytorchs<M: Architecture>(name: &str) {
    let dir = case(name);
    let (expected, base) = (Expected::read(&dir), Pretrained::<M>::open(&dir).unwrap());
    let logits = predict(&base, &expected, 1);
    let norm = expected.logits.iter().map(|x| x * x).sum::<f64>().sqrt();
    let pairs = logits.iter().zip(&expected.logits);
    let off = pairs.map(|(&a, b)| (f64::from(a) - b).powi(2)).sum::<f64>().sqrt();
    assert!(
        logits.len() == expected.logits.len() && off <= 1e-5 * norm,
        "{name}: logits are off by {off} of {norm}"
    );
    assert_eq!(logits, predict(&base, &expected, 2), "{name}: two replicas");
    gradients(name, &base, &expected);
    let trained = ten_steps(name, &base, &expected);

    let saved = tempfile::tempdir().unwrap();
    let again = saved.path().join("again");
    base.save_pretrained(&again).unwrap();
    let [old, new] = [&dir, &again].map(|dir| TensorFile::open(dir.join("model.safetensors")).unwrap());
    assert_eq!(old.tensors(), new.tensors(), "{name}: saved back");
    assert_eq!(new.metadata().get("format").map(String::as_str), Some("pt"));
    base.with_weights(trained.clone()).unwrap().save_pretrained(&again).unwrap();
    assert_eq!(Pretrained::<M>::open(&again).unwrap().weights(), &trained, "{name}: trained and saved");
}

/// One step of plain gradient descent, whose rate is so large that the old weights hardly count.
fn gradients<M: Architecture>(name: &str, base: &Pretrained<M>, expected: &Expected) {
    const RATE: f32 = 1024.0;
    let builder =
        Trainer::builder(base.model()).optimizer(Sgd::new(RATE)).global_batch(4).shards(4).replicas(1);
    let mut trainer = builder.build(&expected.loader().fields().unwrap()).unwrap();
    base.load(&mut trainer).unwrap();
    let step = trainer.step(&expected.batch()).unwrap();
    close(&format!("{name}: loss"), step.now.loss, expected.loss, 1e-5);
    let after = trainer.weights().unwrap();
    for (tensor, &norm) in &expected.gradients {
        let [old, new] = [base.weights(), &after].map(|all| all[tensor].to_f32().unwrap());
        let pairs = old.iter().zip(&new);
        let found = pairs.map(|(a, b)| (f64::from(a - b) / f64::from(RATE)).powi(2)).sum::<f64>().sqrt();
        // A key's bias and one in front of a batch norm have no gradient in exact arithmetic, and up to
        // some 1e-7 in f32.
        assert!((found - norm).abs() <= 1e-5 * norm + 2e-7, "{name}: gradient of {tensor}: {found}, {norm}");
    }
}

fn ten_steps<M: Architecture>(name: &str, base: &Pretrained<M>, expected: &Expected) -> Tensors {
    let optimizer = AdamW::new(1e-3).weight_decay(0.01);
    let builder = Trainer::builder(base.model()).optimizer(optimizer).global_batch(4).shards(4).replicas(1);
    let mut trainer = builder.build(&expected.loader().fields().unwrap()).unwrap();
    base.load(&mut trainer).unwrap();
    for (step, &loss) in expected.losses.iter().enumerate() {
        let found = trainer.step(&expected.batch()).unwrap().now.loss;
        close(&format!("{name}: loss of step {step}"), found, loss, 1e-5);
    }
    trainer.weights().unwrap()
}

#[test]
fn gpt2_is_pytorchs() {
    is_pytorchs::<Gpt2>("gpt2");
}

#[test]
fn llama_is_pytorchs() {
    is_pytorchs::<Llama>("llama");
}

#[test]
fn bert_is_pytorchs() {
    is_pytorchs::<Bert>("bert");
    is_pytorchs::<Bert>("bert_masked");
}

#[test]
fn distilbert_is_pytorchs() {
    is_pytorchs::<DistilBert>("distilbert");
}

#[test]
fn vit_is_pytorchs() {
    is_pytorchs::<Vit>("vit");
}

#[test]
fn resnet_is_pytorchs() {
    is_pytorchs::<ResNet>("resnet_basic");
    is_pytorchs::<ResNet>("resnet_bottleneck");
}

/// Makes a directory with GPT-2's config.
fn with_config() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(case("gpt2").join("config.json"), dir.path().join("config.json")).unwrap();
    dir
}

fn error(dir: &Path) -> String {
    Pretrained::<Gpt2>::open(dir).unwrap_err().to_string()
}

#[test]
fn what_does_not_fit_is_told_by_pattern() {
    let dir = with_config();
    let file = dir.path().join("model.safetensors");
    let mut tensors = Pretrained::<Gpt2>::open(case("gpt2")).unwrap().weights().clone();
    tensors.retain(|name, _| !name.ends_with("ln_1.bias"));
    tensors.insert("transformer.ln_f.bias".into(), Tensor::f32(&[2], &[0.0; 2]).unwrap());
    tensors.insert("transformer.more".into(), Tensor::f32(&[1], &[0.0]).unwrap());
    write_model(&file, &tensors).unwrap();
    let lines = error(dir.path());
    let lines: Vec<&str> = lines.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "  transformer.h.*.ln_1.bias  missing (2 times)",
            "  transformer.ln_f.bias      [2] in the file, [16] in the model",
            "  transformer.more           not in the model",
        ]
    );
    assert!(
        Pretrained::<Llama>::open(case("gpt2")).unwrap_err().to_string().contains("model_type is \"gpt2\"")
    );
}

#[test]
fn shards_and_bf16_are_read() {
    let dir = with_config();
    let base = Pretrained::<Gpt2>::open(case("gpt2")).unwrap();
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
        write_model(dir.path().join(format!("model-{at}.safetensors")), shard).unwrap();
    }
    let index = serde_json::json!({"metadata": {}, "weight_map": map}).to_string();
    std::fs::write(dir.path().join("model.safetensors.index.json"), &index).unwrap();
    let sharded = Pretrained::<Gpt2>::open(dir.path()).unwrap();
    assert_eq!(sharded.weights(), &all);
    let expected = Expected::read(&case("gpt2"));
    let [exact, rounded] = [&base, &sharded].map(|base| predict(base, &expected, 1));
    assert!(exact != rounded && exact.iter().zip(&rounded).all(|(a, b)| (a - b).abs() < 0.2));

    std::fs::write(dir.path().join("model.safetensors.index.json"), index.replace("model-1", "../model-1"))
        .unwrap();
    assert!(error(dir.path()).contains("no name of a file"), "{}", error(dir.path()));
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

#[test]
fn a_directory_of_older_days_has_pytorchs_file() {
    let [new, old] = ["gpt2", "gpt2_bin"].map(|name| Pretrained::<Gpt2>::open(case(name)).unwrap());
    assert_eq!(new.weights(), old.weights());
}
