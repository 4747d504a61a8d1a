//! Two inputs and two outputs: numbers and a category of made-up houses tell the price and whether a house is
//! sold within a month.
//!
//!     cargo run --release -p unisono-examples --bin two_inputs -- --replicas 2

use std::process::ExitCode;

use unisono::data::{DataError, Draws, Memory, Values, split};
use unisono::{
    AdamW, BinaryAccuracy, BinaryCrossEntropyWithLogits, Dense, Embedding, MeanSquaredError, Model, Outputs,
    R2, Relu, Sequential, Trainer,
};
use unisono_examples::{Defaults, Error, Run, held_out_metric, say};

const DEFAULTS: Defaults = Defaults { epochs: 30, global_batch: 64, shards: 8, seed: 42 };
const HOUSES: u64 = 2_000;
const CITIES: u32 = 12;

fn main() -> ExitCode {
    DEFAULTS.program("Trains a model of two inputs and two outputs on made-up houses", two_inputs)
}

fn two_inputs(run: Run) -> Result<(), Error> {
    let [train, held_out] = split(houses()?, HOUSES * 4 / 5, 42)?;
    let (train, held_out) = (run.loader(train).shuffle(run.seed), run.loader(held_out));

    let trunk = Sequential::new().add(Dense::new(32)).add(Relu).add(Dense::new(32)).add(Relu);
    let model = Model::new(move |cx, x| {
        let city = cx.apply("city", &Embedding::new(CITIES as usize, 4), &x["city"]);
        let numbers = cx.apply("numbers", &Dense::new(16), &x["numbers"]);
        let both = numbers + cx.apply("of_city", &Dense::new(16), &city);
        let trunk = cx.apply("trunk", &trunk, &both);
        let [price, sold] = ["price", "sold"].map(|name| cx.apply(name, &Dense::new(1), &trunk));
        Outputs::new().with("price", &price).with("sold", &sold)
    });
    let builder = Trainer::builder(model)
        .loss_of("price", MeanSquaredError, 1.0)
        .loss_of("sold", BinaryCrossEntropyWithLogits, 0.5)
        .metric_of("price", R2)
        .metric_of("sold", BinaryAccuracy)
        .optimizer(AdamW::new(5e-3));
    let trainer = run.train(builder, &train, &held_out)?;

    let [price, sold] = ["price r2", "sold binary accuracy"].map(|name| held_out_metric(&trainer, name));
    say!("validation: {:.1}% of the price's variance, {:.1}% of the sales", 100.0 * price, 100.0 * sold);
    DEFAULTS.claim_of(&trainer, "R2 of the price on the validation set", price, 0.9)?;
    DEFAULTS.claim_of(&trainer, "accuracy of the sales on the validation set", sold, 0.85)
}

/// Makes houses with area, rooms and age, each around 0, and a city. The price depends on all of these, and
/// chance. Whether a house is sold depends on its area, rooms and age.
fn houses() -> Result<Memory, DataError> {
    let mut draws = Draws::of(1, "example", "houses", 0, 0);
    let level: Vec<f32> = (0..CITIES).map(|_| draws.normal()).collect();
    let (mut numbers, mut cities, mut prices, mut sold) = (vec![], vec![], vec![], vec![]);
    for _ in 0..HOUSES {
        let city = draws.below(CITIES);
        let [area, rooms, age] = std::array::from_fn(|_| draws.normal());
        let fair = level[city as usize] + 0.8 * area + 0.3 * area * rooms - 0.4 * age;
        let asked = 0.2 * draws.normal();
        numbers.extend([area, rooms, age]);
        cities.push(city as i32);
        prices.push(fair + asked);
        sold.push(f32::from(u8::from(area + rooms > age - 0.5)));
    }
    Memory::new("numbers", [3], Values::F32(numbers))?
        .with("city", [], Values::I32(cities))?
        .with("price", [1], Values::F32(prices))?
        .with("sold", [1], Values::F32(sold))
}
