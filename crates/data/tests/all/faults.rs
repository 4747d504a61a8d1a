//! Bad samples, panics, and iterators dropped at any moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use unisono_data::{
    Batches, DataError, Field, FieldDType, FieldSpec, Loader, Memory, Sample, Source, Subset,
};

fn numbers(len: usize) -> Memory {
    let x: Vec<f32> = (0..len).map(|i| i as f32).collect();
    Memory::labelled(x, [1], (0..len as i32).collect::<Vec<_>>()).unwrap()
}

fn label(sample: &Sample) -> i32 {
    sample.field("y").unwrap().values.as_i32().unwrap()[0]
}

/// Returns the number of good batches before the error, and its message. After the error nothing may come.
fn outcome(loader: Loader) -> (usize, String) {
    let mut seen = Vec::new();
    for threads in [1, 4] {
        let mut batches = loader.clone().threads(threads).epoch(0).unwrap();
        let mut good = 0;
        let error = loop {
            match batches.next() {
                Some(Ok(_)) => good += 1,
                Some(Err(error)) => break error,
                None => panic!("no error"),
            }
        };
        assert!(batches.next().is_none() && batches.next().is_none());
        seen.push((good, error.to_string()));
    }
    assert_eq!(seen[0], seen[1]);
    seen.remove(0)
}

#[test]
fn a_panic_names_sample_and_stage() {
    let loader = Loader::new(numbers(40)).batch(5).map("explode", |sample, _| {
        assert!(label(sample) != 17, "boom");
    });
    assert_eq!(outcome(loader), (3, "sample 17: map 'explode': panicked: boom".into()));
    let loader = Loader::new(numbers(40)).batch(5).map("explode", |sample, _| {
        let limit = label(sample);
        assert!(limit < 12, "limit {limit}");
    });
    assert_eq!(outcome(loader), (2, "sample 12: map 'explode': panicked: limit 12".into()));
}

#[test]
fn an_error_of_a_stage_names_sample_and_stage() {
    let loader = Loader::new(numbers(40)).batch(5).try_map("decode", |sample, _| match label(sample) {
        23 => Err("truncated".into()),
        _ => Ok(()),
    });
    assert_eq!(outcome(loader), (4, "sample 23: map 'decode': truncated".into()));
}

#[test]
fn a_deviating_sample_names_shape_and_stage() {
    let with = |field: fn() -> (&'static str, Field)| {
        Loader::new(numbers(20)).batch(5).map("same", |_, _| {}).map("resize", move |sample, _| {
            sample.set("x", Field::f32([2, 2], [0.0; 4]));
            if label(sample) == 17 {
                let (name, field) = field();
                sample.set(name, field);
            }
        })
    };
    assert_eq!(
        outcome(with(|| ("x", Field::f32([4], [0.0; 4])))),
        (3, "sample 17: field 'x': shape [4], expected [2, 2], after map 'resize'".into())
    );
    assert_eq!(
        outcome(with(|| ("x", Field::i32([2, 2], [0; 4])))),
        (3, "sample 17: field 'x': dtype i32, expected f32, after map 'resize'".into())
    );
    assert_eq!(
        outcome(with(|| ("x", Field::f32([2, 2], [0.0; 3])))),
        (3, "sample 17: map 'resize': field 'x': 3 values do not fill shape [2, 2]".into())
    );
    assert_eq!(
        outcome(with(|| ("z", Field::f32([], [0.0])))),
        (3, "sample 17: fields [\"x\", \"y\", \"z\"], expected [\"x\", \"y\"], after map 'resize'".into())
    );
}

#[test]
fn a_subsets_errors_name_the_sources_index() {
    let subset = Subset::new(numbers(40), [0, 30, 31]).unwrap();
    let loader = Loader::new(subset).batch(1).map("picky", |sample, _| assert!(label(sample) != 31, "no"));
    assert_eq!(outcome(loader), (2, "sample 31: map 'picky': panicked: no".into()));
}

#[test]
fn values_that_are_not_finite_name_sample_and_field() {
    for (value, text) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
        let mut x = vec![0.0; 40];
        x[27] = value;
        let source = Memory::labelled(x, [2], vec![0; 20]).unwrap();
        let message = format!("sample 13: require_finite: field 'x': element 1 is {text}");
        assert_eq!(outcome(Loader::new(source.clone()).batch(5).require_finite()), (2, message));
        assert_eq!(Loader::new(source).batch(5).epoch(0).unwrap().filter(Result::is_ok).count(), 4);
    }
}

#[test]
fn settings_are_checked_at_the_start() {
    let message = |loader: Loader| loader.epoch(0).unwrap_err().to_string();
    let loader = || Loader::new(numbers(4));
    assert_eq!(message(loader().batch(0)), "batch: a batch needs at least one sample");
    assert_eq!(message(loader().threads(0)), "threads: 0 is not within 1 and 1024");
    assert!(message(loader().prefetch(usize::MAX)).starts_with("prefetch: "));
    assert_eq!(message(Loader::new(numbers(0))), "source: it has no samples");
    assert_eq!(message(Loader::new(numbers(0)).map("a", |_, _| {})), "source: it has no samples");
    let twice = loader().map("crop", |_, _| {}).map("crop", |_, _| {});
    assert_eq!(message(twice), "map: two are called 'crop', so they would draw alike");
    let unnamed = loader().map("", |_, _| {}).map("", |_, _| {});
    assert_eq!(message(unnamed), "map: two are called '', so they would draw alike");
    // Also where the fields of the first one are known.
    let first = loader().map_batch("mix", |_, _| Ok(()));
    first.fields().unwrap();
    let twice = first.map_batch("mix", |_, _| Ok(()));
    assert_eq!(message(twice), "map_batch: two are called 'mix', so they would draw alike");
    loader().require_finite().require_finite().epoch(0).unwrap();
    assert_eq!(loader().batch(usize::MAX).epoch(0).unwrap().count(), 1);
}

/// A source whose samples are not as it declares them.
struct Liar([FieldSpec; 1]);

impl Source for Liar {
    fn len(&self) -> u64 {
        1 << 60
    }
    fn fields(&self) -> &[FieldSpec] {
        &self.0
    }
    fn describe(&self, index: u64) -> String {
        format!("images/{index}.jpg")
    }
    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        match index {
            0..5 => Ok(Sample::new().with("x", Field::f32([1], [0.0]))),
            5 => Ok(Sample::new().with("x", Field::f32([2], [0.0; 2]))),
            6 => Err(DataError::other("not a picture")),
            _ => panic!("out of ink"),
        }
    }
}

#[test]
fn a_source_is_not_trusted() {
    let loader = |from| {
        let liar = Liar([FieldSpec { name: "x".into(), dtype: FieldDType::F32, shape: vec![1] }]);
        Loader::new(Subset::new(liar, [0, from]).unwrap()).batch(1)
    };
    assert_eq!(outcome(loader(5)).1, "images/5.jpg: field 'x': shape [2], expected [1], after fetch");
    assert_eq!(outcome(loader(6)).1, "images/6.jpg: fetch: not a picture");
    assert_eq!(outcome(loader(7)).1, "images/7.jpg: fetch: panicked: out of ink");

    let liar = Liar([FieldSpec { name: "x".into(), dtype: FieldDType::F32, shape: vec![1] }]);
    let error = Loader::new(liar).batch(usize::MAX).epoch(0).unwrap().next().unwrap().unwrap_err();
    assert!(error.to_string().starts_with("field 'x': no memory for"), "{error}");
}

/// Drops the iterator at different moments, while each thread has seconds of work left in its batch: more
/// than drop waits for a thread that does not look whether it is to end. When drop returns, the threads must
/// be gone.
#[test]
fn dropping_the_iterator_ends_its_threads_at_once() {
    for taken in [0, 1] {
        for pause in [0, 5, 50] {
            let alive = Arc::new(());
            let watched = alive.clone();
            let loader = Loader::new(numbers(50_000)).batch(5000).threads(4).prefetch(2);
            let loader = loader.map("slow", move |sample, _| {
                let _held = &watched;
                // The batch that is taken comes soon.
                std::thread::sleep(Duration::from_millis(u64::from(label(sample) >= 5000)));
            });
            let mut batches = loader.epoch(0).unwrap();
            drop(loader);
            assert_eq!(batches.by_ref().take(taken).filter(Result::is_ok).count(), taken);
            std::thread::sleep(Duration::from_millis(pause));
            drop(batches);
            assert_eq!(Arc::strong_count(&alive), 1, "threads ended and let go of the pipeline");
        }
    }
}

fn wait_until_ready(batches: &Batches, count: usize) {
    let since = Instant::now();
    while batches.ready() < count {
        assert!(since.elapsed() < Duration::from_secs(30), "{batches:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_full_queue_holds_the_workers_back() {
    let made = Arc::new(AtomicUsize::new(0));
    let counter = made.clone();
    let loader = Loader::new(numbers(1000)).batch(10).threads(3).prefetch(2).map("count", move |_, _| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let mut batches = loader.epoch(0).unwrap();
    batches.next().unwrap().unwrap();
    wait_until_ready(&batches, 5);
    // This leaves time for more, if anything were to make more.
    std::thread::sleep(Duration::from_millis(50));
    // One sample goes through the transform twice, to find the shapes and to see that the result is the same.
    // One batch was taken, and five tickets are out.
    assert_eq!(made.load(Ordering::Relaxed), 2 + 10 + 5 * 10);
    assert_eq!(batches.ready(), 5);
    assert_eq!(batches.count(), 99);
    assert_eq!(made.load(Ordering::Relaxed), 2 + 1000);
}

#[test]
fn waiting_is_measured() {
    let slow = Loader::new(numbers(4)).batch(2).threads(1).map("slow", |_, _| {
        std::thread::sleep(Duration::from_millis(100));
    });
    let mut batches = slow.epoch(0).unwrap();
    for batch in batches.by_ref() {
        batch.unwrap();
    }
    assert!(batches.waited() >= Duration::from_millis(30), "{:?}", batches.waited());

    let fast = Loader::new(numbers(4)).batch(2).threads(1);
    let mut batches = fast.epoch(0).unwrap();
    wait_until_ready(&batches, 2);
    for batch in batches.by_ref() {
        batch.unwrap();
    }
    assert_eq!(batches.waited(), Duration::ZERO);
}
