//! Kernels that read through textures over their buffers compute the same as those that read the buffers.

use unisono_gpu::{Device, Options, adapters};
use unisono_graph::plan::{
    Access, Buffer, Command, Kernel, Launch, Plan, Role, Segment, Slice, Transfer, Work,
};

/// A kernel that reads vectors and numbers of each type, by computed places and by its own, and updates in
/// place.
const KERNEL: &str = "
@group(0) @binding(0) var<uniform> params: vec4<u32>;
@group(0) @binding(1) var<storage, read> quads: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> words: array<f32>;
@group(0) @binding(3) var<storage, read> places: array<u32>;
@group(0) @binding(4) var<storage, read_write> kept: array<vec4<f32>>;
// A parameter that is named as a binding: words[i] is not the binding's here.
fn last(words: vec4<f32>, i: u32) -> f32 { return words[i & 3u]; }
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.x { return; }
    let own = quads[id.x];
    let other = quads[places[id.x]].zyx;
    let old = kept[id.x];
    kept[id.x] = old * 0.5 + own * words[id.x * 3u] + vec4<f32>(other, last(own, places[id.x + 1u]));
}";

/// A kernel with the same bindings that reads and updates pairs of numbers.
const PAIRS: &str = "
@group(0) @binding(0) var<uniform> params: vec4<u32>;
@group(0) @binding(1) var<storage, read> quads: array<vec4<u64>>;
@group(0) @binding(2) var<storage, read> words: array<f32>;
@group(0) @binding(3) var<storage, read> places: array<u32>;
@group(0) @binding(4) var<storage, read_write> kept: array<vec4<u64>>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.x / 2u { return; }
    let own = quads[id.x];
    // Of an odd number of vectors the last is no pair's.
    let other = quads[places[id.x] / 2u % (params.x / 2u)].zyxw;
    kept[id.x] = kept[id.x] + own * u64(places[2u * id.x] + u32(abs(words[id.x]))) + other;
}";

/// Returns a plan of one launch of a kernel over `n` vectors. Slices begin inside of their buffers.
fn step(wgsl: &str, n: u64, start: u64) -> Plan {
    let scratch = |bytes: u64| Buffer { bytes, role: Role::Scratch };
    let inside = |buffer, bytes| Slice { buffer, offset: start, bytes };
    let kept = Slice { buffer: 3, offset: 0, bytes: n * 16 };
    let slices = [inside(0, n * 16), inside(1, n * 12), inside(2, n * 4 + 4), kept];
    let bindings = vec![Access::Read, Access::Read, Access::Read, Access::ReadWrite];
    let launch = Launch {
        kernel: 0,
        bindings: slices.to_vec(),
        params: vec![n as u32, 0, 0, 0],
        grid: [(n as u32).div_ceil(64), 1, 1],
        work: Work::default(),
    };
    let uploads = slices[..3].iter().enumerate().map(|(slot, &slice)| Transfer { slot, slice });
    let segment = Segment {
        uploads: uploads.collect(),
        commands: vec![Command::Launch(launch)],
        downloads: vec![Transfer { slot: 3, slice: kept }],
    };
    Plan {
        kernels: vec![Kernel { name: "reads".to_owned(), wgsl: wgsl.to_owned(), bindings }],
        buffers: vec![
            scratch(start + n * 16),
            scratch(start + n * 12),
            scratch(start + n * 4 + 4),
            Buffer { bytes: n * 16, role: Role::State(0) },
        ],
        segments: vec![segment],
    }
}

/// Returns what the state is after three steps over numbers made of their places.
fn computed(device: &mut Device, wgsl: &str, n: u64, start: u64) -> Vec<u8> {
    let mut step = device.load(&step(wgsl, n, start)).unwrap();
    let number = |i: u64, k: u64| ((i * 2_654_435_761 + k) % 65_521) as f32 / 65_521.0 - 0.5;
    for k in 0..3 {
        let pending = device.submit(&mut step, 0, &mut |transfer, writer| {
            for i in 0..writer.bytes() as u64 / 4 {
                let place = ((i * 40_503 + k) % n) as u32;
                let word = if transfer.slot == 2 { place } else { number(i, k).to_bits() };
                writer.write(&word.to_le_bytes());
            }
        });
        device.wait(&mut step, pending.unwrap(), &mut |_, _| {}).unwrap();
    }
    device.read_state(0).unwrap()
}

#[test]
fn reading_through_textures_changes_no_bit() {
    let adapters = adapters(&[]);
    assert!(!adapters.is_empty(), "no adapter: cargo xtask test installs one");
    for adapter in adapters {
        // Less than a row of texels, and several rows that do not fill the last.
        for (n, start) in [(5, 0), (700, 256), (50_001, 512), (16_384, 0)] {
            let open = |texels| {
                Device::open_with(&adapter, Options::default().with(|options| options.texels = Some(texels)))
            };
            let has_pairs = open(true).unwrap().target().pairs;
            for wgsl in [KERNEL, PAIRS].into_iter().take(if has_pairs { 2 } else { 1 }) {
                let [plain, textures] =
                    [false, true].map(|texels| computed(&mut open(texels).unwrap(), wgsl, n, start));
                assert_eq!(plain, textures, "{adapter}: {n} vectors from byte {start} on");
                assert!(plain.iter().any(|&byte| byte != 0));
            }
        }
    }
}
