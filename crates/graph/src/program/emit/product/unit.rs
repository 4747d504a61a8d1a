//! The text of `snippets/units.wgsl` for a matrix unit: products through cooperative matrices, one generator
//! for all sizes, or the same function without them.

use std::fmt::Write;

use unisono_shaders::snippets::UNITS;

use crate::plan::Workgroup;
use crate::plan::target::{MatrixUnit, UnitSums, UnitWay};
use crate::program::emit::shares::{Shares, aligned_steps, kind};

use super::slab::{Slab, SlabLayout, steps};
use super::tile::side;

/// Returns what a workgroup takes that computes a tile of this side by a unit, whatever the operands are.
pub(super) fn workgroup(tile: usize, unit: MatrixUnit) -> Workgroup {
    let lanes = tile / side(tile);
    let strip = match unit.way {
        UnitWay::Cooperative => 4 * unit.size as usize * tile,
        UnitWay::Plain(_) => 0,
    };
    let slab = Slab { is_left: true, layout: SlabLayout::Blocks, unit, tile, is_whole: false };
    Workgroup { invocations: (lanes * lanes) as u64, bytes: (2 * slab.bytes() + strip) as u64 }
}

/// Returns the text in place of `slabs.wgsl` for tiles of this side, whose operands have these layouts.
/// `inner` divides the length of every inner range.
pub(super) fn text(tile: usize, unit: MatrixUnit, layouts: [SlabLayout; 2], inner: usize) -> String {
    let steps = steps(unit.way);
    let is_whole = inner.is_multiple_of(steps);
    let slabs = [true, false].map(|is_left| {
        let layout = layouts[usize::from(!is_left)];
        Slab { is_left, layout, unit, tile, is_whole }
    });
    let [variables, products, result, behind] = match unit.way {
        UnitWay::Cooperative => cooperative(tile, unit, slabs),
        UnitWay::Plain(sums) => plain(tile, sums),
    };
    let replaced = [("VARIABLES", variables), ("PRODUCTS", products), ("RESULT", result)];
    let text = replaced.iter().fold(UNITS.text().to_owned(), |text, (name, lines)| {
        let lines: Vec<&str> = lines.lines().collect();
        text.replace(&format!("// {name}\n"), &format!("{}\n", lines.join("\n")))
    });
    format!("const SLAB: u32 = {steps}u;\n{}{}{text}{behind}", slabs[0].text(), slabs[1].text())
}

/// Returns the lines for cooperative matrices, and what stands behind the function.
fn cooperative(tile: usize, unit: MatrixUnit, [left, right]: [Slab; 2]) -> [String; 4] {
    let size = unit.size as usize;
    let invocations = (tile / side(tile)).pow(2);
    let shares = Shares::of([tile; 2], invocations, unit);
    let Shares { rows, columns, .. } = shares;
    let blocks: Vec<(usize, usize)> = (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))).collect();
    let mut variables = shares.first_block();
    for (r, c) in &blocks {
        let _ = writeln!(variables, "    var sum_{r}_{c}: {};", kind(unit, "f32", "C"));
    }
    // All subgroups multiply: with a condition around products, some compilers copy all sums, and others
    // load the next slab behind them.
    let mut products = "{\n".to_owned();
    for q in (0..steps(unit.way)).step_by(size) {
        for c in 0..columns {
            let load = right.load(&format!("first_column + {c}u"), q);
            let _ = writeln!(products, "            let b_{q}_{c} = {load};");
        }
        for r in 0..rows {
            let load = left.load(&format!("first_row + {r}u"), q);
            let _ = writeln!(products, "            let a_{q}_{r} = {load};");
            for c in 0..columns {
                let sum = format!("sum_{r}_{c}");
                let _ =
                    writeln!(products, "            {sum} = coopMultiplyAdd(a_{q}_{r}, b_{q}_{c}, {sum});");
            }
        }
    }
    products += "        }";
    let mut result = format!(
        "let i = t / LANES * 4u;\n    let j = t % LANES;\n    let k = 4u * LANES;\n    \
         for (var s = 0u; s < {}u; s++) {{\n        workgroupBarrier();\n        \
         {}\n",
        tile / size,
        shares.of_storing()
    );
    for r in 0..rows {
        let _ = writeln!(result, "            if first_row + {r}u == s {{");
        for c in 0..columns {
            let at = format!("(first_column + {c}u) * {}u", size / 4);
            let _ = writeln!(result, "                coopStoreT(sum_{r}_{c}, &strip[{at}], TILE / 4u);");
        }
        result += "            }\n";
    }
    let part = |names: [&str; 4], column: &str| {
        let line = |(r, name): (usize, &&str)| {
            format!("            tile.{name} = strip[(row + {r}u) * (TILE / 4u) + {column}];\n")
        };
        names.iter().enumerate().map(line).collect::<String>()
    };
    let upper = part(["c0", "c1", "c2", "c3"], "j");
    let upper_right = part(["d0", "d1", "d2", "d3"], "j + LANES");
    let lower = part(["c4", "c5", "c6", "c7"], "j") + &part(["d4", "d5", "d6", "d7"], "j + LANES");
    let _ = write!(
        result,
        "        }}\n        workgroupBarrier();\n        \
         if i / {size}u == s {{\n            let row = i % {size}u;\n{upper}"
    );
    if side(tile) == 8 {
        let _ = write!(
            result,
            "{upper_right}        }}\n        \
             if (i + k) / {size}u == s {{\n            let row = i % {size}u;\n{lower}"
        );
    }
    result += "        }\n    }";
    let behind = format!(
        "\n// {size} rows of the tile, which subgroups hand to invocations.\n\
         var<workgroup> strip: array<vec4<f32>, {}u * TILE>;\n\
         // The number of this subgroup in its workgroup.\nvar<private> subgroup: u32;\n\n\
         @compute @workgroup_size(INVOCATIONS)\n\
         fn main(\n    @builtin(workgroup_id) group: vec3<u32>,\n    \
         @builtin(local_invocation_index) index: u32,\n    @builtin(subgroup_id) own_subgroup: u32,\n) {{\n    \
         t = index;\n    subgroup = own_subgroup;\n    compute(group);\n}}\n",
        size / 4
    );
    [variables, products, result, behind]
}

/// Returns the lines without cooperative matrices, in the order of a unit.
fn plain(tile: usize, sums: UnitSums) -> [String; 4] {
    let variables = "let at_a = t / LANES * 4u * STRIDE;\n    \
                     let at_b = t % LANES * 4u * STRIDE;\n    \
                     let far = 4u * LANES * STRIDE;";
    // An invocation's first four columns, and those LANES fours further on where it has eight.
    let columns: &[(char, &str)] = if side(tile) == 8 { &[('c', ""), ('d', " + far")] } else { &[('c', "")] };
    let rows = side(tile);
    let (steps, firsts, function) = match sums {
        UnitSums::InTurn => ("eight_steps", &[0, 2][..], IN_TURN.to_owned()),
        UnitSums::Aligned => ("sixteen_steps", &[0][..], aligned_steps(["a_slab", "b_slab"])),
    };
    let mut products = String::new();
    for q in firsts {
        for (r, (name, far_b)) in (0..rows).flat_map(|r| columns.iter().map(move |own| (r, own))) {
            let far_a = if r < 4 { "" } else { " + far" };
            let sums = format!("tile.{name}{r}");
            let _ = writeln!(
                products,
                "        {sums} = {steps}(at_a{far_a} + {}u * STRIDE + {q}u, at_b{far_b} + {q}u, {sums});",
                r % 4
            );
        }
    }
    let behind = format!("{PLAIN_HEAD}{function}{PLAIN_MAIN}");
    [variables.to_owned(), products.trim().to_owned(), String::new(), behind]
}

const PLAIN_HEAD: &str = "
// The fours of halves from one row of a slab to the next.
const STRIDE: u32 = 6u;

";

const IN_TURN: &str = "\
// Adds eight steps to the sums of a row and four columns. A product of two halves is exact, so that it does
// not matter whether its addition is an fma.
fn eight_steps(at_a: u32, at_b: u32, sums: vec4<f32>) -> vec4<f32> {
    let x = vec4<f32>(a_slab[at_a]);
    let y = vec4<f32>(a_slab[at_a + 1u]);
    var next: vec4<f32>;
    for (var s = 0u; s < 4u; s++) {
        let first = x * vec4<f32>(b_slab[at_b + s * STRIDE]);
        let second = y * vec4<f32>(b_slab[at_b + s * STRIDE + 1u]);
        let four = ((first.x + first.y) + first.z) + first.w;
        next[s] = (((four + second.x) + second.y) + second.z) + second.w;
    }
    return sums + next;
}
";

const PLAIN_MAIN: &str = "
@compute @workgroup_size(INVOCATIONS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    t = index;
    compute(group);
}
";

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [u32; 2] = [8, 16];

    fn unit(size: u32, lanes: u32) -> MatrixUnit {
        MatrixUnit { size, lanes, fewest: lanes, way: UnitWay::Cooperative }
    }

    const LAYOUTS: [SlabLayout; 3] = [SlabLayout::Blocks, SlabLayout::KMajor, SlabLayout::MnMajor];

    #[test]
    fn a_gpu_of_32_lanes_loads_six_matrices_for_eight_products() {
        for layout in LAYOUTS {
            let text = text(128, unit(16, 32), [layout; 2], 1);
            assert_eq!([text.matches("coopLoad").count(), text.matches("coopMultiplyAdd").count()], [12, 16]);
        }
    }

    #[test]
    fn no_text_takes_more_than_a_workgroup_is_said_to_take() {
        for unit in SIZES.map(|size| unit(size, 32)).into_iter().chain(UnitSums::ALL.map(UnitSums::unit)) {
            for tile in [32, 64, 128] {
                let constants = format!("const TILE: u32 = {tile}u;\nconst SIDE: u32 = {}u;\n", side(tile));
                for layout in LAYOUTS {
                    let module = text(tile, unit, [layout; 2], 1) + unisono_shaders::MATMUL_TILES;
                    assert!(!module.contains("// RESULT") && !module.contains("// PRODUCTS"));
                    let taken = Workgroup::of(&format!("{constants}{module}")).unwrap();
                    assert_eq!(taken, workgroup(tile, unit));
                }
            }
        }
    }
}
