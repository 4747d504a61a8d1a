//! The main loop of a kernel: what the table shows and what the test holds. For products through workgroup
//! memory it is one slab of steps.

use unisono_graph::plan::Kernel;

use super::assembly::{Mix, loops, main_loop};

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
    let Some(tile) = tile else { return main_loop(assembly) };
    let all = loops(assembly);
    let Some(inner) = all.iter().filter(|l| l.is_innermost).max_by_key(|l| l.mix.fmas) else {
        return main_loop(assembly);
    };
    let contains = |(first, last): (usize, usize)| first <= inner.range.0 && inner.range.1 <= last;
    let outer = all
        .iter()
        .filter(|l| l.range != inner.range && contains(l.range) && l.mix.global_bytes > 0)
        .min_by_key(|l| l.mix.instructions)
        // Where the loop over steps was written out, the innermost one is that over slabs.
        .filter(|_| inner.mix.global_bytes == 0);
    let turns = (STEPS * tile.own * tile.own / inner.mix.fmas.max(1)).max(1);
    let mut mix = outer.map_or(inner.mix, |outer| outer.mix.with_more(inner.mix, turns - 1));
    if !tile.loads_both() {
        mix.global_bytes /= 2;
    }
    mix
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
}
