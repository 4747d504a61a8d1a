//! Low-rank adaptation: peft's files (`make_cases.py`), training, merging.

use std::path::{Path, PathBuf};

use unisono::checkpoint::{Tensor, TensorDType, TensorFile, Tensors};
use unisono::data::{Loader, Memory, Values};
use unisono::{AdamW, Optimizer, Perplexity, Predictor, Trainer};
use unisono_models::{Adapted, Architecture, Generate, Gpt2, Llama, Lora, Pretrained};

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name)
}

fn json<T: serde::de::DeserializeOwned>(path: PathBuf) -> T {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The input of the base's case, with itself as what is learned.
fn loader(base: &str) -> Loader {
    let expected: serde_json::Value = json(case(base).join("expected.json"));
    let ids = |key: &str| -> Vec<i32> {
        expected[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as i32).collect()
    };
    let memory = Memory::new("x", [7], Values::I32(ids("x"))).unwrap();
    Loader::new(memory.with("y", [7], Values::I32(ids("y"))).unwrap()).batch(4)
}

fn logits<M: Architecture>(base: &Pretrained<M>, loader: &Loader, weights: &Tensors) -> Vec<f32> {
    let fields = loader.fields().unwrap();
    let builder = Predictor::builder().replicas(1).batch(4);
    let mut predictor = builder.open_tensors(base.model(), &fields[..1], weights).unwrap();
    predictor.predict(loader).unwrap().get("output").unwrap().values.clone()
}

fn norm(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn off(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    norm(found.iter().zip(expected).map(|(&a, b)| f64::from(a) - b)) / norm(expected.iter().copied())
}

fn trainer<M: Architecture>(adapted: &Adapted<M>, loader: &Loader, replicas: usize) -> Trainer {
    let optimizer = AdamW::new(0.02).weight_decay(0.1).freeze(Lora::freezes);
    let builder = Trainer::builder(adapted.model()).optimizer(optimizer);
    let builder = builder.global_batch(4).shards(4).replicas(replicas).seed(3);
    let mut trainer = builder.build(&loader.fields().unwrap()).unwrap();
    adapted.load(&mut trainer).unwrap();
    trainer
}

/// Reads peft's matrices, trains them on, writes them as peft does, and merges them.
fn is_pefts<M: Architecture>(base_name: &str, name: &str) {
    let loader = loader(base_name);
    let base = Pretrained::<M>::open(case(base_name)).unwrap();
    let adapted = base.clone().with_adapter(case(name)).unwrap();
    let expected: Vec<f64> = json(case(name).join("logits.json"));
    let merged = adapted.merged(adapted.matrices()).unwrap();
    let merged_off = off(&logits(&base, &loader, &merged), &expected);
    assert!(merged_off < 1e-5, "{name}: merged, off by {merged_off}");

    let dir = tempfile::tempdir().unwrap();
    adapted.save_adapter(dir.path(), adapted.matrices()).unwrap();
    let [theirs, ours] = [case(name), dir.path().to_owned()]
        .map(|dir| TensorFile::open(dir.join("adapter_model.safetensors")).unwrap());
    assert_eq!(theirs.tensors(), ours.tensors(), "{name}: written as peft does");

    let mut states = Vec::new();
    for replicas in 1..=3 {
        let mut trainer = trainer(&adapted, &loader, replicas);
        if replicas == 1 {
            let unmerged = off(&trainer.predict(&loader).unwrap(), &expected);
            assert!(unmerged < 1e-5, "{name}: unmerged, off by {unmerged}");
        }
        let batch = loader.clone().epoch(0).unwrap().next().unwrap().unwrap();
        let losses: Vec<f64> = (0..20).map(|_| trainer.step(&batch).unwrap().now.loss).collect();
        assert!(losses[19] < 0.95 * losses[0], "{name}: {losses:?}");
        states.push((losses, trainer.weights().unwrap()));
        if replicas == 1 {
            let weights = &states[0].1;
            for (name, tensor) in base.weights() {
                assert_eq!(weights[name].bytes(), tensor.bytes(), "{name} of the base has changed");
            }
            let unmerged: Vec<f64> =
                trainer.predict(&loader).unwrap().iter().map(|&x| f64::from(x)).collect();
            let merged = adapted.merged(weights).unwrap();
            let merged_off = off(&logits(&base, &loader, &merged), &unmerged);
            assert!(merged_off < 1e-5, "{name}: trained and merged, off by {merged_off}");
            let model = base.with_weights(merged.clone()).unwrap();
            model.save_pretrained(dir.path().join("merged")).unwrap();
            adapted.save_adapter(dir.path().join("adapter"), weights).unwrap();
            let again = base.clone().with_adapter(dir.path().join("adapter")).unwrap();
            assert_eq!(again.merged(again.matrices()).unwrap(), merged);
        }
    }
    assert!(states.iter().all(|state| *state == states[0]), "{name}: replicas differ");
}

#[test]
fn gpt2s_adapter_is_pefts() {
    is_pefts::<Gpt2>("gpt2", "gpt2_lora");
}

#[test]
fn llamas_adapter_is_pefts() {
    is_pefts::<Llama>("llama", "llama_lora");
}

/// The trainer that a model returns trains the matrices alone, and gives the model that it trained.
#[cfg(feature = "tokenizers")]
#[test]
fn a_tuner_returns_the_model_that_it_trained() {
    let base = Pretrained::<Gpt2>::open(case("gpt2_text")).unwrap();
    let text = base.tokenizer().unwrap().windows(case("gpt2_text").join("text.txt"), 64).unwrap();
    let (train, held) = Loader::new(text).shuffle(1).validation_split(0.1).unwrap();
    let fields = train.fields().unwrap();
    let adapted = base.clone().with(Lora::rank(4).scale(16.0).on("*.c_attn").on("*.c_fc"));
    let builder = adapted.trainer().optimizer(AdamW::new(2e-2).weight_decay(0.1)).metric(Perplexity);
    let mut tuner = builder.settings(|builder| builder.replicas(2)).build(&fields).unwrap();
    tuner.fit(&train, Some(&held), 3).unwrap();
    let epochs: Vec<f64> = tuner.history().iter().map(|epoch| epoch.train.loss).collect();
    assert!(epochs[2] < 0.95 * epochs[0], "{epochs:?}");
    let weights = tuner.weights().unwrap();
    for (name, tensor) in base.weights() {
        assert_eq!(weights[name].bytes(), tensor.bytes(), "{name} of the base has changed");
    }
    let merged = tuner.merged().unwrap();
    assert_eq!(merged.weights(), &tuner.adapted().unwrap().merged(&weights).unwrap());
    assert_ne!(merged.weights(), base.weights());
    let dir = tempfile::tempdir().unwrap();
    merged.save_pretrained(dir.path().join("mine")).unwrap();
    let mine = Pretrained::<Gpt2>::open(dir.path().join("mine")).unwrap();
    assert_eq!(mine.weights(), merged.weights());
    let settings = Generate::new().most(8).top_p(0.9).seed(1);
    let written = tuner.generator(settings.clone()).unwrap().text(["To be, or"]).unwrap();
    // The tokenizer went along.
    assert_eq!(mine.generator(settings.clone()).unwrap().text(["To be, or"]).unwrap(), written);

    let mut whole = mine.trainer().optimizer(AdamW::new(2e-3)).build(&fields).unwrap();
    whole.fit(&train, None, 1).unwrap();
    assert!(whole.adapted().is_none());
    assert_eq!(whole.merged().unwrap().weights(), &whole.weights().unwrap());
    assert_ne!(whole.merged().unwrap().weights(), merged.weights());
    let wrong = base.clone().with(Lora::rank(4).on("*.q_proj"));
    let problem = wrong.clone().trainer().build(&fields).err().unwrap().to_string();
    assert!(problem.starts_with("lora: *.q_proj matches no linear layer"), "{problem}");
    let problem = Trainer::builder(wrong.model()).build(&fields).err().unwrap().to_string();
    assert!(problem.contains("*.q_proj matches no linear layer"), "{problem}");
}

#[test]
fn new_matrices_change_nothing_and_wrong_ones_are_named() {
    let (base, loader) = (Pretrained::<Gpt2>::open(case("gpt2")).unwrap(), loader("gpt2"));
    let adapted = base.clone().with(Lora::rank(2).scale(16.0).on("*.c_attn"));
    assert!(adapted.layers().eq(["transformer.h.0.attn.c_attn", "transformer.h.1.attn.c_attn"]));
    let mut trainer = trainer(&adapted, &loader, 1);
    assert_eq!(trainer.predict(&loader).unwrap(), logits(&base, &loader, base.weights()));
    let problem = |lora: Lora| base.clone().with(lora).check().unwrap_err().to_string();
    assert!(problem(Lora::rank(2).on("*.q_proj")).starts_with("lora: *.q_proj matches no linear layer"));
    // Tables of embeddings are no linear layers (peft has other matrices for them).
    assert!(problem(Lora::rank(2).on("*.wte")).starts_with("lora: *.wte matches no linear layer"));
    let all = base.clone().with(Lora::rank(2).on("*"));
    assert!(all.layers().all(|layer| !layer.ends_with("wte") && !layer.ends_with("wpe")));
    assert_eq!(all.layers().count(), 8, "four in each of two blocks");
    assert!(problem(Lora::rank(0).on("*.c_attn")).contains("rank 0"));
    assert!(problem(Lora::rank(2)).contains("no layer is named"));
    let missing = adapted.merged(base.weights()).unwrap_err().to_string();
    assert!(missing.contains("c_attn.lora_A.weight is missing"), "{missing}");
    let other = Pretrained::<Llama>::open(case("llama")).unwrap();
    let error = other.with_adapter(case("gpt2_lora")).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("matches no linear layer"), "{error}");
}

/// A head's weight is declared outside of any layer, and its matrices still have its name. The base is bf16,
/// like many published files.
#[test]
fn a_head_and_a_base_of_halves_are_adapted() {
    let (loader, dir) = (loader("llama"), tempfile::tempdir().unwrap());
    let whole = Pretrained::<Llama>::open(case("llama")).unwrap();
    // bf16 is the upper half of an f32.
    let halved = |tensor: &Tensor| {
        let bytes = tensor.bytes().chunks_exact(4).flat_map(|word| [word[2], word[3]]).collect();
        Tensor::new(TensorDType::Bf16, tensor.shape().to_vec(), bytes).unwrap()
    };
    let halves = whole.weights().iter().map(|(name, tensor)| (name.clone(), halved(tensor))).collect();
    let base = whole.with_weights(halves).unwrap();
    base.save_pretrained(dir.path().join("base")).unwrap();
    let config = |name: &str| json::<serde_json::Value>(dir.path().join(name).join("config.json"));
    assert_eq!(config("base")["dtype"], "bfloat16");
    let base = Pretrained::<Llama>::open(dir.path().join("base")).unwrap();

    let adapted = base.clone().with(Lora::rank(2).scale(16.0).on("lm_head").on("*.q_proj"));
    let mut trainer = trainer(&adapted, &loader, 1);
    let batch = loader.clone().epoch(0).unwrap().next().unwrap().unwrap();
    (0..5).for_each(|_| drop(trainer.step(&batch).unwrap()));
    let weights = trainer.weights().unwrap();
    assert!(weights["lm_head.lora_B.weight"].to_f32().unwrap().iter().all(|x| *x != 0.0));
    let unmerged: Vec<f64> = trainer.predict(&loader).unwrap().iter().map(|&x| f64::from(x)).collect();
    let merged = adapted.merged(&weights).unwrap();
    let merged_off = off(&logits(&base, &loader, &merged), &unmerged);
    assert!(merged_off < 1e-5, "off by {merged_off}");
    base.with_weights(merged.clone()).unwrap().save_pretrained(dir.path().join("merged")).unwrap();
    assert_eq!(config("merged")["dtype"], "float32");

    // Matrices may be of halves as well.
    let own = weights.iter().filter(|(name, _)| name.contains(".lora_"));
    let own: Tensors = own.map(|(name, tensor)| (name.clone(), halved(tensor))).collect();
    adapted.save_adapter(dir.path().join("adapter"), &own).unwrap();
    let again = base.clone().with_adapter(dir.path().join("adapter")).unwrap();
    assert!(again.layers().any(|layer| layer == "lm_head"));
    assert_eq!(again.merged(again.matrices()).unwrap(), adapted.merged(&own).unwrap());
}

#[test]
fn adapters_that_change_their_base_are_refused() {
    let (base, dir) = (Pretrained::<Gpt2>::open(case("gpt2")).unwrap(), tempfile::tempdir().unwrap());
    let weights = "adapter_model.safetensors";
    std::fs::copy(case("gpt2_lora").join(weights), dir.path().join(weights)).unwrap();
    let opened = |key: &str, value: serde_json::Value| {
        let mut config: serde_json::Value = json(case("gpt2_lora").join("adapter_config.json"));
        config[key] = value;
        std::fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
        base.clone().with_adapter(dir.path()).map(drop).map_err(|error| error.to_string())
    };
    assert!(opened("init_lora_weights", true.into()).is_ok());
    assert!(opened("init_lora_weights", "gaussian".into()).is_ok());
    for other in ["pissa", "pissa_niter_4", "olora", "loftq", "corda"] {
        let error = opened("init_lora_weights", other.into()).unwrap_err();
        assert!(error.contains(&format!("init_lora_weights is {other:?}")), "{error}");
    }
    assert!(opened("alora_invocation_tokens", serde_json::json!([1, 2])).is_err());
}
