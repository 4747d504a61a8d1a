//! Turns the three ways in which wgpu reports trouble (error scopes, the uncaptured handler, the lost
//! callback) into one error.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::GpuError;

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
}

impl Faults {
    pub fn watch(adapter: String, device: &wgpu::Device) -> Arc<Self> {
        let faults = Arc::new(Self {
            adapter,
            first: Mutex::default(),
            lost: Mutex::default(),
            abandoned: AtomicBool::new(false),
            left_out: AtomicU64::new(0),
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

    /// Returns whether the commands of the run that begins here are left out.
    pub fn leaves_out(&self) -> bool {
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
