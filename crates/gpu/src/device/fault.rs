//! Turns the three ways in which wgpu reports trouble (error scopes, the uncaptured handler, the lost
//! callback) into one error.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::GpuError;

/// What a driver does that reports work as done which it has not done. See [`crate::Device::lie`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Lie {
    /// It accepts every submission and runs none, so that the host reads what its memory held.
    Nothing = 1,
    /// It runs everything, and what the host reads is zeros.
    Zeros = 2,
    /// It runs everything, and the host reads what an earlier submission left, or reads too early.
    Stale = 3,
}

/// The errors of a device outside of any error scope. The device and its callbacks share it.
#[derive(Debug)]
pub(crate) struct Faults {
    /// The adapter's label.
    pub adapter: String,
    first: Mutex<Option<GpuError>>,
    lost: Mutex<Option<String>>,
    abandoned: AtomicBool,
    /// Which run of commands from now on is left out; 0 for none.
    left_out: AtomicU64,
    /// The [`Lie`] of the driver; 0 for none.
    lie: AtomicU8,
    /// Which launch of each plan is left out, counted from 1; 0 for none.
    skipped: AtomicU64,
}

impl Faults {
    pub fn watch(adapter: String, device: &wgpu::Device) -> Arc<Self> {
        let faults = Arc::new(Self {
            adapter,
            first: Mutex::default(),
            lost: Mutex::default(),
            abandoned: AtomicBool::new(false),
            left_out: AtomicU64::new(0),
            lie: AtomicU8::new(0),
            skipped: AtomicU64::new(0),
        });
        let uncaptured = Arc::clone(&faults);
        device.on_uncaptured_error(Arc::new(move |error| {
            let error = translate("a command", 0, error);
            hold(&uncaptured.first).get_or_insert(error);
        }));
        let lost = Arc::clone(&faults);
        device.set_device_lost_callback(move |reason, message| lost.lose(&format!("{reason:?}: {message}")));
        faults
    }

    /// Returns the first error since the last call, or the loss of the device, which stays.
    pub fn check(&self) -> Result<(), GpuError> {
        if let Some(reason) = hold(&self.lost).clone() {
            return Err(GpuError::Lost { adapter: self.adapter.clone(), reason });
        }
        hold(&self.first).take().map_or(Ok(()), Err)
    }

    /// Marks the device as lost. Of several reasons the first one is kept.
    pub fn lose(&self, reason: &str) {
        hold(&self.lost).get_or_insert_with(|| reason.trim().to_owned());
    }

    /// Marks the device to be leaked instead of closed: it may never finish its work, so that closing it
    /// could hang.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
    }

    /// Injects a fault: leaves out the commands of a run, the first of which has the number 1.
    pub fn leave_out(&self, run: u64) {
        self.left_out.store(run, Ordering::Relaxed);
    }

    /// Injects a fault: the driver lies from now on.
    pub fn lie(&self, lie: Lie) {
        self.lie.store(lie as u8, Ordering::Relaxed);
    }

    /// Returns whether this lie was injected.
    pub fn lies(&self, lie: Lie) -> bool {
        self.lie.load(Ordering::Relaxed) == lie as u8
    }

    /// Injects a fault: of each plan, this launch, counted from 1, is left out from now on.
    pub fn skip(&self, launch: u64) {
        self.skipped.store(launch, Ordering::Relaxed);
    }

    /// Returns whether this launch of a plan, counted from 0, is left out.
    pub fn skips(&self, launch: usize) -> bool {
        self.skipped.load(Ordering::Relaxed) == launch as u64 + 1
    }

    /// Returns whether the commands of the run that begins here are left out.
    pub fn leaves_out(&self) -> bool {
        if self.lies(Lie::Nothing) {
            return true;
        }
        let less = |left: u64| left.checked_sub(1);
        self.left_out.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) == Ok(1)
    }

    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }
}

/// Runs `make` on this thread and turns whatever wgpu reports meanwhile into an error about `what`.
pub(crate) fn scoped<T>(
    device: &wgpu::Device,
    what: &str,
    bytes: u64,
    make: impl FnOnce() -> T,
) -> Result<T, GpuError> {
    let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
    let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let made = make();
    let errors = [
        pollster::block_on(validation.pop()),
        pollster::block_on(internal.pop()),
        pollster::block_on(memory.pop()),
    ];
    match errors.into_iter().flatten().next() {
        Some(error) => Err(translate(what, bytes, error)),
        None => Ok(made),
    }
}

fn translate(what: &str, bytes: u64, error: wgpu::Error) -> GpuError {
    let what = what.to_owned();
    match error {
        wgpu::Error::OutOfMemory { .. } => GpuError::OutOfMemory { what, bytes },
        wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
            let message = description.trim_start_matches("Validation Error").trim_start();
            let message = message.trim_start_matches("Caused by:").trim().to_owned();
            GpuError::Validation { what, message }
        }
    }
}

/// Locks a mutex, also after a panic of another thread: what these mutexes hold is never half changed.
pub(crate) fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
