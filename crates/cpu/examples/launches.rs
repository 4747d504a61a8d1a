//! Measures what a launch costs beside its work: `cargo run --release -p unisono-cpu --example launches`.
//!
//! Each line is the least of several submissions of many launches, in microseconds a launch, for one thread
//! and for more. Launches of one workgroup are not shared among threads; those of more are. Behind a launch
//! of one long workgroup the other threads sleep. On Linux the last number is how often threads went to
//! sleep.

use std::time::{Duration, Instant};

use unisono_cpu::Options;
use wgpu::{ComputePassDescriptor, ComputePipeline, PollType};

/// A kernel whose workgroups count to a number, which the launch's buffer holds.
const COUNT: &str = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(1) fn main(@builtin(workgroup_id) id: vec3<u32>) {
    var n = id.x;
    for (var i = 0u; i < x[0]; i++) { n = (n ^ (n << 13u)) * 0x9e3779b1u; }
    x[1u + id.x] = n;
}";

const ROUNDS: usize = 20;

struct Machine {
    device: wgpu::Device,
    queue: wgpu::Queue,
    kernel: ComputePipeline,
}

impl Machine {
    fn new(threads: usize) -> Self {
        let adapter = unisono_cpu::adapter(Options { threads, ..Options::default() });
        let descriptor =
            wgpu::DeviceDescriptor { required_limits: adapter.limits(), ..wgpu::DeviceDescriptor::default() };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).expect("a device");
        let source = wgpu::ShaderSource::Wgsl(COUNT.into());
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        let kernel = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: None,
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        Self { device, queue, kernel }
    }

    /// Returns bindings with which a workgroup counts to a number.
    fn counts_to(&self, number: u32) -> wgpu::BindGroup {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: 1 << 16,
            usage,
            mapped_at_creation: false,
        });
        self.queue.write_buffer(&buffer, 0, &number.to_le_bytes());
        let entries = [wgpu::BindGroupEntry { binding: 0, resource: buffer.as_entire_binding() }];
        let layout = &self.kernel.get_bind_group_layout(0);
        self.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
    }

    /// Returns the least time of a submission that launches these so many times, for each of them, and how
    /// often threads slept then.
    fn measure(&self, times: u32, launches: &[(&wgpu::BindGroup, u32)]) -> (Duration, f64) {
        let mut least = (Duration::MAX, 0);
        for _ in 0..ROUNDS {
            let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
            pass.set_pipeline(&self.kernel);
            for _ in 0..times {
                for (group, count) in launches {
                    pass.set_bind_group(0, *group, &[]);
                    pass.dispatch_workgroups(*count, 1, 1);
                }
            }
            drop(pass);
            let commands = encoder.finish();
            let (start, slept) = (Instant::now(), sleeps());
            self.queue.submit([commands]);
            self.device.poll(PollType::wait_indefinitely()).expect("an end");
            least = least.min((start.elapsed(), sleeps() - slept));
        }
        (least.0 / times, least.1 as f64 / f64::from(times))
    }
}

/// Returns how often the threads of this process went to sleep.
fn sleeps() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let count = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    texts.filter_map(count).sum()
}

fn main() {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let more: Vec<usize> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let counts = if more.is_empty() { vec![1, all.max(2)] } else { more };
    for threads in counts {
        let machine = Machine::new(threads);
        let [none, short, long] = [0, 1000, 100_000].map(|number| machine.counts_to(number));
        machine.queue.submit([]);
        println!("{threads} threads");
        let show = |what: &str, (time, slept): (Duration, f64)| {
            println!("  {what:44} {:9.2} us {slept:7.2} sleeps", time.as_secs_f64() * 1e6);
        };
        show("a submission of nothing", machine.measure(1, &[]));
        show("one workgroup of nothing", machine.measure(2000, &[(&none, 1)]));
        show("two workgroups of nothing", machine.measure(2000, &[(&none, 2)]));
        show("64 workgroups of nothing", machine.measure(2000, &[(&none, 64)]));
        show("one workgroup that counts to 1000", machine.measure(1000, &[(&short, 1)]));
        show("16 workgroups that count to 1000", machine.measure(200, &[(&short, 16)]));
        show("one workgroup that counts to 100,000", machine.measure(20, &[(&long, 1)]));
        show("the same, then two of nothing", machine.measure(20, &[(&long, 1), (&none, 2)]));
        show("the same, then 16 that count to 1000", machine.measure(20, &[(&long, 1), (&short, 16)]));
    }
}
