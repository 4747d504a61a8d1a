//! The products of attention by a matrix unit: `attention/units_scores.wgsl` and `units_spread.wgsl` with
//! what multiplies, cooperative matrices or the same function without them.

use std::fmt::Write;

use unisono_shaders::attention::{UNITS, UNITS_SCORES, UNITS_SPREAD};

use crate::plan::target::{MatrixUnit, UnitSums, UnitWay};
use crate::program::emit::marks::filled;
use crate::program::emit::shares::{Shares, aligned_steps, kind};

/// The invocations of a workgroup, its own places, the rows of a block, and the fours of halves from one to
/// the next, as the files have them.
const INVOCATIONS: usize = 128;
const OWN: usize = 64;
const ROWS: usize = 32;
const STRIDE: usize = 6;
const WIDE: usize = 18;

/// Returns the texts in place of `tiles_scores.wgsl` and `tiles_spread.wgsl`.
pub(super) fn steps(unit: MatrixUnit) -> [String; 2] {
    let [variables, products, result, spread] = match unit.way {
        UnitWay::Cooperative => cooperative(unit),
        UnitWay::Plain(sums) => plain(sums),
    };
    let lines = [("//VARIABLES", variables), ("//PRODUCTS", products), ("//RESULT", result)];
    let scores = lines.iter().fold(UNITS_SCORES.to_owned(), |text, (mark, lines)| filled(&text, mark, lines));
    [scores, filled(UNITS_SPREAD, "//SPREAD", &spread)]
}

/// Returns what all kernels with a unit share.
pub(super) fn shared(unit: MatrixUnit) -> String {
    let own = match unit.way {
        UnitWay::Cooperative => {
            "// The number of this subgroup in its workgroup.\nvar<private> subgroup: u32;\n"
        }
        UnitWay::Plain(UnitSums::InTurn) => IN_TURN,
        UnitWay::Plain(UnitSums::Aligned) => {
            return format!("{UNITS}\n{}{ALIGNED_BLOCKS}", aligned_steps(["halves", "halves"]));
        }
    };
    format!("{UNITS}\n{own}")
}

/// Returns a kernel whose main function knows its subgroup, if the unit's way needs that.
pub(super) fn with_subgroup(wgsl: &str, unit: MatrixUnit) -> String {
    match unit.way {
        UnitWay::Plain(_) => wgsl.to_owned(),
        UnitWay::Cooperative => wgsl
            .replace(
                "@builtin(local_invocation_index) index: u32)",
                "@builtin(local_invocation_index) index: u32, @builtin(subgroup_id) own_subgroup: u32)",
            )
            .replace("    t = index;\n", "    t = index;\n    subgroup = own_subgroup;\n"),
    }
}

/// Returns the lines for cooperative matrices.
fn cooperative(unit: MatrixUnit) -> [String; 4] {
    let size = unit.size as usize;
    let scores = Shares::of([ROWS, OWN], INVOCATIONS, unit);
    let mut variables = format!("    {}", scores.first_block());
    variables += &sums(unit, scores);
    let a = |r: usize, q: usize| {
        format!("(BEHIND + (first_row + {r}u) * {size}u) * {STRIDE}u + {}u], {STRIDE}u", q / 4)
    };
    let b =
        |c: usize, q: usize| format!("(first_column + {c}u) * {}u + {}u], {STRIDE}u", size * STRIDE, q / 4);
    let mut products = "        {\n".to_owned();
    for q in (0..16).step_by(size) {
        products += &block(
            unit,
            scores,
            q,
            [&|r| ("coopLoadT", "halves", a(r, q)), &|c| ("coopLoad", "halves", b(c, q))],
        );
    }
    products += "        }\n";
    let mut result = format!("    {}\n", scores.of_storing());
    for (r, c) in blocks(scores) {
        let at = format!("(first_row + {r}u) * {}u + (first_column + {c}u) * {}u", 16 * size, size / 4);
        let _ = writeln!(result, "        coopStoreT(sum_{r}_{c}, &tile[{at}], 16u);");
    }
    result += "    }\n    workgroupBarrier();\n    \
               for (var r = 0u; r < 4u; r++) { result[r] = tile[(t / 16u * 4u + r) * 16u + t % 16u]; }\n";
    [variables, products, result, spread(unit)]
}

/// Returns the lines that add the product of a block to the results of own places.
fn spread(unit: MatrixUnit) -> String {
    let size = unit.size as usize;
    let shares = Shares::of([OWN, 64], INVOCATIONS, unit);
    let mut text = format!("    {}{}", shares.first_block(), sums(unit, shares));
    let a = |r: usize, q: usize| format!("{}u + (first_row + {r}u) * {}u], {WIDE}u", q * WIDE, size / 4);
    let b = |c: usize, q: usize| format!("{}u + (first_column + {c}u) * {}u], {WIDE}u", q * WIDE, size / 4);
    text += "    {\n";
    for q in (0..ROWS).step_by(size) {
        text += &block(
            unit,
            shares,
            q,
            [&|r| ("coopLoad", "shares", a(r, q)), &|c| ("coopLoadT", "halves", b(c, q))],
        );
    }
    // Half of the own places at a time, so that the tile of scores holds them.
    let _ = writeln!(text, "    }}\n    for (var s = 0u; s < 2u; s++) {{\n        {}", shares.of_storing());
    for (r, c) in blocks(shares) {
        let half = ROWS / size;
        let at =
            format!("(first_row + {r}u) % {half}u * {}u + (first_column + {c}u) * {}u", 16 * size, size / 4);
        let _ = writeln!(
            text,
            "            if (first_row + {r}u) / {half}u == s {{ coopStoreT(sum_{r}_{c}, &tile[{at}], 16u); }}"
        );
    }
    text += "        }\n        workgroupBarrier();\n        if t / 64u == s {\n            \
             let at = t % 64u / 16u * 128u + t % 16u;\n";
    for i in 0..8 {
        let _ = writeln!(text, "            all.c{i} = kept(all.c{i}) + tile[at + {}u];", 16 * i);
    }
    text + "        }\n        workgroupBarrier();\n    }\n"
}

fn blocks(shares: Shares) -> impl Iterator<Item = (usize, usize)> {
    (0..shares.rows).flat_map(move |r| (0..shares.columns).map(move |c| (r, c)))
}

/// Returns the variables of a subgroup's sums.
fn sums(unit: MatrixUnit, shares: Shares) -> String {
    let sum = |(r, c)| format!("    var sum_{r}_{c}: {};\n", kind(unit, "f32", "C"));
    blocks(shares).map(sum).collect()
}

/// How a matrix is loaded, from which memory, and from where on.
type Loaded = (&'static str, &'static str, String);

/// Returns the lines that load and multiply what begins at step q.
fn block(unit: MatrixUnit, shares: Shares, q: usize, [a, b]: [&dyn Fn(usize) -> Loaded; 2]) -> String {
    let mut text = String::new();
    let mut load = |name: String, role: &str, (how, memory, at): Loaded| {
        let _ =
            writeln!(text, "            let {name} = {how}<{}>(&{memory}[{at});", kind(unit, "f16", role));
    };
    (0..shares.columns).for_each(|c| load(format!("b_{q}_{c}"), "B", b(c)));
    (0..shares.rows).for_each(|r| load(format!("a_{q}_{r}"), "A", a(r)));
    for (r, c) in blocks(shares) {
        let _ =
            writeln!(text, "            sum_{r}_{c} = coopMultiplyAdd(a_{q}_{r}, b_{q}_{c}, sum_{r}_{c});");
    }
    text
}

/// Returns the lines without cooperative matrices, in the order of a unit.
fn plain(sums: UnitSums) -> [String; 4] {
    let variables = "    let at_row = (BEHIND + t / 16u * 4u) * STRIDE;\n    \
                     let at_own = t % 16u * 4u * STRIDE;\n";
    let added = match sums {
        UnitSums::InTurn => "eight_steps(at + 2u, at_own + 2u, eight_steps(at, at_own, result[r]))",
        UnitSums::Aligned => "sixteen_steps(at, at_own, result[r])",
    };
    let products = format!(
        "        for (var r = 0u; r < 4u; r++) {{\n            \
         let at = at_row + r * STRIDE;\n            result[r] = {added};\n        }}\n"
    );
    let mut spread = String::new();
    for i in 0..8 {
        let _ = writeln!(
            spread,
            "    all.c{i} = kept(all.c{i}) + block_of(t / 16u * 2u + {}u, {}u);",
            i / 4,
            i % 4
        );
    }
    [variables.to_owned(), products, String::new(), spread]
}

/// The function of a block in [`plain`] for sums of units like Hopper's.
const ALIGNED_BLOCKS: &str = "
// Returns the weights of an own place in four rows of the block.
fn four_weights(r: u32, four: u32, i: u32) -> vec4<f32> {
    let at = r * WIDE + four;
    return vec4<f32>(vec4(shares[at][i], shares[at + WIDE][i], shares[at + 2u * WIDE][i], shares[at + 3u * WIDE][i]));
}

// Returns four rows of the block in a column.
fn four_rows(r: u32, s: u32) -> vec4<f32> {
    let at = r * WIDE + t % 16u;
    return vec4<f32>(vec4(halves[at][s], halves[at + WIDE][s], halves[at + 2u * WIDE][s], halves[at + 3u * WIDE][s]));
}

// Returns the product of a block for an own place in four columns.
fn block_of(four: u32, i: u32) -> vec4<f32> {
    var sums: vec4<f32>;
    for (var q = 0u; q < BLOCK; q += 16u) {
        let weights = Sixteen(
            four_weights(q, four, i), four_weights(q + 4u, four, i), four_weights(q + 8u, four, i),
            four_weights(q + 12u, four, i),
        );
        for (var s = 0u; s < 4u; s++) {
            let rows = Sixteen(four_rows(q, s), four_rows(q + 4u, s), four_rows(q + 8u, s), four_rows(q + 12u, s));
            sums[s] = aligned_sum(weights, rows, sums[s]);
        }
    }
    return sums;
}
";

/// The functions of [`plain`] for sums of units like lavapipe's.
const IN_TURN: &str = "// Adds eight steps to the sums of a row and four own places.
fn eight_steps(at_row: u32, at_own: u32, sums: vec4<f32>) -> vec4<f32> {
    let x = vec4<f32>(halves[at_row]);
    let y = vec4<f32>(halves[at_row + 1u]);
    var next: vec4<f32>;
    for (var s = 0u; s < 4u; s++) {
        let first = x * vec4<f32>(halves[at_own + s * STRIDE]);
        let second = y * vec4<f32>(halves[at_own + s * STRIDE + 1u]);
        let four = ((first.x + first.y) + first.z) + first.w;
        next[s] = (((four + second.x) + second.y) + second.z) + second.w;
    }
    return sums + next;
}

// Returns what row r of a block adds to an own place in four columns.
fn of_row(r: u32, four: u32, i: u32) -> vec4<f32> {
    return vec4<f32>(f32(shares[r * WIDE + four][i])) * vec4<f32>(halves[r * WIDE + t % 16u]);
}

// Returns the product of a block for an own place in four columns.
fn block_of(four: u32, i: u32) -> vec4<f32> {
    var sums: vec4<f32>;
    for (var q = 0u; q < BLOCK; q += 8u) {
        var next = of_row(q, four, i);
        for (var r = 1u; r < 8u; r++) { next = next + of_row(q + r, four, i); }
        sums = sums + next;
    }
    return sums;
}
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Workgroup;

    /// The memory of `attention/tiles.wgsl` without the slab of own places, of `tiles_forward.wgsl` and of
    /// `units.wgsl`.
    const TAKEN: Workgroup =
        Workgroup { invocations: INVOCATIONS as u64, bytes: 16 * (128 + 512 + 16) + 8 * (576 + 576) };

    #[test]
    fn texts_are_complete_and_take_what_they_are_said_to_take() {
        let way = UnitWay::Cooperative;
        let units = [8, 16].map(|size| MatrixUnit { size, lanes: 32, fewest: 32, way });
        for unit in units.into_iter().chain(UnitSums::ALL.map(UnitSums::unit)) {
            let [scores, spread] = steps(unit);
            for mark in ["//VARIABLES", "//PRODUCTS", "//RESULT", "//SPREAD"] {
                assert!(!scores.contains(mark) && !spread.contains(mark), "{mark}");
            }
            let tiles = super::super::super::marks::chosen(unisono_shaders::attention::TILES, "SLABS", false);
            let module = tiles + &shared(unit) + unisono_shaders::attention::TILES_FORWARD;
            assert_eq!(Workgroup::of(&module), Some(TAKEN));
            const { assert!(TAKEN.bytes <= MatrixUnit::WORKGROUP_BYTES) };
        }
    }
}
