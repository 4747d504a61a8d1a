//! A recurrent network that reads a text character by character. Each row of a batch goes on where it stopped
//! in the batch before. On the held-out last tenth of the text it is clearly better than a bigram model.
//!
//!     cargo run --release -p unisono-examples --bin text_lstm -- --data TEXT --out target/text_lstm

use std::process::ExitCode;

use unisono::{AdamW, Dense, Embedding, Lstm, Optimizer, Sequential, Trainer};
use unisono_examples::{Defaults, Error, Run, TextFlags};

const DEFAULTS: Defaults = Defaults { epochs: 1, global_batch: 64, shards: 4, seed: 42 };
/// The number of characters through which gradients are propagated back.
const CONTEXT: usize = 32;

pub(crate) fn main() -> ExitCode {
    DEFAULTS.program_with("Trains a stateful LSTM on a text", text_lstm)
}

fn text_lstm(run: Run, flags: TextFlags) -> Result<(), Error> {
    let text = flags.read()?;
    let [train, held_out] = text.windows(CONTEXT)?;
    // Each row of the batch reads its own part of the text, window after window.
    let (train, held_out) = (run.loader(train).lanes(), run.loader(held_out).lanes());

    let model = Sequential::new()
        .add(Embedding::new(text.vocabulary(), 32))
        .add(Lstm::new(128).stateful())
        .add(Dense::new(text.vocabulary()));
    let builder = Trainer::builder(model).optimizer(AdamW::new(5e-3).clip_norm(1.0));
    let trainer = run.train(builder, &train, &held_out)?;
    text.claim(&trainer)
}
