//! A whole step in one submission, of which two may be in flight: the second is recorded and its data are
//! uploaded while the device computes the first.

use std::time::Instant;

use unisono_graph::plan::Transfer;

use crate::device::clock::Stretch;
use crate::device::mapped::Mapping;
use crate::{Device, GpuError, Timing, Writer};

use super::executable::{Executable, Lane, LoadedSegment};
use super::{record_part, record_uploads};

/// A whole step that was submitted. It may be dropped; its downloads are then lost.
#[must_use = "only a wait tells whether it worked"]
#[derive(Debug)]
pub struct InFlight {
    index: wgpu::SubmissionIndex,
    lane: usize,
    serial: u64,
    timing: Timing,
}

impl InFlight {
    /// Returns where its time went so far.
    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// Returns the lane whose staging it has.
    pub fn lane(&self) -> usize {
        self.lane
    }
}

impl Device {
    /// Submits all segments of a plan as one submission and does not wait. A second step of the same plan may
    /// be submitted before the first one was collected: each has staging of its own, which is made when
    /// `lane` 1 is first used. Nobody but the plan itself decides whether the last segment changes the state.
    ///
    /// `upload` is called as by [`Device::submit`]. A lane that is submitted again before its last submission
    /// was collected is waited for here, and its downloads are dropped.
    ///
    /// # Errors
    /// Those of [`Device::submit`]; [`GpuError::Plan`] if there is no such lane, or if the host maps buffers of
    /// the plan's kernels; [`GpuError::OutOfMemory`] or [`GpuError::Limit`] if there is no memory for the
    /// second lane. Nothing has been submitted then.
    pub fn submit_all(
        &self,
        executable: &mut Executable,
        lane: usize,
        upload: &mut dyn FnMut(&Transfer, &mut Writer<'_>),
    ) -> Result<InFlight, GpuError> {
        self.faults.check()?;
        self.own(executable)?;
        self.unmap_unread()?;
        self.rebind(executable)?;
        let Executable { kernels, bound, segments, .. } = executable;
        if segments.iter().any(LoadedSegment::shares_memory) {
            return Err(GpuError::plan("a step in flight", "the host maps buffers of its kernels"));
        }
        match lane {
            0 => {}
            1 => self.second_lane(segments)?,
            _ => return Err(GpuError::plan(format!("lane {lane}"), "there are two")),
        }
        let start = Instant::now();
        for LoadedSegment { uploads, lanes, .. } in segments.iter_mut() {
            let own = &mut lanes[lane];
            self.reclaim(own)?;
            self.fill(uploads, &own.upload, bound, upload)?;
        }
        let filled = Instant::now();
        let mut encoder = self.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        for LoadedSegment { uploads, lanes, steps } in segments.iter_mut() {
            let Lane { upload, parts, .. } = &mut lanes[lane];
            upload.unmap();
            record_uploads(&mut encoder, uploads, upload, bound);
            let mut first = 0;
            for part in parts {
                record_part(&mut encoder, &steps[first..part.end], part, bound, kernels);
                (part.submitted, part.unread, first) = (Some(filled), true, part.end);
            }
        }
        let index = self.send(encoder.finish());
        let mut serial = 0;
        for LoadedSegment { lanes, .. } in segments.iter_mut() {
            let own = &mut lanes[lane];
            own.last = Some(index.clone());
            own.serial += 1;
            serial = own.serial;
        }
        self.faults.check()?;
        let timing = Timing { upload: filled - start, submit: filled.elapsed(), ..Timing::default() };
        Ok(InFlight { index, lane, serial, timing })
    }

    /// Waits for a step and hands out its downloads, segment by segment and in order.
    ///
    /// # Errors
    /// Those of [`Device::wait`].
    pub fn collect(
        &self,
        executable: &mut Executable,
        step: InFlight,
        download: &mut dyn FnMut(&Transfer, &[u8]),
    ) -> Result<Timing, GpuError> {
        self.own(executable)?;
        let InFlight { index, lane, serial, mut timing } = step;
        let Executable { segments, bound, .. } = executable;
        let is_newest = |loaded: &LoadedSegment| loaded.lanes.get(lane).is_some_and(|own| own.serial == serial);
        if !segments.last().is_some_and(is_newest) {
            return Err(GpuError::plan("a step in flight", "submitted again before it was collected"));
        }
        let start = Instant::now();
        let ready = |loaded: &LoadedSegment| {
            let Lane { upload, parts, .. } = &loaded.lanes[lane];
            Ok(upload.ready()? && parts.iter().try_fold(true, |all, part| Ok(all && part.download.ready()?))?)
        };
        self.until(Some(&index), || segments.iter().try_fold(true, |all, loaded| Ok(all && ready(loaded)?)))?;
        let done = Instant::now();
        timing.wait += done - start;
        for part in segments.iter_mut().flat_map(|loaded| &mut loaded.lanes[lane].parts) {
            let mut mapping = Mapping::of(part.download.blocks.clone());
            let read = self.read(part, bound, &index, &mut mapping, &mut |transfer, bytes| {
                download(transfer, &bytes);
            });
            self.keep_mapped(mapping);
            let device = self.clock.as_ref().zip(read?).zip(part.submitted);
            let device = device.and_then(|((clock, ticks), submitted)| clock.stretch(ticks, submitted, done));
            timing.device = match (timing.device, device) {
                (Some(first), Some(last)) => Some(Stretch { from: first.from, to: last.to }),
                (first, last) => first.or(last),
            };
            part.unread = false;
        }
        timing.download += done.elapsed();
        Ok(timing)
    }
}
