//! The kernel of a group of units that go row by row, for GPUs. A workgroup has some rows. It reduces them as
//! `staged` does, a chunk of a row for each invocation in the same serial order, joins the chunks of a row in
//! the order of the tree, and goes over the rows again for each reduction and for the maps behind them. What
//! is read again is mostly in a cache still. A row's numbers stay in workgroup memory.

use unisono_shaders::{ReduceParams, snippets};

use super::affine::Affine;
use super::index::{Index, regroup};
use super::staged::slabs;
use super::writer::Writer;
use super::{Bound, WORKGROUP, joined};
use crate::fuse::{Fusion, RowGroup, Stores, Unit, UnitKind};
use crate::trace::{Graph, Lowering, NodeId, ReduceKind};
use crate::values::tree::SUM_CHUNK;

/// A kernel of rows, and the unit of which it is the launch.
#[derive(Clone, Debug)]
pub struct RowKernel {
    /// The kernel.
    pub bound: Bound,
    /// The rows of a workgroup.
    pub rows: usize,
}

/// The kernel that is being written.
struct Rows<'a, 'b> {
    graph: &'a Graph,
    group: &'b RowGroup,
    writer: Writer<'a>,
    /// The body so far.
    text: String,
    /// The number of phases so far.
    phases: usize,
    /// The chunks of a row.
    chunks: usize,
    /// The rows of a workgroup.
    own: usize,
    /// Whether invocations have to wait before they read workgroup memory.
    is_dirty: bool,
}

/// Returns the unit that a group is for the writer: a map whose values are those of the rows' elements.
pub fn row_unit(graph: &Graph, fusion: &Fusion, group: &RowGroup) -> Unit {
    let is_element = |root: &NodeId| graph.nodes[*root].ty.count() > group.rows.count;
    let roots = group.units.iter().flat_map(|&at| fusion.units[at].roots.iter().copied());
    let segment = fusion.units[group.units[0]].segment;
    Unit { kind: UnitKind::Map, roots: roots.filter(is_element).collect(), segment, product: None }
}

/// Returns the kernel of a group, whose unit is given. Its params are [`ReduceParams`].
pub fn row_kernel(
    graph: &Graph,
    fusion: &Fusion,
    stores: &Stores,
    (group, unit): (&RowGroup, &Unit),
    name: String,
) -> RowKernel {
    let chunks = group.rows.inner.div_ceil(SUM_CHUNK);
    let own = WORKGROUP as usize / chunks;
    let mut writer = Writer::new(graph, fusion, stores, unit);
    writer.snippets.insert(snippets::SUM);
    let mut rows =
        Rows { graph, group, writer, text: String::new(), phases: 0, chunks, own, is_dirty: false };
    rows.load_held();
    for &at in &group.units {
        for &root in &fusion.units[at].roots {
            if let Lowering::Reduce(reduction) = &fusion.lowering[root] {
                rows.reduce(root, reduction.kind);
            } else if graph.nodes[root].ty.count() == group.rows.count {
                rows.map_row(root);
            }
        }
    }
    rows.map_elements(unit);
    let body = format!(
        "    let lane = id.x % {WORKGROUP}u;\n    \
         let first_row = (id.x / {WORKGROUP}u + id.y * (params.width / {WORKGROUP}u)) * {own}u;\n    \
         let own_row = min(first_row + lane, params.n - 1u);\n{}",
        rows.text
    );
    RowKernel { bound: rows.writer.finish::<ReduceParams>(name, &body), rows: own }
}

impl Rows<'_, '_> {
    /// Declares an array of workgroup memory with a number of this value for each row, and returns its name.
    fn array(&mut self, id: NodeId) -> String {
        let (name, ty) = (format!("h{}", self.phases), self.graph.nodes[id].ty.dtype.wgsl());
        self.phases += 1;
        self.writer.declared += &format!("var<workgroup> {name}: array<{ty}, {}>;\n", self.own);
        name
    }

    /// Returns the row of an invocation under a name of this phase: names are known within their phase only.
    fn row(&self) -> String {
        format!("o{}", self.phases)
    }

    /// Lets invocations wait until all have written to workgroup memory.
    fn settle(&mut self) {
        if self.is_dirty {
            self.text += "    workgroupBarrier();\n";
            self.is_dirty = false;
        }
    }

    /// Loads the numbers that rows read of other units.
    fn load_held(&mut self) {
        for &id in &self.group.held {
            let array = self.array(id);
            let row = self.row();
            self.writer.enter_phase(&row, "lane", "        ");
            let value = self.writer.value(id, &Index::named(&row));
            self.row_phase(&array, &value, "");
            self.writer.hold(id, &array);
        }
    }

    /// Writes a phase in which an invocation computes the number of a row.
    fn row_phase(&mut self, array: &str, value: &str, store: &str) {
        let body = std::mem::take(&mut self.writer.body);
        let stored = if store.is_empty() {
            String::new()
        } else {
            format!("        if first_row + lane < params.n {{\n    {store}        }}\n")
        };
        self.text += &format!(
            "    if lane < {}u {{\n        let {} = own_row;\n{body}        let own = {value};\n        {array}[lane] = own;\n{stored}    }}\n",
            self.own,
            self.row()
        );
        self.is_dirty = true;
    }

    /// Stores a row's number, if others need it.
    fn stored_row(&mut self, root: NodeId) -> String {
        if !self.group.stored.contains(&root) {
            return String::new();
        }
        let row = self.row();
        self.writer.enter_phase(&row, "lane", "        ");
        self.writer.store(root, &["own".into()])
    }

    /// Computes a map of rows.
    fn map_row(&mut self, root: NodeId) {
        // The lane that writes a row's number is the one that reads it here.
        let array = self.array(root);
        let row = self.row();
        self.writer.enter_phase(&row, "lane", "        ");
        let value = self.writer.compute(root, &Index::named(&row));
        let store = self.stored_row(root);
        self.row_phase(&array, &value, &store);
        self.writer.hold(root, &array);
    }

    /// Returns the coordinates of element `lane` of a four, in a type whose elements are those of rows.
    fn coords(&self, dims: &[usize], lane: usize, number: usize) -> Vec<Affine> {
        let rows = self.group.rows;
        let row = Affine::name(format!("o{number}"), None);
        let column = Affine::name(format!("c{number}"), Some(rows.inner)).plus(lane);
        let mut coords = vec![row.divided(rows.count)];
        coords.extend(regroup(&[row.remainder(rows.count), column], &[rows.count, rows.inner], dims));
        coords
    }

    /// Reduces each row: a chunk for each invocation, then the tree over the chunks.
    fn reduce(&mut self, root: NodeId, kind: ReduceKind) {
        if !self.group.rows.are_staged() {
            return self.reduce_short(root, kind);
        }
        self.settle();
        let (graph, rows, chunks) = (self.graph, self.group.rows, self.chunks);
        let input = graph.nodes[root].inputs[0];
        let array = self.array(root);
        let number = self.phases;
        let (here, place) = (format!("i{number}"), format!("r{number}"));
        self.writer.snippets.insert(snippets::STAGED);
        self.writer.enter_phase(&here, &place, "            ");
        let mut values = Vec::new();
        for lane in 0..4 {
            let ty = &graph.nodes[input].ty;
            let coords = self.coords(&ty.dims, lane, number);
            let index = self.writer.enter_row(lane, ty, coords);
            values.push(self.writer.value(input, &index));
        }
        let join = match kind {
            ReduceKind::Sum => "sum_add",
            ReduceKind::Max => "max_of",
        };
        let loads = std::mem::take(&mut self.writer.body);
        let (row, chunk) = (rows.inner / 4, SUM_CHUNK / 4);
        if !self.writer.declared.contains("parts:") {
            self.writer.declared += &format!("var<workgroup> parts: array<f32, {WORKGROUP}>;\n");
        }
        let load = format!(
            "            let pair = lane / 8u + 8u * d;
            let first = firsts[pair] + lane % 8u + slab;
            let end = ends[pair];
            let {here} = min(first, end - 1u);
            let {place} = min(pair / {chunks}u, {last}u);
            let o{number} = min(first_row + {place}, params.n - 1u);
            let c{number} = ({here} - o{number} * {row}u) * 4u;
{loads}            fours[d] = select(vec4<f32>(start), vec4<f32>({fours}), first < end);
",
            last = self.own - 1,
            fours = values.join(", "),
        );
        self.text += &format!(
            "    {{
    let local = min(lane / {chunks}u, {last}u);
    let chunk = lane % {chunks}u;
    let o = min(first_row + local, params.n - 1u);
    firsts[lane] = o * {row}u + chunk * {chunk}u;
    ends[lane] = o * {row}u + min({row}u, (chunk + 1u) * {chunk}u);
    workgroupBarrier();
{reduced}    parts[lane] = acc;
    }}
    workgroupBarrier();
",
            last = self.own - 1,
            reduced = slabs(kind, row.min(chunk), &load),
        );
        let mut value = "parts[lane]".to_owned();
        if chunks > 1 {
            // Neighbours are paired level by level. What has no neighbour stays as it is.
            self.text += &format!(
                "    if lane < {own}u {{
        for (var apart = 1u; apart < {chunks}u; apart *= 2u) {{
            for (var j = 0u; j + apart < {chunks}u; j += 2u * apart) {{
                let at = lane * {chunks}u + j;
                parts[at] = {join}(parts[at], parts[at + apart]);
            }}
        }}
    }}\n",
                own = self.own,
            );
            value = format!("parts[lane * {chunks}u]");
        }
        let store = self.stored_row(root);
        self.row_phase(&array, &value, &store);
        self.writer.hold(root, &array);
    }

    /// Reduces each row by one invocation.
    fn reduce_short(&mut self, root: NodeId, kind: ReduceKind) {
        let input = self.graph.nodes[root].inputs[0];
        let array = self.array(root);
        let number = self.phases;
        let here = format!("i{number}");
        self.writer.enter_phase(&here, "lane", "        ");
        let ty = &self.graph.nodes[input].ty;
        let coords = self.coords(&ty.dims, 0, number);
        let index = self.writer.enter_element(ty, coords);
        let value = self.writer.value(input, &index);
        let (start, joined) = joined(kind);
        let joined = joined.replace("acc", &format!("acc{number}")).replace('$', &value);
        let loads = std::mem::take(&mut self.writer.body);
        // An invocation reads the numbers of its own row alone, which it wrote itself.
        self.text += &format!(
            "    var acc{number} = {start};
    for (var c{number} = 0u; c{number} < {inner}u; c{number}++) {{
        let o{number} = own_row;
        let {here} = own_row * {inner}u + c{number};
{loads}        acc{number} = {joined};
    }}
",
            inner = self.group.rows.inner,
        );
        let store = self.stored_row(root);
        self.row_phase(&array, &format!("acc{number}"), &store);
        self.writer.hold(root, &array);
    }

    /// Computes the elements that others need.
    fn map_elements(&mut self, unit: &Unit) {
        let stored: Vec<NodeId> =
            unit.roots.iter().copied().filter(|root| self.group.stored.contains(root)).collect();
        if stored.is_empty() {
            return;
        }
        self.settle();
        let lanes = if self.group.rows.are_staged() { 4 } else { 1 };
        self.phases += 1;
        let (row, number) = (self.group.rows.inner / lanes, self.phases);
        let (here, place) = (format!("i{number}"), format!("r{number}"));
        self.writer.enter_phase(&here, &place, "        ");
        let mut results = vec![Vec::new(); stored.len()];
        for lane in 0..lanes {
            for (&root, values) in stored.iter().zip(&mut results) {
                let ty = &self.graph.nodes[root].ty;
                let coords = self.coords(&ty.dims, lane, number);
                let index = if lanes == 1 {
                    self.writer.enter_element(ty, coords)
                } else {
                    self.writer.enter_row(lane, ty, coords)
                };
                values.push(self.writer.value(root, &index));
            }
        }
        let body = std::mem::take(&mut self.writer.body);
        let stores: String =
            stored.iter().zip(&results).map(|(&root, values)| self.writer.store(root, values)).collect();
        self.text += &format!(
            "    let elements{number} = min({own}u, params.n - min(first_row, params.n)) * {row}u;
    for (var e = lane; e < elements{number}; e += {WORKGROUP}u) {{
        let {here} = first_row * {row}u + e;
        let {place} = e / {row}u;
        let o{number} = first_row + {place};
        let c{number} = e % {row}u * {lanes}u;
{body}{stores}    }}\n",
            own = self.own,
        );
    }
}
