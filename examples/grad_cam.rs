//! Grad-CAM (Selvaraju et al. 2017): a convolutional network learns whether a picture has a disc, a cross or
//! a ring, and the gradient of its answer says where it looked: at the object.
//!
//!     cargo run --release -p unisono-examples --bin grad_cam -- --replicas 2

use std::process::ExitCode;

use clap::Parser;
use unisono::data::{DataError, Draws, Memory};
use unisono::{
    Accuracy, AdamW, BatchNorm, Conv2d, CrossEntropy, Dense, GlobalAvgPool2d, MaxPool2d, Model, Outputs,
    Relu, Sequential, Trainer,
};
use unisono_examples::{Defaults, Error, RunFlags, claim, program, say};

const DEFAULTS: Defaults = Defaults { epochs: 8, global_batch: 32, shards: 8, seed: 42 };
/// The rows and columns of a picture.
const SIDE: usize = 32;
/// The rows and columns of the heat, one place for 4 x 4 pixels.
const HEAT: usize = SIDE / 4;
/// The most pixels from the middle of an object to its edge.
const REACH: f32 = 6.0;

#[derive(Parser)]
#[command(about = "Trains a classifier and shows where it looks", after_help = DEFAULTS.help())]
struct Flags {
    #[command(flatten)]
    run: RunFlags,
}

fn main() -> ExitCode {
    unisono::gpu::prepare_environment();
    program(grad_cam)
}

fn grad_cam(flags: Flags) -> Result<(), Error> {
    let run = flags.run.settle(DEFAULTS)?;
    let (train, (held_out, places)) = (objects(512, 1)?.0, objects(128, 2)?);
    let (train, held_out) = (run.loader(train).shuffle(run.seed), run.loader(held_out));

    let features = [16, 32, 32].iter().enumerate().fold(Sequential::new(), |features, (at, &channels)| {
        let conv = Conv2d::new(channels, 3).padding(1).no_bias();
        let features = features.add(conv).add(BatchNorm::new()).add(Relu);
        if at < 2 { features.add(MaxPool2d::new(2)) } else { features }
    });
    let head = Sequential::new().add(GlobalAvgPool2d).add(Dense::new(3));
    let model = Model::new(move |cx, x| {
        let features = cx.apply("features", &features, &x["x"]);
        let classes = cx.apply("head", &head, &features);
        // The gradient of each sample's highest score, summed over the picture, weighs its feature maps.
        let score = classes.max(&[-1]).sum_shards();
        let weights = cx.tape().gradients(&score, std::slice::from_ref(&features))[0].sum_keep(&[-2, -1]);
        let heat = (weights * features).sum(&[1]).relu();
        Outputs::new().with("classes", &classes).with("heat", &heat)
    });
    let builder = Trainer::builder(model)
        .loss_between("classes", "y", CrossEntropy::new(), 1.0)
        .metric_between("classes", "y", Accuracy)
        .optimizer(AdamW::new(3e-3));
    let mut trainer = run.train(builder, &train, &held_out)?;

    let heat = trainer.predict_outputs(&held_out, &["heat"])?;
    let heat = heat.get("heat").map_or(&[][..], |heat| &heat.values);
    let is_on_it = |(heat, object): (&[f32], &[f32; 2])| {
        let most = (0..heat.len()).max_by(|&a, &b| heat[a].total_cmp(&heat[b])).unwrap_or_default();
        let hot = [most / HEAT, most % HEAT].map(|place| 4.0 * place as f32 + 1.5);
        (hot[0] - object[0]).hypot(hot[1] - object[1]) <= REACH
    };
    let on_it = heat.chunks(HEAT * HEAT).zip(&places).filter(|&pair| is_on_it(pair)).count();
    let on_it = on_it as f64 / places.len() as f64;
    say!("validation: the heat is highest on the object in {:.1}% of the pictures", 100.0 * on_it);
    if trainer.history().len() >= DEFAULTS.epochs as usize {
        claim("share of pictures whose heat is highest on the object", on_it, 0.95)?;
    }
    DEFAULTS.claim(&trainer, "classes accuracy", 0.95)
}

/// Draws pictures of one object in noise, a disc, a cross or a ring, and the places of their middles.
fn objects(count: usize, seed: u64) -> Result<(Memory, Vec<[f32; 2]>), DataError> {
    let mut draws = Draws::of(seed, "example", "objects", 0, 0);
    let (mut x, mut y, mut places) = (vec![], vec![], vec![]);
    for _ in 0..count {
        let (class, place) = (draws.below(3) as i32, [0, 1].map(|_| draws.range(REACH, SIDE as f32 - REACH)));
        for at in 0..SIDE * SIDE {
            let [down, right] = [(at / SIDE) as f32 - place[0], (at % SIDE) as f32 - place[1]].map(f32::abs);
            let far = (down * down + right * right).sqrt();
            let bright = match class {
                0 => far < 4.0,
                1 => far < 5.0 && down.min(right) < 1.2,
                _ => (far - 4.5).abs() < 1.0,
            };
            x.push(f32::from(u8::from(bright)) + 0.3 * draws.normal());
        }
        y.push(class);
        places.push(place);
    }
    Ok((Memory::labelled(x, [1, SIDE, SIDE], y)?, places))
}
