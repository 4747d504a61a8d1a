use super::*;

/// Returns the sample of a number.
fn sample(number: i32) -> Sample {
    let state = Field::f32([2], [number as f32, -number as f32]);
    Sample::new().with("x", state).with("action", Field::i32([], [number]))
}

fn filled(capacity: usize, samples: i32) -> Replay {
    let mut replay = Replay::new(capacity, 7);
    (0..samples).for_each(|number| replay.push(&sample(number)).unwrap());
    replay
}

#[test]
fn batches_are_of_the_newest_samples_and_know_their_numbers() {
    for (capacity, samples) in [(10, 4), (10, 10), (10, 23), (1, 3)] {
        let mut replay = filled(capacity, samples);
        assert_eq!(replay.len(), capacity.min(samples as usize));
        let mut seen = std::collections::BTreeSet::new();
        for at in 0..40 {
            let batch = replay.draw(5).unwrap();
            assert_eq!((batch.first, batch.index_in_epoch, batch.after.sample), (5 * at, at, 5 * at + 5));
            for row in 0..5 {
                let number = batch.indices[row] as i32;
                assert_eq!(batch.i32("action").unwrap()[row], number);
                assert_eq!(batch.f32("x").unwrap()[2 * row..][..2], [number as f32, -number as f32]);
                seen.insert(number);
            }
        }
        let newest = (samples - capacity as i32).max(0)..samples;
        assert_eq!(seen, newest.collect());
    }
}

/// From before, at, and behind the point where the buffer is full; by less and by more than its capacity.
#[test]
fn a_buffer_goes_back_to_its_mark() {
    for before in [0, 1, 7, 11, 12, 13, 30] {
        for more in [0, 1, 5, 11, 12, 13, 40] {
            let mut replay = filled(12, before);
            if before > 0 {
                replay.draw(4).unwrap();
            }
            replay.mark();
            let marked = replay.clone();
            assert!(!replay.is_after_mark());
            for _ in 0..2 {
                (before..before + more).for_each(|number| replay.push(&sample(-number)).unwrap());
                assert_eq!(replay.is_after_mark(), more > 0);
                if before + more > 0 {
                    replay.draw(3).unwrap();
                    assert!(replay.is_after_mark());
                    assert_ne!(replay, marked);
                }
                replay.rewind();
                assert_eq!(replay, marked, "{before} samples, and {more} more");
                assert_eq!(replay.to_bytes().unwrap(), marked.to_bytes().unwrap());
            }
        }
    }
}

#[test]
fn a_saved_buffer_goes_on_with_the_same_draws() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("replay.safetensors");
    for samples in [0, 3, 12, 40] {
        let mut replay = filled(12, samples);
        if samples > 0 {
            replay.draw(6).unwrap();
        }
        replay.save(&path).unwrap();
        let mut opened = Replay::open(&path).unwrap();
        assert_eq!(opened, replay);
        let bytes = std::fs::read(&path).unwrap();
        opened.save(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        for number in samples..samples + 5 {
            opened.push(&sample(number)).unwrap();
            replay.push(&sample(number)).unwrap();
            let batch = replay.draw(6).unwrap();
            assert_eq!(opened.draw(6).unwrap(), batch);
            assert!(replay.len() < 5 || replay.clone().draw(6).unwrap().indices != batch.indices);
        }
    }
    let mut other = Replay::new(12, 8);
    (0..40).for_each(|number| other.push(&sample(number)).unwrap());
    assert_ne!(other.draw(6).unwrap().indices, filled(12, 40).draw(6).unwrap().indices);
    let whole = std::fs::read(&path).unwrap();
    for broken in [&whole[..whole.len() - 1], &whole[..20], b""] {
        std::fs::write(&path, broken).unwrap();
        let error = Replay::open(&path).unwrap_err().to_string();
        assert!(error.contains("replay.safetensors: replay buffer: "), "{error}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut replay = Replay::new(3, 0);
    assert_eq!(replay.draw(2).unwrap_err().to_string(), "replay: a batch of 2 from 0 samples");
    replay.push(&sample(1)).unwrap();
    assert_eq!(replay.draw(0).unwrap_err().to_string(), "replay: a batch of 0 from 1 samples");
    let other = Sample::new().with("x", Field::f32([3], [0.0; 3]));
    assert!(replay.push(&other).unwrap_err().to_string().contains("not those of the first sample"));
    let short = Sample::new().with("x", Field::f32([2], [0.0])).with("action", Field::i32([], [1]));
    assert!(replay.push(&short).is_err());
    assert!(Replay::new(0, 0).push(&sample(1)).is_err());
    assert!(Replay::new(1, 0).push(&Sample::new()).is_err());
    assert_eq!((replay.len(), replay.pushed(), replay.fields().len()), (1, 1, 2));
}
