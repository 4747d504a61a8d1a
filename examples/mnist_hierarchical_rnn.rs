//! Keras's classic example `mnist_hierarchical_rnn`: an LSTM reads each row of an image pixel by pixel, and
//! another one reads the rows. Keras states that 98.6 % of MNIST's test images are classified correctly. With
//! `--decay`, this program reaches more.
//!
//!     cargo run --release -p unisono-examples --bin mnist_hierarchical_rnn -- --data MNIST

use std::process::ExitCode;

use unisono::{Accuracy, Dense, Lstm, RmsProp, Sequential, TimeDistributed, Trainer};
use unisono_examples::{Defaults, Error, MnistFlags, Run, accuracy};

const DEFAULTS: Defaults = Defaults { epochs: 5, global_batch: 32, shards: 8, seed: 42 };

fn main() -> ExitCode {
    DEFAULTS.program_with("Repeats Keras's mnist_hierarchical_rnn", mnist_hierarchical_rnn)
}

fn mnist_hierarchical_rnn(run: Run, flags: MnistFlags) -> Result<(), Error> {
    // 28 rows, each a sequence of 28 pixels.
    let [train, test] = flags.read()?.map(|images| run.mnist(images, &[28, 28, 1]));

    let lstm = Lstm::new(128).keras_initializers().last();
    let model = Sequential::new().add(TimeDistributed::new(lstm)).add(lstm).add(Dense::new(10));
    let rate = flags.rate([1e-3, 1e-3], &run, &train);
    let optimizer = RmsProp::new(rate).alpha(0.9).epsilon(1e-7).epsilon_under_root();
    let builder = Trainer::builder(model).optimizer(optimizer).metric(Accuracy);
    let trainer = run.train(builder, &train.shuffle(run.seed), &test)?;
    flags.claim(DEFAULTS, &trainer, "test images", accuracy(&trainer), [0.986, 0.98])
}
