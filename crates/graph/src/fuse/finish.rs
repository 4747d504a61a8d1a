//! Maps that a GPU computes in the kernel of a product in front of them, beyond those that every machine does
//! (`epilogue`): the product may be needed elsewhere too, the map may have several results and elementary
//! functions, and the product may have several chunks.

use std::collections::{BTreeMap, BTreeSet};

use unisono_shaders::snippets;

use super::store::{Store, Stores, in_order};
use super::{Fusion, MAX_BINDINGS, Unit, UnitKind};
use crate::ops::MatMul;
use crate::trace::{Graph, Lowering, NodeId};
use crate::values::tree::PRODUCT_CHUNK;
use crate::values::{DType, Lead};

/// A product and the map behind it, as one unit.
#[derive(Clone, Debug)]
pub struct Finish {
    /// The unit of the product, whose turn it is.
    pub product: usize,
    /// The unit of the map.
    pub map: usize,
    /// Both. The first of its values goes where the kernel's sums would, the epilogue stores the others.
    pub unit: Unit,
    /// The values among these that an earlier kernel has stored, and that this one computes a second time. So
    /// they need no memory in between.
    pub again: Vec<NodeId>,
}

/// For each value the units that load it.
type Readers = BTreeMap<NodeId, BTreeSet<usize>>;

/// The elements of a sample from which a value is computed again instead of being kept.
const MANY: usize = 1 << 16;

/// The fewest units between the last one that reads a value and the one that computes it again.
const FAR: usize = 8;

/// Returns the products with maps behind them. `taken` are units that are computed in some other way.
/// `turns` has the units that may be computed later than their own turn comes, each with the unit in whose
/// turn that is.
pub fn finishes(
    graph: &Graph,
    fusion: &Fusion,
    stores: &Stores,
    taken: &BTreeSet<usize>,
    turns: &BTreeMap<usize, usize>,
) -> Vec<Finish> {
    let readers = fusion.readers(graph);
    let needed = fusion.needed(graph);
    let mut made_by: BTreeMap<NodeId, usize> = BTreeMap::new();
    for (at, unit) in fusion.units.iter().enumerate() {
        made_by.extend(unit.roots.iter().map(|&root| (root, at)));
    }
    let there = there(graph, fusion, &made_by, turns);
    let mut done: BTreeSet<usize> = taken.clone();
    let mut found = Vec::new();
    for (at, unit) in fusion.units.iter().enumerate() {
        let product = match unit.roots[..] {
            [root] if unit.product == Some(root) => root,
            _ => continue,
        };
        let own = readers.get(&product);
        let is_free = |map: &usize| fusion.units[*map].kind == UnitKind::Map && !done.contains(map);
        let Some(&map) = own.and_then(|own| own.first()).filter(|map| is_free(map)) else { continue };
        let is_stored = needed.contains(&product) || own.is_some_and(|own| own.len() > 1);
        let is_early = |id: &NodeId| there.get(id).is_none_or(|turn| turn.is_some_and(|turn| turn < at));
        if let Some(unit) =
            joint(graph, fusion, stores, (product, is_stored), (unit, &fusion.units[map]), is_early)
        {
            done.insert(map);
            found.push(Finish { product: at, map, unit, again: vec![] });
        }
    }
    for finish in &mut found {
        compute_again(graph, fusion, stores, finish, (&readers, &made_by, &needed));
    }
    found
}

/// Returns for each value that units compute the one in whose turn it is there, or `None` where that is not
/// known. A concat is there when the last of its parts is.
fn there(
    graph: &Graph,
    fusion: &Fusion,
    made_by: &BTreeMap<NodeId, usize>,
    turns: &BTreeMap<usize, usize>,
) -> BTreeMap<NodeId, Option<usize>> {
    // Such a map may share its launch with others, whose turn is the last one's.
    let waits = |unit: usize| {
        let Unit { kind, ref roots, .. } = fusion.units[unit];
        kind == UnitKind::Map && graph.nodes[roots[0]].ty.lead == Lead::Global
    };
    let turn = |unit: usize| (!waits(unit)).then(|| turns.get(&unit).copied().unwrap_or(unit));
    let mut there: BTreeMap<NodeId, Option<usize>> = BTreeMap::new();
    for &id in &fusion.stored {
        if let Some(&unit) = made_by.get(&id) {
            there.insert(id, turn(unit));
        } else if matches!(fusion.lowering[id], Lowering::Concat(_)) {
            let parts = graph.nodes[id].inputs.iter().map(|&part| in_order(graph, fusion, part));
            let of_parts: Option<Vec<usize>> = parts.filter_map(|part| there.get(&part).copied()).collect();
            there.insert(id, of_parts.map(|turns| turns.into_iter().max().unwrap_or(0)));
        }
    }
    there
}

/// Adds to a product with a map the large values that come from the same operands, were stored long before
/// for others, and are needed later once more.
fn compute_again(
    graph: &Graph,
    fusion: &Fusion,
    stores: &Stores,
    finish: &mut Finish,
    (readers, made_by, needed): (&Readers, &BTreeMap<NodeId, usize>, &BTreeSet<NodeId>),
) {
    let Finish { product, ref unit, .. } = *finish;
    let Some(own) = unit.product.map(|id| &graph.nodes[id].ty) else { return };
    if own.count() < MANY || !own.dims.last().is_some_and(|last| last.is_multiple_of(4)) {
        return;
    }
    let mut reads = BTreeSet::new();
    for &root in &unit.roots {
        reads.extend(fusion.reads(graph, root).into_keys());
    }
    let is_again = |id: &NodeId| {
        let ty = &graph.nodes[*id].ty;
        // A kernel knows the axes of one of its results.
        let has_axes = |root: &NodeId| graph.nodes[*root].ty.dims == ty.dims;
        let is_alike = (ty.lead, ty.count(), ty.dtype) == (own.lead, own.count(), DType::F32)
            && unit.roots.iter().all(has_axes);
        let users = readers.get(id).filter(|users| users.range(product + 1..).next().is_some());
        let last = users.and_then(|users| users.range(..product).next_back());
        let made = made_by.get(id).filter(|&&made| made < product);
        let is_map = matches!(fusion.lowering[*id], Lowering::Pointwise(_));
        let is_far = last.zip(made).is_some_and(|(last, made)| product - last.max(made) >= FAR);
        let is_between = users.is_some_and(|users| users.contains(&product) || users.contains(&finish.map));
        let known = || fusion.reads(graph, *id).into_iter().all(|(read, _)| reads.contains(&read));
        is_alike
            && stores.lies_alone(*id)
            && is_map
            && is_far
            && !is_between
            && !needed.contains(id)
            && known()
            && fusion.is_plain(graph, *id, unit.product.unwrap_or(*id), &KNOWN)
    };
    let again: Vec<NodeId> = fusion.stored.iter().copied().filter(is_again).collect();
    for id in again {
        let is_own =
            |read: &&NodeId| !finish.unit.roots.contains(read) && finish.unit.product != Some(**read);
        let others: BTreeSet<Store> =
            reads.iter().filter(is_own).map(|&read| stores.place(read).store).collect();
        if 4 + others.len() + finish.unit.roots.len() <= MAX_BINDINGS {
            finish.unit.roots.push(id);
            finish.again.push(id);
        }
    }
}

/// Returns the unit of a product and a map, if the product's kernel can compute the map.
fn joint(
    graph: &Graph,
    fusion: &Fusion,
    stores: &Stores,
    (product, is_stored): (NodeId, bool),
    (unit, map): (&Unit, &Unit),
    is_early: impl Fn(&NodeId) -> bool,
) -> Option<Unit> {
    let node = &graph.nodes[product];
    let Lowering::MatMul { transpose_a, transpose_b, .. } = fusion.lowering[product] else { return None };
    if map.segment != unit.segment || node.ty.lead != Lead::Sample {
        return None;
    }
    let fits = |&root: &NodeId| {
        let ty = &graph.nodes[root].ty;
        (ty.lead, ty.count(), ty.dtype) == (node.ty.lead, node.ty.count(), DType::F32)
            && stores.lies_alone(root)
            && fusion.is_plain(graph, root, product, &KNOWN)
    };
    let mut reads: BTreeMap<NodeId, bool> = BTreeMap::new();
    for &root in &map.roots {
        for (id, is_aligned) in fusion.reads(graph, root) {
            let entry = reads.entry(id).or_insert(true);
            *entry = *entry && is_aligned;
        }
    }
    let is_aligned = reads.remove(&product) == Some(true);
    let is_own = |id: &NodeId| map.roots.contains(id);
    let is_ready = reads.keys().all(|id| is_own(id) || is_early(id));
    if !map.roots.iter().all(fits) || !stores.lies_alone(product) || !is_aligned || !is_ready {
        return None;
    }
    let mut roots = map.roots.clone();
    if is_stored {
        roots.insert(0, product);
    } else {
        // Sums of chunks, which are f32, may wait where the kernel's own result goes.
        let is_one =
            MatMul { transpose_a, transpose_b }.inner(&graph.nodes[node.inputs[0]].ty) <= PRODUCT_CHUNK;
        let first = roots.iter().position(|&root| !stores.is_half(Store::Value(root)));
        roots.swap(0, first.or(is_one.then_some(0))?);
    }
    let comes_in_fours = node.ty.dims.last().is_some_and(|last| last.is_multiple_of(4));
    let others: BTreeSet<Store> =
        reads.keys().filter(|id| !is_own(id)).map(|&id| stores.place(id).store).collect();
    // Both operands, the result, and sums of chunks that wait.
    let buffers = 4 + others.len() + roots.len() - 1;
    (buffers <= MAX_BINDINGS && (comes_in_fours || roots.len() == 1)).then_some(Unit {
        kind: UnitKind::Product,
        roots,
        segment: unit.segment,
        product: Some(product),
    })
}

/// The functions that such a map may call.
const KNOWN: [unisono_shaders::Snippet; 4] =
    [snippets::ROUND_HALF, snippets::ELEMENTARY, snippets::QUOTIENT, snippets::ROOT];
