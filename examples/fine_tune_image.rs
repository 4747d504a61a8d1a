//! Fine-tunes a vision transformer that knows the digits 0 to 4 (`data/make_vit.py`) to tell 5 to 9 apart:
//! its patches frozen, the upper block faster than the lower one, and a new head.
//!
//!     cargo run --release -p unisono-examples --bin fine_tune_image -- --replicas 2 --save tuned

use std::process::ExitCode;

use unisono::checkpoint::Plan;
use unisono::{Accuracy, AdamW, Groups, Trainer};
use unisono_examples::{Defaults, Error, ModelFlags, Run, digits_of, say};
use unisono_models::{Pretrained, Vit};

const DEFAULTS: Defaults = Defaults { epochs: 20, global_batch: 16, shards: 4, seed: 42 };

fn main() -> ExitCode {
    DEFAULTS.program_with("Fine-tunes a vision transformer on other digits", fine_tune_image)
}

fn fine_tune_image(run: Run, flags: ModelFlags) -> Result<(), Error> {
    let run = run.saves(flags.files());
    let base = Pretrained::<Vit>::open(flags.base("vit"))?;
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

    flags.save(&base, &mut trainer)?;
    DEFAULTS.claim(&trainer, "accuracy", 0.9)
}
