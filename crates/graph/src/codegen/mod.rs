//! The WGSL of fused kernels: an expression for each value that a unit stores, and loads at its edges.

use std::collections::BTreeSet;

mod across;
mod addends;
mod affine;
mod canonical;
mod columns;
mod epilogue;
mod finite;
mod implicit_gemm;
mod index;
mod lookup;
mod machines;
mod place;
mod rows;
mod staged;
mod starts;
mod writer;

use unisono_shaders::{MapParams, ReduceParams, snippets};

use self::affine::Affine;
pub use self::columns::{MOST_CHUNKS, column_kernel};
pub use self::epilogue::{Addend, Epilogue, epilogue};
pub use self::implicit_gemm::{ImplicitOperand, operand, operand_at};
use self::index::{Index, decode};
pub use self::machines::{MapKernels, ReduceKernels};
pub use self::rows::{RowKernel, row_kernel, row_unit};
use self::writer::Writer;

use crate::fuse::{Fusion, Store, Stores, Unit, UnitKind};
use crate::plan::{Access, Kernel};
use crate::trace::{Expression, Graph, Lowering, NodeId, ReduceKind, Reduction};
use crate::values::{DType, Lead, Type};

/// The number of invocations of a workgroup of fused kernels.
pub const WORKGROUP: u32 = 64;

/// The most elements of a window that a kernel's text names one by one.
const MOST_UNROLLED: usize = 25;

/// A kernel and what its bindings are.
#[derive(Clone, Debug)]
pub struct Bound {
    /// The kernel.
    pub kernel: Kernel,
    /// The bindings in the order of [`Kernel::bindings`].
    pub stores: Vec<Binding>,
    /// The number of elements that an invocation of a map computes.
    pub lanes: usize,
    /// Where parts of memories and slices start. These are params behind the kernel's others.
    pub starts: Vec<u32>,
    /// For each start of a map whether it is that of the elements which invocations compute, or of a number
    /// that all of them share. `None` if an invocation needs elements that are not its own: then the kernel
    /// depends on the shape.
    pub flow: Option<Vec<bool>>,
}

/// One storage buffer of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// The memory that is bound.
    pub store: Store,
    /// The number of elements of a row, if each sample has one. Such a binding may be divided by rows.
    pub row: Option<usize>,
}

/// Returns the name of a kernel, which lists its ops.
pub fn unit_name(graph: &Graph, fusion: &Fusion, unit: &Unit) -> String {
    let main = unit.product.unwrap_or(unit.roots[0]);
    let dense = |id: &NodeId| unit.kind != UnitKind::Map && *id == main;
    let shown = |id: &NodeId| fusion.lowering[*id].is_inline() && !dense(id);
    let computed = inside(graph, fusion, unit);
    let names: Vec<&str> =
        computed.iter().filter(|id| shown(id)).map(|&id| graph.nodes[id].op.name()).collect();
    match (unit.kind, names.is_empty()) {
        (UnitKind::Map, true) => "copy".into(),
        (UnitKind::Map, false) => format!("fused[{}]", names.join(", ")),
        (_, true) => graph.nodes[main].op.name().into(),
        (_, false) => format!("{}[{}]", graph.nodes[main].op.name(), names.join(", ")),
    }
}

/// What compiles a kernel, which decides how much text is worth it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compiler {
    /// A driver takes milliseconds for each elementary function.
    Driver,
    /// The CPU's compiler is fast, and its code is only where it computes on vectors.
    Cranelift,
}

fn map_kernel(graph: &Graph, fusion: &Fusion, stores: &Stores, (unit, lanes): (&Unit, usize)) -> Bound {
    let mut writer = Writer::new(graph, fusion, stores, unit);
    let body = map_body(&mut writer, unit, lanes);
    let name = unit_name(graph, fusion, unit);
    Bound { lanes, ..writer.finish::<MapParams>(name, &body) }
}

fn map_body(writer: &mut Writer<'_>, unit: &Unit, lanes: usize) -> String {
    let mut results = vec![Vec::new(); unit.roots.len()];
    for lane in 0..lanes {
        let index = writer.enter_lane(lane, lanes);
        for (&root, values) in unit.roots.iter().zip(&mut results) {
            values.push(writer.value(root, &index));
        }
    }
    let stored: String =
        unit.roots.iter().zip(&results).map(|(&root, values)| writer.store(root, values)).collect();
    let checked: Vec<&[String]> = unit
        .roots
        .iter()
        .zip(&results)
        .filter(|(root, _)| writer.is_checked(**root))
        .map(|(_, values)| &**values)
        .collect();
    let check = writer.check(&checked);
    let ends = match unit.roots.iter().any(|&root| writer.is_guarded(root)) {
        true => writer.guard("i >= params.n"),
        false => "i >= params.n".into(),
    };
    format!(
        "    let i = id.x + id.y * params.width;\n    if {ends} {{ return; }}\n{}{stored}{check}",
        writer.body
    )
}

/// The number of elements a sample from which a driver may compile even elementary functions four times over.
const MANY: usize = 1024;

/// Returns whether a map has a multiple of four elements and nothing in it that is long to compile for too
/// few of them. Rounding is short, and so are quotients and roots.
fn comes_in_quads(
    graph: &Graph,
    fusion: &Fusion,
    stores: &Stores,
    (unit, compiler): (&Unit, Compiler),
) -> bool {
    let ty = &graph.nodes[unit.roots[0]].ty;
    let short = [snippets::ROUND_HALF, snippets::QUOTIENT, snippets::ROOT];
    let is_short = |e: &Expression| e.snippets.iter().all(|s| short.contains(s));
    let is_worth_it = compiler == Compiler::Cranelift || ty.count() >= MANY;
    let plain = |id: &NodeId| match &fusion.lowering[*id] {
        Lowering::Pointwise(e) => is_short(e) || is_worth_it,
        lowering => !lowering.is_lookup(),
    };
    let fits = |&root: &NodeId| graph.nodes[root].ty.dtype == DType::F32 && stores.place(root).comes_in(4);
    let divides = ty.lead != Lead::Shard && ty.count() > 0 && ty.count().is_multiple_of(4);
    unit.roots.iter().all(fits) && divides && inside(graph, fusion, unit).iter().all(plain)
}

/// Returns the nodes that a unit computes.
pub fn inside(graph: &Graph, fusion: &Fusion, unit: &Unit) -> BTreeSet<NodeId> {
    let mut inside = BTreeSet::new();
    for &root in &unit.roots {
        let mut pending = vec![root];
        while let Some(id) = pending.pop() {
            let ends = |i: NodeId| {
                i != root && (fusion.stored.contains(&i) || matches!(fusion.lowering[i], Lowering::SumShards))
            };
            if ends(id) && !unit.roots.contains(&id) {
                continue;
            }
            if inside.insert(id) && unit.product != Some(id) {
                pending.extend(graph.nodes[id].inputs.iter().filter(|&&i| !ends(i)));
            }
        }
    }
    inside
}

/// Returns the statements that find the elements which a result is made of, and how many they are. If samples
/// are reduced, these are the samples of the result's shard: each has `inner` elements of it. The variable
/// `name` counts results, or vectors of them, of which a shard has `results`.
fn reduced_range(
    writer: &mut Writer<'_>,
    reduction: &Reduction,
    inner: usize,
    (name, results): (&str, usize),
) -> (String, String) {
    if !reduction.samples {
        return (String::new(), format!("{inner}u"));
    }
    let table = writer.bind_as(Binding { store: Store::ShardStarts, row: None }, Access::Read, "u32");
    let statements = format!(
        "    let shard = {name} / {results}u;\n    let first = b{table}[shard];\n    \
         let length = (b{table}[shard + 1u] - first) * {inner}u;\n    let start = first - params.row;\n"
    );
    (statements, "length".into())
}

/// Returns where a reduction begins, and the statement that adds an element `$` to what it has so far.
fn joined(kind: ReduceKind) -> (&'static str, &'static str) {
    match kind {
        // Both are canonical already: sum_add would only do it again.
        ReduceKind::Sum => ("0.0", "canonical(acc + $)"),
        ReduceKind::Max => ("bitcast<f32>(0xff800000u | params.zero)", "max_of(acc, $)"),
    }
}

/// Returns the kernel of a reduction, which has one invocation for each result and chunk. Its params are
/// [`ReduceParams`]. An invocation loads four elements at once where they lie side by side.
///
/// With `chunked`, results go to `[chunks, results]` scratch, which the `tree` kernel reduces.
fn reduce_kernel(
    graph: &Graph,
    fusion: &Fusion,
    stores: &Stores,
    (unit, reduction): (&Unit, &Reduction),
    chunked: bool,
) -> Bound {
    let root = unit.roots[0];
    let input = graph.nodes[root].inputs[0];
    let inner = reduced_length(&graph.nodes[input].ty, reduction);
    // Writes the loads of so many elements.
    let loads = |lanes: usize| {
        let mut writer = Writer::new(graph, fusion, stores, unit);
        writer.snippets.insert(snippets::SUM);
        writer.indent = "        ".into();
        let mut values = Vec::new();
        for lane in 0..lanes {
            let place = |below: Option<usize>| match lanes {
                1 => Affine::name("r", below),
                _ => Affine::name("q", below.map(|below| below / lanes)).times(lanes).plus(lane),
            };
            let result = Affine::name("o", None);
            let index = reduced_index(graph, root, reduction, (&result, &place));
            if lanes == 4 {
                writer.enter_reduced(lane);
            }
            values.push(writer.value(input, &index));
        }
        writer.leave_lanes();
        (writer, values)
    };
    let (mut writer, mut values) = loads(if inner.is_multiple_of(4) { 4 } else { 1 });
    if values.len() > 1 && !writer.loads_fours(root) {
        (writer, values) = loads(1);
    }
    // A place in a window takes quotients for each element, unless it is a number of the kernel's text.
    if values.len() == 1 && writer.has_windows && !reduction.samples && (2..=MOST_UNROLLED).contains(&inner) {
        (writer, values) = loads(inner);
    }
    let (start, combined) = joined(reduction.kind);
    let mut joins = String::new();
    if values.len() == 4 {
        // A compiler for one invocation at a time sees here that the four are computed in the same way.
        joins += &format!("        let four = vec4<f32>({});\n", values.join(", "));
        values = ["x", "y", "z", "w"].map(|component| format!("four.{component}")).to_vec();
    }
    for value in &values {
        joins += &format!("        acc = {};\n", combined.replace('$', value));
    }
    let chunk = crate::values::tree::SUM_CHUNK;
    let loop_body = std::mem::take(&mut writer.body);
    let (prelude, length) = reduced_range(&mut writer, reduction, inner, ("o", graph.nodes[root].ty.count()));
    let (binding, address) = if chunked {
        let scratch = Binding { store: Store::Temp(root), row: None };
        (writer.bind_as(scratch, Access::ReadWrite, "f32"), "t".to_string())
    } else {
        (writer.bind(root, Access::ReadWrite), writer.address(root, &Index::named("o")))
    };
    let result = writer.narrowed(binding, "acc");
    // A division by a param takes a driver for CPUs a while.
    let (place, first, end) = if chunked {
        let place = "    let o = t % params.n;\n    let chunk = t / params.n;\n";
        (place, chunk, format!("min({length}, (chunk + 1u) * {chunk}u)"))
    } else {
        ("    let o = t;\n    let chunk = 0u;\n", 0, length)
    };
    let (step, name) = (values.len(), if values.len() == 1 { "r" } else { "q" });
    let body = format!(
        "    let t = id.x + id.y * params.width;\n    if t >= params.n * params.chunks {{ return; }}\n\
         {place}{prelude}    let end = {end};\n    var acc = {start};\n    \
         for (var {name} = chunk * {}u; {name} < end / {step}u; {name}++) {{\n{loop_body}{joins}    }}\n    \
         b{binding}[{address}] = {result};\n",
        first / step,
    );
    writer.finish::<ReduceParams>(unit_name(graph, fusion, unit), &body)
}

/// Returns the number of elements that a reduction makes one of: those of its axes, in one sample.
fn reduced_length(from: &Type, reduction: &Reduction) -> usize {
    reduction.axes.iter().map(|&axis| from.dims[axis]).product()
}

/// Returns where element `r` of what a reduction makes result `o` of is in its operand. `place` makes r of
/// the number that it is below, if that is known.
fn reduced_index(
    graph: &Graph,
    root: NodeId,
    reduction: &Reduction,
    (o, place): (&Affine, &dyn Fn(Option<usize>) -> Affine),
) -> Index {
    let (from, to) = (&graph.nodes[graph.nodes[root].inputs[0]].ty, &graph.nodes[root].ty);
    let (axes, samples) = (&reduction.axes, reduction.samples);
    let axis_dims: Vec<usize> = axes.iter().map(|&a| from.dims[a]).collect();
    let inner = reduced_length(from, reduction);
    if !samples && reduction.is_trailing(from) {
        return Index::Linear(o.clone().times(inner).add(place(Some(inner))));
    }
    let results = to.count();
    let kept: Vec<usize> = (0..from.dims.len()).filter(|a| !axes.contains(a)).collect();
    let kept_dims: Vec<usize> = kept.iter().map(|&a| from.dims[a]).collect();
    // What a shard's samples reduce to has the results of all shards one after another.
    let (of_result, of_sample) = (o.remainder(results), o.divided(results));
    let start = Affine::name("start", None);
    if samples && axes.is_empty() {
        return Index::Linear(start.add(place(None)).times(results).add(of_result));
    }
    let (o, r, lead) = if samples {
        let r = place(None);
        (of_result, r.remainder(inner), Some(start.add(r.divided(inner))))
    } else if from.lead != Lead::Global {
        (of_result, place(Some(inner)), Some(of_sample))
    } else {
        (o.clone(), place(Some(inner)), None)
    };
    let mut coords = vec![Affine::default(); from.dims.len()];
    decode(&o, &kept_dims).into_iter().zip(&kept).for_each(|(c, &a)| coords[a] = c);
    decode(&r, &axis_dims).into_iter().zip(axes).for_each(|(c, &a)| coords[a] = c);
    Index::Coords(lead.into_iter().chain(coords).collect())
}
