//! Grad-CAM (Selvaraju et al. 2017): a convolutional network learns whether a picture has a disc, a cross or
//! a ring, and the gradient of its answer says where it looked: at the object.
//!
//!     cargo run --release -p unisono-examples --bin grad_cam -- --replicas 2

use std::process::ExitCode;

use unisono::functional::grad_cam as grad_cam_of;
use unisono::{
    Accuracy, AdamW, BatchNorm, Conv2d, CrossEntropy, Dense, GlobalAvgPool2d, MaxPool2d, Model, Outputs,
    Relu, Sequential, Trainer,
};
use unisono_examples::{Defaults, Error, OBJECTS_REACH, OBJECTS_SIDE, Run, objects, say};

const DEFAULTS: Defaults = Defaults { epochs: 8, global_batch: 32, shards: 8, seed: 42 };
/// The rows and columns of the heat, one place for 4 x 4 pixels.
const HEAT: usize = OBJECTS_SIDE / 4;

fn main() -> ExitCode {
    DEFAULTS.program("Trains a classifier and shows where it looks", grad_cam)
}

fn grad_cam(run: Run) -> Result<(), Error> {
    let ((train, _), (held_out, places)) = (objects(512, 1)?, objects(128, 2)?);
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
        Outputs::new().with("classes", &classes).with("heat", &grad_cam_of(&features, &classes))
    });
    let builder = Trainer::builder(model)
        .loss_between("classes", "y", CrossEntropy::new(), 1.0)
        .metric_between("classes", "y", Accuracy)
        .optimizer(AdamW::new(3e-3));
    let mut trainer = run.train(builder, &train, &held_out)?;

    let heat = trainer.predict_outputs(&held_out, &["heat"])?.into_values("heat");
    let is_on_it = |(heat, object): (&[f32], &[f32; 2])| {
        let most = (0..heat.len()).max_by(|&a, &b| heat[a].total_cmp(&heat[b])).unwrap_or_default();
        let hot = [most / HEAT, most % HEAT].map(|place| 4.0 * place as f32 + 1.5);
        (hot[0] - object[0]).hypot(hot[1] - object[1]) <= OBJECTS_REACH
    };
    let on_it = heat.chunks(HEAT * HEAT).zip(&places).filter(|&pair| is_on_it(pair)).count();
    let on_it = on_it as f64 / places.len() as f64;
    say!("validation: the heat is highest on the object in {:.1}% of the pictures", 100.0 * on_it);
    DEFAULTS.claim_of(&trainer, "share of pictures whose heat is highest on the object", on_it, 0.95)?;
    DEFAULTS.claim(&trainer, "classes accuracy", 0.95)
}
