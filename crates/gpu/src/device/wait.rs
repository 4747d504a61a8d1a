//! Waits for a device: in short slices, up to the deadline, and with every kind of trouble turned into an
//! error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::device::staging::Staging;
use crate::{Backend, Device, GpuError, Stopwatch};

/// The longest single wait on GL: it holds a lock, and other threads that wait for that lock panic after 6 s.
const GL_WAIT: Duration = Duration::from_millis(100);

impl Device {
    /// Waits until this staging memory, which the submission `last` may still use, is mapped.
    pub(crate) fn settle(
        &self,
        staging: &Staging,
        last: Option<&wgpu::SubmissionIndex>,
    ) -> Result<(), GpuError> {
        if staging.ready() == Ok(true) { Ok(()) } else { self.until(last, || staging.ready()) }
    }

    /// Polls the device until `ready` says so, and at least until the submission `index` is done.
    pub(crate) fn until(
        &self,
        index: Option<&wgpu::SubmissionIndex>,
        ready: impl Fn() -> Result<bool, ()>,
    ) -> Result<(), GpuError> {
        self.counters.wait();
        let mut watch = Stopwatch::start();
        let mut waiting = index.is_some();
        loop {
            let state = ready();
            self.faults.check()?;
            match state {
                Ok(true) if !waiting => return Ok(()),
                Ok(_) => {}
                Err(()) => {
                    return Err(self.blame("staging", "the driver refused to map it"));
                }
            }
            let slice = watch.slice(Some(self.options.deadline));
            if slice.is_zero() {
                self.faults.abandon();
                return Err(GpuError::Timeout {
                    adapter: self.faults.adapter.clone(),
                    after: watch.elapsed(),
                });
            }
            let timeout = Some(if self.adapter.backend == Backend::Gl { slice.min(GL_WAIT) } else { slice });
            match self.poll(wgpu::PollType::Wait { submission_index: index.cloned(), timeout })? {
                Ok(_) => {
                    waiting = false;
                    std::thread::yield_now();
                }
                Err(wgpu::PollError::Timeout) => {}
                Err(error) => return Err(self.blame("waiting", error)),
            }
        }
    }

    /// Polls the device once. wgpu panics if the device is lost in the middle of a poll; this turns the panic
    /// into an error. (The panic hook still runs, so a line may appear on standard error.)
    fn poll(&self, how: wgpu::PollType) -> Result<Result<wgpu::PollStatus, wgpu::PollError>, GpuError> {
        let polled = catch_unwind(AssertUnwindSafe(|| self.raw.poll(how)));
        polled.map_err(|_| {
            self.faults.lose("the driver failed while it was waited for");
            self.faults.abandon();
            self.faults.check().err().unwrap_or_else(|| GpuError::plan("waiting", "lost"))
        })
    }
}
