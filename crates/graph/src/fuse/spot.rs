//! Where a product finds the elements of an operand that is only a view of another value.

use super::Fusion;
use super::form::{Digit, Form, Variable, axes, regrouped};
use super::store::{Place, in_order};
use crate::ops::MatMul;
use crate::trace::{Graph, Lowering, NodeId, View, Window};
use crate::values::{Lead, Type};

/// Where the elements of an operand are.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    pub(crate) source: NodeId,
    /// The coordinates in the source, with the lead first where the source has one.
    pub(crate) coords: Vec<Form>,
    /// Coordinates that have to be below a length. An element for which one is not lies on the border.
    pub(crate) inside: Vec<(Form, usize)>,
    pub(crate) fill: Option<f32>,
}

/// Returns whether operand `side` of a product can be read from what it is a view of, if `value` is not in
/// memory.
pub(crate) fn is_readable(
    graph: &Graph,
    fusion: &Fusion,
    product: NodeId,
    side: usize,
    value: NodeId,
) -> bool {
    Spot::find(graph, fusion, product, side, Some(value)).is_some()
}

impl Spot {
    /// Follows the views from operand `side` of a product to a value in memory. `absent` is a stored value
    /// that is taken not to be.
    pub(crate) fn find(
        graph: &Graph,
        fusion: &Fusion,
        product: NodeId,
        side: usize,
        absent: Option<NodeId>,
    ) -> Option<Self> {
        let node = &graph.nodes[product];
        let [a, b] = [node.inputs[0], node.inputs[1]].map(|id| &graph.nodes[id].ty);
        let coords = match &fusion.lowering[product] {
            &Lowering::MatMul { transpose_a, transpose_b, .. } => {
                matrix(a, b, MatMul { transpose_a, transpose_b }, side)
            }
            _ => {
                let (last, rows) = [a, b][side].dims.split_last()?;
                [axes(Variable::Inner, true, rows), axes(Variable::Outer, false, &[*last])].concat()
            }
        };
        Self::follow(graph, fusion, node.inputs[side], coords, absent)
    }

    /// Follows the views from an operand of attention to a value in memory.
    pub(crate) fn heads(
        graph: &Graph,
        fusion: &Fusion,
        operand: NodeId,
        absent: Option<NodeId>,
    ) -> Option<Self> {
        Self::follow(graph, fusion, operand, heads(&graph.nodes[operand].ty)?, absent)
    }

    /// Follows the views from a value whose coordinates are given to a value in memory.
    pub(super) fn follow(
        graph: &Graph,
        fusion: &Fusion,
        mut id: NodeId,
        mut coords: Vec<Form>,
        absent: Option<NodeId>,
    ) -> Option<Self> {
        let (mut inside, mut fill) = (vec![], None);
        loop {
            let lowering = &fusion.lowering[id];
            let in_memory = fusion.stored.contains(&id) && absent != Some(id);
            if in_memory || lowering.is_given() {
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

    pub(crate) fn address(&self, ty: &Type, place: Place) -> Form {
        Form::dot(&self.coords, &ty.strides()).shifted(place.inside as i64).merged()
    }
}

/// Returns the coordinates of the operand of a matrix product.
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

/// Returns the coordinates of an element of attention's operands and results, by layer (a sample and a head),
/// row and column.
pub(crate) fn heads(ty: &Type) -> Option<Vec<Form>> {
    let (outer, matrix) = ty.dims.split_last_chunk::<2>()?;
    let layer = axes(Variable::Layer, ty.lead != Lead::Global, outer);
    let last = [Variable::Outer, Variable::Inner].into_iter().zip(matrix);
    Some(layer.into_iter().chain(last.flat_map(|(variable, &d)| axes(variable, false, &[d]))).collect())
}

/// Returns the distance from one row to the next, and the terms of the layer, of an address that the kernels
/// of attention can find: rows of `width` elements lie at one distance, or are all the same one, and their
/// elements lie one behind the other.
pub(crate) fn layered(address: &Form, width: usize) -> Option<(usize, Vec<(Digit, usize)>)> {
    let of = |variable: Variable| {
        let own = move |(digit, _): &&(Digit, usize)| digit.variable == variable;
        address.terms.iter().filter(own).cloned().collect::<Vec<_>>()
    };
    // A digit that leads does not begin again within its axis.
    let is_one = |terms: &[(Digit, usize)]| {
        terms.iter().all(|(digit, _)| digit.step == 1 && digit.leads) && terms.len() <= 1
    };
    let (rows, columns) = (of(Variable::Outer), of(Variable::Inner));
    let is_side_by_side = is_one(&columns)
        && columns.iter().all(|(_, factor)| *factor == 1)
        && columns.is_empty() == (width <= 1);
    let is_plain = is_one(&rows) && is_side_by_side;
    let step = rows.first().map_or(0, |(_, factor)| *factor);
    (is_plain && address.plus >= 0).then(|| (step, of(Variable::Layer)))
}

pub(super) fn viewed(view: &View, mut coords: Vec<Form>, to: &Type, from: &Type) -> Option<Vec<Form>> {
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
    let d = to.dims.len();
    let sizes = |ty: &Type| [ty.dims[d - 4], ty.dims[d - 3]];
    convolved(window, (sizes(to), sizes(from)), coords, inside);
}

/// Finds the pixel under an element of windows. The last four of `coords` are the element's (down, across,
/// kh, kw). The first two of these become the row and the column of the pixel. `windows` is the number of
/// windows down and across, and `image` the height and width of the image. A row or column that may lie
/// outside of the image is added to `inside`, with the length that it has to be below.
pub(super) fn convolved(
    window: &Window,
    (windows, image): ([usize; 2], [usize; 2]),
    coords: &mut [Form],
    inside: &mut Vec<(Form, usize)>,
) {
    let n = coords.len();
    for axis in 0..2 {
        let Window { stride, dilation, padding, kernel } = window;
        let (windows, image) = (windows[axis], image[axis]);
        let at = coords[n - 4 + axis].scaled(stride[axis]).add(coords[n - 2 + axis].scaled(dilation[axis]));
        let at = at.shifted(-(padding[axis] as i64));
        let reach = (windows - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis];
        if padding[axis] > 0 || reach >= image {
            inside.push((at.clone(), image));
        }
        coords[n - 4 + axis] = at;
    }
}
