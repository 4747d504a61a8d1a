//! Fine-tunes a GPT-2 of characters by low-rank matrices, then writes with the matrices added to its weights.
//! The base, from its directory, knows the text a little (`data/make_gpt2.py`). Its bytes do not change.
//!
//!     cargo run --release -p unisono-examples --bin lora -- --replicas 2 --save tuned

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use unisono::data::Loader;
use unisono::{AdamW, Optimizer, Trainer};
use unisono_examples::{Defaults, Error, Run, Text, data, held_out_loss, say};
use unisono_models::{Generate, Gpt2, Lora, Pretrained};

const DEFAULTS: Defaults = Defaults { epochs: 4, global_batch: 16, shards: 4, seed: 42 };
/// The number of characters that a prediction depends on.
const CONTEXT: usize = 64;
/// What `--save` writes weights to.
const FILES: [&str; 2] = ["adapter/adapter_model.safetensors", "merged/model.safetensors"];

#[derive(Args)]
struct Flags {
    /// Directory of the base model: a GPT-2 over the characters of the reviews [default: the one in the
    /// repository]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Write the matrices to DIR/adapter, as peft does, and the whole model to DIR/merged
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
}

fn main() -> ExitCode {
    DEFAULTS.program_with("Fine-tunes a GPT-2 by low-rank matrices", lora)
}

fn lora(run: Run, flags: Flags) -> Result<(), Error> {
    let text = Text::read(&data(None, "reviews.tsv"), usize::MAX)?;
    let [train, held_out] = text.windows(CONTEXT)?;
    let (train, held_out) = (run.loader(train).shuffle(run.seed), run.loader(held_out));

    let run = run.saves(flags.save.iter().flat_map(|dir| FILES.map(|file| dir.join(file))));
    let base = Pretrained::<Gpt2>::open(data(flags.model.as_deref(), "gpt2"))?;
    let adapted = base.clone().with(Lora::rank(8).scale(16.0).on("*.c_attn").on("*.c_proj").on("*.c_fc"));
    let optimizer = AdamW::new(5e-3).clip_norm(1.0).freeze(Lora::freezes);
    let builder = Trainer::builder(adapted.model()).optimizer(optimizer);
    let mut trainer = run.train_from(builder, &train, &held_out, |trainer| Ok(adapted.load(trainer)?))?;

    let weights = trainer.weights()?;
    let merged = adapted.merged(&weights)?;
    if let Some(dir) = &flags.save {
        adapted.save_adapter(dir.join("adapter"), &weights)?;
        base.with_weights(merged.clone())?.save_pretrained(dir.join("merged"))?;
    }
    let settings = Generate::new().most(48).temperature(0.7).seed(run.seed);
    let mut generator = base.generator_with(run.predictor().replicas(1), &merged, settings)?;
    for tokens in generator.tokens(&[text.ids("0\tthe bad "), text.ids("1\tthe good ")])? {
        say!("{:?}", text.text(&tokens));
    }
    let (before, after) = (base_loss(&run, &base, &held_out)?, held_out_loss(&trainer));
    say!("held out: {after:.3} nats per character; the base: {before:.3}");
    DEFAULTS.claim_of(&trainer, "nats per character below the base's", before - after, 0.2)
}

/// Returns the loss of the base on the held-out text.
fn base_loss(run: &Run, base: &Pretrained<Gpt2>, held_out: &Loader) -> Result<f64, Error> {
    let builder = Trainer::builder(base.model()).optimizer(AdamW::new(0.0)).replicas(1);
    let mut trainer = run.on_adapters(builder).build(&held_out.fields()?)?;
    base.load(&mut trainer)?;
    Ok(trainer.evaluate(held_out)?.loss)
}
