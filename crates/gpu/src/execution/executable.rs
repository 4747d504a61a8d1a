//! An executable: a plan made ready on a device, so that running it compiles nothing and allocates nothing.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unisono_graph::plan::{Command, Kernel, Plan, Role, Segment, Slice, Transfer};

use crate::device::STORAGE;
use crate::device::clock::Timestamps;
use crate::device::fault::{Faults, scoped};
use crate::device::mapped::Loan;
use crate::device::pipeline::{Compiled, dealt};
use crate::device::pool::ranks;
use crate::device::record::Recorder;
use crate::device::staging::{ALIGNMENT, Staging};
use crate::{Device, GpuError};

use super::bind::{Bound, Groups};
use super::check::{check, name};
use super::part::split;

/// The bytes of downloads that are worth a submission of their own.
const PART_BYTES: u64 = 1 << 20;

/// A plan made ready on a device. It runs on that device alone, and may be moved to another thread together
/// with it.
#[derive(Debug)]
pub struct Executable {
    /// The faults of the device that loaded it. They identify the device.
    pub(crate) owner: Arc<Faults>,
    pub(crate) kernels: Kernels,
    /// The source of each of the plan's buffers.
    pub(crate) sources: Vec<Source>,
    pub(crate) groups: Groups,
    pub(crate) bound: Bound,
    pub(crate) segments: Vec<LoadedSegment>,
    /// The time that the device took for the whole step when that was last submitted as one; none before.
    pub(crate) took: Option<Duration>,
}

/// The compiled kernels of an executable. Whoever keeps them keeps [`Device::drop_unused_kernels`] from
/// dropping them, so that loading the same plan again compiles nothing.
#[derive(Clone, Debug)]
pub struct Kernels(pub(crate) Arc<[Arc<Compiled>]>);

/// The source of a plan's buffer.
#[derive(Debug)]
pub(crate) enum Source {
    /// The device's scratch buffer of this rank.
    Pool(usize),
    /// The buffer of the device's persistent state with this index.
    State(usize),
    /// The device's resident memory of this number, with so many bytes.
    Resident(usize, u64),
    /// A buffer of the plan alone: a table, or memory that it shares with the host.
    Own(wgpu::Buffer),
}

/// A segment made ready.
#[derive(Debug)]
pub(crate) struct LoadedSegment {
    pub uploads: Vec<Transfer>,
    pub steps: Vec<Step>,
    /// The staging of each submission that may be in flight: one, and a second one where a step is submitted
    /// before the one before it is done.
    pub lanes: Vec<Lane>,
    /// The time that the device took for the segment when it was last submitted by itself; none before.
    pub took: Option<Duration>,
}

/// The staging of a segment for one submission in flight.
#[derive(Debug)]
pub(crate) struct Lane {
    pub upload: Staging,
    /// The memory of uploads that was lent for the next submission.
    pub loans: Vec<Arc<Loan>>,
    /// The parts in the order in which they are submitted; at least one.
    pub parts: Vec<Part>,
    /// The newest submission.
    pub last: Option<wgpu::SubmissionIndex>,
    /// The number of submissions so far, so that an old [`crate::Pending`] is not taken for the newest one.
    pub serial: u64,
}

/// A part of a segment in a submission of its own, so that what it downloads can be read while the next one
/// runs.
#[derive(Debug)]
pub(crate) struct Part {
    /// The number of the segment's step before which the part ends.
    pub end: usize,
    pub downloads: Vec<Transfer>,
    pub download: Staging,
    /// Whether the downloads of the newest submission have not been read.
    pub unread: bool,
    /// The time at which it was submitted.
    pub submitted: Option<Instant>,
    /// The timestamps of the device's clock. Their place in `download` is the one after those of the
    /// downloads.
    pub timestamps: Option<Timestamps>,
    /// The count of passes that the newest submission is to leave at the last place in `download`, if the
    /// device counts them.
    pub count: u32,
}

impl Part {
    /// Returns the block and the offset of the timestamps in `download`.
    pub fn clock_place(&self) -> Option<(usize, u64)> {
        self.timestamps.as_ref().and_then(|_| *self.download.places.get(self.downloads.len())?)
    }
}

/// A command of a plan with its bind group looked up.
#[derive(Debug)]
pub(crate) enum Step {
    /// The launch with this number among all of the plan.
    Launch {
        number: usize,
        kernel: usize,
        group: usize,
        grid: [u32; 3],
    },
    Copy {
        from: Slice,
        to: Slice,
    },
    Clear(Slice),
}

impl Device {
    /// Makes a plan ready: compiles those of its kernels that the device does not hold, and creates its
    /// buffers and staging.
    ///
    /// Scratch and state are shared with the other plans of the device. Loading the largest plan first saves
    /// copies. Buffers of the state that do not exist yet are created, all zero.
    ///
    /// # Errors
    /// [`GpuError::Limit`], [`GpuError::Plan`], [`GpuError::Validation`] (with the shader compiler's words)
    /// or [`GpuError::OutOfMemory`], each with the name of the kernel or buffer; the device is then as it
    /// was, except that kernels were compiled and memory has grown.
    pub fn load(&mut self, plan: &Plan) -> Result<Executable, GpuError> {
        self.faults.check()?;
        check(plan, &self.adapter, self.adapter.limits.buffer_bytes)?;
        let kernels = self.pipelines.compile(&self.raw, &plan.kernels)?;
        let launches =
            plan.segments.iter().flat_map(|segment| &segment.commands).filter_map(|command| match command {
                Command::Launch(launch) => Some(launch),
                _ => None,
            });
        for launch in launches.clone() {
            if let Some(message) = kernels[launch.kernel].interface.refuse(launch) {
                let what = format!("kernel {}", plan.kernels[launch.kernel].name);
                return Err(GpuError::Validation { what, message });
            }
        }
        let sources = self.sources(plan)?;
        let (groups, of_launch) = Groups::new(self, launches)?;
        let bound = Bound::new(self, &kernels, &sources, &groups)?;
        self.rehearse(&plan.kernels, &kernels, &groups, &bound)?;
        let mut of_launch = of_launch.into_iter().enumerate();
        let segments = plan.segments.iter().map(|segment| {
            let step = |command: &Command| match command {
                Command::Launch(launch) => {
                    let (number, group) = of_launch.next().unwrap_or_default();
                    Step::Launch { number, kernel: launch.kernel, group, grid: launch.grid }
                }
                Command::Copy { from, to } => Step::Copy { from: *from, to: *to },
                Command::Clear(slice) => Step::Clear(*slice),
            };
            let lane = Lane {
                upload: self.staging(plan, &segment.uploads, wgpu::MapMode::Write)?,
                loans: Vec::new(),
                parts: self.parts(plan, segment)?,
                last: None,
                serial: 0,
            };
            Ok(LoadedSegment {
                steps: segment.commands.iter().map(step).collect(),
                lanes: vec![lane],
                uploads: segment.uploads.clone(),
                took: None,
            })
        });
        let segments = segments.collect::<Result<Vec<_>, GpuError>>()?;
        self.faults.check()?;
        let owner = Arc::clone(&self.faults);
        self.counters.load();
        let kernels = Kernels(kernels.into());
        Ok(Executable { owner, kernels, sources, groups, bound, segments, took: None })
    }

    /// Makes the resident memories that a plan uses, where they were dropped or have another size since it
    /// was loaded. They start as zeros then.
    ///
    /// # Errors
    /// [`GpuError::Limit`] or [`GpuError::OutOfMemory`], naming the memory.
    pub fn hold_residents(&mut self, executable: &Executable) -> Result<(), GpuError> {
        for source in &executable.sources {
            if let Source::Resident(number, bytes) = source {
                self.ensure_resident(*number, *bytes)?;
            }
        }
        Ok(())
    }

    fn parts(&self, plan: &Plan, segment: &Segment) -> Result<Vec<Part>, GpuError> {
        let mut first = 0;
        let part = |(end, downloads): (usize, Vec<Transfer>)| {
            let launch = |command: &Command| matches!(command, Command::Launch(_));
            let launches = segment.commands[std::mem::replace(&mut first, end)..end].iter().any(launch);
            self.part(end, downloads, launches, &|places| self.staging(plan, places, wgpu::MapMode::Read))
        };
        split(plan, segment, PART_BYTES).into_iter().map(part).collect()
    }

    /// Makes a part with staging for its downloads, and with timestamps if it is timed.
    fn part(
        &self,
        end: usize,
        downloads: Vec<Transfer>,
        is_timed: bool,
        staging: &dyn Fn(&[Transfer]) -> Result<Staging, GpuError>,
    ) -> Result<Part, GpuError> {
        let timestamps = if is_timed { self.timestamps()? } else { None };
        let download = staging(&self.places(&downloads, timestamps.as_ref()))?;
        Ok(Part { end, downloads, download, unread: false, submitted: None, timestamps, count: 0 })
    }

    /// Gives each segment staging for a second submission in flight, unless it has that. If there is no
    /// memory for all of them, none has it.
    pub(super) fn second_lane(&self, segments: &mut [LoadedSegment]) -> Result<(), GpuError> {
        let added = self.add_lane(segments);
        if added.is_err() {
            segments.iter_mut().for_each(LoadedSegment::drop_second_lane);
        }
        added
    }

    fn add_lane(&self, segments: &mut [LoadedSegment]) -> Result<(), GpuError> {
        for loaded in segments.iter_mut().filter(|loaded| loaded.lanes.len() == 1) {
            let first = &loaded.lanes[0];
            let staging = |places: &[Transfer], mode| Staging::new(self, places, |_| false, mode);
            let upload = staging(&loaded.uploads, wgpu::MapMode::Write)?;
            let parts = first.parts.iter().map(|part| {
                let (downloads, is_timed) = (part.downloads.clone(), part.timestamps.is_some());
                self.part(part.end, downloads, is_timed, &|places| staging(places, wgpu::MapMode::Read))
            });
            let parts = parts.collect::<Result<Vec<_>, GpuError>>()?;
            loaded.lanes.push(Lane { upload, loans: Vec::new(), parts, last: None, serial: 0 });
        }
        Ok(())
    }

    /// Returns what has a place in the staging of a part: its downloads, then the clock's timestamps, then
    /// the count of passes.
    fn places(&self, downloads: &[Transfer], timestamps: Option<&Timestamps>) -> Vec<Transfer> {
        let timestamps = timestamps.map(|_| Timestamps::transfer());
        downloads.iter().cloned().chain(timestamps).chain(self.count_transfer()).collect()
    }

    /// Creates staging for all transfers but those whose buffers the host shares.
    fn staging(&self, plan: &Plan, transfers: &[Transfer], mode: wgpu::MapMode) -> Result<Staging, GpuError> {
        let is_shared = |Transfer { slice, .. }: &Transfer| {
            self.shares_memory()
                && slice.offset.is_multiple_of(ALIGNMENT)
                && plan.buffers.get(slice.buffer).is_some_and(|buffer| buffer.role == Role::Shared)
        };
        Staging::new(self, transfers, is_shared, mode)
    }

    /// Submits one launch of no workgroups for each kernel with each of its bindings. This finds a launch
    /// that does not fit its bindings and reports it by the kernel's name, it has fresh buffers zeroed, and
    /// it makes a driver that puts off compiling until a kernel's first launch start with that while the host
    /// goes on, in an order that spares devices each other's work ([`dealt`]).
    fn rehearse(
        &self,
        plan: &[Kernel],
        kernels: &[Arc<Compiled>],
        groups: &Groups,
        bound: &Bound,
    ) -> Result<(), GpuError> {
        let part = |id: usize| {
            let kernel = &kernels[id];
            scoped(&self.raw, &format!("kernel {}", plan[id].name), 0, || {
                let mut encoder = self.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
                let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
                pass.set_pipeline(&kernel.pipeline);
                for (group, _) in bound.groups.iter().zip(groups.kernels()).filter(|(_, used)| *used == id) {
                    pass.set_bind_group(0, group, &[]);
                    pass.dispatch_workgroups(0, 0, 0);
                }
                drop(pass);
                encoder.finish()
            })
        };
        // Software drivers translate a kernel when it is created and compile it at its first launch, which
        // takes some ten times as long.
        let mut slowest: Vec<usize> = (0..kernels.len()).collect();
        slowest.sort_by_key(|&kernel| Reverse(kernels[kernel].took));
        let order = dealt(&slowest, self.options.turn, self.options.devices);
        // An error is that of the first kernel in the plan.
        let mut parts = (0..kernels.len()).map(|id| part(id).map(Some)).collect::<Result<Vec<_>, _>>()?;
        let parts: Vec<_> = order.into_iter().filter_map(|id| parts[id].take()).collect();
        if let Some(marks) = &self.marks {
            marks.write_number(&self.queue);
        }
        let what = "the first use of the plan's buffers";
        scoped(&self.raw, what, self.pool.bytes(), || self.queue.submit(parts))?;
        if self.marks.is_some() {
            self.queue.submit([Recorder::proof_of_writes(self)]);
        }
        self.faults.check()
    }

    fn sources(&mut self, plan: &Plan) -> Result<Vec<Source>, GpuError> {
        let ranks = ranks(plan);
        let mut sizes = vec![0; ranks.iter().flatten().count()];
        for (buffer, rank) in plan.buffers.iter().zip(&ranks) {
            if let Some(rank) = rank {
                sizes[*rank] = buffer.bytes;
            }
        }
        self.grow_pool(&sizes)?;
        let source = |id: usize| match (&plan.buffers[id].role, ranks[id]) {
            (Role::State(index), _) => {
                self.ensure_state(*index, plan.buffers[id].bytes)?;
                Ok(Source::State(*index))
            }
            (Role::Resident(number), _) => {
                self.ensure_resident(*number, plan.buffers[id].bytes)?;
                Ok(Source::Resident(*number, plan.buffers[id].bytes))
            }
            (Role::Verdict(word), _) => Ok(Source::Own(self.verdict_word(*word, plan.buffers[id].bytes)?)),
            (Role::Table(words), _) => {
                Ok(Source::Own(self.create_filled(&name(plan, id), bytemuck::cast_slice(words), STORAGE)?))
            }
            (Role::Shared, _) => {
                Ok(Source::Own(self.create_shared(&name(plan, id), plan.buffers[id].bytes)?))
            }
            (Role::Scratch, rank) => Ok(Source::Pool(rank.unwrap_or_default())),
        };
        (0..plan.buffers.len()).map(source).collect()
    }
}

/// Returns a segment, or an error if there is no such one.
pub(super) fn segment_of(
    segments: &mut [LoadedSegment],
    segment: usize,
) -> Result<&mut LoadedSegment, GpuError> {
    let count = segments.len();
    let none = || GpuError::plan(format!("segment {segment}"), format!("the plan has {count}"));
    segments.get_mut(segment).ok_or_else(none)
}

impl LoadedSegment {
    /// Returns the number of the segment's launches.
    pub fn launches(&self) -> usize {
        self.steps.iter().filter(|step| step.is_launch()).count()
    }

    fn drop_second_lane(&mut self) {
        self.lanes.truncate(1);
    }

    /// Returns the parts of a lane, each with whether it has launches.
    pub fn parts_with_launches(&mut self, lane: usize) -> impl Iterator<Item = (&mut Part, bool)> {
        let (steps, mut first) = (&self.steps, 0);
        self.lanes[lane].parts.iter_mut().map(move |part| {
            let own = &steps[std::mem::replace(&mut first, part.end)..part.end];
            (part, own.iter().any(Step::is_launch))
        })
    }

    /// Returns whether the host maps buffers of kernels for a transfer of the segment. Such memory is there
    /// once, so only one submission is in flight.
    pub fn shares_memory(&self) -> bool {
        let of = |lane: &Lane| {
            let downloads = lane.parts.iter().map(|part| &part.download);
            downloads.chain([&lane.upload]).any(|staging| staging.places.contains(&None))
        };
        self.lanes.iter().any(of)
    }
}

impl Step {
    pub fn is_launch(&self) -> bool {
        matches!(self, Self::Launch { .. })
    }
}

impl Executable {
    /// Returns the plan's compiled kernels.
    pub fn kernels(&self) -> Kernels {
        self.kernels.clone()
    }

    /// Drops the staging of lane 1, which [`Device::submit_all`] makes again when it is needed. Downloads of
    /// a step that is in flight there are lost.
    pub fn drop_second_lane(&mut self) {
        self.segments.iter_mut().for_each(LoadedSegment::drop_second_lane);
    }

    /// Returns the number of the plan's segments.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Returns the number of launches of all segments.
    pub fn launches(&self) -> usize {
        self.segments.iter().map(LoadedSegment::launches).sum()
    }
}

#[cfg(test)]
mod tests {
    use unisono_graph::plan::Buffer;

    use super::*;
    use crate::adapters;

    #[test]
    fn a_second_lane_is_there_for_all_segments_or_for_none() {
        let buffers = [256, 1 << 16].map(|bytes| Buffer { bytes, role: Role::Scratch });
        let segment = |buffer: usize| {
            let slice = Slice { buffer, offset: 0, bytes: buffers[buffer].bytes };
            let downloads = vec![Transfer { slot: buffer, slice }];
            Segment { uploads: Vec::new(), commands: vec![Command::Clear(slice)], downloads }
        };
        let segments = [0, 1].map(segment).to_vec();
        let plan = Plan { kernels: Vec::new(), buffers: buffers.to_vec(), segments };
        let mut device = Device::open(&adapters(&[])[0]).unwrap();
        let mut executable = device.load(&plan).unwrap();
        let lanes = |of: &Executable| of.segments.iter().map(|of| of.lanes.len()).collect::<Vec<_>>();
        let allowed = std::mem::replace(&mut device.adapter.limits.buffer_bytes, 1 << 12);
        let refused = device.submit_all(&mut executable, 1, &mut |_, _| {}).unwrap_err();
        assert!(matches!(refused, GpuError::Limit { .. }), "{refused}");
        assert_eq!(lanes(&executable), [1, 1]);
        device.adapter.limits.buffer_bytes = allowed;
        let step = device.submit_all(&mut executable, 1, &mut |_, _| {}).unwrap();
        assert_eq!(lanes(&executable), [2, 2]);
        device.collect(&mut executable, step, &mut |_, _| {}).unwrap();
        executable.drop_second_lane();
        assert_eq!(lanes(&executable), [1, 1]);
    }
}
