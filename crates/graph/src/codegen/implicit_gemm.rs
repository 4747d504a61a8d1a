//! What a product's kernel reads in place of a matrix that is only a view: each element from where it is stored. The windows
//! of a convolution's image are never in memory that way.

use super::Binding;
use super::form::{Form, Variable, axes, regrouped};
use super::index::literal;
use crate::fuse::Fusion;
use crate::graph::{Graph, NodeId};
use crate::op::{Lowering, View};
use crate::ops::{MatMul, Window};
use crate::store::{Place, Stores, in_order};
use crate::types::{Lead, Type, strides};

/// An operand of a product as functions of its kernel: `a_rows` and `a_load`, or `b_columns` and `b_load`.
#[derive(Clone, Debug)]
pub struct ImplicitOperand {
    /// The functions, with the binding they load from.
    pub wgsl: String,
    /// That binding.
    pub store: Binding,
    /// Whether it is f16.
    pub halves: bool,
}

/// Where the elements of an operand are.
struct Spot {
    source: NodeId,
    /// The lead first, where the source has one.
    coords: Vec<Form>,
    /// What has to be below a length: elsewhere it is the border.
    inside: Vec<(Form, usize)>,
    fill: Option<f32>,
}

/// Whether operand `side` of a product can be read from what it is a view of, if `value` is not in memory.
pub fn is_readable(graph: &Graph, fusion: &Fusion, product: NodeId, side: usize, value: NodeId) -> bool {
    Spot::find(graph, fusion, product, side, Some(value)).is_some()
}

/// Operand `side` of a product, where it is not in memory.
pub fn operand(
    graph: &Graph,
    fusion: &Fusion,
    stores: &Stores,
    product: NodeId,
    side: usize,
) -> Option<ImplicitOperand> {
    let value = in_order(graph, fusion, graph.nodes[product].inputs[side]);
    if fusion.stored.contains(&value)
        || matches!(fusion.lowering[value], Lowering::Leaf | Lowering::SumShards)
    {
        return None;
    }
    let spot = Spot::find(graph, fusion, product, side, None)?;
    let ty = &graph.nodes[spot.source].ty;
    let place = stores.place(spot.source);
    let halves = stores.is_half(place.store);
    let text = Text { side, spot: &spot, address: spot.address(ty, place), halves };
    let store = Binding { store: place.store, row: (ty.lead == Lead::Sample).then(|| place.row(ty.count())) };
    Some(ImplicitOperand { wgsl: text.wgsl(), store, halves })
}

impl Spot {
    /// `absent`: a stored value that is taken to be none.
    fn find(
        graph: &Graph,
        fusion: &Fusion,
        product: NodeId,
        side: usize,
        absent: Option<NodeId>,
    ) -> Option<Self> {
        let node = &graph.nodes[product];
        let [a, b] = [node.inputs[0], node.inputs[1]].map(|id| &graph.nodes[id].ty);
        let mut coords = match &fusion.lowering[product] {
            &Lowering::MatMul { transpose_a, transpose_b, .. } => {
                matrix(a, b, MatMul { transpose_a, transpose_b }, side)
            }
            _ => {
                let (last, rows) = [a, b][side].dims.split_last()?;
                [axes(Variable::Inner, true, rows), axes(Variable::Outer, false, &[*last])].concat()
            }
        };
        let (mut id, mut inside, mut fill) = (node.inputs[side], vec![], None);
        loop {
            let lowering = &fusion.lowering[id];
            let in_memory = fusion.stored.contains(&id) && absent != Some(id);
            if in_memory || matches!(lowering, Lowering::Leaf | Lowering::SumShards) {
                // What is summed over shards, or a part of something, does not lie in one piece.
                let is_part = fusion.parts.contains_key(&in_order(graph, fusion, id));
                let is_whole = !is_part && graph.nodes[id].ty.lead != Lead::Shard;
                return is_whole.then_some(Self { source: id, coords, inside, fill });
            }
            let input = *graph.nodes[id].inputs.first()?;
            let (to, from) = (&graph.nodes[id].ty, &graph.nodes[input].ty);
            let lead = usize::from(to.lead != Lead::Global);
            let mut border = |new: f32| {
                let same = fill.is_none_or(|old: f32| old.to_bits() == new.to_bits());
                fill = Some(new);
                same && new.is_finite()
            };
            match lowering {
                Lowering::View(view) => coords = viewed(view, coords, to, from)?,
                Lowering::Pad(before) => {
                    border(0.0).then_some(())?;
                    for (axis, (&first, &length)) in before.iter().zip(&from.dims).enumerate() {
                        if first > 0 || length < to.dims[axis] {
                            let own = std::mem::take(&mut coords[lead + axis]).shifted(-(first as i64));
                            inside.push((own.clone(), length));
                            coords[lead + axis] = own;
                        }
                    }
                }
                Lowering::Im2Col { window, fill } => {
                    border(*fill).then_some(())?;
                    im2col(window, to, from, &mut coords, &mut inside);
                }
                _ => return None,
            }
            id = input;
        }
    }

    fn address(&self, ty: &Type, place: Place) -> Form {
        let mut steps = strides(&ty.dims);
        if ty.lead != Lead::Global {
            steps.insert(0, ty.count());
        }
        Form::dot(&self.coords, &steps).shifted(place.inside as i64).merged()
    }
}

/// The coordinates of a matrix product's operand.
fn matrix(a: &Type, b: &Type, product: MatMul, side: usize) -> Vec<Form> {
    let ty = [a, b][side];
    let samples = ty.lead != Lead::Global;
    let n = ty.dims.len();
    let rows = side == 0 && MatMul::is_rows(a, b);
    if rows || side == 1 && product.across(a, b).is_some() {
        let outer = axes(Variable::Outer, samples, &ty.dims[..n - 1]);
        return [outer, axes(Variable::Inner, false, &ty.dims[n - 1..])].concat();
    }
    let mut last = [Variable::Outer, Variable::Inner];
    if [product.transpose_a, !product.transpose_b][side] {
        last.reverse();
    }
    let each = |(variable, d): (Variable, &usize)| axes(variable, false, &[*d]);
    let matrix = last.into_iter().zip(&ty.dims[n - 2..]).flat_map(each);
    axes(Variable::Layer, samples, &ty.dims[..n - 2]).into_iter().chain(matrix).collect()
}

fn viewed(view: &View, mut coords: Vec<Form>, to: &Type, from: &Type) -> Option<Vec<Form>> {
    let lead = usize::from(to.lead != Lead::Global);
    match view {
        View::Reshape => {
            let own = regrouped(&coords[lead..], &to.dims, &from.dims)?;
            coords.truncate(lead);
            coords.extend(own);
        }
        View::Broadcast => {
            let kept = usize::from(from.lead != Lead::Global);
            let tail = coords.split_off(lead + to.dims.len() - from.dims.len());
            coords.truncate(kept);
            let repeats = |(form, &d): (Form, &usize)| if d == 1 { Form::default() } else { form };
            coords.extend(tail.into_iter().zip(&from.dims).map(repeats));
        }
        View::Slice(start) => {
            for (coord, &start) in coords[lead..].iter_mut().zip(start) {
                coord.plus += start as i64;
            }
        }
        View::Permute(order) => {
            let own = coords.split_off(lead);
            let mut moved = vec![Form::default(); own.len()];
            own.into_iter().zip(order).for_each(|(form, &axis)| moved[axis] = form);
            coords.extend(moved);
        }
    }
    Some(coords)
}

fn im2col(window: &Window, to: &Type, from: &Type, coords: &mut [Form], inside: &mut Vec<(Form, usize)>) {
    let (n, d) = (coords.len(), to.dims.len());
    for axis in 0..2 {
        let Window { stride, dilation, padding, kernel } = window;
        let (windows, image) = (to.dims[d - 4 + axis], from.dims[d - 4 + axis]);
        let at = coords[n - 4 + axis].scaled(stride[axis]).add(coords[n - 2 + axis].scaled(dilation[axis]));
        let at = at.shifted(-(padding[axis] as i64));
        let reach = (windows - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis];
        if padding[axis] > 0 || reach >= image {
            inside.push((at.clone(), image));
        }
        coords[n - 4 + axis] = at;
    }
}

/// The functions' text.
struct Text<'a> {
    side: usize,
    spot: &'a Spot,
    address: Form,
    halves: bool,
}

impl Text<'_> {
    /// The variable along which four elements come at once.
    fn fours(&self) -> Option<Variable> {
        let along = |variable: &Variable| self.address.comes_in_fours(*variable);
        [Variable::Inner, Variable::Outer].into_iter().find(along).filter(|_| self.spot.inside.is_empty())
    }

    fn wgsl(&self) -> String {
        let [x, outer, lines, size] =
            [["a", "rows", "ARows", "m"], ["b", "columns", "BColumns", "n"]][self.side];
        let (held, fours) = (if self.halves { "f16" } else { "f32" }, self.fours());
        let held = if fours.is_some() { format!("vec4<{held}>") } else { held.into() };
        // The address, and each coordinate that has a border.
        let forms: Vec<(String, &Form)> = std::iter::once(("at".to_string(), &self.address))
            .chain(self.spot.inside.iter().enumerate().map(|(i, (form, _))| (format!("c{i}"), form)))
            .collect();
        let vector = "vec4<u32>";
        let fields: Vec<String> = forms.iter().map(|(name, _)| format!("{name}: {vector}")).collect();
        let name = |variable| match (variable, self.side) {
            (Variable::Layer, 0) => "own.a",
            (Variable::Layer, _) => "own.b",
            (Variable::Outer, _) => "o",
            (Variable::Inner, _) => "q",
        };
        let outside = |form: &Form| {
            let own = Form { plus: form.plus, ..form.of(&[Variable::Layer, Variable::Outer]) };
            own.wgsl(vector, name)
        };
        let outers: Vec<String> = forms.iter().map(|(_, form)| outside(form)).collect();
        let inners: String = forms
            .iter()
            .map(|(field, form)| {
                format!("    let {field} = {};\n", form.of(&[Variable::Inner]).wgsl(vector, name))
            })
            .collect();
        // Four side by side begin at a multiple of four, the last of them too.
        let last = if fours == Some(Variable::Outer) {
            format!("(params.{size} - 1u) / 4u * 4u")
        } else {
            format!("params.{size} - 1u")
        };
        let (arguments, body) = match self.side {
            0 => (format!("own: Part, {outer}: {lines}, p: u32"), self.block(outer)),
            _ => (format!("own: Part, p: u32, {outer}: {lines}"), self.block(outer)),
        };
        format!(
            "@group(0) @binding({binding}) var<storage, read> {x}: array<{held}>;\n\
             struct {lines} {{ {fields} }}\n\
             fn {x}_{outer}(own: Part, i: u32) -> {lines} {{\n    \
             let o = min(vec4<u32>(i, i + 1u, i + 2u, i + 3u), vec4<u32>({last}));\n    \
             return {lines}({outers});\n}}\n\
             fn {x}_load({arguments}) -> mat4x4<f32> {{\n    \
             let q = min(vec4<u32>(p, p + 1u, p + 2u, p + 3u), vec4<u32>(own.end - 1u));\n\
             {inners}    var block: mat4x4<f32>;\n{body}}}\n",
            binding = self.side + 1,
            fields = fields.join(", "),
            outers = outers.join(", "),
        )
    }

    /// Loads of a block: line by line of the outer variable for a, of the inner one for b.
    fn block(&self, outer: &str) -> String {
        let x = ["a", "b"][self.side];
        let by_outer = self.side == 0;
        if let Some(along) = self.fours() {
            let at = match along {
                Variable::Inner => format!("{outer}.at[e] + at.x"),
                _ => format!("{outer}.at.x + at[e]"),
            };
            let block = if (along == Variable::Inner) == by_outer { "block" } else { "transpose(block)" };
            return format!(
                "    for (var e = 0u; e < 4u; e++) {{ block[e] = vec4<f32>({x}[({at}) / 4u]); }}\n    \
                 return {block};\n"
            );
        }
        let sum = |field: &str| {
            if by_outer {
                format!("{outer}.{field}[e] + {field}")
            } else {
                format!("{outer}.{field} + {field}[e]")
            }
        };
        let below = |(i, (_, length)): (usize, &(Form, usize))| {
            format!("(({}) < vec4<u32>({length}u))", sum(&format!("c{i}")))
        };
        let inside: Vec<String> = self.spot.inside.iter().enumerate().map(below).collect();
        let loaded = format!("vec4<f32>(vec4({x}[at_e.x], {x}[at_e.y], {x}[at_e.z], {x}[at_e.w]))");
        let (at, loaded, is_inside) = if inside.is_empty() {
            (sum("at"), loaded, String::new())
        } else {
            let fill = literal(self.spot.fill.unwrap_or_default());
            (
                format!("select(vec4<u32>(), {}, inside)", sum("at")),
                format!("select(vec4<f32>({fill}), {loaded}, inside)"),
                format!("        let inside = {};\n", inside.join(" & ")),
            )
        };
        format!(
            "    for (var e = 0u; e < 4u; e++) {{\n{is_inside}        let at_e = {at};\n        block[e] = {loaded};\n    }}\n    \
             return block;\n"
        )
    }
}
