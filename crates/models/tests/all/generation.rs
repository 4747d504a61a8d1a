//! Generation: the tokens are transformers' (`make_cases.py`), the same for any batch, number of replicas and
//! with or without kept keys and values.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use unisono::Predictor;
use unisono::checkpoint::{Tensor, Tensors, write_model};
use unisono_models::{Decoder, EncoderDecoder, Generate, Generator, Gpt2, Llama, Pretrained, T5, Whisper};

#[derive(Deserialize)]
struct Expected {
    prompts: Vec<Vec<i32>>,
    greedy: Vec<Vec<i32>>,
    beams: Vec<Search>,
}

/// A beam search of transformers.
#[derive(Deserialize)]
struct Search {
    beams: usize,
    stop: Vec<i32>,
    tokens: Vec<Vec<i32>>,
}

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name)
}

fn expected(name: &str) -> Expected {
    serde_json::from_slice(&std::fs::read(case(name).join("generated.json")).unwrap()).unwrap()
}

/// A driver for GPUs that computes on the CPU.
const LAVAPIPE: &str = "vulkan:llvmpipe";

/// Returns whether this machine has it, or prints that its part is left out.
fn has_lavapipe() -> bool {
    let found = unisono::gpu::select(&[LAVAPIPE]).is_ok();
    if !found {
        eprintln!("left out: {LAVAPIPE} is not here");
    }
    found
}

fn generator<M: Decoder>(name: &str, replicas: usize, settings: Generate) -> Generator<M> {
    let base = Pretrained::<M>::open(case(name)).unwrap();
    let builder = Predictor::builder().replicas(replicas).shards(4);
    base.generator_with(builder, base.weights(), settings).unwrap()
}

fn is_transformers<M: Decoder>(name: &str) {
    let Expected { prompts, greedy, .. } = expected(name);
    let settings = Generate::new().most(24);
    for replicas in 1..=3 {
        let mut generator = generator::<M>(name, replicas, settings.clone());
        assert_eq!(generator.tokens(&prompts).unwrap(), greedy, "{name}: {replicas} replicas");
        assert!(generator.programs() <= 4, "{name}: {} programs", generator.programs());
    }
    let mut plain = generator::<M>(name, 1, settings.clone().cached(false));
    assert_eq!(plain.tokens(&prompts).unwrap(), greedy, "{name}: without the cache");
    // Two batches, of which one is not full.
    let mut small = generator::<M>(name, 2, settings.clone().batch(7));
    assert_eq!(small.tokens(&prompts).unwrap(), greedy, "{name}: in two batches");
    if has_lavapipe() {
        let base = Pretrained::<M>::open(case(name)).unwrap();
        let builder = Predictor::builder().adapter(LAVAPIPE).replicas(2).shards(4);
        let mut other = base.generator_with(builder, base.weights(), settings).unwrap();
        assert_eq!(other.tokens(&prompts).unwrap(), greedy, "{name}: on lavapipe");
    }
}

#[test]
fn greedy_search_of_gpt2_is_transformers() {
    is_transformers::<Gpt2>("gpt2_long");
}

#[test]
fn greedy_search_of_llama_is_transformers() {
    is_transformers::<Llama>("llama_long");
}

/// Returns the bytes that all replicas have uploaded and downloaded so far, and those of their resident
/// memory.
fn crossed(predictor: &Predictor) -> [u64; 3] {
    let replicas = predictor.report().replicas;
    let sum = |of: fn(&unisono::ReplicaReport) -> u64| replicas.iter().map(of).sum();
    [sum(|report| report.uploaded), sum(|report| report.downloaded), sum(|report| report.resident)]
}

/// For a token, its id and its position go up and the logits come down. Keys and values stay on the devices.
fn only_ids_and_logits_cross_the_host<M: Decoder>(name: &str) {
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(case(name).join("config.json")).unwrap()).unwrap();
    let vocabulary = config["vocab_size"].as_u64().unwrap();
    let prompts = expected(name).prompts;
    let rows = prompts.len() as u64;
    let sizes = Pretrained::<M>::open(case(name)).unwrap().architecture().sizes();
    for replicas in [1, 3] {
        let mut generator = generator::<M>(name, replicas, Generate::new().most(24).stop([]));
        let mut stream = generator.stream(&prompts).unwrap();
        stream.next().unwrap().unwrap();
        for _ in 0..3 {
            let before = crossed(stream.predictor());
            stream.next().unwrap().unwrap();
            let after = crossed(stream.predictor());
            assert_eq!(after[0] - before[0], 8 * rows, "{name}, {replicas} replicas: uploaded");
            assert_eq!(
                after[1] - before[1],
                4 * vocabulary * rows,
                "{name}, {replicas} replicas: downloaded"
            );
            // The longest prompt has 40 tokens, so that there is room for 64.
            let row = 4 * 2 * sizes.layers * sizes.heads * 64 * sizes.width;
            assert_eq!(after[2], rows * row as u64, "{name}, {replicas} replicas: resident");
        }
        drop(stream);
        assert_eq!(crossed(generator.predictor())[2], 0, "{name}: memory is given back");
    }
}

#[test]
fn keys_and_values_do_not_cross_the_host() {
    only_ids_and_logits_cross_the_host::<Gpt2>("gpt2_long");
    only_ids_and_logits_cross_the_host::<Llama>("llama_long");
}

/// What transformers' greedy search writes for texts or for sounds.
#[derive(Deserialize)]
struct Written {
    texts: Vec<Vec<i32>>,
    spectra: Vec<Vec<f32>>,
    begin: Vec<i32>,
    written: Vec<Vec<i32>>,
}

fn writes_as_transformers<M: EncoderDecoder>(name: &str) {
    let expected = std::fs::read(case(name).join("written.json")).unwrap();
    let Written { texts, spectra, begin, written } = serde_json::from_slice(&expected).unwrap();
    let base = Pretrained::<M>::open(case(name)).unwrap();
    let settings = Generate::new().most(24);
    let own = [(1, 32, None), (2, 3, None), (3, 32, None)];
    let other = has_lavapipe().then_some((1, 32, Some(LAVAPIPE)));
    for (replicas, batch, adapter) in own.into_iter().chain(other) {
        let mut builder = Predictor::builder().replicas(replicas).shards(4);
        builder = adapter.into_iter().fold(builder, unisono::PredictorBuilder::adapter);
        let writer = base.writer_with(builder, settings.clone().batch(batch)).unwrap();
        let mut writer = writer.begin_with(begin.clone());
        let found = if spectra.is_empty() { writer.tokens(&texts) } else { writer.transcribe(&spectra) };
        assert_eq!(found.unwrap(), written, "{name}: {replicas} replicas, {batch} at once");
        assert!(writer.programs() <= 4, "{name}: {} programs", writer.programs());
        let other = if spectra.is_empty() { writer.transcribe(&[vec![]]) } else { writer.tokens(&[vec![1]]) };
        assert!(other.unwrap_err().to_string().contains("the encoder reads"), "{name}");
    }
    let wrong = |settings: Generate| base.writer(settings).map(|_| ()).unwrap_err().to_string();
    assert!(wrong(settings.clone().beams(2)).starts_with("beams: "));
    assert!(wrong(settings.clone().cached(false)).starts_with("cached: "));
    // Draws depend on the source alone.
    let drawn = settings.most(8).temperature(2.0).seed(3).stop([]);
    let write = |some: usize| {
        let mut writer = base.writer(drawn.clone()).unwrap();
        if spectra.is_empty() { writer.tokens(&texts[..some]) } else { writer.transcribe(&spectra[..some]) }
            .unwrap()
    };
    assert_eq!(write(2), write(4)[..2]);
}

#[test]
fn what_t5_and_whisper_write_is_transformers() {
    writes_as_transformers::<T5>("t5_long");
    writes_as_transformers::<Whisper>("whisper_long");
}

#[test]
fn sources_that_cannot_be_read_are_named() {
    let t5 = Pretrained::<T5>::open(case("t5_long")).unwrap();
    let problem = |result: Result<Vec<Vec<i32>>, unisono_models::Error>| result.unwrap_err().to_string();
    let endless = t5.writer(Generate::new().most(usize::MAX)).map(|_| ()).unwrap_err().to_string();
    assert!(endless.starts_with("most: "), "{endless}");
    let mut writer = t5.writer(Generate::new()).unwrap();
    assert_eq!(problem(writer.tokens(&[vec![1], vec![]])), "prompt 1: it is empty");
    let unknown = problem(writer.tokens(&[vec![1, 99]]));
    assert!(unknown.contains("id 99 at x[1] is not in 0..48"), "{unknown}");
    let whisper = Pretrained::<Whisper>::open(case("whisper_long")).unwrap();
    let mut writer = whisper.writer(Generate::new().most(65)).unwrap();
    let short = problem(writer.transcribe(&[vec![0.0; 95]]));
    assert_eq!(short, "prompt 0: 95 numbers, and a spectrum has [8, 12]");
    let long = problem(writer.transcribe(&[vec![0.0; 96]]));
    assert!(long.contains("65 tokens behind 1 are too many for a model of 64"), "{long}");
}

fn searches_as_transformers<M: Decoder>(name: &str) {
    let Expected { prompts, beams, .. } = expected(name);
    for Search { beams, stop, tokens } in beams {
        let settings = Generate::new().most(24).beams(beams).stop(stop);
        // Each prompt of the last batches is searched alone, and without a cache the whole text is read
        // again.
        let cases = [
            (settings.clone(), 1, 10),
            (settings.clone().batch(beams), 2, 3),
            (settings.clone().cached(false).batch(16), 3, 2),
        ];
        for (settings, replicas, some) in cases {
            let mut generator = generator::<M>(name, replicas, settings.clone());
            let found = generator.tokens(&prompts[..some]).unwrap();
            assert_eq!(found, tokens[..some], "{name}, {replicas} replicas: {settings:?}");
            let refused = generator.stream(&prompts[..1]).map(|_| ()).unwrap_err().to_string();
            assert!(refused.starts_with("beams: "), "{refused}");
        }
    }
}

#[test]
fn beam_search_is_transformers() {
    searches_as_transformers::<Gpt2>("gpt2_long");
    searches_as_transformers::<Llama>("llama_long");
}

/// Draws depend on the last bit of each logit: equal ones show equal logits.
#[test]
fn draws_depend_on_the_prompt_alone() {
    let prompts = expected("llama_long").prompts;
    let settings = Generate::new().most(16).temperature(1.5).top_k(40).top_p(0.95).seed(7).stop([]);
    let all = generator::<Llama>("llama_long", 1, settings.clone()).tokens(&prompts).unwrap();
    assert!(all.iter().all(|tokens| tokens.len() == 16));
    let cases = [(settings.clone().cached(false), 1), (settings.clone().batch(3), 1), (settings.clone(), 3)];
    for (settings, replicas) in cases {
        let mut other = generator::<Llama>("llama_long", replicas, settings.clone());
        assert_eq!(other.tokens(&prompts).unwrap(), all, "{replicas} replicas, {settings:?}");
    }
    let mut reversed = prompts.clone();
    reversed.reverse();
    let mut generator = generator::<Llama>("llama_long", 2, settings);
    let found = generator.tokens(&reversed).unwrap();
    assert!(found.iter().rev().eq(&all), "{found:?}");
    // The same prompt twice draws twice; another seed draws otherwise.
    let twice = generator.tokens(&[prompts[0].clone(), prompts[0].clone()]).unwrap();
    assert_eq!(twice[0], all[0]);
    assert_ne!(twice[1], all[0]);
}

/// Writes a GPT-2 whose products are large enough for the kernels of real sizes.
fn wide_gpt2(dir: &Path) {
    let config = serde_json::json!({
        "model_type": "gpt2", "vocab_size": 300, "n_positions": 64, "n_embd": 128, "n_layer": 1, "n_head": 2,
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let shapes: [(&str, &[usize]); 16] = [
        ("wte.weight", &[300, 128]),
        ("wpe.weight", &[64, 128]),
        ("h.0.ln_1.weight", &[128]),
        ("h.0.ln_1.bias", &[128]),
        ("h.0.attn.c_attn.weight", &[128, 384]),
        ("h.0.attn.c_attn.bias", &[384]),
        ("h.0.attn.c_proj.weight", &[128, 128]),
        ("h.0.attn.c_proj.bias", &[128]),
        ("h.0.ln_2.weight", &[128]),
        ("h.0.ln_2.bias", &[128]),
        ("h.0.mlp.c_fc.weight", &[128, 512]),
        ("h.0.mlp.c_fc.bias", &[512]),
        ("h.0.mlp.c_proj.weight", &[512, 128]),
        ("h.0.mlp.c_proj.bias", &[128]),
        ("ln_f.weight", &[128]),
        ("ln_f.bias", &[128]),
    ];
    let mut at = 0_u32;
    let mut number = || {
        at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (at >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let tensors: Tensors = shapes
        .into_iter()
        .map(|(name, shape)| {
            let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|_| 0.3 * number()).collect();
            (name.to_owned(), Tensor::f32(shape, &values).unwrap())
        })
        .collect();
    write_model(dir.join("model.safetensors"), &tensors).unwrap();
}

/// One row, a few and many are multiplied by other kernels, with the same bits.
#[test]
fn few_rows_have_the_bits_of_many() {
    let dir = tempfile::tempdir().unwrap();
    wide_gpt2(dir.path());
    let base = Pretrained::<Gpt2>::open(dir.path()).unwrap();
    let prompts: Vec<Vec<i32>> =
        (1..=18).map(|length| (0..length).map(|i| (37 * i + length) % 300).collect()).collect();
    let settings = Generate::new().most(12).temperature(2.0).seed(5).stop([]);
    let write = |settings: Generate, replicas: usize| {
        let builder = Predictor::builder().replicas(replicas).shards(4);
        base.generator_with(builder, base.weights(), settings).unwrap().tokens(&prompts).unwrap()
    };
    // Whole texts are read again and again: hundreds of rows.
    let expected = write(settings.clone().cached(false), 1);
    for (batch, replicas) in [(1, 1), (3, 1), (16, 1), (18, 1), (9, 2)] {
        let found = write(settings.clone().batch(batch), replicas);
        assert_eq!(found, expected, "{batch} prompts at once, {replicas} replicas");
    }
}

#[test]
fn a_stream_gives_what_tokens_gives_and_ends_texts() {
    let Expected { prompts, greedy, .. } = expected("gpt2_long");
    let stop = greedy[1][8];
    let mut generator = generator::<Gpt2>("gpt2_long", 1, Generate::new().most(24).stop([stop, 0]));
    let mut streamed = vec![Vec::new(); prompts.len()];
    for step in generator.stream(&prompts).unwrap() {
        step.unwrap().into_iter().zip(&mut streamed).for_each(|(token, text)| text.extend(token));
    }
    let ends = |tokens: &Vec<i32>| {
        let last =
            tokens.iter().position(|&token| [stop, 0].contains(&token)).map_or(tokens.len(), |at| at + 1);
        tokens[..last].to_vec()
    };
    assert_eq!(streamed, greedy.iter().map(ends).collect::<Vec<_>>());
    assert_eq!(generator.tokens(&prompts).unwrap(), streamed);
}

/// What transformers makes of a text, its prompts and its perplexity (`make_cases.py`).
#[cfg(feature = "tokenizers")]
#[derive(Deserialize)]
struct Texts {
    ids: Vec<i32>,
    tokens: usize,
    perplexities: Vec<(usize, usize, f64)>,
    prompts: Vec<String>,
    written: Vec<String>,
}

#[cfg(feature = "tokenizers")]
#[test]
fn texts_and_perplexities_are_transformers() {
    let dir = case("gpt2_text");
    let expected: Texts = serde_json::from_slice(&std::fs::read(dir.join("texts.json")).unwrap()).unwrap();
    let text = std::fs::read_to_string(dir.join("text.txt")).unwrap();
    let ids = Pretrained::<Gpt2>::open(&dir).unwrap().tokenizer().unwrap().encode(&text).unwrap();
    assert_eq!((ids.len(), &ids[..64]), (expected.tokens, &*expected.ids));
    let settings = Generate::new().most(16).batch(5).stop([]);
    let mut first: Option<Vec<f64>> = None;
    for replicas in 1..=3 {
        let mut generator = generator::<Gpt2>("gpt2_text", replicas, settings.clone());
        assert_eq!(generator.text(&expected.prompts).unwrap(), expected.written, "{replicas} replicas");
        let found = expected.perplexities.iter().map(|&(window, stride, expected)| {
            let found = generator.perplexity(&text, window, stride).unwrap();
            assert!((found / expected - 1.0).abs() < 1e-6, "{window}, {stride}: {found}, {expected}");
            found
        });
        let found: Vec<f64> = found.collect();
        assert_eq!(first.get_or_insert_with(|| found.clone()), &found, "{replicas} replicas");
    }
    // The pieces of a stream make the text, and none of them is a part of a character.
    let mut generator = generator::<Gpt2>("gpt2_text", 1, settings.batch(32));
    let mut streamed = vec![String::new(); 3];
    let mut steps = 0;
    for pieces in generator.stream_text(&expected.prompts).unwrap() {
        pieces.unwrap().iter().zip(&mut streamed).for_each(|(piece, text)| text.push_str(piece));
        steps += 1;
    }
    assert_eq!(streamed, expected.written);
    assert!((16..=17).contains(&steps), "{steps} steps");
    let problem = |result: Result<f64, unisono_models::Error>| result.unwrap_err().to_string();
    assert!(problem(generator.perplexity(&text, 257, 1)).contains("it must have 2 to 256"));
    assert!(problem(generator.perplexity(&text, 64, 65)).contains("a stride of 65 tokens for windows of 64"));
    assert!(problem(generator.perplexity("a", 64, 64)).contains("a text of 1 tokens"));
    let error = Pretrained::<Gpt2>::open(case("gpt2_long")).unwrap().tokenizer().map(|_| ()).unwrap_err();
    assert!(error.to_string().ends_with("in transformers"), "{error}");
}

#[test]
fn bad_prompts_and_settings_are_named() {
    let base = Pretrained::<Gpt2>::open(case("gpt2_long")).unwrap();
    let mut generator = base.generator(Generate::new().most(100)).unwrap();
    let problem = |result: Result<Vec<Vec<i32>>, unisono_models::Error>| result.unwrap_err().to_string();
    assert_eq!(problem(generator.tokens(&[vec![1], vec![]])), "prompt 1: it is empty");
    let long = problem(generator.tokens(&[vec![1; 40]]));
    assert!(long.contains("40 tokens and 100 more are too many for a model of 128"), "{long}");
    let unknown = problem(generator.tokens(&[vec![1, 99]]));
    assert!(unknown.contains("id 99 at x[1] is not in 0..48"), "{unknown}");
    let wrong = |settings: Generate| base.generator(settings).map(|_| ()).unwrap_err().to_string();
    assert!(wrong(Generate::new().most(0)).starts_with("most: "));
    assert!(wrong(Generate::new().top_p(0.0)).starts_with("top_p: it is 0"));
    assert!(wrong(Generate::new().temperature(-1.0)).starts_with("temperature: it is -1"));
    assert!(wrong(Generate::new().top_k(0)).starts_with("top_k: "));
    assert!(wrong(Generate::new().beams(0)).starts_with("beams: it is 0"));
    assert!(wrong(Generate::new().beams(33)).starts_with("beams: 33 beams in batches of 32"));
    assert!(wrong(Generate::new().beams(2).top_p(0.5)).starts_with("beams: several beams cannot"));
}
