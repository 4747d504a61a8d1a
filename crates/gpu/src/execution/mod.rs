//! Runs a segment of a plan: fills its uploads, submits its commands, waits, and reads its downloads.

mod bind;
mod check;
mod commands;
pub(crate) mod executable;
mod lend;
mod part;
mod whole;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unisono_graph::plan::Transfer;

use crate::adapter::float_mode;
use crate::device::clock::{Stretch, Timestamps};
use crate::device::mapped::Mapping;
use crate::device::pipeline::Compiled;
use crate::device::record::Recorder;
use crate::{Device, GpuError, MappedDownload, Writer};

use bind::Bound;
use commands::{record, record_downloads, record_uploads};
use executable::{Executable, Kernels, Lane, LoadedSegment, Part, Source, Step, segment_of};
use whole::cut;

pub use whole::InFlight;

/// A segment that was submitted. It may be dropped; its downloads are then lost.
#[must_use = "only a wait tells whether it worked"]
#[derive(Debug)]
pub struct Pending {
    segment: usize,
    serial: u64,
    /// The submission of each part, the next one to wait for first.
    parts: VecDeque<wgpu::SubmissionIndex>,
    timing: Timing,
    /// The time that the device took for the parts that were waited for.
    took: Duration,
}

impl Pending {
    /// Returns where its time went so far.
    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// Returns whether [`Device::wait_part`] has more to wait for.
    pub fn is_pending(&self) -> bool {
        !self.parts.is_empty()
    }
}

/// The time that a segment took, by the host's clock, and when the device worked, by its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// The time for filling the staging memory, and for waiting for it if an earlier submission of the
    /// segment still has it.
    pub upload: Duration,
    /// The time for recording commands, which is a part of `submit`.
    pub record: Duration,
    /// The time for recording and submitting. A driver without a thread of its own may compute here.
    pub submit: Duration,
    /// The time in which the host waited for the device.
    pub wait: Duration,
    /// The time for reading the staging memory.
    pub download: Duration,
    /// The stretch from the beginning of the first launch to the end of the last one, where the device has a
    /// usable clock.
    pub device: Option<Stretch>,
}

impl Timing {
    /// Returns the sum of the host's times.
    pub fn total(&self) -> Duration {
        self.upload + self.submit + self.wait + self.download
    }

    /// Adds the stretch in which the device worked next.
    fn add_device(&mut self, next: Option<Stretch>) {
        self.device = match (self.device, next) {
            (Some(first), Some(last)) => Some(Stretch { from: first.from, to: last.to }),
            (first, last) => first.or(last),
        };
    }
}

impl Device {
    /// Runs one segment: [`Device::submit`], then [`Device::wait`].
    ///
    /// # Errors
    /// Those of [`Device::submit`] and [`Device::wait`].
    pub fn run(
        &self,
        executable: &mut Executable,
        segment: usize,
        upload: &mut dyn FnMut(&Transfer, &mut Writer<'_>),
        download: &mut dyn FnMut(&Transfer, &[u8]),
    ) -> Result<Timing, GpuError> {
        let pending = self.submit(executable, segment, upload)?;
        self.wait(executable, pending, download)
    }

    /// Submits one segment and does not wait. Whatever is submitted later runs after it.
    ///
    /// `upload` is called for each of the segment's uploads, in order, and must write all of it. A segment
    /// that is submitted again before its last submission was waited for is waited for here, and its
    /// downloads are dropped.
    ///
    /// # Errors
    /// [`GpuError::Plan`] if there is no such segment, an upload is not written exactly, or a download of
    /// [`Device::wait_part`] or memory of [`Device::lend_uploads`] is still kept; [`GpuError::Lost`] and
    /// [`GpuError::Timeout`] from an earlier submission.
    pub fn submit(
        &self,
        executable: &mut Executable,
        segment: usize,
        upload: &mut dyn FnMut(&Transfer, &mut Writer<'_>),
    ) -> Result<Pending, GpuError> {
        self.faults.check()?;
        self.own(executable)?;
        self.unmap_unread()?;
        self.rebind(executable)?;
        let Executable { kernels: Kernels(kernels), bound, segments, .. } = executable;
        let loaded = segment_of(segments, segment)?;
        let start = Instant::now();
        let most = loaded.launches().div_ceil(self.pieces(loaded.took)).max(1);
        let LoadedSegment { uploads, lanes, steps, .. } = loaded;
        let lane = &mut lanes[0];
        self.reclaim(lane)?;
        self.fill(uploads, lane, bound, upload)?;
        let filled = Instant::now();
        lane.upload.unmap();
        let parts = self.submit_parts(uploads, steps, lane, (bound, kernels), most);
        lane.serial += 1;
        self.faults.check()?;
        let timing = Timing { upload: filled - start, submit: filled.elapsed(), ..Timing::default() };
        Ok(Pending { segment, serial: lane.serial, parts, timing, took: Duration::ZERO })
    }

    /// Binds the launches anew if the scratch has grown since.
    fn rebind(&self, executable: &mut Executable) -> Result<(), GpuError> {
        let Executable { kernels: Kernels(kernels), sources, groups, bound, .. } = executable;
        if bound.generation != self.pool.generation {
            *bound = Bound::new(self, kernels, sources, groups)?;
        }
        Ok(())
    }

    /// Lets go of scratch that was replaced by larger buffers since a plan last ran, which would otherwise
    /// stay allocated until the plan runs again. It binds its launches anew then. Loading a plan may replace
    /// scratch.
    pub fn unbind(&self, executable: &mut Executable) {
        let Executable { sources, groups, bound, .. } = executable;
        if bound.generation == self.pool.generation {
            return;
        }
        // The bind groups refer to it as well. Downloads that are still to be read are in other buffers.
        bound.groups.clear();
        for (buffer, source) in bound.buffers.iter_mut().zip(sources) {
            match source {
                Source::Pool(rank) => {
                    if let Some(now) = self.pool.get(*rank) {
                        *buffer = now.clone();
                    }
                }
                Source::Resident(..) => *buffer = groups.stand_in(),
                Source::State(_) | Source::Own(_) => {}
            }
        }
    }

    /// Waits until the staging is no longer used by its last submission, and drops downloads that were not
    /// read.
    fn reclaim(&self, lane: &mut Lane) -> Result<(), GpuError> {
        self.settle(&lane.upload, lane.last.as_ref())?;
        for part in lane.parts.iter_mut().filter(|part| part.unread) {
            self.settle(&part.download, lane.last.as_ref())?;
            part.download.unmap();
            part.unread = false;
        }
        Ok(())
    }

    /// Records the uploads and the parts of a segment and submits each part, or several pieces of it that
    /// have `most` launches each. Returns the submissions with which the parts end, in order.
    fn submit_parts(
        &self,
        uploads: &[Transfer],
        steps: &[Step],
        lane: &mut Lane,
        (bound, kernels): (&Bound, &[Arc<Compiled>]),
        most: usize,
    ) -> VecDeque<wgpu::SubmissionIndex> {
        let mut recorder = Recorder::new(self);
        record_uploads(&mut recorder, uploads, &lane.upload, bound);
        let (mut parts, mut first) = (VecDeque::with_capacity(lane.parts.len()), 0);
        for part in &mut lane.parts {
            let own = &steps[first..part.end];
            part.submitted = None;
            for piece in cut(own, 0, most) {
                if piece.start > 0 {
                    part.submitted.get_or_insert_with(Instant::now);
                    self.send_recorded(&mut recorder);
                }
                record(&mut recorder, (own, piece), bound, part.timestamps.as_ref(), kernels);
            }
            record_downloads(&mut recorder, part, bound);
            part.submitted.get_or_insert_with(Instant::now);
            let index = self.send_recorded(&mut recorder);
            lane.last = Some(index.clone());
            parts.push_back(index);
            (part.unread, first) = (true, part.end);
        }
        parts
    }

    /// Submits what is recorded so far. The recorder then begins anew.
    fn send_recorded<'a>(&'a self, recorder: &mut Recorder<'a>) -> wgpu::SubmissionIndex {
        self.send(std::mem::replace(recorder, Recorder::new(self)).finish())
    }

    /// Submits commands, and counts that.
    pub(crate) fn send(&self, commands: wgpu::CommandBuffer) -> wgpu::SubmissionIndex {
        self.counters.submission();
        float_mode::for_adapter(&self.adapter, || self.queue.submit([commands]))
    }

    /// Waits for a submitted segment and hands out its downloads, in order.
    ///
    /// # Errors
    /// [`GpuError::Timeout`] after [`crate::Options::deadline`]; [`GpuError::Lost`]; [`GpuError::Validation`]
    /// or [`GpuError::OutOfMemory`] if the driver refused the commands; [`GpuError::Plan`] if the segment was
    /// submitted again since.
    pub fn wait(
        &self,
        executable: &mut Executable,
        mut pending: Pending,
        download: &mut dyn FnMut(&Transfer, &[u8]),
    ) -> Result<Timing, GpuError> {
        let mut timing = pending.timing;
        while pending.is_pending() {
            let part =
                self.wait_part(executable, &mut pending, &mut |transfer, bytes| download(transfer, &bytes))?;
            timing.wait += part.wait;
            timing.download += part.download;
            timing.add_device(part.device);
        }
        Ok(timing)
    }

    /// Waits for the next part of a submitted segment and hands out its downloads where they are mapped: what
    /// is ready early can be used while the device goes on. They must be dropped before the next
    /// [`Device::submit`].
    ///
    /// # Errors
    /// Those of [`Device::wait`], and [`GpuError::Plan`] if nothing is left to wait for.
    pub fn wait_part(
        &self,
        executable: &mut Executable,
        pending: &mut Pending,
        download: &mut dyn FnMut(&Transfer, MappedDownload),
    ) -> Result<Timing, GpuError> {
        self.own(executable)?;
        let what = || format!("segment {}", pending.segment);
        let Executable { segments, bound, .. } = executable;
        let stale = || GpuError::plan(what(), "submitted again before it was waited for");
        let loaded = segments.get_mut(pending.segment);
        let loaded = loaded.filter(|loaded| loaded.lanes[0].serial == pending.serial);
        let LoadedSegment { lanes, took, .. } = loaded.ok_or_else(stale)?;
        let Lane { parts, upload, .. } = &mut lanes[0];
        let at = parts.len() - pending.parts.len().min(parts.len());
        let (Some(part), Some(index)) = (parts.get_mut(at).filter(|part| part.unread), pending.parts.front())
        else {
            return Err(stale());
        };
        let start = Instant::now();
        self.until(Some(index), || Ok(part.download.ready()? && upload.ready()?))?;
        let done = Instant::now();
        self.check_count(&part.download, part.count)?;
        let device = self.read(part, bound, index, done, download)?;
        pending.parts.pop_front();
        // A driver without a thread of its own has computed while it submitted.
        let host = if at == 0 { pending.timing.submit } else { Duration::ZERO } + (done - start);
        pending.took += device.map_or(host, |stretch| stretch.to - stretch.from);
        if pending.parts.is_empty() {
            *took = Some(pending.took);
        }
        Ok(Timing { wait: done - start, download: done.elapsed(), device, ..Timing::default() })
    }

    /// Hands out the downloads of a part. The host has known since `done` that it is done. Returns the
    /// stretch in which the device worked, where it has a usable clock.
    fn read(
        &self,
        part: &mut Part,
        bound: &Bound,
        last: &wgpu::SubmissionIndex,
        done: Instant,
        download: &mut dyn FnMut(&Transfer, MappedDownload),
    ) -> Result<Option<Stretch>, GpuError> {
        let mut mapping = Mapping::of(part.download.blocks.clone());
        let read = self.read_mapped(part, bound, last, &mut mapping, download);
        self.keep_mapped(mapping);
        let ticks = self.clock.as_ref().zip(read?).zip(part.submitted);
        part.unread = false;
        Ok(ticks.and_then(|((clock, ticks), submitted)| clock.stretch(ticks, submitted, done)))
    }

    /// Hands out the downloads of a part, which are mapped for it. Then it reads the clock's two timestamps,
    /// where there are any.
    fn read_mapped(
        &self,
        part: &Part,
        bound: &Bound,
        last: &wgpu::SubmissionIndex,
        mapping: &mut Mapping,
        download: &mut dyn FnMut(&Transfer, MappedDownload),
    ) -> Result<Option<[u64; 2]>, GpuError> {
        let what = |transfer: &Transfer| format!("download of slot {}", transfer.slot);
        for (transfer, place) in part.downloads.iter().zip(&part.download.places) {
            let (buffer, offset) = match *place {
                Some((block, offset)) => (&part.download.blocks[block].buffer, offset),
                None => (&bound.buffers[transfer.slice.buffer], transfer.slice.offset),
            };
            if !mapping.blocks.iter().any(|block| block.buffer == *buffer) {
                mapping.blocks.push(self.map(buffer, wgpu::MapMode::Read, Some(last))?);
            }
            let view = buffer.get_mapped_range(offset..offset + transfer.slice.bytes);
            let view = view.map_err(|error| self.blame(&what(transfer), error))?;
            self.counters.download(transfer.slice.bytes);
            download(transfer, MappedDownload::new(view, mapping));
        }
        let Some((block, offset)) = part.clock_place() else { return Ok(None) };
        let view = part.download.blocks[block].buffer.get_mapped_range(Timestamps::range(offset));
        Ok(Timestamps::read(&view.map_err(|error| self.blame("timestamps", error))?))
    }

    /// Has `upload` write all uploads of a segment.
    fn fill(
        &self,
        uploads: &[Transfer],
        lane: &mut Lane,
        bound: &Bound,
        upload: &mut dyn FnMut(&Transfer, &mut Writer<'_>),
    ) -> Result<(), GpuError> {
        let written = lane.take_loans()?;
        for (number, (transfer, place)) in uploads.iter().zip(&lane.upload.places).enumerate() {
            let what = || format!("upload of slot {}", transfer.slot);
            let (buffer, offset) = match *place {
                Some((block, offset)) => (&lane.upload.blocks[block].buffer, offset),
                None => (&bound.buffers[transfer.slice.buffer], transfer.slice.offset),
            };
            if place.is_none() {
                self.map(buffer, wgpu::MapMode::Write, None)?;
            }
            let view = buffer.get_mapped_range_mut(offset..offset + transfer.slice.bytes);
            let mut view = view.map_err(|error| self.blame(&what(), error))?;
            let is_written = written.contains(&number);
            let mut writer = Writer { view: &mut view, written: 0, is_written };
            upload(transfer, &mut writer);
            let (written, bytes) = (writer.written, writer.bytes());
            drop(view);
            if place.is_none() {
                buffer.unmap();
            }
            self.counters.upload(transfer.slice.bytes);
            if written != bytes {
                return Err(GpuError::plan(what(), format!("{written} of {bytes} bytes written")));
            }
        }
        Ok(())
    }

    /// Checks that an executable was loaded by this device.
    fn own(&self, executable: &Executable) -> Result<(), GpuError> {
        let own = Arc::ptr_eq(&executable.owner, &self.faults);
        if own { Ok(()) } else { Err(GpuError::plan("executable", "belongs to another device")) }
    }
}
