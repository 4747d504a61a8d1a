//! From the graph of a prediction to ONNX's operators, op by op.

use unisono_graph::ops::{
    Attention, Broadcast, Checkpoint, Col2Im, Concat, Detach, Embed, Im2Col, Input, Iota, MatMul, Pad,
    Permute, Reduce, Reshape, Saved, Slice, Take, ToF32, ToI32, Window,
};
use unisono_graph::{DType, Graph, Lead, Lowering, Node, NodeId, ReduceKind, Type};

use crate::onnx::proto::{Attribute, BOOL, FLOAT, FLOAT16, INT32, INT64, Proto};

/// Writes the nodes of a graph. `leaves` are the names of the inputs, states and constants by their nodes.
pub(super) struct Writer<'a> {
    pub graph: &'a Graph,
    pub proto: Proto,
    /// The name of each node's value so far; empty where nothing needs it.
    pub names: Vec<String>,
    /// The name of an input with samples, from which the batch size is read.
    pub batch_of: Option<String>,
    /// The name of the batch size as a list of one, once it was needed.
    pub batch: Option<String>,
}

impl Writer<'_> {
    /// Makes the value of a node an output of the file under a name.
    pub fn output(&mut self, node: NodeId, name: &str, ty: &Type) {
        let from = self.names[node].clone();
        self.proto.node_as("Identity", &[&from], name, &[]);
        self.proto.output(name, ty);
    }

    /// Writes a node that is no leaf.
    ///
    /// # Errors
    /// The op has no counterpart; the error is the message.
    pub fn node(&mut self, id: NodeId) -> Result<String, String> {
        let node = &self.graph.nodes[id];
        let op = &node.op;
        let x: Vec<String> = node.inputs.iter().map(|input| self.names[*input].clone()).collect();
        let first = x.first().map(String::as_str).unwrap_or_default();
        if node.ty.lead == Lead::Shard {
            return Err(format!("{} sums over samples, which a prediction cannot", op.name()));
        }
        if op.is::<Checkpoint>() || op.is::<Detach>() || op.is::<Saved>() {
            return Ok(first.to_owned());
        }
        if op.is::<ToF32>() {
            return Ok(self.cast(first, FLOAT));
        }
        if op.is::<ToI32>() {
            return Ok(self.cast(first, INT32));
        }
        if let Some(Broadcast { dims, .. }) = op.downcast_ref() {
            return Ok(self.broadcast(first, node, dims));
        }
        if let Some(Reshape { dims }) = op.downcast_ref() {
            return Ok(self.reshape(first, node.ty.lead, dims));
        }
        if let Some(Permute { order }) = op.downcast_ref() {
            let lead = lead_axes(&node.ty);
            let order = (0..lead).chain(order.iter().map(|axis| axis + lead));
            let order = order.map(|axis| axis as i64).collect();
            return Ok(self.proto.node("Transpose", &[first], &[Attribute::Ints("perm", order)]));
        }
        if let Some(Slice { start, dims }) = op.downcast_ref() {
            let ends: Vec<i64> = start.iter().zip(dims).map(|(start, n)| (start + n) as i64).collect();
            let starts: Vec<i64> = start.iter().map(|start| *start as i64).collect();
            let axes: Vec<i64> = (0..dims.len()).map(|axis| (axis + lead_axes(&node.ty)) as i64).collect();
            let lists = [starts, ends, axes].map(|list| self.proto.list(&list));
            return Ok(self.proto.node("Slice", &[first, &lists[0], &lists[1], &lists[2]], &[]));
        }
        if let Some(Pad { before, dims }) = op.downcast_ref() {
            let inner = &self.graph.nodes[node.inputs[0]].ty.dims;
            let after = before.iter().zip(dims).zip(inner).map(|((before, n), own)| n - before - own);
            let lead = vec![0; lead_axes(&node.ty)];
            let pads: Vec<i64> = [&lead[..], before, &lead, &after.collect::<Vec<_>>()]
                .concat()
                .into_iter()
                .map(|n: usize| n as i64)
                .collect();
            return Ok(self.pad(first, &pads, node.ty.dtype, 0.0));
        }
        if let Some(Concat { axis }) = op.downcast_ref() {
            let all: Vec<&str> = x.iter().map(String::as_str).collect();
            let axis = (axis + lead_axes(&node.ty)) as i64;
            return Ok(self.proto.node("Concat", &all, &[Attribute::Int("axis", axis)]));
        }
        // Without axes ONNX reduces all of them.
        if let Some(Reduce(reduction)) = op.downcast_ref()
            && reduction.axes.is_empty()
        {
            return Ok(first.to_owned());
        }
        if let Some(Reduce(reduction)) = op.downcast_ref() {
            let axes: Vec<i64> =
                reduction.axes.iter().map(|axis| (axis + lead_axes(&node.ty)) as i64).collect();
            return Ok(match reduction.kind {
                ReduceKind::Sum => {
                    let axes = self.proto.list(&axes);
                    self.proto.node("ReduceSum", &[first, &axes], &[Attribute::Int("keepdims", 0)])
                }
                ReduceKind::Max => {
                    let attributes = [Attribute::Ints("axes", axes), Attribute::Int("keepdims", 0)];
                    self.proto.node("ReduceMax", &[first], &attributes)
                }
            });
        }
        if let Some(MatMul { transpose_a, transpose_b }) = op.downcast_ref() {
            let [a, b] = [0, 1].map(|at| self.graph.nodes[node.inputs[at]].ty.clone());
            let a = if *transpose_a { self.transposed(&x[0], &a) } else { x[0].clone() };
            let b = if *transpose_b { self.transposed(&x[1], &b) } else { x[1].clone() };
            return Ok(self.proto.node("MatMul", &[&a, &b], &[]));
        }
        if let Some(attention) = op.downcast_ref::<Attention>() {
            return Ok(self.attention(node, attention, &x));
        }
        if op.is::<Embed>() {
            let rows = self.graph.nodes[node.inputs[0]].ty.dims[0];
            let ids = self.within(&x[1], node.inputs[1], rows);
            return Ok(self.proto.node("Gather", &[first, &ids], &[Attribute::Int("axis", 0)]));
        }
        if op.is::<Take>() {
            let last = self.proto.list(&[-1]);
            let count = self.graph.nodes[node.inputs[0]].ty.dims.last().copied().unwrap_or_default();
            let index = self.within(&x[1], node.inputs[1], count);
            let index = self.cast(&index, INT64);
            let index = self.proto.node("Unsqueeze", &[&index, &last], &[]);
            let taken = self.proto.node("GatherElements", &[first, &index], &[Attribute::Int("axis", -1)]);
            return Ok(self.proto.node("Squeeze", &[&taken, &last], &[]));
        }
        if let Some(Iota { dims, axis }) = op.downcast_ref() {
            let inner: usize = dims[axis + 1..].iter().product();
            let count: usize = dims.iter().product();
            let values: Vec<i32> = (0..count).map(|at| (at / inner % dims[*axis]) as i32).collect();
            return Ok(self.proto.int32s(dims, &values));
        }
        if let Some(Im2Col { window, fill }) = op.downcast_ref() {
            return Ok(self.im2col(node, window, *fill));
        }
        if let Some(Col2Im { window, image }) = op.downcast_ref() {
            return Ok(self.col2im(node, window, *image));
        }
        let is_pointwise = matches!(op.lowering(), Lowering::Pointwise(_));
        self.pointwise(op.name(), &x)
            .filter(|_| is_pointwise)
            .ok_or_else(|| format!("ONNX has no counterpart of {}: {}", op.name(), self.graph.describe(id)))
    }

    /// Writes ids of one of `count` places. An id of no place stands for the last, where ONNX counts negative
    /// ones from the end and refuses others. Those of an input are what a caller gives.
    fn within(&mut self, ids: &str, node: NodeId, count: usize) -> String {
        if self.graph.nodes[node].op.is::<Input>() {
            return ids.to_owned();
        }
        let last = i32::try_from(count).unwrap_or(i32::MAX).saturating_sub(1);
        let [zero, last] = [0, last].map(|id| self.proto.int32s(&[], &[id]));
        let below = self.proto.node("Less", &[ids, &zero], &[]);
        let above = self.proto.node("Greater", &[ids, &last], &[]);
        let is_none = self.proto.node("Or", &[&below, &above], &[]);
        self.proto.node("Where", &[&is_none, &last, ids], &[])
    }

    /// Writes attention as two products with a softmax between them. A query that sees no key gets zeros.
    fn attention(&mut self, node: &Node, attention: &Attention, x: &[String]) -> String {
        let keys = &self.graph.nodes[node.inputs[1]].ty;
        let keys = self.transposed(&x[1], keys);
        let scale = self.proto.float(attention.scale);
        let scores = self.proto.node("MatMul", &[&x[0], &keys], &[]);
        let scores = self.proto.node("Mul", &[&scores, &scale], &[]);
        let zero = self.proto.float(0.0);
        let causal = attention.causal.then(|| {
            let rows = |operand: usize| {
                let dims = &self.graph.nodes[node.inputs[operand]].ty.dims;
                dims[dims.len() - 2]
            };
            let (queries, keys) = (rows(0), rows(1));
            let seen: Vec<i32> = (0..queries * keys).map(|at| i32::from(at % keys <= at / keys)).collect();
            let seen = self.proto.int32s(&[queries, keys], &seen);
            self.cast(&seen, BOOL)
        });
        let shown = x.get(3).map(|mask| {
            let hidden = self.proto.node("Equal", &[mask, &zero], &[]);
            self.proto.node("Not", &[&hidden], &[])
        });
        let last = [Attribute::Int("axis", -1)];
        let seen = match (causal, shown) {
            (Some(causal), Some(shown)) => Some(self.proto.node("And", &[&causal, &shown], &[])),
            (causal, shown) => causal.or(shown),
        };
        let weights = match seen {
            Some(seen) => {
                let lowest = self.proto.float(f32::MIN);
                let scores = self.proto.node("Where", &[&seen, &scores, &lowest], &[]);
                let weights = self.proto.node("Softmax", &[&scores], &last);
                self.proto.node("Where", &[&seen, &weights, &zero], &[])
            }
            None => self.proto.node("Softmax", &[&scores], &last),
        };
        self.proto.node("MatMul", &[&weights, &x[2]], &[])
    }

    /// Writes an op of each element, by its name in the registry. Returns `None` for one that is not known.
    fn pointwise(&mut self, name: &str, x: &[String]) -> Option<String> {
        let names: Vec<&str> = x.iter().map(String::as_str).collect();
        let same = match name {
            "abs" => "Abs",
            "add" => "Add",
            "cos" => "Cos",
            "div" => "Div",
            "erf" => "Erf",
            "exp" => "Exp",
            "floor" => "Floor",
            "log" => "Log",
            "maximum" => "Max",
            "minimum" => "Min",
            "mul" => "Mul",
            "neg" => "Neg",
            "relu" => "Relu",
            "round" => "Round",
            "sigmoid" => "Sigmoid",
            "sign" => "Sign",
            "sin" => "Sin",
            "sqrt" => "Sqrt",
            "sub" => "Sub",
            "tanh" => "Tanh",
            _ => "",
        };
        Some(match name {
            _ if !same.is_empty() => self.proto.node(same, &names, &[]),
            "eq" | "greater" => {
                let op = if name == "eq" { "Equal" } else { "Greater" };
                let mask = self.proto.node(op, &names, &[]);
                self.cast(&mask, FLOAT)
            }
            "fma" => {
                let product = self.proto.node("Mul", &names[..2], &[]);
                self.proto.node("Add", &[&product, names[2]], &[])
            }
            "select" => {
                let mask = self.cast(names[0], BOOL);
                self.proto.node("Where", &[&mask, names[1], names[2]], &[])
            }
            "round_half" => {
                let half = self.cast(names[0], FLOAT16);
                self.cast(&half, FLOAT)
            }
            _ => return None,
        })
    }

    fn cast(&mut self, x: &str, to: i64) -> String {
        self.proto.node("Cast", &[x], &[Attribute::Int("to", to)])
    }

    /// Writes a value under other axes. An axis of 0 is that of the operand, which is how the batch stays.
    fn reshape(&mut self, x: &str, lead: Lead, dims: &[usize]) -> String {
        let batch = (lead == Lead::Sample).then_some(0);
        let shape: Vec<i64> = batch.into_iter().chain(dims.iter().map(|dim| *dim as i64)).collect();
        let shape = self.proto.list(&shape);
        self.proto.node("Reshape", &[x, &shape], &[])
    }

    /// Writes a value repeated over a larger shape: missing axes come after the batch.
    fn broadcast(&mut self, x: &str, node: &Node, dims: &[usize]) -> String {
        let own = &self.graph.nodes[node.inputs[0]].ty;
        let missing = dims.len() - own.dims.len();
        let mut value = x.to_owned();
        if own.lead == Lead::Sample && missing > 0 {
            let axes = [&vec![1; missing][..], &own.dims].concat();
            value = self.reshape(&value, Lead::Sample, &axes);
        }
        let list: Vec<i64> = dims.iter().map(|dim| *dim as i64).collect();
        let shape = match (node.ty.lead, own.lead) {
            (Lead::Sample, Lead::Global) => {
                let (batch, dims) = (self.batch_size(), self.proto.list(&list));
                self.proto.node("Concat", &[&batch, &dims], &[Attribute::Int("axis", 0)])
            }
            (Lead::Sample, _) => self.proto.list(&[&[1], &list[..]].concat()),
            _ => self.proto.list(&list),
        };
        self.proto.node("Expand", &[&value, &shape], &[])
    }

    /// Returns the name of the batch size as a list of one.
    fn batch_size(&mut self) -> String {
        if let Some(batch) = &self.batch {
            return batch.clone();
        }
        let of = self.batch_of.clone().unwrap_or_default();
        let attributes = [Attribute::Int("start", 0), Attribute::Int("end", 1)];
        let batch = self.proto.node("Shape", &[&of], &attributes);
        self.batch.insert(batch).clone()
    }

    /// Writes a matrix with its last two axes swapped.
    fn transposed(&mut self, x: &str, ty: &Type) -> String {
        let rank = lead_axes(ty) + ty.dims.len();
        let mut order: Vec<i64> = (0..rank as i64).collect();
        order.swap(rank - 1, rank - 2);
        self.proto.node("Transpose", &[x], &[Attribute::Ints("perm", order)])
    }

    fn pad(&mut self, x: &str, pads: &[i64], dtype: DType, fill: f32) -> String {
        let pads = self.proto.list(pads);
        // The fill has the type of what is padded.
        let fill = match dtype {
            DType::F32 => self.proto.float(fill),
            DType::I32 | DType::U32 => self.proto.int32s(&[], &[fill as i32]),
        };
        self.proto.node("Pad", &[x, &pads, &fill], &[])
    }

    /// Writes the elements of windows: the image as a row, with the border's value behind it, from which
    /// each element of each window is gathered.
    fn im2col(&mut self, node: &Node, window: &Window, fill: f32) -> String {
        let operand = &self.graph.nodes[node.inputs[0]];
        let (rest, [h, w, kh, kw]) = last_four(&operand.ty.dims);
        let [down, across] = [0, 1].map(|axis| node.ty.dims[rest.len() + axis]);
        // The operand is the image, repeated over the places in a window: the image itself is enough.
        let image = operand.op.is::<Broadcast>().then(|| operand.inputs[0]).filter(|image| {
            let dims = &self.graph.nodes[*image].ty.dims;
            dims.ends_with(&[h, w, 1, 1]) && dims.len() == rest.len() + 4
        });
        let (places, value) = match image {
            Some(image) if self.graph.nodes[image].ty.dims[..rest.len()] == *rest => {
                ([1, 1], self.names[image].clone())
            }
            _ => ([kh, kw], self.names[node.inputs[0]].clone()),
        };
        let count = h * w * places[0] * places[1];
        let at = |a: usize, o: usize, k: usize, length: usize| {
            let at = o * window.stride[a] + k * window.dilation[a];
            at.checked_sub(window.padding[a]).filter(|i| *i < length)
        };
        let mut indices = Vec::with_capacity(down * across * kh * kw);
        for (o, p) in (0..down).flat_map(|o| (0..across).map(move |p| (o, p))) {
            for (i, j) in (0..kh).flat_map(|i| (0..kw).map(move |j| (i, j))) {
                let place = at(0, o, i, h).zip(at(1, p, j, w)).map(|(y, x)| {
                    let pixel = y * w + x;
                    if places == [1, 1] { pixel } else { (pixel * kh + i) * kw + j }
                });
                indices.push(place.unwrap_or(count) as i64);
            }
        }
        self.gathered(&value, node, rest, count, fill, &[down, across, kh, kw], &indices)
    }

    /// Writes the transpose of [`Writer::im2col`], before its sum.
    fn col2im(&mut self, node: &Node, window: &Window, [h, w]: [usize; 2]) -> String {
        let operand = &self.graph.nodes[node.inputs[0]];
        let (rest, [down, across, kh, kw]) = last_four(&operand.ty.dims);
        let from = |a: usize, at: usize, k: usize, windows: usize| {
            let from = (at + window.padding[a]).checked_sub(k * window.dilation[a])?;
            let at = from / window.stride[a];
            (from.is_multiple_of(window.stride[a]) && at < windows).then_some(at)
        };
        let count = down * across * kh * kw;
        let mut indices = Vec::with_capacity(h * w * kh * kw);
        for (y, x) in (0..h).flat_map(|y| (0..w).map(move |x| (y, x))) {
            for (i, j) in (0..kh).flat_map(|i| (0..kw).map(move |j| (i, j))) {
                let place = from(0, y, i, down).zip(from(1, x, j, across));
                indices.push(place.map_or(count, |(o, p)| ((o * across + p) * kh + i) * kw + j) as i64);
            }
        }
        let value = self.names[node.inputs[0]].clone();
        self.gathered(&value, node, rest, count, 0.0, &[h, w, kh, kw], &indices)
    }

    /// Writes a value whose last four axes, of `count` elements, become elements of it by their numbers;
    /// `count` stands for the fill.
    #[expect(clippy::too_many_arguments, reason = "two ops share it, and each number is one of both")]
    fn gathered(
        &mut self,
        value: &str,
        node: &Node,
        rest: &[usize],
        count: usize,
        fill: f32,
        dims: &[usize],
        indices: &[i64],
    ) -> String {
        let flat = self.reshape(value, node.ty.lead, &[rest, &[count]].concat());
        let rank = lead_axes(&node.ty) + rest.len() + 1;
        let mut pads = vec![0; 2 * rank];
        pads[2 * rank - 1] = 1;
        let padded = self.pad(&flat, &pads, node.ty.dtype, fill);
        let indices = self.proto.ints(dims, indices);
        self.proto.node("Gather", &[&padded, &indices], &[Attribute::Int("axis", rank as i64 - 1)])
    }
}

/// Returns the number of axes in front of those of a sample.
fn lead_axes(ty: &Type) -> usize {
    usize::from(ty.lead == Lead::Sample)
}

/// Splits off the last four axes.
fn last_four(dims: &[usize]) -> (&[usize], [usize; 4]) {
    dims.split_last_chunk::<4>().map_or((dims, [0; 4]), |(rest, last)| (rest, *last))
}

/// Returns the number that ONNX has for a type of elements, of those that inputs have.
pub(super) fn is_input_type(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::I32)
}
