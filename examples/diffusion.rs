//! A diffusion model (Ho et al. 2020) that learns a spiral. It takes the noise out of points in 20 steps
//! without chance, as denoising diffusion implicit models do (Song et al. 2020), with averaged weights.
//!
//!     cargo run --release -p unisono-examples --bin diffusion -- --replicas 2

use std::f32::consts::{FRAC_PI_2, TAU};
use std::process::ExitCode;

use unisono::data::{DataError, Draws, Memory, Values};
use unisono::{
    AdamW, Context, Dense, Lead, Model, Optimizer, Outputs, Schedule, Sequential, Silu, Trainer, Var,
};
use unisono_examples::{Defaults, Error, Run, say};

const DEFAULTS: Defaults = Defaults { epochs: 100, global_batch: 256, shards: 8, seed: 42 };
/// The steps from noise to a point.
const STEPS: usize = 20;
/// The turns of the spiral.
const TURNS: f32 = 1.5;

fn main() -> ExitCode {
    DEFAULTS.program("Trains a diffusion model on points of a spiral", diffusion)
}

fn diffusion(run: Run) -> Result<(), Error> {
    let (train, held_out) = (run.loader(spiral(8_192, 1)?).shuffle(run.seed), run.loader(spiral(512, 2)?));

    let dense = |width| Sequential::new().add(Dense::new(width)).add(Silu);
    let network = dense(128).add(dense(128)).add(dense(128)).add(Dense::new(2));
    // Finds the noise in points, where `time` goes from 0, all point, to 1, all noise.
    let noise_in = move |cx: &mut Context, x: &Var, time: &Var| {
        let turns = [1.0, 2.0, 4.0, 8.0].map(|turns| time * (FRAC_PI_2 * turns));
        let waves: Vec<Var> = turns.iter().flat_map(|turn| [turn.sin(), turn.cos()]).collect();
        cx.apply("network", &network, &x.concat(&waves.iter().collect::<Vec<_>>(), -1))
    };
    let model = Model::new(move |cx, x| {
        let (noise, time) = (cx.normal(&[2]), cx.uniform(&[1]));
        let noisy = &x["x"] * (&time * FRAC_PI_2).cos() + &noise * (&time * FRAC_PI_2).sin();
        let distance = (noise_in(cx, &noisy, &time) - &noise).square();
        cx.loss("noise", &distance, 1.0);

        let mut made = cx.normal(&[2]);
        for step in (1..=STEPS).rev() {
            let [angle, next] = [step, step - 1].map(|step| step as f32 / STEPS as f32 * 0.98 * FRAC_PI_2);
            let time = cx.tape().constant(angle / FRAC_PI_2).expand(Lead::Sample, &[1]);
            let noise = noise_in(cx, &made, &time);
            let point = (made - &noise * angle.sin()) / angle.cos();
            made = point * next.cos() + noise * next.sin();
        }
        Outputs::new().with("made", &made)
    });
    let rate = Schedule::cosine(3e-3, run.steps(&train));
    let optimizer = AdamW::new(rate).average_weights(0.995);
    let builder = Trainer::builder(model).optimizer(optimizer).use_average_weights();
    let mut trainer = run.train(builder, &train, &held_out)?;

    let found = trainer.predict_all(&held_out)?;
    let made = found.get("made").ok_or("the model makes no points")?;
    let mut parts = [0.0; 8];
    for point in made.values.chunks(2) {
        let part = (0..512).map(|at| at as f32 / 512.0).find(|&at| {
            let [x, y] = place(at);
            (x - point[0]).hypot(y - point[1]) < 0.2
        });
        if let Some(at) = part {
            parts[(8.0 * at) as usize] += 1.0 / 512.0;
        }
    }
    let (near, least) = (parts.iter().sum::<f64>(), parts.iter().copied().fold(1.0, f64::min));
    say!("made: {:.1}% on the spiral, {:.1}% in its emptiest eighth", 100.0 * near, 100.0 * least);
    DEFAULTS.claim_of(&trainer, "share of points on the spiral", near, 0.8)?;
    DEFAULTS.claim_of(&trainer, "share of points in the emptiest eighth of the spiral", least, 0.05)
}

/// Returns a place of the spiral, whose length goes from 0 to 1.
fn place(at: f32) -> [f32; 2] {
    let radius = at.sqrt();
    let angle = TURNS * TAU * radius;
    [2.0 * radius * angle.cos(), 2.0 * radius * angle.sin()]
}

/// Draws points of the spiral.
fn spiral(points: usize, seed: u64) -> Result<Memory, DataError> {
    let mut draws = Draws::of(seed, "example", "spiral", 0, 0);
    let point = |_| place(draws.range(0.0, 1.0)).map(|x| x + 0.03 * draws.normal());
    Memory::new("x", [2], Values::F32((0..points).flat_map(point).collect()))
}
