//! Which file of `shaders` computes a product, and with which constants.

use unisono_shaders::{Params, ProductParams, STARTS, module, snippets};

use super::{All, Shape};
use crate::codegen::{Epilogue, ImplicitOperand};
use crate::plan::target::{Machine, Target};
use crate::plan::{Access, Kernel};
use crate::values::tree::PRODUCT_CHUNK;

/// Which file of `shaders` computes a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// `matmul.wgsl`, with tiles of so many times four rows and columns.
    Registers { rows: usize, columns: usize },
    /// `matmul_lanes.wgsl`, with subgroups of so many lanes.
    Lanes(usize),
    /// `matmul_tiles.wgsl`.
    Tiles,
}

/// The family for `batch` products of `[m, k] x [k, n]`, by sizes and machine alone.
///
/// Measured on lavapipe (Mesa 22.3.6, one core of a Xeon), `[128, 784] x [784, 512]` with the weight stored
/// transposed:
///
/// | kernel | GFLOP/s | compile |
/// |---|---|---|
/// | registers, 4 x 4 | 4.8 | 0.09 s |
/// | registers, 8 x 8 | 8.0 | 0.2 s |
/// | registers, 16 x 16 | 13.4 | 0.6 s |
/// | lanes, 32 x 32 a subgroup of 8 | 20 | 0.3 s |
/// | tiles in workgroup memory | 3.3 | 0.25 s |
///
/// Lanes beat 8 x 8 registers from 16 rows on. Small products take the small kernel, which compiles fastest
/// and wastes least at the edges: below 2^20 steps a larger one would save less than 0.5 ms. A GPU hides what
/// memory costs behind many invocations, which a tile of 64 x 64 has too few of where a side is shorter than
/// half of it.
pub(super) fn family(target: &Target, [m, n, k]: [usize; 3], batch: usize) -> Family {
    const FEW_STEPS: usize = 1 << 20;
    let small = Family::Registers { rows: 1, columns: 1 };
    match target.machine {
        Machine::Cpu if m < 8 || n < 8 || m * n * k * batch < FEW_STEPS => small,
        Machine::Cpu => match target.subgroup {
            lanes @ (4 | 8 | 16) => Family::Lanes(lanes as usize),
            _ => Family::Registers { rows: 2, columns: 2 },
        },
        Machine::Gpu if m < 32 || n < 32 => small,
        Machine::Gpu => Family::Tiles,
    }
}

/// How an operand is read.
#[derive(Clone, Copy)]
pub(super) enum Side<'a> {
    /// From a matrix, four elements at a time or one, of f16 or f32.
    Stored { quads: bool, half: bool },
    /// From what the matrix would be a view of.
    Implicit(&'a ImplicitOperand),
}

impl Side<'_> {
    fn halves(&self) -> bool {
        match self {
            Self::Stored { half, .. } => *half,
            Self::Implicit(implicit) => implicit.halves,
        }
    }
}

/// How a result is written.
#[derive(Clone, Copy)]
pub(super) struct Outcome {
    pub(super) quads: bool,
    pub(super) half: bool,
}

pub(super) fn fours(sizes: &[usize]) -> bool {
    sizes.iter().all(|s| s.is_multiple_of(4))
}

/// A family's file with what it leaves open.
pub(super) fn kernel(
    family: Family,
    shape: &Shape,
    [a, b]: [Side<'_>; 2],
    result: Outcome,
    join: bool,
    epilogue: Option<&Epilogue>,
) -> Kernel {
    use snippets::*;
    let mut shared = vec![
        SUM_QUADS,
        [[C_WORDS, C_QUADS], [C_HALF_WORDS, C_HALF_QUADS]][usize::from(shape.rounds)]
            [usize::from(result.quads)],
        if shape.contract { INNER_SHARD } else { INNER_ALL },
        PRODUCT,
    ];
    let mut written = String::new();
    let loads = [
        (a, A_STORED, [[A_WORDS, A_QUADS], [A_HALF_WORDS, A_HALF_QUADS]], "TRANSPOSE_A", shape.transpose_a),
        (b, B_STORED, [[B_WORDS, B_QUADS], [B_HALF_WORDS, B_HALF_QUADS]], "TRANSPOSE_B", shape.transpose_b),
    ];
    for (side, stored, elements, name, transposed) in loads {
        match side {
            Side::Stored { quads, half } => {
                shared.extend([elements[usize::from(half)][usize::from(quads)], stored]);
                written += &format!("const {name}: bool = {transposed};\n");
            }
            Side::Implicit(implicit) => written += &implicit.wgsl,
        }
    }
    if shape.rounds {
        shared.push(ROUND_HALF);
    }
    if epilogue.is_none() {
        shared.push(FINISH_NONE);
    }
    let (sizes, file) = match family {
        Family::Registers { rows, columns } => (
            format!("const ROWS: u32 = {rows}u;\nconst COLUMNS: u32 = {columns}u;\n"),
            unisono_shaders::MATMUL,
        ),
        Family::Lanes(lanes) => (format!("const LANES: u32 = {lanes}u;\n"), unisono_shaders::MATMUL_LANES),
        Family::Tiles => (String::new(), unisono_shaders::MATMUL_TILES),
    };
    let kept = match (shape.rounds, result.half) {
        (false, _) => "",
        (true, false) => "alias Kept = f32;\n",
        (true, true) => "alias Kept = f16;\n",
    };
    let constants = format!(
        "const CHUNK: u32 = {PRODUCT_CHUNK}u;\nconst RAGGED: bool = {};\nconst JOIN: bool = {join};\n\
         const ACROSS: u32 = {}u;\n{sizes}{kept}{written}{}",
        shape.contract || !shape.k.is_multiple_of(4),
        if shape.all == All::Columns { shape.n } else { 0 },
        epilogue.map_or("", |epilogue| &epilogue.wgsl),
    );
    let enable =
        if a.halves() || b.halves() || result.half || epilogue.is_some_and(|epilogue| epilogue.halves) {
            "enable f16;\n"
        } else {
            ""
        };
    let mut bindings = vec![Access::Read, Access::Read, Access::ReadWrite];
    let others = usize::from(shape.contract) + epilogue.map_or(0, |epilogue| epilogue.stores.len());
    bindings.extend(std::iter::repeat_n(Access::Read, others));
    // Normal, transposed, or implicit.
    let letter = |side: Side<'_>, transposed: bool| match (side, transposed) {
        (Side::Implicit(_), _) => "i",
        (_, true) => "t",
        (_, false) => "n",
    };
    let letters = letter(a, shape.transpose_a).to_owned() + letter(b, shape.transpose_b);
    let name = match (shape.contract, &letters[..]) {
        (true, "tn") => (if join { "contract_shards" } else { "contract" }).to_string(),
        (true, _) => format!("contract{}_{letters}", if join { "_shards" } else { "" }),
        _ => {
            let half = if shape.rounds { "_half" } else { "" };
            let behind = epilogue.map_or("", |epilogue| &epilogue.name);
            format!("matmul_{letters}{half}{behind}")
        }
    };
    Kernel {
        name,
        wgsl: format!("{enable}{}", module(&ProductParams::declaration(STARTS), &shared, &constants, file)),
        bindings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_follows_machine_and_sizes_alone() {
        let target = |machine, subgroup| Target { machine, subgroup, ..Target::default() };
        let small = Family::Registers { rows: 1, columns: 1 };
        let lavapipe = target(Machine::Cpu, 8);
        assert_eq!(family(&lavapipe, [128, 512, 784], 1), Family::Lanes(8));
        assert_eq!(family(&lavapipe, [512, 784, 16], 8), Family::Lanes(8));
        assert_eq!(family(&lavapipe, [128, 10, 512], 1), small);
        assert_eq!(family(&lavapipe, [1, 4096, 4096], 1), small);
        let llvmpipe_gl = target(Machine::Cpu, 0);
        assert_eq!(family(&llvmpipe_gl, [128, 512, 784], 1), Family::Registers { rows: 2, columns: 2 });
        let gpu = target(Machine::Gpu, 32);
        assert_eq!(family(&gpu, [128, 512, 784], 1), Family::Tiles);
        assert_eq!(family(&gpu, [128, 10, 512], 1), small);
    }
}
