//! Loops of one's own: what they record is the run's, as a fit's would be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use unisono::Trainer;
use unisono::data::{Loader, LoaderState};
use unisono_tests::{FEATURES, blobs, perceptron};

const SAMPLES: usize = 23;
const BATCH: usize = 6;

/// Two samples are bad until they are mended.
fn data() -> (Loader, Arc<AtomicBool>) {
    let source = blobs(SAMPLES, 3).unwrap();
    let x = source.array("x").and_then(|x| x.as_f32()).unwrap();
    let marked = [5, 17].map(|i| x[i * FEATURES]);
    let mended = Arc::new(AtomicBool::new(false));
    let good = Arc::clone(&mended);
    let loader = Loader::new(source).shuffle(4).threads(1).batch(BATCH).skip_bad(2);
    let loader = loader.try_map("bad", move |sample, _| {
        let bad = marked.contains(&sample.f32_mut("x").unwrap()[0]) && !good.load(Ordering::Relaxed);
        if bad { Err("bad".into()) } else { Ok(()) }
    });
    (loader, mended)
}

fn build(data: &Loader) -> Trainer {
    perceptron(8).global_batch(BATCH).replicas(1).build(&data.fields().unwrap()).unwrap()
}

#[test]
fn epochs_have_means_of_their_own_and_what_was_left_out_stays_so() {
    let (train, mended) = data();
    let mut fitted = build(&train);
    fitted.fit(&train, None, 3).unwrap();

    let dir = tempfile::tempdir().unwrap();
    let mut own = build(&train);
    own.checkpoints(dir.path(), 0).unwrap();
    for batch in train.epochs(LoaderState::default(), 2).unwrap() {
        let batch = batch.unwrap();
        let (epoch, last) = (batch.epoch, batch.after.epoch > batch.epoch);
        let step = own.step(&batch).unwrap();
        assert_eq!(step.done, if last { SAMPLES as u64 } else { batch.after.sample });
        if last {
            assert_eq!(step.so_far, fitted.history()[epoch as usize].train, "epoch {epoch}");
        }
    }
    assert_eq!(own.skipped(), [5, 17]);
    own.save_behind().unwrap();
    own.finish_saves().unwrap();
    drop(own);

    // Good by now, and still left out; and a fit's first epoch is one, whatever was before.
    mended.store(true, Ordering::Relaxed);
    let mut resumed = build(&train);
    resumed.checkpoints(dir.path(), 0).unwrap();
    resumed.resume().unwrap().unwrap();
    resumed.fit(&train, None, 3).unwrap();
    assert_eq!(resumed.history()[..], fitted.history()[2..]);
    assert_eq!(resumed.state_sha256().unwrap(), fitted.state_sha256().unwrap());
}

/// The same epoch again, or another from its start, is not the rest of the one before.
#[test]
fn a_loop_that_starts_elsewhere_starts_its_means() {
    let (train, _) = data();
    let mut own = build(&train);
    let first = |epoch: u32| train.epoch(epoch).unwrap().next().unwrap().unwrap();
    for epoch in [0, 4, 1] {
        let batch = first(epoch);
        assert_eq!(own.step(&batch).unwrap().so_far.samples, batch.len() as u64, "epoch {epoch}");
    }
}
