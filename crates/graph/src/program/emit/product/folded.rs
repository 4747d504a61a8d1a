//! Products that a CPU computes together with the folds behind them: the gradients of convolutions by their
//! images.

use unisono_shaders::{Params, TurnedWeightsParams, module};

use super::kernel::{Family, family};
use super::layers::Layers;
use super::shape::{All, Shape};
use super::{Operand, Operands, binding};
use crate::codegen::Binding;
use crate::fuse::{FoldedProduct, Place, Store};
use crate::plan::target::Machine;
use crate::plan::{Access, Kernel, WorkKind};
use crate::program::FoldedKernel;
use crate::program::emit::emitter::Emitter;
use crate::trace::GraphError;

impl Emitter<'_> {
    /// Returns whether one kernel computes a product and the fold behind it. On a CPU it does, where copying
    /// the weights takes less time than writing what is folded and reading it again.
    pub(in super::super) fn is_folded(&self, folded: &FoldedProduct) -> bool {
        let program = self.program;
        let product = program.fusion.units[folded.product].roots[0];
        let shape = shape(folded);
        let [m, n, _] = shape.of_entries(self.extent.rows);
        self.target.machine == Machine::Cpu
            && n >= 4 * folded.outputs
            && !self.are_halves(&program.graph.nodes[product].inputs)
            && matches!(family(self.target, [m, n, shape.k], 1), Family::Panels(_))
    }

    /// Launches a product and the fold behind it.
    pub(in super::super) fn folded_product(&mut self, kernel: &FoldedKernel) -> Result<(), GraphError> {
        let (program, folded) = (self.program, &kernel.folded);
        let turned = self.turn_weights(folded)?;
        let implicit = program.folded_operand(kernel);
        let root = program.fusion.units[folded.fold].roots[0];
        let (ty, to) = (&program.graph.nodes[root].ty, program.stores.place(root));
        let operands = Operands {
            root,
            a: Operand { place: Place::start(turned.store), binding: turned, implicit: None },
            b: Operand {
                place: Place::start(implicit.store.store),
                binding: implicit.store.clone(),
                implicit: Some(implicit),
            },
            right: root,
            shape: shape(folded),
            epilogue: None,
        };
        let stores = [operands.a.binding.clone(), operands.b.binding.clone(), binding(to, ty)];
        for rows in self.row_ranges_of(ty, root, &stores, self.most_entries(&operands.shape))? {
            let [m, n, batch] = operands.shape.of_entries(rows.len());
            let layers = Layers::new(m, n, batch);
            let c = Layers { offset: to.inside, chunk: m * n, segments: folded.places, ..layers };
            let bindings = self.bind(&stores, &rows);
            self.layers(&operands, bindings, &c)?;
        }
        Ok(())
    }

    /// Launches the copy of a folded product's weights. Returns where they are.
    fn turn_weights(&mut self, folded: &FoldedProduct) -> Result<Binding, GraphError> {
        let root = self.program.fusion.units[folded.product].roots[0];
        let kernel = self.kernel(&Kernel {
            name: "turned_weights".into(),
            wgsl: module(&TurnedWeightsParams::declaration(0), &[], "", unisono_shaders::TURNED_WEIGHTS),
            bindings: vec![Access::Read, Access::ReadWrite],
        });
        let n = folded.channels * folded.places;
        let bytes = 4 * (n * folded.outputs) as u64;
        let store = Store::Temp(root);
        self.grow(store, bytes);
        let (grid, width) = self.grid(n, root)?;
        let params = TurnedWeightsParams {
            n: n as u32,
            width,
            places: folded.places as u32,
            outputs: folded.outputs as u32,
            first: folded.weights.inside as u32,
        };
        let bindings = vec![self.all(folded.weights.store), self.part(store, 0, bytes)];
        self.launch(kernel, bindings, params.words(&[]), grid, root)?;
        self.works(WorkKind::Map, 0, 2 * bytes);
        Ok(Binding { store, row: None })
    }
}

/// Returns the sizes of a product over all places of windows, whose result is an image of each sample.
fn shape(folded: &FoldedProduct) -> Shape {
    let k = folded.places * folded.outputs;
    Shape {
        m: folded.channels,
        n: folded.pixels,
        k,
        longest: k,
        batch: 1,
        a_batch: 0,
        b_batch: 0,
        all: All::Columns,
        contract: false,
        rows_a_sample: 0,
        transpose_a: false,
        transpose_b: true,
        rounds: false,
        halves: false,
    }
}
