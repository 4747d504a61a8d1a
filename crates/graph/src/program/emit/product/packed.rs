//! Right operands that a CPU packs: a launch of their own copies them to panels, once for all products of a
//! segment that multiply with them, such as those of a recurrent layer's steps.

use std::collections::BTreeMap;

use unisono_shaders::{PackedPanelsParams, Params, module};

use super::Operands;
use super::panels::PANEL_COPY;
use super::shape::All;
use crate::fuse::Store;
use crate::plan::{Access, Kernel, WorkKind};
use crate::program::emit::emitter::{Emitter, Part};
use crate::trace::{GraphError, Lowering, NodeId};

/// The columns of a panel.
const PANEL: usize = 32;
/// An operand is packed if products would otherwise copy it at least this many times.
const COPIES: usize = 4;
/// The bytes of a packed operand that stays in a core's own cache.
const CACHE: u64 = 1 << 20;
/// The most rows that an invocation multiplies with an operand which stays in the cache. So few rows stay in
/// the L1 cache, and a thread multiplies the rows that it has computed itself.
const ROWS: usize = 32;
/// The most launches between two products for which an operand stays packed. An operand that is needed again
/// later, as in activation checkpointing, is packed again, so that it takes no memory meanwhile.
const NEAR: usize = 64;
/// The steps that a workgroup copies.
const STEPS: usize = 128;

/// A right operand, and whether it is stored transposed.
type Right = (NodeId, bool);

/// The right operands of a segment.
#[derive(Default)]
pub(in super::super) struct RightOperands {
    /// How many products of any kernel multiply with each of them.
    uses: BTreeMap<Right, usize>,
    /// Those that are packed already.
    packed: BTreeMap<Right, Store>,
}

impl Emitter<'_> {
    /// Counts the right operands of the segment at hand. None of them is packed.
    pub(in super::super) fn count_right_operands(&mut self) {
        let program = self.program;
        let mut uses = BTreeMap::new();
        for unit in program.units_of(self.segment).map(|at| &program.fusion.units[at]) {
            let Some(product) = unit.product.or_else(|| unit.roots.first().copied()) else { continue };
            if let Lowering::MatMul { transpose_b, .. } = program.fusion.lowering[product] {
                let right = program.graph.nodes[product].inputs[1];
                *uses.entry((right, transpose_b)).or_insert(0) += 1;
            }
        }
        self.right_operands = RightOperands { uses, packed: BTreeMap::new() };
    }

    /// Returns the rows of an invocation that multiplies `[m, k] x [k, n]` with a packed right operand, or
    /// `None` if the operand is not packed. Otherwise each block of `rows` rows would copy it.
    pub(super) fn packed_rows(
        &self,
        Operands { right, shape, .. }: &Operands<'_>,
        [m, n]: [usize; 2],
        rows: usize,
    ) -> Option<usize> {
        let uses = self.right_operands.uses.get(&(*right, shape.transpose_b)).copied().unwrap_or(0);
        if shape.all != All::Rows || shape.contract || uses * m.div_ceil(rows) < COPIES {
            return None;
        }
        let (target, bytes) = (self.target, bytes(n, shape.k));
        let most = target.max_workgroups as usize;
        let has_memory = bytes <= target.max_binding_bytes.min(target.max_buffer_bytes);
        let has_grid = n.div_ceil(PANEL) <= most && shape.k.div_ceil(STEPS) <= most;
        let few = rows.min(ROWS);
        let stays = bytes <= CACHE && m.div_ceil(few) <= most;
        (has_memory && has_grid).then_some(if stays { few } else { rows })
    }

    /// Returns the memory of a product's right operand that is packed. The first product that asks for it
    /// launches the copy.
    pub(super) fn packed(&mut self, operands: &Operands<'_>, n: usize) -> Result<Part, GraphError> {
        let Operands { right, b, shape, root, .. } = operands;
        let right = (*right, shape.transpose_b);
        if let Some(&store) = self.right_operands.packed.get(&right)
            && self.is_recent(store, NEAR)
        {
            return Ok(self.all(store));
        }
        let store = self.new_packed(right.0);
        let kernel = self.kernel(&Kernel {
            name: "packed_panels".into(),
            wgsl: module(
                &PackedPanelsParams::declaration(0),
                &[],
                &format!("const STEPS: u32 = {STEPS}u;\n{PANEL_COPY}"),
                unisono_shaders::PACKED_PANELS,
            ),
            bindings: vec![Access::Read, Access::ReadWrite],
        });
        let row = b.place.row(if shape.transpose_b { shape.k } else { n });
        let [step, column] = if shape.transpose_b { [1, row] } else { [row, 1] };
        let bytes = bytes(n, shape.k);
        self.grow(store, bytes);
        let params = PackedPanelsParams {
            n: n as u32,
            k: shape.k as u32,
            first: b.place.inside as u32,
            step: step as u32,
            column: column as u32,
        };
        let bindings = vec![self.all(b.binding.store), self.part(store, 0, bytes)];
        let grid = [n.div_ceil(PANEL) as u32, shape.k.div_ceil(STEPS) as u32, 1];
        self.launch(kernel, bindings, params.words(&[]), grid, *root)?;
        self.works(WorkKind::Map, 0, 2 * bytes);
        self.right_operands.packed.insert(right, store);
        Ok(self.all(store))
    }
}

/// Returns the bytes of the panels of `[k, n]`.
fn bytes(n: usize, k: usize) -> u64 {
    4 * (n.next_multiple_of(PANEL) * k) as u64
}
