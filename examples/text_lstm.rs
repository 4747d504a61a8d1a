//! A recurrent network that reads a text character by character, row by row of the batch where it stopped before. On the last
//! tenth, which it has never seen, it is clearly better than a table of pairs of characters.
//!
//!     cargo run --release -p unisono-examples --bin text_lstm -- --data TEXT --replicas 2 --out target/text_lstm

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use unisono::{AdamW, Dense, Embedding, Lstm, Optimizer, Sequential, Trainer};
use unisono_examples::{Defaults, Error, RunFlags, Text, program};

const DEFAULTS: Defaults = Defaults { epochs: 1, global_batch: 64, shards: 4, seed: 42 };
/// Characters that gradients go back through.
const CONTEXT: usize = 32;

#[derive(Parser)]
#[command(about = "Trains a stateful LSTM on a text", after_help = DEFAULTS.help())]
struct Flags {
    #[command(flatten)]
    run: RunFlags,
    /// A text, gzipped or not; its last tenth is held out
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// Train on the first so many characters, or on all there are but the last tenth
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    train_characters: u32,
}

fn main() -> ExitCode {
    unisono::gpu::prepare_environment();
    program(text_lstm)
}

fn text_lstm(flags: Flags) -> Result<(), Error> {
    let run = flags.run.settle(DEFAULTS)?;
    let text = Text::read(&flags.data, flags.train_characters as usize)?;
    let [train, held_out] = text.windows(CONTEXT)?;
    // Each row of the batch reads its own stretch of the text, window after window.
    let (train, held_out) = (run.loader(train).lanes(), run.loader(held_out).lanes());

    let model = Sequential::new()
        .add(Embedding::new(text.vocabulary(), 32))
        .add(Lstm::new(128).stateful())
        .add(Dense::new(text.vocabulary()));
    let builder = Trainer::builder(model).optimizer(AdamW::new(5e-3).clip_norm(1.0));
    let trainer = run.train(builder, &train, &held_out)?;
    text.claim(&trainer)
}
