//! Generation: the tokens are transformers' (`make_cases.py`), the same for any batch, number of replicas and
//! with or without kept keys and values.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use unisono::Predictor;
use unisono_models::{Decoder, Generate, Generator, Gpt2, Llama, Pretrained};

#[derive(Deserialize)]
struct Expected {
    prompts: Vec<Vec<i32>>,
    greedy: Vec<Vec<i32>>,
}

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name)
}

fn expected(name: &str) -> Expected {
    serde_json::from_slice(&std::fs::read(case(name).join("generated.json")).unwrap()).unwrap()
}

fn generator<M: Decoder>(name: &str, replicas: usize, settings: Generate) -> Generator<M> {
    let base = Pretrained::<M>::open(case(name)).unwrap();
    let builder = Predictor::builder().replicas(replicas).shards(4);
    base.generator_with(builder, base.weights(), settings).unwrap()
}

fn is_transformers<M: Decoder>(name: &str) {
    let Expected { prompts, greedy } = expected(name);
    let settings = Generate::new().most(24);
    for replicas in 1..=3 {
        let mut generator = generator::<M>(name, replicas, settings.clone());
        assert_eq!(generator.tokens(&prompts).unwrap(), greedy, "{name}: {replicas} replicas");
        assert!(generator.programs() <= 4, "{name}: {} programs", generator.programs());
    }
    let mut plain = generator::<M>(name, 1, settings.clone().cached(false));
    assert_eq!(plain.tokens(&prompts).unwrap(), greedy, "{name}: without the cache");
    // Two batches, of which one is not full.
    let mut small = generator::<M>(name, 2, settings.batch(7));
    assert_eq!(small.tokens(&prompts).unwrap(), greedy, "{name}: in two batches");
}

#[test]
fn greedy_search_of_gpt2_is_transformers() {
    is_transformers::<Gpt2>("gpt2_long");
}

#[test]
fn greedy_search_of_llama_is_transformers() {
    is_transformers::<Llama>("llama_long");
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

#[test]
fn a_stream_gives_what_tokens_gives_and_ends_texts() {
    let Expected { prompts, greedy } = expected("gpt2_long");
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
}
