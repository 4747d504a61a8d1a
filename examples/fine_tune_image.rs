//! Fine-tunes a vision transformer that knows the digits 0 to 4 (`data/make_vit.py`) to tell 5 to 9 apart:
//! its patches frozen, the upper block faster than the lower one, and a new head.
//!
//!     cargo run --release -p unisono-examples --bin fine_tune_image -- --replicas 2 --save tuned

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use unisono::checkpoint::Plan;
use unisono::{Accuracy, AdamW, Groups, Trainer};
use unisono_examples::{Defaults, Error, Run, data, digits_of, say};
use unisono_models::{Pretrained, Vit};

const DEFAULTS: Defaults = Defaults { epochs: 20, global_batch: 16, shards: 4, seed: 42 };

#[derive(Args)]
struct Flags {
    /// Directory of the base model: a ViT for images of 8x8 pixels with one channel [default: the one in the
    /// repository]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Write the model to DIR, as transformers does
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
}

fn main() -> ExitCode {
    DEFAULTS.program_with("Fine-tunes a vision transformer on other digits", fine_tune_image)
}

fn fine_tune_image(run: Run, flags: Flags) -> Result<(), Error> {
    let base = Pretrained::<Vit>::open(data(flags.model.as_deref(), "vit"))?;
    let digits = run.loader(digits_of(5..10, &[1, 8, 8])?).shuffle(run.seed);
    let (train, held_out) = digits.validation_split(0.2)?;
    let train = train.shuffle(run.seed);

    let optimizer = Groups::new(AdamW::new(2e-3))
        .group(|name| name.starts_with("vit.encoder.layer.1."), AdamW::new(1e-3))
        .group(|name| name.starts_with("vit.encoder.layer.0."), AdamW::new(5e-4))
        .freeze(|name| name.starts_with("vit.embeddings."));
    let builder = Trainer::builder(base.model()).optimizer(optimizer).metric(Accuracy);
    // The head starts anew: it knows other classes.
    let body = Plan::new().only("vit.*").ignore("classifier.*");
    let load = |trainer: &mut Trainer| {
        say!("{}", trainer.load_tensors(base.weights(), &body)?);
        Ok(())
    };
    let mut trainer = run.train_from(builder, &train, &held_out, load)?;

    if let Some(dir) = &flags.save {
        base.with_weights(trainer.weights()?)?.save_pretrained(dir)?;
        say!("the model is in {}", dir.display());
    }
    DEFAULTS.claim(&trainer, "accuracy", 0.9)
}
