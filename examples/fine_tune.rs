//! Transfer learning: a network learns the digits 0 to 4, and its layers then learn 5 to 9 from few samples:
//! first a new head alone, then all of it with a lower rate.
//!
//!     cargo run --release -p unisono-examples --bin fine_tune -- --replicas 2

use std::process::ExitCode;

use unisono::checkpoint::{Plan, WeightPrecision};
use unisono::{Accuracy, AdamW, BatchNorm, Dense, Phase, Relu, Sequential, Trainer};
use unisono_examples::{Defaults, Error, Run, Scratch, accuracy, digits_of, say};

const DEFAULTS: Defaults = Defaults { epochs: 12, global_batch: 32, shards: 8, seed: 42 };
/// The epochs in which the head is trained alone.
const HEAD: u32 = 4;

fn main() -> ExitCode {
    DEFAULTS.program("Trains a network on some digits and fine-tunes it on others", fine_tune)
}

fn fine_tune(run: Run) -> Result<(), Error> {
    // What was trained before, here on other digits, with any program: a safetensors file.
    let known = run.loader(digits_of(0..5, &[64])?).shuffle(1);
    let before = Trainer::builder(network()).optimizer(AdamW::new(2e-3)).seed(1).replicas(1);
    let mut before = run.on_adapters(before).build(&known.fields()?)?;
    before.fit(&known, None, 5)?;
    let dir = Scratch::new("fine-tune")?;
    let base = dir.join("base.safetensors");
    before.export(&base, WeightPrecision::F32)?;

    // A fifth of the others is trained on, and the rest is held out.
    let new = run.loader(digits_of(5..10, &[64])?).shuffle(run.seed);
    let (held_out, train) = new.validation_split(0.2)?;
    let (train, held_out) = (train.shuffle(run.seed), held_out);
    let head =
        Phase::new("head").trains(|name| name.starts_with("4.")).optimizer(AdamW::new(1e-2)).epochs(0..HEAD);
    let all = Phase::new("all").optimizer(AdamW::new(1e-3)).epochs(HEAD..u32::MAX);
    let builder = Trainer::builder(network())
        .phase(head)
        .phase(all)
        .freeze_statistics(|name| name.starts_with("1."))
        .metric(Accuracy);
    let plan = Plan::new().only("0.*").only("1.*").only("2.*").ignore("4.*");
    let trainer = run.train_from(builder, &train, &held_out, |trainer| {
        say!("{}", trainer.load_model(&base, &plan)?);
        Ok(())
    })?;

    let accuracy = accuracy(&trainer);
    say!("validation: {:.2}% correct after {} samples an epoch", 100.0 * accuracy, train.samples());
    DEFAULTS.claim_of(&trainer, "accuracy on the validation set of the other digits", accuracy, 0.9)
}

fn network() -> Sequential {
    Sequential::new()
        .add(Dense::new(64))
        .add(BatchNorm::new())
        .add(Dense::new(32))
        .add(Relu)
        .add(Dense::new(5))
}
