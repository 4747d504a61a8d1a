//! Forecasts a day of temperatures from the three days before it, on ten months that are made. It is much
//! better than persistence, which says that it stays as warm as it is.
//!
//!     cargo run --release -p unisono-examples --bin forecast -- --replicas 2

use std::process::ExitCode;

use unisono::data::{Draws, Field, Windows};
use unisono::{AdamW, Dense, Gru, Model, Optimizer, Outputs, Trainer};
use unisono_examples::{Defaults, Error, Run, held_out_loss, held_out_metric, say};

const DEFAULTS: Defaults = Defaults { epochs: 10, global_batch: 64, shards: 8, seed: 42 };
/// The hours of the series.
const HOURS: usize = 7_200;
const DAY: usize = 24;

fn main() -> ExitCode {
    DEFAULTS.program("Forecasts a day of temperatures", forecast)
}

fn forecast(run: Run) -> Result<(), Error> {
    let windows = Windows::new(temperatures()).length(3 * DAY).ahead(DAY).stride(2);
    let end = HOURS * 4 / 5;
    let (train, held_out) = (windows.clone().rows(0..end), windows.rows(end..HOURS));
    let (train, held_out) = (run.loader(train).shuffle(run.seed), run.loader(held_out));

    let model = Model::new(|cx, x| {
        // Ten degrees become one. The network says how the next day differs from the last one.
        let [past, future] = ["x", "y"].map(|part| x[part].flatten() * 0.1);
        let read = cx.apply("read", &Gru::new(32).last(), &past.reshape(&[3, DAY]));
        let forecast = past.slice(-1, 2 * DAY..3 * DAY) + cx.apply("change", &Dense::new(DAY), &read);
        let last_hour = past.slice(-1, 3 * DAY - 1..3 * DAY);
        cx.loss("error", &(&forecast - &future).square(), 1.0);
        cx.metric("persistence", &(last_hour - future).square());
        Outputs::new().with("degrees", &(forecast * 10.0))
    });
    let builder = Trainer::builder(model).optimizer(AdamW::new(5e-3).clip_norm(1.0));
    let trainer = run.train(builder, &train, &held_out)?;

    let (own, last) = (held_out_loss(&trainer), held_out_metric(&trainer, "persistence"));
    // The model counts in units of ten degrees.
    let [ours, hours] = [own, last].map(|error| 10.0 * error.sqrt());
    say!("validation: root mean squared error {ours:.2} degrees; of the last hour's temperature: {hours:.2}");
    DEFAULTS.claim_of(&trainer, "error of persistence for each of the forecast", last / own, 5.0)
}

/// Temperatures of each hour: a season, days that are warmer or colder by the weather, and noise.
fn temperatures() -> Field {
    let mut draws = Draws::of(1, "example", "temperatures", 0, 0);
    let (mut weather, mut clouds) = (0.0, 0.0);
    let degrees = (0..HOURS).map(|hour| {
        weather = 0.98 * weather + 0.5 * draws.normal();
        clouds = 0.99 * clouds + 0.1 * draws.normal();
        let turn = |hours: f32| (hour as f32 / hours * std::f32::consts::TAU).sin();
        10.0 - 8.0 * turn(8_760.0) + (5.0 + 2.0 * clouds) * turn(24.0) + weather + 0.3 * draws.normal()
    });
    Field::f32([HOURS, 1], degrees.collect::<Vec<_>>())
}
