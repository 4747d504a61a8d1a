//! Keras's classic example `mnist_siamese`: one tower sees two images, and their codes are close if both show
//! the same digit. The published accuracy on pairs of test images is 97.2 %.
//!
//!     cargo run --release -p unisono-examples --bin mnist_siamese -- --data MNIST

use std::process::ExitCode;
use std::sync::Arc;

use unisono::data::{Coverage, DataError, Draws, Field, FieldSpec, Sample, Source};
use unisono::{Contrastive, Dense, Dropout, Metric, Relu, RmsProp, Sequential, Trainer, Var};
use unisono_examples::{Defaults, Error, MnistFlags, Run, held_out_metric, ids, numbers};

const DEFAULTS: Defaults = Defaults { epochs: 20, global_batch: 128, shards: 8, seed: 42 };

fn main() -> ExitCode {
    DEFAULTS.program_with("Repeats Keras's mnist_siamese", mnist_siamese)
}

fn mnist_siamese(run: Run, flags: MnistFlags) -> Result<(), Error> {
    let [train, test] = flags.read()?;
    let (train, test) = (Pairs::of(train, run.seed)?, Pairs::of(test, run.seed)?);
    let [train, test] = [train, test].map(|pairs| run.mnist(pairs, &[2, 784]));

    // Dense layers take both images of a pair, [B, 2, ..], with the same weights.
    let dense = || Sequential::new().add(Dense::new(128)).add(Relu);
    let tower = dense().add(Dropout::new(0.1)).add(dense()).add(Dropout::new(0.1)).add(dense());
    let rate = flags.rate([1e-3, 1e-3], &run, &train);
    let optimizer = RmsProp::new(rate).alpha(0.9).epsilon(1e-7);
    let builder = Trainer::builder(tower).loss(Contrastive::new(1.0)).metric(Apart(0.5)).optimizer(optimizer);
    let trainer = run.train(builder, &train.shuffle(run.seed), &test)?;
    let right = held_out_metric(&trainer, "accuracy");
    flags.claim(DEFAULTS, &trainer, "pairs of test images", right, [0.972, 0.972])
}

/// Whether codes `[B, 2, E]` are closer than this for the label 1, and not for the label 0.
struct Apart(f32);

impl Metric for Apart {
    fn name(&self) -> &str {
        "accuracy"
    }

    fn per_sample(&self, codes: &Var, same: &Var) -> Var {
        let apart = codes.slice(1, 0..1) - codes.slice(1, 1..2);
        let far = apart.flatten().square().sum(&[-1]).sqrt().greater(&codes.tape().constant(self.0));
        (far - same.to_f32()).abs()
    }
}

/// Pairs as Keras's example makes them: two neighbours of one class, then one of them with an image of
/// another class, class after class.
struct Pairs {
    images: Arc<dyn Source>,
    pairs: Vec<[u64; 2]>,
    fields: [FieldSpec; 2],
}

impl Pairs {
    fn of(images: Arc<dyn Source>, seed: u64) -> Result<Self, DataError> {
        let mut classes = vec![vec![]; 10];
        for index in 0..images.len() {
            let label = images.fetch(index)?.i32("y").and_then(|y| y.first().copied());
            let class = label.and_then(|label| classes.get_mut(usize::try_from(label).ok()?));
            class.ok_or_else(|| DataError::other(format!("image {index} shows no digit")))?.push(index);
        }
        let of_each = classes.iter().map(Vec::len).min().unwrap_or_default().saturating_sub(1);
        let mut draws = Draws::of(seed, "example", "pairs", 0, images.len());
        let mut pairs = vec![];
        for (class, own) in classes.iter().enumerate() {
            for at in 0..of_each {
                let other = (class + 1 + draws.below(9) as usize) % 10;
                pairs.extend([[own[at], own[at + 1]], [own[at], classes[other][at]]]);
            }
        }
        Ok(Self { images, pairs, fields: [numbers("x", &[2, 784]), ids("y", &[])] })
    }
}

impl Source for Pairs {
    fn len(&self) -> u64 {
        self.pairs.len() as u64
    }

    fn fields(&self) -> &[FieldSpec] {
        &self.fields
    }

    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        let beyond = DataError::Index { index, len: self.len() };
        let mut pixels = vec![];
        for &image in self.pairs.get(index as usize).ok_or(beyond)? {
            pixels.extend(self.images.fetch(image)?.f32_mut("x").into_iter().flatten().map(|grey| *grey));
        }
        let same = Field::i32([], [i32::from(index.is_multiple_of(2))]);
        Ok(Sample::new().with("x", Field::f32([2, 784], pixels)).with("y", same))
    }

    fn coverage(&self) -> Coverage {
        Coverage::Hashed
    }
}
