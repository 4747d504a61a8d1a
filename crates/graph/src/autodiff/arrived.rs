//! The sums of gradients that several users of a value send.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::ops::{Concat, Contract, EmbedGradient};
use crate::trace::{Lowering, Var};
use crate::values::Lead;

/// The gradients that arrived at a node so far. Those with a lead of shards are kept apart, so that the sum
/// over shards is made once, of the total.
#[derive(Default)]
pub(super) struct Arrived {
    own: Option<Var>,
    shard: Option<Var>,
    /// The gradients of slices along one axis that do not overlap, by where they start and end. They are put
    /// side by side instead of being added.
    slices: BTreeMap<(usize, usize), Boxed>,
    /// The factors of products over samples in each unrolled loop, by the loop and whether they stay in f32.
    /// They become one product.
    steps: BTreeMap<(usize, bool), Vec<[Var; 2]>>,
    /// The gradients of lookups in a table, which have few rows that are not 0. Each is summed over the
    /// shards on its own, so that no shard has a table of its own in memory.
    lookups: Vec<Var>,
}

/// The gradient of a slice along one axis.
struct Boxed {
    axis: usize,
    range: Range<usize>,
    inside: Var,
    padded: Var,
}

impl Boxed {
    fn of(dy: &Var) -> Option<Self> {
        let node = dy.tape().node(dy.id());
        let Lowering::Pad(before) = node.op.lowering() else { return None };
        let inside = dy.tape().var(node.inputs[0]);
        let mut padded = (0..dy.dims().len()).filter(|&axis| dy.dims()[axis] != inside.dims()[axis]);
        match (padded.next(), padded.next()) {
            (Some(axis), None) => {
                let range = before[axis]..before[axis] + inside.dims()[axis];
                Some(Self { axis, range, inside, padded: dy.clone() })
            }
            _ => None,
        }
    }

    fn key(&self) -> (usize, usize) {
        (self.range.start, self.range.end)
    }

    /// Returns whether the slice is beside all others, which are beside each other. It is therefore enough to
    /// check its two neighbours.
    fn is_beside(&self, others: &BTreeMap<(usize, usize), Self>) -> bool {
        let beside = |other: &Self| {
            let apart = self.range.end <= other.range.start || other.range.end <= self.range.start;
            self.axis == other.axis && apart && self.inside.ty().lead == other.inside.ty().lead
        };
        let before = others.range(..self.key()).next_back();
        let behind = others.range(self.key()..).next();
        before.into_iter().chain(behind).all(|(_, other)| beside(other))
    }
}

/// Returns the factors of a product over samples with one row each.
fn one_row(dy: &Var) -> Option<[Var; 2]> {
    let node = dy.tape().node(dy.id());
    let is_product = matches!(node.op.lowering(), Lowering::Contract);
    let factors = || [0, 1].map(|i| dy.tape().var(node.inputs[i]));
    is_product.then(factors).filter(|factors| factors.iter().all(|v| v.dims().len() == 1))
}

impl Arrived {
    /// Adds the gradient that a user of the node sent, which may be in an unrolled loop.
    pub fn add(&mut self, dy: Var, unrolled: Option<usize>) {
        if let (Some(unrolled), Some(factors)) = (unrolled, one_row(&dy)) {
            let is_in_f32 = dy.tape().is_in_f32(dy.id());
            self.steps.entry((unrolled, is_in_f32)).or_default().push(factors);
            return;
        }
        if dy.ty().lead == Lead::Shard && dy.tape().node(dy.id()).op.is::<EmbedGradient>() {
            self.lookups.push(dy);
            return;
        }
        match Boxed::of(&dy).filter(|new| new.is_beside(&self.slices)) {
            Some(boxed) => _ = self.slices.insert(boxed.key(), boxed),
            None => self.add_up(dy),
        }
    }

    pub fn add_up(&mut self, dy: Var) {
        let place = if dy.ty().lead == Lead::Shard { &mut self.shard } else { &mut self.own };
        *place = Some(place.take().map_or_else(|| dy.clone(), |old| &old + &dy));
    }

    /// Returns the sum of all of them as the gradient of a value with lead `lead`.
    pub fn total(mut self, lead: Lead) -> Option<Var> {
        let slices = side_by_side(std::mem::take(&mut self.slices).into_values().collect());
        let steps = std::mem::take(&mut self.steps).into_iter();
        let steps = steps.filter_map(|((_, is_in_f32), steps)| one_product(&steps, is_in_f32));
        slices.into_iter().chain(steps).for_each(|all| self.add_up(all));
        let over_shards = |all: Var| if lead == Lead::Global { all.sum_shards() } else { all };
        let shards = self.shard.into_iter().chain(self.lookups).map(over_shards);
        self.own.into_iter().chain(shards).reduce(|a, b| &a + &b)
    }
}

/// Returns slices put together, with zeros between them. The slices come in their order.
fn side_by_side(mut slices: Vec<Boxed>) -> Option<Var> {
    if slices.len() < 2 {
        return slices.pop().map(|slice| slice.padded);
    }
    let (axis, whole) = (slices[0].axis, slices[0].padded.clone());
    let zeros = |range: Range<usize>| {
        let mut dims = whole.dims().to_vec();
        dims[axis] = range.len();
        whole.tape().constant(0.0).expand(whole.ty().lead, &dims)
    };
    let (mut parts, mut end) = (Vec::new(), 0);
    for slice in slices {
        if end < slice.range.start {
            parts.push(zeros(end..slice.range.start));
        }
        end = slice.range.end;
        parts.push(slice.inside);
    }
    if end < whole.dims()[axis] {
        parts.push(zeros(end..whole.dims()[axis]));
    }
    Some(whole.tape().apply(Concat { axis }, &parts.iter().collect::<Vec<_>>()))
}

/// Returns the sum of a loop's products as one product over (sample, step), with the steps in the order of
/// the loop: their gradients arrived the other way round.
fn one_product(steps: &[[Var; 2]], is_in_f32: bool) -> Option<Var> {
    let tape = steps.first()?[0].tape();
    let factor = |i: usize| {
        let row = |step: &[Var; 2]| step[i].reshape(&[1, step[i].dims()[0]]);
        let rows: Vec<Var> = steps.iter().rev().map(row).collect();
        tape.apply(Concat { axis: 0 }, &rows.iter().collect::<Vec<_>>())
    };
    let product = || tape.apply(Contract, &[&factor(0), &factor(1)]);
    Some(if is_in_f32 { tape.in_f32(product) } else { product() })
}
