//! Whether a device keeps the smallest numbers of f16.
//!
//! Kernels store f32 that f16 holds as f16 and load them again, subnormal ones included. Vulkan leaves it to
//! a driver whether its conversions take those for 0 (without the execution mode `DenormPreserve`), and then
//! a step with f16 would have other bits than on other devices of its class, which no probe of f32 sees.

use unisono_graph::plan::{
    Access, Buffer, Command, Kernel, Launch, Plan, Role, Segment, Slice, Transfer, Work,
};

use super::Device;
use crate::GpuError;

/// The subnormal numbers of f16: number n is n * 2^-24.
const SMALL: u32 = 1024;

const WGSL: &str = "
enable f16;
@group(0) @binding(0) var<uniform> params: vec4<u32>;
@group(0) @binding(1) var<storage, read> halves: array<f16>;
@group(0) @binding(2) var<storage, read> numbers: array<f32>;
@group(0) @binding(3) var<storage, read_write> wide: array<f32>;
@group(0) @binding(4) var<storage, read_write> narrow: array<f16>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    wide[id.x] = f32(halves[id.x]);
    narrow[id.x] = f16(numbers[id.x]);
}";

/// Checks that a device that was opened with f16 keeps its subnormal numbers.
///
/// # Errors
/// [`GpuError::Open`] if it does not; what [`Device::load`] and [`Device::run`] say.
pub(super) fn check(device: &mut Device) -> Result<(), GpuError> {
    check_with(device, WGSL)
}

fn check_with(device: &mut Device, wgsl: &str) -> Result<(), GpuError> {
    let mut executable = device.load(&plan(wgsl))?;
    let mut found = [Vec::new(), Vec::new()];
    device.run(&mut executable, 0, &mut |_, _| {}, &mut |transfer, data| {
        found[transfer.slot] = data.to_vec();
    })?;
    if found == [bytes(&numbers()), bytes(&halves())] {
        return Ok(());
    }
    let reason =
        "its driver takes the smallest numbers of f16 for 0, and mixed precision would have other bits";
    Err(GpuError::Open { adapter: device.adapter.label(), reason: reason.to_owned() })
}

/// Returns the bits of all subnormal halves, two in a word.
fn halves() -> Vec<u32> {
    (0..SMALL / 2).map(|word| (2 * word) | ((2 * word + 1) << 16)).collect()
}

/// Returns the same numbers as bits of f32.
fn numbers() -> Vec<u32> {
    (0..SMALL).map(|n| (n as f32 / (1 << 24) as f32).to_bits()).collect()
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn plan(wgsl: &str) -> Plan {
    let of = |buffer: usize, words: &[u32]| Slice { buffer, offset: 0, bytes: 4 * words.len() as u64 };
    let (halves, numbers) = (halves(), numbers());
    let slices = [of(0, &halves), of(1, &numbers), of(2, &numbers), of(3, &halves)];
    let buffer = |at: usize, role: Role| Buffer { bytes: slices[at].bytes, role };
    let launch = Launch {
        kernel: 0,
        bindings: slices.to_vec(),
        params: vec![0; 4],
        grid: [SMALL / 64, 1, 1],
        work: Work::default(),
    };
    let access = [Access::Read, Access::Read, Access::ReadWrite, Access::ReadWrite];
    Plan {
        kernels: vec![Kernel { name: "halves".into(), wgsl: wgsl.into(), bindings: access.to_vec() }],
        buffers: vec![
            buffer(0, Role::Table(halves.clone())),
            buffer(1, Role::Table(numbers.clone())),
            buffer(2, Role::Scratch),
            buffer(3, Role::Scratch),
        ],
        segments: vec![Segment {
            commands: vec![Command::Launch(launch)],
            downloads: (0..2).map(|slot| Transfer { slot, slice: slices[2 + slot] }).collect(),
            ..Segment::default()
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, Counters, Memory, Options, adapters};

    #[test]
    fn opening_with_f16_leaves_nothing_and_takes_longer_than_a_short_deadline() {
        let options = Options::default().with(|options| {
            (options.f16, options.deadline) = (true, std::time::Duration::ZERO);
        });
        for adapter in adapters(&Backend::ALL).iter().filter(|adapter| adapter.features.f16) {
            let device = Device::open_with(adapter, options.clone()).unwrap();
            assert_eq!((device.counters(), device.memory()), (Counters::default(), Memory::default()));
        }
    }

    #[test]
    fn a_driver_that_loses_small_halves_is_refused() {
        let adapters = adapters(&[]);
        let Some(adapter) = adapters.iter().find(|adapter| adapter.features.f16) else { return };
        let options = Options::default().with(|options| options.f16 = true);
        let mut device = Device::open_with(adapter, options).unwrap();
        check(&mut device).unwrap();
        let loads = "wide[id.x] = f32(halves[id.x]);";
        let stores = "narrow[id.x] = f16(numbers[id.x]);";
        for (kept, lost) in [
            (loads, "wide[id.x] = select(f32(halves[id.x]), 0.0, id.x == 7u);"),
            (stores, "narrow[id.x] = select(f16(numbers[id.x]), f16(), numbers[id.x] < 6e-8);"),
        ] {
            let error = check_with(&mut device, &WGSL.replace(kept, lost)).unwrap_err().to_string();
            assert!(error.contains(&adapter.label()) && error.contains("f16"), "{error}");
        }
    }
}
