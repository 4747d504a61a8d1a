//! Writes the body of a kernel: an expression for each element, and loads at its edges.

mod address;
mod module;
mod phases;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use unisono_shaders::Snippet;

use super::affine::Affine;
use super::index::{Index, decode, literal, regroup};
use super::starts::Starts;
use super::{Binding, WORKGROUP};
use crate::fuse::{Fusion, Stores, Unit, UnitKind};
use crate::plan::Access;
use crate::trace::{Expression, Graph, Lowering, NodeId};
use crate::values::tree::canonical;
use crate::values::{Lead, Type, strides};

/// The element type of what is stored as f16. Everything is computed in f32.
const HALF: &str = "f16";

/// The number of elements that are loaded or stored as one vector.
pub(super) const QUAD: usize = 4;

const XYZW: [&str; QUAD] = ["x", "y", "z", "w"];

/// The coordinates of an element of a type.
type Coordinates<'a> = (&'a Type, Vec<Affine>);

/// The names of elements, by value and index.
type Names = BTreeMap<NodeId, BTreeMap<Index, String>>;

/// The element that is being written, which decides how others are loaded.
#[derive(Clone)]
enum Lane {
    /// It is the only one that an invocation computes.
    Alone,
    /// It is one of several, and none of the others is loaded with it.
    Scattered,
    /// It is one of several that are loaded at once: the index, and the place among them.
    At(Affine, usize),
}

/// Writes one kernel.
pub(super) struct Writer<'a> {
    pub(super) graph: &'a Graph,
    pub(super) fusion: &'a Fusion,
    pub(super) stores: &'a Stores,
    unit: &'a Unit,
    bindings: Vec<(Binding, Access, &'static str)>,
    pub(super) snippets: BTreeSet<Snippet>,
    /// Declarations of the kernel's own, such as workgroup memory.
    pub(super) declared: String,
    /// The invocations of a workgroup.
    pub(super) workgroup: u32,
    /// The loads that are the same for all invocations, before anything that is not the same for all of them.
    /// A driver may then load them once for all lanes.
    pub(super) shared: String,
    pub(super) body: String,
    pub(super) indent: String,
    /// The names of what is computed in this phase, and of what is loaded before all of them.
    known: Names,
    known_in_all: Names,
    /// The number of names that were given.
    names: usize,
    lane: Lane,
    /// The variable that counts the vectors, or single elements, that invocations compute.
    here: String,
    /// The values of which an invocation finds its row's number in workgroup memory, with the arrays' names.
    held: BTreeMap<NodeId, String>,
    /// The variable that is the place of the element's row in these arrays.
    row: String,
    /// The coordinates of an element of two types, by its index, where they are known without arithmetic.
    spot: Option<(Affine, [Coordinates<'a>; 2])>,
    /// The bindings that are loaded four at a time, and from where; `None` in a phase before this one.
    quads: BTreeMap<usize, Vec<Option<String>>>,
    /// Where the vectors are that have names, without the starts of their memories.
    vectors: BTreeMap<String, Affine>,
    /// The bindings of which single elements are also loaded.
    words: BTreeSet<usize>,
    /// Whether any element that differs between invocations is loaded on its own.
    scattered: bool,
    /// Whether an invocation needs more than its own elements and numbers that all of them share.
    looks_around: bool,
    /// Whether windows of an image are read.
    pub(super) has_windows: bool,
    /// The params that are added to indices.
    pub(super) starts: Starts,
}

impl<'a> Writer<'a> {
    pub(super) fn new(graph: &'a Graph, fusion: &'a Fusion, stores: &'a Stores, unit: &'a Unit) -> Self {
        Self {
            graph,
            fusion,
            stores,
            unit,
            bindings: vec![],
            snippets: BTreeSet::new(),
            declared: String::new(),
            workgroup: WORKGROUP,
            shared: String::new(),
            body: String::new(),
            indent: "    ".into(),
            known: BTreeMap::new(),
            known_in_all: BTreeMap::new(),
            names: 0,
            lane: Lane::Alone,
            here: "i".into(),
            held: BTreeMap::new(),
            row: String::new(),
            spot: None,
            quads: BTreeMap::new(),
            vectors: BTreeMap::new(),
            words: BTreeSet::new(),
            scattered: false,
            looks_around: false,
            has_windows: false,
            starts: Starts::default(),
        }
    }

    pub(super) fn ty(&self, id: NodeId) -> &'a Type {
        &self.graph.nodes[id].ty
    }

    pub(super) fn input(&self, id: NodeId, operand: usize) -> NodeId {
        self.graph.nodes[id].inputs[operand]
    }

    /// Returns the element of a value at an index: a literal or the name of a `let`.
    pub(super) fn value(&mut self, id: NodeId, index: &Index) -> String {
        let named = |names: &Names| names.get(&id)?.get(index).cloned();
        if let Some(name) = named(&self.known).or_else(|| named(&self.known_in_all)) {
            return name;
        }
        if let Some(array) = self.held.get(&id) {
            return format!("{array}[{}]", self.row);
        }
        let own = self.unit.kind != UnitKind::Reduce && self.unit.roots.contains(&id);
        if self.fusion.stored.contains(&id) && !own {
            return self.load_named(id, index);
        }
        self.compute(id, index)
    }

    /// Returns the element of a value at an index as [`Writer::value`] does, but computes it even if the
    /// value is in memory.
    pub(super) fn compute(&mut self, id: NodeId, index: &Index) -> String {
        let text = match &self.fusion.lowering[id] {
            Lowering::Constant(c) => return literal(canonical(*c)),
            Lowering::Leaf | Lowering::SumShards => return self.load_named(id, index),
            Lowering::View(view) => return self.view(id, view, index),
            Lowering::Take => return self.take(id, index),
            Lowering::Embed => return self.embed(id, index),
            Lowering::Pad(before) => self.pad(id, before, index),
            Lowering::Im2Col { window, fill } => self.im2col(id, window, *fill, index),
            Lowering::Col2Im { window } => self.col2im(id, window, index),
            Lowering::Pointwise(expression) => self.pointwise(id, expression, index),
            Lowering::Concat(_)
            | Lowering::Reduce(_)
            | Lowering::MatMul { .. }
            | Lowering::Contract
            | Lowering::RowSums { .. }
            | Lowering::Attention { .. } => return self.load_named(id, index),
        };
        self.name(id, index, &text)
    }

    fn load_named(&mut self, id: NodeId, index: &Index) -> String {
        let mut text = self.load(id, index);
        if self.is_brought(id) {
            text = self.flushed(id, text);
        }
        if !index.is_constant() {
            return self.name(id, index, &text);
        }
        let name = self.new_name();
        let _ = writeln!(self.shared, "    let {name} = {text};");
        self.known_in_all.entry(id).or_default().insert(index.clone(), name.clone());
        name
    }

    fn name(&mut self, id: NodeId, index: &Index, text: &str) -> String {
        let name = self.new_name();
        let _ = writeln!(self.body, "{}let {name} = {text};", self.indent);
        self.known.entry(id).or_default().insert(index.clone(), name.clone());
        name
    }

    fn new_name(&mut self) -> String {
        self.names += 1;
        format!("v{}", self.names - 1)
    }

    /// Begins to write element `lane` of the `lanes` that an invocation computes. Returns the index of that
    /// element.
    pub(super) fn enter_lane(&mut self, lane: usize, lanes: usize) -> Index {
        if lanes == 1 {
            return Index::named("i");
        }
        let index = Affine::name("i", None).times(lanes).plus(lane);
        self.lane = Lane::At(index.clone(), lane);
        Index::Linear(index)
    }

    /// Ends writing elements of which an invocation computes several.
    pub(super) fn leave_lanes(&mut self) {
        self.lane = Lane::Alone;
    }

    /// Begins to write the epilogue of a product for its element `index`, whose coordinates in the product
    /// and in the result are given. If elements come in fours, `place` is the place of the element among the
    /// four.
    pub(super) fn enter_result(
        &mut self,
        index: &Affine,
        coords: [Coordinates<'a>; 2],
        place: Option<usize>,
        given: &str,
    ) {
        self.lane = place.map_or(Lane::Alone, |place| Lane::At(index.clone(), place));
        let product = self.unit.product.unwrap_or(self.unit.roots[0]);
        self.spot = Some((index.clone(), coords));
        self.known.entry(product).or_default().insert(Index::Linear(index.clone()), given.to_owned());
    }

    fn load(&mut self, id: NodeId, index: &Index) -> String {
        let binding = self.bind(id, Access::Read);
        let place = self.stores.place(id);
        let here = match &self.lane {
            Lane::At(here, _) => here.clone(),
            _ => self.here(),
        };
        let is_own = *index == Index::Linear(here) && place.runs.is_none();
        // Another map with the same text reads the same elements of a value that has no start.
        let is_theirs_too = is_own && self.ty(id).count() > 1 && self.is_whole(id);
        self.looks_around |= is_theirs_too || !is_own && !index.is_constant();
        // What is the same for all elements of an invocation is loaded for the first of them alone.
        let may_be_shared = matches!(self.lane, Lane::At(_, 0));
        let vector = match &self.lane {
            Lane::Alone => {
                let address = self.address(id, index);
                return self.widened(binding, "f32", format!("b{binding}[{address}]"));
            }
            Lane::Scattered => None,
            Lane::At(_, lane) => Some(*lane).zip(self.vector(id, index, *lane)),
        };
        let Some((lane, vector)) = vector else {
            self.words.insert(binding);
            self.scattered |= !index.is_constant() && !may_be_shared;
            return format!("w{binding}({})", self.address(id, index));
        };
        let from = vector.to_string() + &self.offset(id, QUAD);
        let known = self.quads.entry(binding).or_default();
        let number = known.iter().position(|known| known.as_deref() == Some(&from));
        let quad = format!("q{binding}_{}", number.unwrap_or(known.len()));
        if number.is_none() {
            known.push(Some(from.clone()));
            self.vectors.insert(quad.clone(), vector);
            let four = self.widened(binding, "vec4<f32>", format!("b{binding}[{from}]"));
            let _ = writeln!(self.body, "{}let {quad} = {four};", self.indent);
        }
        format!("{quad}.{}", XYZW[lane])
    }

    /// Returns whether all loads and stores are vectors of f32, except for loads that are the same for all
    /// elements of an invocation.
    pub(super) fn is_all_vectors(&self) -> bool {
        let is_number = |i: &usize| self.bindings[*i].2 == "f32";
        !self.scattered && self.quads.keys().all(is_number)
    }

    /// Returns a loaded element as f32, which it is already unless the binding is f16.
    fn widened(&self, binding: usize, ty: &str, loaded: String) -> String {
        if self.bindings[binding].2 == HALF { format!("{ty}({loaded})") } else { loaded }
    }

    /// Returns an f32 as an element of a binding.
    pub(super) fn narrowed(&self, binding: usize, value: &str) -> String {
        if self.bindings[binding].2 == HALF { format!("{HALF}({value})") } else { value.into() }
    }

    /// Returns the statements that store the elements of a value that an invocation computed.
    pub(super) fn store(&mut self, root: NodeId, values: &[String]) -> String {
        match values {
            [value] => {
                let binding = self.bind(root, Access::ReadWrite);
                let address = self.address(root, &Index::Linear(self.here()));
                let value = self.narrowed(binding, value);
                format!("{}b{binding}[{address}] = {value};\n", self.indent)
            }
            values => self.store_four(root, &self.here(), values),
        }
    }

    /// Returns the statement that stores the vector of this number.
    pub(super) fn store_four(&mut self, root: NodeId, number: &Affine, values: &[String]) -> String {
        let binding = self.bind(root, Access::ReadWrite);
        self.quads.entry(binding).or_default();
        let at = self.at(root, number, QUAD);
        let element = if self.bindings[binding].2 == HALF { HALF } else { "f32" };
        let four = values.iter().map(|value| self.narrowed(binding, value)).collect::<Vec<_>>();
        format!("{}b{binding}[{at}] = vec4<{element}>({});\n", self.indent, four.join(", "))
    }

    fn pointwise(&mut self, id: NodeId, e: &Expression, index: &Index) -> String {
        let mut text = e.wgsl.clone();
        let inputs = self.graph.nodes[id].inputs.clone();
        let is_constant = !inputs.is_empty() && inputs.iter().all(|&input| self.is_constant(input));
        for (operand, &input) in inputs.iter().enumerate().rev() {
            let value = if e.whole.contains(&operand) {
                self.looks_around = true;
                format!("b{}", self.bind(input, Access::Read))
            } else {
                self.value(input, index)
            };
            // A compiler would compute with constants alone, and might round otherwise than the device.
            let value = if is_constant && operand == 0 {
                format!("bitcast<f32>(bitcast<u32>({value}) ^ params.zero)")
            } else {
                value
            };
            text = text.replace(&format!("${operand}"), &value);
        }
        self.snippets.extend(e.snippets.iter().copied());
        if text.contains('$') {
            self.looks_around = true;
            text = self.place_names(id, text, index);
        }
        if e.canonical { text } else { self.flushed(id, text) }
    }

    /// Replaces `$row`, `$element` and `$axisN` in an expression.
    fn place_names(&self, id: NodeId, text: String, index: &Index) -> String {
        let ty = self.ty(id);
        let coords = self.coords(ty, index);
        let lead = usize::from(ty.lead != Lead::Global);
        let mut text = text;
        for axis in (0..ty.dims.len()).rev() {
            text = text.replace(&format!("$axis{axis}"), &coords[lead + axis].operand());
        }
        let element = match index {
            Index::Linear(i) if lead == 1 => i.remainder(ty.count()),
            Index::Linear(i) => i.clone(),
            Index::Coords(c) => Affine::dot(&c[lead..], &strides(&ty.dims)),
        };
        let row = if lead == 1 { format!("({} + params.row)", coords[0]) } else { "0u".into() };
        text.replace("$element", &element.operand()).replace("$row", &row)
    }

    pub(super) fn coords(&self, ty: &Type, index: &Index) -> Vec<Affine> {
        if let Some(coords) = self.known_coords(ty, index) {
            return coords;
        }
        match index {
            Index::Coords(c) => c.clone(),
            Index::Linear(i) if ty.lead == Lead::Global => decode(i, &ty.dims),
            Index::Linear(i) => {
                let within = decode(&i.remainder(ty.count()), &ty.dims);
                std::iter::once(i.divided(ty.count())).chain(within).collect()
            }
        }
    }

    /// Returns the coordinates of the element that is being written, where they are known without arithmetic;
    /// in an epilogue also those under other axes of as many elements.
    fn known_coords(&self, ty: &Type, index: &Index) -> Option<Vec<Affine>> {
        let (here, spots) = self.spot.as_ref()?;
        if *index != Index::Linear(here.clone()) {
            return None;
        }
        if let Some((_, coords)) = spots.iter().find(|(known, _)| *known == ty) {
            return Some(coords.clone());
        }
        self.unit.product?;
        let is_same = |known: &Type| known.lead == ty.lead && known.count() == ty.count();
        let (known, coords) = spots.iter().find(|(known, _)| is_same(known))?;
        let (lead, axes) = coords.split_at(usize::from(ty.lead != Lead::Global));
        Some(lead.iter().cloned().chain(regroup(axes, &known.dims, &ty.dims)).collect())
    }

    /// Returns whether an element is one of a product's result in its epilogue, whose column is known without
    /// arithmetic.
    pub(super) fn knows_column(&self, ty: &Type, index: &Index) -> bool {
        self.unit.product.is_some() && self.known_coords(ty, index).is_some()
    }

    pub(super) fn bind(&mut self, id: NodeId, access: Access) -> usize {
        let (place, ty) = (self.stores.place(id), self.ty(id));
        let row = (ty.lead == Lead::Sample).then(|| place.row(ty.count()));
        let element = if self.stores.is_half(place.store) { HALF } else { ty.dtype.wgsl() };
        self.bind_as(Binding { store: place.store, row }, access, element)
    }

    pub(super) fn bind_as(&mut self, binding: Binding, access: Access, element: &'static str) -> usize {
        let known = self.bindings.iter().position(|(b, ..)| b.store == binding.store);
        let index = known.unwrap_or_else(|| {
            self.bindings.push((binding, access, element));
            self.bindings.len() - 1
        });
        if access == Access::ReadWrite {
            self.bindings[index].1 = access;
        }
        index
    }
}
