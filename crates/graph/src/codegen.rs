//! WGSL of fused kernels: an expression for each value a unit stores, loads at its edges.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use unisono_shaders::{Snippet, snippets};

use crate::fuse::{Fusion, Unit, UnitKind};
use crate::graph::{Graph, NodeId};
use crate::op::{Expression, Lowering, ReduceKind, View};
use crate::plan::{Access, Kernel};
use crate::store::{Place, Store, Stores};
use crate::types::{DType, Lead, Type, strides};

/// Invocations of a workgroup of fused kernels.
pub const WORKGROUP: u32 = 64;

/// A kernel and what its bindings are.
#[derive(Clone, Debug)]
pub struct Bound {
    /// The module.
    pub kernel: Kernel,
    /// What is bound, in the order of [`Kernel::bindings`].
    pub stores: Vec<Binding>,
}

/// One storage buffer of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// The memory.
    pub store: Store,
    /// Elements of a row, where each sample has one: such a binding may be cut by rows.
    pub row: Option<usize>,
}

/// What a kernel is called: the ops in it.
pub fn unit_name(graph: &Graph, fusion: &Fusion, unit: &Unit) -> String {
    let mut inside = BTreeSet::new();
    for &root in &unit.roots {
        let mut pending = vec![root];
        while let Some(id) = pending.pop() {
            let ends = |i: NodeId| i != root && (fusion.stored.contains(&i) || matches!(fusion.lowering[i], Lowering::SumShards));
            if ends(id) && !unit.roots.contains(&id) {
                continue;
            }
            if inside.insert(id) && (unit.kind != UnitKind::Product) {
                pending.extend(graph.nodes[id].inputs.iter().filter(|&&i| !ends(i)));
            }
        }
    }
    let dense = |id: &NodeId| unit.kind != UnitKind::Map && unit.roots.contains(id);
    let shown = |id: &NodeId| fusion.lowering[*id].is_inline() && !dense(id);
    let names: Vec<&str> = inside.iter().filter(|id| shown(id)).map(|&id| graph.nodes[id].op.name()).collect();
    match (unit.kind, names.is_empty()) {
        (UnitKind::Map, true) => "copy".into(),
        (UnitKind::Map, false) => format!("fused[{}]", names.join(", ")),
        (_, true) => graph.nodes[unit.roots[0]].op.name().into(),
        (_, false) => format!("{}[{}]", graph.nodes[unit.roots[0]].op.name(), names.join(", ")),
    }
}

/// The kernel of a map unit. Params: n, elements in a row of the grid, first sample's row.
pub fn map_kernel(graph: &Graph, fusion: &Fusion, stores: &Stores, unit: &Unit) -> Bound {
    let mut writer = Writer::new(graph, fusion, stores, unit);
    let results: Vec<String> = unit
        .roots
        .iter()
        .map(|&root| writer.value(root, &Index::Linear("i".into())))
        .collect();
    let mut stored = String::new();
    for (&root, result) in unit.roots.iter().zip(results) {
        let binding = writer.bind(root, Access::ReadWrite);
        let address = writer.address(root, &Index::Linear("i".into()));
        let _ = writeln!(stored, "    b{binding}[{address}] = {result};");
    }
    let body = format!(
        "    let i = id.x + id.y * params.width;\n    if i >= params.n {{ return; }}\n{}{stored}",
        writer.body
    );
    writer.finish(unit_name(graph, fusion, unit), "n: u32, width: u32, row: u32, zero: u32", &body)
}

/// The kernel of a reduction: one invocation a result and chunk. Params: results, width of the grid, chunks, first row.
///
/// `chunked`: results go to `[chunks, results]` scratch for the `tree` kernel to finish.
pub fn reduce_kernel(graph: &Graph, fusion: &Fusion, stores: &Stores, unit: &Unit, chunked: bool) -> Bound {
    let root = unit.roots[0];
    let input = graph.nodes[root].inputs[0];
    let Lowering::Reduce(reduction) = &fusion.lowering[root] else { unreachable!("a reduce unit holds a reduction") };
    let from = &graph.nodes[input].ty;
    let mut writer = Writer::new(graph, fusion, stores, unit);
    writer.snippets.insert(snippets::SUM);
    writer.indent = "        ".into();
    let own = reduced_index(from, &graph.nodes[root].ty, &reduction.axes, reduction.samples);
    let value = writer.value(input, &own.index);
    let (start, combined) = match reduction.kind {
        ReduceKind::Sum => ("0.0", format!("sum_add(acc, {value})")),
        ReduceKind::Max => ("bitcast<f32>(0xff800000u | params.zero)", format!("max_of(acc, {value})")),
    };
    let chunk = crate::tree::SUM_CHUNK;
    let loop_body = std::mem::take(&mut writer.body);
    let segments = reduction.samples.then(|| writer.bind_as(Binding { store: Store::Segments, row: None }, Access::Read, "u32"));
    let (prelude, length) = match segments {
        Some(table) => (
            format!(
                "    let shard = o / {results}u;\n    let first = b{table}[shard];\n    \
                 let length = (b{table}[shard + 1u] - first) * {inner}u;\n    let start = first - params.row;\n",
                results = graph.nodes[root].ty.count(),
                inner = own.inner,
            ),
            "length".to_string(),
        ),
        None => (String::new(), format!("{}u", own.inner)),
    };
    let (binding, address) = if chunked {
        let scratch = Binding { store: Store::Temp(root), row: None };
        (writer.bind_as(scratch, Access::ReadWrite, "f32"), "t".to_string())
    } else {
        (writer.bind(root, Access::ReadWrite), writer.address(root, &Index::Linear("o".into())))
    };
    let body = format!(
        "    let t = id.x + id.y * params.width;\n    if t >= params.n * params.chunks {{ return; }}\n    \
         let o = t % params.n;\n    let chunk = t / params.n;\n{prelude}    \
         let end = min({length}, (chunk + 1u) * {chunk}u);\n    var acc = {start};\n    \
         for (var r = chunk * {chunk}u; r < end; r++) {{\n{loop_body}        acc = {combined};\n    }}\n    \
         b{binding}[{address}] = acc;\n"
    );
    writer.finish(unit_name(graph, fusion, unit), "n: u32, width: u32, chunks: u32, row: u32, zero: u32", &body)
}

struct Reduced {
    index: Index,
    /// Reduced elements: of the axes, or of one sample where samples are summed too.
    inner: usize,
}

/// Where element `r` of what is reduced to result `o` is in the operand.
fn reduced_index(from: &Type, to: &Type, axes: &[usize], samples: bool) -> Reduced {
    let axis_dims: Vec<usize> = axes.iter().map(|&a| from.dims[a]).collect();
    let inner: usize = axis_dims.iter().product();
    let trailing = axes.iter().rev().enumerate().all(|(i, &a)| a == from.dims.len() - 1 - i);
    if !samples && trailing {
        return Reduced { index: Index::Linear(format!("(o * {inner}u + r)")), inner };
    }
    let results = to.count();
    let kept: Vec<usize> = (0..from.dims.len()).filter(|a| !axes.contains(a)).collect();
    let kept_dims: Vec<usize> = kept.iter().map(|&a| from.dims[a]).collect();
    if samples && axes.is_empty() {
        return Reduced { index: Index::Linear(format!("((start + r) * {results}u + o % {results}u)")), inner };
    }
    let (r, lead) = if samples {
        (format!("(r % {inner}u)"), Some(format!("(start + r / {inner}u)")))
    } else {
        ("r".to_string(), (from.lead != Lead::Global).then(|| format!("(o / {results}u)")))
    };
    let o = if lead.is_some() { format!("(o % {results}u)") } else { "o".into() };
    let mut coords = vec![String::new(); from.dims.len()];
    decode(&o, &kept_dims).into_iter().zip(&kept).for_each(|(c, &a)| coords[a] = c);
    decode(&r, &axis_dims).into_iter().zip(axes).for_each(|(c, &a)| coords[a] = c);
    Reduced { index: Index::Coords(lead.into_iter().chain(coords).collect()), inner }
}

/// Coordinates of a row-major index over `dims`.
fn decode(index: &str, dims: &[usize]) -> Vec<String> {
    let steps = strides(dims);
    let last = dims.len().saturating_sub(1);
    let coordinate = |(axis, (&d, &s)): (usize, (&usize, &usize))| match (d, s, axis) {
        (1, ..) => "0u".to_string(),
        (_, 1, 0) => index.to_string(),
        (_, s, 0) => format!("({index} / {s}u)"),
        (d, 1, a) if a == last => format!("({index} % {d}u)"),
        (d, s, _) => format!("({index} / {s}u % {d}u)"),
    };
    dims.iter().zip(&steps).enumerate().map(coordinate).collect()
}

/// Where an element of a value is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Index {
    /// Row-major, the lead included.
    Linear(String),
    /// A coordinate an axis, the lead first where there is one.
    Coords(Vec<String>),
}

struct Writer<'a> {
    graph: &'a Graph,
    fusion: &'a Fusion,
    stores: &'a Stores,
    unit: &'a Unit,
    bindings: Vec<(Binding, Access, &'static str)>,
    snippets: BTreeSet<Snippet>,
    body: String,
    indent: String,
    known: BTreeMap<(NodeId, Index), String>,
}

impl<'a> Writer<'a> {
    fn new(graph: &'a Graph, fusion: &'a Fusion, stores: &'a Stores, unit: &'a Unit) -> Self {
        Self {
            graph,
            fusion,
            stores,
            unit,
            bindings: vec![],
            snippets: BTreeSet::new(),
            body: String::new(),
            indent: "    ".into(),
            known: BTreeMap::new(),
        }
    }

    fn ty(&self, id: NodeId) -> &'a Type {
        &self.graph.nodes[id].ty
    }

    /// The element of a value at an index: a literal or the name of a `let`.
    fn value(&mut self, id: NodeId, index: &Index) -> String {
        let key = (id, index.clone());
        if let Some(name) = self.known.get(&key) {
            return name.clone();
        }
        let own = self.unit.kind == UnitKind::Map && self.unit.roots.contains(&id);
        let in_memory = self.fusion.stored.contains(&id) && !own;
        let text = match &self.fusion.lowering[id] {
            Lowering::Constant(c) => return literal(*c),
            Lowering::Leaf | Lowering::SumShards => self.load(id, index),
            _ if in_memory => self.load(id, index),
            Lowering::View(view) => return self.view(id, view, index),
            Lowering::Take => return self.take(id, index),
            Lowering::Embed => return self.embed(id, index),
            Lowering::Pad(before) => self.pad(id, before, index),
            Lowering::Pointwise(expression) => self.pointwise(id, expression, index),
            Lowering::Reduce(_) | Lowering::MatMul { .. } | Lowering::Contract => self.load(id, index),
        };
        self.name(key, &text)
    }

    fn name(&mut self, key: (NodeId, Index), text: &str) -> String {
        let name = format!("v{}", self.known.len());
        let _ = writeln!(self.body, "{}let {name} = {text};", self.indent);
        self.known.insert(key, name.clone());
        name
    }

    fn load(&mut self, id: NodeId, index: &Index) -> String {
        let binding = self.bind(id, Access::Read);
        format!("b{binding}[{}]", self.address(id, index))
    }

    fn pointwise(&mut self, id: NodeId, e: &Expression, index: &Index) -> String {
        let mut text = e.wgsl.clone();
        let inputs = self.graph.nodes[id].inputs.clone();
        for (operand, &input) in inputs.iter().enumerate().rev() {
            let value = if e.whole.contains(&operand) {
                format!("b{}", self.bind(input, Access::Read))
            } else {
                self.value(input, index)
            };
            text = text.replace(&format!("${operand}"), &value);
        }
        self.snippets.extend(e.snippets.iter().copied());
        if text.contains('$') {
            text = self.place_names(id, text, index);
        }
        text
    }

    /// `$row`, `$element` and `$axisN` in an expression.
    fn place_names(&self, id: NodeId, text: String, index: &Index) -> String {
        let ty = self.ty(id);
        let coords = self.coords(ty, index);
        let lead = usize::from(ty.lead != Lead::Global);
        let mut text = text;
        for axis in (0..ty.dims.len()).rev() {
            text = text.replace(&format!("$axis{axis}"), &coords[lead + axis]);
        }
        let element = match index {
            Index::Linear(i) if lead == 1 => format!("({i} % {}u)", ty.count()),
            Index::Linear(i) => i.clone(),
            Index::Coords(c) => dot(&c[lead..], &strides(&ty.dims)),
        };
        let row = if lead == 1 { format!("({} + params.row)", coords[0]) } else { "0u".into() };
        text.replace("$element", &element).replace("$row", &row)
    }

    fn view(&mut self, id: NodeId, view: &View, index: &Index) -> String {
        let input = self.graph.nodes[id].inputs[0];
        let (to, from) = (self.ty(id), self.ty(input));
        let inner = match view {
            View::Reshape => match index {
                Index::Linear(_) => index.clone(),
                Index::Coords(c) => {
                    let lead = usize::from(to.lead != Lead::Global);
                    let element = dot(&c[lead..], &strides(&to.dims));
                    let coords = decode(&format!("({element})"), &from.dims);
                    Index::Coords(c[..lead].iter().cloned().chain(coords).collect())
                }
            },
            View::Expand => self.expanded(to, from, index),
            View::Slice(start) => {
                let mut coords = self.coords(to, index);
                let lead = usize::from(to.lead != Lead::Global);
                let shift = |(c, s): (&mut String, &usize)| if *s > 0 { *c = format!("({c} + {s}u)") };
                coords[lead..].iter_mut().zip(start).for_each(shift);
                Index::Coords(coords)
            }
            View::Permute(order) => {
                let coords = self.coords(to, index);
                let lead = usize::from(to.lead != Lead::Global);
                let mut own = coords.clone();
                order.iter().enumerate().for_each(|(at, &axis)| own[lead + axis] = coords[lead + at].clone());
                Index::Coords(own)
            }
        };
        self.value(input, &inner)
    }

    fn expanded(&self, to: &Type, from: &Type, index: &Index) -> Index {
        if from.count() == 1 && from.lead == Lead::Global {
            return Index::Linear("0u".into());
        }
        let same_axes = from.dims == to.dims[to.dims.len() - from.dims.len()..];
        if let (Index::Linear(i), true, Lead::Global) = (index, same_axes, from.lead) {
            return Index::Linear(format!("({i} % {}u)", from.count()));
        }
        let coords = self.coords(to, index);
        let (to_lead, from_lead) = (usize::from(to.lead != Lead::Global), usize::from(from.lead != Lead::Global));
        let tail = &coords[to_lead + to.dims.len() - from.dims.len()..];
        let own = tail.iter().zip(&from.dims).map(|(c, &d)| if d == 1 { "0u".into() } else { c.clone() });
        Index::Coords(coords[..from_lead].iter().cloned().chain(own).collect())
    }

    fn take(&mut self, id: NodeId, index: &Index) -> String {
        let [x, at] = [self.graph.nodes[id].inputs[0], self.graph.nodes[id].inputs[1]];
        let last = self.ty(x).dims[self.ty(x).dims.len() - 1];
        let chosen = self.value(at, index);
        let inner = match index {
            Index::Linear(i) => Index::Linear(format!("({i} * {last}u + min(u32({chosen}), {}u))", last - 1)),
            Index::Coords(c) => {
                Index::Coords(c.iter().cloned().chain([format!("min(u32({chosen}), {}u)", last - 1)]).collect())
            }
        };
        self.value(x, &inner)
    }

    /// A row of a table: the id says which.
    fn embed(&mut self, id: NodeId, index: &Index) -> String {
        let [table, ids] = [self.graph.nodes[id].inputs[0], self.graph.nodes[id].inputs[1]];
        let mut coords = self.coords(self.ty(id), index);
        let column = coords.pop().unwrap_or_else(|| "0u".into());
        let chosen = self.value(ids, &Index::Coords(coords));
        let row = format!("min(u32({chosen}), {}u)", self.ty(table).dims[0] - 1);
        self.value(table, &Index::Coords(vec![row, column]))
    }

    /// The operand where the element lies inside it, else 0; the operand is looked at in any case, at a place it has.
    fn pad(&mut self, id: NodeId, before: &[usize], index: &Index) -> String {
        let input = self.graph.nodes[id].inputs[0];
        let (to, from) = (self.ty(id), self.ty(input));
        let mut coords = self.coords(to, index);
        let lead = usize::from(to.lead != Lead::Global);
        let mut inside = Vec::new();
        for (axis, (&first, &length)) in before.iter().zip(&from.dims).enumerate() {
            if first == 0 && length == to.dims[axis] {
                continue;
            }
            // Unsigned: what lies before the operand wraps around to a number that is too large.
            let own = if first == 0 { coords[lead + axis].clone() } else { format!("({} - {first}u)", coords[lead + axis]) };
            inside.push(format!("{own} < {length}u"));
            coords[lead + axis] = format!("min({own}, {}u)", length - 1);
        }
        let value = self.value(input, &Index::Coords(coords));
        let zero = if from.dtype == DType::F32 { "0.0" } else { "0" };
        if inside.is_empty() { value } else { format!("select({zero}, {value}, {})", inside.join(" && ")) }
    }

    fn coords(&self, ty: &Type, index: &Index) -> Vec<String> {
        match index {
            Index::Coords(c) => c.clone(),
            Index::Linear(i) if ty.lead == Lead::Global => decode(i, &ty.dims),
            Index::Linear(i) if ty.dims.is_empty() || ty.count() == 1 => {
                std::iter::once(i.clone()).chain(ty.dims.iter().map(|_| "0u".into())).collect()
            }
            Index::Linear(i) => {
                let within = decode(&format!("({i} % {}u)", ty.count()), &ty.dims);
                std::iter::once(format!("({i} / {}u)", ty.count())).chain(within).collect()
            }
        }
    }

    /// The element's place in its binding.
    fn address(&self, id: NodeId, index: &Index) -> String {
        let ty = self.ty(id);
        let place = self.stores.place(id);
        let (lead, count) = (ty.lead != Lead::Global, ty.count());
        match (index, place.lead_stride) {
            (Index::Linear(i), None) => i.clone() + &place.offset_text(),
            (Index::Linear(i), Some(s)) => format!("{i} / {count}u * {s}u + {i} % {count}u{}", place.offset_text()),
            (Index::Coords(c), stride) => {
                let mut steps = strides(&ty.dims);
                if lead {
                    steps.insert(0, stride.unwrap_or(count));
                }
                dot(c, &steps) + &place.offset_text()
            }
        }
    }

    fn bind(&mut self, id: NodeId, access: Access) -> usize {
        let (store, ty) = (self.stores.place(id).store, self.ty(id));
        let row = (ty.lead == Lead::Sample).then(|| ty.count());
        self.bind_as(Binding { store, row }, access, ty.dtype.wgsl())
    }

    fn bind_as(&mut self, binding: Binding, access: Access, element: &'static str) -> usize {
        let known = self.bindings.iter().position(|(b, ..)| b.store == binding.store);
        let index = known.unwrap_or_else(|| {
            self.bindings.push((binding, access, element));
            self.bindings.len() - 1
        });
        if access == Access::ReadWrite {
            self.bindings[index].1 = access;
        }
        index
    }

    fn finish(self, name: String, params: &str, body: &str) -> Bound {
        let mut wgsl = String::new();
        self.snippets.iter().for_each(|s| wgsl.push_str(s.text()));
        let _ = writeln!(wgsl, "struct Params {{ {params} }}\n@group(0) @binding(0) var<uniform> params: Params;");
        for (i, (_, access, element)) in self.bindings.iter().enumerate() {
            let mode = if *access == Access::Read { "read" } else { "read_write" };
            let _ = writeln!(wgsl, "@group(0) @binding({}) var<storage, {mode}> b{i}: array<{element}>;", i + 1);
        }
        let _ = write!(
            wgsl,
            "@compute @workgroup_size({WORKGROUP}) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{\n{body}}}\n"
        );
        let bindings = self.bindings.iter().map(|b| b.1).collect();
        Bound {
            kernel: Kernel { name, wgsl, bindings },
            stores: self.bindings.into_iter().map(|b| b.0).collect(),
        }
    }
}

/// The sum of coordinates times strides.
fn dot(coords: &[String], steps: &[usize]) -> String {
    let term = |(c, s): (&String, &usize)| match (c.as_str(), s) {
        ("0u", _) => None,
        (c, 1) => Some(c.to_string()),
        (c, s) => Some(format!("{c} * {s}u")),
    };
    let terms: Vec<String> = coords.iter().zip(steps).filter_map(term).collect();
    if terms.is_empty() { "0u".into() } else { terms.join(" + ") }
}

/// An f32 that WGSL reads back to the same bits.
fn literal(x: f32) -> String {
    match x {
        x if x.is_finite() && x.is_sign_positive() => format!("{x:?}f"),
        x if x.is_finite() => format!("({x:?}f)"),
        x => format!("bitcast<f32>({}u | params.zero)", x.to_bits()),
    }
}

/// A place that is read at an offset inside its binding.
impl Place {
    fn offset_text(&self) -> String {
        if self.inside == 0 { String::new() } else { format!(" + {}u", self.inside) }
    }
}
