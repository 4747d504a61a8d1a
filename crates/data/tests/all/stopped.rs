//! Sources that do not return: who waits for them can be asked to stop, and dropping an iterator does not
//! wait for them for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use unisono_data::{DataError, Field, FieldDType, FieldSpec, Loader, Sample, Source};

/// A source that does not return its samples from `stuck_from` on, as from a disk that hangs.
struct Stuck {
    fields: [FieldSpec; 1],
    stuck_from: u64,
}

impl Source for Stuck {
    fn len(&self) -> u64 {
        100
    }
    fn fields(&self) -> &[FieldSpec] {
        &self.fields
    }
    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        if index >= self.stuck_from {
            loop {
                std::thread::park();
            }
        }
        Ok(Sample::new().with("x", Field::f32([1], [index as f32])))
    }
}

fn loader(stuck_from: u64) -> Loader {
    let fields = [FieldSpec { name: "x".into(), dtype: FieldDType::F32, shape: vec![1] }];
    Loader::new(Stuck { fields, stuck_from }).batch(4).threads(3)
}

/// Runs `work` in a thread, and fails if that takes longer than it may.
fn within<T: Send + 'static>(most: Duration, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (since, thread) = (Instant::now(), spawn(work));
    while !thread.is_finished() {
        assert!(since.elapsed() < most, "it still waits after {most:?}");
        sleep(Duration::from_millis(5));
    }
    thread.join().unwrap()
}

/// Sets a flag after a while.
fn soon(flag: &Arc<AtomicBool>) {
    let flag = Arc::clone(flag);
    spawn(move || {
        sleep(Duration::from_millis(200));
        flag.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_wait_for_a_sample_that_never_comes_ends_on_request() {
    within(Duration::from_secs(10), || {
        let stop = Arc::default();
        let mut batches = loader(8).stop_on(Arc::clone(&stop)).epoch(0).unwrap();
        assert_eq!(batches.next().unwrap().unwrap().indices, [0, 1, 2, 3]);
        assert_eq!(batches.next().unwrap().unwrap().indices, [4, 5, 6, 7]);
        let position = batches.position();
        soon(&stop);
        assert!(matches!(batches.next(), Some(Err(DataError::Stopped))));
        assert!(batches.next().is_none());
        assert_eq!((batches.position(), position.sample), (position, 8), "the next fit starts at this batch");
    });
}

#[test]
fn no_batch_follows_a_request() {
    let stop = Arc::new(AtomicBool::new(false));
    let mut batches = loader(100).stop_on(Arc::clone(&stop)).epoch(0).unwrap();
    batches.next().unwrap().unwrap();
    stop.store(true, Ordering::Relaxed);
    assert!(matches!(batches.next(), Some(Err(DataError::Stopped))));
    assert!(batches.next().is_none());
}

#[test]
fn a_first_sample_that_never_comes_is_waited_for_until_the_request() {
    within(Duration::from_secs(10), || {
        let stop = Arc::default();
        soon(&stop);
        let stopped = loader(0).map("read", |_, _| ()).stop_on(stop).fields();
        assert!(matches!(stopped, Err(DataError::Stopped)), "{stopped:?}");
    });
    let found = loader(1).map("read", |_, _| ()).stop_on(Arc::default()).fields().unwrap();
    assert_eq!(found.len(), 1);
}

#[test]
fn an_iterator_whose_threads_do_not_return_can_be_dropped() {
    within(Duration::from_secs(10), || {
        let mut batches = loader(4).epoch(0).unwrap();
        batches.next().unwrap().unwrap();
        drop(batches);
    });
}
