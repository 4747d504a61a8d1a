//! BERT (Devlin et al. 2019: the base model with its pooler, and a small one) with a head that tells good
//! reviews from bad ones.
//!
//!     cargo run --release -p unisono-examples --bin bert -- --replicas 2

use std::process::ExitCode;

use unisono::data::{Field, Sequences, mask};
use unisono::{
    Accuracy, AdamW, Context, Dense, Embedding, Initializer, Inputs, LayerNorm, Model, MultiHeadAttention,
    Outputs, Trainer, Var,
};
use unisono_examples::{Defaults, Error, Reviews, Run, data, ids, numbers, published};

const DEFAULTS: Defaults = Defaults { epochs: 10, global_batch: 32, shards: 8, seed: 42 };
/// The words of a review at most, with the mark at its start.
const LONGEST: usize = 32;
/// The mark at the start of a review, whose place the head looks at. 0 is padding.
const START: i32 = 1;

#[derive(Clone, Copy)]
struct Size {
    words: usize,
    width: usize,
    blocks: usize,
    heads: usize,
}

fn main() -> ExitCode {
    DEFAULTS.program("Trains a BERT to tell good reviews from bad ones", bert)
}

fn bert(run: Run) -> Result<(), Error> {
    let base = Size { words: 30_522, width: 768, blocks: 12, heads: 12 };
    let pooled = Model::new(move |cx, x| Outputs::new().with("output", &encoder(cx, x, base)));
    let fields = [ids("x", &[16]), ids("type", &[16]), numbers("mask", &[16]), ids("y", &[])];
    published(&Trainer::builder(pooled), &fields, 109_482_240)?;

    let Reviews { mut texts, labels, words } =
        Reviews::read(&data(None, "reviews.tsv"), START + 1, LONGEST - 1)?;
    texts.iter_mut().for_each(|text| text.insert(0, START));
    let all = run
        .loader(Sequences::labelled(texts, labels, 0)?.pad_to(LONGEST)?)
        .try_map("mask", mask("mask", LONGEST))
        .version("1")
        .map("one text", |sample, _| sample.set("type", Field::i32([LONGEST], vec![0; LONGEST])))
        .version("1");
    let (train, held_out) = all.shuffle(run.seed).validation_split(0.2)?;
    let small = Size { words, width: 32, blocks: 2, heads: 4 };
    let model = Model::new(move |cx, x| {
        let pooled = encoder(cx, x, small);
        Outputs::new().with("output", &cx.apply("class", &Dense::new(2), &pooled))
    });
    let builder = Trainer::builder(model).optimizer(AdamW::new(2e-3)).metric(Accuracy);
    let trainer = run.train(builder, &train, &held_out)?;
    DEFAULTS.claim(&trainer, "accuracy", 0.9)
}

/// Returns `[width]` for each sample with the ids `x`, the texts' numbers `type` and `mask`.
fn encoder(cx: &mut Context, x: &Inputs, size: Size) -> Var {
    let Size { words, width, blocks, heads } = size;
    let places = x["x"].dims()[0];
    let found = cx.apply("words", &Embedding::new(words, width), &x["x"]);
    let types = cx.apply("types", &Embedding::new(2, width), &x["type"]);
    let positions = cx.parameter("positions", &[512, width], Initializer::Normal(0.02));
    let mut h = cx.apply("norm", &LayerNorm::new(), &(found + types + positions.slice(0, 0..places)));
    for block in 0..blocks {
        h = cx.within(&format!("block{block}"), "bert_block", |cx| {
            let attention = MultiHeadAttention::new(heads);
            let attended =
                cx.within("attention", "attention", |cx| attention.attend(cx, &h, &h, Some(&x["mask"])));
            let h = cx.apply("norm1", &LayerNorm::new(), &(&h + attended));
            let inner = cx.apply("linear1", &Dense::new(4 * width), &h).gelu();
            let outer = cx.apply("linear2", &Dense::new(width), &inner);
            cx.apply("norm2", &LayerNorm::new(), &(h + outer))
        });
    }
    cx.apply("pooler", &Dense::new(width), &h.slice(1, 0..1).reshape(&[width])).tanh()
}
