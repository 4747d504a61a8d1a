//! Groups of units that one kernel of a GPU computes row by row: reductions along rows, and the maps of rows
//! and of their elements between and behind them. Layer normalization, softmax and cross-entropy are such
//! groups, and so are their gradients.
//!
//! The units stay what they are, for software adapters, and so does what each computes: a group only says
//! that a row's numbers may stay in workgroup memory.

use std::collections::{BTreeMap, BTreeSet};

use super::form::{Form, Variable, axes, regrouped};
use super::spot::viewed;
use super::store::{Store, Stores};
use super::{Fusion, MAX_BINDINGS, UnitKind};
use crate::trace::{Graph, Lowering, NodeId};
use crate::values::tree::SUM_CHUNK;
use crate::values::{DType, Lead};

/// The elements from which rows are staged in workgroup memory. Shorter ones, and those that do not come in
/// fours, are read by one invocation each.
const LEAST: usize = 32;
/// The most chunks of a row: one for each invocation of a workgroup.
const MOST_CHUNKS: usize = 64;

/// The number of groups that a unit is tried to join, the last ones first.
const NEAR: usize = 8;

/// The rows of a group: of each sample so many, of so many elements each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The number of rows of a sample.
    pub count: usize,
    /// The elements of a row.
    pub inner: usize,
}

impl Rows {
    /// Returns whether a workgroup stages the rows in its memory.
    pub fn are_staged(self) -> bool {
        self.inner >= LEAST && self.inner.is_multiple_of(4)
    }
}

/// Units that one kernel computes row by row.
#[derive(Clone, Debug)]
pub struct RowGroup {
    /// The rows that the units have in common.
    pub rows: Rows,
    /// The units in their order.
    pub units: Vec<usize>,
    /// The values that other units need.
    pub stored: BTreeSet<NodeId>,
    /// The values from other units of which each row reads one number.
    pub held: BTreeSet<NodeId>,
    /// The values that are read from memory, those that are held included.
    pub reads: BTreeSet<NodeId>,
}

/// How a unit reads a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// Each element of a row reads its own.
    Element,
    /// Each element of a row reads the number of the row.
    Row,
    /// The unit reads it in some other way.
    Any,
}

type Readings = BTreeMap<NodeId, BTreeSet<u8>>;

/// Returns the groups of a program's units. No unit is in two of them.
pub fn row_groups(graph: &Graph, fusion: &Fusion, stores: &Stores) -> Vec<RowGroup> {
    let mut groups: Vec<Draft> = Vec::new();
    let reads = fusion.unit_reads(graph);
    let (readers, needed) = (fusion.readers(graph), fusion.needed(graph));
    let finder = Finder { graph, fusion, stores, reads: &reads, readers: &readers, needed: &needed };
    for at in 0..fusion.units.len() {
        let joined = groups.iter().enumerate().rev().take(NEAR).find_map(|(index, draft)| {
            let own = finder.joins(draft, at)?;
            Some((index, own))
        });
        match joined {
            Some((index, draft)) => {
                groups[index] = draft;
                finder.join_groups(&mut groups, index, at);
            }
            None => groups.extend(finder.starts(at)),
        }
    }
    groups.into_iter().filter_map(|draft| finder.finish(draft)).collect()
}

/// A group that may grow.
#[derive(Clone)]
struct Draft {
    rows: Rows,
    units: Vec<usize>,
    /// What the units compute.
    roots: BTreeSet<NodeId>,
    readings: Readings,
}

struct Finder<'a> {
    graph: &'a Graph,
    fusion: &'a Fusion,
    stores: &'a Stores,
    /// What each unit reads.
    reads: &'a [BTreeSet<NodeId>],
    /// The units that read a value.
    readers: &'a BTreeMap<NodeId, BTreeSet<usize>>,
    /// The values that have to be in memory.
    needed: &'a BTreeSet<NodeId>,
}

impl Finder<'_> {
    /// Returns the rows that a reduction goes along, if a row kernel can compute it.
    fn rows_of(&self, at: usize) -> Option<Rows> {
        let unit = &self.fusion.units[at];
        let Lowering::Reduce(reduction) = &self.fusion.lowering[unit.roots[0]] else { return None };
        let from = &self.graph.nodes[self.graph.nodes[unit.roots[0]].inputs[0]].ty;
        let inner: usize = reduction.axes.iter().map(|&axis| from.dims[axis]).product();
        let rows = Rows { count: from.count() / inner.max(1), inner };
        let is_fit = rows.are_staged() && inner <= MOST_CHUNKS * SUM_CHUNK || inner <= SUM_CHUNK;
        let is_along = !reduction.samples && reduction.is_trailing(from) && inner > 1;
        (is_along && is_fit && self.may_wait(at)).then_some(rows)
    }

    /// Returns whether a unit may be computed later than its turn: nothing in place depends on it.
    fn may_wait(&self, at: usize) -> bool {
        let unit = &self.fusion.units[at];
        let last = self.fusion.units.last().map_or(0, |unit| unit.segment);
        let is_own = |&root: &NodeId| {
            let ty = &self.graph.nodes[root].ty;
            self.stores.lies_alone(root) && (ty.lead, ty.dtype) == (Lead::Sample, DType::F32)
        };
        (unit.segment < last || self.graph.updates.is_empty()) && unit.roots.iter().all(is_own)
    }

    fn starts(&self, at: usize) -> Option<Draft> {
        self.draft(self.rows_of(at)?, [at])
    }

    /// Returns the group with a unit that reads what the group computes, if it can be one of it.
    fn joins(&self, draft: &Draft, at: usize) -> Option<Draft> {
        let unit = &self.fusion.units[at];
        let fits = match unit.kind {
            UnitKind::Reduce => self.rows_of(at) == Some(draft.rows),
            UnitKind::Map => self.may_wait(at) && self.has_rows(at, draft.rows),
            _ => false,
        };
        let first = *draft.units.first()?;
        if !fits || self.fusion.units[first].segment != unit.segment {
            return None;
        }
        if self.reads[at].is_disjoint(&draft.roots) {
            return None;
        }
        // The group is computed when its last unit is due.
        let is_between = |unit: &usize| !draft.units.contains(unit);
        let mut between = (first..at).filter(is_between);
        if between.any(|unit| !self.reads[unit].is_disjoint(&draft.roots)) {
            return None;
        }
        self.with(draft, at)
    }

    /// Makes one of a group whose last unit is `at` and another one that this unit reads, where that is
    /// possible: a softmax and the gradient behind it, which has sums of its own.
    fn join_groups(&self, groups: &mut Vec<Draft>, index: usize, at: usize) {
        let near = groups.len().saturating_sub(NEAR)..groups.len();
        let joined = near.rev().filter(|&other| other != index).find_map(|other| {
            let is_read = !self.reads[at].is_disjoint(&groups[other].roots);
            let draft = is_read.then(|| self.joined(&groups[other], &groups[index])).flatten()?;
            Some((other, draft))
        });
        if let Some((other, draft)) = joined {
            groups[index] = draft;
            groups.remove(other);
        }
    }

    /// Returns two groups as one, if one kernel can compute it when the last of all units is due.
    fn joined(&self, one: &Draft, other: &Draft) -> Option<Draft> {
        let units: BTreeSet<usize> = one.units.iter().chain(&other.units).copied().collect();
        let roots: BTreeSet<NodeId> = one.roots.union(&other.roots).copied().collect();
        let (first, last) = (*units.first()?, *units.last()?);
        let segment = |at: usize| self.fusion.units[at].segment;
        let mut between = (first..last).filter(|at| !units.contains(at));
        let is_needed = between.any(|at| !self.reads[at].is_disjoint(&roots));
        if one.rows != other.rows || segment(first) != segment(last) || is_needed {
            return None;
        }
        let draft = self.draft(one.rows, units)?;
        self.group(&draft).is_some().then_some(draft)
    }

    /// Returns the group of these units, unless one of them reads another one's values in some other way than
    /// row by row.
    fn draft(&self, rows: Rows, units: impl IntoIterator<Item = usize>) -> Option<Draft> {
        let empty = Draft { rows, units: vec![], roots: BTreeSet::new(), readings: Readings::new() };
        units.into_iter().try_fold(empty, |draft, at| self.with(&draft, at))
    }

    /// Returns whether a map computes a number of each row, or of each element of rows.
    fn has_rows(&self, at: usize, rows: Rows) -> bool {
        let counts = [rows.count, rows.count * rows.inner];
        let roots = &self.fusion.units[at].roots;
        roots.iter().all(|&root| counts.contains(&self.graph.nodes[root].ty.count()))
    }

    /// Returns the group with a unit, unless that reads the group's values in some other way than row by row.
    fn with(&self, draft: &Draft, at: usize) -> Option<Draft> {
        let mut draft = draft.clone();
        for &root in &self.fusion.units[at].roots {
            self.read(root, draft.rows, &mut draft.readings)?;
        }
        draft.units.push(at);
        draft.roots.extend(&self.fusion.units[at].roots);
        let any = Reading::Any as u8;
        let own = |id: &NodeId| draft.readings.get(id);
        let is_clear = |id: &NodeId| own(id).is_none_or(|r| r.len() == 1 && !r.contains(&any));
        if !draft.roots.iter().all(is_clear) {
            return None;
        }
        Some(draft)
    }

    /// Notes how the kernel of a value reads others.
    fn read(&self, root: NodeId, rows: Rows, readings: &mut Readings) -> Option<()> {
        let ty = &self.graph.nodes[root].ty;
        let is_reduction = matches!(self.fusion.lowering[root], Lowering::Reduce(_));
        let start = if is_reduction { self.graph.nodes[root].inputs[0] } else { root };
        let is_element = is_reduction || ty.count() == rows.count * rows.inner && rows.inner > 1;
        let (mut coords, mut dims) = (axes(Variable::Outer, true, &[rows.count]), vec![rows.count]);
        if is_element {
            coords.extend(axes(Variable::Inner, false, &[rows.inner]));
            dims.push(rows.inner);
        }
        let own = regrouped(&coords[1..], &dims, &self.graph.nodes[start].ty.dims)?;
        let expected = [
            Form::dot(&coords, &[rows.count * rows.inner, rows.inner, 1][..coords.len()]).merged(),
            Form::dot(&coords[..2], &[rows.count, 1]).merged(),
        ];
        let at = [coords[..1].to_vec(), own].concat();
        let mut seen: BTreeSet<(NodeId, String)> = BTreeSet::new();
        let mut pending = vec![(start, Some(at))];
        while let Some((id, coords)) = pending.pop() {
            if !seen.insert((id, format!("{coords:?}"))) {
                continue;
            }
            let (node, lowering) = (&self.graph.nodes[id], &self.fusion.lowering[id]);
            let in_memory = self.fusion.stored.contains(&id) && (id != root || is_reduction);
            if in_memory || lowering.is_given() {
                let reading = coords
                    .map_or(Reading::Any, |coords| self.reading(id, &coords, rows, &expected, is_element));
                readings.entry(id).or_default().insert(reading as u8);
                continue;
            }
            match lowering {
                Lowering::Constant(_) => {}
                Lowering::Pointwise(e) => {
                    for (operand, &input) in node.inputs.iter().enumerate() {
                        pending.push((input, coords.clone().filter(|_| !e.whole.contains(&operand))));
                    }
                }
                Lowering::View(view) => {
                    let input = node.inputs[0];
                    let from = &self.graph.nodes[input].ty;
                    pending.push((input, coords.and_then(|coords| viewed(view, coords, &node.ty, from))));
                }
                Lowering::Take => {
                    // Whichever element a number of the row takes, it is one of the row.
                    let length = self.graph.nodes[node.inputs[0]].ty.dims.last().copied().unwrap_or(1);
                    let any = axes(Variable::Inner, false, &[length]);
                    let taken = coords.clone().filter(|_| !is_element).map(|own| [own, any].concat());
                    pending.push((node.inputs[0], taken));
                    pending.push((node.inputs[1], coords));
                }
                _ => pending.extend(node.inputs.iter().map(|&input| (input, None))),
            }
        }
        Some(())
    }

    fn reading(
        &self,
        id: NodeId,
        coords: &[Form],
        rows: Rows,
        expected: &[Form; 2],
        is_element: bool,
    ) -> Reading {
        let ty = &self.graph.nodes[id].ty;
        if ty.lead != Lead::Sample {
            return Reading::Any;
        }
        let address = Form::dot(coords, &ty.strides()).merged();
        let known = |count: usize, form: &Form| ty.count() == count && address == *form;
        if is_element && known(rows.count * rows.inner, &expected[0]) {
            Reading::Element
        } else if known(rows.count, &expected[1]) {
            Reading::Row
        } else {
            Reading::Any
        }
    }

    /// Returns the group without the last units, if it needs too many buffers with them, provided that it
    /// still saves a launch.
    fn finish(&self, mut draft: Draft) -> Option<RowGroup> {
        while draft.units.len() > 1 || draft.rows.inner > SUM_CHUNK {
            if let Some(group) = self.group(&draft) {
                return Some(group);
            }
            let (_, units) = draft.units.split_last()?;
            draft = self.draft(draft.rows, units.to_vec())?;
            draft.units.first()?;
        }
        None
    }

    /// Returns what is stored and read of a group, unless that takes too many buffers.
    fn group(&self, draft: &Draft) -> Option<RowGroup> {
        let Draft { rows, units, roots, readings } = draft;
        let is_outside = |unit: &usize| !units.contains(unit);
        let leaves = |id: &NodeId| {
            self.needed.contains(id) || self.readers.get(id).is_none_or(|own| own.iter().any(is_outside))
        };
        let stored: BTreeSet<NodeId> = roots.iter().copied().filter(leaves).collect();
        let reads: BTreeSet<NodeId> = readings.keys().copied().filter(|id| !roots.contains(id)).collect();
        let buffers: BTreeSet<Store> =
            stored.iter().chain(&reads).map(|&id| self.stores.place(id).store).collect();
        let is_row = |id: &NodeId| {
            readings[id].iter().eq([&(Reading::Row as u8)])
                && self.stores.place(*id).runs.is_none()
                && [DType::F32, DType::I32].contains(&self.graph.nodes[*id].ty.dtype)
        };
        let held = reads.iter().copied().filter(is_row).collect();
        let (rows, units) = (*rows, units.clone());
        (buffers.len() <= MAX_BINDINGS).then_some(RowGroup { rows, units, stored, held, reads })
    }
}
