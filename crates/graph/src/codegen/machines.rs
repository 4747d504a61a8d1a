//! Which kernel of a map or a reduction a machine is fastest with.

use std::sync::OnceLock;

use super::across::across_kernel;
use super::staged::staged_kernel;
use super::{Bound, Compiler, comes_in_quads, map_kernel, reduce_kernel};
use crate::fuse::{Fusion, Stores, Unit};
use crate::plan::target::{Machine, Target};
use crate::trace::{Graph, Reduction};

/// The kernels of a map. They compute the same bits, and their params are [`unisono_shaders::MapParams`].
/// Each is written when a target first needs it.
#[derive(Clone, Debug, Default)]
pub struct MapKernels {
    /// The kernel of which an invocation computes one element.
    ones: OnceLock<Bound>,
    /// The kernel of which an invocation loads, computes and stores four elements as one.
    fours: OnceLock<Bound>,
}

impl MapKernels {
    /// Returns the kernel of a map unit that a target is fastest with.
    pub fn for_target(
        &self,
        graph: &Graph,
        fusion: &Fusion,
        stores: &Stores,
        (unit, target): (&Unit, &Target),
    ) -> &Bound {
        let compiler = match target.machine {
            Machine::Cpu => Compiler::Cranelift,
            Machine::Gpu => Compiler::Driver,
        };
        let kernel = |lanes| map_kernel(graph, fusion, stores, (unit, lanes));
        match comes_in_quads(graph, fusion, stores, (unit, compiler)) {
            true => self.fours.get_or_init(|| kernel(4)),
            false => self.ones.get_or_init(|| kernel(1)),
        }
    }
}

/// The kernels of a reduction, each for results in one chunk and for those in several. They compute the same
/// bits, and their params are [`unisono_shaders::ReduceParams`]. Each is written when a target first needs
/// it.
#[derive(Clone, Debug, Default)]
pub struct ReduceKernels {
    /// The kernels for all machines.
    serial: [OnceLock<Bound>; 2],
    /// Those for GPUs that stage rows in workgroup memory.
    staged: [OnceLock<Option<Bound>>; 2],
    /// Those for CPUs that compute four results at a time.
    across: [OnceLock<Option<Bound>>; 2],
}

impl ReduceKernels {
    /// Returns the kernel of a reduction that a target is fastest with, for results in one chunk or in
    /// several, and whether it counts the elements in fours.
    pub fn for_target(
        &self,
        graph: &Graph,
        fusion: &Fusion,
        stores: &Stores,
        unit: (&Unit, &Reduction),
        (target, chunked): (&Target, bool),
    ) -> (&Bound, bool) {
        let at = usize::from(chunked);
        let own = match target.machine {
            Machine::Gpu => {
                let staged =
                    self.staged[at].get_or_init(|| staged_kernel(graph, fusion, stores, unit, chunked));
                staged.as_ref().filter(|bound| target.can_run(&bound.kernel))
            }
            Machine::Cpu => {
                self.across[at].get_or_init(|| across_kernel(graph, fusion, stores, unit, chunked)).as_ref()
            }
        };
        let serial = || self.serial[at].get_or_init(|| reduce_kernel(graph, fusion, stores, unit, chunked));
        (own.unwrap_or_else(serial), own.is_some() && target.machine == Machine::Gpu)
    }
}
