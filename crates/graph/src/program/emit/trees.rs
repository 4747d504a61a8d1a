//! Trees over shards on GPUs: one launch sums what is ready of a bucket, wherever the parts of the shards
//! lie, and one looks whether the sums of several buckets are finite.

use std::fmt::Write as _;

use unisono_shaders::{FiniteParams, Params, TreesParams, module, snippets};

use super::emitter::{Emitter, Part, Step};
use super::marks::filled;
use super::sums::{Destination, FINITE_SPAN, Source, TREE_GROUP};
use crate::fuse::{Bucket, Store, in_order};
use crate::plan::{Access, Kernel, WorkKind};
use crate::trace::{GraphError, NodeId, ReduceKind};

/// The words of a tree in the table of a launch.
const WORDS: usize = 6;

/// The most memories that a launch of trees reads. With 62 of them GPUs spill scalar registers.
const MOST_SOURCES: usize = 36;

/// A tree over shards: vectors, and the element at which their sum begins.
pub(super) struct Tree {
    pub from: Source,
    pub elements: usize,
    pub to: usize,
}

impl Emitter<'_> {
    /// Returns the trees of what is in a bucket behind its products, for the block of shards that begins at
    /// shard `first` of the run and whose sums begin at element `to`. What a kernel has put into a memory of
    /// its own is read there.
    pub(super) fn trees_of_rest(&self, index: usize, first: usize, leaves: usize, to: usize) -> Vec<Tree> {
        let program = self.program;
        let Bucket { len, joined, used, ref values, .. } = program.buckets()[index];
        let rest = len - joined;
        let mut trees: Vec<Tree> = Vec::new();
        for &(id, inside) in values.iter().filter(|(_, inside)| *inside >= joined) {
            let elements = program.graph.nodes[id].ty.count();
            let source = in_order(&program.graph, &program.fusion, program.graph.nodes[id].inputs[0]);
            let from = if self.alone.contains(&source) {
                Source { store: Store::Value(source), first: first * elements, stride: elements, leaves }
            } else {
                let first = first * rest + inside - joined;
                Source { store: Store::Partial(index), first, stride: rest, leaves }
            };
            match trees.last_mut() {
                Some(last)
                    if last.from.store == from.store && last.from.first + last.elements == from.first =>
                {
                    last.elements += elements;
                }
                _ => trees.push(Tree { from, elements, to: to + inside }),
            }
        }
        if let Some(last) = trees.last().filter(|_| used < len) {
            let from = Source { leaves: 0, ..last.from };
            trees.push(Tree { from, elements: len - used, to: to + used });
        }
        trees
    }

    /// Clears what pads the sums of a block of shards, where there is nothing but products before it.
    pub(super) fn clear_padding(&mut self, index: usize, block: usize) {
        let Bucket { len, used, .. } = self.program.buckets()[index];
        let store = self.sums_of(index);
        let part = self.part(store, 4 * (block * len + used) as u64, 4 * (len - used) as u64);
        self.step(Step::Clear(part));
    }

    /// Launches trees whose sums go to one memory, as many in a launch as it may bind sources.
    pub(super) fn trees(&mut self, trees: Vec<Tree>, to: Store, root: NodeId) -> Result<(), GraphError> {
        if trees.iter().any(|tree| tree.from.leaves > TREE_GROUP) {
            return trees.into_iter().try_for_each(|tree| self.tree_apart(tree, to, root));
        }
        let most = (self.target.storage_buffers.saturating_sub(2) as usize).clamp(1, MOST_SOURCES);
        let mut open: Vec<Tree> = Vec::new();
        let mut sources: Vec<Store> = Vec::new();
        for tree in trees {
            let is_new = !sources.contains(&tree.from.store);
            if is_new && sources.len() == most {
                self.launch_trees(&open, &sources, to, root)?;
                (open, sources) = (Vec::new(), Vec::new());
            }
            if !sources.contains(&tree.from.store) {
                sources.push(tree.from.store);
            }
            open.push(tree);
        }
        if open.is_empty() { Ok(()) } else { self.launch_trees(&open, &sources, to, root) }
    }

    /// Launches a tree of its own, which has as many leaves as it likes.
    fn tree_apart(&mut self, tree: Tree, to: Store, root: NodeId) -> Result<(), GraphError> {
        if tree.from.leaves == 0 {
            let part = self.part(to, 4 * tree.to as u64, 4 * tree.elements as u64);
            self.step(Step::Clear(part));
            return Ok(());
        }
        let destination = Destination::vector(to, tree.to, tree.elements);
        self.tree(tree.from, tree.elements, &destination, ReduceKind::Sum, root)
    }

    fn launch_trees(
        &mut self,
        trees: &[Tree],
        sources: &[Store],
        to: Store,
        root: NodeId,
    ) -> Result<(), GraphError> {
        let sizes = |tree: &Tree| [tree.from.first, tree.from.stride, tree.elements, tree.to];
        let quads = trees.iter().flat_map(sizes).all(|size| size.is_multiple_of(4));
        let unit = if quads { 4 } else { 1 };
        let leaves = trees.iter().map(|tree| tree.from.leaves).max().unwrap_or(1);
        let (mut table, mut n) = (Vec::with_capacity(WORDS * trees.len()), 0);
        let (mut flops, mut bytes) = (0, 0);
        for tree in trees {
            n += tree.elements / unit;
            let source = sources.iter().position(|store| *store == tree.from.store).unwrap_or(0);
            let Source { first, stride, leaves, .. } = tree.from;
            let words = [n, source, first / unit, stride / unit, leaves, tree.to / unit];
            table.extend(words.map(|word| word as u32));
            flops += tree.elements * leaves.saturating_sub(1);
            bytes += 4 * tree.elements * (leaves + 1);
        }
        let kernel = self.kernel(&kernel(sources.len(), leaves.next_power_of_two().max(2), quads));
        let (grid, width) = self.grid(n, root)?;
        let mut bindings = vec![self.table(table), self.all(to)];
        bindings.extend(sources.iter().map(|&store| self.all(store)));
        let params = TreesParams { n: n as u32, width };
        self.kept = trees.iter().map(|tree| (to, tree.to..tree.to + tree.elements)).collect();
        self.launch(kernel, bindings, params.words(&[]), grid, root)?;
        self.kept.clear();
        self.works(WorkKind::Tree, flops as u64, bytes as u64);
        Ok(())
    }

    /// Launches the kernel that sets a flag if a number in one of several memories is not finite, with as
    /// many memories in a launch as a kernel may bind. The number of f32 in each is a multiple of four.
    pub(super) fn check_memories(
        &mut self,
        memories: &[Store],
        flag: Part,
        root: NodeId,
    ) -> Result<(), GraphError> {
        let most = self.target.storage_buffers.saturating_sub(1).max(1) as usize;
        for memories in memories.chunks(most) {
            let parts: Vec<Part> = memories.iter().map(|&store| self.all(store)).collect();
            let longest = parts.iter().map(|part| part.bytes as usize / 4).max().unwrap_or(0);
            let bytes = parts.iter().map(|part| part.bytes).sum();
            let kernel = self.kernel(&finite_kernel(parts.len()));
            let (grid, width) = self.grid(longest.div_ceil(FINITE_SPAN), root)?;
            let params = FiniteParams { n: 0, width };
            let grid = [grid[0], grid[1], parts.len() as u32];
            let bindings = [&[flag], &parts[..]].concat();
            self.launch(kernel, bindings, params.words(&[]), grid, root)?;
            self.works(WorkKind::Finite, 0, bytes);
        }
        Ok(())
    }
}

/// Returns the kernel of trees that read so many memories, each tree with at most `group` leaves, four
/// elements at a time or one.
fn kernel(sources: usize, group: usize, quads: bool) -> Kernel {
    let mut constants = format!("const GROUP: u32 = {group}u;\n");
    let mut cases = String::new();
    for source in 0..sources {
        let binding = source + 3;
        let _ =
            writeln!(constants, "@group(0) @binding({binding}) var<storage, read> x{source}: array<Number>;");
        let _ = writeln!(cases, "        case {source}u: {{ return x{source}[i]; }}");
    }
    constants += &format!(
        "fn number(source: u32, i: u32) -> Number {{\n    switch source {{\n{cases}        \
         default: {{ return Number(0.0); }}\n    }}\n}}\n"
    );
    let words = [snippets::SUM, snippets::WORDS];
    let shared = if quads { &[snippets::SUM_QUADS][..] } else { &words[..] };
    let bindings = [&[Access::Read, Access::ReadWrite][..], &vec![Access::Read; sources]].concat();
    Kernel {
        name: "trees".into(),
        wgsl: module(&TreesParams::declaration(0), shared, &constants, unisono_shaders::TREES),
        bindings,
    }
}

/// Returns the kernel that looks whether all numbers of so many memories are finite.
fn finite_kernel(memories: usize) -> Kernel {
    let mut constants = format!("const SPAN: u32 = {}u;\n", FINITE_SPAN / 4);
    let mut cases = String::new();
    for memory in 0..memories {
        let binding = memory + 2;
        let _ = writeln!(
            constants,
            "@group(0) @binding({binding}) var<storage, read> x{memory}: array<vec4<u32>>;"
        );
        let _ = writeln!(
            cases,
            "        case {memory}u: {{\n            \
             let end = min(arrayLength(&x{memory}), (t + 1u) * SPAN);\n            \
             for (var i = t * SPAN; i < end; i++) {{ bad |= (x{memory}[i] & exponent) == exponent; }}\n        }}"
        );
    }
    let main = filled(unisono_shaders::FINITE_ALL, "//EACH", &cases);
    Kernel {
        name: "finite".into(),
        wgsl: module(&FiniteParams::declaration(0), &[], &constants, &main),
        bindings: [&[Access::ReadWrite][..], &vec![Access::Read; memories]].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::marks::tests::has_mark;
    use super::*;

    /// A kernel without the cases would find all numbers finite.
    #[test]
    fn the_check_of_finite_numbers_has_a_case_for_each_memory() {
        for memories in [1, 7] {
            let text = finite_kernel(memories).wgsl;
            assert!(!has_mark(&text) && text.matches("bad |=").count() == memories, "{text}");
        }
    }
}
