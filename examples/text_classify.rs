//! Sentences of several lengths: a bidirectional LSTM over padded words, with masks, in batches of similar
//! length. It has to find out that "not good" is bad.
//!
//!     cargo run --release -p unisono-examples --bin text_classify -- --replicas 2

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use unisono::data::{Buckets, Sequences, mask};
use unisono::{Accuracy, AdamW, CrossEntropy, Dense, Embedding, Lstm, Model, Optimizer, Outputs, Trainer};
use unisono_examples::{Defaults, Error, Reviews, Run, data, held_out_metric, say};

const DEFAULTS: Defaults = Defaults { epochs: 6, global_batch: 32, shards: 8, seed: 42 };
/// The words that a batch's sentences have at most.
const LENGTHS: [usize; 3] = [8, 16, 32];
const LONGEST: usize = LENGTHS[2];

#[derive(Args)]
struct Flags {
    /// File with other reviews. Each line has a label (0 or 1), a tab, and words
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
}

fn main() -> ExitCode {
    DEFAULTS.program_with("Trains a bidirectional LSTM to tell good reviews from bad ones", text_classify)
}

fn text_classify(run: Run, flags: Flags) -> Result<(), Error> {
    // 0 is padding.
    let Reviews { texts, labels, words } =
        Reviews::read(&data(flags.data.as_deref(), "reviews.tsv"), 1, LONGEST)?;
    let loader = |part: std::ops::Range<usize>| {
        let all = Sequences::labelled(texts[part.clone()].to_vec(), &labels[part], 0)?.pad_to(LONGEST)?;
        let buckets = Buckets::new(&all.lengths(), LENGTHS, &["x", "mask"])?;
        Ok::<_, Error>(run.loader(all).try_map("mask", mask("mask", LONGEST)).version("1").buckets(buckets))
    };
    let train = texts.len() * 4 / 5;
    let (train, held_out) = (loader(0..train)?.shuffle(run.seed), loader(train..texts.len())?);

    let model = Model::new(move |cx, x| {
        let words = cx.apply("words", &Embedding::new(words, 16), &x["x"]);
        let lstm = Lstm::new(16).bidirectional().last();
        let state = cx.within("lstm", "lstm", |cx| lstm.masked(cx, &words, Some(&x["mask"])));
        Outputs::new().with("class", &cx.apply("class", &Dense::new(2), &state))
    });
    let builder = Trainer::builder(model)
        .loss_between("class", "y", CrossEntropy::new(), 1.0)
        .metric_between("class", "y", Accuracy)
        .optimizer(AdamW::new(1e-2).clip_norm(1.0));
    let trainer = run.train(builder, &train, &held_out)?;

    let right = held_out_metric(&trainer, "class accuracy");
    say!("validation: {:.1}% correct", 100.0 * right);
    // The claim is not checked for other data.
    match flags.data {
        Some(_) => Ok(()),
        None => DEFAULTS.claim_of(&trainer, "accuracy on the validation reviews", right, 0.9),
    }
}
