//! Programs: graphs compiled as far as it goes without sizes. Plans for runs of shards are made from them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::OnceLock;

use super::kernels::{FinishKernel, FoldedKernel, UnitKernels};
use super::run::{BUCKET_BYTES, Conditions, OutputDecl, Run};
use super::work::UnitWork;
use crate::codegen::{self, Bound, RowKernel};
use crate::fuse::{
    AttentionLaunch, Bucket, FoldedProduct, Fusion, RowGroup, StatePlacement, Store, Stores, Unit, alone,
    attention_launches, column_groups, finishes, fuse, in_order, row_groups,
};
use crate::passes::{place_parts, round_products, share_memory, simplify};
use crate::plan::{StateLayout, Target};
use crate::trace::{
    Graph, GraphError, Input, InputDecl, InputKind, Lowering, NodeId, Output, OutputKind, StateDecl,
};
use crate::values::{Lead, Type};

/// Where values lie. No bit of a result depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The most bytes of a bucket, in which sums over shards travel. A sum that is larger has a bucket of its
    /// own. Default: [`BUCKET_BYTES`].
    pub bucket_bytes: usize,
    /// Whether values that f16 holds are stored as f16. Plans are then for devices with
    /// [`crate::Target::f16`] only. Default: no.
    pub f16: bool,
    /// Whether each tensor of the state has a buffer of its own even where one launch could update several,
    /// and what several updates share is computed apart from them. Devices may then hold a part of the state
    /// ([`Program::update_groups`]). Default: no.
    pub states_apart: bool,
}

impl Default for Layout {
    fn default() -> Self {
        Self { bucket_bytes: BUCKET_BYTES, f16: false, states_apart: false }
    }
}

/// A step, compiled for any run of shards.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) graph: Graph,
    pub(crate) fusion: Fusion,
    pub(crate) stores: Stores,
    pub(crate) kernels: Vec<UnitKernels>,
    /// The groups of units that a GPU computes row by row.
    pub(crate) rows: Vec<(RowGroup, OnceLock<RowKernel>)>,
    /// The units that a GPU computes together as sums over samples.
    pub(crate) columns: Vec<(Vec<usize>, OnceLock<Bound>)>,
    /// The maps that a GPU computes in the kernel of the product before them.
    pub(crate) finishes: Vec<FinishKernel>,
    /// The products that a CPU computes together with the folds behind them.
    pub(crate) folded: Vec<FoldedKernel>,
    /// The launches in which a GPU computes several units of attention.
    pub(crate) attentions: Vec<AttentionLaunch>,
    /// The sums over samples of each shard that only a sum over shards reads. The kernels in `columns` put
    /// them into memories of their own.
    pub(crate) alone: BTreeSet<NodeId>,
    /// What the kernels compute, by the unit.
    pub(crate) work: Vec<UnitWork>,
    outputs: Vec<OutputDecl>,
    /// By what a device decides whether a step commits; `None` if the caller decides.
    conditions: Option<Conditions>,
}

impl Program {
    /// Compiles a graph for the default layout.
    ///
    /// # Errors
    /// There are none as yet: a graph from [`crate::Tape::finish`] compiles.
    pub fn compile(graph: &Graph) -> Result<Self, GraphError> {
        Self::compile_with(graph, Layout::default())
    }

    /// Compiles a graph for a layout. Each tensor of the state has a buffer of its own.
    ///
    /// # Errors
    /// There are none as yet: a graph from [`crate::Tape::finish`] compiles.
    pub fn compile_with(graph: &Graph, layout: Layout) -> Result<Self, GraphError> {
        Self::compile_placed(graph, layout, StatePlacement::Apart)
    }

    /// Compiles a graph for a layout and for places of the state's tensors.
    ///
    /// # Errors
    /// [`GraphError::States`] if the placement is that of a program with other tensors.
    pub fn compile_placed(
        graph: &Graph,
        layout: Layout,
        states: StatePlacement<'_>,
    ) -> Result<Self, GraphError> {
        if let StatePlacement::Like(given) = states {
            fits(graph, given)?;
        }
        let (graph, parts) = place_parts(&share_memory(&round_products(simplify(graph))));
        let mut fusion = fuse(&graph, parts);
        if layout.states_apart {
            fusion.part_updates(&graph);
        }
        let mut stores = Stores::assign(&graph, &fusion, layout.bucket_bytes / 4, states);
        if layout.f16 {
            stores.narrow(&graph, &fusion);
        }
        let kernels = fusion.units.iter().map(|u| UnitKernels::new(&graph, &fusion, &stores, u)).collect();
        let rows = row_groups(&graph, &fusion, &stores);
        let taken: BTreeSet<usize> = rows.iter().flat_map(|group| group.units.iter().copied()).collect();
        let columns = column_groups(&graph, &fusion, &stores, &taken);
        let alone = alone(&graph, &fusion, &stores, &columns);
        let attentions = attention_launches(&graph, &fusion, &stores, &taken);
        let new = fusion.new_states(&graph);
        let of_rows = rows.iter().map(|group| &group.units[..]);
        let of_columns = columns.iter().map(|units| &units[..]);
        let together = of_rows.chain(of_columns).chain(attentions.iter().map(|launch| &launch.units[..]));
        let turns = together.flat_map(|units| {
            let last = units.iter().max();
            units.iter().filter_map(move |&unit| Some((unit, *last?)))
        });
        let finished = finishes(&graph, &fusion, &stores, &taken, &turns.collect());
        let finishes = finished.into_iter().map(|finish| {
            let work = UnitWork::of(&graph, &fusion, &finish.unit, &new);
            FinishKernel::new(finish, work)
        });
        let finishes = finishes.collect();
        let folded =
            FoldedProduct::all(&graph, &fusion, &stores).into_iter().map(FoldedKernel::new).collect();
        let work = fusion.units.iter().map(|u| UnitWork::of(&graph, &fusion, u, &new)).collect();
        let outputs = graph.outputs.iter().map(|Output { name, kind, node }| {
            let source = in_order(&graph, &fusion, *node);
            let sum = match (stores.place(source).store, &fusion.lowering[source]) {
                (Store::Sums(bucket), _) => Some((bucket, stores.place(source).inside)),
                _ => None,
            };
            let segment = sum.map_or(fusion.segment[*node], |(bucket, _)| stores.buckets[bucket].cut);
            OutputDecl { name: name.clone(), kind: *kind, ty: graph.nodes[*node].ty.clone(), segment, sum }
        });
        let outputs = outputs.collect();
        Ok(Self {
            graph,
            fusion,
            stores,
            kernels,
            rows: rows.into_iter().map(|group| (group, OnceLock::new())).collect(),
            columns: columns.into_iter().map(|units| (units, OnceLock::new())).collect(),
            finishes,
            folded,
            attentions,
            alone,
            work,
            outputs,
            conditions: None,
        })
    }

    /// Has a device that computes all shards decide by these conditions whether a step commits, so that
    /// nobody waits for the host's verdict. No result depends on it, if the caller decides by the same
    /// conditions.
    #[must_use]
    pub fn with_conditions(self, conditions: Conditions) -> Self {
        Self { conditions: Some(conditions), ..self }
    }

    /// Returns the conditions by which a device that computes all shards decides whether a step commits.
    /// Returns `None` if none were given, and where a device cannot decide: the program changes no state or
    /// has no cut, an output that counts is known only when the step commits, or a kernel that stores new
    /// states needs so many buffers that none is left for the word that says whether to.
    pub fn conditions(&self) -> Option<&Conditions> {
        let last = self.segments() - 1;
        let is_ready = |index: &usize| self.outputs.get(*index).is_some_and(|output| output.segment < last);
        let is_guarded = |value: &NodeId| self.stores.guarded.contains(value);
        self.conditions.as_ref().filter(|conditions| {
            last > 0
                && !self.graph.updates.is_empty()
                && conditions.finite.iter().chain(&conditions.nonzero).all(is_ready)
                && self.stores.in_place.values().all(is_guarded)
        })
    }

    /// Returns the simplified graph, to interpret or to print it.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the data that each step brings.
    pub fn inputs(&self) -> &[InputDecl] {
        &self.graph.inputs
    }

    /// Returns the indices of the inputs that travel as [`crate::Slot::Scalars`], in order.
    pub fn scalars(&self) -> &[usize] {
        &self.stores.scalars
    }

    /// Returns the tensors that outlive a step. [`StateLayout::tensors`] has the place of each.
    pub fn states(&self) -> &[StateDecl] {
        &self.graph.states
    }

    /// Returns where the tensors of the state lie. Programs of one device must agree about it.
    pub fn state_layout(&self) -> &StateLayout {
        &self.stores.states
    }

    /// Returns the outputs of a step. [`crate::Slot::Output`] counts these.
    pub fn outputs(&self) -> &[OutputDecl] {
        &self.outputs
    }

    /// Returns the type of a resident memory, by what the program leaves there or reads from it.
    pub(crate) fn resident(&self, number: usize) -> Option<Type> {
        let is_own = |input: &&InputDecl| input.kind == InputKind::Resident(number);
        let read = self.graph.inputs.iter().find(is_own).map(|input| input.ty.clone());
        read.or_else(|| self.resident_value(number).map(|node| self.graph.nodes[node].ty.clone()))
    }

    /// Returns what the program leaves in a resident memory.
    pub(crate) fn resident_value(&self, number: usize) -> Option<NodeId> {
        let is_own = |output: &&Output| output.kind == OutputKind::Resident(number);
        self.graph.outputs.iter().find(is_own).map(|output| output.node)
    }

    /// Returns whether the program reads resident memory or leaves any.
    pub fn is_resident(&self) -> bool {
        let reads = self.graph.inputs.iter().any(|input| matches!(input.kind, InputKind::Resident(_)));
        reads || self.graph.outputs.iter().any(|output| matches!(output.kind, OutputKind::Resident(_)))
    }

    /// Returns the buckets of sums that devices exchange.
    pub fn buckets(&self) -> &[Bucket] {
        &self.stores.buckets
    }

    /// Returns the number of segments of a step, one more than there are cuts. The last segment commits.
    pub fn segments(&self) -> usize {
        self.fusion.last_segment() + 1
    }

    /// Returns the units of a segment. They lie side by side.
    pub(crate) fn units_of(&self, segment: usize) -> Range<usize> {
        let units = &self.fusion.units;
        units.partition_point(|u| u.segment < segment)..units.partition_point(|u| u.segment <= segment)
    }

    /// Returns whether the last segment needs only global values of the segments before, and has no output
    /// with samples. A device may then run shards one after another, each with a plan of its own, and commit
    /// with the last of these plans.
    pub fn commits_globally(&self) -> bool {
        let last = self.segments() - 1;
        let is_global = |id: usize| self.graph.nodes[id].ty.lead == Lead::Global;
        let before = |id: &usize| self.fusion.segment[*id] < last;
        let mut roots = self.fusion.units.iter().filter(|u| u.segment == last).flat_map(|u| u.roots.iter());
        let reads = |&root: &usize| self.fusion.reads(&self.graph, root).into_keys().filter(before);
        roots.all(|root| reads(root).all(is_global))
            && self.outputs.iter().filter(|o| o.segment == last).all(|o| o.ty.lead == Lead::Global)
    }

    /// Returns what element `index` of a bucket is: the gradient of a state, or a value by its layer and op.
    pub fn describe_sum(&self, bucket: usize, index: usize) -> String {
        let values = &self.stores.buckets[bucket].values;
        let at = values.partition_point(|&(_, first)| first <= index).saturating_sub(1);
        let (id, _) = values[at];
        let named = self
            .graph
            .updates
            .keys()
            .find(|&&s| self.feeds(id, s) && self.graph.states[s].ty == self.graph.nodes[id].ty);
        match named {
            Some(&state) => format!("the gradient of {}", self.graph.states[state].name),
            None => self.graph.describe(self.graph.nodes[id].inputs[0]),
        }
    }

    /// Returns whether a node depends on an input that is data. A carry of the same name is another input.
    pub fn depends_on(&self, node: NodeId, input: &str) -> bool {
        let is_it = |decl: &InputDecl| decl.kind == InputKind::Data && decl.name == input;
        let Some(index) = self.graph.inputs.iter().position(is_it) else { return false };
        let mut depends = vec![false; node + 1];
        for (id, at) in self.graph.nodes[..=node].iter().enumerate() {
            let is_input = at.op.downcast_ref().is_some_and(|&Input(own)| own == index);
            depends[id] = is_input || at.inputs.iter().any(|&i| depends[i]);
        }
        depends[node]
    }

    /// Returns whether the new value of a state depends on a node.
    fn feeds(&self, id: usize, state: usize) -> bool {
        let (mut pending, mut seen) = (vec![self.graph.updates[&state]], BTreeSet::new());
        while let Some(at) = pending.pop() {
            if at == id {
                return true;
            }
            if seen.insert(at) {
                pending.extend(self.graph.nodes[at].inputs.iter().filter(|&&i| i >= id));
            }
        }
        false
    }

    /// Returns one line for each kernel in order: its segment, its ops and its result's type, for example
    /// `0: fused[add, relu] [B, 512]`.
    pub fn describe(&self) -> String {
        let line = |u: &Unit| {
            let name = codegen::unit_name(&self.graph, &self.fusion, u);
            format!("{}: {name} {}\n", u.segment, self.graph.nodes[u.roots[0]].ty)
        };
        self.fusion.units.iter().map(line).collect()
    }

    /// Returns whether the program stores values as f16. Its plans are then for devices with
    /// [`crate::Target::f16`] only.
    pub fn stores_f16(&self) -> bool {
        !self.stores.halves.is_empty()
    }

    /// Returns the `count` largest tensors that a run keeps in memory on a target with their bytes, the
    /// largest first. Tensors of the state are described by name, others by layer, op and shape.
    pub fn largest_tensors(&self, run: &Run, target: &Target, count: usize) -> Vec<(String, u64)> {
        let extent = run.extent();
        let bytes = |id: NodeId| {
            let ty = &self.graph.nodes[id].ty;
            let is_joined = matches!(self.stores.place(id).store, Store::Joined(_));
            let count = if is_joined { extent.blocks * ty.count() } else { extent.count(ty) };
            (self.element_bytes(id) * count) as u64
        };
        let folded = self.values_not_stored(run, target);
        let computed = self.fusion.units.iter().flat_map(|unit| unit.roots.iter().copied());
        let computed = computed.filter(|id| !folded.contains(id));
        let inputs = (0..self.graph.nodes.len()).filter(|&id| self.graph.nodes[id].op.is::<Input>());
        let values = computed.chain(inputs).map(|id| (self.graph.describe(id), bytes(id)));
        let states =
            self.graph.states.iter().map(|s| (format!("{} {}", s.name, s.ty), s.ty.count() as u64 * 4));
        let mut all: Vec<(String, u64)> = values.chain(states).collect();
        all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        all.truncate(count);
        all
    }

    /// Returns the bytes that all computed values would take if none of them shared memory.
    pub fn tensor_bytes(&self, run: &Run) -> u64 {
        let extent = run.extent();
        let bytes = |id: &usize| (extent.count(&self.graph.nodes[*id].ty) * self.element_bytes(*id)) as u64;
        let computed =
            |id: &usize| !matches!(self.fusion.lowering[*id], Lowering::View(_) | Lowering::Constant(_));
        (0..self.graph.nodes.len()).filter(computed).map(|id| bytes(&id)).sum()
    }

    /// Returns the bytes of each element of a value.
    fn element_bytes(&self, id: NodeId) -> usize {
        self.stores.element_bytes(self.stores.place(id).store)
    }
}

/// Checks that a layout has a place of the right size for each tensor of the state.
fn fits(graph: &Graph, layout: &StateLayout) -> Result<(), GraphError> {
    for (index, state) in graph.states.iter().enumerate() {
        let wanted = 4 * state.ty.count().max(1) as u64;
        let found = layout.tensors.get(index).map(|slice| slice.bytes);
        if found != Some(wanted) {
            return Err(GraphError::States { what: state.name.clone(), wanted, found });
        }
    }
    Ok(())
}
