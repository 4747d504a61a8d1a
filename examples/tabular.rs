//! A table: numbers, a category and values that are missing tell the price of made-up houses.
//!
//!     cargo run --release -p unisono-examples --bin tabular -- --early-stopping 10 --csv history.csv

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use unisono::data::{Csv, Loader, Missing, Per, Statistics, normalize};
use unisono::{
    AdamW, Dense, Embedding, MeanAbsoluteError, MeanSquaredError, Model, Outputs, R2, Relu, Sequential,
    Trainer,
};
use unisono_examples::{Defaults, Error, Run, data, held_out_metric, say};

const DEFAULTS: Defaults = Defaults { epochs: 40, global_batch: 64, shards: 8, seed: 42 };

#[derive(Args)]
struct Flags {
    /// CSV file with another table. Its columns are area, rooms, year, city and price
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
}

fn main() -> ExitCode {
    DEFAULTS.program_with("Trains a model of houses' prices on a table", tabular)
}

fn tabular(run: Run, flags: Flags) -> Result<(), Error> {
    let houses = Csv::new(data(flags.data.as_deref(), "houses.csv")).numbers(["area", "rooms", "year"]);
    let houses = houses.category("city").target("price").missing(Missing::Median);
    let (houses, schema) = houses.read_with_schema()?;
    let (train, held_out) = run.loader(houses).shuffle(run.seed).validation_split(0.2)?;
    let [x, y] = ["x", "y"].map(|field| Statistics::of(train.source(), field, Per::Element, 1));
    let (x, y) = (x?, y?);
    let scaled = |loader: Loader| {
        let loader = loader.try_map("x", normalize("x", &x)).version("1");
        loader.try_map("y", normalize("y", &y)).version("1")
    };
    let (train, held_out) = (scaled(train), scaled(held_out));

    let cities = schema.categories["city"].len();
    let trunk =
        Sequential::new().add(Dense::new(32)).add(Relu).add(Dense::new(32)).add(Relu).add(Dense::new(1));
    let model = Model::new(move |cx, x| {
        let city = cx.apply("city", &Embedding::new(cities, 4), &x["city"]);
        let price = cx.apply("trunk", &trunk, &x["x"].concat(&[&city], -1));
        Outputs::new().with("price", &price)
    });
    let builder = Trainer::builder(model)
        .loss_between("price", "y", MeanSquaredError, 1.0)
        .metric_between("price", "y", MeanAbsoluteError)
        .metric_between("price", "y", R2)
        .optimizer(AdamW::new(3e-3));
    let trainer = run.train(builder, &train, &held_out)?;

    let r2 = held_out_metric(&trainer, "price r2");
    let off = held_out_metric(&trainer, "price mean absolute error") * y.deviation[0];
    say!("validation: {:.1}% of the price's variance, {off:.1} off on average", 100.0 * r2);
    // The claim is not checked for other data.
    match flags.data {
        Some(_) => Ok(()),
        None => DEFAULTS.claim_of(&trainer, "R2 of the price on the validation set", r2, 0.9),
    }
}
