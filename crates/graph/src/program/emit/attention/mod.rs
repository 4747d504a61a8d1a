//! Launches of attention, forward and backward. Scores are never in memory. Which kernels there are depends
//! on the machine; the order of sums does not.

mod kernel;
mod text;
mod unit;

use unisono_shaders::{AttentionParams, Params};

use self::kernel::{AttentionKernel, Family, MOST_OF_BOTH};
use self::text::{Lies, Memory, base, half_of};
use super::emitter::Emitter;
use crate::codegen::Binding;
use crate::fuse::{MAX_BINDINGS, Rounded, Spot, Store, Unit, in_order, layered};
use crate::ops::AttentionSizes;
use crate::plan::target::{Machine, MatrixUnit};
use crate::plan::{Target, Workgroup};
use crate::program::Program;
use crate::trace::{AttentionResult, GraphError, Lowering, NodeId};
use crate::values::Lead;

/// The names of the operands of attention in kernels, and of those of its gradients.
const OPERANDS: [&str; 6] = ["q", "k", "v", "dy", "lse", "delta"];

/// The names of operands and results that have rows of features.
const MATRICES: [&str; 8] = ["q", "k", "v", "dy", "out", "dq", "dk", "dv"];

/// What a kernel of attention binds, in order.
#[derive(Default)]
struct Bound {
    memories: Vec<Memory>,
    stores: Vec<Binding>,
    /// The first element of each memory.
    starts: Vec<u32>,
}

/// Returns the name of a result in kernels.
fn written(result: AttentionResult) -> &'static str {
    match result {
        AttentionResult::Values => "out",
        AttentionResult::LogSums => "lse_out",
        AttentionResult::Query => "dq",
        AttentionResult::Key => "dk",
        AttentionResult::Value => "dv",
    }
}

/// The most that a workgroup of tiles takes: its invocations, and the bytes of `attention/tiles.wgsl` and
/// `tiles_forward.wgsl`.
const TILES: Workgroup = Workgroup { invocations: 128, bytes: 16 * (256 + 128 + 512 + 16) };

/// Returns how a machine computes attention.
fn family(target: &Target) -> Family {
    match target.machine {
        Machine::Cpu => Family::Native,
        Machine::Gpu if target.has_room_for(TILES) => Family::Tiles,
        Machine::Gpu => Family::Alone,
    }
}

/// Returns the floating-point operations of one layer: those of the products that its results take, for the
/// pairs of queries and keys that are not masked by causality.
fn attention_flops(sizes: &AttentionSizes, causal: bool, results: &[AttentionResult]) -> u64 {
    let pairs = sizes.queries * sizes.keys;
    let pairs = if causal { (pairs + sizes.queries) / 2 } else { pairs };
    let wants = |result| usize::from(results.contains(&result));
    let forward = usize::from(results.iter().all(|r| r.first() == AttentionResult::Values));
    let spread = wants(AttentionResult::Values) * sizes.e
        + (wants(AttentionResult::Query) + wants(AttentionResult::Key)) * sizes.d
        + wants(AttentionResult::Value) * sizes.e;
    let of_output = usize::from(forward == 0 && results != [AttentionResult::Value]) * sizes.e;
    (2 * pairs * (sizes.d + of_output + spread)) as u64
}

impl Emitter<'_> {
    /// Launches what one unit computes of attention.
    pub(super) fn attention(&mut self, unit: &Unit) -> Result<(), GraphError> {
        let family = self.family_of(unit.roots[0]);
        let graph = &self.program.graph;
        let first = self.result(unit.roots[0]);
        let node = &graph.nodes[first];
        let backward = !matches!(
            self.program.fusion.lowering[first],
            Lowering::Attention { result: AttentionResult::Values | AttentionResult::LogSums, .. }
        );
        let has_mask = node.inputs.len() > if backward { OPERANDS.len() } else { 3 };
        let [v, q] = [2, 0].map(|i| graph.nodes[node.inputs[i]].ty.dims.last().copied().unwrap_or(1));
        // Both gradients of one kernel would take more buffers than there are, or too many registers.
        let apart = backward && (has_mask || family == Family::Tiles && v.max(q) > MOST_OF_BOTH);
        if apart {
            unit.roots.iter().try_for_each(|&root| self.attention_of(&[root], family, &[]))
        } else {
            self.attention_of(&unit.roots, family, &[])
        }
    }

    /// Returns whether one launch computes these units of an attention, with the roundings of what they
    /// store: it does on GPUs where they need no more buffers than a kernel may have.
    pub(super) fn attends_together(&self, units: &[usize], rounded: &[Rounded]) -> bool {
        let roots = self.roots_of(units);
        let bound = self.bound(self.named(&roots), &roots, rounded);
        self.family_of(roots[0]) == Family::Tiles && bound.stores.len() <= MAX_BINDINGS
    }

    /// Launches the kernel that computes the values of an attention, or all its gradients. A
    /// workgroup computes one, or those by keys and by values where both fit its registers.
    pub(super) fn attention_launch(
        &mut self,
        units: &[usize],
        rounded: &[Rounded],
    ) -> Result<(), GraphError> {
        let roots = self.roots_of(units);
        self.attention_of(&roots, self.family_of(roots[0]), rounded)
    }

    /// Returns the matrix unit that multiplies for a result of attention, if one does: it does if f16 holds
    /// all operands, whatever the sizes are, since the result's bits depend on it.
    fn unit_of(&self, root: NodeId) -> Option<MatrixUnit> {
        let node = &self.program.graph.nodes[self.result(root)];
        let forward = matches!(
            self.program.fusion.lowering[self.result(root)],
            Lowering::Attention { result: AttentionResult::Values | AttentionResult::LogSums, .. }
        );
        let operands = &node.inputs[..if forward { 3 } else { 4 }];
        self.target.unit.filter(|_| self.are_halves(operands))
    }

    /// Returns how the machine computes a result of attention.
    fn family_of(&self, root: NodeId) -> Family {
        if self.unit_of(root).is_some() { Family::Tiles } else { family(self.target) }
    }

    fn roots_of(&self, units: &[usize]) -> Vec<NodeId> {
        units.iter().flat_map(|&at| self.program.fusion.units[at].roots.iter().copied()).collect()
    }

    /// Returns the results of attention that some values are, in order.
    fn results(&self, roots: &[NodeId]) -> Vec<(AttentionResult, NodeId)> {
        let lowering = &self.program.fusion.lowering;
        let mut results: Vec<(AttentionResult, NodeId)> = Vec::new();
        for &root in roots {
            if let Lowering::Attention { result, .. } = lowering[self.result(root)] {
                results.push((result, root));
            }
        }
        results.sort_unstable();
        results
    }

    /// Returns what the kernel of some results reads and writes, by the names that it has in it.
    fn named(&self, roots: &[NodeId]) -> Vec<(&'static str, NodeId)> {
        let node = &self.program.graph.nodes[self.result(roots[0])];
        let results = self.results(roots);
        let forward = results.first().is_some_and(|(result, _)| result.first() == AttentionResult::Values);
        let count = if forward { 3 } else { OPERANDS.len() };
        // A kernel of one of two gradients does not read what it needs for the other.
        let only_values = results.iter().all(|(result, _)| *result == AttentionResult::Value);
        let is_read = |name: &str| !only_values || name != "v" && name != "delta";
        let read = node.inputs[..count].iter().zip(OPERANDS).map(|(&id, name)| (name, id));
        let mask = node.inputs.get(count).map(|&id| ("mask", id));
        let written = results.iter().map(|&(result, root)| (written(result), root));
        read.filter(|(name, _)| is_read(name)).chain(mask).chain(written).collect()
    }

    /// Launches the kernel that computes these results of the same operands, and stores some as f16 too.
    fn attention_of(
        &mut self,
        roots: &[NodeId],
        family: Family,
        rounded: &[Rounded],
    ) -> Result<(), GraphError> {
        let program = self.program;
        let (graph, fusion) = (&program.graph, &program.fusion);
        let node = &graph.nodes[self.result(roots[0])];
        let (is_causal, factor) = match fusion.lowering[self.result(roots[0])] {
            Lowering::Attention { causal, scale, .. } => (causal, scale),
            _ => (false, 1.0),
        };
        let results = self.results(roots);
        let forward = results.first().is_some_and(|(result, _)| result.first() == AttentionResult::Values);
        let count = if forward { 3 } else { OPERANDS.len() };
        let ty = |operand: usize| &graph.nodes[node.inputs[operand]].ty;
        let mask = node.inputs.get(count).map(|&id| &graph.nodes[id].ty);
        let sizes = AttentionSizes::of(ty(0), ty(1), ty(2), mask)
            .map_err(|problem| self.cannot(roots[0], problem))?;
        let only: Vec<AttentionResult> = results.iter().map(|(result, _)| *result).collect();
        let mut bound = self.bound(self.named(roots), roots, rounded);
        if forward && !only.contains(&AttentionResult::Values) {
            let has_samples = node.ty.lead == Lead::Sample;
            self.keep_values(roots[0], (ty(0).dims.clone(), has_samples, sizes.e), &mut bound);
        }
        let Bound { memories, stores, starts } = bound;
        let touched = memories.iter().map(|memory| {
            let count: usize = memory.dims.iter().product();
            (count * if memory.is_half { 2 } else { 4 }) as u64
        });
        // What a sample, or all, touches.
        let touched: u64 = touched.sum();
        let kernel = AttentionKernel {
            family,
            sizes,
            causal: is_causal,
            scale: factor,
            results: only.clone(),
            memories,
            unit: self.unit_of(roots[0]),
        };
        let parts = kernel.parts();
        let x: usize = parts.iter().map(|part| kernel.workgroups(part)).sum();
        let flops: u64 = parts.iter().map(|part| attention_flops(&sizes, is_causal, part)).sum();
        let kernel = self.kernel(&kernel.build());
        let most = self.target.max_workgroups as usize;
        for rows in self.row_ranges(&node.ty, roots[0], &stores)? {
            let samples = if node.ty.lead == Lead::Sample { rows.len() } else { 1 };
            let bindings = self.bind(&stores, &rows);
            let layers = samples * sizes.layers;
            for first in (0..layers).step_by(most) {
                let params = AttentionParams { first_z: first as u32, zero: 0 };
                let grid = [x as u32, 1, most.min(layers - first) as u32];
                self.launch(kernel, bindings.clone(), params.words(&starts), grid, roots[0])?;
                let part = grid[2] as u64 * touched;
                self.attends(flops * grid[2] as u64, part / sizes.layers as u64);
            }
        }
        Ok(())
    }

    /// Returns the result of attention behind a value.
    fn result(&self, root: NodeId) -> NodeId {
        self.program.fusion.result(root)
    }

    /// Returns what a kernel binds: the values by the names that they have in it. Where one computes all
    /// gradients, it binds a buffer once that several operands, or several gradients, are parts of.
    fn bound(&self, named: Vec<(&'static str, NodeId)>, roots: &[NodeId], rounded: &[Rounded]) -> Bound {
        let Program { graph, fusion, stores, .. } = self.program;
        let mut bound = Bound::default();
        let all = ["dq", "dk"].iter().all(|gradient| named.iter().any(|(name, _)| name == gradient));
        let stored = named.into_iter().flat_map(|(name, id)| {
            let half = rounded.iter().find(|own| own.of == id);
            // If only the f16 value is needed, it is stored instead of the f32 value.
            let own = if half.is_some_and(|half| half.is_only) { None } else { Some((name, id)) };
            let name = if own.is_some() { half_of(name) } else { Some(name) };
            own.into_iter().chain(name.zip(half.map(|half| half.value)))
        });
        for (name, id) in stored {
            let of = rounded.iter().find(|own| own.value == id).map_or(id, |own| own.of);
            let is_written = roots.contains(&of);
            let ty = &graph.nodes[self.result(of)].ty;
            let whole = in_order(graph, fusion, id);
            let mut source = whole;
            let mut place = stores.place(source);
            let address = if is_written {
                fusion.written_address(graph, (self.result(of), id), place)
            } else {
                Spot::heads(graph, fusion, id, None).map(|spot| {
                    source = spot.source;
                    place = stores.place(source);
                    spot.address(&graph.nodes[source].ty, place)
                })
            };
            let is_matrix = MATRICES.contains(&base(name));
            let lies = address.filter(|_| is_matrix).and_then(|address| {
                let (step, layer) = layered(&address, ty.dims.last().copied().unwrap_or(1))?;
                Some(Lies { step, layer, first: address.plus as usize })
            });
            if lies.is_none() {
                (source, place) = (whole, stores.place(whole));
            }
            let first = lies.as_ref().map_or(place.inside, |lies| lies.first);
            let own = &graph.nodes[source].ty;
            let row = (own.lead == Lead::Sample).then(|| place.row(own.count()));
            let binding = Binding { store: place.store, row };
            let mut memory = Memory {
                name,
                binding: bound.stores.len(),
                shares: None,
                dims: ty.dims.clone(),
                has_samples: ty.lead == Lead::Sample,
                is_half: stores.is_half(place.store),
                is_aligned: first.is_multiple_of(4) && lies.as_ref().is_none_or(Lies::is_aligned),
                is_written,
                half: rounded.iter().any(|own| own.of == id).then(|| half_of(name)).flatten(),
                lies,
            };
            let is_same = |other: &&Memory| {
                other.shares.is_none() && bound.stores[other.binding] == binding && memory.may_share(other)
            };
            let other = bound.memories.iter().find(is_same).filter(|_| all);
            (memory.binding, memory.shares) =
                other.map_or((memory.binding, None), |other| (other.binding, Some(other.name)));
            if memory.shares.is_none() {
                bound.stores.push(binding);
            }
            bound.memories.push(memory);
            bound.starts.push(first as u32);
        }
        bound
    }

    /// Gives the kernel a memory for the weighted values, which it keeps where they are stored, although
    /// nobody needs them.
    fn keep_values(&mut self, root: NodeId, q: (Vec<usize>, bool, usize), bound: &mut Bound) {
        let (mut dims, has_samples, width) = q;
        dims.pop();
        dims.push(width);
        let (count, store): (usize, _) = (dims.iter().product(), Store::Temp(root));
        self.grow(store, 4 * count as u64);
        bound.stores.push(Binding { store, row: has_samples.then_some(count) });
        bound.starts.push(0);
        let memory = Memory {
            name: "out",
            binding: bound.stores.len() - 1,
            shares: None,
            dims,
            has_samples,
            is_half: false,
            is_aligned: true,
            is_written: true,
            half: None,
            lies: None,
        };
        bound.memories.push(memory);
    }

    fn cannot(&self, root: NodeId, problem: String) -> GraphError {
        GraphError::Op { scope: self.program.graph.describe(root), op: "attention".into(), problem }
    }
}
