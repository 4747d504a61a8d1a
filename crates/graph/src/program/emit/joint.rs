//! One launch for several maps: where kernels are the same and what they read and write lies one behind the
//! other, such as an optimizer's updates of many parameters.

use std::collections::{BTreeMap, BTreeSet};

use unisono_shaders::{MapParams, Params};

use super::emitter::Emitter;
use crate::codegen::Bound;
use crate::fuse::{Place, Store, UnitKind, in_order};
use crate::plan::Work;
use crate::program::UnitKernels;
use crate::trace::{GraphError, NodeId};
use crate::values::Lead;

/// Maps that one launch computes, in the order in which their elements lie.
pub(super) struct Joint<'a> {
    bound: &'a Bound,
    /// A value of the first map.
    root: NodeId,
    /// The units, each with its invocations.
    units: Vec<(usize, usize)>,
}

impl Joint<'_> {
    /// Returns the units.
    pub fn units(&self) -> impl Iterator<Item = usize> {
        self.units.iter().map(|(unit, _)| *unit)
    }
}

/// A map of global values whose invocations need nothing but their own elements and shared numbers.
struct Flat<'a> {
    /// The index of the unit.
    at: usize,
    kernel: usize,
    bound: &'a Bound,
    /// For each start whether it is that of elements.
    flow: &'a [bool],
    root: NodeId,
    invocations: usize,
}

impl Flat<'_> {
    /// Returns the starts of the elements, or those of the shared numbers.
    fn starts(&self, of_elements: bool) -> impl Iterator<Item = u32> {
        let starts = self.bound.starts.iter().zip(self.flow);
        starts.filter(move |(_, flows)| **flows == of_elements).map(|(&start, _)| start)
    }

    /// Returns whether a map goes on where this one ends.
    fn is_before(&self, next: &Self) -> bool {
        let ends = self.starts(true).map(|start| u64::from(start) + self.invocations as u64);
        self.kernel == next.kernel
            && self.bound.stores == next.bound.stores
            && self.flow == next.flow
            && self.starts(false).eq(next.starts(false))
            && ends.eq(next.starts(true).map(u64::from))
    }
}

impl<'a> Emitter<'a> {
    /// Finds the maps of a segment that share launches. Returns for each of their units what is launched when
    /// its turn comes: nothing, or for the last one of them all.
    pub(super) fn joint_maps(&mut self, segment: usize) -> BTreeMap<usize, Option<Joint<'a>>> {
        let mut flat = self.flat_maps(segment);
        // Other buffers may hold maps with the same kernel at the same places.
        flat.sort_by_cached_key(|map| {
            let stores: Vec<Store> = map.bound.stores.iter().map(|binding| binding.store).collect();
            (map.kernel, stores, map.starts(true).collect::<Vec<_>>(), map.at)
        });
        let mut joint = BTreeMap::new();
        for maps in flat.chunk_by(Flat::is_before) {
            let units: BTreeSet<usize> = maps.iter().map(|map| map.at).collect();
            let Some(&last) = units.last().filter(|_| units.len() > 1 && self.may_wait(&units)) else {
                continue;
            };
            joint.extend(units.iter().map(|&unit| (unit, None)));
            let units = maps.iter().map(|map| (map.at, map.invocations)).collect();
            joint.insert(last, Some(Joint { bound: maps[0].bound, root: maps[0].root, units }));
        }
        joint
    }

    fn flat_maps(&mut self, segment: usize) -> Vec<Flat<'a>> {
        let program = self.program;
        let mut flat = Vec::new();
        for at in program.units_of(segment) {
            let (unit, root) = (&program.fusion.units[at], program.fusion.units[at].roots[0]);
            let ty = &program.graph.nodes[root].ty;
            let (UnitKind::Map, UnitKernels::Map(kernels)) = (unit.kind, &program.kernels[at]) else {
                continue;
            };
            let bound = program.map_kernel(kernels, (unit, self.target));
            if let (Lead::Global, Some(flow)) = (ty.lead, &bound.flow) {
                let (kernel, invocations) = (self.kernel(&bound.kernel), ty.count() / bound.lanes);
                flat.push(Flat { at, kernel, bound, flow, root, invocations });
            }
        }
        flat
    }

    /// Returns whether units may all be computed when the last one of them is, side by side: no other unit in
    /// between reads what they write, or writes what they read or write, and neither does one of them.
    fn may_wait(&self, units: &BTreeSet<usize>) -> bool {
        let (Some(&first), Some(&last)) = (units.first(), units.last()) else { return true };
        let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
        for at in first..=last {
            let [reads, writes] = self.touched(at);
            if !reads.is_disjoint(&written) || !writes.is_disjoint(&written) || !writes.is_disjoint(&read) {
                return false;
            }
            if units.contains(&at) {
                read.extend(reads);
                written.extend(writes);
            }
        }
        true
    }

    /// Returns the places that a unit reads, and those that it writes.
    fn touched(&self, at: usize) -> [BTreeSet<(Store, usize)>; 2] {
        let program = self.program;
        let place = |id: NodeId| {
            let Place { store, inside, .. } =
                program.stores.place(in_order(&program.graph, &program.fusion, id));
            (store, inside)
        };
        let roots = &program.fusion.units[at].roots;
        let reads = roots.iter().flat_map(|&root| program.fusion.reads(&program.graph, root).into_keys());
        [reads.map(place).collect(), roots.iter().map(|&root| place(root)).collect()]
    }

    /// Launches maps that lie one behind the other.
    pub(super) fn joint_map(&mut self, maps: &Joint<'_>) -> Result<(), GraphError> {
        let (program, &Joint { bound, root, ref units }) = (self.program, maps);
        let (invocations, rows) = (units.iter().map(|(_, own)| own).sum(), 0..self.extent.rows);
        let kernel = self.kernel(&bound.kernel);
        let (grid, width) = self.grid(invocations, root)?;
        let bindings = self.bind(&bound.stores, &rows);
        let params = MapParams { n: invocations as u32, width, row: 0, zero: 0 };
        self.launch(kernel, bindings, params.words(&bound.starts), grid, root)?;
        let mut all = Work::default();
        for &(unit, own) in units {
            self.unit_work = &program.work[unit];
            let work = self.map_work(&program.fusion.units[unit].roots, own * bound.lanes, &rows);
            all = Work { flops: all.flops + work.flops, bytes: all.bytes + work.bytes, ..work };
        }
        self.works(all.kind, all.flops, all.bytes);
        Ok(())
    }
}
