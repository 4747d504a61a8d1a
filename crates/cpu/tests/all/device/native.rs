//! Native code in the place of functions of kernels: it computes what their WGSL says, to the bit.

use unisono_cpu::{Options, Rounding};

use crate::common::{Machine, bytes_of, bytes_of_words, floats};

/// A kernel that copies a panel and multiplies with it in three turns, as the kernels of products do: sums of
/// the first two turns wait for those behind them. The last sums go to a tile, or to a result in which the
/// columns are three separate pieces.
const PANELS: &str = "
@group(0) @binding(0) var<storage, read_write> c: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> sizes: array<u32>;
var<workgroup> panel: array<vec4<f32>, 560>;
var<workgroup> tile: array<vec4<f32>, 128>;
var<workgroup> waiting: array<vec4<f32>, 256>;
struct Rows { at: array<u32, 8>, step: u32 }
struct Goal { at: u32, step: u32, rows: u32, columns: u32, split: u32, width: u32, jump: u32 }
const SHARDS: u32 = 2u;
const HAS_TILE: bool = IN_TILE;
fn canonical(x: vec4<f32>) -> vec4<f32> {
    let bits = bitcast<vec4<u32>>(x);
    let magnitude = bitcast<vec4<i32>>(bits & vec4<u32>(0x7fffffffu));
    return bitcast<vec4<f32>>(select(bits, vec4<u32>(), magnitude <= vec4<i32>(0x00800000)));
}
fn left(i: u32) -> f32 { return a[i]; }
fn right(i: u32) -> f32 { return b[i / 4u][i % 4u]; }
fn unisono_panel_copy(first: u32, step: u32, column: u32, steps: u32, last: u32, to: u32) {
    COPY
}
fn put_sums(at: u32, sums: vec4<f32>) {
    if HAS_TILE { tile[at / 4u] = sums; } else { c[at / 4u] = sums; }
}
fn unisono_panel_product(
    rows: Rows, steps: u32, first: u32, row: u32, levels: u32, waits_at: u32, goal: Goal
) {
    PRODUCT
}
@compute @workgroup_size(1) fn main() {
    for (var turn = 0u; turn < 3u; turn++) {
        var rows: Rows;
        for (var r = 0u; r < 8u; r++) { rows.at[r] = (r * 67u + turn) % 600u; }
        rows.step = 1u + 2u * turn;
        unisono_panel_copy(turn, sizes[1], sizes[2], sizes[0], sizes[3], 3u * turn);
        var goal = Goal(256u, 32u, 8u, 32u, 32u, 32u, 0u);
        if !HAS_TILE { goal = Goal(8u, 20u, 6u, 28u, 4u, 16u, 124u); }
        let waits_at = select(turn, 0xffffffffu, turn == 2u);
        unisono_panel_product(rows, sizes[0], 3u * turn, 8u, min(turn, 1u), waits_at, goal);
    }
    for (var e = 0u; e < 128u; e++) {
        if HAS_TILE { c[e] = tile[e]; }
        c[128u + e] = waiting[128u + e];
    }
}";
const COPY: &str = "
    for (var p = 0u; p < steps; p++) {
        for (var h = 0u; h < 8u; h++) {
            var quad: vec4<f32>;
            for (var s = 0u; s < 4u; s++) {
                quad[s] = right(first + p * step + min(4u * h + s, last) * column);
            }
            panel[8u * (to + p) + h] = quad;
        }
    }";
const PRODUCT: &str = "
    var at = rows.at;
    for (var r = 0u; r < 8u; r++) {
        for (var h = 0u; h < 8u; h++) {
            let e = 8u * (row + r) + h;
            var sum = vec4<f32>();
            for (var p = 0u; p < steps; p++) {
                sum = fma(vec4<f32>(left(at[r] + p * rows.step)), panel[8u * (first + p) + h], sum);
            }
            for (var level = 0u; level < levels; level++) {
                sum = waiting[128u * level + e] + canonical(sum);
            }
            let column = 4u * h;
            if waits_at != 0xffffffffu {
                waiting[128u * waits_at + e] = canonical(sum);
            } else if r < goal.rows && column < goal.columns {
                var jumps = 0u;
                if column >= goal.split { jumps = 1u + (column - goal.split) / goal.width; }
                put_sums(goal.at + r * goal.step + column + jumps * goal.jump, canonical(sum));
            }
        }
    }";

fn panel_operands() -> [Vec<u8>; 2] {
    let numbers = |count: u32, by: u32| -> Vec<f32> {
        (0..count).map(|i| f32::from_bits((i.wrapping_mul(by) >> 4) % 0x0400_0000 + 0x3e00_0000)).collect()
    };
    [bytes_of(&numbers(1000, 0x9e37_79b1)), bytes_of(&numbers(2560, 0x85eb_ca6b))]
}

/// The code for this CPU's vectors computes what the function says in WGSL, to the bit: without bounds
/// checks it takes the function's place.
#[test]
fn native_products_are_those_of_their_wgsl() {
    let wgsl = PANELS.replace("COPY", COPY).replace("PRODUCT", PRODUCT);
    let [a, b] = panel_operands();
    let cases = [[0, 1, 64, 31], [3, 32, 1, 31], [64, 32, 1, 9], [64, 1, 64, 31], [17, 1, 70, 30]];
    for (sizes, in_tile) in cases.into_iter().flat_map(|sizes| [(sizes, true), (sizes, false)]) {
        let wgsl = wgsl.replace("IN_TILE", if in_tile { "true" } else { "false" });
        let [split, fused] = [Rounding::Split, Rounding::Fused].map(|rounding| {
            let machine = Machine::with(Options { threads: 1, rounding, ..Options::default() });
            // `Machine::run` compares both ways.
            let found = machine.run(&wgsl, 4096, &[&a, &b, &bytes_of_words(&sizes)], [1, 1, 1]);
            let sums = floats(&found);
            let is_there = |at: usize| {
                let [step, rows, split, width, jump] = [20, 6, 4, 16, 124];
                (0..rows).flat_map(|row| (0..28).map(move |column| (row, column))).any(|(row, column)| {
                    let jumps = if column < split { 0 } else { 1 + (column - split) / width };
                    at == 8 + row * step + column + jumps * jump
                })
            };
            for (at, sum) in sums[..512].iter().enumerate() {
                let is_there = if in_tile { at >= 256 } else { is_there(at) };
                assert_eq!(*sum > 0.0, is_there && sizes[0] > 0, "{sizes:?} {in_tile} {at}");
            }
            assert!(sums[768..].iter().all(|sum| (*sum > 0.0) == (sizes[0] > 0)), "{sizes:?}");
            found
        });
        // A sum of one product rounds once either way.
        assert_eq!(split != fused, sizes[0] > 1, "{sizes:?}");
    }
}

/// A kernel that adds two rows of numbers and a matrix to a tile of nine rows while it writes it.
const ADD: &str = "
@group(0) @binding(0) var<storage, read_write> c: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> source: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> sizes: array<u32>;
@group(0) @binding(3) var<storage, read> b0: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> b7: array<vec4<f32>>;
const ADDS_PRODUCT: u32 = 1u;
const ADDS_0: u32 = 7u;
const ADDS_1: u32 = 0u;
const ADDS_2: u32 = 7u;
var<workgroup> tile: array<vec4<f32>, 72>;
fn canonical(x: vec4<f32>) -> vec4<f32> {
    let bits = bitcast<vec4<u32>>(x);
    let magnitude = bitcast<vec4<i32>>(bits & vec4<u32>(0x7fffffffu));
    return bitcast<vec4<f32>>(select(bits, vec4<u32>(), magnitude <= vec4<i32>(0x00800000)));
}
fn unisono_panel_add(
    at: u32, step: u32, rows: u32, first: u32, columns: u32, begins: array<u32, 3>, apart: array<u32, 3>
) {
    for (var r = 0u; r < rows; r++) {
        for (var e = 0u; e < columns; e += 4u) {
            let x = tile[8u * r + (first + e) / 4u];
            let begun = canonical(b7[(begins[0] + r * apart[0] + e) / 4u] + x);
            let more = canonical(begun + b0[(begins[1] + r * apart[1] + e) / 4u]);
            c[(at + r * step + e) / 4u] = canonical(more + b7[(begins[2] + r * apart[2] + e) / 4u]);
        }
    }
}
@compute @workgroup_size(1) fn main() {
    for (var e = 0u; e < 72u; e++) { tile[e] = source[e]; }
    let begins = array<u32, 3>(sizes[5], sizes[7], 8u);
    let apart = array<u32, 3>(sizes[6], sizes[8], 0u);
    unisono_panel_add(sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], begins, apart);
}";

#[test]
fn native_sums_are_those_of_their_wgsl() {
    let small = [1e-40, -0.0, f32::MIN_POSITIVE, -3.5, f32::INFINITY];
    let numbers = |seed: usize| -> Vec<f32> {
        let number = |i: usize| (i * 37 + seed * 11) % 101;
        let number = |i: usize| if number(i) < 20 { small[number(i) % 5] } else { number(i) as f32 / 7.0 };
        (0..1024).map(number).collect()
    };
    let flush = |x: f32| if x.abs() <= f32::MIN_POSITIVE { 0.0 } else { x };
    let [mut tile, b0, b7] = [0, 1, 2].map(numbers);
    // Sums in a tile are canonical.
    tile.iter_mut().for_each(|x| *x = flush(*x));
    for sizes in [
        [0, 32, 9, 0, 32, 0, 32, 0, 0],
        [8, 40, 9, 12, 20, 4, 64, 12, 28],
        [4, 16, 2, 16, 16, 128, 4, 64, 512],
        [0, 4, 1, 0, 4, 0, 0, 4, 0],
        [0, 4, 0, 0, 4, 0, 0, 0, 0],
    ] {
        let machine = Machine::new(1);
        // `Machine::run` compares both ways.
        let given = [bytes_of(&tile[..288]), bytes_of_words(&sizes), bytes_of(&b0), bytes_of(&b7)];
        let given: Vec<&[u8]> = given.iter().map(|bytes| &bytes[..]).collect();
        let found = floats(&machine.run(ADD, 2048, &given, [1, 1, 1]));
        let [at, step, rows, first, columns, from, apart, from_b0, apart_b0] =
            sizes.map(|size| size as usize);
        let mut expected = vec![0.0; 512];
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
            let begun = flush(b7[from + row * apart + column] + tile[32 * row + first + column]);
            let more = flush(begun + b0[from_b0 + row * apart_b0 + column]);
            expected[at + row * step + column] = flush(more + b7[8 + column]);
        }
        let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&expected), "{sizes:?}");
    }
}

/// Without bounds checks native code runs in the place of these functions, whatever they say, and with them
/// it does not. The test above would see nothing if no function were known.
#[test]
fn native_code_takes_the_place_of_functions_that_are_trusted() {
    let wgsl = PANELS
        .replace("COPY", "panel[0] = vec4<f32>(right(0u) * 0.0);")
        .replace("PRODUCT", "tile[0] = left(0u) * panel[0];")
        .replace("IN_TILE", "true");
    let [a, b] = panel_operands();
    let sums = |trusted: bool| {
        let machine = Machine::new(1);
        let out = machine.buffer(&[0; 4096]);
        let given = [&a[..], &b, &bytes_of_words(&[17, 1, 70, 30])].map(|bytes| machine.buffer(bytes));
        let pipeline = machine.pipeline(&wgsl, !trusted).unwrap();
        machine.launch(&pipeline, &[&out, &given[0], &given[1], &given[2]], [1, 1, 1]);
        floats(&machine.read(&out))
    };
    assert!(sums(true)[256..512].iter().all(|sum| *sum > 0.0));
    assert_eq!(sums(false), [0.0; 1024]);
    let wgsl = WINDOWS.replace("COPY", "panel[8] = vec4<f32>(b_number(0u) * 0.0);");
    let copies = |trusted: bool| {
        let machine = Machine::new(1);
        let given = [bytes_of(&[7.0; 784]), bytes_of_words(&[29, 1, 9])];
        let [out, b, sizes] = [&[0; 4736][..], &given[0], &given[1]].map(|bytes| machine.buffer(bytes));
        let pipeline = machine.pipeline(&wgsl, !trusted).unwrap();
        machine.launch(&pipeline, &[&out, &b, &sizes], [1, 1, 1]);
        floats(&machine.read(&out))[32..64].to_vec()
    };
    assert_eq!(copies(false), [0.0; 32]);
    // On other CPUs the text is what runs.
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        assert!(copies(true).iter().filter(|number| **number == 7.0).count() > 25);
    }
}

/// A kernel that copies windows of 3 x 3 of an image of 28 x 28, as the kernels of convolutions do: 32
/// windows from number `sizes[0]` on, `sizes[1]` pixels apart, and `sizes[2]` elements of each.
const WINDOWS: &str = "
@group(0) @binding(0) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read> sizes: array<u32>;
const STEPS: u32 = 36u;
const B_BORDERS: u32 = 2u;
const B_LIMIT_0: u32 = 28u;
const B_LIMIT_1: u32 = 28u;
const B_FILL: f32 = -3.5;
var<workgroup> panel: array<vec4<f32>, 296>;
var<workgroup> b_lines: array<vec4<u32>, 24>;
var<workgroup> b_steps: array<u32, 108>;
fn b_number(i: u32) -> f32 { return b[i]; }
fn unisono_view_panel(count: u32, to: u32) {
    COPY
}
@compute @workgroup_size(1) fn main() {
    let across = 28u / sizes[1];
    for (var h = 0u; h < 8u; h++) {
        let window = vec4<u32>(0u, 1u, 2u, 3u) + 4u * h + sizes[0];
        let y = window / across * sizes[1] - 1u;
        let x = window % across * sizes[1] - 1u;
        b_lines[h] = y * 28u + x;
        b_lines[8u + h] = y;
        b_lines[16u + h] = x;
    }
    for (var p = 0u; p < sizes[2]; p++) {
        b_steps[p] = p / 9u * 784u + p % 9u / 3u * 28u + p % 3u;
        b_steps[36u + p] = p % 9u / 3u;
        b_steps[72u + p] = p % 3u;
    }
    unisono_view_panel(sizes[2], 1u);
    for (var e = 0u; e < 296u; e++) { out[e] = panel[e]; }
}";
const WINDOW: &str = "
    for (var p = 0u; p < count; p++) {
        for (var h = 0u; h < 8u; h++) {
            let inside = (b_lines[8u + h] + b_steps[36u + p] < vec4<u32>(28u))
                & (b_lines[16u + h] + b_steps[72u + p] < vec4<u32>(28u));
            let at = select(vec4<u32>(), b_lines[h] + b_steps[p], inside);
            let all = vec4<f32>(b_number(at.x), b_number(at.y), b_number(at.z), b_number(at.w));
            panel[8u * (to + p) + h] = select(vec4<f32>(-3.5), all, inside);
        }
    }";

/// The same holds for copies of views, at the image's corners, along its rows, and two pixels apart.
#[test]
fn native_copies_of_views_are_those_of_their_wgsl() {
    let image: Vec<f32> = (0..4 * 784).map(|i| i as f32 + 1.0).collect();
    for sizes in [[0, 1, 36], [20, 1, 36], [752, 1, 17], [0, 2, 36], [164, 2, 1], [300, 1, 0]] {
        let run = |body: &str| {
            let given = [&bytes_of(&image)[..], &bytes_of_words(&sizes)];
            floats(&Machine::new(1).run(&WINDOWS.replace("COPY", body), 4736, &given, [1, 1, 1]))
        };
        let found = run(WINDOW);
        assert_eq!(found[..32], [0.0; 32], "the copy begins at step 1 of the memory");
        for (place, found) in found[32..].iter().enumerate() {
            let (p, window) = (place / 32, sizes[0] as usize + place % 32);
            let across = 28 / sizes[1] as usize;
            let y = (window / across * sizes[1] as usize + p % 9 / 3).wrapping_sub(1);
            let x = (window % across * sizes[1] as usize + p % 3).wrapping_sub(1);
            let inside = if y < 28 && x < 28 { image[p / 9 * 784 + y * 28 + x] } else { -3.5 };
            let expected = if p < sizes[2] as usize { inside } else { 0.0 };
            assert_eq!(*found, expected, "{sizes:?}: step {p} of window {window}");
        }
    }
}
