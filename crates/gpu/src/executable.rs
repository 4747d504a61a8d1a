//! An executable: a plan made ready on a device, so that running it compiles and allocates nothing.

use std::sync::Arc;
use std::time::Instant;

use unisono_graph::plan::{Command, Kernel, Plan, Role, Segment, Slice, Transfer};

use crate::bind::{Bound, Groups};
use crate::check::{check, name};
use crate::clock::Ticks;
use crate::device::STORAGE;
use crate::fault::{Faults, scoped};
use crate::part::split;
use crate::pipeline::Compiled;
use crate::pool::ranks;
use crate::staging::{ALIGNMENT, Staging};
use crate::{Device, GpuError};

/// Downloads that are worth a submission of their own.
const PART_BYTES: u64 = 1 << 20;

/// A plan made ready on a device. It runs on that device alone, and may be moved to another thread with it.
#[derive(Debug)]
pub struct Executable {
    /// The device's, to tell devices apart.
    pub(crate) owner: Arc<Faults>,
    pub(crate) kernels: Vec<Compiled>,
    /// Where each of the plan's buffers comes from.
    pub(crate) sources: Vec<Source>,
    pub(crate) groups: Groups,
    pub(crate) bound: Bound,
    pub(crate) stages: Vec<Stage>,
}

/// Where a buffer comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// The device's scratch buffer of this rank.
    Pool(usize),
    /// Tensor of the device's persistent state.
    State(usize),
    /// A table of the plan's own, or memory it shares with the host.
    Own(wgpu::Buffer),
}

/// A segment made ready.
#[derive(Debug)]
pub(crate) struct Stage {
    pub uploads: Vec<Transfer>,
    pub upload: Staging,
    pub steps: Vec<Step>,
    /// In the order in which they are submitted; at least one.
    pub parts: Vec<Part>,
    /// The newest submission, and how many there were, so that an old token is not taken for it.
    pub last: Option<wgpu::SubmissionIndex>,
    pub serial: u64,
}

/// A part of a segment in a submission of its own, so that what it downloads can be read while the next one runs.
#[derive(Debug)]
pub(crate) struct Part {
    /// Its steps end before this one.
    pub end: usize,
    pub downloads: Vec<Transfer>,
    pub download: Staging,
    /// The newest submission's downloads have not been read.
    pub unread: bool,
    /// When it was submitted.
    pub submitted: Option<Instant>,
    /// What the device's clock is written into; its place in `download` is the one after those of the downloads.
    pub ticks: Option<Ticks>,
}

/// A command with everything looked up.
#[derive(Debug)]
pub(crate) enum Step {
    Launch { kernel: usize, group: usize, grid: [u32; 3] },
    Copy { from: Slice, to: Slice },
    Clear(Slice),
}

impl Device {
    /// Makes a plan ready: compiles its kernels (each distinct one once a device), makes its buffers and staging.
    ///
    /// Scratch is shared with the other plans of the device, state as well; loading the largest plan first saves copies.
    /// State tensors that do not exist yet are made, all zero.
    ///
    /// # Errors
    /// [`GpuError::Limit`], [`GpuError::Plan`], [`GpuError::Validation`] (with the shader compiler's words) or
    /// [`GpuError::OutOfMemory`], each with the name of the kernel or buffer; then the device is as it was, but for
    /// kernels compiled and memory grown.
    pub fn load(&mut self, plan: &Plan) -> Result<Executable, GpuError> {
        self.faults.check()?;
        check(plan, &self.adapter)?;
        let kernels = self.pipelines.compile(&self.raw, &plan.kernels)?;
        let sources = self.sources(plan)?;
        let launches =
            plan.segments.iter().flat_map(|segment| &segment.commands).filter_map(|command| match command {
                Command::Launch(launch) => Some(launch),
                _ => None,
            });
        let (groups, of_launch) = Groups::new(self, launches)?;
        let bound = Bound::new(self, &kernels, &sources, &groups)?;
        self.rehearse(&plan.kernels, &kernels, &groups, &bound)?;
        let mut of_launch = of_launch.into_iter();
        let stages = plan.segments.iter().map(|segment| {
            let step = |command: &Command| match command {
                Command::Launch(launch) => {
                    let group = of_launch.next().unwrap_or_default();
                    Step::Launch { kernel: launch.kernel, group, grid: launch.grid }
                }
                Command::Copy { from, to } => Step::Copy { from: *from, to: *to },
                Command::Clear(slice) => Step::Clear(*slice),
            };
            Ok(Stage {
                upload: self.staging(plan, &segment.uploads, wgpu::MapMode::Write)?,
                steps: segment.commands.iter().map(step).collect(),
                parts: self.parts(plan, segment)?,
                uploads: segment.uploads.clone(),
                last: None,
                serial: 0,
            })
        });
        let stages = stages.collect::<Result<Vec<_>, GpuError>>()?;
        self.faults.check()?;
        Ok(Executable { owner: Arc::clone(&self.faults), kernels, sources, groups, bound, stages })
    }

    fn parts(&self, plan: &Plan, segment: &Segment) -> Result<Vec<Part>, GpuError> {
        let mut first = 0;
        let part = |(end, downloads): (usize, Vec<Transfer>)| {
            let launch = |command: &Command| matches!(command, Command::Launch(_));
            let launches = segment.commands[std::mem::replace(&mut first, end)..end].iter().any(launch);
            let ticks = if launches { self.ticks()? } else { None };
            let places: Vec<Transfer> =
                downloads.iter().cloned().chain(ticks.as_ref().map(|_| Ticks::transfer())).collect();
            let download = self.staging(plan, &places, wgpu::MapMode::Read)?;
            Ok(Part { end, downloads, download, unread: false, submitted: None, ticks })
        };
        split(plan, segment, PART_BYTES).into_iter().map(part).collect()
    }

    /// Staging for all transfers but those that share memory with the host.
    fn staging(&self, plan: &Plan, transfers: &[Transfer], mode: wgpu::MapMode) -> Result<Staging, GpuError> {
        let is_shared = |Transfer { slice, .. }: &Transfer| {
            self.shares_memory()
                && slice.offset.is_multiple_of(ALIGNMENT)
                && plan.buffers.get(slice.buffer).is_some_and(|buffer| buffer.role == Role::Shared)
        };
        Staging::new(self, transfers, is_shared, mode)
    }

    /// Sends one launch of no workgroups for each kernel with each of its bindings. So a launch that does not fit its
    /// bindings is an error here, by the kernel's name; fresh buffers are zeroed here; and a driver that puts off
    /// compiling until a kernel's first launch starts on it, while the host goes on.
    fn rehearse(
        &self,
        plan: &[Kernel],
        kernels: &[Compiled],
        groups: &Groups,
        bound: &Bound,
    ) -> Result<(), GpuError> {
        let part = |(id, kernel): (usize, &Compiled)| {
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
        let parts = kernels.iter().enumerate().map(part).collect::<Result<Vec<_>, _>>()?;
        let what = "the first use of the plan's buffers";
        scoped(&self.raw, what, self.pool.bytes(), || self.queue.submit(parts))?;
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

impl Step {
    pub fn is_launch(&self) -> bool {
        matches!(self, Self::Launch { .. })
    }
}

impl Executable {
    /// Segments of the plan.
    pub fn segments(&self) -> usize {
        self.stages.len()
    }

    /// Launches of all segments.
    pub fn launches(&self) -> usize {
        self.stages.iter().map(|stage| stage.steps.iter().filter(|step| step.is_launch()).count()).sum()
    }

    /// Bytes of host-visible memory that transfers go through.
    pub fn staging_bytes(&self) -> u64 {
        self.stages
            .iter()
            .map(|stage| {
                stage.upload.bytes() + stage.parts.iter().map(|part| part.download.bytes()).sum::<u64>()
            })
            .sum()
    }
}
