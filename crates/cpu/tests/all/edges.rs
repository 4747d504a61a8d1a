//! Kernels at the edges of what the compiler knows, most of which it once got wrong.

use crate::common::{Machine, words};

const OUT: &str = "@group(0) @binding(0) var<storage, read_write> out: array<u32>;\n";

/// Runs statements that write to `out`, and returns its words.
fn run(declarations: &str, body: &str, count: usize) -> Vec<u32> {
    let wgsl = format!("{OUT}{declarations}\n@compute @workgroup_size(1) fn main() {{\n{body}\n}}");
    words(&Machine::new(1).run(&wgsl, 4 * count, &[], [1, 1, 1]))
}

/// A component of a vector of booleans has another form than a boolean, where it is in memory too.
#[test]
fn components_of_booleans_are_read_and_written_in_memory() {
    let body = "
    let i = out[0];
    var all = array<vec4<bool>, 3>(vec4<bool>(true, false, true, false), vec4<bool>(), vec4<bool>(true));
    all[i + 1u].z = true; all[i + 2u][i] = false; all[1][i + 3u] = all[i].x;
    for (var k = 0u; k < 12u; k++) { out[0] |= u32(all[k / 4u][k % 4u]) << k; }
    out[1] = u32(any(all[i + 1u].xy)) + 2u * u32(all[out[1]][i + 2u]);";
    assert_eq!(run("", body, 2), [0b1110_1100_0101, 2]);
}

/// A CPU's threads may take subnormal numbers for 0, whether the compiler knows the numbers or not.
#[cfg(target_arch = "x86_64")]
#[test]
fn numbers_that_are_known_are_computed_with_as_all_others() {
    fn flush() {
        let mode = 0x9fc0u32;
        // SAFETY: the mode of floating-point numbers, with all exceptions masked.
        #[expect(unsafe_code, reason = "the mode of this thread")]
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mode);
        }
    }
    let wgsl = format!(
        "{OUT}fn product(x: f32, y: f32) -> f32 {{ return x * y; }}
fn quotient(x: f32, y: f32) -> f32 {{ return x / y; }}
@compute @workgroup_size(1) fn main() {{
    var x = 1e-20;
    if out[3] == 1u {{ x = 2.0; }}
    out[0] = bitcast<u32>(product(1e-20, 1e-20));
    out[1] = bitcast<u32>(quotient(1e-20, 1e20));
    out[2] = bitcast<u32>(x * 1e-20);
    out[3] = bitcast<u32>(product(2.0, 3.0));
}}"
    );
    let tiny = [1e-20f32 * 1e-20, 1e-20 / 1e20, 1e-20 * 1e-20].map(f32::to_bits);
    let six = 6f32.to_bits();
    let plain = Machine::new(1).run(&wgsl, 16, &[], [1, 1, 1]);
    assert_eq!(words(&plain), [tiny[0], tiny[1], tiny[2], six]);
    let options = unisono_cpu::Options { threads: 1, begin: flush, ..unisono_cpu::Options::default() };
    let flushed = Machine::with(options).run(&wgsl, 16, &[], [1, 1, 1]);
    assert_eq!(words(&flushed), [0, 0, 0, six]);
}

#[test]
fn indices_of_64_bits_are_indices() {
    let body = "
    let i = u64(out[0]) + 2lu;
    var a = array<u32, 4>(1u, 2u, 3u, 4u);
    let v = vec4<u32>(5u, 6u, 7u, 8u);
    out[1] = a[i]; out[2] = v[i]; a[i] = 9u; out[3] = a[2]; out[4] = out[i + 1lu];";
    assert_eq!(run("", body, 5), [0, 3, 7, 9, 9]);
}

/// Loops that do not end are compiled: what stands behind them is reached by others, or by nobody.
#[test]
fn what_never_ends_is_compiled() {
    let functions = "fn wait() { loop { } }
fn wait_for(x: u32) -> u32 { for (var i = 0u; i < 3u; i++) { loop { if x == 7u { wait(); } continuing { break if x < 9u; } } } return x; }";
    let body = "
    for (var i = 0u; i < 3u; i++) {
        if out[0] == 7u { wait(); }
        loop { if out[0] < 7u { break; } continuing { loop { } } }
        out[i] = wait_for(i);
    }
    if out[0] == 7u { loop { } }";
    assert_eq!(run(functions, body, 3), [0, 1, 2]);
}
