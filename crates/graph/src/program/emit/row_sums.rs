//! Launches of row sums, the gradients of embeddings: the ids are sorted with their positions, and then each
//! id's rows are summed where they stand side by side. What this takes depends on the number of positions,
//! and on the number of rows only in that the result is cleared.

use std::fmt::Write as _;
use std::ops::Range;

use unisono_shaders::{Params, RowSumsParams, SortParams, module, snippets};

use super::emitter::{Emitter, Part, Step};
use crate::fuse::{Place, Store, in_order};
use crate::plan::target::Machine;
use crate::plan::{Access, Kernel};
use crate::trace::{GraphError, NodeId};
use crate::values::Lead;
use crate::values::tree::PRODUCT_CHUNK;

/// The bytes of an id and its position.
const PAIR_BYTES: usize = 8;

/// What the launches of row sums share.
struct Sums {
    root: NodeId,
    /// The sorted pairs.
    order: Part,
    /// What is summed, `[positions, columns]`.
    from: Place,
    rows: usize,
    columns: usize,
    /// The number of all positions.
    n: usize,
    /// The number of positions of a sample.
    positions: usize,
    has_shards: bool,
}

/// Where a launch puts its sums.
struct Target {
    store: Store,
    /// The first element of the first result.
    offset: usize,
    /// The elements from one shard's result to the next. `None` if the shards are summed.
    batch: Option<usize>,
    /// The shards of the run that are summed.
    shards: Range<usize>,
}

impl Emitter<'_> {
    /// Launches the sums of rows by their ids.
    pub(super) fn row_sums(&mut self, root: NodeId) -> Result<(), GraphError> {
        let program = self.program;
        let node = &program.graph.nodes[root];
        let place = |id| program.stores.place(in_order(&program.graph, &program.fusion, id));
        let [ids, rows] = [node.inputs[0], node.inputs[1]];
        let ty = &program.graph.nodes[ids].ty;
        let (n, [count, columns]) = (self.extent.count(ty), [node.ty.dims[0], node.ty.dims[1]]);
        let order = self.sorted(root, place(ids), n, count)?;
        let sums = Sums {
            root,
            order,
            from: place(rows),
            rows: count,
            columns,
            n,
            positions: ty.count(),
            has_shards: ty.lead == Lead::Sample,
        };
        let shards = 0..self.extent.shards;
        match place(root) {
            Place { store: Store::Joined(bucket), inside, .. } => {
                let len = program.buckets()[bucket].len;
                let store = self.sums_of(bucket);
                for (at, block) in self.run.blocks().into_iter().enumerate() {
                    let shards = block.start - self.run.first..block.end - self.run.first;
                    let to = Target { store, offset: at * len + inside, batch: None, shards };
                    self.sum_rows(&sums, &to)?;
                }
                Ok(())
            }
            to => {
                let batch = Some(to.row(count * columns));
                self.sum_rows(&sums, &Target { store: to.store, offset: to.inside, batch, shards })
            }
        }
    }

    /// Sorts the ids of all positions. Returns the memory with the pairs of each id and its position.
    fn sorted(&mut self, root: NodeId, ids: Place, n: usize, rows: usize) -> Result<Part, GraphError> {
        // Any tiles give the same order. On a GPU, small ones keep many invocations busy. On a CPU, to sort a
        // large one takes a fraction of the time that it takes to merge small ones.
        let (mut tile, ways) = match self.target.machine {
            Machine::Cpu => (1 << 16, 4),
            Machine::Gpu => (1024, 8),
        };
        let [mut from, mut to] = [Store::Temp(root), Store::Temp2(root)];
        let bytes = (n.max(1) * PAIR_BYTES) as u64;
        self.grow(from, bytes);
        let (grid, width) = self.grid(n, root)?;
        let offset = ids.inside as u32;
        let params =
            |tile: usize| SortParams { n: n as u32, width, rows: rows as u32, tile: tile as u32, offset };
        let mut bindings = vec![self.all(ids.store), self.all(from)];
        let constants = format!("const TILE: u32 = {tile}u;\n");
        if self.target.machine == Machine::Cpu {
            self.grow(to, bytes);
            bindings.push(self.all(to));
            let passes = (usize::BITS - rows.leading_zeros()).div_ceil(8).max(1);
            let constants = format!("{constants}const PASSES: u32 = {passes}u;\n");
            let kernel = self.sort_kernel("sort_digits", &constants, unisono_shaders::SORT_DIGITS, 2);
            let tiles = n.div_ceil(tile).max(1) as u32;
            self.launch(kernel, bindings, params(tile).words(&[]), [tiles, 1, 1], root)?;
        } else {
            let kernel = self.sort_kernel("sort_tiles", &constants, unisono_shaders::SORT_TILES, 1);
            self.launch(kernel, bindings, params(tile).words(&[]), grid, root)?;
        }
        while tile < n {
            self.grow(to, bytes);
            let bindings = vec![self.all(from), self.all(to)];
            let constants = format!("const WAYS: u32 = {ways}u;\n");
            let kernel = self.sort_kernel("sort_merge", &constants, unisono_shaders::SORT_MERGE, 1);
            self.launch(kernel, bindings, params(tile).words(&[]), grid, root)?;
            std::mem::swap(&mut from, &mut to);
            tile *= ways;
        }
        Ok(self.all(from))
    }

    /// Adds a sorting kernel to the plan, made from the text of a shader file and its constants. It reads one
    /// buffer and writes the `written` ones behind it. Returns the kernel's number.
    fn sort_kernel(&mut self, name: &str, constants: &str, file: &str, written: usize) -> usize {
        self.kernel(&Kernel {
            name: name.into(),
            wgsl: module(&SortParams::declaration(0), &[], constants, file),
            bindings: [vec![Access::Read], vec![Access::ReadWrite; written]].concat(),
        })
    }

    /// Clears the result and launches the sums of some shards.
    fn sum_rows(&mut self, sums: &Sums, to: &Target) -> Result<(), GraphError> {
        let count = sums.rows * sums.columns;
        let results = if to.batch.is_some() && sums.has_shards { self.extent.shards } else { 1 };
        for result in 0..results {
            let offset = to.offset + result * to.batch.unwrap_or_default();
            let part = self.part(to.store, 4 * offset as u64, 4 * count as u64);
            self.step(Step::Clear(part));
        }
        let first: usize = self.run.sizes[..to.shards.start].iter().sum();
        let last: usize = self.run.sizes[..to.shards.end].iter().sum();
        let longest = self.run.sizes[to.shards.clone()].iter().max().copied().unwrap_or(0);
        let positions = if sums.has_shards { longest * sums.positions } else { sums.n };
        let chunk_bits = bits(positions.div_ceil(PRODUCT_CHUNK));
        let join = to.batch.is_none();
        let levels = chunk_bits + if join { bits(to.shards.len()) } else { 0 };
        let quads = sums.columns.div_ceil(4);
        let are_fours = |sizes: &[usize]| sizes.iter().all(|size| size.is_multiple_of(4));
        let half = self.program.stores.is_half(sums.from.store);
        let kernel = RowSumsKernel {
            levels,
            join,
            has_shards: sums.has_shards,
            half,
            reads_quads: are_fours(&[sums.columns, sums.from.inside]),
            writes_quads: are_fours(&[sums.columns, to.offset, to.batch.unwrap_or_default()]),
        };
        let kernel = self.kernel(&kernel.build());
        let (grid, width) = self.grid(sums.n * quads, sums.root)?;
        let params = RowSumsParams {
            n: sums.n as u32,
            width,
            quads: quads as u32,
            columns: sums.columns as u32,
            rows: sums.rows as u32,
            first: if sums.has_shards { first * sums.positions } else { 0 } as u32,
            end: if sums.has_shards { last * sums.positions } else { sums.n } as u32,
            first_shard: to.shards.start as u32,
            end_shard: to.shards.end as u32,
            positions: sums.positions as u32,
            chunk_bits: chunk_bits as u32,
            b_offset: sums.from.inside as u32,
            c_offset: to.offset as u32,
            c_batch: if sums.has_shards { to.batch.unwrap_or_default() } else { 0 } as u32,
            zero: 0,
        };
        let mut bindings = vec![sums.order, self.all(sums.from.store), self.all(to.store)];
        self.touch(sums.order.store);
        if sums.has_shards {
            bindings.push(self.all(Store::ShardStarts));
        }
        self.launch(kernel, bindings, params.words(&[]), grid, sums.root)
    }
}

/// Returns the number of bits that number so many things.
fn bits(count: usize) -> usize {
    count.next_power_of_two().ilog2() as usize
}

/// Everything that the text of the kernel depends on.
struct RowSumsKernel {
    /// The levels of the tree over chunks and shards.
    levels: usize,
    join: bool,
    has_shards: bool,
    /// Whether the rows are f16.
    half: bool,
    reads_quads: bool,
    writes_quads: bool,
}

impl RowSumsKernel {
    fn build(&self) -> Kernel {
        use snippets::*;
        let rows = [[B_WORDS, B_QUADS], [B_HALF_WORDS, B_HALF_QUADS]];
        let shared = [
            SUM_QUADS,
            KEPT,
            rows[usize::from(self.half)][usize::from(self.reads_quads)],
            if self.writes_quads { C_QUADS } else { C_WORDS },
            if self.has_shards { SHARD_RANGE } else { SHARD_RANGE_NONE },
        ];
        let constants = format!(
            "const CHUNK: u32 = {PRODUCT_CHUNK}u;\nconst JOIN: bool = {};\nconst SHARDS: bool = {};\n{}",
            self.join,
            self.has_shards,
            self.tree(),
        );
        let wgsl = module(&RowSumsParams::declaration(0), &shared, &constants, unisono_shaders::ROW_SUMS);
        let mut bindings = vec![Access::Read, Access::Read, Access::ReadWrite];
        bindings.extend(self.has_shards.then_some(Access::Read));
        let enable = if self.half { "enable f16;\n" } else { "" };
        Kernel { name: "embed_gradient".into(), wgsl: format!("{enable}{wgsl}"), bindings }
    }

    /// Returns the functions of the tree. Its sums are named variables, since some compilers put arrays into
    /// memory.
    fn tree(&self) -> String {
        let (mut sums, mut close, mut total) = (String::new(), String::new(), String::new());
        for level in 0..self.levels {
            let _ = writeln!(sums, "var<private> sum{level}: vec4<f32>;");
            let _ = writeln!(
                close,
                "    if level == {level}u {{ sum{level} = all; }} else if level > {level}u {{ \
                 all = sum_add(sum{level}, all); sum{level} = vec4<f32>(); }}"
            );
            let _ = writeln!(total, "    all = sum_add(sum{level}, all);");
        }
        format!(
            "{sums}fn close(sum: vec4<f32>, level: u32) {{\n    var all = sum;\n{close}}}\n\
             fn total(sum: vec4<f32>) -> vec4<f32> {{\n    var all = sum;\n{total}    return all;\n}}\n"
        )
    }
}
