//! The verdict of a step: on a device that computes all shards a kernel decides whether the step commits, and
//! kernels that store new states look at its word. Elsewhere the host decides before the last segment runs.

use unisono_shaders::{Params, ReplaceParams, VerdictParams, module};

use super::emitter::{Emitter, Part, Step};
use crate::fuse::{Place, Store, in_order};
use crate::plan::{Access, Kernel, WorkKind};
use crate::trace::{GraphError, NodeId};

/// The most numbers that the kernel of the verdict looks at itself.
const FEW: usize = 1 << 14;

impl Emitter<'_> {
    /// Returns the flag of the sums of a cut; the one behind the last cut is that of outputs.
    pub(super) fn flag(&mut self, cut: usize) -> Part {
        let stride = self.stride();
        self.part(Store::Flags, stride * cut as u64, 4)
    }

    /// Returns the bytes from one flag to the next: bindings start at aligned offsets.
    fn stride(&self) -> u64 {
        self.target.binding_alignment.max(4)
    }

    /// Clears the flags of all cuts, where sums stay on the device.
    pub(super) fn clear_flags(&mut self) {
        let cuts = self.program.segments() - 1;
        if self.run.is_whole() && cuts > 0 {
            self.flag(cuts);
            let all = self.all(Store::Flags);
            self.step(Step::Clear(all));
        }
    }

    /// Prepares the last segment, if that changes the state: decides whether it does, and clears the flag of
    /// the states, which is returned. Kernels of the segment set it if a new value is not finite.
    pub(super) fn begin_commit(&mut self) -> Result<Option<Part>, GraphError> {
        if self.segment + 1 < self.program.segments() || self.program.graph.updates.is_empty() {
            return Ok(None);
        }
        let flag = self.part(Store::StateFlag, 0, 4);
        if self.decides {
            self.decide(flag)?;
        } else {
            self.step(Step::Clear(flag));
        }
        Ok(Some(flag))
    }

    /// Launches the kernel that decides whether the step commits.
    fn decide(&mut self, state_flag: Part) -> Result<(), GraphError> {
        let program = self.program;
        let Some(conditions) = program.conditions() else { return Ok(()) };
        let root = program.graph.updates.values().next().copied().unwrap_or(0);
        let cuts = program.segments() - 1;
        let mut params = VerdictParams { flags: cuts as u32 + 1, ..VerdictParams::default() };
        params.stride = (self.stride() / 4) as u32;
        let mut numbers = None;
        for &index in &conditions.finite {
            let (place, count) = self.place_of(index);
            if count == 0 {
                continue;
            }
            if numbers.is_none() && count <= FEW {
                let (part, first) = self.aligned(place, count);
                (params.first, params.end) = (first as u32, (first + count) as u32);
                numbers = Some(part);
            } else {
                let flag = self.flag(cuts);
                self.check_state(place, count, flag, root)?;
            }
        }
        let weights = conditions.nonzero.map(|index| {
            let (place, _) = self.place_of(index);
            let (part, first) = self.aligned(place, 1);
            params.weight = first as u32;
            part
        });
        let flags = self.all(Store::Flags);
        let (commit, chained) = (self.part(Store::Commit, 0, 4), self.part(Store::Chained, 0, 4));
        let kernel = self.kernel(&verdict_kernel(numbers.is_some(), weights.is_some()));
        let bindings =
            vec![commit, state_flag, chained, flags, numbers.unwrap_or(chained), weights.unwrap_or(chained)];
        let bytes = bindings.iter().map(|part| part.bytes).sum();
        self.launch(kernel, bindings, params.words(&[]), [1, 1, 1], root)?;
        self.works(WorkKind::Finite, 0, bytes);
        Ok(())
    }

    /// Returns the place of an output, and the number of its elements.
    fn place_of(&self, index: usize) -> (Place, usize) {
        let program = self.program;
        let node = program.graph.outputs[index].node;
        let place = program.stores.place(in_order(&program.graph, &program.fusion, node));
        (place, self.extent.count(&program.outputs()[index].ty))
    }

    /// Returns the part of a memory that has these elements and starts at an aligned offset, and the first of
    /// them in it.
    fn aligned(&mut self, place: Place, count: usize) -> (Part, usize) {
        let alignment = (self.stride() / 4) as usize;
        let skipped = place.inside / alignment * alignment;
        let end = place.inside + count;
        (self.part(place.store, 4 * skipped as u64, 4 * (end - skipped) as u64), place.inside - skipped)
    }

    /// Copies new values to their states, unless they were computed in place.
    pub(super) fn replace_states(&mut self) -> Result<(), GraphError> {
        let program = self.program;
        for (&state, &value) in &program.graph.updates {
            let place = program.stores.place(in_order(&program.graph, &program.fusion, value));
            let own = program.stores.state(state);
            if place == own {
                continue;
            }
            let count = program.graph.states[state].ty.count();
            if self.decides {
                self.replace(place, own, count, value)?;
                continue;
            }
            let bytes = 4 * count as u64;
            let from = self.part(place.store, 4 * place.inside as u64, bytes);
            let to = self.part(own.store, 4 * own.inside as u64, bytes);
            self.step(Step::Copy { from, to });
        }
        Ok(())
    }

    /// Launches the kernel that copies new values to a state if the step commits, as often as a binding's
    /// largest size asks for.
    fn replace(&mut self, from: Place, to: Place, count: usize, root: NodeId) -> Result<(), GraphError> {
        let most = (self.target.max_binding_bytes.saturating_sub(self.stride()) / 4).max(1) as usize;
        for first in (0..count).step_by(most) {
            let n = most.min(count - first);
            let (source, source_first) = self.aligned(Place { inside: from.inside + first, ..from }, n);
            let (target, target_first) = self.aligned(Place { inside: to.inside + first, ..to }, n);
            let commit = self.all(Store::Commit);
            let kernel = self.kernel(&replace_kernel());
            let (grid, width) = self.grid(n, root)?;
            let (source_first, target_first) = (source_first as u32, target_first as u32);
            let params = ReplaceParams { n: n as u32, width, source_first, target_first };
            self.launch(kernel, vec![commit, source, target], params.words(&[]), grid, root)?;
            self.works(WorkKind::Update, 0, 8 * n as u64);
        }
        Ok(())
    }
}

/// Returns the kernel that decides, by numbers and a sum of weights where there are any.
fn verdict_kernel(numbers: bool, weights: bool) -> Kernel {
    let constants = format!("const NUMBERS: bool = {numbers};\nconst WEIGHTS: bool = {weights};\n");
    let [read, write] = [Access::Read, Access::ReadWrite];
    Kernel {
        name: "verdict".into(),
        wgsl: module(&VerdictParams::declaration(0), &[], &constants, unisono_shaders::VERDICT),
        bindings: vec![write, write, read, read, read, read],
    }
}

/// Returns the kernel that copies new values to a state.
fn replace_kernel() -> Kernel {
    Kernel {
        name: "replace".into(),
        wgsl: module(&ReplaceParams::declaration(0), &[], "", unisono_shaders::REPLACE),
        bindings: vec![Access::Read, Access::Read, Access::ReadWrite],
    }
}
