//! Launches of the tree kernel, which adds the chunks of a reduction or product and the parts of shards.

use std::collections::{BTreeMap, BTreeSet};

use unisono_shaders::{FiniteParams, Params, TreeParams, module, snippets};

use super::emitter::{Apart, Emitter, Part};
use super::trees::Tree;
use crate::fuse::{Bucket, Place, Store, in_order};
use crate::plan::target::Machine;
use crate::plan::{Access, Kernel, WorkKind};
use crate::program::{Program, Slot};
use crate::trace::{GraphError, NodeId, ReduceKind};
use crate::values::{Lead, Type};

/// The most leaves that one invocation of the tree kernel adds. They are in registers, because arrays are
/// slow on software adapters: 8 shards of 670,000 elements take 6 ms on one core, and 36 ms with an array of
/// waiting subtrees.
pub(super) const TREE_GROUP: usize = 8;
/// The number of elements that one invocation of the kernel `finite` checks.
pub(super) const FINITE_SPAN: usize = 64;

/// The leaves of a tree: vectors at equal distances.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub store: Store,
    /// The first element of the first leaf.
    pub first: usize,
    /// The distance from one leaf to the next, in elements.
    pub stride: usize,
    /// The number of leaves.
    pub leaves: usize,
}

/// Where the result of a tree goes.
#[derive(Clone)]
pub(super) struct Destination {
    store: Store,
    /// The first element of the result.
    offset: usize,
    /// The distance from one part of the result to the next, in elements. A sample or shard has a part each.
    lead: usize,
    /// The number of elements of a part.
    inner: usize,
    /// The number of elements that count. Those after them become 0. If it is `None`, all of them count.
    pub used: Option<usize>,
    /// The part of the memory that is bound, whose elements are counted. If it is `None`, all of it is.
    part: Option<Part>,
}

impl Destination {
    /// Returns the destination of these rows of a value.
    pub fn of(place: Place, ty: &Type, rows: &std::ops::Range<usize>) -> Self {
        let inner = ty.count().max(1);
        let lead = place.row(inner);
        let skip = if ty.lead == Lead::Sample { rows.start * inner } else { 0 };
        Self { store: place.store, offset: place.inside + skip, lead, inner, used: None, part: None }
    }

    /// Returns the destination of the rows of a value whose part of the memory is bound alone.
    pub fn within(part: Part, place: Place, ty: &Type) -> Self {
        Self { part: Some(part), ..Self::of(place, ty, &(0..0)) }
    }

    /// Returns a destination of `count` elements that lie one behind the other.
    pub fn vector(store: Store, offset: usize, count: usize) -> Self {
        Self { store, offset, lead: 0, inner: count, used: None, part: None }
    }
}

impl Emitter<'_> {
    /// Launches the tree over `leaves` vectors of `elements` each, in as many passes as it takes.
    pub(super) fn tree(
        &mut self,
        mut from: Source,
        elements: usize,
        to: &Destination,
        kind: ReduceKind,
        root: NodeId,
    ) -> Result<(), GraphError> {
        loop {
            let group = from.leaves.next_power_of_two().clamp(2, TREE_GROUP);
            let groups = from.leaves.div_ceil(group);
            if groups == 1 {
                return self.tree_pass(&from, elements, to, (group, kind), root);
            }
            let store = if from.store == Store::Temp(root) { Store::Temp2(root) } else { Store::Temp(root) };
            self.grow(store, 4 * (groups * elements) as u64);
            let level = Destination::vector(store, 0, elements);
            self.tree_pass(&from, elements, &level, (group, kind), root)?;
            from = Source { store, first: 0, stride: elements, leaves: groups };
        }
    }

    /// Launches one pass of a tree, which makes one vector of each `group` leaves.
    fn tree_pass(
        &mut self,
        from: &Source,
        elements: usize,
        to: &Destination,
        (group, kind): (usize, ReduceKind),
        root: NodeId,
    ) -> Result<(), GraphError> {
        let groups = from.leaves.div_ceil(group);
        let sizes = [elements, from.stride, from.first, to.offset, to.lead, to.inner];
        let quads = sizes.iter().all(|s| s.is_multiple_of(4));
        let (count, leaves) = (elements as u64, from.leaves as u64);
        let [elements, stride, first, offset, lead, inner] = sizes.map(|s| if quads { s / 4 } else { s });
        let kernel = self.kernel(&tree_kernel(group, kind, quads));
        let (grid, width) = self.grid(elements * groups, root)?;
        let params = TreeParams {
            elements: elements as u32,
            leaves: from.leaves as u32,
            leaf_stride: stride as u32,
            x_offset: first as u32,
            y_offset: offset as u32,
            y_group: elements as u32,
            y_lead: lead as u32,
            inner: inner as u32,
            width,
            groups: groups as u32,
            used: to.used.map_or(u32::MAX, |used| used as u32),
        };
        let bindings = vec![self.all(from.store), to.part.unwrap_or_else(|| self.all(to.store))];
        let kept = self.kept.clone();
        if to.lead == 0 && kept.iter().all(|(store, _)| *store != to.store) {
            self.kept.push((to.store, to.offset..to.offset + count as usize * groups));
        }
        self.launch(kernel, bindings, params.words(&[]), grid, root)?;
        self.kept = kept;
        let sums = groups as u64;
        self.works(WorkKind::Tree, count * (leaves - sums), 4 * count * (leaves + sums));
        Ok(())
    }

    /// Returns the buckets of the cut behind a segment, each with those of its values that kernels of the
    /// segment compute.
    pub(super) fn open_buckets(&self, segment: usize) -> BTreeMap<usize, BTreeSet<NodeId>> {
        let Program { graph, fusion, .. } = self.program;
        let units = &fusion.units[self.program.units_of(segment)];
        let roots: BTreeSet<NodeId> = units.iter().flat_map(|u| u.roots.iter().copied()).collect();
        let open = |&index: &usize| {
            let values = self.program.buckets()[index].values.iter();
            let sources = values.map(|&(id, _)| in_order(graph, fusion, graph.nodes[id].inputs[0]));
            (index, sources.filter(|id| roots.contains(id)).collect())
        };
        self.buckets_of.get(&segment).into_iter().flatten().map(open).collect()
    }

    /// Returns the memory of a bucket's sums over the shards of each subtree that lies in the run.
    pub(super) fn sums_of(&self, bucket: usize) -> Store {
        if self.run.is_whole() { Store::Sums(bucket) } else { Store::Blocks(bucket) }
    }

    /// Sums a bucket over the shards of each subtree that lies in the run, which is one subtree if the run is
    /// the whole batch.
    pub(super) fn sum_bucket(&mut self, segment: usize, index: usize) -> Result<(), GraphError> {
        let program = self.program;
        let Bucket { len, joined, used, ref values, .. } = program.buckets()[index];
        let (rest, root) = (len - joined, values[0].0);
        let is_gpu = self.target.machine == Machine::Gpu;
        let mut trees = self.trees_of_apart(index);
        if is_gpu {
            for (at, block) in self.run.blocks().into_iter().enumerate().filter(|_| rest > 0) {
                let first = block.start - self.run.first;
                let rest = self.trees_of_rest(index, first, block.len(), at * len);
                if rest.is_empty() {
                    self.clear_padding(index, at);
                }
                trees.extend(rest);
            }
        }
        let store = self.sums_of(index);
        self.trees(trees, store, root)?;
        for (at, block) in self.run.blocks().into_iter().enumerate().filter(|_| rest > 0 && !is_gpu) {
            let first = (block.start - self.run.first) * rest;
            let from = Source { store: Store::Partial(index), first, stride: rest, leaves: block.len() };
            let mut to = Destination::vector(store, at * len + joined, rest);
            to.used = Some(used - joined);
            self.tree(from, rest, &to, ReduceKind::Sum, root)?;
        }
        if !self.run.is_whole() && self.extent.blocks > 0 {
            let part = self.all(Store::Blocks(index));
            self.segments[segment].downloads.push((Slot::Blocks(index), part));
        }
        Ok(())
    }

    /// Returns the trees of the products of a bucket whose shards a GPU has stored apart. Those that lie side
    /// by side take one tree.
    fn trees_of_apart(&mut self, index: usize) -> Vec<Tree> {
        let Bucket { len, joined, .. } = self.program.buckets()[index];
        let mut all = self.apart.remove(&index).unwrap_or_default();
        all.sort_by_key(|product| product.first);
        let mut ranges: Vec<Apart> = Vec::new();
        for product in all {
            let is_next = |before: &&mut Apart| {
                before.first + before.count == product.first && before.join == product.join
            };
            match ranges.last_mut().filter(is_next) {
                Some(before) => before.count += product.count,
                None => ranges.push(product),
            }
        }
        let mut trees = Vec::new();
        for (at, block) in self.run.blocks().into_iter().enumerate() {
            let shard = block.start - self.run.first;
            for &Apart { first, count, join } in &ranges {
                let leaves = block.len().div_ceil(join);
                let from = Source {
                    store: Store::ApartOf(index),
                    first: shard / join * joined + first,
                    stride: joined,
                    leaves,
                };
                trees.push(Tree { from, elements: count, to: at * len + first });
            }
        }
        trees
    }

    /// Checks on the device whether all sums of a cut are finite. This is for sums that stay on the device;
    /// the host checks the others as it adds them.
    pub(super) fn check_finite(&mut self, segment: usize, cut: &[usize]) -> Result<(), GraphError> {
        let flag = self.flag(segment);
        if self.target.machine == Machine::Gpu {
            let memories: Vec<Store> = cut.iter().map(|&bucket| Store::Sums(bucket)).collect();
            let root = self.program.buckets()[cut[0]].values[0].0;
            self.check_memories(&memories, flag, root)?;
            self.segments[segment].downloads.push((Slot::Flag(segment), flag));
            return Ok(());
        }
        for &bucket in cut {
            let Bucket { len, ref values, .. } = self.program.buckets()[bucket];
            let sums = self.all(Store::Sums(bucket));
            self.check_numbers(sums, len, flag, values[0].0)?;
        }
        self.segments[segment].downloads.push((Slot::Flag(segment), flag));
        Ok(())
    }

    /// Launches the kernel that sets a flag if a number of a tensor of the state is not finite. A binding
    /// starts at an aligned offset, so that some of the numbers before the tensor are looked at too; they are
    /// new numbers of other tensors, or 0.
    pub(super) fn check_state(
        &mut self,
        place: Place,
        count: usize,
        flag: Part,
        root: NodeId,
    ) -> Result<(), GraphError> {
        let alignment = (self.target.binding_alignment as usize / 4).max(1);
        let first = place.inside / alignment * alignment;
        let count = place.inside + count - first;
        let numbers = self.part(place.store, 4 * first as u64, 4 * count as u64);
        self.check_numbers(numbers, count, flag, root)
    }

    /// Launches the kernel that sets a flag if any of `count` f32 is not finite. They are node `root`.
    pub(super) fn check_numbers(
        &mut self,
        numbers: Part,
        count: usize,
        flag: Part,
        root: NodeId,
    ) -> Result<(), GraphError> {
        let fours = count > 0 && count.is_multiple_of(4);
        let kernel = self.kernel(&finite_kernel(fours));
        let (grid, width) = self.grid(count.div_ceil(FINITE_SPAN), root)?;
        let params = FiniteParams { n: if fours { count / 4 } else { count } as u32, width };
        self.launch(kernel, vec![numbers, flag], params.words(&[]), grid, root)?;
        self.works(WorkKind::Finite, 0, 4 * count as u64);
        Ok(())
    }
}

/// Returns the kernel that looks whether numbers are finite, four at a time or one.
fn finite_kernel(fours: bool) -> Kernel {
    let constants = if fours {
        format!("const SPAN: u32 = {}u;\nalias Bits = vec4<u32>;\nalias Bad = vec4<bool>;\n", FINITE_SPAN / 4)
    } else {
        format!("const SPAN: u32 = {FINITE_SPAN}u;\nalias Bits = u32;\nalias Bad = bool;\n")
    };
    Kernel {
        name: "finite".into(),
        wgsl: module(&FiniteParams::declaration(0), &[], &constants, unisono_shaders::FINITE),
        bindings: vec![Access::Read, Access::ReadWrite],
    }
}

/// Returns the kernel that adds groups of so many leaves, or takes their maximum, four elements at a time or
/// one.
fn tree_kernel(group: usize, kind: ReduceKind, quads: bool) -> Kernel {
    let constants =
        format!("const GROUP: u32 = {group}u;\nconst MAXIMUM: bool = {};\n", kind == ReduceKind::Max);
    let words = [snippets::SUM, snippets::WORDS];
    let shared = if quads { &[snippets::SUM_QUADS][..] } else { &words[..] };
    Kernel {
        name: "tree".into(),
        wgsl: module(&TreeParams::declaration(0), shared, &constants, unisono_shaders::TREE),
        bindings: vec![Access::Read, Access::ReadWrite],
    }
}
