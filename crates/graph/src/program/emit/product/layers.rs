//! Launches of a product's kernel. A layer of the grid, which is one z, computes one matrix: a product, a
//! chunk of one, or the sum of the products of several shards.

use unisono_shaders::{Params, ProductParams, STARTS};

use super::few::few;
use super::kernel::{Family, Outcome, ProductKernel, Side, are_fours, family};
use super::shape::All;
use super::tile::tile;
use super::{Operand, Operands, Shape};
use crate::fuse::Store;
use crate::plan::target::{Machine, MatrixUnit};
use crate::program::emit::emitter::{Emitter, Part};
use crate::trace::{GraphError, NodeId};

/// The layers of a product's grid, and where their results go.
#[derive(Clone, Copy)]
pub(super) struct Layers {
    /// The rows of a result.
    pub m: usize,
    /// The columns of a result.
    pub n: usize,
    /// The number of layers.
    pub layers: usize,
    /// The first element of the first result.
    pub offset: usize,
    /// The elements from one result to the next.
    pub batch: usize,
    /// The elements from one chunk of a result to the next, or from one sum that waits to the next.
    pub chunk: usize,
    /// The chunks, or shards, that a workgroup computes in turn, or 0 if each chunk is a layer of its own.
    pub turns: usize,
    /// The chunks whose products an invocation for a CPU adds up in memory of its own, rounded up to a power
    /// of two, or 0 if it does not.
    pub sums: usize,
    /// The segments of the inner range, whose products an invocation for a CPU adds up one after the other,
    /// or 0 if it has none.
    pub segments: usize,
    /// The shards that layers sum, if they do.
    pub shards: Option<Shards>,
}

/// Shards of the run whose products are summed, `join` of them in each layer.
#[derive(Clone, Copy, Default)]
pub(super) struct Shards {
    pub first: usize,
    pub end: usize,
    pub join: usize,
}

impl Layers {
    /// Returns layers whose results are all at element 0.
    pub fn new(m: usize, n: usize, layers: usize) -> Self {
        Self { m, n, layers, offset: 0, batch: 0, chunk: 0, turns: 0, sums: 0, segments: 0, shards: None }
    }

    /// Returns the levels of the tree over chunks that are computed in turn, or 0 if they are not. With two
    /// levels, which are those of up to three chunks, no more than one sum waits at a time.
    pub fn levels(&self) -> usize {
        match self.turns {
            0 | 1 => 0,
            2 | 3 => 2,
            turns => (turns - 1).ilog2().max(2) as usize + 1,
        }
    }

    /// Returns the chunks of each product, and the number of products.
    fn chunks_and_products(&self, shape: &Shape) -> (usize, usize) {
        match self.shards {
            _ if self.turns > 0 || self.sums > 0 || self.segments > 0 => (1, self.layers),
            Some(shards) => (1, self.layers * shards.join),
            None => (shape.chunks(), self.layers / shape.chunks()),
        }
    }
}

/// What the layers of a launch multiply.
pub(in super::super) struct Span {
    /// The rows of a result.
    pub m: usize,
    /// The columns of a result.
    pub n: usize,
    /// The inner sizes of all products together.
    pub inner: u64,
    /// The inner size of one product.
    pub longest: u64,
    /// The number of results.
    pub results: u64,
    /// For each operand, whether all products have the same one.
    pub shared: [bool; 2],
}

/// The grid of a product's kernel without its layers.
struct Face {
    /// The workgroups in x and y.
    groups: [u32; 2],
    /// The tiles in a row of the result, for `matmul.wgsl`.
    columns: usize,
    /// The invocations in a row of the grid, for `matmul.wgsl`.
    width: u32,
}

impl Emitter<'_> {
    /// Launches one kernel for all layers, in as many launches as the device's limit on z takes.
    pub(super) fn layers(
        &mut self,
        operands: &Operands<'_>,
        mut bindings: Vec<Part>,
        c: &Layers,
    ) -> Result<(), GraphError> {
        let Operands { root, shape, epilogue, .. } = operands;
        if shape.contract {
            bindings.push(self.all(Store::ShardStarts));
        }
        let mut sides = self.sides(operands, c);
        let mut family = self.few(shape, c, &sides).unwrap_or_else(|| self.family(shape, c));
        if let Family::Panels(rows) = family
            && sides[1].element("").is_some()
            && let Some(rows) = self.packed_rows(operands, [c.m, c.n], rows)
        {
            family = Family::Panels(rows);
            sides[1] = Side::Packed;
            bindings[1] = self.packed(operands, c.n)?;
        }
        let panels = self.panels(family, c, &sides);
        let is_packed = matches!(sides[1], Side::Packed);
        if c.levels() > 2 {
            let bytes = 4 * (c.levels() * c.chunk) as u64;
            self.grow(Store::Temp(*root), bytes);
            bindings.push(self.part(Store::Temp(*root), 0, bytes));
        }
        let kernel = ProductKernel {
            family,
            shape,
            sides,
            result: self.outcome(operands, c),
            join: c.sums > 0 || c.segments > 0 || c.shards.is_some() && c.turns == 0,
            sums: c.sums > 0,
            segment: shape.k.checked_div(c.segments).unwrap_or(0),
            panels,
            levels: c.levels(),
            shards: c.shards.is_some(),
            epilogue: *epilogue,
            unit: self.unit(shape),
        };
        let kernel = self.kernel(&kernel.build());
        let face = self.face((family, panels), c, *root)?;
        let mut starts = epilogue.map_or_else(Vec::new, |epilogue| epilogue.starts.clone());
        starts.resize(STARTS, 0);
        let [x, y] = face.groups;
        let most = self.target.max_workgroups as usize;
        for first in (0..c.layers).step_by(most) {
            let mut params = params(operands, c, &face, first);
            if is_packed {
                params.b_offset = 0;
            }
            let layers = most.min(c.layers - first);
            let grid = match family {
                Family::Few { .. } => [layers as u32, x, y],
                _ => [x, y, layers as u32],
            };
            self.launch(kernel, bindings.clone(), params.words(&starts), grid, *root)?;
            self.multiplied(&self.span(shape, c), &bindings, (layers, c.layers));
        }
        Ok(())
    }

    /// Returns the family of the kernel that computes these layers. A GPU is filled by layers, of which there
    /// may be several for a product; the size of a product on a CPU is that of all of them.
    pub(super) fn family(&self, shape: &Shape, c: &Layers) -> Family {
        let (chunks, products) = c.chunks_and_products(shape);
        let batch = if self.target.machine == Machine::Gpu { products * chunks } else { products };
        if let Some(unit) = self.unit(shape) {
            let has_sums_in_registers = c.shards.is_some() && c.turns == 0;
            let is_gpu = self.target.machine == Machine::Gpu;
            let tile = tile(self.target, [c.m, c.n], batch, Some(unit));
            return Family::Tiles(tile.filter(|_| is_gpu && !has_sums_in_registers).unwrap_or(32));
        }
        match family(self.target, [c.m, c.n, shape.longest], batch) {
            // The sums of several shards fit into registers with those of the smallest tile alone.
            Family::Tiles(_) if c.shards.is_some() && c.turns == 0 => Family::Tiles(32),
            // Where a product is divided, its last part may be small. Only panels know segments and add up
            // chunks, and only tiles know turns.
            Family::Registers if c.segments > 0 || c.sums > 0 => Family::Panels(8),
            Family::Registers | Family::Panels(_) | Family::Few { .. } if c.turns > 0 => Family::Tiles(32),
            family => family,
        }
    }

    /// Returns the matrix unit that computes a product, if one does. No size decides it, since the result's
    /// bits depend on it.
    pub(super) fn unit(&self, shape: &Shape) -> Option<MatrixUnit> {
        self.target.unit.filter(|_| shape.halves)
    }

    /// Returns the kernel for few rows, where it can compute these layers and is the fastest.
    fn few(&self, shape: &Shape, c: &Layers, sides: &[Side<'_>; 2]) -> Option<Family> {
        let is_plain =
            c.turns == 0 && c.sums == 0 && c.segments == 0 && c.shards.is_none() && !shape.contract;
        if !is_plain || self.unit(shape).is_some() || sides.iter().any(|side| side.element("").is_none()) {
            return None;
        }
        let (_, products) = c.chunks_and_products(shape);
        few(self.target, [c.m, c.n, shape.longest], products, c.layers)
    }

    /// Returns how many of a run's entries a launch of a product may have, for the grid to have room for
    /// their tiles where all of them are one matrix. It is at least one, whose launch may be refused.
    pub(super) fn most_entries(&self, shape: &Shape) -> u64 {
        let [m, n, _] = shape.of_entries(1);
        let across = match shape.all {
            All::Rows => m,
            All::Columns => n,
            All::Apart => return u64::MAX,
        };
        let mut entries = self.extent.rows as u64;
        // Fewer entries may take smaller tiles, of which there is less room.
        loop {
            let [m, n, batch] = shape.of_entries(entries as usize);
            // As [`Self::face`] lays them out.
            let side = match self.family(shape, &Layers::new(m, n, batch)) {
                Family::Tiles(tile) => tile,
                Family::Registers if self.target.machine == Machine::Gpu => return entries,
                _ if shape.all == All::Columns => 32,
                Family::Panels(rows) => rows,
                // Segments and sums of chunks take panels of eight rows.
                _ => 8,
            };
            let most = u64::from(self.target.max_workgroups) * side as u64 / across.max(1) as u64;
            if entries <= most.max(1) {
                return entries;
            }
            entries = most.max(1);
        }
    }

    /// Returns the panels that an invocation of [`Family::Panels`] computes: two where it copies the left
    /// operand for each of them and enough invocations are left.
    fn panels(&self, family: Family, c: &Layers, [left, _]: &[Side<'_>; 2]) -> usize {
        let Family::Panels(rows) = family else { return 1 };
        let invocations = c.m.div_ceil(rows) * c.n.div_ceil(64) * c.layers;
        let is_copied = left.element("").is_none();
        if is_copied && c.n > 32 && invocations >= self.target.busy_workgroups as usize { 2 } else { 1 }
    }

    /// Returns what all layers multiply.
    fn span(&self, shape: &Shape, c: &Layers) -> Span {
        let (chunks, _) = c.chunks_and_products(shape);
        let samples: usize = match c.shards {
            Some(Shards { first, end, .. }) => self.run.sizes[first..end].iter().sum(),
            None => self.run.sizes.iter().sum(),
        };
        let inner =
            if shape.contract { samples * shape.rows_a_sample } else { shape.k * (c.layers / chunks) };
        Span {
            m: c.m,
            n: c.n,
            inner: inner as u64,
            longest: if shape.contract { inner } else { shape.k } as u64,
            results: c.layers as u64,
            shared: [shape.a_batch, shape.b_batch].map(|batch| batch == 0),
        }
    }

    /// Returns how the kernel reads each operand.
    fn sides<'a>(&self, operands: &Operands<'a>, c: &Layers) -> [Side<'a>; 2] {
        let shape = &operands.shape;
        let side = |operand: &Operand<'a>, row: usize, batch: usize| match operand.implicit {
            Some(implicit) => Side::Implicit(implicit),
            None => Side::Stored {
                quads: are_fours(&[row, operand.place.row(row), operand.place.inside, batch]),
                eights: [row, operand.place.row(row), operand.place.inside, batch]
                    .iter()
                    .all(|size| size.is_multiple_of(8)),
                half: self.program.stores.is_half(operand.place.store),
            },
        };
        let [a_row, b_row] = stored_rows(shape, c);
        [side(&operands.a, a_row, shape.a_batch), side(&operands.b, b_row, shape.b_batch)]
    }

    /// Returns how the kernel writes its results.
    fn outcome(&self, operands: &Operands<'_>, c: &Layers) -> Outcome {
        let Operands { root, shape, epilogue, .. } = operands;
        let half = self.program.stores.is_half(self.program.stores.place(*root).store);
        let quads = are_fours(&[c.n, c.offset, c.batch, c.chunk]);
        Outcome { quads, rounds: half || shape.rounds && epilogue.is_none(), half }
    }

    /// Returns the grid that covers a result with the tiles of a family.
    fn face(&self, (family, panels): (Family, usize), c: &Layers, root: NodeId) -> Result<Face, GraphError> {
        let square = |side: usize| Face {
            groups: [c.n.div_ceil(side) as u32, c.m.div_ceil(side) as u32],
            columns: 0,
            width: 0,
        };
        match family {
            Family::Registers => {
                let columns = c.n.div_ceil(4);
                let ([x, y, _], width) = self.grid(c.m.div_ceil(4) * columns, root)?;
                Ok(Face { groups: [x, y], columns, width })
            }
            Family::Panels(rows) => {
                let columns = c.n.div_ceil(32 * panels);
                Ok(Face { groups: [columns as u32, c.m.div_ceil(rows) as u32], ..square(32) })
            }
            Family::Few { columns, .. } => {
                Ok(Face { groups: [c.n.div_ceil(columns) as u32, 1], ..square(columns) })
            }
            Family::Tiles(tile) => Ok(square(tile)),
        }
    }
}

/// Returns the elements of a row of each operand, as it is stored.
fn stored_rows(shape: &Shape, c: &Layers) -> [usize; 2] {
    [if shape.transpose_a { c.m } else { shape.k }, if shape.transpose_b { shape.k } else { c.n }]
}

/// Returns the params of the launch that starts with layer `first`.
fn params(operands: &Operands<'_>, c: &Layers, face: &Face, first: usize) -> ProductParams {
    let Operands { a, b, shape, .. } = operands;
    let [a_row, b_row] = stored_rows(shape, c);
    let shards = c.shards.unwrap_or_default();
    ProductParams {
        m: c.m as u32,
        n: c.n as u32,
        k: shape.k as u32,
        chunks: c.turns.max(c.chunks_and_products(shape).0) as u32,
        a_offset: a.first() as u32,
        a_batch: a.batch(shape.a_batch) as u32,
        b_offset: b.first() as u32,
        b_batch: b.batch(shape.b_batch) as u32,
        c_offset: c.offset as u32,
        c_batch: c.batch as u32,
        c_chunk: c.chunk as u32,
        rows_a_sample: shape.rows_a_sample as u32,
        first_z: first as u32,
        columns: face.columns as u32,
        width: face.width,
        first_shard: shards.first as u32,
        end_shard: shards.end as u32,
        join: shards.join.max(c.sums).max(c.segments) as u32,
        a_step: a.place.row(a_row) as u32,
        b_step: b.place.row(b_row) as u32,
        zero: 0,
    }
}
