//! A whole step in one submission, of which two may be in flight: the second is recorded and its data are
//! uploaded while the device computes the first.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unisono_graph::plan::Transfer;

use crate::device::pipeline::Compiled;
use crate::device::record::Recorder;
use crate::{Device, GpuError, Timing, Writer};

use super::bind::Bound;
use super::commands::{record, record_downloads, record_uploads};
use super::executable::{Executable, Kernels, Lane, LoadedSegment, Step};

/// The number of submissions for a step that was not timed yet, where a submission may take too long.
const UNTIMED: usize = 16;

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
    /// Submits all segments of a plan as one submission and does not wait. (With
    /// [`crate::Options::longest_submission`], a step that took longer the last time, or was not timed yet,
    /// is divided into several submissions.)
    ///
    /// `lane`, 0 or 1, chooses the staging memory. A second step of the same plan may be submitted in the
    /// other lane before the first one is collected. The staging memory of lane 1 is created when the lane is
    /// first used. Only the plan itself decides whether the last segment changes the state.
    ///
    /// `upload` is called as by [`Device::submit`]. A lane that is submitted again before its last submission
    /// was collected is waited for here, and its downloads are dropped.
    ///
    /// # Errors
    /// Those of [`Device::submit`]; [`GpuError::Plan`] if there is no such lane, or if the host maps buffers
    /// of the plan's kernels; [`GpuError::OutOfMemory`] or [`GpuError::Limit`] if there is no memory for the
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
        let Executable { kernels: Kernels(kernels), bound, segments, took, .. } = executable;
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
            self.fill(uploads, own, bound, upload)?;
        }
        let filled = Instant::now();
        let launches: usize = segments.iter().map(LoadedSegment::launches).sum();
        let most = launches.div_ceil(self.pieces(*took)).max(1);
        let commands = self.record_all(segments, lane, bound, kernels, most);
        let record = filled.elapsed();
        let index = self.send(commands);
        let mut serial = 0;
        for LoadedSegment { lanes, .. } in segments.iter_mut() {
            let own = &mut lanes[lane];
            own.last = Some(index.clone());
            own.serial += 1;
            serial = own.serial;
        }
        self.faults.check()?;
        let timing = Timing { upload: filled - start, record, submit: filled.elapsed(), ..Timing::default() };
        Ok(InFlight { index, lane, serial, timing })
    }

    /// Records all segments for a lane. Submits what is recorded whenever it has `most` launches, and returns
    /// the rest.
    fn record_all(
        &self,
        segments: &mut [LoadedSegment],
        lane: usize,
        bound: &Bound,
        kernels: &[Arc<Compiled>],
        most: usize,
    ) -> wgpu::CommandBuffer {
        let (mut recorder, mut recorded) = (Recorder::new(self), 0_usize);
        for LoadedSegment { uploads, lanes, steps, .. } in segments {
            let Lane { upload, parts, .. } = &mut lanes[lane];
            upload.unmap();
            record_uploads(&mut recorder, uploads, upload, bound);
            let mut first = 0;
            for part in parts {
                let own = &steps[first..part.end];
                let launches = own.iter().filter(|step| step.is_launch()).count();
                let is_full = launches > 0 && recorded > 0 && recorded.is_multiple_of(most);
                part.submitted = None;
                for (at, piece) in cut(own, recorded, most).into_iter().enumerate() {
                    if at > 0 {
                        part.submitted.get_or_insert_with(Instant::now);
                    }
                    if at > 0 || is_full {
                        self.send_recorded(&mut recorder);
                    }
                    record(&mut recorder, (own, piece), bound, part.timestamps.as_ref(), kernels);
                }
                record_downloads(&mut recorder, part, bound);
                recorded += launches;
                part.submitted.get_or_insert_with(Instant::now);
                (part.unread, first) = (true, part.end);
            }
        }
        recorder.finish()
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
        let Executable { segments, bound, took, .. } = executable;
        let is_newest =
            |loaded: &LoadedSegment| loaded.lanes.get(lane).is_some_and(|own| own.serial == serial);
        if !segments.last().is_some_and(is_newest) {
            return Err(GpuError::plan("a step in flight", "submitted again before it was collected"));
        }
        let start = Instant::now();
        let ready = |loaded: &LoadedSegment| {
            let Lane { upload, parts, .. } = &loaded.lanes[lane];
            Ok(upload.ready()?
                && parts.iter().try_fold(true, |all, part| Ok(all && part.download.ready()?))?)
        };
        self.until(Some(&index), || segments.iter().try_fold(true, |all, loaded| Ok(all && ready(loaded)?)))?;
        let done = Instant::now();
        timing.wait += done - start;
        for part in segments.iter().flat_map(|loaded| &loaded.lanes[lane].parts) {
            self.check_count(&part.download, part.count)?;
        }
        let mut is_timed = true;
        for (part, launches) in segments.iter_mut().flat_map(|loaded| loaded.parts_with_launches(lane)) {
            let device = self.read(part, bound, &index, done, &mut |transfer, bytes| {
                download(transfer, &bytes);
            })?;
            is_timed &= device.is_some() || !launches;
            timing.add_device(device);
        }
        // Half of a step's time is not its time.
        timing.device = timing.device.filter(|_| is_timed);
        timing.download += done.elapsed();
        // Without a device clock, this is an upper bound: it includes the time until the host came for the
        // results.
        let first = segments.first().and_then(|loaded| loaded.lanes[lane].parts.first());
        let submitted = first.and_then(|part| part.submitted);
        let host = submitted.map_or(timing.submit + timing.wait, |submitted| done - submitted);
        *took = Some(timing.device.map_or(host, |stretch| stretch.to - stretch.from));
        Ok(timing)
    }

    /// Returns the number of submissions for a step, or a segment, that took so long last time: more than one
    /// if it nears the time after which the system resets a device, or if it was not timed yet.
    pub(super) fn pieces(&self, took: Option<Duration>) -> usize {
        let longest = self.options.longest_for(self.adapter.kind);
        let Some(longest) = longest.filter(|longest| *longest < Duration::MAX) else { return 1 };
        let Some(took) = took else { return UNTIMED };
        let longest = longest.max(Duration::from_nanos(1));
        took.as_nanos().div_ceil(longest.as_nanos()).clamp(1, 1 << 10) as usize
    }
}

/// Divides steps behind every `most` launches, where `before` launches were recorded before them. The first
/// range begins with the steps and the last one ends with them, and each has a launch if the steps have any,
/// so that timestamps are written where the steps begin and end.
pub(super) fn cut(steps: &[Step], before: usize, most: usize) -> Vec<Range<usize>> {
    let (mut ranges, mut first, mut launches) = (Vec::new(), 0, before);
    for at in (0..steps.len()).filter(|&at| steps[at].is_launch()) {
        if launches > before && launches.is_multiple_of(most) {
            ranges.push(first..at);
            first = at;
        }
        launches += 1;
    }
    ranges.push(first..steps.len());
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_has_a_launch_and_no_more_than_the_most() {
        let launch = || Step::Launch { number: 0, kernel: 0, group: 0, grid: [1; 3] };
        let clear = || Step::Clear(unisono_graph::plan::Slice { buffer: 0, offset: 0, bytes: 4 });
        let steps = vec![clear(), launch(), launch(), clear(), launch(), launch(), clear()];
        assert_eq!(cut(&steps, 0, 100), std::slice::from_ref(&(0..7)));
        assert_eq!(cut(&steps, 0, 2), [0..4, 4..7]);
        assert_eq!(cut(&steps, 1, 2), [0..2, 2..5, 5..7]);
        assert_eq!(cut(&steps, 0, 1), [0..2, 2..4, 4..5, 5..7]);
        assert_eq!(cut(&[], 3, 1), std::slice::from_ref(&(0..0)));
    }
}
