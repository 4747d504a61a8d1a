//! Trains a small convolutional network on handwritten digits, stores its weights as 8-bit integers with a
//! scale for each output channel, and says what that costs: accuracy before and after, bytes, and the largest
//! error of each tensor. The quantized model predicts the same bits on 1, 2 and 3 replicas.
//!
//!     cargo run --release -p unisono-examples --bin quantize -- --replicas 2

use std::process::ExitCode;

use unisono::checkpoint::{Plan, WeightPrecision};
use unisono::{Accuracy, AdamW, BatchNorm, Conv2d, Dense, Flatten, MaxPool2d, Relu, Sequential, Trainer};
use unisono_examples::{Defaults, Error, Run, Scratch, bytes, claim, say};

const DEFAULTS: Defaults = Defaults { epochs: 8, global_batch: 64, shards: 8, seed: 42 };

fn main() -> ExitCode {
    DEFAULTS.program("Trains, quantizes the weights, and says what that costs", quantize)
}

fn quantize(run: Run) -> Result<(), Error> {
    let (train, held_out) = run.digit_pictures()?;
    let features = Sequential::new()
        .add(Conv2d::new(16, 3).padding(1))
        .add(BatchNorm::new())
        .add(Relu)
        .add(MaxPool2d::new(2))
        .add(Conv2d::new(32, 3).padding(1))
        .add(Relu);
    let model = features.add(Flatten).add(Dense::new(64)).add(Relu).add(Dense::new(10));
    let builder = Trainer::builder(model).optimizer(AdamW::new(2e-3)).metric(Accuracy);
    let mut trainer = run.train(builder, &train, &held_out)?;

    let compared = trainer.compare_precision(&held_out, WeightPrecision::I8)?;
    say!("{compared}");
    let dir = Scratch::new("quantize")?;
    let mut sizes = Vec::new();
    for precision in [WeightPrecision::F32, WeightPrecision::F16, WeightPrecision::I8] {
        let exported = trainer.export(dir.join(format!("{precision:?}.safetensors")), precision)?;
        say!("{precision:?}: {}", bytes(exported.bytes));
        sizes.push(exported.bytes as f64);
    }
    // A trainer that loads the file goes on in f32 with the values that were evaluated above.
    let quantized = dir.join("I8.safetensors");
    trainer.load_model(&quantized, &Plan::new())?;
    if trainer.evaluate(&held_out)? != compared.after {
        return Err("the quantized model is not the one that was evaluated before it was written".into());
    }
    let expected = trainer.predict(&held_out)?;
    run.write_onnx(&mut trainer, &held_out, WeightPrecision::I8)?;
    let [before, after] =
        [&compared.before, &compared.after].map(|measured| measured.metric("accuracy").unwrap_or(f64::NAN));
    let claimed = DEFAULTS.claim_of(&trainer, "accuracy on the validation set, in I8", after, 0.97);
    let left = DEFAULTS.claim_of(&trainer, "what is left of the accuracy", after / before, 0.99);
    drop(trainer);

    // From here on it could be another program.
    for replicas in [1, 2, 3] {
        let all = run.predictor().replicas(replicas).open(&quantized)?.predict(&held_out)?;
        let logits = &all.get("output").ok_or("the model has no output")?.values;
        if logits.iter().map(|x| x.to_bits()).ne(expected.iter().map(|x| x.to_bits())) {
            return Err(format!("{replicas} replicas predict other bits than the trainer").into());
        }
    }
    say!("1, 2 and 3 replicas predict the same bits with weights in I8");
    claim("how many times smaller the weights are in I8", sizes[0] / sizes[2], 3.0)?;
    claimed.and(left)
}
