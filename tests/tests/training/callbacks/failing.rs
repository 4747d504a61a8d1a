//! Callbacks that fail.

use super::*;

/// What a callback fails by, its own error or a panic, is an error that names it, and no callback is lost.
#[test]
fn a_callback_that_panics_is_an_error_and_the_next_fit_goes_on() {
    let (train, held_out) = data();
    let moody = || builder(1).callback(Moody { sum: 0.0 });
    let mut sound = build(moody());
    sound.fit(&train, Some(&held_out), 3).unwrap();
    let failing = Arc::new(Mutex::new(0));
    let fails = Arc::clone(&failing);
    let mut trainer = build(moody().callback(on_epoch("printer", Influence::None, move |epoch, _| {
        let mut times = fails.lock().unwrap_or_else(|error| error.into_inner());
        *times += u32::from(epoch.epoch == 1);
        match *times {
            1 if epoch.epoch == 1 => Err(Error::other("out of paper")),
            2 if epoch.epoch == 1 => panic!("out of ink"),
            _ => Ok(()),
        }
    })));
    for text in ["callback \"printer\": out of paper", "callback \"printer\": panicked: out of ink"] {
        let error = trainer.fit(&train, Some(&held_out), 3).unwrap_err();
        assert!(matches!(error, Error::Callback { .. }) && error.to_string() == text, "{error}");
        assert_eq!(trainer.history().len(), 1);
    }
    trainer.fit(&train, Some(&held_out), 3).unwrap();
    assert_eq!(trainer.history(), sound.history());
    assert_eq!(trainer.state_sha256().unwrap(), sound.state_sha256().unwrap());
}

/// A callback that fails leaves an epoch that has not ended.
#[test]
fn an_epoch_whose_callback_fails_ends_with_the_next_fit() {
    let (train, held_out) = data();
    let moody = || builder(1).callback(Moody { sum: 0.0 });
    let mut sound = build(moody());
    sound.fit(&train, Some(&held_out), 3).unwrap();
    let failing = Arc::new(Mutex::new(true));
    let fails = Arc::clone(&failing);
    let mut trainer = build(moody().callback(on_epoch("fails", Influence::None, move |epoch, _| {
        if epoch.epoch == 1 && *fails.lock().unwrap() { Err(Error::Stopped) } else { Ok(()) }
    })));
    trainer.fit(&train, Some(&held_out), 3).unwrap();
    assert_eq!(trainer.history().len(), 1);
    *failing.lock().unwrap() = false;
    trainer.fit(&train, Some(&held_out), 3).unwrap();
    assert_eq!(trainer.history(), sound.history());
    assert_eq!(trainer.state_sha256().unwrap(), sound.state_sha256().unwrap());
}

/// Weights that a callback has restored at the end of an epoch which then does not end are those of before.
#[test]
fn weights_that_were_restored_before_a_callback_failed_are_put_back() {
    let (train, held_out) = data();
    let stopping = || builder(2).callback(EarlyStopping::lowest("loss").patience(1).restore_best());
    let mut sound = build(stopping());
    sound.fit(&train, Some(&held_out), 60).unwrap();
    let last = sound.history().last().unwrap().epoch;
    let failing = Arc::new(Mutex::new(true));
    let fails = Arc::clone(&failing);
    let mut trainer = build(stopping().callback(on_epoch("fails", Influence::None, move |epoch, _| {
        let fails = std::mem::take(&mut *fails.lock().unwrap()) && epoch.epoch == last;
        if fails { Err(Error::Stopped) } else { Ok(()) }
    })));
    *failing.lock().unwrap() = false;
    trainer.fit(&train, Some(&held_out), last).unwrap();
    *failing.lock().unwrap() = true;
    trainer.fit(&train, Some(&held_out), 60).unwrap();
    assert_eq!(trainer.history().len(), last as usize, "its end failed");
    trainer.fit(&train, Some(&held_out), 60).unwrap();
    assert_eq!(trainer.history(), sound.history());
    assert_eq!(trainer.state_sha256().unwrap(), sound.state_sha256().unwrap());
}
