//! The kernels of a program. What depends on the machine is written when a plan first needs it: plans are for
//! one kind of machine, and to write the kernels for all of them takes longer than the rest of a compilation.
//! Operands and epilogues of products are the same for all, and are written when the program is compiled.

use std::sync::OnceLock;

use super::Program;
use super::work::UnitWork;
use crate::codegen::{self, Bound, Epilogue, ImplicitOperand, MapKernels, ReduceKernels, RowKernel};
use crate::fuse::{Finish, FoldedProduct, Fusion, RowGroup, Stores, Unit, UnitKind};
use crate::plan::Target;
use crate::trace::{Graph, Lowering};

/// The kernels of a unit.
#[derive(Clone, Debug)]
pub(crate) enum UnitKernels {
    Map(MapKernels),
    Reduce(Box<ReduceKernels>),
    Product {
        epilogue: Option<Epilogue>,
        operands: [Option<ImplicitOperand>; 2],
    },
    /// What the kernels of row sums are depends on sizes alone.
    RowSums,
    /// The same holds for those of attention.
    Attention,
}

/// A map that a GPU computes in the kernel of the product before it.
#[derive(Clone, Debug)]
pub(crate) struct FinishKernel {
    pub finish: Finish,
    pub work: UnitWork,
    epilogue: OnceLock<Option<Epilogue>>,
}

/// A product and the fold behind it, which a CPU computes together.
#[derive(Clone, Debug)]
pub(crate) struct FoldedKernel {
    pub folded: FoldedProduct,
    operand: OnceLock<ImplicitOperand>,
}

impl FoldedKernel {
    pub fn new(folded: FoldedProduct) -> Self {
        Self { folded, operand: OnceLock::new() }
    }
}

impl UnitKernels {
    pub fn new(graph: &Graph, fusion: &Fusion, stores: &Stores, unit: &Unit) -> Self {
        match (unit.kind, &fusion.lowering[unit.roots[0]]) {
            (UnitKind::Map, _) => Self::Map(MapKernels::default()),
            (UnitKind::RowSums, _) => Self::RowSums,
            (UnitKind::Attention, _) => Self::Attention,
            (_, Lowering::Reduce(_)) => Self::Reduce(Box::default()),
            _ => {
                let product = unit.product.unwrap_or(unit.roots[0]);
                Self::Product {
                    epilogue: codegen::epilogue(graph, fusion, stores, unit),
                    operands: [0, 1].map(|side| codegen::operand(graph, fusion, stores, product, side)),
                }
            }
        }
    }
}

impl FinishKernel {
    pub fn new(finish: Finish, work: UnitWork) -> Self {
        Self { finish, work, epilogue: OnceLock::new() }
    }
}

impl Program {
    /// Returns the kernel of a map that a target is fastest with.
    pub(super) fn map_kernel<'a>(
        &'a self,
        kernels: &'a MapKernels,
        (unit, target): (&Unit, &Target),
    ) -> &'a Bound {
        kernels.for_target(&self.graph, &self.fusion, &self.stores, (unit, target))
    }

    /// Returns the epilogue of a product with the map behind it.
    pub(super) fn finish_epilogue<'a>(&self, kernel: &'a FinishKernel) -> Option<&'a Epilogue> {
        let write = || codegen::epilogue(&self.graph, &self.fusion, &self.stores, &kernel.finish.unit);
        kernel.epilogue.get_or_init(write).as_ref()
    }

    /// Returns the right operand of a product with the fold behind it.
    pub(super) fn folded_operand<'a>(&self, kernel: &'a FoldedKernel) -> &'a ImplicitOperand {
        let write = || codegen::operand_at(&self.graph, &self.stores, (1, &kernel.folded.spot), true);
        kernel.operand.get_or_init(write)
    }

    /// Returns the kernel of a group of rows.
    pub(super) fn row_kernel<'a>(&self, group: &RowGroup, kernel: &'a OnceLock<RowKernel>) -> &'a RowKernel {
        let (graph, fusion) = (&self.graph, &self.fusion);
        kernel.get_or_init(|| {
            let names = group.units.iter().map(|&at| codegen::unit_name(graph, fusion, &fusion.units[at]));
            let name = format!("rows[{}]", names.collect::<Vec<_>>().join(", "));
            let unit = codegen::row_unit(graph, fusion, group);
            codegen::row_kernel(graph, fusion, &self.stores, (group, &unit), name)
        })
    }

    /// Returns the kernel of sums over the same samples, if the units are such sums.
    pub(super) fn column_kernel<'a>(
        &self,
        units: &[usize],
        kernel: &'a OnceLock<Bound>,
    ) -> Option<&'a Bound> {
        let units: Vec<&Unit> = units.iter().map(|&at| &self.fusion.units[at]).collect();
        let Lowering::Reduce(reduction) = &self.fusion.lowering[units.first()?.roots[0]] else { return None };
        Some(kernel.get_or_init(|| {
            let stores = self.stores.with_alone(&self.alone);
            codegen::column_kernel(&self.graph, &self.fusion, &stores, (&units, reduction))
        }))
    }
}
