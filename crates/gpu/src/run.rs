//! Running a segment: fill, submit, wait, read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use unisono_graph::plan::Transfer;

use crate::bind::Bound;
use crate::clock::{Stretch, Ticks};
use crate::executable::{Part, Stage, Step};
use crate::lend::Loan;
use crate::{Device, Executable, GpuError, Lent, Writer};

/// A segment under way. Dropping it is fine: what it would have downloaded is then lost.
#[must_use = "only a wait tells whether it worked"]
#[derive(Debug)]
pub struct Pending {
    segment: usize,
    serial: u64,
    /// One for each part, the next one to wait for first.
    parts: std::collections::VecDeque<wgpu::SubmissionIndex>,
    timing: Timing,
}

impl Pending {
    /// Where its time went so far.
    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// Whether [`Device::wait_part`] has more to wait for.
    pub fn is_pending(&self) -> bool {
        !self.parts.is_empty()
    }
}

/// Where the time of a segment went, by the host's clock, and when the device worked, by its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Filling the staging memory, and waiting for it if an earlier submission of the segment still has it.
    pub upload: Duration,
    /// Recording and submitting. A driver without a thread of its own may compute here.
    pub submit: Duration,
    /// Waiting for the device.
    pub wait: Duration,
    /// Reading the staging memory.
    pub download: Duration,
    /// From the beginning of its first launch to the end of the last one, where the device has a clock that makes sense.
    pub device: Option<Stretch>,
}

impl Timing {
    /// All of it.
    pub fn total(&self) -> Duration {
        self.upload + self.submit + self.wait + self.download
    }
}

impl Device {
    /// Runs one segment: [`Device::submit`], then [`Device::wait`].
    ///
    /// # Errors
    /// See there.
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

    /// Sends one segment to the device, in one submission, and does not wait. Whatever is submitted later runs after it.
    ///
    /// `upload` is called for each of the segment's uploads, in order, and has to write all of it. Submitting a segment
    /// again before its last submission was waited for waits for that one here and drops its downloads.
    ///
    /// # Errors
    /// [`GpuError::Plan`] if there is no such segment, an upload is not written exactly, or a download of [`Device::wait_part`] is
    /// still kept; [`GpuError::Lost`] and [`GpuError::Timeout`] from an earlier submission.
    pub fn submit(
        &self,
        executable: &mut Executable,
        segment: usize,
        upload: &mut dyn FnMut(&Transfer, &mut Writer<'_>),
    ) -> Result<Pending, GpuError> {
        self.faults.check()?;
        self.own(executable)?;
        self.take_back()?;
        let Executable { kernels, sources, groups, bound, stages, .. } = executable;
        if bound.generation != self.pool.generation {
            *bound = Bound::new(self, kernels, sources, groups)?;
        }
        let count = stages.len();
        let stage = stages
            .get_mut(segment)
            .ok_or_else(|| GpuError::plan(format!("segment {segment}"), format!("the plan has {count}")))?;
        let start = Instant::now();
        self.settle(&stage.upload, stage.last.as_ref())?;
        for part in stage.parts.iter_mut().filter(|part| part.unread) {
            self.settle(&part.download, stage.last.as_ref())?;
            part.download.unmap();
            part.unread = false;
        }
        self.fill(stage, bound, upload)?;
        let filled = Instant::now();
        stage.upload.unmap();
        let new_encoder = || self.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut encoder = new_encoder();
        let places = stage.uploads.iter().zip(&stage.upload.places);
        for (Transfer { slice, .. }, place) in places {
            let &Some((block, offset)) = place else { continue };
            let (from, to) = (&stage.upload.blocks[block].buffer, &bound.buffers[slice.buffer]);
            encoder.copy_buffer_to_buffer(from, offset, to, slice.offset, slice.bytes);
        }
        stage.upload.map_after(&encoder);
        let (mut parts, mut first) = (std::collections::VecDeque::with_capacity(stage.parts.len()), 0);
        for part in &mut stage.parts {
            let queries = part.ticks.as_ref().map(|ticks| &ticks.queries);
            let pipeline = |kernel: usize| &kernels[kernel].pipeline;
            record(&mut encoder, &stage.steps[first..part.end], bound, queries, pipeline);
            if let (Some(ticks), Some(&Some((block, offset)))) = (&part.ticks, part.download.places.last()) {
                ticks.fetch(&mut encoder, &part.download.blocks[block].buffer, offset);
            }
            let places = part.downloads.iter().zip(&part.download.places);
            for (Transfer { slice, .. }, place) in places {
                let &Some((block, offset)) = place else { continue };
                let (from, to) = (&bound.buffers[slice.buffer], &part.download.blocks[block].buffer);
                encoder.copy_buffer_to_buffer(from, slice.offset, to, offset, slice.bytes);
            }
            part.download.map_after(&encoder);
            part.submitted = Some(Instant::now());
            let index = self.queue.submit([std::mem::replace(&mut encoder, new_encoder()).finish()]);
            stage.last = Some(index.clone());
            parts.push_back(index);
            (part.unread, first) = (true, part.end);
        }
        stage.serial += 1;
        self.faults.check()?;
        let timing = Timing { upload: filled - start, submit: filled.elapsed(), ..Timing::default() };
        Ok(Pending { segment, serial: stage.serial, parts, timing })
    }

    /// Waits for a submitted segment and hands out its downloads, in order.
    ///
    /// # Errors
    /// [`GpuError::Timeout`] after [`crate::Options::deadline`]; [`GpuError::Lost`]; [`GpuError::Validation`] or
    /// [`GpuError::OutOfMemory`] if the driver refused the commands; [`GpuError::Plan`] if the segment was submitted
    /// again since.
    pub fn wait(
        &self,
        executable: &mut Executable,
        mut pending: Pending,
        download: &mut dyn FnMut(&Transfer, &[u8]),
    ) -> Result<Timing, GpuError> {
        let mut timing = pending.timing;
        while pending.is_pending() {
            let part =
                self.wait_part(executable, &mut pending, &mut |transfer, lent| download(transfer, &lent))?;
            timing.wait += part.wait;
            timing.download += part.download;
            timing.device = match (timing.device, part.device) {
                (Some(first), Some(last)) => Some(Stretch { from: first.from, to: last.to }),
                (first, last) => first.or(last),
            };
        }
        Ok(timing)
    }

    /// Waits for the next part of a submitted segment and lends its downloads: what is ready early can be used while the device
    /// goes on. They are to be dropped before the next [`Device::submit`].
    ///
    /// # Errors
    /// Those of [`Device::wait`], and [`GpuError::Plan`] if nothing is left to wait for.
    pub fn wait_part(
        &self,
        executable: &mut Executable,
        pending: &mut Pending,
        download: &mut dyn FnMut(&Transfer, Lent),
    ) -> Result<Timing, GpuError> {
        self.own(executable)?;
        let what = || format!("segment {}", pending.segment);
        let Executable { stages, bound, .. } = executable;
        let stage = stages.get_mut(pending.segment).filter(|stage| stage.serial == pending.serial);
        let stale = || GpuError::plan(what(), "submitted again before it was waited for");
        let Stage { parts, upload, .. } = stage.ok_or_else(stale)?;
        let at = parts.len() - pending.parts.len().min(parts.len());
        let (Some(part), Some(index)) = (parts.get_mut(at).filter(|part| part.unread), pending.parts.front())
        else {
            return Err(stale());
        };
        let start = Instant::now();
        self.until(Some(index), || Ok(part.download.ready()? && upload.ready()?))?;
        let done = Instant::now();
        let mut loan = Loan::of(part.download.blocks.clone());
        let read = self.read(part, bound, index, &mut loan, download);
        self.lend(loan);
        let device = self.clock.as_ref().zip(read?).zip(part.submitted);
        let device = device.and_then(|((clock, ticks), submitted)| clock.stretch(ticks, submitted, done));
        part.unread = false;
        pending.parts.pop_front();
        Ok(Timing { wait: done - start, download: done.elapsed(), device, ..Timing::default() })
    }

    /// Hands out a part's downloads, which are there; then, where there are any, reads the clock's two timestamps.
    fn read(
        &self,
        part: &Part,
        bound: &Bound,
        last: &wgpu::SubmissionIndex,
        loan: &mut Loan,
        download: &mut dyn FnMut(&Transfer, Lent),
    ) -> Result<Option<[u64; 2]>, GpuError> {
        let what = |transfer: &Transfer| format!("download of slot {}", transfer.slot);
        for (transfer, place) in part.downloads.iter().zip(&part.download.places) {
            let (buffer, offset) = match *place {
                Some((block, offset)) => (&part.download.blocks[block].buffer, offset),
                None => (&bound.buffers[transfer.slice.buffer], transfer.slice.offset),
            };
            if !loan.blocks.iter().any(|block| block.buffer == *buffer) {
                loan.blocks.push(self.reach(buffer, wgpu::MapMode::Read, Some(last))?);
            }
            let view = buffer.get_mapped_range(offset..offset + transfer.slice.bytes);
            let view = view.map_err(|error| self.blame(&what(transfer), error))?;
            download(transfer, Lent::new(view, loan));
        }
        let (Some(_), Some(&Some((block, offset)))) = (&part.ticks, part.download.places.last()) else {
            return Ok(None);
        };
        let view = part.download.blocks[block].buffer.get_mapped_range(Ticks::range(offset));
        Ok(Ticks::read(&view.map_err(|error| self.blame("timestamps", error))?))
    }

    fn fill(
        &self,
        stage: &Stage,
        bound: &Bound,
        upload: &mut dyn FnMut(&Transfer, &mut Writer<'_>),
    ) -> Result<(), GpuError> {
        for (transfer, place) in stage.uploads.iter().zip(&stage.upload.places) {
            let what = || format!("upload of slot {}", transfer.slot);
            let (buffer, offset) = match *place {
                Some((block, offset)) => (&stage.upload.blocks[block].buffer, offset),
                None => (&bound.buffers[transfer.slice.buffer], transfer.slice.offset),
            };
            if place.is_none() {
                self.reach(buffer, wgpu::MapMode::Write, None)?;
            }
            let view = buffer.get_mapped_range_mut(offset..offset + transfer.slice.bytes);
            let mut view = view.map_err(|error| self.blame(&what(), error))?;
            let mut writer = Writer { view: &mut view, written: 0 };
            upload(transfer, &mut writer);
            let (written, bytes) = (writer.written, writer.bytes());
            drop(view);
            if place.is_none() {
                buffer.unmap();
            }
            if written != bytes {
                return Err(GpuError::plan(what(), format!("{written} of {bytes} bytes written")));
            }
        }
        Ok(())
    }

    fn own(&self, executable: &Executable) -> Result<(), GpuError> {
        let own = Arc::ptr_eq(&executable.owner, &self.faults);
        if own { Ok(()) } else { Err(GpuError::plan("executable", "belongs to another device")) }
    }
}

/// All commands in as few passes as copies and clears allow; `queries`: when the first pass began and the last one ended.
fn record<'a>(
    encoder: &mut wgpu::CommandEncoder,
    steps: &[Step],
    bound: &Bound,
    queries: Option<&wgpu::QuerySet>,
    pipeline: impl Fn(usize) -> &'a wgpu::ComputePipeline,
) {
    let mut passes_left =
        steps.chunk_by(|a, b| a.is_launch() && b.is_launch()).filter(|steps| steps[0].is_launch()).count();
    let mut is_first = true;
    for steps in steps.chunk_by(|a, b| a.is_launch() && b.is_launch()) {
        match steps {
            [Step::Copy { from, to }] => {
                let (source, target) = (&bound.buffers[from.buffer], &bound.buffers[to.buffer]);
                encoder.copy_buffer_to_buffer(source, from.offset, target, to.offset, from.bytes);
            }
            [Step::Clear(slice)] => {
                encoder.clear_buffer(&bound.buffers[slice.buffer], slice.offset, Some(slice.bytes));
            }
            launches => {
                passes_left -= 1;
                let (first, last) = (std::mem::take(&mut is_first), passes_left == 0);
                let writes = queries.filter(|_| first || last);
                let timestamp_writes = writes.map(|query_set| wgpu::ComputePassTimestampWrites {
                    query_set,
                    beginning_of_pass_write_index: first.then_some(0),
                    end_of_pass_write_index: last.then_some(1),
                });
                let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
                let mut pass = encoder.begin_compute_pass(&descriptor);
                let mut set = None;
                for step in launches {
                    let Step::Launch { kernel, group, grid: [x, y, z] } = step else { continue };
                    if set.replace(*kernel) != Some(*kernel) {
                        pass.set_pipeline(pipeline(*kernel));
                    }
                    pass.set_bind_group(0, &bound.groups[*group], &[]);
                    pass.dispatch_workgroups(*x, *y, *z);
                }
            }
        }
    }
}
