//! The self-test: whether a device computes at all.
//!
//! A driver may accept every submission, run none, and report all of them as done. The host then reads
//! whatever its memory held. So each device that is opened first computes numbers that the host knows, by
//! everything that a step uses: uploads, tables, params, workgroup memory with a barrier, integers, selects,
//! products and sums of small whole numbers (exact on every device), copies, and downloads. It does so twice
//! with other numbers, so that neither old results nor the same results again pass.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use unisono_graph::plan::{
    Access, Buffer, Command, Kernel, Launch, Plan, Role, Segment, Slice, Transfer, Work,
};

use super::Device;
use crate::GpuError;

/// The number of invocations, in workgroups of 64.
const COUNT: u32 = 256;
/// The number of results of an invocation.
const RESULTS: u32 = 4;
/// The least time that a device has for it: opening a device is not what a short deadline is for.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// The words that the kernel finds in its params.
const PARAMS: [u32; 4] = [0x9e37_79b9, 747_796_405, 0, 0];

const WGSL: &str = "
@group(0) @binding(0) var<uniform> params: vec4<u32>;
@group(0) @binding(1) var<storage, read> table: array<u32>;
@group(0) @binding(2) var<storage, read> given: array<u32>;
@group(0) @binding(3) var<storage, read_write> found: array<u32>;
var<workgroup> lane_values: array<u32, 64>;
fn small(x: u32) -> f32 { return f32(x >> 21u) - 1024.0; }
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let x = given[id.x] ^ table[id.x];
    lane_values[lane] = x;
    workgroupBarrier();
    let y = lane_values[63u - lane];
    let a = small(x);
    let b = small(y);
    found[4u * id.x] = (x * params.y + params.x) ^ (y >> 7u);
    found[4u * id.x + 1u] = bitcast<u32>(fma(a, b, a + b));
    found[4u * id.x + 2u] = bitcast<u32>(select(a, b, a < b));
    found[4u * id.x + 3u] = u32(i32(a * 0.5 * b * 2.0) + 4194304);
}";

/// Checks that a device gives the known answers.
///
/// # Errors
/// [`GpuError::Wrong`] if it does not, or if its driver loses it; what else [`Device::load`] and
/// [`Device::run`] say.
pub(super) fn check(device: &mut Device) -> Result<(), GpuError> {
    check_with(device, WGSL).map_err(|error| match error {
        GpuError::Lost { adapter, reason } => GpuError::Wrong { adapter, what: reason },
        other => other,
    })
}

fn check_with(device: &mut Device, wgsl: &str) -> Result<(), GpuError> {
    let mut executable = device.load(&plan(wgsl))?;
    // Any numbers do, as long as earlier processes had others: none of them is part of a result.
    let seed = RandomState::new().hash_one(0) as u32;
    for turn in 0..2 {
        let given: Vec<u32> = (0..COUNT).map(|i| mixed(seed.wrapping_add(turn * COUNT + i))).collect();
        let mut found: Vec<u32> = Vec::new();
        device.run(
            &mut executable,
            0,
            &mut |_, to| to.write(bytemuck::cast_slice(&given)),
            &mut |_, data| {
                found = bytemuck::pod_collect_to_vec(data);
            },
        )?;
        let expected = answers(&given);
        let wrong: Vec<usize> =
            (0..expected.len()).filter(|&at| found.get(at) != Some(&expected[at])).collect();
        let Some(&first) = wrong.first() else { continue };
        return Err(GpuError::Wrong {
            adapter: device.adapter.label(),
            what: format!(
                "{} of {} known answers of the self-test are wrong, the first is {:#010x} and has to be {:#010x}",
                wrong.len(),
                expected.len(),
                found.get(first).copied().unwrap_or_default(),
                expected[first]
            ),
        });
    }
    Ok(())
}

/// Returns a word in which every bit depends on the number.
fn mixed(number: u32) -> u32 {
    let word = number.wrapping_mul(0x85eb_ca6b);
    (word ^ (word >> 13)).wrapping_mul(0xc2b2_ae35)
}

fn table() -> Vec<u32> {
    (0..COUNT).map(|i| mixed(!i)).collect()
}

/// Returns what the kernel computes.
fn answers(given: &[u32]) -> Vec<u32> {
    let all: Vec<u32> = given.iter().zip(table()).map(|(given, table)| given ^ table).collect();
    let small = |x: u32| (x >> 21) as i32 - 1024;
    let answer = |at: usize| {
        let (x, y) = (all[at], all[at / 64 * 64 + 63 - at % 64]);
        let (a, b) = (small(x), small(y));
        [
            x.wrapping_mul(PARAMS[1]).wrapping_add(PARAMS[0]) ^ (y >> 7),
            ((a * b + a + b) as f32).to_bits(),
            (a.max(b) as f32).to_bits(),
            (a * b + 4_194_304) as u32,
        ]
    };
    (0..all.len()).flat_map(answer).collect()
}

fn plan(wgsl: &str) -> Plan {
    let slice = |buffer: usize, words: u32| Slice { buffer, offset: 0, bytes: 4 * u64::from(words) };
    let (given, found, copy) = (slice(1, COUNT), slice(2, RESULTS * COUNT), slice(3, RESULTS * COUNT));
    let launch = Launch {
        kernel: 0,
        bindings: vec![slice(0, COUNT), given, found],
        params: PARAMS.to_vec(),
        grid: [COUNT / 64, 1, 1],
        work: Work::default(),
    };
    let access = vec![Access::Read, Access::Read, Access::ReadWrite];
    let buffer = |slice: Slice, role: Role| Buffer { bytes: slice.bytes, role };
    Plan {
        kernels: vec![Kernel { name: "self_test".into(), wgsl: wgsl.into(), bindings: access }],
        buffers: vec![
            buffer(slice(0, COUNT), Role::Table(table())),
            buffer(given, Role::Scratch),
            buffer(found, Role::Scratch),
            buffer(copy, Role::Scratch),
        ],
        segments: vec![Segment {
            uploads: vec![Transfer { slot: 0, slice: given }],
            commands: vec![Command::Launch(launch), Command::Copy { from: found, to: copy }],
            downloads: vec![Transfer { slot: 0, slice: copy }],
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lie, Options, adapters};

    #[test]
    fn a_device_that_computes_something_else_is_refused() {
        for adapter in adapters(&[]) {
            let mut device = Device::open(&adapter).unwrap();
            for (right, wrong) in [
                ("params.y + params.x", "params.y"),
                ("fma(a, b, a + b)", "fma(a, b, a)"),
                ("select(a, b, a < b)", "select(b, a, a < b)"),
                ("workgroupBarrier();\n    let y = lane_values[63u - lane];", "let y = lane_values[lane];"),
                ("+ 4194304", "+ 4194305"),
            ] {
                assert!(WGSL.contains(right));
                let error = check_with(&mut device, &WGSL.replace(right, wrong)).unwrap_err();
                assert!(matches!(error, GpuError::Wrong { .. }), "{error}");
                assert!(error.to_string().starts_with(&format!("{}: does not compute: ", adapter.label())));
            }
            check(&mut device).unwrap();
        }
    }

    /// Without marks, which would find all of this too.
    #[test]
    fn a_driver_that_runs_nothing_is_refused() {
        let options = Options::default().with(|options| options.marks = Some(false));
        for adapter in adapters(&[]) {
            for lie in [Lie::Nothing, Lie::Zeros, Lie::Stale] {
                let mut device = Device::open_with(&adapter, options.clone()).unwrap();
                check(&mut device).unwrap();
                device.lie(lie);
                let error = check(&mut device).unwrap_err();
                assert!(matches!(error, GpuError::Wrong { .. }), "{lie:?}: {error}");
            }
        }
    }
}
