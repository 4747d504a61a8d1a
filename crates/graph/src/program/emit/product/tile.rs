//! The tiles of `matmul_tiles.wgsl`: how large they are, and what a workgroup takes for them.

use super::unit;
use crate::plan::target::MatrixUnit;
use crate::plan::{Target, Workgroup};

/// Returns the side of the tiles for `batch` results of `[m, n]`, or `None` if the device has not even the
/// workgroup memory of the smallest ones. Tiles of a matrix unit are as large as without it.
pub(super) fn tile(
    target: &Target,
    [m, n]: [usize; 2],
    batch: usize,
    unit: Option<MatrixUnit>,
) -> Option<usize> {
    let taken = |side| unit.map_or_else(|| workgroup(side), |unit| unit::workgroup(side, unit));
    let has_room = |side: &usize| target.has_room_for(taken(*side));
    let is_enough = |side: &usize| {
        let workgroups = m.div_ceil(*side) * n.div_ceil(*side) * batch;
        2 * m.min(n) >= *side && workgroups >= target.busy_workgroups as usize && has_room(side)
    };
    [128, 64].into_iter().find(is_enough).or(Some(32).filter(has_room))
}

/// Returns the rows, and the columns, that an invocation computes of a tile. A tile of 32 has as many
/// invocations as one of 64, so that they fill a subgroup of 64.
pub(super) fn side(tile: usize) -> usize {
    if tile > 32 { 8 } else { 4 }
}

/// Returns what a workgroup of `matmul_tiles.wgsl` takes: 16 steps of two slabs are in its memory.
fn workgroup(tile: usize) -> Workgroup {
    let (lanes, slab) = (tile / side(tile), 16 * 4 * tile);
    Workgroup { invocations: (lanes * lanes) as u64, bytes: 2 * slab as u64 }
}

#[cfg(test)]
mod tests {
    use unisono_shaders::module;
    use unisono_shaders::snippets::SLABS;

    use super::*;

    /// WebGPU guarantees 256 invocations and 16 KiB, which the largest tiles take exactly.
    #[test]
    fn tiles_are_those_that_a_workgroup_has_room_for() {
        let gpu = |max_invocations, max_workgroup_bytes| {
            let target = Target { max_invocations, max_workgroup_bytes, ..Target::default() };
            tile(&target, [8192, 768], 1, None)
        };
        assert_eq!(gpu(256, 16_384), Some(128));
        assert_eq!([gpu(255, 16_384), gpu(256, 16_383)], [Some(64); 2]);
        assert_eq!(gpu(1024, 8191), Some(32));
        assert_eq!(gpu(64, 4095), None);
        for tile in [128, 64, 32] {
            let side = side(tile);
            let constants = format!("const TILE: u32 = {tile}u;\nconst SIDE: u32 = {side}u;\n");
            let text = module("", &[SLABS], &constants, unisono_shaders::MATMUL_TILES);
            assert_eq!(Workgroup::of(&text), Some(workgroup(tile)));
        }
    }
}
