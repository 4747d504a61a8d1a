//! The kernel of a product: a file of `shaders`, with snippets and constants for what the file leaves open.

use std::borrow::Cow;

use unisono_shaders::{Params, ProductParams, STARTS, Snippet, module, snippets};

use super::panels::{
    LEFT_COPIED, LEFT_STORED, LEFT_VIEWED, PANEL, PANEL_COPY, PUT_FINISHED, PUT_STORED, RIGHT_COPIED,
    RIGHT_PACKED, RIGHT_STORED, RIGHT_VIEWED, STRIPE, TILE, put_added,
};
use super::shape::{All, Shape};
use super::slab::SlabLayout;
use super::tile::{side, tile};
use super::unit;
use crate::codegen::{Epilogue, ImplicitOperand};
use crate::plan::target::{Machine, MatrixUnit, Target, UnitWay};
use crate::plan::{Access, Kernel};
use crate::program::emit::shares::extensions;
use crate::values::tree::PRODUCT_CHUNK;

/// The file of `shaders` that computes a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// The file is `matmul.wgsl`, with tiles of four rows and four columns.
    Registers,
    /// The file is `matmul_panels.wgsl`, with so many rows an invocation.
    Panels(usize),
    /// The file is `matmul_few.wgsl`. An invocation computes at most `rows` rows and `columns` columns.
    Few { rows: usize, columns: usize },
    /// The file is `matmul_tiles.wgsl`, with tiles of so many rows and columns.
    Tiles(usize),
}

/// Returns the family for `batch` products of `[m, k] x [k, n]`. It depends on sizes and machine alone.
///
/// Small products take the small kernel, which compiles fastest and wastes least at the edges. A GPU hides
/// the latency of memory behind many invocations. Where a side of the product is shorter than 32, tiles would
/// make too few invocations for that. Larger tiles read less memory for a multiply-add, and smaller ones are
/// more workgroups: the largest tile is taken that still makes as many workgroups as keep the adapter busy.
pub(super) fn family(target: &Target, [m, n, k]: [usize; 3], batch: usize) -> Family {
    const FEW_STEPS: usize = 1 << 16;
    match target.machine {
        Machine::Cpu if m < 8 || n < 8 || m * n * k * batch < FEW_STEPS => Family::Registers,
        Machine::Cpu => Family::Panels(rows(target.busy_workgroups, [m, n], batch)),
        Machine::Gpu if m < 32 || n < 32 => Family::Registers,
        Machine::Gpu => tile(target, [m, n], batch, None).map_or(Family::Registers, Family::Tiles),
    }
}

/// Returns the rows of an invocation on a CPU, for `batch` results of `[m, n]`: as many as leave enough
/// invocations, since each copies what it multiplies its rows with.
fn rows(busy: u32, [m, n]: [usize; 2], batch: usize) -> usize {
    let is_enough = |rows: &usize| m.div_ceil(*rows) * n.div_ceil(32) * batch >= busy as usize;
    [128, 64, 32, 16].into_iter().find(is_enough).unwrap_or(8)
}

/// How a kernel reads an operand.
#[derive(Clone, Copy)]
pub(super) enum Side<'a> {
    /// The operand is a matrix in memory, of f16 or f32, and is read four elements at a time or one. A matrix
    /// unit reads eight of f16 where all rows begin at a multiple of eight.
    Stored { quads: bool, half: bool, eights: bool },
    /// The right operand is packed: a launch before has copied it to panels.
    Packed,
    /// The operand is a view of what is in memory (implicit GEMM).
    Implicit(&'a ImplicitOperand),
}

impl Side<'_> {
    /// Returns whether the operand is read from f16.
    fn is_half(&self) -> bool {
        match self {
            Self::Stored { half, .. } => *half,
            Self::Packed => false,
            Self::Implicit(implicit) => implicit.halves,
        }
    }

    /// Returns how a matrix unit's kernel copies the operand to workgroup memory. `is_mn_major` says whether
    /// the rows of a step are stored side by side, and not the steps of a row.
    fn layout(&self, is_mn_major: bool, unit: MatrixUnit) -> SlabLayout {
        match (self, unit.way) {
            (Self::Stored { half: true, eights: true, .. }, UnitWay::Cooperative) if is_mn_major => {
                SlabLayout::MnMajor
            }
            (Self::Stored { half: true, eights: true, .. }, UnitWay::Cooperative) => SlabLayout::KMajor,
            _ => SlabLayout::Blocks,
        }
    }

    /// Returns element i of the operand as WGSL, if it is a matrix of f32 in memory of this name.
    pub(super) fn element(&self, name: &str) -> Option<String> {
        match self {
            Self::Stored { half: false, quads: true, .. } => Some(format!("{name}[i / 4u][i % 4u]")),
            Self::Stored { half: false, quads: false, .. } => Some(format!("{name}[i]")),
            _ => None,
        }
    }

    /// Returns the operand's letter in a kernel's name: i if it is implicit, p if packed, t if transposed,
    /// n otherwise.
    fn letter(&self, is_transposed: bool) -> &'static str {
        match (self, is_transposed) {
            (Side::Implicit(_), _) => "i",
            (Side::Packed, _) => "p",
            (_, true) => "t",
            (_, false) => "n",
        }
    }
}

/// How a kernel writes its result.
#[derive(Clone, Copy)]
pub(super) struct Outcome {
    /// Whether four elements are written at a time.
    pub(super) quads: bool,
    /// Whether the result is rounded to f16 where it is written. What an epilogue makes is a number that f16
    /// holds already, if it is stored as one.
    pub(super) rounds: bool,
    /// Whether the result is stored as f16.
    pub(super) half: bool,
}

/// Returns whether all sizes are multiples of four, so that a kernel may read or write four elements at once.
pub(super) fn are_fours(sizes: &[usize]) -> bool {
    sizes.iter().all(|s| s.is_multiple_of(4))
}

/// Everything that the text of a product's kernel depends on.
pub(super) struct ProductKernel<'a> {
    pub(super) family: Family,
    pub(super) shape: &'a Shape,
    /// How the left and the right operand are read.
    pub(super) sides: [Side<'a>; 2],
    pub(super) result: Outcome,
    /// Whether the products of several shards are added in registers.
    pub(super) join: bool,
    /// Whether these are chunks, and not shards.
    pub(super) sums: bool,
    /// The steps of a segment, if the products of several segments are added in memory, or 0.
    pub(super) segment: usize,
    /// The panels of 32 columns that an invocation of [`Family::Panels`] computes.
    pub(super) panels: usize,
    /// The levels of the tree over chunks, or over shards, where a workgroup computes several in turn;
    /// otherwise 0.
    pub(super) levels: usize,
    /// Whether shards are computed in turn, and not chunks.
    pub(super) shards: bool,
    pub(super) epilogue: Option<&'a Epilogue>,
    /// The matrix unit that multiplies, which the family [`Family::Tiles`] has.
    pub(super) unit: Option<MatrixUnit>,
}

impl ProductKernel<'_> {
    /// Returns the kernel: the family's file with everything that it leaves open.
    pub(super) fn build(&self) -> Kernel {
        let (sizes, file) = self.file();
        let enable = match self.unit {
            Some(unit) => extensions(unit),
            None if self.uses_f16() => "enable f16;\n",
            None => "",
        };
        let constants = self.constants(&sizes);
        let declaration = ProductParams::declaration(STARTS);
        let wgsl = format!("{enable}{}", module(&declaration, &self.snippets(), &constants, file));
        Kernel { name: self.name(), wgsl, bindings: self.bindings() }
    }

    /// Returns the family's own constants, and its file.
    fn file(&self) -> (String, &'static str) {
        match self.family {
            Family::Registers => (String::new(), unisono_shaders::MATMUL),
            Family::Panels(rows) => {
                let shards = if self.join && self.segment == 0 { 3 } else { 1 };
                let is_copied = self.stored_element(0).is_none();
                let steps = PRODUCT_CHUNK + 4;
                let stripe = if is_copied { 2 * steps } else { 1 };
                let sizes = format!(
                    "const ROWS: u32 = {rows}u;\nconst PANELS: u32 = {}u;\nconst SHARDS: u32 = {shards}u;\n\
                     const CHUNKS: bool = {};\nconst SEGMENT: u32 = {}u;\nconst STEPS: u32 = {steps}u;\n\
                     const STRIPE: u32 = {stripe}u;\n{}{}{}",
                    self.panels,
                    self.sums,
                    self.segment,
                    self.left(),
                    self.right(),
                    self.put()
                );
                (sizes, unisono_shaders::MATMUL_PANELS)
            }
            Family::Few { rows, columns } => {
                let element = |side: usize| self.stored_element(side).unwrap_or_default();
                let sizes = format!(
                    "const ROWS: u32 = {rows}u;\nconst WIDTH: u32 = {columns}u;\n\
                     fn left(i: u32) -> f32 {{ return {}; }}\nfn right(i: u32) -> f32 {{ return {}; }}\n",
                    element(0),
                    element(1)
                );
                (sizes, unisono_shaders::MATMUL_FEW)
            }
            Family::Tiles(tile) => {
                let side = side(tile);
                let in_turns = self.epilogue.is_some();
                let sizes = format!(
                    "const TILE: u32 = {tile}u;\nconst SIDE: u32 = {side}u;\nconst IN_TURNS: bool = {in_turns};\n{}",
                    self.unit
                        .map(|unit| unit::text(tile, unit, self.layouts(unit), self.inner()))
                        .unwrap_or_default()
                );
                (sizes, unisono_shaders::MATMUL_TILES)
            }
        }
    }

    /// Returns the functions by which `matmul_panels.wgsl` writes its result.
    fn put(&self) -> Cow<'static, str> {
        match self.epilogue {
            None if !self.result.rounds => PUT_STORED.into(),
            Some(Epilogue { added: Some(added), .. }) if !self.result.rounds => {
                format!("{TILE}{}", put_added(added)).into()
            }
            _ => format!("{TILE}{PUT_FINISHED}").into(),
        }
    }

    /// Returns a divisor of the length of every inner range. (Chunks end at multiples of 1,024.)
    fn inner(&self) -> usize {
        if self.shape.contract { self.shape.rows_a_sample } else { self.shape.k }
    }

    /// Returns the layout of each operand in workgroup memory for a matrix unit.
    fn layouts(&self, unit: MatrixUnit) -> [SlabLayout; 2] {
        let [a, b] = &self.sides;
        [a.layout(self.shape.transpose_a, unit), b.layout(!self.shape.transpose_b, unit)]
    }

    /// Returns the snippet that describes how each operand is stored, for those that a matrix unit's kernel
    /// copies to workgroup memory.
    fn copied(&self) -> [Option<Snippet>; 2] {
        use snippets::*;
        let Some(unit) = self.unit else { return [None; 2] };
        let [a, b] = self.layouts(unit).map(|layout| layout != SlabLayout::Blocks);
        [a.then_some(A_EIGHTS), b.then_some(B_EIGHTS)]
    }

    /// Returns element i of an operand (0 or 1) as WGSL, if the operand is a matrix of f32 in memory.
    fn stored_element(&self, operand: usize) -> Option<String> {
        self.sides[operand].element(["a", "b"][operand])
    }

    /// Returns the functions by which `matmul_panels.wgsl` copies an operand, if it is a view of f32.
    fn copies<'b>(&self, side: &Side<'b>) -> Option<&'b str> {
        match side {
            Side::Implicit(implicit) if matches!(self.family, Family::Panels(_)) => {
                implicit.panels.as_deref()
            }
            _ => None,
        }
    }

    /// Returns the functions by which `matmul_panels.wgsl` reads the left operand.
    fn left(&self) -> String {
        match self.stored_element(0) {
            Some(element) => format!("fn left(i: u32) -> f32 {{ return {element}; }}\n{LEFT_STORED}"),
            None if self.copies(&self.sides[0]).is_some() => format!("{STRIPE}{LEFT_VIEWED}"),
            None => format!("{STRIPE}{LEFT_COPIED}"),
        }
    }

    /// Returns the functions by which `matmul_panels.wgsl` copies the right operand.
    fn right(&self) -> String {
        if let Side::Packed = self.sides[1] {
            return RIGHT_PACKED.to_owned();
        }
        match self.stored_element(1) {
            Some(element) => {
                format!("fn right(i: u32) -> f32 {{ return {element}; }}\n{PANEL}{PANEL_COPY}{RIGHT_STORED}")
            }
            None if self.copies(&self.sides[1]).is_some() => format!("{PANEL}{RIGHT_VIEWED}"),
            None => format!("{PANEL}{RIGHT_COPIED}"),
        }
    }

    fn snippets(&self) -> Vec<Snippet> {
        use snippets::*;
        let shape = self.shape;
        let writes = [[C_WORDS, C_QUADS], [C_HALF_WORDS, C_HALF_QUADS]];
        let mut shared = vec![
            SUM_QUADS,
            KEPT,
            writes[usize::from(self.result.rounds)][usize::from(self.result.quads)],
            if shape.contract { INNER_SHARD } else { INNER_ALL },
            PRODUCT,
        ];
        let is_copied = self.copied();
        for ((side, block), copied) in self.sides.iter().zip([A_BLOCK, B_BLOCK]).zip(is_copied) {
            let is_in_blocks = !matches!(side, Side::Packed) && self.copies(side).is_none();
            shared.extend((is_in_blocks && copied.is_none()).then_some(block));
        }
        let reads = [
            (A_STORED, [[A_WORDS, A_QUADS], [A_HALF_WORDS, A_HALF_QUADS]]),
            (B_STORED, [[B_WORDS, B_QUADS], [B_HALF_WORDS, B_HALF_QUADS]]),
        ];
        for ((side, (stored, elements)), copied) in self.sides.iter().zip(reads).zip(is_copied) {
            match (*side, copied) {
                (_, Some(memory)) => shared.push(memory),
                (Side::Stored { quads, half, .. }, None) => {
                    shared.extend([elements[usize::from(half)][usize::from(quads)], stored]);
                }
                (Side::Packed, None) => shared.push(elements[0][1]),
                (Side::Implicit(_), None) => {}
            }
        }
        if self.result.rounds && !self.epilogue.is_some_and(|epilogue| epilogue.rounds) {
            shared.push(ROUND_HALF);
        }
        if !matches!(self.family, Family::Panels(_) | Family::Few { .. }) {
            shared.push(LAYER_TILE);
        }
        if matches!(self.family, Family::Tiles(_)) {
            shared.push(if self.levels > 0 { CHUNKS_IN_TURN } else { CHUNKS_APART });
            shared.extend(self.unit.is_none().then_some(SLABS));
        }
        if self.epilogue.is_none() {
            shared.push(FINISH_NONE);
        }
        shared
    }

    /// Returns the constants of the module, and its generated functions: implicit operands and the epilogue.
    fn constants(&self, sizes: &str) -> String {
        let shape = self.shape;
        let kept = match (self.result.rounds, self.result.half) {
            (false, _) => "",
            (true, false) => "alias Kept = f32;\n",
            (true, true) => "alias Kept = f16;\n",
        };
        let transposed = [("TRANSPOSE_A", shape.transpose_a), ("TRANSPOSE_B", shape.transpose_b)];
        let mut written = String::new();
        for (side, (name, is_transposed)) in self.sides.iter().zip(transposed) {
            match side {
                Side::Stored { .. } => written += &format!("const {name}: bool = {is_transposed};\n"),
                Side::Packed => {}
                Side::Implicit(implicit) if matches!(self.family, Family::Tiles(_)) => {
                    written += &implicit.bounded;
                }
                Side::Implicit(implicit) => {
                    written += self.copies(side).unwrap_or(&implicit.wgsl);
                }
            }
        }
        written += &self.waiting();
        format!(
            "const CHUNK: u32 = {PRODUCT_CHUNK}u;\nconst RAGGED: bool = {};\nconst JOIN: bool = {};\n\
             const ACROSS: u32 = {}u;\n{sizes}{kept}{written}{}",
            !self.inner().is_multiple_of(4),
            self.join,
            if shape.all == All::Columns { shape.n } else { 0 },
            self.epilogue.map_or("", |epilogue| &epilogue.wgsl),
        )
    }

    /// Returns the functions that write and read sums of chunks which wait for others: one of them where the
    /// result goes, several in a memory of their own.
    fn waiting(&self) -> String {
        let (memory, at) = match self.levels {
            0 => return String::new(),
            2 => (String::new(), "c[at / 4u]".to_owned()),
            _ => {
                let binding = self.bindings().len();
                let memory = format!(
                    "@group(0) @binding({binding}) var<storage, read_write> sums: array<vec4<f32>>;\n"
                );
                (memory, "sums[(level * params.c_chunk + own) / 4u]".to_owned())
            }
        };
        format!(
            "const LEVELS: u32 = {}u;\nconst SHARDS: bool = {};\n{memory}\
             fn wait(level: u32, at: u32, own: u32, x: vec4<f32>) {{ {at} = x; }}\n\
             fn waiting(level: u32, at: u32, own: u32) -> vec4<f32> {{ return {at}; }}\n",
            self.levels, self.shards
        )
    }

    /// Returns whether any binding is f16.
    fn uses_f16(&self) -> bool {
        self.sides.iter().any(Side::is_half)
            || self.result.half
            || self.epilogue.is_some_and(|epilogue| epilogue.halves)
    }

    /// Returns the kernel's bindings: both operands, the result, what the epilogue reads and writes, the
    /// starts of shards where the product sums over samples, and sums of chunks that wait.
    fn bindings(&self) -> Vec<Access> {
        let mut bindings = vec![Access::Read, Access::Read, Access::ReadWrite];
        bindings.extend(self.epilogue.iter().flat_map(|epilogue| epilogue.accesses.iter().copied()));
        bindings.extend(self.shape.contract.then_some(Access::Read));
        bindings.extend((self.levels > 2).then_some(Access::ReadWrite));
        bindings
    }

    /// Returns the kernel's name, for example `matmul_nt_half[add, relu]` or `contract_shards`.
    fn name(&self) -> String {
        let [a, b] = &self.sides;
        let letters = a.letter(self.shape.transpose_a).to_owned() + b.letter(self.shape.transpose_b);
        let unit = if self.unit.is_some() { "_unit" } else { "" };
        if self.shape.contract {
            let shards = match (self.join, self.levels) {
                (true, _) if self.sums => "_chunks",
                (true, _) => "_shards",
                (false, 0) => "",
                (false, _) if self.shards => "_shards_in_turn",
                (false, _) => "_chunks",
            };
            return match &letters[..] {
                "tn" => format!("contract{unit}{shards}"),
                _ => format!("contract{unit}{shards}_{letters}"),
            };
        }
        let half = match (self.shape.rounds, self.levels) {
            (true, _) => "_half",
            (false, 0) if !self.sums => "",
            (false, _) => "_chunks",
        };
        let folded = if self.segment > 0 { "_folded" } else { "" };
        let behind = self.epilogue.map_or("", |epilogue| &epilogue.name);
        format!("matmul{unit}_{letters}{folded}{half}{behind}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_follows_machine_and_sizes_alone() {
        let cpu = Target { machine: Machine::Cpu, busy_workgroups: 4, ..Target::default() };
        assert_eq!(family(&cpu, [128, 512, 784], 1), Family::Panels(128));
        assert_eq!(family(&cpu, [1, 4096, 4096], 1), Family::Registers);
        let gpu = Target { machine: Machine::Gpu, busy_workgroups: 256, ..Target::default() };
        assert_eq!(family(&gpu, [8192, 768, 768], 1), Family::Tiles(128));
        assert_eq!(family(&gpu, [64, 1024, 1024], 96), Family::Tiles(128));
        assert_eq!(family(&gpu, [63, 1024, 1024], 96), Family::Tiles(64));
        assert_eq!(family(&gpu, [1024, 1024, 1024], 1), Family::Tiles(64));
        assert_eq!(family(&gpu, [128, 512, 784], 1), Family::Tiles(32));
        assert_eq!(family(&gpu, [128, 10, 512], 1), Family::Registers);
    }
}
