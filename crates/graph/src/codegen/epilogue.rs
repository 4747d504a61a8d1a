//! The epilogue of a product's kernel: the map that it applies to its sums before it stores them.

use unisono_shaders::snippets;

use super::addends::addends;
use super::affine::Affine;
use super::index::{Index, decode, regroup};
use super::writer::Writer;
use super::{Binding, unit_name};
use crate::fuse::{Fusion, Stores, Unit};
use crate::plan::Access;
use crate::trace::{Graph, Lowering};
use crate::values::{Lead, Type};

/// The epilogue: the function `finish` of a product's kernel.
#[derive(Clone, Debug)]
pub struct Epilogue {
    /// The text of the function and of its bindings.
    pub wgsl: String,
    /// The bindings in order. The first one is binding 4, behind those of the product itself.
    pub stores: Vec<Binding>,
    /// How the epilogue uses each of its bindings.
    pub accesses: Vec<Access>,
    /// Whether a binding is f16.
    pub halves: bool,
    /// Whether the text has the function that rounds to f16.
    pub rounds: bool,
    /// The params `s0` and so on: where parts of memories and slices start.
    pub starts: Vec<u32>,
    /// The ops of the epilogue as a part of the kernel's name, for example `[add, relu]`.
    pub name: String,
    /// What the epilogue adds, the first two numbers first, if that is all it does.
    pub added: Option<Vec<Addend>>,
}

/// A number that an epilogue adds.
#[derive(Clone, Debug)]
pub enum Addend {
    /// The product's own sum.
    Product,
    /// An element of a binding, whose vector of four is at this place by the `row` and by the vector `j` of a
    /// row.
    Stored {
        /// The number of the binding among the epilogue's.
        binding: usize,
        /// The place as WGSL.
        vector: String,
    },
}

/// The four sums of a product that an epilogue takes.
pub(super) const GIVEN: [&str; 4] = ["x.x", "x.y", "x.z", "x.w"];

/// Returns the epilogue of a product that has a map behind it. The function takes four elements of a row at
/// once. The first of them is element `at` of the result, at a row and column of it, and the row goes on for
/// `last` elements after the first. Unless the element is there, the function stores nothing. It rounds the
/// sums of a product that is rounded to f16.
pub fn epilogue(graph: &Graph, fusion: &Fusion, stores: &Stores, unit: &Unit) -> Option<Epilogue> {
    let product = unit.product?;
    if unit.roots == [product] {
        return None;
    }
    // Axes may have been split or joined since the product.
    let (ty, own) = (&graph.nodes[unit.roots[unit.roots.len() - 1]].ty, &graph.nodes[product].ty);
    let width = *own.dims.last()?;
    let fours = width.is_multiple_of(4);
    let lead = usize::from(ty.lead != Lead::Global);
    let mut writer = Writer::new(graph, fusion, stores, unit);
    let (sums, rounded) = match fusion.lowering[product] {
        Lowering::MatMul { rounds: true, .. } => {
            writer.snippets.insert(snippets::ROUND_HALF);
            let each = ["x", "y", "z", "w"].map(|lane| format!("round_half(sums.{lane})"));
            ("sums", format!("    let x = vec4<f32>({});\n", each.join(", ")))
        }
        _ => ("x", String::new()),
    };
    let mut results = vec![Vec::new(); unit.roots.len()];
    let mut added = None;
    for (lane, given) in GIVEN.into_iter().enumerate() {
        let (index, column) = match fours {
            true => (Affine::name("i", None), Affine::name("j", Some(width / 4))),
            false => (Affine::name("at", None), Affine::name("column", Some(width))),
        };
        let [index, column] = [index, column].map(|first| match fours {
            true => first.times(4).plus(lane),
            false => first.add(Affine::at_most("last", lane)),
        });
        let coords = coords(own, column);
        let axes = regroup(&coords[lead..], &own.dims, &ty.dims);
        let shown = coords[..lead].iter().cloned().chain(axes).collect();
        writer.enter_result(&index, [(own, coords), (ty, shown)], fours.then_some(lane), given);
        for (&root, values) in unit.roots.iter().zip(&mut results) {
            values.push(writer.value(root, &Index::Linear(index.clone())));
        }
        if let ([name], [_], true) = (&*results[0], &*unit.roots, fours && rounded.is_empty()) {
            added = addends(&writer, name);
        }
    }
    let others: Vec<String> =
        unit.roots[1..].iter().zip(&results[1..]).map(|(&root, values)| writer.store(root, values)).collect();
    let stores = match others.is_empty() {
        true => String::new(),
        false => format!("    if is_there {{\n{}    }}\n", others.concat()),
    };
    let wgsl = format!(
        "{}{}fn finish(at: u32, last: u32, row: u32, column: u32, is_there: bool, {sums}: vec4<f32>) -> vec4<f32> {{\n    \
         let i = at / 4u;\n    let j = column / 4u;\n{rounded}{}{}{stores}    return vec4<f32>({});\n}}\n",
        writer.snippets(),
        writer.declarations(4),
        writer.shared,
        writer.body,
        results[0].join(", ")
    );
    let name = unit_name(graph, fusion, unit);
    let name = name.find('[').map_or("", |at| &name[at..]).to_owned();
    let (halves, starts) = (writer.has_halves(), writer.starts.numbers());
    let rounds = writer.snippets.contains(&snippets::ROUND_HALF);
    let accesses = writer.accesses();
    Some(Epilogue { wgsl, halves, rounds, starts, accesses, stores: writer.stores(), name, added })
}

/// Returns the coordinates of a result's element in its `row`, all axes but the last taken as one.
fn coords(ty: &Type, column: Affine) -> Vec<Affine> {
    let (_, axes) = ty.dims.split_last().unwrap_or((&1, &[]));
    let rows: usize = axes.iter().product();
    let row = Affine::name("row", None);
    let mut coords = match ty.lead {
        Lead::Global => decode(&row, axes),
        _ => std::iter::once(row.divided(rows)).chain(decode(&row.remainder(rows), axes)).collect(),
    };
    coords.push(column);
    coords
}
