//! Recommendation: two towers, one for users and one for items, learn from what made-up users have bought.
//! The other pairs of a batch are the negatives. A user's next purchases are then among the ten items that
//! come first.
//!
//!     cargo run --release -p unisono-examples --bin recommend -- --replicas 2

use std::process::ExitCode;

use unisono::data::{DataError, Draws, Memory, Values};
use unisono::{AdamW, Dense, Embedding, InBatchSoftmax, Model, Outputs, Relu, Sequential, Trainer};
use unisono_examples::{Defaults, Error, Run, say};

const DEFAULTS: Defaults = Defaults { epochs: 30, global_batch: 128, shards: 8, seed: 42 };
const USERS: usize = 400;
const ITEMS: usize = 200;
/// How many items each user has bought.
const BOUGHT: usize = 20;
/// How many of them are held out.
const HELD_OUT: usize = 4;

fn main() -> ExitCode {
    DEFAULTS.program("Trains two towers to recommend items", recommend)
}

fn recommend(run: Run) -> Result<(), Error> {
    let bought = purchases();
    let (train, held_out) =
        (pairs(&bought, 0..BOUGHT - HELD_OUT)?, pairs(&bought, BOUGHT - HELD_OUT..BOUGHT)?);
    let (train, held_out) = (run.loader(train).shuffle(run.seed), run.loader(held_out));

    let tower = |ids| {
        Sequential::new().add(Embedding::new(ids, 32)).add(Dense::new(32)).add(Relu).add(Dense::new(16))
    };
    let (users, items, batch) = (tower(USERS), tower(ITEMS), run.global_batch);
    let model = Model::new(move |cx, x| {
        let (user, item) = (cx.apply("users", &users, &x["user"]), cx.apply("items", &items, &x["item"]));
        let scale = cx.tape().constant(10.0);
        cx.loss("in-batch softmax", &InBatchSoftmax::new(0.1, batch).between(&user, &item, &scale), 1.0);
        Outputs::new().with("user", &user).with("item", &item)
    });
    let builder = Trainer::builder(model).optimizer(AdamW::new(3e-3).weight_decay(0.1));
    let mut trainer = run.train(builder, &train, &held_out)?;

    // Each output needs only the field that it depends on.
    let mut vectors = |name: &str, ids: usize| -> Result<Vec<Vec<f32>>, Error> {
        let all = run.loader(Memory::new(name, [], Values::I32((0..ids as i32).collect()))?);
        let found = trainer.predict_outputs(&all, &[name])?;
        let rows = found.get(name).map_or(&[][..], |found| &found.values).chunks(16);
        Ok(rows.map(|row| row.iter().map(|x| x / dot(row, row).sqrt()).collect()).collect())
    };
    let (users, items) = (vectors("user", USERS)?, vectors("item", ITEMS)?);
    let mut hits = 0;
    for (user, bought) in users.iter().zip(&bought) {
        let (known, next) = bought.split_at(BOUGHT - HELD_OUT);
        let mut ranked: Vec<usize> = (0..ITEMS).filter(|item| !known.contains(item)).collect();
        ranked.sort_by(|&a, &b| dot(user, &items[b]).total_cmp(&dot(user, &items[a])));
        hits += next.iter().filter(|item| ranked[..10].contains(item)).count();
    }
    let recall = hits as f64 / (USERS * HELD_OUT) as f64;
    say!("validation: {:.1}% of the next purchases are among the first ten items", 100.0 * recall);
    DEFAULTS.claim_of(&trainer, "recall of ten items", recall, 0.5)
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Draws the tastes of users and the kinds of items. Returns the items that each user has bought, in some
/// order: mostly those nearest to the taste.
fn purchases() -> Vec<Vec<usize>> {
    let mut draws = Draws::of(1, "example", "purchases", 0, 0);
    let mut vector = |_| [0; 4].map(|_| draws.normal());
    let (tastes, kinds): (Vec<_>, Vec<_>) =
        ((0..USERS).map(&mut vector).collect(), (0..ITEMS).map(&mut vector).collect());
    let mut of_user = |taste: &[f32; 4]| {
        let mut liked: Vec<(f32, usize)> = kinds
            .iter()
            .enumerate()
            .map(|(item, kind)| (0.3 * draws.normal() - dot(taste, kind), item))
            .collect();
        liked.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut bought: Vec<(f32, usize)> =
            liked[..BOUGHT].iter().map(|liked| (draws.range(0.0, 1.0), liked.1)).collect();
        bought.sort_by(|a, b| a.0.total_cmp(&b.0));
        bought.into_iter().map(|(_, item)| item).collect()
    };
    tastes.iter().map(&mut of_user).collect()
}

/// Returns pairs of a user and one of these purchases.
fn pairs(bought: &[Vec<usize>], which: std::ops::Range<usize>) -> Result<Memory, DataError> {
    let users = (0..USERS).flat_map(|user| vec![user as i32; which.len()]).collect();
    let items =
        bought.iter().flat_map(|items| items[which.clone()].iter().map(|&item| item as i32)).collect();
    Memory::new("user", [], Values::I32(users))?.with("item", [], Values::I32(items))
}
