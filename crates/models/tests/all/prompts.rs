//! Prompts, texts and sounds for which generation fails: the error names them by their place among all.

use std::path::{Path, PathBuf};

use unisono::checkpoint::{Tensor, Tensors};
use unisono::{Predictor, PredictorBuilder};
use unisono_models::{Error, Generate, Gpt2, Pretrained, T5, Whisper};

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name)
}

fn builder() -> PredictorBuilder {
    Predictor::builder().replicas(1).shards(4)
}

/// Changes a table or vector whose name ends so.
fn change(weights: &mut Tensors, end: &str, change: impl FnOnce(&[usize], &mut [f32])) {
    let name = weights.keys().find(|name| name.ends_with(end)).unwrap().clone();
    let (shape, mut values) = (weights[&name].shape().to_vec(), weights[&name].to_f32().unwrap());
    change(&shape, &mut values);
    weights.insert(name, Tensor::f32(&shape, &values).unwrap());
}

/// Settings for two prompts at once, also with two beams for each.
fn settings() -> [Generate; 4] {
    let pairs = Generate::new().batch(2).most(3).stop([]);
    [
        pairs.clone(),
        pairs.clone().cached(false).top_p(0.9),
        pairs.clone().batch(4).beams(2),
        pairs.batch(2).beams(2),
    ]
}

/// Returns the place and the problem of the prompt that an error names.
fn named<T: std::fmt::Debug>(result: Result<T, Error>) -> (usize, String) {
    match result.unwrap_err() {
        Error::Prompt { index, problem } => (index, problem),
        other => panic!("no prompt is named: {other}"),
    }
}

/// A token whose embedding has an infinite sum is in one prompt.
#[test]
fn a_prompt_whose_logits_are_not_finite_is_named() {
    let base = Pretrained::<Gpt2>::open(case("gpt2_long")).unwrap();
    let mut weights = base.weights().clone();
    change(&mut weights, "wte.weight", |shape, values| {
        values[7 * shape[1]..8 * shape[1]].fill(f32::MAX / shape[1] as f32 * 1.2);
    });
    for settings in settings() {
        let mut generator = base.generator_with(builder(), &weights, settings.most(1)).unwrap();
        let (index, problem) = named(generator.tokens(&[vec![1, 2], vec![3], vec![4], vec![7, 5]]));
        assert!(index == 3 && problem.contains("logits are not finite"), "{index}: {problem}");
    }
}

#[test]
fn a_token_that_the_model_does_not_know_is_in_the_named_prompt() {
    let base = Pretrained::<Gpt2>::open(case("gpt2_long")).unwrap();
    for settings in settings() {
        let mut generator = base.generator_with(builder(), base.weights(), settings).unwrap();
        let (index, problem) = named(generator.tokens(&[vec![1, 2], vec![3], vec![4], vec![5, 99]]));
        assert!(index == 3 && problem.starts_with("id 99 at x[1] is not in 0..48"), "{index}: {problem}");
    }
    let mut generator = base.generator_with(builder(), base.weights(), Generate::new().batch(2)).unwrap();
    let mut text = vec![1; 16];
    text[9] = 99;
    let error = generator.perplexity_of(&text, 4, 4).unwrap_err().to_string();
    assert!(
        error.starts_with("perplexity: in the window from token 8 on: id 99 at x[1] is not in"),
        "{error}"
    );
}

#[test]
fn a_text_or_sound_that_cannot_be_read_is_named() {
    let t5 = Pretrained::<T5>::open(case("t5_long")).unwrap();
    let mut writer = t5.writer_with(builder(), Generate::new().batch(2).most(3)).unwrap();
    let (index, problem) = named(writer.tokens(&[vec![1, 2], vec![3], vec![4], vec![5, 99]]));
    assert!(index == 3 && problem.starts_with("id 99 at x[1] is not in 0..48"), "{index}: {problem}");
    let whisper = Pretrained::<Whisper>::open(case("whisper_long")).unwrap();
    let mut writer = whisper.writer_with(builder(), Generate::new().batch(2).most(3)).unwrap();
    let mut spectra = vec![vec![0.0; 96]; 4];
    spectra[3][5] = f32::NAN;
    assert_eq!(named(writer.transcribe(&spectra)), (3, "field \"x\" holds NaN".into()));
}

/// The state behind the last norm is (1e10, 0, 0, ..), so that a token's logit is 1e10 times the first number
/// of its embedding.
#[test]
fn minus_infinity_is_the_only_infinite_logit_that_is_allowed() {
    let base = Pretrained::<Gpt2>::open(case("gpt2_long")).unwrap();
    let of = |first: &dyn Fn(usize) -> f32| {
        let mut weights = base.weights().clone();
        change(&mut weights, "ln_f.weight", |_, values| values.fill(0.0));
        change(&mut weights, "ln_f.bias", |_, values| {
            values.fill(0.0);
            values[0] = 1e10;
        });
        change(&mut weights, "wte.weight", |shape, values| {
            (0..shape[0]).for_each(|token| values[token * shape[1]] = first(token));
        });
        weights
    };
    let small = |token: usize| if token == 9 { 2e-10 } else { 1e-10 };
    for settings in settings() {
        let write = |weights: &Tensors| {
            let mut generator = base.generator_with(builder(), weights, settings.clone()).unwrap();
            generator.tokens(&[vec![1], vec![2, 3]])
        };
        let infinite = of(&|token| if token == 7 { 3e38 } else { small(token) });
        let (index, problem) = named(write(&infinite));
        assert!(index == 0 && problem.contains("logits are not finite"), "{index}: {problem}");
        let (index, problem) = named(write(&of(&|_| -3e38)));
        assert!(index == 0 && problem.contains("logits are not finite"), "{index}: {problem}");
        // All tokens but one are impossible.
        let tokens = write(&of(&|token| if token == 9 { 1e-10 } else { -3e38 })).unwrap();
        assert_eq!(tokens, [[9; 3], [9; 3]], "{settings:?}");
    }
}
