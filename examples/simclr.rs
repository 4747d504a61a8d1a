//! Contrastive learning without labels (Chen et al. 2020, SimCLR) on handwritten digits: two distorted views
//! of a digit shall be near to each other. A linear layer then tells digits apart by what was learned, from
//! the labels of one digit of fourteen.
//!
//!     cargo run --release -p unisono-examples --bin simclr -- --replicas 2

use std::process::ExitCode;

use unisono::data::{Column, Csv, Loader, Subset, Values, augment, channels_first};
use unisono::{
    Accuracy, AdamW, Conv2d, CrossEntropy, Dense, Flatten, Groups, MaxPool2d, Model, NtXent, Outputs, Relu,
    Sequential, Trainer,
};
use unisono_examples::{Defaults, Error, Run, data};

const DEFAULTS: Defaults = Defaults { epochs: 40, global_batch: 128, shards: 8, seed: 42 };
/// The label of digits whose label is not to be known.
const UNKNOWN: i32 = -1;
/// The number of digits to learn from. The others, by other people, are held out.
const KNOWN: u64 = 1_400;

fn main() -> ExitCode {
    DEFAULTS.program("Learns digits from distorted views, and probes what it learned", simclr)
}

fn simclr(run: Run) -> Result<(), Error> {
    let digits = Csv::new(data(None, "digits.csv.gz")).label(Column::Last).read()?;
    let all = digits.array("y").and_then(Values::as_i32).ok_or("the digits have no labels")?;
    let labels = all.iter().zip(0..).map(|(&y, at)| if at < KNOWN && at % 14 > 0 { UNKNOWN } else { y });
    let digits = digits.clone().with("label", [], Values::I32(labels.collect()))?;
    let part = |range: std::ops::Range<u64>| -> Result<Loader, Error> {
        let part = Subset::new(digits.clone(), range.collect::<Vec<_>>())?;
        Ok(views(run.loader(part)))
    };
    let (train, held_out) = (part(0..KNOWN)?.shuffle(run.seed), part(KNOWN..1_797)?);

    let conv = |channels| Sequential::new().add(Conv2d::new(channels, 3).padding(1)).add(Relu);
    let encoder = conv(32).add(MaxPool2d::new(2)).add(conv(64)).add(Flatten).add(Dense::new(128)).add(Relu);
    let projection = Sequential::new().add(Dense::new(64)).add(Relu).add(Dense::new(32));
    let batch = run.global_batch;
    let model = Model::new(move |cx, x| {
        let [left, right] = ["left", "right"].map(|view| {
            let seen = cx.apply("encoder", &encoder, &x[view]);
            cx.apply("projection", &projection, &seen)
        });
        cx.loss("contrast", &NtXent::new(0.2, batch).between(&left, &right), 1.0);
        // The probe sees a digit as it is. It does not train the encoder.
        let seen = cx.apply("encoder", &encoder, &x["x"]).detach();
        Outputs::new().with("probe", &cx.apply("probe", &Dense::new(10), &seen))
    });
    let probe = CrossEntropy::new().ignore_index(UNKNOWN);
    let builder = Trainer::builder(model)
        .loss_between("probe", "label", probe, 1.0)
        .metric_between("probe", "label", Accuracy::new().ignore_index(UNKNOWN))
        .optimizer(Groups::new(AdamW::new(2e-3)).group(|name| name.starts_with("probe"), AdamW::new(2e-2)));
    let trainer = run.train(builder, &train, &held_out)?;
    DEFAULTS.claim(&trainer, "probe accuracy", 0.8)
}

/// Adds two distorted views of each digit, `left` and `right`.
fn views(digits: Loader) -> Loader {
    let distort =
        |view| augment::Affine::default().rotation(15.0).shift(0.1, 0.1).zoom(0.8, 1.2).transform(view);
    let copied = digits.map("picture", |sample, _| {
        let Some(mut digit) = sample.field("x").cloned() else { return };
        digit.shape = vec![8, 8];
        digit.values.as_f32_mut().into_iter().flatten().for_each(|grey| *grey /= 16.0);
        for view in ["x", "left", "right"] {
            sample.set(view, digit.clone());
        }
    });
    let distorted = copied.version("2").try_map("left", distort("left")).version("1");
    let distorted = distorted.try_map("right", distort("right")).version("1");
    ["x", "left", "right"].into_iter().fold(distorted, |loader, view| {
        loader.try_map(format!("{view} as [1, 8, 8]"), channels_first(view)).version("1")
    })
}
