//! Fine-tunes a DistilBERT that knows how words follow each other (`data/make_distilbert.py`) to tell good
//! reviews from bad ones, from a few of them: in batches of similar length, its positions frozen, and the
//! rate halved from each block to the one below.
//!
//!     cargo run --release -p unisono-examples --bin fine_tune_text -- --replicas 2 --save tuned

use std::process::ExitCode;

use unisono::data::{Buckets, mask};
use unisono::{Accuracy, AdamW, Groups, Trainer};
use unisono_examples::{Defaults, Error, ModelFlags, Reviews, Run, data};
use unisono_models::{DistilBert, Pretrained};

const DEFAULTS: Defaults = Defaults { epochs: 12, global_batch: 16, shards: 4, seed: 42 };
/// The tokens that a batch's reviews have at most.
const LENGTHS: [usize; 3] = [8, 16, 32];
const LONGEST: usize = LENGTHS[2];
/// The reviews that are trained on. Those after the first 960 are the validation set: the base has not seen
/// them.
const LABELLED: usize = 320;
const SEEN: usize = 960;

fn main() -> ExitCode {
    DEFAULTS.program_with("Fine-tunes a DistilBERT to classify texts", fine_tune_text)
}

fn fine_tune_text(run: Run, flags: ModelFlags) -> Result<(), Error> {
    let run = run.saves(flags.files());
    let base = Pretrained::<DistilBert>::open(flags.base("distilbert"))?;
    let tokenizer = base.tokenizer()?;
    let (texts, labels) = Reviews::lines(&data(None, "reviews.tsv"))?;
    let loader = |part: std::ops::Range<usize>| {
        let all = tokenizer.sequences(&texts[part.clone()], &labels[part], LONGEST)?.pad_to(LONGEST)?;
        let buckets = Buckets::new(&all.lengths(), LENGTHS, &["x", "attention_mask"])?;
        let mask = mask("attention_mask", LONGEST);
        Ok::<_, Error>(run.loader(all).try_map("mask", mask).version("1").buckets(buckets))
    };
    let (train, held_out) = (loader(0..LABELLED)?.shuffle(run.seed), loader(SEEN..texts.len())?);

    let optimizer = Groups::new(AdamW::new(2e-3))
        .group(|name| name.starts_with("distilbert.transformer.layer.1."), AdamW::new(1e-3))
        .group(|name| name.starts_with("distilbert.transformer.layer.0."), AdamW::new(5e-4))
        .freeze(|name| name.starts_with("distilbert.embeddings.position"))
        .clip_norm(1.0);
    let builder = Trainer::builder(base.model()).optimizer(optimizer).metric(Accuracy);
    let mut trainer = run.train_from(builder, &train, &held_out, |trainer| Ok(base.load(trainer)?))?;

    flags.save(&base, &mut trainer)?;
    DEFAULTS.claim(&trainer, "accuracy", 0.9)
}
