//! Elements that are found elsewhere: views, and lookups that depend on data or have a border.

use super::affine::Affine;
use super::index::{Index, regroup};
use super::starts::Start;
use super::writer::{QUAD, Writer};
use crate::trace::{NodeId, View, Window};
use crate::values::{DType, Lead, Type};

impl Writer<'_> {
    pub(super) fn view(&mut self, id: NodeId, view: &View, index: &Index) -> String {
        let input = self.input(id, 0);
        let (to, from) = (self.ty(id), self.ty(input));
        let inner = match view {
            View::Reshape => match index {
                Index::Linear(_) => index.clone(),
                Index::Coords(c) => {
                    let lead = usize::from(to.lead != Lead::Global);
                    let coords = regroup(&c[lead..], &to.dims, &from.dims);
                    Index::Coords(c[..lead].iter().cloned().chain(coords).collect())
                }
            },
            View::Broadcast => self.broadcast(to, from, index),
            View::Slice(start) => {
                let mut coords = self.coords(to, index);
                let lead = usize::from(to.lead != Lead::Global);
                for (axis, &start) in start.iter().enumerate().filter(|(a, _)| to.dims[*a] < from.dims[*a]) {
                    // Along the last axis whole vectors can be loaded, if slices begin and end with one.
                    // Elsewhere a start counts elements, so that slices that begin anywhere share one text.
                    let is_last = axis + 1 == from.dims.len();
                    let has_vectors = [start, to.dims[axis], from.dims[axis]].map(|n| n.is_multiple_of(QUAD));
                    let lanes = if is_last && has_vectors == [true; 3] { QUAD } else { 1 };
                    let start = self.starts.wgsl(Start::Axis(id, axis, lanes), start / lanes);
                    let start = Affine::name(start, None).times(lanes);
                    coords[lead + axis] = coords[lead + axis].clone().add(start);
                }
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

    pub(super) fn broadcast(&self, to: &Type, from: &Type, index: &Index) -> Index {
        if from.count() == 1 && from.lead == Lead::Global {
            return Index::Linear(Affine::default());
        }
        if from == to {
            return index.clone();
        }
        let same_axes = from.dims == to.dims[to.dims.len() - from.dims.len()..];
        // A row that is added to all rows of a product's result has its element by the column.
        let is_row = from.dims.last() == Some(&from.count()) && self.knows_column(to, index);
        if let (Index::Linear(i), true, false, Lead::Global) = (index, same_axes, is_row, from.lead) {
            return Index::Linear(i.remainder(from.count()));
        }
        let coords = self.coords(to, index);
        let (to_lead, from_lead) =
            (usize::from(to.lead != Lead::Global), usize::from(from.lead != Lead::Global));
        let tail = &coords[to_lead + to.dims.len() - from.dims.len()..];
        let own =
            tail.iter().zip(&from.dims).map(|(c, &d)| if d == 1 { Affine::default() } else { c.clone() });
        Index::Coords(coords[..from_lead].iter().cloned().chain(own).collect())
    }

    pub(super) fn take(&mut self, id: NodeId, index: &Index) -> String {
        let [x, at] = [self.input(id, 0), self.input(id, 1)];
        let last = self.ty(x).dims[self.ty(x).dims.len() - 1];
        let chosen = self.value(at, index);
        let place = Affine::at_most(&format!("u32({chosen})"), last.saturating_sub(1));
        let inner = match index {
            Index::Linear(i) => Index::Linear(i.clone().times(last).add(place)),
            Index::Coords(c) => Index::Coords(c.iter().cloned().chain([place]).collect()),
        };
        self.value(x, &inner)
    }

    /// Returns an element of a table's row, which the id names.
    pub(super) fn embed(&mut self, id: NodeId, index: &Index) -> String {
        let [table, ids] = [self.input(id, 0), self.input(id, 1)];
        let mut coords = self.coords(self.ty(id), index);
        let column = coords.pop().unwrap_or_default();
        let chosen = self.value(ids, &Index::Coords(coords));
        let row = Affine::at_most(&format!("u32({chosen})"), self.ty(table).dims[0] - 1);
        self.value(table, &Index::Coords(vec![row, column]))
    }

    /// Returns the operand's element where the place lies inside of it, else 0. The operand is loaded in any
    /// case, at a place that it has.
    pub(super) fn pad(&mut self, id: NodeId, before: &[usize], index: &Index) -> String {
        let input = self.input(id, 0);
        let (to, from) = (self.ty(id), self.ty(input));
        let mut coords = self.coords(to, index);
        let lead = usize::from(to.lead != Lead::Global);
        let mut inside = Vec::new();
        for (axis, (&first, &length)) in before.iter().zip(&from.dims).enumerate() {
            if first == 0 && length == to.dims[axis] {
                continue;
            }
            // Unsigned: what lies before the operand wraps around to a number that is too large.
            let own = match first {
                0 => coords[lead + axis].to_string(),
                first => format!("{} - {first}u", coords[lead + axis]),
            };
            inside.push(format!("{own} < {length}u"));
            coords[lead + axis] = Affine::at_most(&own, length.saturating_sub(1));
        }
        let value = self.value(input, &Index::Coords(coords));
        let zero = if from.dtype == DType::F32 { "0.0" } else { "0" };
        if inside.is_empty() { value } else { format!("select({zero}, {value}, {})", all_of(&inside)) }
    }

    /// Returns the element of a window, or `fill` where it lies on the border.
    pub(super) fn im2col(&mut self, id: NodeId, window: &Window, fill: f32, index: &Index) -> String {
        self.has_windows = true;
        let input = self.input(id, 0);
        let (image, windows) = (last_two(&self.ty(input).dims), last_two(&self.ty(id).dims));
        let mut coords = self.coords(self.ty(id), index);
        let n = coords.len();
        let mut inside = Vec::new();
        for a in 0..2 {
            let (o, k) = (&coords[n - 4 + a], &coords[n - 2 + a]);
            let Window { stride, dilation, padding, kernel } = window;
            let place = o.clone().times(stride[a]).add(k.clone().times(dilation[a]));
            let at = match padding[a] {
                0 => place.to_string(),
                padding => format!("{place} - {padding}u"),
            };
            // Unsigned: what lies before the image wraps around to a number that is too large.
            let reach = (windows[a] - 1) * stride[a] + (kernel[a] - 1) * dilation[a];
            let always = padding[a] == 0 && reach < image[a];
            if always {
                coords[n - 4 + a] = place;
            } else {
                inside.push(format!("{at} < {}u", image[a]));
                coords[n - 4 + a] = Affine::at_most(&at, image[a].saturating_sub(1));
            }
        }
        let value = self.value(input, &Index::Coords(coords));
        let border = super::index::literal(fill);
        if inside.is_empty() { value } else { format!("select({border}, {value}, {})", all_of(&inside)) }
    }

    /// Returns the element that the window which holds a pixel at a given place has there, or 0 where no
    /// window does. With a stride, windows hold a given pixel only at some of their places. If it is already
    /// known here that this place is not one of them, the result is the literal 0 and nothing is loaded.
    pub(super) fn col2im(&mut self, id: NodeId, window: &Window, index: &Index) -> String {
        self.has_windows = true;
        let input = self.input(id, 0);
        let windows = last_two(&self.ty(input).dims);
        let mut coords = self.coords(self.ty(id), index);
        let n = coords.len();
        let mut inside = Vec::new();
        for a in 0..2 {
            let Window { stride, dilation, padding, .. } = window;
            let pixel = coords[n - 4 + a].clone().plus(padding[a]);
            let place = coords[n - 2 + a].clone().times(dilation[a]);
            let [of_pixel, of_place] = [&pixel, &place].map(|number| number.remainder(stride[a]));
            let own = if of_pixel.is_constant() && of_place.is_constant() {
                if of_pixel != of_place {
                    return "0.0".to_owned();
                }
                format!("({} - {})", pixel.divided(stride[a]), place.divided(stride[a]).operand())
            } else {
                let from = format!("({pixel} - {})", place.operand());
                inside.push(format!("{from} % {}u == 0u", stride[a]));
                format!("({from} / {}u)", stride[a])
            };
            // A wrapped number is close to 2^32, and stays too large when divided by any stride below 2^16.
            inside.push(format!("{own} < {}u", windows[a]));
            coords[n - 4 + a] = Affine::at_most(&own, windows[a].saturating_sub(1));
        }
        let value = self.value(input, &Index::Coords(coords));
        format!("select(0.0, {value}, {})", all_of(&inside))
    }
}

/// Returns whether all conditions hold, as WGSL without a branch: naga makes one of each `&&`.
fn all_of(conditions: &[String]) -> String {
    match conditions {
        [one] => one.clone(),
        all => all.iter().map(|one| format!("({one})")).collect::<Vec<_>>().join(" & "),
    }
}

/// Returns the numbers of windows down and across of `[..., down, across, kh, kw]`.
fn last_two(dims: &[usize]) -> [usize; 2] {
    [dims[dims.len() - 4], dims[dims.len() - 3]]
}
