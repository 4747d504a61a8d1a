//! From a program and a run to a plan: sizes, launches, transfers and memory.
//!
//! This module puts the steps of a segment in order. `emitter` records them, `pointwise`, `sums`, `product`,
//! `row_sums` and `attention` add the launches, `schedule` puts them in order, and `memory` gives every
//! memory a buffer.

mod attention;
mod emitter;
mod joint;
mod marks;
mod memory;
mod merge_launches;
mod pack_launches;
mod pointwise;
mod product;
mod row_sums;
mod schedule;
mod shares;
mod sums;
mod trees;
mod verdict;
mod work;

use std::collections::{BTreeMap, BTreeSet};

use self::emitter::{Emitter, Part, Step};
use crate::fuse::{AttentionLaunch, Store, Unit, in_order};
use crate::plan::target::Machine;
use crate::plan::{Plan, Target};
use crate::program::{FoldedKernel, Program, Run, Slot, UnitKernels};
use crate::trace::{GraphError, NodeId, OutputKind};
use crate::values::{Lead, Type};

impl Program {
    /// Returns the plan for a run of shards on a device.
    ///
    /// # Errors
    /// [`GraphError::Limit`] if a value does not fit the device, [`GraphError::Grid`] if it takes too many
    /// workgroups, [`GraphError::Kernel`] if a kernel needs more of a workgroup or more buffers than the
    /// device has, [`GraphError::NoF16`] if values are stored as f16 and the device does not have it.
    pub fn plan(&self, run: &Run, target: &Target) -> Result<Plan, GraphError> {
        if let Some(&id) = self.stores.halves.first().filter(|_| !target.f16) {
            return Err(GraphError::NoF16 { what: self.graph.describe(id) });
        }
        let mut emitter = Emitter::new(self, run, target);
        for segment in 0..emitter.segments.len() {
            emitter.emit_segment(segment)?;
        }
        emitter.schedule();
        emitter.finish()
    }

    /// Returns the results that a plan does not store, because the kernel that computes them also computes
    /// what is behind them: a fold of a product, or attention as f16.
    pub(super) fn values_not_stored(&self, run: &Run, target: &Target) -> BTreeSet<NodeId> {
        let emitter = Emitter::new(self, run, target);
        let folded = self.folded.iter().filter(|kernel| emitter.is_folded(&kernel.folded));
        let folded = folded.map(|kernel| self.fusion.units[kernel.folded.product].roots[0]);
        let joint = |launch: &&AttentionLaunch| {
            target.machine == Machine::Gpu && emitter.attends_together(&launch.units, &launch.rounded)
        };
        let rounded = self.attentions.iter().filter(joint).flat_map(|launch| &launch.rounded);
        folded.chain(rounded.filter(|own| own.is_only).map(|own| own.of)).collect()
    }
}

impl Emitter<'_> {
    /// Emits a segment: its uploads, its launches and its downloads.
    fn emit_segment(&mut self, segment: usize) -> Result<(), GraphError> {
        self.segment = segment;
        self.upload_sums();
        if segment == 0 {
            self.upload_inputs();
        }
        self.tick();
        if segment == 0 {
            self.clear_flags();
        }
        self.count_right_operands();
        let flag = self.begin_commit()?;
        let open = self.open_buckets(segment);
        let cut: Vec<usize> = open.keys().copied().collect();
        self.compute(open)?;
        if self.run.is_whole() && !cut.is_empty() {
            self.check_finite(segment, &cut)?;
        }
        if segment + 1 == self.segments.len() {
            self.replace_states()?;
            self.replace_residents();
        }
        if let Some(flag) = flag {
            self.check_states(flag)?;
        }
        self.tick();
        self.download_outputs();
        Ok(())
    }

    /// Uploads the sums of the cut before this segment, unless the run is the whole batch: then they are on
    /// the device.
    fn upload_sums(&mut self) {
        if self.run.is_whole() {
            return;
        }
        let before = self.segment.checked_sub(1).and_then(|cut| self.buckets_of.get(&cut).cloned());
        for bucket in before.into_iter().flatten() {
            self.upload(Slot::Sums(bucket), Store::Sums(bucket));
        }
    }

    /// Uploads the inputs that some kernel or output uses.
    fn upload_inputs(&mut self) {
        let program = self.program;
        let mut used: BTreeSet<Store> = BTreeSet::new();
        let loads = program.fusion.units.iter().flat_map(|u| u.roots.iter());
        let reads = loads
            .flat_map(|&r| program.fusion.reads(&program.graph, r).into_keys())
            .chain(program.graph.roots());
        for id in reads {
            let store = program.stores.place(in_order(&program.graph, &program.fusion, id)).store;
            if matches!(store, Store::Scalars | Store::Input(_)) {
                used.insert(store);
            }
        }
        for store in used {
            match store {
                Store::Input(i) if self.is_absent(&program.graph.inputs[i].ty) => {}
                Store::Input(i) => self.upload(Slot::Input(i), store),
                _ => self.upload(Slot::Scalars, store),
            }
        }
        if self.decides {
            self.upload(Slot::Chained, Store::Chained);
        }
    }

    /// Launches the segment's units. Sums each bucket as soon as all its values are computed, so that it can
    /// leave the device while the rest is computed. `open` holds for each bucket the values that are still to
    /// come.
    fn compute(&mut self, mut open: BTreeMap<usize, BTreeSet<NodeId>>) -> Result<(), GraphError> {
        let (program, segment) = (self.program, self.segment);
        let mut buckets_with: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (&bucket, sources) in &open {
            sources.iter().for_each(|&source| buckets_with.entry(source).or_default().push(bucket));
        }
        let is_full = |(bucket, sources): (&usize, &BTreeSet<NodeId>)| sources.is_empty().then_some(*bucket);
        let mut full: BTreeSet<usize> = open.iter().filter_map(is_full).collect();
        let mut joint = self.joint_maps(segment);
        let mut together = self.merge_launches();
        // The unit of a product computes its fold as well, and that of the fold nothing.
        let mut folded: BTreeMap<usize, Option<&FoldedKernel>> = BTreeMap::new();
        for kernel in program.folded.iter().filter(|kernel| self.is_folded(&kernel.folded)) {
            folded.extend([(kernel.folded.product, Some(kernel)), (kernel.folded.fold, None)]);
        }
        for at in program.units_of(segment) {
            let (unit, kernels) = (&program.fusion.units[at], &program.kernels[at]);
            self.unit_work = &program.work[at];
            if self.is_absent(&program.graph.nodes[unit.roots[0]].ty) {
                continue;
            }
            let mut computed: &[usize] = &[at];
            match (together.remove(&at), joint.remove(&at)) {
                (Some(launch), _) => {
                    computed = launch.units();
                    self.kept = self.kept_by(launch.computed());
                    self.launch_merged(launch)?;
                }
                (None, Some(joint)) => joint.map_or(Ok(()), |maps| {
                    self.kept = self.kept_by(maps.units());
                    self.joint_map(&maps)
                })?,
                (None, None) => {
                    self.kept = self.kept_by(std::iter::once(at));
                    match folded.remove(&at) {
                        Some(kernel) => kernel.map_or(Ok(()), |kernel| self.folded_product(kernel))?,
                        None => self.launch_unit(unit, kernels)?,
                    }
                }
            }
            self.kept.clear();
            for root in computed.iter().flat_map(|&at| &program.fusion.units[at].roots) {
                for bucket in buckets_with.get(root).into_iter().flatten() {
                    let Some(sources) = open.get_mut(bucket) else { continue };
                    sources.remove(root);
                    if sources.is_empty() {
                        full.insert(*bucket);
                    }
                }
            }
            for bucket in std::mem::take(&mut full) {
                open.remove(&bucket);
                self.sum_bucket(segment, bucket)?;
            }
        }
        open.into_keys().try_for_each(|bucket| self.sum_bucket(segment, bucket))
    }

    fn launch_unit(&mut self, unit: &Unit, kernels: &UnitKernels) -> Result<(), GraphError> {
        match kernels {
            UnitKernels::Map(kernels) => {
                let program = self.program;
                self.map(unit, program.map_kernel(kernels, (unit, self.target)))
            }
            UnitKernels::Reduce(kernels) => self.reduce(unit, kernels),
            UnitKernels::Product { epilogue, operands } => {
                self.product(unit, epilogue.as_ref(), operands.each_ref().map(Option::as_ref))
            }
            UnitKernels::RowSums => self.row_sums(unit.roots[0]),
            UnitKernels::Attention => self.attention(unit),
        }
    }

    /// Checks the new values of states that were not checked by the kernel which computed them, and downloads
    /// the flag. So every new value is checked, whatever computed it.
    fn check_states(&mut self, flag: Part) -> Result<(), GraphError> {
        let program = self.program;
        for (&state, &value) in &program.graph.updates {
            if !program.stores.checked.contains(&in_order(&program.graph, &program.fusion, value)) {
                let place = program.stores.state(state);
                self.check_state(place, program.graph.states[state].ty.count(), flag, value)?;
            }
        }
        self.segments[self.segment].downloads.push((Slot::StateFlag, flag));
        if self.decides {
            let skipped = self.part(Store::Commit, 0, 4);
            self.segments[self.segment].downloads.push((Slot::Skipped, skipped));
        }
        Ok(())
    }

    /// Downloads the outputs that are ready at the end of the segment.
    fn download_outputs(&mut self) {
        let (program, segment) = (self.program, self.segment);
        // Downloads are read when the whole segment is done. Until then nothing else may take their memory.
        let downloads: Vec<Store> =
            self.segments[segment].downloads.iter().map(|(_, part)| part.store).collect();
        downloads.into_iter().for_each(|store| self.touch(store));
        for index in self.outputs_of.get(&segment).cloned().unwrap_or_default() {
            let output = &program.outputs()[index];
            let id = program.graph.outputs[index].node;
            let place = program.stores.place(in_order(&program.graph, &program.fusion, id));
            let is_resident = matches!(output.kind, OutputKind::Resident(_));
            if is_resident || output.sum.is_some() && !self.run.is_whole() || self.is_absent(&output.ty) {
                continue;
            }
            let bytes = 4 * self.extent.count(&output.ty) as u64;
            let part = self.part(place.store, 4 * place.inside as u64, bytes);
            self.segments[segment].downloads.push((Slot::Output(index), part));
        }
    }

    /// Copies new rows to resident memories, unless they were computed in place.
    fn replace_residents(&mut self) {
        let program = self.program;
        for output in program.outputs() {
            let OutputKind::Resident(number) = output.kind else { continue };
            let Some(node) = program.resident_value(number).filter(|_| !self.is_absent(&output.ty)) else {
                continue;
            };
            let place = program.stores.place(in_order(&program.graph, &program.fusion, node));
            let own = program.stores.resident(number);
            if place != own {
                let bytes = 4 * self.extent.count(&output.ty) as u64;
                let from = self.part(place.store, 4 * place.inside as u64, bytes);
                let to = self.part(own.store, 0, bytes);
                self.step(Step::Copy { from, to });
            }
        }
    }

    /// Returns whether this run holds nothing of a value of this type. That is so for an idle replica, whose
    /// run has no shards, and a value that is not global.
    fn is_absent(&self, ty: &Type) -> bool {
        self.run.sizes.is_empty() && ty.lead != Lead::Global
    }
}

#[cfg(test)]
mod tests;
