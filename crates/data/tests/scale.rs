//! Far positions, long streams, and what `Seen` reports of them.
//!
//! Alone in its process, because it measures the resident memory of the process.

use std::time::{Duration, Instant};

use unisono_data::{DataError, Field, FieldDType, FieldSpec, Loader, Position, Sample, Seen, Source};

/// A source that computes `len` samples of `size` values.
struct Synthetic {
    len: u64,
    specs: [FieldSpec; 1],
}

impl Synthetic {
    fn new(len: u64, size: usize) -> Self {
        Self { len, specs: [FieldSpec { name: "x".into(), dtype: FieldDType::F32, shape: vec![size] }] }
    }
}

impl Source for Synthetic {
    fn len(&self) -> u64 {
        self.len
    }
    fn fields(&self) -> &[FieldSpec] {
        &self.specs
    }
    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        let size = self.specs[0].shape[0];
        Ok(Sample::new().with("x", Field::f32([size], vec![index as f32; size])))
    }
}

/// Measures from the call to the first batch, which includes starting the threads: sample 10,000,000 of a
/// billion must come as fast as the tenth.
#[test]
fn seeking_takes_under_a_millisecond() {
    let orders: [fn(Loader) -> Loader; 4] = [
        |loader| loader,
        |loader| loader.shuffle(3),
        |loader| loader.shuffle_window(3, 100_000),
        Loader::lanes,
    ];
    for order in orders {
        let loader = order(Loader::new(Synthetic::new(1_000_000_000, 4)).batch(8).threads(2));
        loader.fields().unwrap();
        let seek = |sample| {
            let since = Instant::now();
            let mut batches = loader.epochs_from(Position { epoch: 1, sample }).unwrap();
            assert_eq!(batches.next().unwrap().unwrap().first, sample);
            since.elapsed()
        };
        println!("sample 10: {:?}", seek(10));
        // On a busy machine most tries are disturbed.
        let far = (0..2000).map(|_| seek(10_000_000)).find(|took| *took < Duration::from_millis(1));
        assert!(far.is_some(), "no try took under a millisecond");
        println!("sample 10,000,000: {far:?}");
    }
}

/// Returns this process's resident memory in bytes.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

/// Streams 1 GB, or 20 GB with `UNISONO_LONG` set, with a consumer that is slow at first, so that the queue
/// fills.
#[cfg(target_os = "linux")]
#[test]
fn a_long_stream_stays_within_its_budget() {
    const BUDGET: u64 = 64 << 20;
    // A sample takes 256 KiB, and a batch 8 MiB.
    let total: u64 = if std::env::var_os("UNISONO_LONG").is_some() { 20 << 30 } else { 1 << 30 };
    let loader =
        Loader::new(Synthetic::new(total >> 18, 1 << 16)).batch(32).shuffle(1).prefetch_bytes(BUDGET);
    let before = resident();
    let (mut most, mut bytes) = (0, 0);
    let mut batches = loader.epoch(0).unwrap();
    for batch in batches.by_ref() {
        bytes += batch.unwrap().f32("x").unwrap().len() as u64 * 4;
        if bytes < 128 << 20 {
            std::thread::sleep(Duration::from_millis(30));
        }
        most = most.max(resident());
    }
    println!("{} MB streamed, {} MB resident beyond {}", bytes >> 20, (most - before) >> 20, before >> 20);
    println!("{}", batches.seen());
    assert_eq!(bytes, total);
    assert!(most < before + BUDGET + (100 << 20), "{most} bytes resident, {before} before");
}

#[test]
fn the_verdict_names_the_slow_transform() {
    let loader = Loader::new(Synthetic::new(60, 16))
        .batch(10)
        .threads(2)
        .map("fast", |_, _| {})
        .map("molasses", |_, _| std::thread::sleep(Duration::from_millis(2)))
        .map("also fast", |_, _| {});
    let mut batches = loader.epoch(0).unwrap();
    assert_eq!(batches.by_ref().filter(Result::is_ok).count(), 6);
    let seen = batches.seen();
    println!("{seen}");
    let verdict = seen.verdict();
    assert!(verdict.starts_with("input was the bottleneck: waited "), "{verdict}");
    assert!(verdict.contains("slowest stage map 'molasses': "), "{verdict}");
    assert_eq!((seen.produced, seen.consumed), (60, 60));
    let names: Vec<_> = seen.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names, ["fetch", "map 'fast'", "map 'molasses'", "map 'also fast'", "stack"]);
    assert!(seen.slowest().unwrap().time >= Duration::from_millis(120));

    // A consumer slower than the loader, which comes when all that may be ready is ready, does not wait, and
    // the threads idle. A busy machine may start them late, which counts less with each batch.
    let mut batches = Loader::new(Synthetic::new(2_000, 16)).batch(2).threads(2).epoch(0).unwrap();
    let idles = |seen: &Seen| seen.idle > seen.elapsed / 2;
    for taken in 1..=900 {
        while batches.ready() < batches.seen().depth {
            std::thread::sleep(Duration::from_millis(1));
        }
        batches.next().unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        if taken >= 30 && idles(&batches.seen()) {
            break;
        }
    }
    let seen = batches.seen();
    assert!(seen.verdict().starts_with("input kept up: waited "), "{}", seen.verdict());
    assert_eq!(seen.waited, Duration::ZERO);
    assert!(idles(&seen), "{seen:?}");
}

/// Checks that threads and depth grow while the consumer waits, and not beyond the budget.
#[test]
fn the_depth_follows_the_pace() {
    let run = |bytes: u64, sleep_us: u64| {
        let loader = Loader::new(Synthetic::new(2_000, 256)).batch(4).threads(2).prefetch_bytes(bytes);
        let loader = loader.map("slow", move |_, _| std::thread::sleep(Duration::from_micros(sleep_us)));
        let mut batches = loader.epoch(0).unwrap();
        let start = batches.seen().depth;
        assert_eq!(batches.by_ref().take(200).filter(Result::is_ok).count(), 200);
        (start, batches.seen().depth)
    };
    // A batch takes 4 KiB.
    let (start, end) = run(100 << 12, 50);
    assert!(start == 3 && end > 10 && end <= 100, "{start} to {end}");
    let (start, end) = run(5 << 12, 50);
    assert!(start == 3 && end == 5, "{start} to {end}");
}
