//! Kernels of reductions for CPUs. One invocation computes four neighbouring results, so that it loads
//! elements of all four as one vector, or several such fours: while an addition waits for the one before it,
//! the CPU does those of other fours.

use unisono_shaders::{ReduceParams, snippets};

use super::affine::Affine;
use super::writer::Writer;
use super::{
    Binding, Bound, MOST_UNROLLED, inside, joined, reduced_index, reduced_length, reduced_range, unit_name,
};
use crate::fuse::{Fusion, Store, Stores, Unit};
use crate::plan::Access;
use crate::trace::{Graph, Lowering, NodeId, Reduction};
use crate::values::DType;
use crate::values::tree::SUM_CHUNK;

/// The largest number of groups of four columns that one invocation adds.
const COLUMNS: usize = 4;

/// The largest number of groups of four rows that one invocation adds. Rows take more registers.
const ROWS: usize = 2;

/// With at least this many maps for each element, an invocation adds one group of four rows: the maps keep
/// the CPU busy between additions, and there is less code to compile.
const MANY_MAPS: usize = 3;

/// Returns the kernel of a reduction that computes fours of results at a time, for results in one chunk or in
/// several, or `None` where elements that differ between invocations are not loaded in fours. Its params
/// are [`ReduceParams`], where `n` counts the invocations.
pub(super) fn across_kernel(
    graph: &Graph,
    fusion: &Fusion,
    stores: &Stores,
    (unit, reduction): (&Unit, &Reduction),
    chunked: bool,
) -> Option<Bound> {
    let root = unit.roots[0];
    let ty = &graph.nodes[root].ty;
    let is_fit = ty.dtype == DType::F32 && ty.count().is_multiple_of(4) && stores.place(root).comes_in(4);
    if !is_fit {
        return None;
    }
    let writer = || Writer::new(graph, fusion, stores, unit);
    let is_map = |id: &NodeId| matches!(fusion.lowering[*id], Lowering::Pointwise(_));
    let maps = inside(graph, fusion, unit).iter().filter(|id| is_map(id)).count();
    let has_many_maps = maps >= MANY_MAPS;
    let fours = |most: usize| if ty.count().is_multiple_of(4 * most) { most } else { 1 };
    let (columns, rows) = (fours(COLUMNS), if has_many_maps { 1 } else { fours(ROWS) });
    kernel(writer(), (unit, reduction), chunked, columns)
        .or_else(|| rows_kernel(writer(), (unit, reduction), chunked, (rows, has_many_maps)))
        .or_else(|| windows_kernel(writer(), (unit, reduction), chunked))
}

/// Returns the kernel that reduces the windows of four results at once. It loads elements one by one. The
/// additions of the four results do not wait for each other.
fn windows_kernel(
    mut writer: Writer<'_>,
    (unit, reduction): (&Unit, &Reduction),
    chunked: bool,
) -> Option<Bound> {
    let (graph, fusion) = (writer.graph, writer.fusion);
    let root = unit.roots[0];
    let input = graph.nodes[root].inputs[0];
    let inner = reduced_length(&graph.nodes[input].ty, reduction);
    if chunked || reduction.samples || inner > MOST_UNROLLED {
        return None;
    }
    writer.snippets.insert(snippets::SUM);
    let (start, combined) = joined(reduction.kind);
    let mut joins = String::new();
    for r in 0..inner {
        let mut values = Vec::new();
        for lane in 0..4 {
            let result = Affine::name("i", None).times(4).plus(lane);
            let index = reduced_index(graph, root, reduction, (&result, &|_| Affine::number(r)));
            writer.enter_reduced(lane);
            values.push(writer.value(input, &index));
        }
        let sums = in_lanes(combined, "acc0", &format!("four{r}"));
        joins += &format!("    let four{r} = vec4<f32>({});\n    acc0 = {sums};\n", values.join(", "));
    }
    writer.leave_lanes();
    if !writer.has_windows {
        return None;
    }
    let loads = std::mem::take(&mut writer.body);
    let (place, stored) = placed(&mut writer, root, chunked, 1);
    let body = format!(
        "    let t = id.x + id.y * params.width;\n    if t >= params.n * params.chunks {{ return; }}\n\
         {place}{loads}    var acc0 = vec4<f32>({start});\n{joins}{stored}"
    );
    let name = unit_name(graph, fusion, unit);
    Some(Bound { lanes: 4, ..writer.finish::<ReduceParams>(name, &body) })
}

/// Returns the kernel that reduces four rows at a time, or several fours, if each result is that of a row, or
/// of a row of each sample: four elements of each row are loaded as one, and turned into four vectors with an
/// element of each row. So an addition waits for the one before it once for four rows.
///
/// If many maps compute an element and rows are long, a loop loads the four rows, which shortens the code.
fn rows_kernel(
    mut writer: Writer<'_>,
    (unit, reduction): (&Unit, &Reduction),
    chunked: bool,
    (fours, has_many_maps): (usize, bool),
) -> Option<Bound> {
    let graph = writer.graph;
    let root = unit.roots[0];
    let input = graph.nodes[root].inputs[0];
    let from = &graph.nodes[input].ty;
    let inner = reduced_length(from, reduction);
    let are_rows = !reduction.axes.is_empty() && reduction.is_trailing(from);
    if !are_rows || !inner.is_multiple_of(4) {
        return None;
    }
    let is_loop = has_many_maps && fours == 1 && inner > MOST_UNROLLED;
    writer.snippets.insert(snippets::SUM);
    writer.indent = if is_loop { "            " } else { "        " }.into();
    let mut rows = Vec::new();
    for row in 0..if is_loop { 1 } else { 4 * fours } {
        let row = if is_loop { Affine::name("row", Some(4)) } else { Affine::number(row) };
        let result = Affine::name("i", None).times(4 * fours).add(row);
        let mut values = Vec::new();
        for lane in 0..4 {
            let place =
                |below: Option<usize>| Affine::name("q", below.map(|below| below / 4)).times(4).plus(lane);
            let index = reduced_index(graph, root, reduction, (&result, &place));
            writer.enter_reduced(lane);
            values.push(writer.value(input, &index));
        }
        if !writer.loads_fours(root) {
            return None;
        }
        rows.push(format!("vec4<f32>({})", values.join(", ")));
    }
    writer.leave_lanes();
    let mut loads = std::mem::take(&mut writer.body);
    if is_loop {
        loads = format!(
            "        var rows: array<vec4<f32>, 4>;\n        for (var row = 0u; row < 4u; row++) {{\n{loads}\
             {}rows[row] = {};\n        }}\n",
            writer.indent, rows[0],
        );
        rows = (0..4).map(|row| format!("rows[{row}]")).collect();
    }
    let (_, combined) = joined(reduction.kind);
    let (mut turned, mut joins) = (String::new(), String::new());
    for (k, rows) in rows.chunks_exact(4).enumerate() {
        turned += &format!("        let turned{k} = transpose(mat4x4<f32>({}));\n", rows.join(", "));
    }
    for at in 0..4 {
        for k in 0..fours {
            let sums = in_lanes(combined, &format!("acc{k}"), &format!("turned{k}[{at}]"));
            joins += &format!("        acc{k} = {sums};\n");
        }
    }
    let first = SUM_CHUNK / 4;
    let text =
        format!("for (var q = chunk * {first}u; q < end / 4u; q++) {{\n{loads}{turned}{joins}    }}\n");
    // A loop whose end is not known is not unrolled: it is long enough as it is.
    Some(looped(writer, (unit, reduction), (chunked, fours), (" + params.zero", &text)))
}

/// Returns the kernel that computes fours of results by the loop `text` over the elements of a chunk. The
/// loop ends at the element `end`, to whose number `plus` is added.
fn looped(
    mut writer: Writer<'_>,
    (unit, reduction): (&Unit, &Reduction),
    (chunked, fours): (bool, usize),
    (plus, text): (&str, &str),
) -> Bound {
    let (graph, fusion) = (writer.graph, writer.fusion);
    let root = unit.roots[0];
    let inner = reduced_length(&graph.nodes[graph.nodes[root].inputs[0]].ty, reduction);
    let results = graph.nodes[root].ty.count() / (4 * fours);
    let (prelude, length) = reduced_range(&mut writer, reduction, inner, ("i", results));
    let (place, stored) = placed(&mut writer, root, chunked, fours);
    let (start, _) = joined(reduction.kind);
    let begin: String = (0..fours).map(|k| format!("    var acc{k} = vec4<f32>({start});\n")).collect();
    let end = if chunked { format!("min({length}, (chunk + 1u) * {SUM_CHUNK}u)") } else { length };
    let body = format!(
        "    let t = id.x + id.y * params.width;\n    if t >= params.n * params.chunks {{ return; }}\n\
         {place}{prelude}    let end = {end}{plus};\n{begin}    {text}{stored}"
    );
    let name = unit_name(graph, fusion, unit);
    Bound { lanes: 4 * fours, ..writer.finish::<ReduceParams>(name, &body) }
}

/// Returns the vector of four results `acc` after the elements of the vector `four` were added to them.
fn in_lanes(combined: &str, acc: &str, four: &str) -> String {
    let one =
        |lane| combined.replace("acc", &format!("{acc}.{lane}")).replace('$', &format!("{four}.{lane}"));
    format!("vec4<f32>({})", ["x", "y", "z", "w"].map(one).join(", "))
}

/// Returns two lists of statements. The first finds the results that an invocation computes, and their chunk.
/// The second stores the results.
fn placed(writer: &mut Writer<'_>, root: NodeId, chunked: bool, fours: usize) -> (&'static str, String) {
    writer.indent = "    ".into();
    let mut stored = String::new();
    if chunked {
        let scratch = Binding { store: Store::Temp(root), row: None };
        let binding = writer.bind_fours(scratch, Access::ReadWrite, "f32");
        for k in 0..fours {
            let at = Affine::name("t", None).times(fours).plus(k);
            stored += &format!("    b{binding}[{at}] = acc{k};\n");
        }
        return ("    let i = t % params.n;\n    let chunk = t / params.n;\n", stored);
    }
    for k in 0..fours {
        let lanes = ["x", "y", "z", "w"].map(|lane| format!("acc{k}.{lane}"));
        stored += &writer.store_four(root, &Affine::name("i", None).times(fours).plus(k), &lanes);
    }
    ("    let i = t;\n    let chunk = 0u;\n", stored)
}

/// Returns the kernel that reduces columns. It loads neighbouring columns of a row as vectors.
fn kernel(
    mut writer: Writer<'_>,
    (unit, reduction): (&Unit, &Reduction),
    chunked: bool,
    fours: usize,
) -> Option<Bound> {
    let graph = writer.graph;
    let root = unit.roots[0];
    let input = graph.nodes[root].inputs[0];
    writer.snippets.insert(snippets::SUM);
    writer.indent = "        ".into();
    let mut values = Vec::new();
    for lane in 0..4 * fours {
        let result = Affine::name("i", None).times(4 * fours).plus(lane);
        let index = reduced_index(graph, root, reduction, (&result, &|below| Affine::name("r", below)));
        writer.enter_reduced(lane % 4);
        values.push(writer.value(input, &index));
        if !writer.is_all_vectors() {
            return None;
        }
    }
    writer.leave_lanes();
    if !writer.loads_fours(root) {
        return None;
    }
    let (_, combined) = joined(reduction.kind);
    let mut joins = String::new();
    for (k, values) in values.chunks_exact(4).enumerate() {
        let sums = in_lanes(combined, &format!("acc{k}"), &format!("four{k}"));
        joins += &format!("        let four{k} = vec4<f32>({});\n", values.join(", "));
        joins += &format!("        acc{k} = {sums};\n");
    }
    let loads = std::mem::take(&mut writer.body);
    let text = format!("for (var r = chunk * {SUM_CHUNK}u; r < end; r++) {{\n{loads}{joins}    }}\n");
    Some(looped(writer, (unit, reduction), (chunked, fours), ("", &text)))
}
