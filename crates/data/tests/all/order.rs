//! The content of a batch never depends on threads, prefetch, timing or where the run started.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use proptest::prelude::*;
use unisono_data::{
    Batch, DataError, Field, FieldDType, FieldSpec, Loader, Memory, Position, Sample, Source,
};

/// Returns `len` samples: "x" holds three values made from the index, "y" the index.
fn numbers(len: usize) -> Memory {
    let x: Vec<f32> = (0..len * 3).map(|i| i as f32 / 7.0).collect();
    Memory::labelled(x, [3], (0..len as i32).collect::<Vec<_>>()).unwrap()
}

/// Adds noise, a change of shape, and sleeps that differ from call to call.
fn augmented(len: usize, batch: usize) -> Loader {
    Loader::new(numbers(len))
        .batch(batch)
        .shuffle(42)
        .map("noise", |sample, draws| {
            for x in sample.f32_mut("x").into_iter().flatten() {
                *x += draws.normal();
            }
        })
        .map("sleep", |_, _| {
            let random = RandomState::new().hash_one(0);
            if random.is_multiple_of(8) {
                std::thread::sleep(Duration::from_micros(random % 1500));
            }
        })
        .map("repeat", |sample, draws| {
            let own = sample.field("x").unwrap().values.as_f32().unwrap().to_vec();
            let turned = if draws.chance(0.5) { own.iter().rev().copied().collect() } else { own.clone() };
            sample.set("x", Field::f32([2, 3], [own, turned].concat()));
        })
        .require_finite()
}

fn all(batches: impl Iterator<Item = Result<Batch, DataError>>) -> Vec<Batch> {
    batches.collect::<Result<_, _>>().unwrap()
}

/// Returns every sample from a position on, whatever the batches.
fn samples(batches: &[Batch]) -> HashMap<(u32, u64), (u64, Vec<u32>)> {
    let mut samples = HashMap::new();
    for batch in batches {
        let size = batch.f32("x").unwrap().len() / batch.len();
        for (i, values) in batch.f32("x").unwrap().chunks(size).enumerate() {
            let bits = values.iter().map(|x| x.to_bits()).collect();
            samples.insert((batch.epoch, batch.first + i as u64), (batch.indices[i], bits));
        }
    }
    samples
}

#[test]
fn any_number_of_threads_and_any_prefetch_give_the_same_bytes() {
    let epochs = |loader: &Loader| all(loader.epochs(Position::default(), 3).unwrap());
    let reference = epochs(&augmented(53, 8).threads(1).prefetch(0));
    assert_eq!(reference.len(), 3 * 7);
    for threads in [1, 2, 3, 8] {
        for prefetch in [0, 1, 5, 100] {
            assert_eq!(reference, epochs(&augmented(53, 8).threads(threads).prefetch(prefetch)));
        }
    }
}

#[test]
fn any_position_onward_is_the_uninterrupted_run() {
    let loader = augmented(29, 4).threads(3);
    let whole = all(loader.epochs(Position::default(), 3).unwrap());
    let reference = samples(&whole);
    for epoch in 0..3 {
        for sample in 0..=29 {
            let rest = all(loader.epochs(Position { epoch, sample }, 3).unwrap());
            let rest = samples(&rest);
            assert_eq!(rest.len() as u64, u64::from(3 - epoch) * 29 - sample);
            assert!(rest.iter().all(|(place, sample)| reference[place] == *sample));
        }
    }
    // Stopping after any batch and starting again at its `after` gives the same samples.
    for (i, batch) in whole.iter().enumerate() {
        assert_eq!(all(loader.epochs(batch.after, 3).unwrap()), whole[i + 1..]);
    }
}

#[test]
fn the_batch_size_does_not_change_the_samples() {
    let run = |batch| samples(&all(augmented(23, batch).threads(2).epochs(Position::default(), 2).unwrap()));
    let reference = run(1);
    for batch in [2, 5, 23, 100] {
        assert_eq!(reference, run(batch));
    }
}

#[test]
fn batches_know_their_place() {
    let loader = Loader::new(numbers(10)).batch(4).threads(2);
    let mut batches = loader.epochs_from(Position { epoch: 1, sample: 4 }).unwrap();
    assert_eq!(batches.position(), Position { epoch: 1, sample: 4 });
    let places: Vec<_> = (0..3)
        .map(|_| {
            let batch = batches.next().unwrap().unwrap();
            assert_eq!(batches.position(), batch.after);
            (batch.epoch, batch.first, batch.index_in_epoch, batch.indices)
        })
        .collect();
    let expected = [(1, 4, 1, vec![4, 5, 6, 7]), (1, 8, 2, vec![8, 9]), (2, 0, 0, vec![0, 1, 2, 3])];
    assert_eq!(places, expected);
    assert_eq!((loader.samples(), loader.batches_per_epoch(), loader.batch_size()), (10, 3, 4));
    assert_eq!(loader.explicit_batch_size(), Some(4));
    let plain = Loader::new(numbers(10));
    assert_eq!((plain.explicit_batch_size(), plain.batch_size()), (None, 32));
}

#[test]
fn drop_last_leaves_out_what_does_not_fill_a_batch() {
    let loader = Loader::new(numbers(10)).batch(4).drop_last(true).threads(2);
    let batches = all(loader.epochs(Position::default(), 2).unwrap());
    assert_eq!(
        batches.iter().map(|b| (b.epoch, b.first, b.len())).collect::<Vec<_>>(),
        [(0, 0, 4), (0, 4, 4), (1, 0, 4), (1, 4, 4)]
    );
    assert_eq!(batches[1].after, Position { epoch: 1, sample: 0 });
    assert_eq!(loader.batches_per_epoch(), 2);
}

#[test]
fn without_shuffle_the_order_is_the_sources() {
    let batches = all(Loader::new(numbers(10)).batch(4).threads(3).epoch(5).unwrap());
    let labels: Vec<i32> = batches.iter().flat_map(|batch| batch.i32("y").unwrap().to_vec()).collect();
    assert_eq!(labels, (0..10).collect::<Vec<_>>());
    assert_eq!(batches[2].field("x").unwrap().shape, [2, 3]);
    assert_eq!(batches[2].field("y").unwrap().shape, [2]);
    assert!(batches[0].f32("y").is_err() && batches[0].i32("z").is_err());
}

/// A source of any length, whose samples are computed.
struct Synthetic(u64, [FieldSpec; 1]);

impl Synthetic {
    fn new(len: u64) -> Self {
        Self(len, [FieldSpec { name: "x".into(), dtype: FieldDType::I32, shape: vec![2] }])
    }
}

impl Source for Synthetic {
    fn len(&self) -> u64 {
        self.0
    }
    fn fields(&self) -> &[FieldSpec] {
        &self.1
    }
    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        Ok(Sample::new().with("x", Field::i32([2], [index as i32, (index >> 32) as i32])))
    }
}

#[test]
fn seeking_in_a_huge_source_is_arithmetic() {
    let len = (1 << 40) + 12_345;
    let loader = Loader::new(Synthetic::new(len)).batch(4).shuffle(3).threads(2);
    let mut batches = loader.epochs_from(Position { epoch: 9, sample: len - 6 }).unwrap();
    let (four, two) = (batches.next().unwrap().unwrap(), batches.next().unwrap().unwrap());
    assert_eq!((four.len(), two.len(), two.after), (4, 2, Position { epoch: 10, sample: 0 }));
    for (i, &index) in four.indices.iter().chain(&two.indices).enumerate() {
        assert_eq!(Some(index), unisono_random::permute(3, 9, len - 6 + i as u64, len));
    }
    assert_eq!(four.i32("x").unwrap()[1], (four.indices[0] >> 32) as i32);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_epoch_holds_every_sample_once(
        len in 1u64..400, batch in 1usize..50, threads in 1usize..5, prefetch in 0usize..5, seed: u64, epoch: u32,
    ) {
        let loader = Loader::new(Synthetic::new(len)).batch(batch).shuffle(seed).threads(threads).prefetch(prefetch);
        let batches = all(loader.epoch(epoch).unwrap());
        let mut seen: Vec<u64> = batches.iter().flat_map(|batch| batch.indices.clone()).collect();
        prop_assert_eq!(batches.len() as u64, loader.batches_per_epoch());
        seen.sort();
        prop_assert_eq!(seen, (0..len).collect::<Vec<_>>());
    }
}

#[test]
fn transforms_draw_by_seed_name_epoch_and_position() {
    let drawn = |name: &str, seed| {
        let loader = Loader::new(numbers(4)).batch(4).seed(seed).map(name, |sample, draws| {
            sample.set("x", Field::f32([1], [draws.next_f32()]));
        });
        let batches = all(loader.epochs(Position::default(), 2).unwrap());
        batches.iter().flat_map(|batch| batch.f32("x").unwrap().to_vec()).collect::<Vec<_>>()
    };
    let base = drawn("a", 1);
    assert_eq!(base, drawn("a", 1));
    assert!(base.iter().enumerate().all(|(i, x)| !base[..i].contains(x)), "{base:?}");
    assert!(base.iter().zip(drawn("b", 1)).all(|(a, b)| *a != b));
    assert!(base.iter().zip(drawn("a", 2)).all(|(a, b)| *a != b));
    assert_eq!(base[0], unisono_data::Draws::of(1, "map", "a", 0, 0).next_f32());
}
