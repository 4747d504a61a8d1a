//! How kernels of a device read fastest: it is measured in a few milliseconds, and kept for the next process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use unisono_graph::plan::{Access, Kernel};

use super::Texels;
use crate::adapter::environment::cpu;
use crate::device::pipeline::{Compiled, Pipelines, Way};
use crate::device::reads::Textures;
use crate::{Adapter, Cache, GpuError};

/// The version of the measurement. What an older one found is not believed.
const MEASUREMENT: u32 = 1;

/// What is known in this process, by the adapter's label and its driver.
static KNOWN: Mutex<BTreeMap<(String, String), Reading>> = Mutex::new(BTreeMap::new());

/// The bytes of each of the two buffers.
const BYTES: u64 = 1 << 16;
/// The invocations, 64 a workgroup.
const INVOCATIONS: u64 = 512;
/// The loads of an invocation.
const LOADS: u32 = 128;
/// How often each way is measured; the least time counts.
const TIMES: usize = 8;

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
    /// Returns that everything goes through textures that can, on a device with 64-bit integers or without.
    pub fn textures(pairs: bool) -> Self {
        Self { textures: Textures::ALL, pairs }
    }

    /// Returns the reading that was printed so.
    fn parse(text: &str) -> Option<Self> {
        let both = [false, true];
        let all = both.iter().flat_map(|&vectors| both.map(|words| Textures { vectors, words }));
        let mut all = all.flat_map(|textures| both.map(|pairs| Self { textures, pairs }));
        all.find(|reading| reading.to_string() == text)
    }
}

/// Prints all of it in a line.
impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { textures: Textures { vectors, words }, pairs } = self;
        writeln!(f, "textures for vectors {vectors}, for words {words}; pairs {pairs}")
    }
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
    let measured = || measure(&Lab { device, queue, texels, way }, pairs).ok();
    let found = || match title(adapter, cpu()) {
        Some(title) => remembered(&Cache::of_user("reads"), &title, measured),
        None => measured(),
    };
    // A driver that refuses textures over buffers reads the buffers.
    *known.entry(key).or_insert_with(|| found().unwrap_or(Reading { pairs, ..Reading::default() }))
}

/// Returns what a measurement holds for: the adapter and its driver, the CPU, this crate and its
/// measurement. It is `None` where one of them is not known.
fn title(adapter: &Adapter, cpu: Option<String>) -> Option<String> {
    let (label, driver, cpu) = (adapter.label(), adapter.driver_info.trim(), cpu?);
    let pairs = if adapter.loads_pairs() { "pairs" } else { "no pairs" };
    let version = env!("CARGO_PKG_VERSION");
    let title = format!("{label} {driver} {pairs}, unisono {version}, reads {MEASUREMENT}, {cpu}");
    (!driver.is_empty()).then_some(title)
}

/// Returns what the cache has under this title, or else what is measured now, which it keeps.
fn remembered(cache: &Cache, title: &str, measured: impl FnOnce() -> Option<Reading>) -> Option<Reading> {
    cache.read(title).and_then(|text| Reading::parse(&text)).or_else(|| {
        let reading = measured()?;
        cache.write(title, &reading.to_string());
        Some(reading)
    })
}

/// What a kernel does that is measured: it loads numbers of this type, of so many bytes, and stores as many
/// or none.
#[derive(Clone, Copy)]
struct Work {
    element: &'static str,
    bytes: u64,
    textures: Textures,
    stores: bool,
}

/// Measures loads of vectors and of single numbers, and then, with the faster ways, copies of numbers and of
/// pairs of them.
fn measure(lab: &Lab<'_>, has_pairs: bool) -> Result<Reading, GpuError> {
    let load = |element, bytes, textures| Work { element, bytes, textures, stores: false };
    let [vector, vector_texel, word, word_texel] = lab.least([
        load("vec4<f32>", 16, Textures::default()),
        load("vec4<f32>", 16, Textures::ALL),
        load("f32", 4, Textures::default()),
        load("f32", 4, Textures::ALL),
    ])?;
    let textures = Textures { vectors: vector_texel < vector, words: word_texel < word };
    let mut pairs = false;
    if has_pairs {
        let copy = |element, bytes| Work { element, bytes, textures, stores: true };
        let [numbers, twice_as_many] = lab.least([copy("vec4<f32>", 16), copy("vec4<u64>", 32)])?;
        pairs = twice_as_many < 2 * numbers;
    }
    Ok(Reading { textures, pairs })
}

/// Returns the text of a kernel that does little else.
fn text(Work { element, bytes, stores, .. }: Work) -> String {
    let mask = BYTES / bytes - 1;
    let store = if stores { format!("y[(id.x + i * 67u) & {mask}u] = sum;") } else { String::new() };
    format!(
        "@group(0) @binding(0) var<uniform> params: vec4<u32>;
@group(0) @binding(1) var<storage, read> x: array<{element}>;
@group(0) @binding(2) var<storage, read_write> y: array<{element}>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    var sum = {element}();
    for (var i = 0u; i < params.x; i++) {{
        sum += x[(id.x + i * 67u) & {mask}u];
        {store}
    }}
    y[id.x] = sum;
}}"
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
    kernel: Arc<Compiled>,
    group: wgpu::BindGroup,
}

impl Lab<'_> {
    /// Returns the least time of each kernel. They run in turns.
    fn least<const N: usize>(&self, all: [Work; N]) -> Result<[Duration; N], GpuError> {
        let ready = all.iter().map(|work| self.ready(*work)).collect::<Result<Vec<_>, _>>()?;
        let mut least = [Duration::MAX; N];
        for _ in 0..TIMES {
            for (ready, least) in ready.iter().zip(&mut least) {
                *least = self.timed(ready)?.min(*least);
            }
        }
        Ok(least)
    }

    fn ready(&self, work: Work) -> Result<Ready, GpuError> {
        let refused = || GpuError::plan("a texture over a buffer", "the driver refuses it");
        let bindings = vec![Access::Read, Access::ReadWrite];
        let kernel = Kernel { name: "reads".to_owned(), wgsl: text(work), bindings };
        let Self { device, queue, texels, way } = *self;
        let mut pipelines = Pipelines::new(way, 1, work.textures, usize::MAX);
        let compiled = pipelines.compile(device, std::slice::from_ref(&kernel))?;
        let kernel = compiled.into_iter().next().ok_or_else(refused)?;
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor { label: None, size: 16, usage, mapped_at_creation: false };
        let params = device.create_buffer(&descriptor);
        queue.write_buffer(&params, 0, bytemuck::bytes_of(&[LOADS, 0, 0, 0]));
        let x = texels.create(device, BYTES).ok_or_else(refused)?;
        let y = texels.create(device, BYTES).ok_or_else(refused)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_measured_once_for_an_adapter_and_a_cpu() {
        let folder = std::env::temp_dir().join(format!("unisono-reads-{}", std::process::id()));
        let cache = Cache::at(&folder);
        let found = Reading { textures: Textures { vectors: true, words: false }, pairs: true };
        let again = || panic!("measured twice");
        assert_eq!(remembered(&cache, "one", || None), None);
        assert_eq!(remembered(&cache, "one", || Some(found)), Some(found));
        assert_eq!(remembered(&cache, "one", again), Some(found));
        assert_eq!(remembered(&cache, "two", || None), None);
        cache.write("one", "textures for all\n");
        assert_eq!(
            remembered(&cache, "one", || Some(Reading::textures(false))),
            Some(Reading::textures(false))
        );
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_title_tells_cpus_and_drivers_apart() {
        let adapter = crate::adapters(&[]).pop().expect("no adapter");
        let adapter = Adapter { driver_info: "1.0".into(), ..adapter };
        let newer = Adapter { driver_info: "1.1".into(), ..adapter.clone() };
        let silent = Adapter { driver_info: " ".into(), ..adapter.clone() };
        let title = |adapter: &Adapter, cpu: &str| title(adapter, Some(cpu.to_owned()));
        assert_ne!(title(&adapter, "A fma"), title(&adapter, "A fma avx512f"));
        assert_ne!(title(&adapter, "A"), title(&newer, "A"));
        assert_eq!([title(&silent, "A"), super::title(&adapter, None)], [None, None]);
    }
}
