//! Compiles kernels to pipelines, several at a time, and keeps each distinct kernel.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use naga::valid::Capabilities;
use unisono_graph::plan::{Access, Kernel};

use crate::GpuError;
use crate::device::fault::scoped;
use crate::device::interface::Interface;
use crate::device::spirv::translate;
use crate::device::threads::on_threads;

/// The compiled kernels of a device, by their text and bindings.
#[derive(Debug)]
pub(crate) struct Pipelines {
    way: Way,
    threads: usize,
    /// The number of the device among those that load the same plans, and their number.
    turn: (usize, usize),
    /// The layouts, by how a kernel uses its buffers.
    layouts: HashMap<Vec<Access>, Layout>,
    compiled: HashMap<Key, Arc<Compiled>>,
}

type Key = (String, Vec<Access>);

/// How a kernel reaches the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It goes through wgpu with bounds checks.
    Checked,
    /// It goes through wgpu without them.
    Trusted,
    /// It goes to the driver as SPIR-V in which no float operation may be changed.
    Decorated {
        /// The version of SPIR-V.
        version: (u8, u8),
        /// Whether kernels may use 16-bit floats.
        f16: bool,
        /// Whether kernels may use cooperative matrices.
        matrices: bool,
    },
}

#[derive(Clone, Debug)]
struct Layout {
    group: wgpu::BindGroupLayout,
    pipeline: wgpu::PipelineLayout,
}

/// A kernel ready for use.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub pipeline: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
    /// The bindings that it needs where wgpu does not know them.
    pub interface: Interface,
    /// How long the driver took to create it.
    pub took: Duration,
}

impl Pipelines {
    pub fn new(way: Way, threads: usize) -> Self {
        Self { way, threads: threads.max(1), turn: (0, 1), layouts: HashMap::new(), compiled: HashMap::new() }
    }

    /// Sets the number of the device among so many that load the same plans.
    pub fn in_turn(self, turn: usize, devices: usize) -> Self {
        Self { turn: (turn, devices), ..self }
    }

    /// Returns whether kernels reach the driver as SPIR-V in which no float operation may be changed.
    pub fn is_decorated(&self) -> bool {
        matches!(self.way, Way::Decorated { .. })
    }

    pub fn len(&self) -> usize {
        self.compiled.len()
    }

    /// Drops the kernels that nothing outside holds.
    pub fn drop_unused(&mut self) {
        self.compiled.retain(|_, kernel| Arc::strong_count(kernel) > 1);
    }

    /// Returns one entry for each of `kernels`, in order, and compiles those that are new.
    pub fn compile(
        &mut self,
        device: &wgpu::Device,
        kernels: &[Kernel],
    ) -> Result<Vec<Arc<Compiled>>, GpuError> {
        let mut missing: HashMap<Key, &Kernel> = HashMap::new();
        for kernel in kernels {
            let key = key(kernel);
            if self.compiled.contains_key(&key) || missing.contains_key(&key) {
                continue;
            }
            if let Entry::Vacant(new) = self.layouts.entry(kernel.bindings.clone()) {
                let made = scoped(device, &kernel.name, 0, || layout(device, new.key()))?;
                new.insert(made);
            }
            missing.insert(key, kernel);
        }
        for (key, compiled) in self.compile_all(device, missing.into_iter().collect())? {
            self.compiled.insert(key, Arc::new(compiled));
        }
        Ok(kernels.iter().map(|kernel| Arc::clone(&self.compiled[&key(kernel)])).collect())
    }

    /// Compiles all of these. The error, if any, is that of the kernel whose name comes first, whichever
    /// thread was quickest.
    fn compile_all(
        &self,
        device: &wgpu::Device,
        mut missing: Vec<(Key, &Kernel)>,
    ) -> Result<Vec<(Key, Compiled)>, GpuError> {
        missing.sort_by(|(_, a), (_, b)| (&a.name, &a.wgsl).cmp(&(&b.name, &b.wgsl)));
        let order = dealt(&Vec::from_iter(0..missing.len()), self.turn.0, self.turn.1);
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            loop {
                let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) else { return done };
                done.push((index, self.compile_one(device, missing[index].1)));
            }
        };
        let threads = self.threads.min(missing.len());
        let done = on_threads(threads, &std::thread::Builder::new, &work);
        let mut done: Vec<_> = done.into_iter().flatten().flatten().collect();
        done.sort_by_key(|(index, _)| *index);
        let pipelines = done.into_iter().map(|(_, result)| result).collect::<Result<Vec<_>, _>>()?;
        if pipelines.len() < missing.len() {
            return Err(GpuError::Validation {
                what: "compiling kernels".to_owned(),
                message: "a compiler thread panicked".to_owned(),
            });
        }
        Ok(missing.into_iter().map(|(key, _)| key).zip(pipelines).collect())
    }

    fn compile_one(&self, device: &wgpu::Device, kernel: &Kernel) -> Result<Compiled, GpuError> {
        let layout = &self.layouts[&kernel.bindings];
        let what = format!("kernel {}", kernel.name);
        // Two scopes: a pipeline made of a broken module would only say that the module is broken.
        let (module, interface) = scoped(device, &what, 0, || module(device, kernel, self.way))??;
        let start = Instant::now();
        let pipeline = scoped(device, &what, 0, || {
            device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(&kernel.name),
                layout: Some(&layout.pipeline),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: self.way == Way::Checked,
                    ..wgpu::PipelineCompilationOptions::default()
                },
                cache: None,
            })
        })?;
        let took = start.elapsed();
        Ok(Compiled { pipeline, layout: layout.group.clone(), interface, took })
    }
}

#[expect(
    unsafe_code,
    reason = "kernels stay inside their bindings by construction; Options::checked is the other way"
)]
fn module(
    device: &wgpu::Device,
    kernel: &Kernel,
    way: Way,
) -> Result<(wgpu::ShaderModule, Interface), GpuError> {
    let descriptor = wgpu::ShaderModuleDescriptor {
        label: Some(&kernel.name),
        source: wgpu::ShaderSource::Wgsl(kernel.wgsl.as_str().into()),
    };
    // SAFETY: plans are made by unisono-graph, whose kernels index within their bindings and end their loops.
    // The SPIR-V is what wgpu itself would hand over, but for a decoration that is allowed where it stands.
    let known = |module| (module, Interface::default());
    Ok(match way {
        Way::Checked => known(device.create_shader_module(descriptor)),
        Way::Trusted => known(unsafe {
            device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked())
        }),
        Way::Decorated { version, f16, matrices } => {
            let mut capabilities = Capabilities::all();
            capabilities.set(Capabilities::SHADER_FLOAT16, f16);
            capabilities.set(Capabilities::COOPERATIVE_MATRIX, matrices);
            let main = wgpu::PassthroughShaderEntryPoint { name: "main".into(), workgroup_size: (0, 0, 0) };
            let (words, interface) = translate(kernel, version, capabilities)?;
            let module = unsafe {
                device.create_shader_module_passthrough(wgpu::ShaderModuleDescriptorPassthrough {
                    label: Some(&kernel.name),
                    entry_points: std::slice::from_ref(&main).into(),
                    spirv: Some(words.into()),
                    ..wgpu::ShaderModuleDescriptorPassthrough::default()
                })
            };
            (module, interface)
        }
    })
}

/// Creates the layout of a kernel: binding 0 is the uniform, and the storage buffers follow.
fn layout(device: &wgpu::Device, accesses: &[Access]) -> Layout {
    let entry = |binding: usize, ty: wgpu::BindingType| wgpu::BindGroupLayoutEntry {
        binding: binding as u32,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty,
        count: None,
    };
    let buffer = |ty| wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None };
    let mut entries = vec![entry(0, buffer(wgpu::BufferBindingType::Uniform))];
    for (index, access) in accesses.iter().enumerate() {
        let read_only = *access == Access::Read;
        entries.push(entry(index + 1, buffer(wgpu::BufferBindingType::Storage { read_only })));
    }
    let group =
        device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
    let pipeline = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: None,
        bind_group_layouts: &[Some(&group)],
        immediate_size: 0,
    });
    Layout { group, pipeline }
}

fn key(kernel: &Kernel) -> Key {
    (kernel.wgsl.clone(), kernel.bindings.clone())
}

/// Returns the order in which device number `turn` of several goes through kernels that all of them
/// compile, so that each finds what another one has compiled by then. The kernels are dealt out to the
/// devices. Each has its own hand first, and then the others' from behind: two that are left with one hand
/// meet in it once.
pub(crate) fn dealt(kernels: &[usize], turn: usize, devices: usize) -> Vec<usize> {
    let devices = devices.clamp(1, kernels.len().max(1));
    let turn = turn % devices;
    let hand = |device: usize| kernels.iter().copied().skip(device % devices).step_by(devices);
    hand(turn).chain((turn + 1..turn + devices).flat_map(|other| hand(other).rev())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_dealt_out_to_the_devices() {
        let kernels = [1, 3, 4, 2, 0];
        assert_eq!(dealt(&kernels, 0, 1), [1, 3, 4, 2, 0]);
        assert_eq!(dealt(&kernels, 0, 2), [1, 4, 0, 2, 3]);
        assert_eq!(dealt(&kernels, 1, 2), [3, 2, 0, 4, 1]);
        // Replicas that came later have greater numbers, and there may be more devices than kernels.
        assert_eq!(dealt(&kernels, 7, 2), dealt(&kernels, 1, 2));
        assert_eq!(dealt(&kernels, 6, 9), [3, 4, 2, 0, 1]);
        assert_eq!(dealt(&kernels, usize::MAX, usize::MAX), dealt(&kernels, 0, 5));
        assert_eq!(dealt(&[], 1, 2), []);
    }
}
