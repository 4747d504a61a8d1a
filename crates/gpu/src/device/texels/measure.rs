//! How kernels of a device read fastest: it is measured, once a process and adapter, in a few milliseconds.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use unisono_graph::plan::{Access, Kernel};

use super::Texels;
use crate::device::pipeline::{Compiled, Pipelines, Way};
use crate::device::reads::Textures;
use crate::{Adapter, GpuError};

/// What was measured in this process, by the adapter's label and its driver.
static KNOWN: Mutex<BTreeMap<(String, String), Reading>> = Mutex::new(BTreeMap::new());

/// The bytes that are read.
const BYTES: u64 = 1 << 16;
/// The invocations, 64 a workgroup.
const INVOCATIONS: u64 = 512;
/// The loads of an invocation.
const LOADS: u32 = 128;
/// How often each way is measured; the least time counts.
const TIMES: usize = 4;

/// How kernels of a device read their buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// What goes through textures.
    pub textures: Textures,
    /// Whether a map reads and writes two f32 as a u64 where it can
    /// ([`unisono_graph::target::Target::pairs`]).
    pub pairs: bool,
}

impl Reading {
    /// Returns that everything goes through textures that can.
    pub const TEXTURES: Self = Self { textures: Textures::ALL, pairs: false };
}

/// Returns how kernels read fastest on this device, which has 64-bit integers or not.
pub(crate) fn fastest(
    adapter: &Adapter,
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    texels: &Texels,
    way: Way,
) -> Reading {
    let key = (adapter.label(), adapter.driver_info.clone());
    // It is held while one device measures, so that others do not disturb it.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let pairs = adapter.loads_pairs();
    let measured = || measure(&Lab { device, queue, texels, way }, pairs);
    // A driver that refuses textures over buffers reads the buffers.
    *known.entry(key).or_insert_with(|| measured().unwrap_or(Reading { pairs, ..Reading::default() }))
}

/// Measures all ways in turns.
fn measure(lab: &Lab<'_>, pairs: bool) -> Result<Reading, GpuError> {
    let textures = Textures::ALL;
    let ways = [
        ("vec4<f32>", 16, Textures::default()),
        ("vec4<f32>", 16, textures),
        ("f32", 4, Textures::default()),
        ("f32", 4, textures),
        ("vec4<u64>", 32, Textures::default()),
    ];
    let ways = &ways[..if pairs { 5 } else { 4 }];
    let ready = ways.iter().map(|way| lab.ready(*way)).collect::<Result<Vec<_>, _>>()?;
    let mut least = [Duration::MAX; 5];
    for _ in 0..TIMES {
        for (way, least) in ready.iter().zip(&mut least) {
            *least = lab.timed(way)?.min(*least);
        }
    }
    let [vector, vector_texel, word, word_texel, pair] = least;
    let textures = Textures { vectors: vector_texel < vector, words: word_texel < word };
    // A vector of pairs has twice as many numbers.
    Ok(Reading { textures, pairs: pairs && pair < 2 * vector.min(vector_texel) })
}

/// Returns the text of a kernel that does little but read.
fn text(element: &str, bytes: u64) -> String {
    format!(
        "@group(0) @binding(0) var<uniform> params: vec4<u32>;
@group(0) @binding(1) var<storage, read> x: array<{element}>;
@group(0) @binding(2) var<storage, read_write> y: array<{element}>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    var sum = {element}();
    for (var i = 0u; i < params.x; i++) {{ sum += x[(id.x + i * 67u) & {}u]; }}
    y[id.x] = sum;
}}",
        BYTES / bytes - 1
    )
}

/// The device on which is measured.
struct Lab<'a> {
    device: &'a wgpu::Device,
    queue: &'a wgpu::Queue,
    texels: &'a Texels,
    way: Way,
}

/// A kernel with its buffers.
struct Ready {
    kernel: Compiled,
    group: wgpu::BindGroup,
}

impl Lab<'_> {
    fn ready(&self, (element, bytes, textures): (&str, u64, Textures)) -> Result<Ready, GpuError> {
        let refused = || GpuError::plan("a texture over a buffer", "the driver refuses it");
        let bindings = vec![Access::Read, Access::ReadWrite];
        let kernel = Kernel { name: "reads".to_owned(), wgsl: text(element, bytes), bindings };
        let Self { device, queue, texels, way } = *self;
        let mut pipelines = Pipelines::new(way, 1, textures, usize::MAX);
        let compiled = pipelines.compile(device, std::slice::from_ref(&kernel))?;
        let kernel = compiled.into_iter().next().ok_or_else(refused)?;
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor { label: None, size: 16, usage, mapped_at_creation: false };
        let params = device.create_buffer(&descriptor);
        queue.write_buffer(&params, 0, bytemuck::bytes_of(&[LOADS, 0, 0, 0]));
        let x = texels.create(device, BYTES).ok_or_else(refused)?;
        let y = texels.create(device, INVOCATIONS * bytes).ok_or_else(refused)?;
        let view = texels.view(device, &x, 0).ok_or_else(refused)?;
        let mut entries = vec![
            wgpu::BindGroupEntry { binding: 0, resource: params.as_entire_binding() },
            wgpu::BindGroupEntry { binding: 1, resource: x.as_entire_binding() },
            wgpu::BindGroupEntry { binding: 2, resource: y.as_entire_binding() },
        ];
        for &(_, binding) in &kernel.textures {
            let resource = wgpu::BindingResource::TextureView(&view);
            entries.push(wgpu::BindGroupEntry { binding: binding as u32, resource });
        }
        let layout = &kernel.layout;
        let descriptor = wgpu::BindGroupDescriptor { label: None, layout, entries: &entries };
        let group = device.create_bind_group(&descriptor);
        Ok(Ready { kernel, group })
    }

    /// Returns how long one launch takes.
    fn timed(&self, Ready { kernel, group }: &Ready) -> Result<Duration, GpuError> {
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&kernel.pipeline);
        pass.set_bind_group(0, group, &[]);
        pass.dispatch_workgroups(INVOCATIONS as u32 / 64, 1, 1);
        drop(pass);
        let commands = encoder.finish();
        let start = Instant::now();
        self.queue.submit([commands]);
        let waited = self.device.poll(wgpu::PollType::wait_indefinitely());
        let took = start.elapsed();
        waited.map(|_| took).map_err(|error| GpuError::plan("a wait", error.to_string()))
    }
}
