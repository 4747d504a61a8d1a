//! Results of attention that are written where a copy of them would go: heads lie side by side in a row of
//! features mostly, and the gradients of queries, keys and values in one matrix.

use super::form::{Form, regrouped};
use super::spot::{heads, layered};
use super::{Fusion, Place, UnitKind};
use crate::ops::RoundHalf;
use crate::trace::{Graph, Lowering, NodeId, View};
use crate::values::{Lead, strides};

impl Fusion {
    /// Has attention write its results as the views of them that a copy alone makes, and drops the copies.
    pub(super) fn write_through_views(&mut self, graph: &Graph) {
        let (readers, needed) = (self.readers(graph), self.needed(graph));
        let mut dropped = Vec::new();
        for at in 0..self.units.len() {
            for index in 0..self.units[at].roots.len() {
                let root = self.units[at].roots[index];
                let users = readers.get(&root).filter(|users| users.len() == 1);
                let Some(&copy) = users.and_then(|users| users.first()) else { continue };
                let (kind, map) = (self.units[at].kind, &self.units[copy]);
                let [shown] = map.roots[..] else { continue };
                let is_copy =
                    kind == UnitKind::Attention && map.kind == UnitKind::Map && !needed.contains(&root);
                let runs = self.parts.get(&shown).map(|part| part.runs);
                let place = Place { runs, ..Place::start(super::Store::Value(shown)) };
                if is_copy
                    && map.segment == self.units[at].segment
                    && self.is_view(shown, root, graph)
                    && self.shows(graph, root, shown, place)
                {
                    self.units[at].roots[index] = shown;
                    self.stored.remove(&root);
                    self.written.insert(shown, root);
                    dropped.push(copy);
                }
            }
        }
        let mut number = 0;
        self.units.retain(|_| {
            number += 1;
            !dropped.contains(&(number - 1))
        });
    }

    /// Returns whether a value is reached from another one through views alone.
    fn is_view(&self, shown: NodeId, of: NodeId, graph: &Graph) -> bool {
        graph.behind(shown, |id| id != of && self.lowering[id].is_view()) == of
    }

    /// Returns the result of attention behind a value. If attention writes its result in the layout of this
    /// view, that is the result under the view.
    pub(crate) fn result(&self, value: NodeId) -> NodeId {
        self.written.get(&value).copied().unwrap_or(value)
    }

    /// Returns whether attention can write its result `root` as the view `shown` of it at a place.
    pub(super) fn shows(&self, graph: &Graph, root: NodeId, shown: NodeId, place: Place) -> bool {
        let width = graph.nodes[root].ty.dims.last().copied().unwrap_or(1);
        self.written_address(graph, (root, shown), place)
            .is_some_and(|address| layered(&address, width).is_some())
    }

    /// Returns where an element of attention's result `root` lies that is written as the view `shown` of it,
    /// at a place, by layer, row and column. The view may be rounded.
    pub(crate) fn written_address(
        &self,
        graph: &Graph,
        (root, shown): (NodeId, NodeId),
        place: Place,
    ) -> Option<Form> {
        let mut views = Vec::new();
        let mut id = shown;
        while id != root {
            match &self.lowering[id] {
                Lowering::View(view) => views.push((view, id)),
                _ if graph.nodes[id].op.is::<RoundHalf>() => {}
                _ => return None,
            }
            id = graph.nodes[id].inputs[0];
        }
        let ty = &graph.nodes[root].ty;
        let lead = usize::from(ty.lead != Lead::Global);
        let mut coords = heads(ty)?;
        let mut from = ty;
        for (view, id) in views.into_iter().rev() {
            let to = &graph.nodes[id].ty;
            match view {
                View::Reshape => {
                    let own = regrouped(&coords[lead..], &from.dims, &to.dims)?;
                    coords.truncate(lead);
                    coords.extend(own);
                }
                View::Permute(order) => {
                    let own = coords.split_off(lead);
                    coords.extend(order.iter().map(|&axis| own[axis].clone()));
                }
                _ => return None,
            }
            from = to;
        }
        let mut steps = strides(&from.dims);
        steps.insert(0, from.count());
        if let Some(runs) = place.runs {
            if !steps.contains(&runs.len) {
                return None;
            }
            runs.spread(&mut steps);
        }
        let steps = &steps[1 - lead..];
        Some(Form::dot(&coords, steps).shifted(place.inside as i64).merged())
    }
}
