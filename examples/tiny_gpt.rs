//! A small transformer that predicts the next character of a text, and writes some characters at the end. On
//! the held-out last tenth of the text it is clearly better than a bigram model.
//!
//!     cargo run --release -p unisono-examples --bin tiny_gpt -- --data TEXT --out target/tiny_gpt

use std::process::ExitCode;

use clap::Args;
use unisono::{
    AdamW, Dense, Embedding, FromFn, Initializer, LayerNorm, Optimizer, Sequential, Trainer, TransformerBlock,
};
use unisono_examples::{Defaults, Error, Run, TextFlags, say};

const DEFAULTS: Defaults = Defaults { epochs: 1, global_batch: 16, shards: 4, seed: 42 };
/// The number of characters that a prediction depends on.
const CONTEXT: usize = 64;
const WIDTH: usize = 64;

#[derive(Args)]
struct Flags {
    #[command(flatten)]
    text: TextFlags,
    /// Number of characters to write at the end
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 200)]
    write: u32,
}

pub(crate) fn main() -> ExitCode {
    DEFAULTS.program_with("Trains a small transformer on a text", tiny_gpt)
}

fn tiny_gpt(run: Run, flags: Flags) -> Result<(), Error> {
    let text = flags.text.read()?;
    let [train, held_out] = text.windows(CONTEXT)?;
    let (train, held_out) = (run.loader(train).shuffle(run.seed), run.loader(held_out));

    let small = Initializer::Normal(0.02);
    let places =
        FromFn::new("places", |cx, x| x + cx.parameter("weight", x.dims(), Initializer::Normal(0.02)));
    let block = || TransformerBlock::new(4).causal();
    let model = Sequential::new()
        .add(Embedding::new(text.vocabulary(), WIDTH).initializer(small))
        .add(places)
        .add(block())
        .add(block())
        .add(LayerNorm::new())
        .add(Dense::new(text.vocabulary()));
    let optimizer = AdamW::new(3e-3).no_decay_for_biases_and_norms().clip_norm(1.0);
    let mut trainer = run.train(Trainer::builder(model).optimizer(optimizer), &train, &held_out)?;
    let written = text.sample(&mut trainer, CONTEXT, "And God said, ", flags.write as usize, run.seed)?;
    say!("{written}");
    text.claim(&trainer)
}
