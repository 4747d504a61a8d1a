//! Windows, lanes, buckets, batch transforms and skipped samples give the same bytes whatever the threads,
//! from any position.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use unisono_data::{
    Batch, Batches, Buckets, DataError, FieldDType, FieldSpec, Loader, LoaderState, Memory, Position, Sample,
    Sequences, Source, augment, one_hot,
};

fn numbers(len: usize) -> Memory {
    let x: Vec<f32> = (0..len).map(|i| i as f32).collect();
    Memory::labelled(x, [1], (0..len as i32).collect::<Vec<_>>()).unwrap()
}

fn all(batches: Batches) -> Vec<Batch> {
    batches.collect::<Result<_, _>>().unwrap()
}

/// Checks a loader against itself with other threads and depths, and started after any batch. Returns the
/// first three epochs.
fn same_however(loader: &Loader) -> Vec<Batch> {
    let whole = all(loader.clone().threads(1).prefetch(0).epochs(Position::default(), 3).unwrap());
    for threads in [2, 3, 8] {
        let loader = loader.clone().threads(threads);
        for run in
            [loader.clone().prefetch(7), loader.clone().prefetch_bytes(1), loader.prefetch_bytes(1 << 20)]
        {
            assert_eq!(whole, all(run.epochs(Position::default(), 3).unwrap()));
        }
    }
    assert_eq!(whole, all(loader.epochs(Position::default(), 3).unwrap()), "adaptive threads");
    let mut batches = loader.clone().threads(3).epochs(Position::default(), 3).unwrap();
    for batch in &whole {
        let again = batches.next().unwrap().unwrap();
        assert_eq!(*batch, again);
        batches.recycle(again);
    }
    for (i, batch) in whole.iter().enumerate() {
        assert_eq!(all(loader.epochs(batch.after, 3).unwrap()), whole[i + 1..]);
    }
    whole
}

fn once_an_epoch(batches: &[Batch], len: u64) {
    for epoch in 0..3 {
        let of_epoch = batches.iter().filter(|batch| batch.epoch == epoch);
        let mut seen: Vec<u64> = of_epoch.flat_map(|batch| batch.indices.clone()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..len).collect::<Vec<_>>());
    }
}

#[test]
fn windows_stay_near_and_hold_each_once() {
    let whole = same_however(&Loader::new(numbers(103)).batch(8).shuffle_window(5, 16));
    once_an_epoch(&whole, 103);
    for batch in &whole {
        let near = |(row, &index): (usize, &u64)| (batch.first + row as u64).abs_diff(index) < 16;
        assert!(batch.indices.iter().enumerate().all(near));
    }
    assert_ne!(whole[0].indices, whole[13].indices);
}

#[test]
fn a_window_of_nothing_is_refused() {
    let loader = Loader::new(numbers(9)).shuffle_window(1, 0);
    let expected = "shuffle_window: a window of 0 samples has none to shuffle";
    assert_eq!(loader.fields().unwrap_err().to_string(), expected);
    assert_eq!(loader.epoch(0).unwrap_err().to_string(), expected);
}

#[test]
fn each_lane_continues() {
    let whole = same_however(&Loader::new(numbers(103)).batch(8).lanes());
    once_an_epoch(&whole, 103);
    for pair in whole.windows(2).filter(|pair| pair[0].epoch == pair[1].epoch) {
        assert!(pair[1].indices.iter().zip(&pair[0].indices).all(|(next, before)| *next == before + 1));
    }
    let error = Loader::new(numbers(9)).lanes().shuffle(1).epoch(0).unwrap_err();
    assert_eq!(error.to_string(), "lanes: a shuffle leaves nothing to continue");
}

/// Two settings of another order are an error. A shuffle as a whole takes the place of one within windows.
#[test]
fn a_loader_has_one_order() {
    let loader = || Loader::new(Sequences::labelled(vec![vec![1]; 9], vec![0; 9], -1).unwrap());
    let buckets = || Buckets::new(&[1_u32; 9], [2], &["x"]).unwrap();
    for (both, expected) in [
        (loader().lanes().shuffle_window(7, 100), "shuffle_window: a loader has one order: leave out"),
        (loader().shuffle_window(7, 100).lanes(), "lanes: "),
        (loader().buckets(buckets()).shuffle_window(7, 4), "shuffle_window: a loader has one order"),
        (loader().buckets(buckets()).lanes(), "lanes: a loader has one order"),
    ] {
        let error = both.epoch(0).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let order = |loader: Loader| loader.settings().remove("order");
    assert_eq!(order(loader().shuffle_window(7, 4).shuffle(7)).as_deref(), Some("shuffled"));
}

#[test]
fn buckets_cut_batches_to_their_length() {
    let lengths: Vec<usize> = (0..101).map(|i| 1 + i * i % 37).collect();
    let values = lengths.iter().enumerate().map(|(i, &length)| vec![i as i32; length]);
    let source = Sequences::labelled(values, vec![0; 101], -1).unwrap();
    let buckets = Buckets::new(&source.lengths(), [5, 10, 20, 40], &["x"]).unwrap();
    let loader = Loader::new(source.clone()).batch(8).shuffle(3).buckets(buckets.clone());
    let whole = same_however(&loader);
    once_an_epoch(&whole, 101);
    let mut shapes = HashSet::new();
    for batch in &whole {
        let extent = batch.field("x").unwrap().shape[1];
        shapes.insert(extent);
        for (row, (&index, values)) in
            batch.indices.iter().zip(batch.i32("x").unwrap().chunks(extent)).enumerate()
        {
            let length = lengths[index as usize];
            assert_eq!(batch.i32("length").unwrap()[row] as usize, length);
            let fits = length <= extent && (length * 2 > extent || extent == 5);
            assert!(fits, "a sequence of {length} in a bucket of {extent}");
            assert!(
                values
                    .iter()
                    .enumerate()
                    .all(|(at, &value)| value == if at < length { index as i32 } else { -1 })
            );
        }
    }
    // The last boundary is beyond the longest sequence, so the longest sequence is as long as a batch gets.
    assert_eq!(shapes, HashSet::from([5, 10, 20, 37]));
    let first = whole.iter().filter(|batch| batch.epoch == 0);
    let places: Vec<_> = first.map(|batch| batch.index_in_epoch).collect();
    assert_eq!(places, (0..loader.batches_per_epoch()).collect::<Vec<_>>());
    let full = all(loader.clone().drop_last(true).epoch(0).unwrap());
    assert!(full.iter().all(|batch| batch.len() == 8));
    assert_eq!(full.len() as u64, loader.clone().drop_last(true).batches_per_epoch());
    let none = loader.batch(1000).drop_last(true).epoch(0).unwrap_err().to_string();
    assert_eq!(none, "drop_last: no bucket has enough samples for a batch of 1000");

    let message = |result: Result<Buckets, DataError>| result.unwrap_err().to_string();
    assert_eq!(message(Buckets::new(&[3], [2], &[])), "buckets: sample 0 of length 3 is beyond [2]");
    assert!(message(Buckets::new(&[3], [4, 4], &[])).contains("do not ascend"));
    let short = Buckets::new(&[3], [4], &[]).unwrap();
    let error = Loader::new(source.clone()).buckets(short).epoch(0).unwrap_err();
    assert_eq!(error.to_string(), "buckets: 1 lengths for 101 samples");

    // A field of another name, and lengths that are not those of the samples.
    let misspelled = Loader::new(source.clone()).buckets(Buckets::new(&[4; 101], [4], &["X"]).unwrap());
    let expected = r#"buckets: no field 'X' to cut: the samples have ["x", "length", "y"]"#;
    assert_eq!(misspelled.fields().unwrap_err().to_string(), expected);
    assert_eq!(misspelled.epoch(0).unwrap_err().to_string(), expected);
    let mut lengths = source.lengths();
    lengths.reverse();
    let reversed = Buckets::new(&lengths, [5, 10, 20, 40], &["x"]).unwrap();
    let outcome: Result<Vec<_>, _> = Loader::new(source).buckets(reversed).epoch(0).unwrap().collect();
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains(": buckets: field 'x': its bucket cuts off") && error.contains("no padding"));
}

#[test]
fn mixup_is_the_same_for_any_threads() {
    let loader = Loader::new(numbers(50))
        .batch(8)
        .shuffle(9)
        .map("class", |sample, _| {
            if let Some(field) = sample.field_mut("y") {
                let class = field.values.as_i32().map_or(0, |values| values[0] % 4);
                *field = unisono_data::Field::i32([], [class]);
            }
        })
        .try_map("one_hot", one_hot("y", 4))
        .map_batch("mixup", augment::mixup(&["x", "y"], 0.4));
    let whole = same_however(&loader);
    assert!(whole[0].f32("y").unwrap().iter().any(|share| *share > 0.0 && *share < 1.0));
    let reshaping = loader.map_batch("reshape", |batch, _| {
        batch.remove("x");
        Ok(())
    });
    let error = reshaping.epoch(0).unwrap().next().unwrap().unwrap_err().to_string();
    assert!(error.starts_with("epoch 0, batch from position 0: fields [\"y\"], expected"), "{error}");
}

/// Samples 3, 17 and 31 are bad; the last of them only until `healed` is set.
struct Spotty(Memory, Arc<AtomicBool>);

impl Source for Spotty {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn fields(&self) -> &[FieldSpec] {
        self.0.fields()
    }
    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        match index {
            3 | 17 => Err(DataError::other("torn")),
            31 if !self.1.load(Ordering::Relaxed) => panic!("stained"),
            _ => self.0.fetch(index),
        }
    }
}

#[test]
fn bad_samples_are_skipped_up_to_the_number_and_stay_skipped() {
    let healed = Arc::new(AtomicBool::new(false));
    let loader = |skip| {
        Loader::new(Spotty(numbers(40), healed.clone()))
            .batch(6)
            .shuffle(8)
            .skip_bad(skip)
            .threads(3)
            .prefetch(2)
    };
    let mut batches = loader(3).epochs(Position::default(), 3).unwrap();
    let mut whole = Vec::new();
    let mut places = Vec::new();
    while let Some(batch) = batches.next() {
        whole.push(batch.unwrap());
        places.push(batches.progress());
    }
    assert_eq!(batches.progress().skipped, [3, 17, 31]);
    let mut reasons: Vec<_> = batches.skip_reasons().iter().map(ToString::to_string).collect();
    reasons.sort();
    assert_eq!(
        reasons,
        ["sample 17: fetch: torn", "sample 31: fetch: panicked: stained", "sample 3: fetch: torn"]
    );
    let mut taken = batches.take_skipped();
    taken.sort_by_key(|(index, _)| *index);
    let taken: Vec<_> = taken.into_iter().map(|(index, why)| (index, why.to_string())).collect();
    assert_eq!(taken[0], (3, "sample 3: fetch: torn".to_owned()));
    assert_eq!((taken.len(), batches.skip_reasons().len(), batches.take_skipped().len()), (3, 0, 0));
    assert_eq!(batches.progress().skipped, [3, 17, 31]);
    assert_eq!(whole.iter().map(Batch::len).sum::<usize>(), 3 * 37);
    assert!(whole.iter().all(|batch| batch.indices.iter().all(|index| ![3, 17, 31].contains(index))));
    for threads in [1, 8] {
        assert_eq!(whole, all(loader(3).threads(threads).epochs(Position::default(), 3).unwrap()));
    }
    // A sample that is good by the time of the resume stays out, and so does one that becomes good while
    // running.
    healed.store(true, Ordering::Relaxed);
    for (i, place) in places.iter().enumerate().filter(|(_, place)| place.skipped.contains(&31)) {
        assert_eq!(all(loader(3).epochs(place.clone(), 3).unwrap()), whole[i + 1..]);
    }
    healed.store(false, Ordering::Relaxed);
    let mut batches = loader(3).epochs_from(Position::default()).unwrap();
    while batches.progress().skipped.len() < 3 {
        batches.next().unwrap().unwrap();
    }
    healed.store(true, Ordering::Relaxed);
    assert!(batches.by_ref().take(40).all(|batch| !batch.unwrap().indices.contains(&31)));
    healed.store(false, Ordering::Relaxed);

    // One more bad sample than allowed is an error, and always the same one.
    let outcome = |threads| {
        let mut batches = loader(2).threads(threads).epochs_from(Position::default()).unwrap();
        let good = batches.by_ref().take_while(Result::is_ok).count();
        (good, batches.progress())
    };
    assert!((0..3).all(|_| outcome(1) == outcome(8)));
    let error =
        loader(2).epochs_from(LoaderState { position: Position::default(), skipped: vec![3, 17, 31] });
    assert_eq!(error.unwrap_err().to_string(), "skip_bad: 3 samples were skipped, but only 2 may be");
    assert!(loader(0).epochs_from(Position::default()).unwrap().any(|batch| batch.is_err()));
}

/// A sample that fails by what was drawn is good in other epochs, and the transform of a batch mixes samples.
#[test]
fn what_fails_by_draws_is_out_of_later_batches_with_and_without_a_resume() {
    let loader = Loader::new(numbers(60)).batch(6).shuffle(8).skip_bad(60).prefetch(12);
    let loader = loader
        .try_map("unlucky", |_, draws| if draws.below(9) == 0 { Err("bad luck".into()) } else { Ok(()) })
        .map_batch("mix", |stacked, _| {
            let x = stacked.f32_mut("x").ok_or("no x")?;
            let sum: f32 = x.iter().sum();
            x.iter_mut().for_each(|x| *x += sum);
            if sum == 0.0 { Err("nothing".into()) } else { Ok(()) }
        });
    let mut batches = loader.clone().threads(1).epochs(Position::default(), 4).unwrap();
    let (mut whole, mut places) = (Vec::new(), Vec::new());
    while let Some(batch) = batches.next() {
        whole.push(batch.unwrap());
        places.push(batches.progress());
    }
    let lost: Vec<usize> = places.iter().map(|place| place.skipped.len()).collect();
    assert!(lost[9] > 0 && lost[9] < lost[19] && lost[19] < lost[29], "{lost:?}");
    for threads in [1, 4] {
        let loader = loader.clone().threads(threads);
        assert_eq!(whole, all(loader.epochs(Position::default(), 4).unwrap()));
        for (i, place) in places.iter().enumerate() {
            assert_eq!(all(loader.epochs(place.clone(), 4).unwrap()), whole[i + 1..], "after batch {i}");
        }
    }
    // The order of the source is that of a loader without bad samples.
    let plain = all(Loader::new(numbers(60)).batch(6).shuffle(8).epochs(Position::default(), 4).unwrap());
    for batch in &whole {
        let full = plain.iter().find(|b| (b.epoch, b.first) == (batch.epoch, batch.first)).unwrap();
        for (row, &index) in batch.indices.iter().enumerate() {
            assert_eq!(full.indices[(batch.position_of(row) - batch.first) as usize], index);
        }
    }
}

#[test]
fn a_batch_of_nothing_but_bad_samples_is_passed_over() {
    let loader = Loader::new(numbers(20)).batch(4).skip_bad(4).threads(2).try_map("picky", |sample, _| {
        let bad =
            sample.field("x").and_then(|x| x.values.as_f32()).is_some_and(|x| (8.0..12.0).contains(&x[0]));
        if bad { Err("bad".into()) } else { Ok(()) }
    });
    let batches = all(loader.epoch(0).unwrap());
    assert_eq!(
        batches.iter().map(|batch| (batch.first, batch.len())).collect::<Vec<_>>(),
        [(0, 4), (4, 4), (12, 4), (16, 4)]
    );
    // The shapes come from the first sample that does not fail.
    let first = Loader::new(numbers(20)).batch(4).skip_bad(2).try_map("picky", |sample, _| {
        let bad = sample.field("x").and_then(|x| x.values.as_f32()).is_some_and(|x| x[0] < 2.0);
        if bad { Err("bad".into()) } else { Ok(()) }
    });
    assert_eq!(all(first.epoch(0).unwrap())[0].indices, [2, 3]);
}

/// A source of images of varying size, made equal by a transform.
struct Sizes([FieldSpec; 1]);

impl Source for Sizes {
    fn len(&self) -> u64 {
        30
    }
    fn fields(&self) -> &[FieldSpec] {
        &self.0
    }
    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        let (height, width) = (5 + index as usize % 7, 4 + index as usize % 5);
        let pixels: Vec<f32> = (0..height * width * 3).map(|i| i as f32).collect();
        Ok(Sample::new().with("x", unisono_data::Field::f32([height, width, 3], pixels)))
    }
}

#[test]
fn images_of_varying_size_are_made_equal() {
    let v = FieldSpec::VARIES;
    let sizes = || Sizes([FieldSpec { name: "x".into(), dtype: FieldDType::F32, shape: vec![v, v, 3] }]);
    let loader = Loader::new(sizes())
        .batch(8)
        .shuffle(4)
        .try_map("flip", augment::flip_horizontal("x", 0.5))
        .try_map("crop", augment::resized_crop("x", [6, 6], [0.2, 1.0], [0.75, 1.3333]))
        .try_map("turn", augment::rotation("x", 20.0));
    assert_eq!(loader.fields().unwrap()[0].shape, [6, 6, 3]);
    once_an_epoch(&same_however(&loader), 30);
    let message = |loader: Loader| {
        loader.epoch(0).and_then(|batches| batches.collect::<Result<Vec<_>, _>>()).unwrap_err().to_string()
    };
    assert_eq!(
        message(Loader::new(sizes())),
        "field 'x': shape [?, ?, 3] varies between samples, and no transform makes it the same: use \
         ImageFolder::size or augment::resize for pictures, pad for sequences"
    );
    let flipped = Loader::new(sizes()).try_map("flip", augment::flip_horizontal("x", 0.5));
    assert_eq!(
        message(flipped),
        "sample 1: field 'x': shape [6, 5, 3], expected [5, 4, 3], after map 'flip'"
    );
}
