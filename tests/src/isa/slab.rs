//! The main loop of a kernel: what the table shows and what the test holds. For products through workgroup
//! memory it is one slab of steps.

use unisono_graph::plan::Kernel;

use super::assembly::{Loop, Mix, loops, main_loop, whole};

/// The steps of a slab of `matmul_tiles.wgsl`.
const STEPS: u32 = 16;

/// A tile of `matmul_tiles.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The rows and columns of the tile.
    pub side: u32,
    /// The rows and columns of which an invocation computes the products.
    pub own: u32,
}

impl Tile {
    /// Returns the tile of a kernel, by the constants in its text.
    pub fn of(kernel: &Kernel) -> Option<Self> {
        let number = |name: &str| {
            let (_, behind) = kernel.wgsl.split_once(&format!("const {name}: u32 = "))?;
            behind.split('u').next()?.parse().ok()
        };
        Some(Self { side: number("TILE")?, own: number("SIDE")? })
    }

    /// Returns whether each invocation loads from both operands, and not from one of them.
    fn loads_both(self) -> bool {
        self.side / self.own * (self.side / self.own) == self.side
    }
}

/// Returns what one turn of a kernel's main loop executes. For a tile it is a slab: the turns of the loop
/// over steps are counted as often as they run, and of the loads on both sides of a branch those of one
/// side.
pub fn turn(tile: Option<Tile>, assembly: &str) -> Mix {
    let all = loops(assembly);
    // By a matrix unit it is the smallest loop that has its products.
    let by_unit = all.iter().filter(|l| l.mix.matrices > 0).min_by_key(|l| l.mix.instructions);
    if let Some(slab) = by_unit {
        return slab.mix;
    }
    let Some((tile, (inner, outer))) = tile.zip(slabs(&all)) else { return main_loop(assembly) };
    let turns = (STEPS * tile.own * tile.own / inner.mix.fmas.max(1)).max(1);
    let mut mix = outer.map_or(inner.mix, |outer| outer.mix.with_more(inner.mix, turns - 1));
    if !tile.loads_both() {
        mix.global_bytes /= 2;
    }
    mix
}

/// Returns the instructions that an invocation of a tile executes for one layer of so many slabs: those of
/// all its code, the loop over slabs and the loop over rows behind it as often as they run.
pub fn executed(tile: Tile, assembly: &str, slabs_of_layer: u32) -> u32 {
    let all = loops(assembly);
    let once = whole(assembly).instructions;
    let Some((inner, outer)) = slabs(&all) else { return once };
    let (_, end) = outer.unwrap_or(inner).range;
    // `put` writes half of SIDE rows a turn.
    let behind = all.iter().filter(|l| l.range.0 > end).max_by_key(|l| l.range.1);
    let rows = behind.map_or(0, |rows| (tile.own / 2 - 1) * rows.mix.instructions);
    let inside = inner.mix.instructions * (STEPS * tile.own * tile.own / inner.mix.fmas.max(1)).max(1);
    let slab = outer.map_or(0, |outer| outer.mix.instructions - inner.mix.instructions) + inside;
    let first = outer.unwrap_or(inner).mix.instructions;
    once - first + slabs_of_layer * slab + rows
}

/// Returns the loop over the steps of a slab, and the one over slabs where the first was not written out. An
/// epilogue may have more multiply-adds than a slab has, but reads no workgroup memory.
fn slabs(all: &[Loop]) -> Option<(&Loop, Option<&Loop>)> {
    let reads = |l: &&Loop| l.is_innermost && l.mix.workgroup_bytes > 0;
    let inner = all.iter().filter(reads).max_by_key(|l| l.mix.fmas)?;
    let contains = |(first, last): (usize, usize)| first <= inner.range.0 && inner.range.1 <= last;
    let outer = all
        .iter()
        .filter(|l| l.range != inner.range && contains(l.range) && l.mix.global_bytes > 0)
        .min_by_key(|l| l.mix.instructions)
        // Where the loop over steps was written out, the innermost one is that over slabs.
        .filter(|_| inner.mix.global_bytes == 0);
    Some((inner, outer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_counts_its_steps_and_one_side_of_its_loads() {
        let fmas = "\tv_fmac_f32_e32 v1, v2, v3\n".repeat(256);
        let code = format!(
            "BB1:\n\ts_barrier\n\tbuffer_load_b128 v[0:3], v4, s[0:3], 0 offen\n\
             \tbuffer_load_b128 v[0:3], v4, s[4:7], 0 offen\n\
             BB2:\n\ts_cbranch_scc1 BB1\nBB3:\n{fmas}\tds_load_b128 v[8:11], v6\n\ts_branch BB2\nBB4:\n\ts_endpgm\n"
        );
        let mix = turn(Some(Tile { side: 128, own: 8 }), &code);
        assert_eq!((mix.fmas, mix.workgroup_bytes, mix.global_bytes), (1024, 64, 16));
        assert_eq!(mix.instructions, 3 + 4 * (1 + 256 + 2));
        assert_eq!(turn(Some(Tile { side: 64, own: 8 }), &code).global_bytes, 32);
    }

    #[test]
    fn a_slab_of_a_matrix_unit_is_the_loop_with_its_products() {
        let code = "BB1:\n\tbuffer_load_b128 v[0:3], v4, s[0:3], 0 offen\n\tds_load_b64 v[4:5], v6\n\
                    \tv_wmma_f32_16x16x16_f16 v[8:15], v[0:7], v[16:23], v[8:15]\n\ts_cbranch_scc1 BB1\n\
                    BB2:\n\ts_barrier\n\ts_cbranch_scc1 BB2\nBB3:\n\ts_endpgm\n";
        let mix = turn(Some(Tile { side: 128, own: 8 }), code);
        assert_eq!((mix.instructions, mix.matrices, mix.wide_loads), (4, 1, 1));
        assert_eq!((mix.matrix_part(), mix.workgroup_bytes, mix.global_bytes), (0.5, 8, 16));
    }

    #[test]
    fn an_epilogue_is_no_slab_and_runs_for_half_of_the_rows() {
        let step = "\tds_load_b128 v[8:11], v6\n\tv_fmac_f32_e32 v1, v2, v3\n".repeat(64);
        let row = "\tv_fmac_f32_e32 v1, v2, v3\n".repeat(300);
        let code = format!(
            "BB0:\n\tv_mov_b32_e32 v1, 0\nBB1:\n\tbuffer_load_b128 v[0:3], v4, s[0:3], 0 offen\n\
             BB2:\n{step}\ts_cbranch_scc1 BB2\nBB3:\n\ts_cbranch_scc1 BB1\n\
             BB4:\n{row}\ts_branch BB4\nBB5:\n\ts_endpgm\n"
        );
        let tile = Tile { side: 32, own: 4 };
        let slab = 1 + 4 * 129 + 1;
        assert_eq!(turn(Some(tile), &code).instructions, slab);
        assert_eq!(executed(tile, &code, 3), 1 + 3 * slab + 2 * 301 + 1);
        assert_eq!(executed(Tile { side: 128, own: 8 }, &code, 1), 1 + 2 + 16 * 129 + 4 * 301 + 1);
    }
}
