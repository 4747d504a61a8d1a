//! Products whose columns are folded into images: the gradient of a convolution by its image, and transposed
//! convolutions. The product multiplies the pixels of all windows, `[channels * kh * kw, windows]`, and a
//! reduction adds up what lies on each pixel ([`crate::Var::fold`]).
//!
//! One kernel can compute both, so the product's result needs no memory. The columns of this kernel's product
//! are the pixels of the image. Its inner range has a segment for each place (kh, kw) of a window. For each
//! pixel, the segment multiplies the weights of its place with the window that has the pixel at this place.
//!
//! Where windows lie one pixel apart, the windows that hold a pixel lie side by side. So they are a window
//! over the grid of all windows, with its places in reverse order, and are read as a convolution reads its
//! image.

use super::form::{Form, Variable, axes};
use super::spot::{Spot, convolved, viewed};
use super::store::{Place, Stores, in_order};
use super::{Fusion, Unit, UnitKind};
use crate::ops::MatMul;
use crate::trace::{Graph, Lowering, NodeId, ReduceKind, Window};
use crate::values::tree::{PRODUCT_CHUNK, SUM_CHUNK};
use crate::values::{Lead, strides};

/// A product and the fold behind it.
///
/// Both are computed when it is the product's turn. The result must therefore have a memory of its own: units
/// between the product and the fold could still read anything else there.
///
/// If no window has a pixel at a place, the kernel multiplies the weights of that place with zeros. The fold
/// would add 0, and so does the kernel if the weights are finite.
#[derive(Clone, Debug)]
pub(crate) struct FoldedProduct {
    /// The unit of the product.
    pub product: usize,
    /// The unit of the reduction.
    pub fold: usize,
    /// The weights, `[outputs, channels * places]`.
    pub weights: Place,
    /// Where the right operand is: its outer variable counts the pixels of all samples, and the inner one
    /// `[places, outputs]`.
    pub spot: Spot,
    /// The inner size of the product, which is that of a segment.
    pub outputs: usize,
    /// The channels of the images.
    pub channels: usize,
    /// The places in a window.
    pub places: usize,
    /// The pixels of an image.
    pub pixels: usize,
}

impl FoldedProduct {
    /// Returns the folded products of a graph.
    pub fn all(graph: &Graph, fusion: &Fusion, stores: &Stores) -> Vec<Self> {
        let folds = fusion.units.iter().enumerate().filter(|(_, unit)| unit.kind == UnitKind::Reduce);
        let folds: Vec<(usize, Fold)> =
            folds.filter_map(|(at, unit)| Some((at, Fold::of(graph, fusion, unit)?))).collect();
        if folds.is_empty() {
            return vec![];
        }
        let (readers, needed) = (fusion.readers(graph), fusion.needed(graph));
        let is_alone = |value: NodeId, fold: usize| {
            !needed.contains(&value) && readers.get(&value).is_some_and(|units| units.iter().eq([&fold]))
        };
        let product = |value: NodeId| {
            let is_own = |unit: &Unit| unit.roots[..] == [value] && unit.product == Some(value);
            fusion.units.iter().position(is_own)
        };
        let of = |(at, fold): (usize, Fold)| {
            let product = product(fold.product).filter(|_| is_alone(fold.product, at))?;
            let is_near = fusion.units[product].segment == fusion.units[at].segment;
            is_near.then(|| fold.multiplied(graph, fusion, stores, (product, at)))?
        };
        folds.into_iter().filter_map(of).collect()
    }
}

/// A reduction that folds a product.
struct Fold {
    product: NodeId,
    window: Window,
    /// The height and width of the images.
    image: [usize; 2],
    /// The windows down and across.
    windows: [usize; 2],
    channels: usize,
}

impl Fold {
    /// Returns what a reduction folds, if it does.
    fn of(graph: &Graph, fusion: &Fusion, unit: &Unit) -> Option<Self> {
        let root = unit.roots[0];
        let Lowering::Reduce(reduction) = &fusion.lowering[root] else { return None };
        let moved = graph.nodes[root].inputs[0];
        let Lowering::Col2Im { window } = &fusion.lowering[moved] else { return None };
        let dims = &graph.nodes[moved].ty.dims;
        let (rest, [h, w, kh, kw]) = dims.split_last_chunk::<4>()?;
        // An axis of length 1 is summed or not.
        let longer = |axis: &usize| dims[*axis] > 1;
        let places = (rest.len() + 2..dims.len()).filter(longer);
        let is_sum = reduction.kind == ReduceKind::Sum
            && !reduction.samples
            && places.eq(reduction.axes.iter().copied().filter(longer));
        if fusion.stored.contains(&moved) || !is_sum || window.stride != [1, 1] || kh * kw > SUM_CHUNK {
            return None;
        }
        // From the windows' elements, [..., down, across, kh, kw], to those of the product.
        let mut id = graph.nodes[moved].inputs[0];
        let from = &graph.nodes[id].ty;
        let windows: [usize; 2] = [from.dims[rest.len()], from.dims[rest.len() + 1]];
        let own = axes(Variable::Outer, from.lead != Lead::Global, &from.dims);
        let mut coords = own.clone();
        while !fusion.stored.contains(&id) {
            let Lowering::View(view) = &fusion.lowering[id] else { return None };
            let input = graph.nodes[id].inputs[0];
            coords = viewed(view, coords, &graph.nodes[id].ty, &graph.nodes[input].ty)?;
            id = input;
        }
        // Row (channel, kh, kw) and column (down, across) are expected.
        let (lead, own) = own.split_first().filter(|_| from.lead == Lead::Sample)?;
        let (channel, [down, across, y, x]) = own.split_last_chunk::<4>()?;
        let row = Form::dot(channel, &strides(rest)).scaled(kh * kw).add(y.scaled(*kw)).add(x.clone());
        let column = down.scaled(windows[1]).add(across.clone());
        let expected = [lead.clone(), row, column].map(Form::merged);
        let found: Vec<Form> = coords.into_iter().map(Form::merged).collect();
        (found == expected).then(|| Self {
            product: id,
            window: window.clone(),
            image: [*h, *w],
            windows,
            channels: rest.iter().product(),
        })
    }

    /// Returns the product and the fold as one, if a kernel can find the product's operands.
    fn multiplied(
        &self,
        graph: &Graph,
        fusion: &Fusion,
        stores: &Stores,
        (product, fold): (usize, usize),
    ) -> Option<FoldedProduct> {
        let Lowering::MatMul { transpose_a: true, transpose_b: true, rounds: false } =
            fusion.lowering[self.product]
        else {
            return None;
        };
        let [weights, right] = graph.nodes[self.product].inputs[..] else { return None };
        let (wt, rt) = (&graph.nodes[weights].ty, &graph.nodes[right].ty);
        let own = MatMul { transpose_a: true, transpose_b: true };
        let [outputs, rows] = wt.dims[..] else { return None };
        let Window { dilation, padding, kernel: [kh, kw], .. } = &self.window;
        let (places, pixels) = (kh * kw, self.image[0] * self.image[1]);
        let root = fusion.units[fold].roots[0];
        let stored = stores.place(in_order(graph, fusion, weights));
        let is_stored = |id: NodeId| {
            let id = in_order(graph, fusion, id);
            fusion.stored.contains(&id) || matches!(fusion.lowering[id], Lowering::Leaf)
        };
        let result = stores.place(root);
        let fits = wt.lead == Lead::Global
            && own.across(wt, rt).is_some()
            && rows == self.channels * places
            && is_stored(weights)
            && stored.runs.is_none()
            && stores.lies_alone(root)
            && ![stored.store, result.store].iter().any(|&store| stores.is_half(store))
            && outputs.is_multiple_of(4)
            && pixels.is_multiple_of(4)
            && outputs <= PRODUCT_CHUNK;
        if !fits {
            return None;
        }
        let reach = |axis: usize, size: usize| (dilation[axis] * (size - 1)).checked_sub(padding[axis]);
        let turned = Window { padding: [reach(0, *kh)?, reach(1, *kw)?], ..self.window.clone() };
        // Where the elements of a window are, and then which window it is.
        let windows = axes(Variable::Outer, true, &self.windows);
        let inner = axes(Variable::Inner, false, &[*kh, *kw, outputs]);
        let window = windows[1].scaled(self.windows[1]).add(windows[2].clone());
        let coords = vec![windows[0].clone(), window, inner[2].clone()];
        let found = Spot::follow(graph, fusion, right, coords, None)?;
        let is_plain = found.inside.is_empty() && !stores.is_half(stores.place(found.source).store);
        let mut at = [&axes(Variable::Outer, true, &self.image)[..], &inner[..2]].concat();
        let mut inside = vec![];
        convolved(&turned, (self.image, self.windows), &mut at, &mut inside);
        let of_windows: Vec<(&Form, &Form)> = windows.iter().zip(&at).collect();
        let coords = found.coords.iter().map(|coord| replaced(coord, &of_windows));
        let spot = Spot { coords: coords.collect::<Option<_>>()?, inside, fill: Some(0.0), ..found };
        is_plain.then_some(FoldedProduct {
            product,
            fold,
            weights: stored,
            spot,
            outputs,
            channels: self.channels,
            places,
            pixels,
        })
    }
}

/// Returns a form with each outer digit replaced. `by` pairs digits with what replaces them. Returns `None`
/// if the form has another outer digit.
fn replaced(form: &Form, by: &[(&Form, &Form)]) -> Option<Form> {
    let plain = Form { terms: vec![], plus: form.plus };
    form.terms.iter().try_fold(plain, |sum, (digit, factor)| {
        let own = Form { terms: vec![(digit.clone(), 1)], plus: 0 };
        let other = match digit.variable {
            Variable::Outer => by.iter().find(|(old, _)| **old == own).map(|(_, new)| (*new).clone())?,
            _ => own,
        };
        Some(sum.add(other.scaled(*factor)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::{StatePlacement, fuse};
    use crate::passes::place_parts;
    use crate::values::Type;
    use crate::{Tape, simplify};

    /// Returns the folded products of a traced graph.
    fn folded(build: impl Fn(&Tape)) -> Vec<FoldedProduct> {
        let tape = Tape::new();
        build(&tape);
        let (graph, parts) = place_parts(&simplify(&tape.finish().unwrap()));
        let fusion = fuse(&graph, parts);
        let stores = Stores::assign(&graph, &fusion, 1 << 20, StatePlacement::Apart);
        FoldedProduct::all(&graph, &fusion, &stores)
    }

    /// Traces the gradient of a convolution by its image, `[channels, h, w]`.
    fn gradient(
        [channels, h, w]: [usize; 3],
        outputs: usize,
        window: &Window,
        groups: usize,
    ) -> impl Fn(&Tape) {
        let window = window.clone();
        move |tape| {
            let [kh, kw] = window.kernel;
            let x = tape.input("x", Type::sample(&[channels, h, w]));
            let weight = tape.input("w", Type::global(&[outputs, channels / groups, kh, kw]));
            let loss = x.conv2d(&weight, &window, groups).tanh().sum_all().sum_shards();
            tape.output("dx", &tape.gradients(&loss, std::slice::from_ref(&x))[0]);
        }
    }

    #[test]
    fn the_gradient_of_a_convolution_by_its_image_is_a_folded_product() {
        let padded = Window { padding: [1, 1], ..Window::new([3, 3]) };
        let [own] = &folded(gradient([8, 8, 6], 12, &padded, 1))[..] else { panic!("one product") };
        assert_eq!((own.outputs, own.channels, own.places, own.pixels), (12, 8, 9, 48));
        assert_eq!(own.spot.inside.len(), 2);
        // Each window lies inside of what is left without padding, but not each pixel has all windows.
        let [own] = &folded(gradient([8, 8, 6], 12, &Window::new([3, 1]), 1))[..] else { panic!() };
        assert_eq!((own.places, own.spot.inside.len()), (3, 1));
        let spread = Window { dilation: [2, 1], padding: [2, 1], ..Window::new([3, 3]) };
        assert_eq!(folded(gradient([8, 8, 6], 12, &spread, 1)).len(), 1);
    }

    #[test]
    fn other_gradients_are_computed_apart_from_their_fold() {
        let padded = Window { padding: [1, 1], ..Window::new([3, 3]) };
        let strided = Window { stride: [1, 2], ..padded.clone() };
        let wide = Window { padding: [3, 1], ..padded.clone() };
        let cases = [
            ("a stride", gradient([8, 8, 6], 12, &strided, 1)),
            ("more padding than a window reaches", gradient([8, 8, 6], 12, &wide, 1)),
            ("groups", gradient([8, 8, 6], 12, &padded, 2)),
            ("outputs that do not come in fours", gradient([8, 8, 6], 10, &padded, 1)),
            ("pixels that do not", gradient([8, 7, 7], 12, &padded, 1)),
            ("outputs of several chunks", gradient([8, 8, 6], PRODUCT_CHUNK + 4, &padded, 1)),
        ];
        for (what, case) in cases {
            assert!(folded(case).is_empty(), "{what}");
        }
    }

    /// Traces a transposed convolution. The axes of its product, `[channels, kh, kw, down, across]`, are
    /// permuted to those of windows. If `shown`, the product is an output.
    fn transposed(axes: [usize; 5], shown: bool) -> impl Fn(&Tape) {
        move |tape| {
            let x = tape.input("x", Type::sample(&[12, 64]));
            let weight = tape.input("w", Type::global(&[12, 8 * 9]));
            let own = MatMul { transpose_a: true, transpose_b: true };
            let columns = tape.apply(own, &[&weight, &x.permute(&[1, 0])]);
            let windows = columns.reshape(&[8, 3, 3, 8, 8]).permute(&axes);
            let window = Window { padding: [1, 1], ..Window::new([3, 3]) };
            tape.output("y", &windows.fold(&window, [8, 8]));
            if shown {
                tape.output("columns", &columns);
            }
        }
    }

    /// A transposed convolution is a folded product too, unless something else needs the product, or kh and
    /// kw have changed places.
    #[test]
    fn a_transposed_convolution_is_a_folded_product() {
        let found = |axes, shown| folded(transposed(axes, shown)).len();
        assert_eq!(found([0, 3, 4, 1, 2], false), 1);
        assert_eq!(found([0, 3, 4, 1, 2], true), 0);
        assert_eq!(found([0, 3, 4, 2, 1], false), 0);
    }
}
