//! Small models that transformers, torchvision and timm made (`make_cases.py`, `make_foreign_cases.py`),
//! compared with what PyTorch computes in float64.

mod adapted;
mod files;
mod heads;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use unisono::checkpoint::{
    Info, Plan, Tensor, TensorDType, TensorFile, Tensors, read_tensors, read_torch, write_model,
};
use unisono::data::{Batch, Loader, Memory, Values};
use unisono::{AdamW, CrossEntropy, Predictor, Sgd, Trainer};
use unisono_models::{
    Architecture, Bert, DistilBert, Gpt2, Llama, MobileNetV2, Pretrained, ResNet, T5, UNet, Vit, Whisper,
};

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
    /// The learning rate of the ten steps. Default: 0.001.
    rate: Option<f32>,
    /// The product of each gradient with the vector of `direction`.
    #[serde(default)]
    dots: BTreeMap<String, f64>,
    /// The distances of PyTorch's float32 from its float64: of gradients, and of losses.
    #[serde(default)]
    own: BTreeMap<String, f64>,
    #[serde(default)]
    own_losses: Vec<f64>,
    /// Further fields, and their length.
    attention_mask: Option<Vec<i32>>,
    decoder_input_ids: Option<Vec<i32>>,
    #[serde(default)]
    length: usize,
    /// Whether the model makes the ids of its decoder from the labels.
    #[serde(default)]
    labels_are_read: bool,
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
        let further =
            [("attention_mask", &self.attention_mask), ("decoder_input_ids", &self.decoder_input_ids)];
        let further = further.into_iter().filter_map(|(name, ids)| Some((name, ids.clone()?)));
        let memory = Memory::new("x", &self.x_shape[1..], x).unwrap();
        let memory = further
            .fold(memory, |memory, (name, ids)| memory.with(name, [self.length], Values::I32(ids)).unwrap());
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
    let all = fields.len() - usize::from(!expected.labels_are_read);
    let mut predictor = base.predictor(builder, &fields[..all]).unwrap();
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
    assert_eq!(in_file(&dir), in_file(&again), "{name}: saved back");
    let new = TensorFile::open(again.join("model.safetensors")).unwrap();
    assert_eq!(new.metadata().get("format").map(String::as_str), Some("pt"));
    opens_there(name, &again);
    base.with_weights(trained.clone()).unwrap().save_pretrained(&again).unwrap();
    assert_eq!(Pretrained::<M>::open(&again).unwrap().weights(), &trained, "{name}: trained and saved");
}

/// Returns the tensors in a directory's file.
fn in_file(dir: &Path) -> Tensors {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut of =
        entries.filter(|path| path.extension().is_some_and(|end| end == "pth" || end == "safetensors"));
    let path = of.next().unwrap();
    if path.extension().is_some_and(|end| end == "pth") { read_torch(path) } else { read_tensors(path) }
        .unwrap()
}

/// Returns the floats of a model's weights by their names in the file.
fn saved<M: Architecture>(base: &Pretrained<M>, weights: &Tensors) -> BTreeMap<String, Vec<f32>> {
    let dir = tempfile::tempdir().unwrap();
    base.with_weights(weights.clone()).unwrap().save_pretrained(dir.path()).unwrap();
    let all = in_file(dir.path());
    let floats = all.iter().filter(|(_, tensor)| tensor.dtype() != TensorDType::I64);
    let infos = floats.map(|(name, tensor)| (name.clone(), Info::f32(tensor.shape()))).collect();
    let (all, _) = Plan::new().partial().take(&all, &infos).unwrap();
    all.into_iter().map(|(name, tensor)| (name, tensor.to_f32().unwrap())).collect()
}

/// Returns the numbers from -1 to 1 that `make_foreign_cases.py` multiplies gradients with.
fn direction(at: usize) -> f64 {
    ((at as i64 * 7919 + 13) % 101 - 50) as f64 / 50.0
}

/// One step of plain gradient descent, whose rate is so large that the old weights hardly count.
fn gradients<M: Architecture>(name: &str, base: &Pretrained<M>, expected: &Expected) {
    const RATE: f32 = 1024.0;
    let builder = Trainer::builder(base.model()).optimizer(Sgd::new(RATE)).loss(loss());
    let builder = builder.global_batch(4).shards(4).replicas(1);
    let mut trainer = builder.build(&expected.loader().fields().unwrap()).unwrap();
    base.load(&mut trainer).unwrap();
    let step = trainer.step(&expected.batch()).unwrap();
    close(&format!("{name}: loss"), step.now.loss, expected.loss, 1e-5);
    let [before, after] = [base.weights(), &trainer.weights().unwrap()].map(|weights| saved(base, weights));
    for (tensor, &norm) in &expected.gradients {
        let pairs = before[tensor].iter().zip(&after[tensor]);
        let gradient: Vec<f64> = pairs.map(|(a, b)| f64::from(a - b) / f64::from(RATE)).collect();
        let found = gradient.iter().map(|x| x * x).sum::<f64>().sqrt();
        // A key's bias and one in front of a batch norm have no gradient in exact arithmetic, and up to
        // some 1e-7 in f32.
        let own = 10.0 * expected.own.get(tensor).unwrap_or(&0.0);
        let most = own.max(1e-5 * norm + 2e-7);
        assert!((found - norm).abs() <= most, "{name}: gradient of {tensor}: {found}, {norm}");
        let Some(dot) = expected.dots.get(tensor) else { continue };
        let found = gradient.iter().enumerate().map(|(at, x)| x * direction(at)).sum::<f64>();
        assert!((found - dot).abs() <= 3.0 * most, "{name}: gradient of {tensor}: {found}, {dot}");
    }
}

/// The loss of transformers: labels of -100 do not count.
fn loss() -> CrossEntropy {
    CrossEntropy::new().ignore_index(-100)
}

/// Opens a saved model in the library that it is of, if `UNISONO_PYTHON` is a Python that has it.
fn opens_there(name: &str, saved: &Path) {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let script = tests.join("make_foreign_cases.py");
    let is_foreign = std::fs::read_to_string(&script).unwrap().contains(&format!("\"{name}\": ("));
    let Some(python) = std::env::var_os("UNISONO_PYTHON").filter(|_| is_foreign) else { return };
    let run = |arguments: &[&std::ffi::OsStr]| std::process::Command::new(&python).args(arguments).output();
    if !run(&["-c".as_ref(), "import torchvision, timm, transformers".as_ref()]).unwrap().status.success() {
        // These packages take 5 GB, so `--complete` does not install them.
        let line =
            format!("left out: {name} opened there: this Python lacks torchvision, timm or transformers\n");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
        return;
    }
    let cases = tests.join("cases");
    let arguments =
        [script.as_os_str(), "--check".as_ref(), cases.as_os_str(), name.as_ref(), saved.as_os_str()];
    let output = run(&arguments).unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
}

fn ten_steps<M: Architecture>(name: &str, base: &Pretrained<M>, expected: &Expected) -> Tensors {
    let optimizer = AdamW::new(expected.rate.unwrap_or(1e-3)).weight_decay(0.01);
    let builder = Trainer::builder(base.model())
        .optimizer(optimizer)
        .loss(loss())
        .global_batch(4)
        .shards(4)
        .replicas(1);
    let mut trainer = builder.build(&expected.loader().fields().unwrap()).unwrap();
    base.load(&mut trainer).unwrap();
    for (step, &loss) in expected.losses.iter().enumerate() {
        let found = trainer.step(&expected.batch()).unwrap().now.loss;
        let own = 10.0 * expected.own_losses.get(step).unwrap_or(&0.0);
        assert!((found - loss).abs() <= own.max(1e-5 * loss), "{name}: loss of step {step}: {found}, {loss}");
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
    is_pytorchs::<Llama>("llama_linear");
    is_pytorchs::<Llama>("llama3");
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

#[test]
fn t5_is_pytorchs() {
    is_pytorchs::<T5>("t5");
    is_pytorchs::<T5>("t5_gated");
}

#[test]
fn whisper_is_pytorchs() {
    is_pytorchs::<Whisper>("whisper");
}

#[test]
fn mobilenet_is_pytorchs() {
    is_pytorchs::<MobileNetV2>("mobilenet_torchvision");
    is_pytorchs::<MobileNetV2>("mobilenet_transformers");
}

#[test]
fn resnet_of_torchvision_is_pytorchs() {
    is_pytorchs::<ResNet>("resnet_torchvision");
    is_pytorchs::<ResNet>("resnet50_torchvision");
}

#[test]
fn vit_of_torchvision_and_of_timm_is_pytorchs() {
    is_pytorchs::<Vit>("vit_torchvision");
    is_pytorchs::<Vit>("vit_timm");
}

#[test]
fn unet_is_pytorchs() {
    is_pytorchs::<UNet>("unet");
    is_pytorchs::<UNet>("unet_bilinear");
}

#[test]
fn a_file_alone_tells_its_sizes_or_what_is_missing() {
    let file = case("resnet_torchvision").join("resnet18.pth");
    let [file, dir] =
        [file, case("resnet_torchvision")].map(|path| Pretrained::<ResNet>::open(path).unwrap());
    assert_eq!(file.weights(), dir.weights());
    let error = |path: PathBuf| Pretrained::<Vit>::open(path).unwrap_err().to_string();
    let other = error(case("resnet_torchvision"));
    assert!(
        other.contains("no config.json, and the tensors have none of the names of vit: bn1.bias"),
        "{other}"
    );
    let alone = error(case("vit_torchvision").join("model.safetensors"));
    assert!(alone.contains("a width of 16 does not tell the number of heads"), "{alone}");
    let dir = with_tensors("vit_torchvision", |tensors| drop(tensors.remove("heads.head.weight")));
    assert!(error(dir.path().into()).ends_with("the tensor heads.head.weight is missing"));
    let dir = with_tensors("vit_torchvision", |tensors| {
        tensors.remove("encoder.layers.encoder_layer_1.self_attention.in_proj_bias");
    });
    let table = error(dir.path().into());
    assert!(table.contains("vit.encoder.layer.*.attention.attention.key.bias"), "{table}");
    let dir = with_tensors("vit_torchvision", |tensors| {
        let name = "encoder.layers.encoder_layer_1.self_attention.in_proj_bias";
        tensors.insert(name.into(), Tensor::f32(&[2], &[0.0; 2]).unwrap());
    });
    let split = error(dir.path().into());
    assert!(split.contains("in_proj_bias: axis 0 of [2] does not divide into"), "{split}");
}

/// Makes a directory with a case's tensors, changed.
fn with_tensors(name: &str, change: impl FnOnce(&mut Tensors)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = case(name).join("config.json");
    if config.exists() {
        std::fs::copy(config, dir.path().join("config.json")).unwrap();
    }
    let mut tensors = in_file(&case(name));
    change(&mut tensors);
    write_model(dir.path().join("model.safetensors"), &tensors).unwrap();
    dir
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
