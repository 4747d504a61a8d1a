//! Sums over samples, or over axes that are not the last ones, for GPUs: neighbouring invocations have
//! neighbouring results, and four of a workgroup's invocations share a result. Each of the four goes over a
//! quarter of the chunks, which is a subtree, and the quarters are joined in workgroup memory.

use unisono_shaders::{ReduceParams, snippets};

use super::affine::Affine;
use super::writer::Writer;
use super::{Bound, joined, reduced_index, reduced_length, reduced_range, unit_name};
use crate::fuse::{Fusion, Stores, Unit};
use crate::plan::Access;
use crate::trace::{Graph, ReduceKind, Reduction};
use crate::values::tree::SUM_CHUNK;

/// The invocations of a workgroup, four for each result.
const INVOCATIONS: u32 = 256;
/// The most chunks that an invocation goes over: a power of two.
pub const MOST_CHUNKS: usize = 16;

/// Returns the kernel of reductions of the same elements. Its params are [`ReduceParams`], whose `chunks` are
/// those of an invocation here, a power of two up to [`MOST_CHUNKS`].
pub fn column_kernel(
    graph: &Graph,
    fusion: &Fusion,
    stores: &Stores,
    (units, reduction): (&[&Unit], &Reduction),
) -> Bound {
    let root = units[0].roots[0];
    let from = &graph.nodes[graph.nodes[root].inputs[0]].ty;
    let mut writer = Writer::new(graph, fusion, stores, units[0]);
    writer.snippets.insert(snippets::SUM);
    writer.workgroup = INVOCATIONS;
    writer.indent = "            ".into();
    let result = Affine::name("o", None);
    let index = reduced_index(graph, root, reduction, (&result, &|below| Affine::name("r", below)));
    let (start, joined) = joined(reduction.kind);
    let join = match reduction.kind {
        ReduceKind::Sum => "sum_add",
        ReduceKind::Max => "max_of",
    };
    let levels = MOST_CHUNKS.ilog2() + 1;
    let (mut begin, mut add, mut settle, mut keep, mut store) =
        (String::new(), String::new(), String::new(), String::new(), String::new());
    for (number, unit) in units.iter().enumerate() {
        let value = writer.value(graph.nodes[unit.roots[0]].inputs[0], &index);
        let combined = joined.replace("acc", &format!("acc{number}")).replace('$', &value);
        writer.declared += &format!(
            "var<workgroup> waiting{number}: array<f32, {}>;\nvar<workgroup> quarters{number}: array<f32, {INVOCATIONS}>;\n",
            levels * INVOCATIONS
        );
        begin += &format!("        var acc{number} = {start};\n");
        add += &format!("            acc{number} = {combined};\n");
        settle += &format!(
            "            acc{number} = {join}(waiting{number}[level * {INVOCATIONS}u + lane], acc{number});\n"
        );
        keep += &format!(
            "        waiting{number}[level * {INVOCATIONS}u + lane] = acc{number};\n        \
             quarters{number}[lane] = acc{number};\n"
        );
        let (binding, address) = {
            let binding = writer.bind(unit.roots[0], Access::ReadWrite);
            (binding, writer.address(unit.roots[0], &super::Index::named("o")))
        };
        let all = format!(
            "{join}({join}(quarters{number}[lane], quarters{number}[lane + 64u]), \
             {join}(quarters{number}[lane + 128u], quarters{number}[lane + 192u]))"
        );
        let result = writer.narrowed(binding, &all);
        store += &format!("        b{binding}[{address}] = {result};\n");
    }
    let loads = std::mem::take(&mut writer.body);
    let (prelude, length) = reduced_range(
        &mut writer,
        reduction,
        reduced_length(from, reduction),
        ("o", graph.nodes[root].ty.count()),
    );
    let body = format!(
        "    let lane = id.x % {INVOCATIONS}u;
    let t = id.x / {INVOCATIONS}u * 64u + lane % 64u + id.y * params.width;
    let o = min(t, params.n - 1u);
{prelude}    for (var c = 0u; c < params.chunks; c++) {{
        let chunk = lane / 64u * params.chunks + c;
        let end = min({length}, (chunk + 1u) * {SUM_CHUNK}u);
{begin}        for (var r = chunk * {SUM_CHUNK}u; r < end; r++) {{
{loads}{add}        }}
        // What waits are subtrees of 1, 2, 4, ... chunks.
        var level = 0u;
        for (var bits = c; bits % 2u == 1u; bits /= 2u) {{
{settle}            level++;
        }}
{keep}    }}
    workgroupBarrier();
    if lane < 64u && t < params.n {{
{store}    }}
"
    );
    let names: Vec<String> = units.iter().map(|unit| unit_name(graph, fusion, unit)).collect();
    writer.finish::<ReduceParams>(format!("columns[{}]", names.join(", ")), &body)
}
