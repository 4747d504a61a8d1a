//! Keras's classic example `mnist_mlp`: its network and its settings. Keras states 98.4 % on MNIST's
//! test images.
//!
//!     cargo run --release -p unisono-examples --bin mnist_mlp -- --data MNIST

use std::process::ExitCode;

use unisono::{Accuracy, Dense, Dropout, Relu, RmsProp, Sequential, Trainer};
use unisono_examples::{Defaults, Error, MnistFlags, Run, accuracy};

const DEFAULTS: Defaults = Defaults { epochs: 20, global_batch: 128, shards: 8, seed: 42 };

fn main() -> ExitCode {
    DEFAULTS.program_with("Repeats Keras's mnist_mlp", mnist_mlp)
}

fn mnist_mlp(run: Run, flags: MnistFlags) -> Result<(), Error> {
    let [train, test] = flags.read()?.map(|images| run.mnist(images, &[784]));

    let model = Sequential::new()
        .add(Dense::new(512))
        .add(Relu)
        .add(Dropout::new(0.2))
        .add(Dense::new(512))
        .add(Relu)
        .add(Dropout::new(0.2))
        .add(Dense::new(10));
    let rate = flags.rate([1e-3, 1e-3], &run, &train);
    let optimizer = RmsProp::new(rate).alpha(0.9).epsilon(1e-7).epsilon_under_root();
    let builder = Trainer::builder(model).optimizer(optimizer).metric(Accuracy);
    let trainer = run.train(builder, &train.shuffle(run.seed), &test)?;
    flags.claim(DEFAULTS, &trainer, "test images", accuracy(&trainer), [0.984, 0.98])
}
