//! Keras's example [`mnist_convnet`](https://keras.io/examples/vision/mnist_convnet/): its network and
//! its settings. The page shows 99.2 % on MNIST's test images. With `--decay`, this program reaches that too.
//!
//!     cargo run --release -p unisono-examples --bin mnist_convnet -- --data MNIST

use std::process::ExitCode;

use unisono::{Accuracy, Adam, Conv2d, Dense, Dropout, Flatten, MaxPool2d, Relu, Sequential, Trainer};
use unisono_examples::{Defaults, Error, MnistFlags, Run, part};

const DEFAULTS: Defaults = Defaults { epochs: 15, global_batch: 128, shards: 8, seed: 42 };

fn main() -> ExitCode {
    DEFAULTS.program_with("Repeats Keras's mnist_convnet", mnist_convnet)
}

fn mnist_convnet(run: Run, flags: MnistFlags) -> Result<(), Error> {
    let [images, test] = flags.read()?;
    // As in Keras, the last tenth of the training images validates.
    let (trained, all) = (images.len() - images.len() / 10, images.len());
    let train = run.mnist(part(&images, 0..trained)?, &[1, 28, 28]).shuffle(run.seed);
    let validation = run.mnist(part(&images, trained..all)?, &[1, 28, 28]);

    let model = Sequential::new()
        .add(Conv2d::new(32, 3))
        .add(Relu)
        .add(MaxPool2d::new(2))
        .add(Conv2d::new(64, 3))
        .add(Relu)
        .add(MaxPool2d::new(2))
        .add(Flatten)
        .add(Dropout::new(0.5))
        .add(Dense::new(10));
    let rate = flags.rate([1e-3, 4e-3], &run, &train);
    let builder = Trainer::builder(model).optimizer(Adam::new(rate).epsilon(1e-7)).metric(Accuracy);
    let mut trainer = run.train(builder, &train, &validation)?;
    let right = trainer.evaluate(&run.mnist(test, &[1, 28, 28]))?.metric("accuracy").unwrap_or_default();
    flags.claim(DEFAULTS, &trainer, "test images", right, [0.992, 0.99])
}
