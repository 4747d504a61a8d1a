//! Translates numbers into English words with a transformer of an encoder and a decoder (Vaswani et al.
//! 2017). It writes numbers that it never saw, word by word: 4096 is four thousand ninety six.
//!
//!     cargo run --release -p unisono-examples --bin translate -- --replicas 2

use std::process::ExitCode;

use unisono::data::{DataError, Loader, Memory, Values, Vocabulary};
use unisono::{
    AdamW, Context, CrossEntropy, Dense, Embedding, FromFn, Initializer, LayerNorm, Model, Optimizer,
    Outputs, Sequential, Trainer, TransformerBlock, Var,
};
use unisono_examples::{Defaults, Error, Run, say};

const DEFAULTS: Defaults = Defaults { epochs: 15, global_batch: 64, shards: 8, seed: 42 };
/// The digits of a number.
const DIGITS: usize = 4;
/// The most words of a number, with "start" or "end".
const WORDS: usize = 7;
const UP_TO_19: &str = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen \
    fifteen sixteen seventeen eighteen nineteen";
const TENS: &str = "twenty thirty forty fifty sixty seventy eighty ninety";

fn main() -> ExitCode {
    DEFAULTS.program("Translates numbers into words", translate)
}

fn translate(run: Run) -> Result<(), Error> {
    let digits = Vocabulary::characters().learn(["0123456789"])?;
    let words = Vocabulary::words().learn([UP_TO_19, TENS, "hundred thousand start end"])?;
    let pairs = |numbers: &[usize], texts: &[Vec<i32>]| -> Result<Loader, DataError> {
        let source = numbers.iter().flat_map(|n| digits.padded(&n.to_string(), DIGITS)).collect();
        let part = |first: usize| texts.iter().flat_map(|ids| ids[first..][..WORDS].to_vec()).collect();
        let pairs = Memory::new("digits", [DIGITS], Values::I32(source))?;
        let pairs = pairs.with("before", [WORDS], Values::I32(part(0)))?;
        Ok(run.loader(pairs.with("next", [WORDS], Values::I32(part(1)))?))
    };
    let right = |numbers: &[usize]| -> Vec<Vec<i32>> {
        numbers.iter().map(|&n| words.padded(&sentence(n), WORDS + 1)).collect()
    };
    let (known, new): (Vec<_>, Vec<_>) =
        ((0..10_000).step_by(3).collect(), (1..10_000).step_by(30).collect());
    let (train, held_out) = (pairs(&known, &right(&known))?.shuffle(run.seed), pairs(&new, &right(&new))?);

    let embedded = |ids: usize| {
        let place =
            |cx: &mut Context, x: &Var| x + cx.parameter("weight", x.dims(), Initializer::Normal(0.1));
        Sequential::new().add(Embedding::new(ids, 64)).add(FromFn::new("places", place))
    };
    let (of_digits, of_words) = (embedded(digits.len()), embedded(words.len()));
    let (reader, writer, classes) =
        (TransformerBlock::new(4), TransformerBlock::new(4).causal().cross_attention(), words.len());
    let model = Model::new(move |cx, x| {
        let source = cx.apply("digits", &of_digits, &x["digits"]);
        let read = cx.apply("reader", &reader, &source);
        let before = cx.apply("words", &of_words, &x["before"]);
        let written = cx.within("writer", "transformer_block", |cx| writer.decode(cx, &before, &read, None));
        let written = cx.apply("norm", &LayerNorm::new(), &written);
        let next = cx.apply("next", &Dense::new(classes), &written);
        Outputs::new().with("next", &next).with("word", &next.argmax())
    });
    let builder = Trainer::builder(model)
        .loss_of("next", CrossEntropy::new().ignore_index(0), 1.0)
        .optimizer(AdamW::new(2e-3).clip_norm(1.0));
    let mut trainer = run.train(builder, &train, &held_out)?;

    // Greedy: each word is the likeliest one after those before it.
    let mut texts = vec![words.padded("start", WORDS + 1); new.len()];
    for place in 0..WORDS {
        let found = trainer.predict_outputs(&pairs(&new, &texts)?, &["word"])?;
        let word = found.get("word").ok_or("the model writes no words")?;
        for (ids, likeliest) in texts.iter_mut().zip(word.values.chunks(WORDS)) {
            ids[place + 1] = likeliest[place] as i32;
        }
    }
    let texts: Vec<String> = texts.iter().map(|ids| words.decode(ids)).collect();
    for at in [7, 136, 300] {
        say!("{}: {}", new[at], texts[at]);
    }
    let right = texts.iter().zip(&new).filter(|(text, n)| text.starts_with(&sentence(**n))).count();
    let share = right as f64 / new.len() as f64;
    say!("{:.1}% of {} new numbers are right in every word", 100.0 * share, new.len());
    DEFAULTS.claim_of(&trainer, "share of numbers that are right", share, 0.95)
}

fn sentence(number: usize) -> String {
    format!("start {} end", in_words(number))
}

/// Returns a number below 10,000 in words.
fn in_words(number: usize) -> String {
    let nth = |words: &str, at: usize| words.split(' ').nth(at).unwrap_or_default().to_owned();
    let rest = |unit: usize| {
        if number.is_multiple_of(unit) { String::new() } else { format!(" {}", in_words(number % unit)) }
    };
    match number {
        0..20 => nth(UP_TO_19, number),
        20..100 => nth(TENS, number / 10 - 2) + &rest(10),
        100..1_000 => format!("{} hundred{}", in_words(number / 100), rest(100)),
        _ => format!("{} thousand{}", in_words(number / 1_000), rest(1_000)),
    }
}
