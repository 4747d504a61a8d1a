//! A device: an adapter opened for use, with the pipelines, scratch and state that its plans share.

pub(crate) mod clock;
pub(crate) mod counters;
pub(crate) mod fault;
mod halves;
pub(crate) mod interface;
pub(crate) mod mapped;
pub(crate) mod marks;
mod matrix_types;
mod memory_model;
pub(crate) mod options;
pub(crate) mod pipeline;
pub(crate) mod pool;
pub(crate) mod record;
mod resident;
mod self_test;
pub(crate) mod spirv;
pub(crate) mod staging;
mod state;
pub(crate) mod stopwatch;
pub(crate) mod threads;
mod wait;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use unisono_graph::target::{Target, UnitWay};

use crate::adapter::enumerate::{instance, keep, raw_cpu};
use crate::adapter::float_mode;
use crate::adapter::{cores, own_cores};
use crate::{Adapter, Backend, GpuError, Kind};

use clock::Clock;
use counters::Counted;
use fault::{Faults, Lie, scoped};
use mapped::Mapping;
use marks::Marks;
use options::Options;
use pipeline::{Pipelines, Way};
use pool::Pool;
use resident::Resident;
use state::State;

/// An adapter opened for use by one thread at a time.
///
/// Each device has a driver instance of its own, so devices do not share even a software driver's threads.
/// The CPU has no driver, and its devices may share compiled kernels ([`Options::shared`]). Closing a device
/// waits for its work, except after [`GpuError::Timeout`]: then the device is leaked, because its work may
/// never finish.
#[derive(Debug)]
pub struct Device {
    pub(crate) adapter: Adapter,
    pub(crate) options: Options,
    pub(crate) raw: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) faults: Arc<Faults>,
    pub(crate) clock: Option<Clock>,
    /// The count of its passes, if the device counts them.
    pub(crate) marks: Option<Marks>,
    pub(crate) pipelines: Pipelines,
    pub(crate) pool: Pool,
    pub(crate) state: State,
    pub(crate) resident: Resident,
    pub(crate) counters: Counted,
    /// The words by which steps in flight know how those before them ended.
    verdict: BTreeMap<usize, wgpu::Buffer>,
    /// The mapped downloads that may still be read.
    pub(crate) mappings: Mutex<Vec<Mapping>>,
    /// The bytes that state and scratch may take, on adapters where wgpu would not notice that they are used
    /// up.
    capacity: Option<u64>,
    /// The driver, if there is one.
    instance: Option<wgpu::Instance>,
}

/// The usage of a buffer that kernels and copies can use.
pub(crate) const STORAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

/// The bytes that a device holds for its plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The bytes of the persistent state.
    pub state: u64,
    /// The bytes of scratch, which all plans share.
    pub scratch: u64,
    /// The bytes of resident memory, which stays from step to step until it is dropped.
    pub resident: u64,
}

impl Device {
    /// Opens an adapter with its real limits and [`Options::default`].
    ///
    /// # Errors
    /// Those of [`Device::open_with`].
    pub fn open(adapter: &Adapter) -> Result<Self, GpuError> {
        Self::open_with(adapter, Options::default())
    }

    /// Opens an adapter with its real limits, and has it compute numbers that the host knows.
    ///
    /// # Errors
    /// [`GpuError::Open`] if the adapter is gone or its driver refuses; [`GpuError::NoBackend`] if this build
    /// lacks its backend; [`GpuError::Wrong`] or [`GpuError::Lost`] if the device does not compute.
    pub fn open_with(adapter: &Adapter, options: Options) -> Result<Self, GpuError> {
        if !adapter.backend.is_compiled() {
            return Err(GpuError::NoBackend {
                wanted: adapter.label(),
                missing: vec![adapter.backend.feature()],
            });
        }
        let failed = |reason: String| GpuError::Open { adapter: adapter.label(), reason };
        if let Some(reason) = adapter.lacks_compiler() {
            return Err(failed(reason.to_owned()));
        }
        let cores = cores();
        let own_cores = own_cores(options.devices, options.processes);
        let (instance, found) = match adapter.backend {
            Backend::Cpu => {
                let arithmetic = adapter.arithmetic.unwrap_or_default();
                let shared = options.shared.clone().unwrap_or_default();
                (None, raw_cpu(own_cores, arithmetic, &shared))
            }
            backend => {
                let driver = float_mode::for_adapter(adapter, || instance(&[backend], options.checked));
                if adapter.kind != Kind::Cpu {
                    keep(backend, &driver);
                }
                let found = adapter.find(&driver);
                (Some(driver), found)
            }
        };
        let found = found.ok_or_else(|| failed("it is no longer there".to_owned()))?;
        let mut wanted = wgpu::Features::SUBGROUP;
        wanted.set(wgpu::Features::TIMESTAMP_QUERY, options.clock);
        let uses_f16 = options.f16 || adapter.unit.is_some();
        wanted.set(wgpu::Features::SHADER_F16, uses_f16);
        let plain = options.checked;
        wanted.set(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS, adapter.shares_memory() && !plain);
        let decorates = options.decorate && !plain && adapter.backend == Backend::Vulkan;
        wanted.set(wgpu::Features::PASSTHROUGH_SHADERS, decorates);
        let is_cooperative = adapter.unit.is_some_and(|unit| unit.way == UnitWay::Cooperative);
        wanted.set(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX, is_cooperative);
        let enabled = found.features() & wanted;
        if is_cooperative && !(decorates && enabled.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX))
        {
            return Err(GpuError::NoMatrixUnit {
                adapter: adapter.label(),
                why:
                    "a device that is checked or not protected, or whose driver has taken them back, has none"
                        .to_owned(),
            });
        }
        let descriptor = wgpu::DeviceDescriptor {
            label: None,
            required_features: enabled,
            experimental_features: experiments(enabled),
            required_limits: found.limits(),
            ..wgpu::DeviceDescriptor::default()
        };
        let request = || pollster::block_on(found.request_device(&descriptor));
        let (raw, queue) =
            float_mode::for_adapter(adapter, request).map_err(|error| failed(error.to_string()))?;
        let faults = Faults::watch(adapter.label(), &raw);
        let threads = options.compile_threads.unwrap_or(match (adapter.backend, adapter.kind) {
            (Backend::Gl, _) => 1,
            (_, Kind::Cpu) => own_cores,
            _ => cores,
        });
        let way = way(plain, enabled);
        let mut device = Self {
            adapter: adapter.clone(),
            pipelines: Pipelines::new(way, threads).in_turn(options.turn, options.devices),
            options,
            clock: Clock::new(&raw, &queue, adapter.backend),
            marks: None,
            raw,
            queue,
            faults,
            pool: Pool::default(),
            state: State::default(),
            resident: Resident::default(),
            counters: Counted::default(),
            verdict: BTreeMap::new(),
            mappings: Mutex::default(),
            // Software drivers promise memory that the machine does not have, and the process is killed when
            // it is used.
            capacity: adapter.memory_bytes(),
            instance,
        };
        if device.options.marks(adapter.backend) {
            device.marks = Some(Marks::new(&device, way)?);
        }
        let deadline = device.options.deadline;
        device.options.deadline = deadline.max(self_test::DEADLINE);
        self_test::check(&mut device)?;
        if enabled.contains(wgpu::Features::SHADER_F16) {
            halves::check(&mut device)?;
        }
        device.options.deadline = deadline;
        // Nothing of these checks stays.
        (device.pool, device.counters) = (Pool::default(), Counted::default());
        device.drop_unused_kernels();
        device.clock = Clock::new(&device.raw, &device.queue, adapter.backend);
        Ok(device)
    }

    /// Returns the adapter that was opened.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// Returns what plans for this device have to know.
    pub fn target(&self) -> Target {
        let target = self.adapter.target();
        Target {
            f16: target.f16 && (self.options.f16 || self.adapter.unit.is_some()),
            masks: self.adapter.backend != Backend::Cpu
                && self.options.decorate
                && !self.pipelines.is_decorated(),
            shares_memory: self.shares_memory(),
            ..target
        }
    }

    /// Returns whether the host maps buffers that kernels use.
    pub(crate) fn shares_memory(&self) -> bool {
        self.adapter.shares_memory() && !self.options.checked
    }

    /// Returns the bytes that are held for plans.
    pub fn memory(&self) -> Memory {
        Memory { state: self.state.bytes(), scratch: self.pool.bytes(), resident: self.resident.bytes() }
    }

    /// Returns the number of distinct compiled kernels that the device holds.
    pub fn kernels(&self) -> usize {
        self.pipelines.len()
    }

    /// Drops the compiled kernels that no executable has and nobody keeps ([`crate::Kernels`]). A device
    /// holds all other kernels that it ever compiled, so that a plan with the same kernels is loaded fast.
    pub fn drop_unused_kernels(&mut self) {
        self.pipelines.drop_unused();
    }

    /// Makes the device lost, as if it had been unplugged: for drills. Every later use is [`GpuError::Lost`].
    pub fn lose(&self) {
        self.faults.lose("on purpose");
        // Memory that is still read must not be destroyed.
        if self.unmap_unread().is_ok() {
            self.raw.destroy();
        }
    }

    /// Leaves out one run of commands, as if the driver had dropped it and reported it as done: for drills.
    /// Copies and clears in a row are a run, and so are the launches of a pass. `run` is the number of the
    /// run from now on, from 1.
    pub fn leave_out(&self, run: u64) {
        self.faults.leave_out(run);
    }

    /// Has the device behave like one whose driver lies, from now on: for drills.
    pub fn lie(&self, lie: Lie) {
        self.faults.lie(lie);
    }

    /// Has the device leave out one launch of each plan from now on, counted from 1 over all its segments, as
    /// if the driver had dropped it: for drills.
    pub fn skip(&self, launch: u64) {
        self.faults.skip(launch);
    }

    /// Checks that there is memory for so many bytes more.
    pub(crate) fn fits(&self, what: &str, bytes: u64) -> Result<(), GpuError> {
        let Memory { state, scratch, resident } = self.memory();
        let needed = [scratch, resident, bytes].into_iter().fold(state, u64::saturating_add);
        if self.capacity.is_some_and(|capacity| needed > capacity) {
            return Err(GpuError::OutOfMemory { what: what.to_owned(), bytes });
        }
        Ok(())
    }

    /// Creates a buffer that kernels and copies can use.
    pub(crate) fn create_storage(&self, what: &str, size: u64) -> Result<wgpu::Buffer, GpuError> {
        let usage = STORAGE;
        self.create(what, &wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    }

    /// Checks that a buffer may have so many bytes.
    fn allows(&self, what: &str, needs: u64) -> Result<(), GpuError> {
        let (what, allows) = (|| format!("{what}: bytes of a buffer"), self.adapter.limits.buffer_bytes);
        if needs > allows { Err(GpuError::Limit { what: what(), needs, allows }) } else { Ok(()) }
    }

    /// Creates a buffer that kernels can use, and that the host maps where it can map such buffers.
    pub(crate) fn create_shared(&self, what: &str, size: u64) -> Result<wgpu::Buffer, GpuError> {
        self.fits(what, size)?;
        if !self.shares_memory() {
            return self.create_storage(what, size);
        }
        let usage = STORAGE | wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::MAP_WRITE;
        self.create(what, &wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    }

    /// Returns a buffer of the verdict, which is created as zeros when a plan first has it.
    pub(crate) fn verdict_word(&mut self, word: usize, bytes: u64) -> Result<wgpu::Buffer, GpuError> {
        if let Some(known) = self.verdict.get(&word).filter(|known| known.size() == bytes) {
            return Ok(known.clone());
        }
        let buffer = self.create_storage("the verdict", bytes)?;
        self.verdict.insert(word, buffer.clone());
        Ok(buffer)
    }

    /// Creates a buffer that starts with these bytes.
    pub(crate) fn create_filled(
        &self,
        what: &str,
        bytes: &[u8],
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer, GpuError> {
        let size = bytes.len() as u64;
        let buffer = self
            .create(what, &wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: true })?;
        let mut view = buffer.get_mapped_range_mut(..).map_err(|error| self.blame(what, error))?;
        view.copy_from_slice(bytes);
        drop(view);
        buffer.unmap();
        Ok(buffer)
    }

    pub(crate) fn create(
        &self,
        what: &str,
        descriptor: &wgpu::BufferDescriptor<'_>,
    ) -> Result<wgpu::Buffer, GpuError> {
        self.allows(what, descriptor.size)?;
        let buffer = scoped(&self.raw, what, descriptor.size, || self.raw.create_buffer(descriptor))?;
        self.faults.check()?;
        Ok(buffer)
    }

    /// Returns the error for a failed call of the driver: the device's own fault if it has one.
    pub(crate) fn blame(&self, what: &str, message: impl std::fmt::Display) -> GpuError {
        let otherwise = || GpuError::Validation { what: what.to_owned(), message: message.to_string() };
        self.faults.check().err().unwrap_or_else(otherwise)
    }
}

/// Returns how kernels reach the driver of a device with these features.
fn way(checked: bool, enabled: wgpu::Features) -> Way {
    if checked {
        Way::Checked
    } else if enabled.contains(wgpu::Features::PASSTHROUGH_SHADERS) {
        // Subgroup operations need 1.3. Whoever has them has Vulkan 1.1, which takes it.
        let minor = if enabled.contains(wgpu::Features::SUBGROUP) { 3 } else { 0 };
        Way::Decorated {
            version: (1, minor),
            f16: enabled.contains(wgpu::Features::SHADER_F16),
            matrices: enabled.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX),
        }
    } else {
        Way::Trusted
    }
}

/// Returns leave to use what wgpu counts as experimental, if the features need it.
#[expect(unsafe_code, reason = "handing over SPIR-V and cooperative matrices count as experimental")]
fn experiments(enabled: wgpu::Features) -> wgpu::ExperimentalFeatures {
    if enabled.contains(wgpu::Features::PASSTHROUGH_SHADERS) {
        // SAFETY: `pipeline` says why the SPIR-V is sound. Of the other experimental features only
        // cooperative matrices are asked for: kernels load and store them within workgroup memory, with all
        // invocations of a subgroup.
        unsafe { wgpu::ExperimentalFeatures::enabled() }
    } else {
        wgpu::ExperimentalFeatures::disabled()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.faults.is_abandoned() {
            std::mem::forget((self.instance.clone(), self.raw.clone(), self.queue.clone()));
        }
    }
}
