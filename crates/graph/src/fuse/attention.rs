//! Units of attention that a GPU computes in one launch: the gradients of the same attention, and the
//! roundings of its results to f16.

use std::collections::{BTreeMap, BTreeSet};

use super::store::Stores;
use super::{Fusion, UnitKind};
use crate::ops::RoundHalf;
use crate::trace::{AttentionResult, Graph, Lowering, NodeId};

/// What one launch of attention computes.
#[derive(Clone, Debug)]
pub struct AttentionLaunch {
    /// Its units: the one of the values, or the two of all gradients.
    pub units: Vec<usize>,
    /// The roundings of what these units store.
    pub rounded: Vec<Rounded>,
}

/// A value of attention that is stored as f16.
#[derive(Clone, Copy, Debug)]
pub struct Rounded {
    /// The unit that rounds it.
    pub unit: usize,
    /// The value.
    pub of: NodeId,
    /// The rounded value.
    pub value: NodeId,
    /// Whether nothing reads the value as f32.
    pub is_only: bool,
}

/// Returns the launches that compute more than one unit. `taken` are units that are computed in some other
/// way.
pub fn attention_launches(
    graph: &Graph,
    fusion: &Fusion,
    stores: &Stores,
    taken: &BTreeSet<usize>,
) -> Vec<AttentionLaunch> {
    let rounded = roundings(graph, fusion, stores, taken);
    let of_values = fusion.units.iter().enumerate().filter(|(_, unit)| {
        let is_values = unit.roots.iter().any(|&root| of_values(fusion, root));
        unit.kind == UnitKind::Attention && is_values
    });
    let pairs = attention_pairs(graph, fusion).into_iter().map(Vec::from);
    let launches = of_values.map(|(at, _)| vec![at]).chain(pairs).map(|units| {
        let roots = units.iter().flat_map(|&at| &fusion.units[at].roots);
        let rounded = roots.filter_map(|root| rounded.get(root).copied()).collect();
        AttentionLaunch { units, rounded }
    });
    launches.filter(|launch| launch.units.len() + launch.rounded.len() > 1).collect()
}

/// Returns whether a value is the result of attention, and no gradient.
fn of_values(fusion: &Fusion, root: NodeId) -> bool {
    matches!(
        fusion.lowering[fusion.result(root)],
        Lowering::Attention { result: AttentionResult::Values, .. }
    )
}

/// Returns, for each result of attention, the unit that does nothing but round it to f16, if attention can
/// store the rounded value itself.
fn roundings(
    graph: &Graph,
    fusion: &Fusion,
    stores: &Stores,
    taken: &BTreeSet<usize>,
) -> BTreeMap<NodeId, Rounded> {
    let mut found = BTreeMap::new();
    if stores.halves.is_empty() {
        return found;
    }
    let (readers, needed) = (fusion.readers(graph), fusion.needed(graph));
    for (unit, own) in fusion.units.iter().enumerate().filter(|(at, _)| !taken.contains(at)) {
        let (UnitKind::Map, [value]) = (own.kind, &own.roots[..]) else { continue };
        let place = stores.place(*value);
        let rounds = |of: &NodeId| fusion.shows(graph, fusion.result(*of), *value, place);
        if let Some(of) = rounded_by(graph, fusion, *value).filter(rounds)
            && stores.is_half(place.store)
        {
            let has_others =
                readers.get(&of).is_some_and(|readers| readers.iter().any(|other| *other != unit));
            let is_only = !has_others && !needed.contains(&of);
            found.insert(of, Rounded { unit, of, value: *value, is_only });
        }
    }
    found
}

/// Returns the stored result of attention that a value is made of, if exactly one rounding to f16 and
/// otherwise only moves lie between them.
fn rounded_by(graph: &Graph, fusion: &Fusion, value: NodeId) -> Option<NodeId> {
    let (mut id, mut rounds) = (value, 0);
    while id == value || !fusion.stored.contains(&id) {
        rounds += usize::from(graph.nodes[id].op.is::<RoundHalf>());
        id = *graph.nodes[id].inputs.first()?;
        if rounds > 1 {
            return None;
        }
    }
    let is_matrix = matches!(
        fusion.lowering[fusion.result(id)],
        Lowering::Attention { result, .. } if result != AttentionResult::LogSums
    );
    (rounds == 1 && is_matrix).then_some(id)
}

/// Returns the pairs of units that compute all gradients of an attention. Nothing between the two reads what
/// the first one computes.
fn attention_pairs(graph: &Graph, fusion: &Fusion) -> Vec<[usize; 2]> {
    let reads = fusion.unit_reads(graph);
    let mut open: BTreeMap<(&[NodeId], bool, u32), usize> = BTreeMap::new();
    let mut pairs = Vec::new();
    for (at, unit) in fusion.units.iter().enumerate().filter(|(_, unit)| unit.kind == UnitKind::Attention) {
        let first = fusion.result(unit.roots[0]);
        let Lowering::Attention { causal, scale, result: of } = fusion.lowering[first] else { continue };
        if of.first() == AttentionResult::Values {
            continue;
        }
        let Some(before) = open.insert((&graph.nodes[first].inputs, causal, scale.to_bits()), at) else {
            continue;
        };
        let whole = |root: &NodeId| fusion.parts.get(root).map_or(*root, |part| part.whole);
        let roots: BTreeSet<NodeId> = fusion.units[before]
            .roots
            .iter()
            .flat_map(|root| [*root, fusion.result(*root), whole(root)])
            .collect();
        let is_needed = (before + 1..at).any(|between| !reads[between].is_disjoint(&roots));
        if !is_needed && fusion.units[before].segment == unit.segment {
            pairs.push([before, at]);
        }
    }
    pairs
}
