//! Closes devices one at a time.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use unisono_gpu::Stopwatch;

/// Held while a device is closed: NVIDIA's driver 580 was seen to hang where three were closed at once.
static CLOSING: Mutex<()> = Mutex::new(());
/// The longest wait for another device to be closed, since its driver may hang.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two attempts to take the lock.
const PAUSE: Duration = Duration::from_micros(200);

/// Waits until no other device is being closed, but for [`PATIENCE`] at most, and drops the device.
pub(super) fn close<T>(device: T) {
    close_after(&CLOSING, PATIENCE, device);
}

fn close_after<T>(others: &Mutex<()>, patience: Duration, device: T) {
    let _turn = turn(others, patience);
    drop(device);
}

/// Waits for a lock. Returns none if it is not free within this time.
fn turn(lock: &Mutex<()>, patience: Duration) -> Option<MutexGuard<'_, ()>> {
    let mut watch = Stopwatch::start();
    loop {
        match lock.try_lock() {
            Ok(turn) => return Some(turn),
            Err(TryLockError::Poisoned(error)) => return Some(error.into_inner()),
            Err(TryLockError::WouldBlock) if watch.elapsed() >= patience => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Stands for a device, and notes that it is closed.
    struct Device<'a>(&'a AtomicBool);

    impl Drop for Device<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    #[test]
    fn a_device_that_hangs_while_it_is_closed_keeps_no_other_one_open() {
        let (others, is_closed) = (Mutex::new(()), AtomicBool::new(false));
        let hangs = others.lock().unwrap();
        close_after(&others, Duration::from_millis(20), Device(&is_closed));
        assert!(is_closed.load(Ordering::Acquire));
        drop(hangs);
    }

    #[test]
    fn devices_are_closed_one_at_a_time() {
        let (others, is_closed) = (Mutex::new(()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let other = others.lock().unwrap();
            scope.spawn(|| close_after(&others, Duration::from_secs(600), Device(&is_closed)));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!is_closed.load(Ordering::Acquire));
            drop(other);
        });
        assert!(is_closed.load(Ordering::Acquire));
    }
}
