//! Kernels of reductions for CPUs. One invocation computes four neighbouring results, so it loads elements of
//! all four as one vector.

use unisono_shaders::{ReduceParams, snippets};

use super::affine::Affine;
use super::writer::Writer;
use super::{Binding, Bound, MOST_UNROLLED, joined, reduced_index, reduced_length, reduced_range, unit_name};
use crate::fuse::{Fusion, Store, Stores, Unit};
use crate::plan::Access;
use crate::trace::{Graph, NodeId, Reduction};
use crate::values::DType;
use crate::values::tree::SUM_CHUNK;

/// Returns the kernel of a reduction that computes four results at a time, for results in one chunk or in
/// several, or `None` where elements that differ between invocations are not loaded in fours. Its params
/// are [`ReduceParams`], where `n` counts the fours.
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
    kernel(writer(), (unit, reduction), chunked)
        .or_else(|| rows_kernel(writer(), (unit, reduction), chunked))
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
        let sums = in_lanes(combined, &format!("four{r}"));
        joins += &format!("    let four{r} = vec4<f32>({});\n    acc = {sums};\n", values.join(", "));
    }
    writer.leave_lanes();
    if !writer.has_windows {
        return None;
    }
    let loads = std::mem::take(&mut writer.body);
    let (place, stored) = placed(&mut writer, root, chunked);
    let body = format!(
        "    let t = id.x + id.y * params.width;\n    if t >= params.n * params.chunks {{ return; }}\n\
         {place}{loads}    var acc = vec4<f32>({start});\n{joins}{stored}"
    );
    let name = unit_name(graph, fusion, unit);
    Some(Bound { lanes: 4, ..writer.finish::<ReduceParams>(name, &body) })
}

/// Returns the kernel that reduces four rows at a time, if each result is that of a row, or of a row of each
/// sample: four elements of each row are loaded as one, and turned into four vectors with an element of each
/// row. So an addition waits for the one before it once for four rows.
fn rows_kernel(
    mut writer: Writer<'_>,
    (unit, reduction): (&Unit, &Reduction),
    chunked: bool,
) -> Option<Bound> {
    let (graph, fusion) = (writer.graph, writer.fusion);
    let root = unit.roots[0];
    let input = graph.nodes[root].inputs[0];
    let from = &graph.nodes[input].ty;
    let inner = reduced_length(from, reduction);
    let are_rows = !reduction.axes.is_empty() && reduction.is_trailing(from);
    if !are_rows || !inner.is_multiple_of(4) {
        return None;
    }
    writer.snippets.insert(snippets::SUM);
    writer.indent = "        ".into();
    let mut fours = Vec::new();
    for row in 0..4 {
        let result = Affine::name("i", None).times(4).plus(row);
        let mut values = Vec::new();
        for lane in 0..4 {
            let place =
                |below: Option<usize>| Affine::name("q", below.map(|below| below / 4)).times(4).plus(lane);
            let index = reduced_index(graph, root, reduction, (&result, &place));
            writer.enter_reduced(lane);
            values.push(writer.value(input, &index));
        }
        fours.push(format!("vec4<f32>({})", values.join(", ")));
    }
    writer.leave_lanes();
    if !writer.loads_fours(root) {
        return None;
    }
    let (start, combined) = joined(reduction.kind);
    let sums = |column: usize| in_lanes(combined, &format!("turned[{column}]"));
    let joins: String = (0..4).map(|at| format!("        acc = {};\n", sums(at))).collect();
    let loads = std::mem::take(&mut writer.body);
    let fours_of_results = graph.nodes[root].ty.count() / 4;
    let (prelude, length) = reduced_range(&mut writer, reduction, inner, ("i", fours_of_results));
    let (place, stored) = placed(&mut writer, root, chunked);
    // A loop whose end is not known is not unrolled: it is long enough as it is.
    let end = match chunked {
        true => format!("min({length}, (chunk + 1u) * {SUM_CHUNK}u) + params.zero"),
        false => format!("{length} + params.zero"),
    };
    let body = format!(
        "    let t = id.x + id.y * params.width;\n    if t >= params.n * params.chunks {{ return; }}\n\
         {place}{prelude}    let end = {end};\n    var acc = vec4<f32>({start});\n    \
         for (var q = chunk * {}u; q < end / 4u; q++) {{\n{loads}        \
         let turned = transpose(mat4x4<f32>({}));\n{joins}    }}\n{stored}",
        SUM_CHUNK / 4,
        fours.join(", "),
    );
    let name = unit_name(graph, fusion, unit);
    Some(Bound { lanes: 4, ..writer.finish::<ReduceParams>(name, &body) })
}

/// Returns the vector of four results after the elements of the vector `four` were added to them.
fn in_lanes(combined: &str, four: &str) -> String {
    let one = |lane| combined.replace("acc", &format!("acc.{lane}")).replace('$', &format!("{four}.{lane}"));
    format!("vec4<f32>({})", ["x", "y", "z", "w"].map(one).join(", "))
}

/// Returns two lists of statements. The first finds the four results that an invocation computes, and their
/// chunk. The second stores the results.
fn placed(writer: &mut Writer<'_>, root: NodeId, chunked: bool) -> (&'static str, String) {
    writer.indent = "    ".into();
    if chunked {
        let scratch = Binding { store: Store::Temp(root), row: None };
        let binding = writer.bind_fours(scratch, Access::ReadWrite, "f32");
        let place = "    let i = t % params.n;\n    let chunk = t / params.n;\n";
        return (place, format!("    b{binding}[t] = acc;\n"));
    }
    let lanes = ["x", "y", "z", "w"].map(|lane| format!("acc.{lane}"));
    ("    let i = t;\n    let chunk = 0u;\n", writer.store(root, &lanes))
}

fn kernel(mut writer: Writer<'_>, (unit, reduction): (&Unit, &Reduction), chunked: bool) -> Option<Bound> {
    let (graph, fusion) = (writer.graph, writer.fusion);
    let root = unit.roots[0];
    let input = graph.nodes[root].inputs[0];
    writer.snippets.insert(snippets::SUM);
    writer.indent = "        ".into();
    let mut values = Vec::new();
    for lane in 0..4 {
        let result = Affine::name("i", None).times(4).plus(lane);
        let index = reduced_index(graph, root, reduction, (&result, &|below| Affine::name("r", below)));
        writer.enter_reduced(lane);
        values.push(writer.value(input, &index));
    }
    writer.leave_lanes();
    if !writer.is_all_vectors() || !writer.loads_fours(root) {
        return None;
    }
    let (start, combined) = joined(reduction.kind);
    let sums = in_lanes(combined, "four");
    let loads = std::mem::take(&mut writer.body);
    let inner = reduced_length(&graph.nodes[input].ty, reduction);
    let fours = graph.nodes[root].ty.count() / 4;
    let (prelude, length) = reduced_range(&mut writer, reduction, inner, ("i", fours));
    let (place, stored) = placed(&mut writer, root, chunked);
    let end = match chunked {
        true => format!("min({length}, (chunk + 1u) * {SUM_CHUNK}u)"),
        false => length,
    };
    let body = format!(
        "    let t = id.x + id.y * params.width;\n    if t >= params.n * params.chunks {{ return; }}\n\
         {place}{prelude}    let end = {end};\n    var acc = vec4<f32>({start});\n    \
         for (var r = chunk * {SUM_CHUNK}u; r < end; r++) {{\n{loads}        \
         let four = vec4<f32>({});\n        acc = {sums};\n    }}\n{stored}",
        values.join(", "),
    );
    let name = unit_name(graph, fusion, unit);
    Some(Bound { lanes: 4, ..writer.finish::<ReduceParams>(name, &body) })
}
