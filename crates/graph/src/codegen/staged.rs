//! Reductions along the last axes for GPUs: a workgroup stages parts of its rows in workgroup memory, so that
//! neighbouring invocations load neighbouring elements. Each row is still added up by one invocation, in the
//! same order.

use unisono_shaders::{ReduceParams, snippets};

use super::index::Index;
use super::writer::Writer;
use super::{Binding, Bound, joined, reduced_length, unit_name};
use crate::fuse::{Fusion, Store, Stores, Unit};
use crate::plan::Access;
use crate::trace::{Graph, ReduceKind, Reduction};
use crate::values::tree::SUM_CHUNK;

/// The elements from which a row is worth staging: those that are staged at a time.
const LEAST: usize = 32;

/// Returns the kernel of a reduction that stages rows, for results in one chunk or in several, or `None`
/// where elements do not come in rows, or rows not in fours.
pub(super) fn staged_kernel(
    graph: &Graph,
    fusion: &Fusion,
    stores: &Stores,
    (unit, reduction): (&Unit, &Reduction),
    chunked: bool,
) -> Option<Bound> {
    let from = &graph.nodes[graph.nodes[unit.roots[0]].inputs[0]].ty;
    let inner = reduced_length(from, reduction);
    let is_along = !reduction.samples && reduction.is_trailing(from);
    let is_fit = is_along && inner >= LEAST && inner.is_multiple_of(4);
    is_fit.then(|| {
        let writer = Writer::new(graph, fusion, stores, unit);
        kernel(writer, graph, fusion, (unit, reduction.kind), inner, chunked)
    })
}

fn kernel(
    mut writer: Writer<'_>,
    graph: &Graph,
    fusion: &Fusion,
    (unit, kind): (&Unit, ReduceKind),
    inner: usize,
    chunked: bool,
) -> Bound {
    let root = unit.roots[0];
    writer.snippets.extend([snippets::SUM, snippets::STAGED]);
    writer.indent = "            ".into();
    let mut values = Vec::new();
    for lane in 0..4 {
        let index = writer.enter_lane(lane, 4);
        values.push(writer.value(graph.nodes[root].inputs[0], &index));
    }
    let loads = std::mem::take(&mut writer.body);
    writer.leave_lanes();
    let (row, chunk) = (inner / 4, SUM_CHUNK / 4);
    let (binding, address, place) = if chunked {
        let scratch = Binding { store: Store::Temp(root), row: None };
        let place = "    let o = own % params.n;\n    let chunk = own / params.n;\n";
        (writer.bind_as(scratch, Access::ReadWrite, "f32"), "t".to_string(), place)
    } else {
        let place = "    let o = own;\n    let chunk = 0u;\n";
        let address = writer.address(root, &Index::named("o"));
        (writer.bind(root, Access::ReadWrite), address, place)
    };
    let result = writer.narrowed(binding, "acc");
    let load = format!(
        "            let i = min(first[d] + slab, end[d] - 1u);
{loads}            fours[d] = select(vec4<f32>(start), vec4<f32>({fours}), first[d] + slab < end[d]);
",
        fours = values.join(", "),
    );
    let body = format!(
        "    let t = id.x + id.y * params.width;
    let count = params.n * params.chunks;
    let own = min(t, count - 1u);
    let lane = id.x % 64u;
{place}    firsts[lane] = o * {row}u + chunk * {chunk}u;
    ends[lane] = o * {row}u + min({row}u, (chunk + 1u) * {chunk}u);
    workgroupBarrier();
    var first: array<u32, 8>;
    var end: array<u32, 8>;
    for (var d = 0u; d < 8u; d++) {{
        first[d] = firsts[lane / 8u + 8u * d] + lane % 8u;
        end[d] = ends[lane / 8u + 8u * d];
    }}
{reduced}    if t < count {{ b{binding}[{address}] = {result}; }}
",
        reduced = slabs(kind, row.min(chunk), &load),
    );
    writer.finish::<ReduceParams>(unit_name(graph, fusion, unit), &body)
}

/// Returns the statements with which the invocations of a workgroup reduce a chunk each to `acc`. A chunk has
/// at most so many fours. All invocations together load slabs of eight fours of each chunk and put them into
/// workgroup memory. `load` sets four `d` of an invocation's part of a slab.
pub(super) fn slabs(kind: ReduceKind, most: usize, load: &str) -> String {
    let (start, joined) = joined(kind);
    let joins: String = ["x", "y", "z", "w"]
        .iter()
        .map(|lane| format!("            acc = {};\n", joined.replace('$', &format!("four.{lane}"))))
        .collect();
    // The slabs are counted to a number that no compiler knows, so that it does not write them out.
    format!(
        "    let start = {start};
    var acc = start;
    for (var slab = 0u; slab < {most}u + params.zero; slab += 8u) {{
        var fours: array<vec4<f32>, 8>;
        for (var d = 0u; d < 8u; d++) {{
{load}        }}
        for (var d = 0u; d < 8u; d++) {{ staged[(lane / 8u + 8u * d) * 9u + lane % 8u] = fours[d]; }}
        workgroupBarrier();
        for (var r = 0u; r < 8u; r++) {{
            let four = staged[lane * 9u + r];
{joins}        }}
        workgroupBarrier();
    }}
"
    )
}
