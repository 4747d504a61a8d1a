//! What each subgroup of a workgroup computes by a matrix unit.

use unisono_shaders::snippets::ALIGNED;

use crate::plan::target::{MatrixUnit, UnitWay};

/// What the subgroups of a workgroup compute of a tile: each has a rectangle of blocks of the unit's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// The subgroups that compute.
    pub subgroups: usize,
    /// Whether there may be more subgroups. They multiply what others multiply, and store nothing.
    pub may_be_more: bool,
    /// The subgroups side by side.
    pub across: usize,
    /// The rows of a subgroup, in blocks.
    pub rows: usize,
    /// The columns of a subgroup, in blocks.
    pub columns: usize,
}

impl Shares {
    /// Divides a tile, given its rows and columns, among the subgroups of a workgroup. Subgroups may be
    /// smaller than the unit's largest, so this counts the fewest that a workgroup can have.
    pub fn of([rows, columns]: [usize; 2], invocations: usize, unit: MatrixUnit) -> Self {
        let size = unit.size as usize;
        let least = (invocations / unit.lanes.max(1) as usize).max(1);
        let (mut down, mut across) = (1, 1);
        // As square as it can be: a subgroup loads rows plus columns for rows times columns of products.
        while 2 * down * across <= least {
            match (rows / down > size, columns / across > size) {
                (true, is_wide) if !is_wide || rows / down >= columns / across => down *= 2,
                (_, true) => across *= 2,
                _ => break,
            }
        }
        let subgroups = down * across;
        let may_be_more = invocations > subgroups * unit.fewest as usize;
        Self { subgroups, may_be_more, across, rows: rows / down / size, columns: columns / across / size }
    }

    /// Returns the beginning of the block in which sums are stored, where each share is one subgroup's.
    pub fn of_storing(self) -> String {
        if self.may_be_more { format!("if subgroup < {}u {{", self.subgroups) } else { "{".to_owned() }
    }

    /// Returns the lines that find the first block of a subgroup, in blocks.
    pub fn first_block(self) -> String {
        let Self { subgroups, across, rows, columns, .. } = self;
        let own = if self.may_be_more { format!("subgroup % {subgroups}u") } else { "subgroup".to_owned() };
        format!(
            "// The first block of this subgroup, in blocks.\n    \
             let first_row = {own} / {across}u * {rows}u;\n    \
             let first_column = {own} % {across}u * {columns}u;\n"
        )
    }
}

/// Returns the type of a cooperative matrix: its numbers, and what it is in a product (A, B or C).
pub(super) fn kind(unit: MatrixUnit, scalar: &str, role: &str) -> String {
    format!("coop_mat{0}x{0}<{scalar}, {role}>", unit.size)
}

/// Returns the function `sixteen_steps`, which adds sixteen steps to the sums of a row and four columns, as
/// Hopper's unit does. Rows and columns are in these memories, in fours of halves. There are STRIDE fours
/// from one column to the next.
pub(super) fn aligned_steps([rows, columns]: [&str; 2]) -> String {
    let read = |name: &str, memory: &str| {
        let fours: Vec<String> = (0..4).map(|i| format!("vec4<f32>({memory}[at + {i}u])")).collect();
        format!("fn {name}(at: u32) -> Sixteen {{ return Sixteen({}); }}\n", fours.join(", "))
    };
    format!(
        "{}{}{}\
         fn sixteen_steps(at_row: u32, at_column: u32, sums: vec4<f32>) -> vec4<f32> {{\n    \
         let row = row_steps(at_row);\n    var next: vec4<f32>;\n    \
         for (var s = 0u; s < 4u; s++) {{\n        \
         next[s] = aligned_sum(row, column_steps(at_column + s * STRIDE), sums[s]);\n    }}\n    \
         return next;\n}}\n",
        ALIGNED.text(),
        read("row_steps", rows),
        read("column_steps", columns)
    )
}

/// Returns the extensions of WGSL that the kernel needs beyond f16.
pub(super) fn extensions(unit: MatrixUnit) -> &'static str {
    match unit.way {
        UnitWay::Cooperative => "enable f16;\nenable wgpu_cooperative_matrix;\n",
        UnitWay::Plain(_) => "enable f16;\n",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(size: u32, lanes: u32) -> MatrixUnit {
        MatrixUnit { size, lanes, fewest: lanes, way: UnitWay::Cooperative }
    }

    /// Whatever the size of a subgroup is, each block of a tile is one subgroup's.
    #[test]
    fn subgroups_share_a_tile_without_gaps() {
        let tiles = [([32, 32], 64), ([64, 64], 64), ([128, 128], 256), ([32, 64], 128), ([64, 64], 128)];
        for (size, lanes) in [8, 16].into_iter().flat_map(|size| [4, 8, 16, 32, 64, 128].map(|l| (size, l))) {
            for (tile, invocations) in tiles {
                let shares = Shares::of(tile, invocations, unit(size, lanes));
                let down = shares.subgroups / shares.across;
                assert_eq!(down * shares.rows * size as usize, tile[0], "{shares:?}");
                assert_eq!(shares.across * shares.columns * size as usize, tile[1], "{shares:?}");
                assert!(shares.subgroups * lanes as usize <= invocations.max(lanes as usize), "{shares:?}");
            }
        }
    }

    #[test]
    fn a_gpu_of_32_lanes_has_eight_blocks_a_subgroup() {
        let shares = Shares::of([128; 2], 256, unit(16, 32));
        assert_eq!(shares, Shares { subgroups: 8, may_be_more: false, across: 2, rows: 2, columns: 4 });
        // A driver may choose smaller subgroups, and then there are more of them.
        let wide = MatrixUnit { fewest: 32, ..unit(16, 64) };
        assert!(Shares::of([128; 2], 256, wide).may_be_more);
        assert!(Shares::of([32; 2], 64, unit(16, 8)).may_be_more);
    }
}
