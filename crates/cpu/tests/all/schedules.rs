//! Random schedules of threads: launches, maps, devices that come and go. Longer with `UNISONO_LONG=1`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Machine, bytes_of_words, words};
use wgpu::{BufferUsages, MapMode, PollType};

/// Adds one to each number of as many workgroups, and takes some time for it.
const COUNT: &str = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(1) fn main(@builtin(workgroup_id) id: vec3<u32>) {
    var n = id.x;
    for (var i = 0u; i < x[0]; i++) { n = (n ^ (n << 13u)) * 0x9e3779b1u; }
    x[id.x + 1u] += select(1u, 2u, n == 0x12345u && id.x == 0xffffffu);
}";

/// The same, by invocations that wait for one another.
const TOGETHER: &str = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
var<workgroup> turn: array<u32, 8>;
@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    turn[lane] = lane;
    workgroupBarrier();
    if turn[(lane + 3u) % 8u] == 0u { x[id.x + 1u] += 1u; }
}";

fn is_long() -> bool {
    std::env::var_os("UNISONO_LONG").is_some()
}

/// Ends another thread, also after a failure.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Numbers that look random.
struct Numbers(u32);

impl Numbers {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) % end
    }
}

/// Every workgroup of every launch runs once, whether threads sleep, wait or work when a launch comes.
#[test]
fn launches_are_complete_whenever_they_come() {
    const MOST: u32 = 300;
    for threads in [2, 3, 8] {
        let (machine, mut numbers) = (Machine::new(threads), Numbers(threads as u32));
        let kernels = [COUNT, TOGETHER].map(|kernel| machine.pipeline(kernel, false).unwrap());
        let work = [0, 30, 3000].map(|turns| {
            let mut first = vec![0; MOST as usize + 1];
            first[0] = turns;
            (machine.buffer(&bytes_of_words(&first)), vec![0u32; MOST as usize])
        });
        let mut work = work;
        for _ in 0..if is_long() { 20_000 } else { 400 } {
            let (kernel, at) = (&kernels[numbers.below(2) as usize], numbers.below(3) as usize);
            let groups = if numbers.below(4) == 0 { 1 + numbers.below(3) } else { 1 + numbers.below(MOST) };
            machine.launch(kernel, &[&work[at].0], [groups, 1, 1]);
            work[at].1[..groups as usize].iter_mut().for_each(|count| *count += 1);
            match numbers.below(8) {
                0 => std::thread::sleep(Duration::from_micros(u64::from(numbers.below(300)))),
                1 => {
                    machine.device.poll(PollType::wait_indefinitely()).unwrap();
                }
                _ => {}
            }
        }
        for (buffer, expected) in &work {
            assert_eq!(words(&machine.read(buffer))[1..], expected[..], "{threads} threads");
        }
    }
}

/// One thread maps a buffer and looks whether anything changes it, while another one submits commands that
/// change it, or are refused.
#[test]
fn no_command_changes_what_is_mapped() {
    let machine = Machine::new(2);
    let ended = AtomicBool::new(false);
    machine.device.on_uncaptured_error(std::sync::Arc::new(|_| ()));
    let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
    let read = machine.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 4096,
        usage,
        mapped_at_creation: false,
    });
    let sources = [1, 2].map(|number| machine.buffer(&bytes_of_words(&[number; 1024])));
    let other = machine.buffer(&[0; 64]);
    let copy = |from: &wgpu::Buffer| {
        let mut encoder = machine.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(from, 0, &read, 0, 4096);
        // The longer it takes to look at all commands, the more may come in between.
        for _ in 0..200 {
            encoder.clear_buffer(&other, 0, Some(4));
        }
        encoder.finish()
    };
    let write = || {
        while !ended.load(Ordering::Relaxed) {
            let recorded: Vec<_> = sources.iter().cycle().take(4).map(&copy).collect();
            for commands in recorded {
                machine.queue.submit([commands]);
            }
        }
    };
    std::thread::scope(|scope| {
        let _ends = Ends(&ended);
        scope.spawn(write);
        for _ in 0..if is_long() { 20_000 } else { 300 } {
            read.map_async(MapMode::Read, .., |_| ());
            machine.device.poll(PollType::wait_indefinitely()).unwrap();
            let view = read.get_mapped_range(..).unwrap();
            let all = view.to_vec();
            assert!(
                (0..1000).all(|_| std::hint::black_box(&view)[..] == all[..]),
                "a mapped buffer was written"
            );
            drop(view);
            read.unmap();
        }
    });
}

/// Several devices compute at the same time, each on threads of its own, and end while they work.
#[test]
fn devices_come_and_go_beside_one_another() {
    let rounds = if is_long() { 200 } else { 10 };
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                let mut numbers = Numbers(seed);
                for _ in 0..rounds {
                    let machine = Machine::new(1 + numbers.below(4) as usize);
                    let kernel = machine.pipeline(COUNT, true).unwrap();
                    let x = machine.buffer(&[0; 1 << 12]);
                    let launches = numbers.below(20);
                    for _ in 0..launches {
                        machine.launch(&kernel, &[&x], [1000, 1, 1]);
                    }
                    if numbers.below(2) == 0 {
                        assert_eq!(words(&machine.read(&x))[1..1001], [launches; 1000]);
                    }
                }
            });
        }
    });
}
