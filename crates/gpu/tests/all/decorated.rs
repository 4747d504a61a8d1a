//! What drivers' compilers do to float operations, and what keeps them from it.

use crate::common::*;
use unisono_gpu::{Adapter, Backend, Device, Kind, Options};
use unisono_graph::plan::Transfer;

/// A nested fma whose two products share a factor: Mesa makes n * (a + b) + c of it.
const NESTED: &str = "fma(n, u, fma(n, v, w))";
/// The same with a barrier in between, as the ops of a fused kernel have it.
const BARRIER: &str = "fma(n, u, flush(fma(n, v, w)))";

/// What `snippets/flush.wgsl` of the crate `unisono-shaders` has.
const FLUSH: &str = "
fn flush(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    return bitcast<f32>(select(bits, 0u, bitcast<i32>(bits & 0x7fffffffu) <= 0x00800000));
}";

/// Two products with constants, the first of which is flushed, and a factor that is used twice: over a select
/// Mesa merges the constants.
const MERGED: &str = "masked(fma(flush(v * 0.7978846), 0.7978846, masked(w))) + v";
/// The same with a mask for a barrier.
const MASKED: &str = "masked(fma(masked(v * 0.7978846), 0.7978846, masked(w))) + v";

/// What `with_masks` of the crate `unisono-shaders` makes of `flush`.
const MASK: &str = "
fn masked(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    return bitcast<f32>(bits & bitcast<u32>(bitcast<i32>(0x00800000u - (bits & 0x7fffffffu)) >> 31u));
}";

/// Runs the kernel of segment 0 with another formula of three numbers and a factor. Returns what it computed.
fn computed(adapter: &Adapter, decorate: bool, formula: &str) -> Vec<f32> {
    let options = Options::default().with(|options| options.decorate = decorate);
    let mut device = Device::open_with(adapter, options).unwrap();
    let mut other = plan(100);
    let sum = "y[id.x] = fma(b[id.x], f32(params.scale), a[id.x]) + f32(table[id.x % 4u])";
    let text = format!(
        "let n = b[id.x] * 0.3; let u = a[id.x] * 0.7; let v = sqrt(a[id.x]); let w = f32(table[id.x % 4u]) * 0.09; \
         y[id.x] = {formula}"
    );
    other.kernels[0].wgsl = format!("{}{FLUSH}{MASK}", ADD.replace(sum, &text));
    let mut executable = device.load(&other).unwrap();
    let mut found = Vec::new();
    let mut keep = |transfer: &Transfer, bytes: &[u8]| {
        if transfer.slot == 9 {
            let word = |word: &[u8]| f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            found = bytes.chunks(4).map(word).collect();
        }
    };
    device.run(&mut executable, 0, &mut |t, to| to.write(&input(t.slot, 100)), &mut keep).unwrap();
    found
}

/// Returns `a * b + c` as an adapter's fma rounds it: software drivers round twice.
fn fma(adapter: &Adapter, a: f32, b: f32, c: f32) -> f32 {
    let fused = adapter.arithmetic.is_some_and(|arithmetic| arithmetic.fused);
    if fused { a.mul_add(b, c) } else { a * b + c }
}

/// Returns what nested fma give, one operation after the other.
fn in_order(adapter: &Adapter) -> Vec<f32> {
    let one = |i: usize| {
        let (n, u, v) = (2.0f32 * 0.3, i as f32 * 0.7, (i as f32).sqrt());
        let inner = fma(adapter, n, v, [10.0f32, 20.0, 30.0, 40.0][i % 4] * 0.09);
        fma(adapter, n, u, inner)
    };
    (0..100).map(one).collect()
}

#[test]
fn nested_fma_that_share_a_factor_are_factored_unless_that_is_forbidden() {
    for adapter in all().into_iter().filter(|adapter| adapter.kind == Kind::Cpu) {
        // Shown without the measures, on the driver that is known to do it.
        if adapter.name.contains("llvmpipe") {
            assert_ne!(computed(&adapter, false, NESTED), in_order(&adapter), "{adapter} factors no longer");
        }
        assert_eq!(computed(&adapter, false, BARRIER), in_order(&adapter), "{adapter}: a barrier");
        if adapter.backend == Backend::Vulkan {
            assert_eq!(computed(&adapter, true, NESTED), in_order(&adapter), "{adapter}: decorated");
        }
    }
}

#[test]
fn constants_are_merged_over_a_select_unless_that_is_forbidden() {
    for adapter in all().into_iter().filter(|adapter| adapter.kind == Kind::Cpu) {
        let one = |i: usize| {
            let (v, w) = ((i as f32).sqrt(), [10.0f32, 20.0, 30.0, 40.0][i % 4] * 0.09);
            fma(&adapter, v * 0.797_884_6, 0.797_884_6, w) + v
        };
        let in_order: Vec<f32> = (0..100).map(one).collect();
        if adapter.name.contains("llvmpipe") {
            assert_ne!(computed(&adapter, false, MERGED), in_order, "{adapter} merges no longer");
        }
        assert_eq!(computed(&adapter, false, MASKED), in_order, "{adapter}: a mask");
        if adapter.backend == Backend::Vulkan {
            assert_eq!(computed(&adapter, true, MERGED), in_order, "{adapter}: decorated");
        }
    }
}

#[test]
fn division_by_a_constant_is_a_product_on_swiftshader_unless_that_is_forbidden() {
    let divided: Vec<f32> = (0..100).map(|i| i as f32 * 0.7 / 72.0).collect();
    for adapter in all().into_iter().filter(|adapter| adapter.name.contains("SwiftShader")) {
        assert_ne!(computed(&adapter, false, "u / 72.0"), divided, "{adapter} divides");
        assert_eq!(computed(&adapter, true, "u / 72.0"), divided, "{adapter}: decorated");
        // What snippets/own_quotient.wgsl does.
        let hidden = "u / bitcast<f32>(bitcast<u32>(72.0) ^ (params.scale - 3u))";
        assert_eq!(computed(&adapter, false, hidden), divided, "{adapter}: a hidden divisor");
    }
}
