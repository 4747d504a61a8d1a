//! A hand-made plan of two segments, and its expected results.

use unisono_gpu::{Adapter, Backend, Device, adapters};
use unisono_graph::plan::{
    Access, Buffer, Command, Kernel, Launch, Plan, Role, Segment, Slice, Transfer, Work,
};

/// The kernel of segment 0: y = a + b * scale + table[i % 4].
pub const ADD: &str = "
struct Params { n: u32, scale: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read> table: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.n { y[id.x] = fma(b[id.x], f32(params.scale), a[id.x]) + f32(table[id.x % 4u]); }
}";

/// The kernel of segment 1: s += y.
pub const UPDATE: &str = "
@group(0) @binding(0) var<uniform> n: vec4<u32>;
@group(0) @binding(1) var<storage, read> y: array<f32>;
@group(0) @binding(2) var<storage, read_write> s: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < n.x { s[id.x] = s[id.x] + y[id.x]; }
}";

pub const A: usize = 0;
pub const B: usize = 1;
pub const TABLE: usize = 2;
pub const Y: usize = 3;
pub const STATE: usize = 4;
pub const COPIED: usize = 5;

pub fn slice(buffer: usize, n: u64) -> Slice {
    Slice { buffer, offset: 0, bytes: n * 4 }
}

/// Returns the plan. Segment 0 computes y = a + b * 3 + table and downloads it, together with a copy of y
/// whose first half is cleared. Segment 1 computes state += y.
pub fn plan(n: u64) -> Plan {
    let scratch = |n: u64| Buffer { bytes: n * 4, role: Role::Scratch };
    let grid = [(n as u32).div_ceil(64), 1, 1];
    let bindings = [A, B, TABLE, Y].map(|id| slice(id, if id == TABLE { 4 } else { n })).to_vec();
    let add = Launch { kernel: 0, bindings, params: vec![n as u32, 3], grid, work: Work::default() };
    let update = Launch {
        kernel: 1,
        bindings: vec![slice(Y, n), slice(STATE, n)],
        params: vec![n as u32, 0, 0, 0],
        grid,
        work: Work::default(),
    };
    let half = Slice { buffer: COPIED, offset: 0, bytes: n / 2 * 4 };
    let up = |slot, buffer| Transfer { slot, slice: slice(buffer, n) };
    Plan {
        kernels: vec![
            Kernel {
                name: "add".to_owned(),
                wgsl: ADD.to_owned(),
                bindings: vec![Access::Read, Access::Read, Access::Read, Access::ReadWrite],
            },
            Kernel {
                name: "update".to_owned(),
                wgsl: UPDATE.to_owned(),
                bindings: vec![Access::Read, Access::ReadWrite],
            },
        ],
        buffers: vec![
            scratch(n),
            scratch(n),
            Buffer { bytes: 16, role: Role::Table(vec![10, 20, 30, 40]) },
            scratch(n),
            Buffer { bytes: n * 4, role: Role::State(1) },
            scratch(n),
        ],
        segments: vec![
            Segment {
                uploads: vec![up(7, A), up(8, B)],
                commands: vec![
                    Command::Launch(add),
                    Command::Copy { from: slice(Y, n), to: slice(COPIED, n) },
                    Command::Clear(half),
                ],
                downloads: vec![up(9, Y), up(10, COPIED)],
            },
            Segment { commands: vec![Command::Launch(update)], ..Segment::default() },
        ],
    }
}

pub fn bytes(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

pub fn input(slot: usize, n: u64) -> Vec<u8> {
    bytes((0..n).map(|i| if slot == 7 { i as f32 } else { 2.0 }))
}

pub fn sum(i: u64) -> f32 {
    i as f32 + 6.0 + [10.0, 20.0, 30.0, 40.0][i as usize % 4]
}

/// Returns every adapter of the machine, GL included.
pub fn all() -> Vec<Adapter> {
    let found = adapters(&Backend::ALL);
    assert!(!found.is_empty(), "no adapter on this machine: install mesa-vulkan-drivers");
    found
}

/// Runs a step of [`plan`] and checks its downloads.
pub fn step(device: &Device, executable: &mut unisono_gpu::Executable, n: u64) {
    let mut slots = Vec::new();
    device
        .run(executable, 0, &mut |t, to| to.write(&input(t.slot, n)), &mut |t, got| {
            slots.push(t.slot);
            let cleared = |i| if t.slot == 10 && i < n / 2 { 0.0 } else { sum(i) };
            assert_eq!(got, bytes((0..n).map(cleared)), "slot {}", t.slot);
        })
        .unwrap();
    assert_eq!(slots, [9, 10]);
    device.run(executable, 1, &mut |_, _| unreachable!(), &mut |_, _| unreachable!()).unwrap();
}
