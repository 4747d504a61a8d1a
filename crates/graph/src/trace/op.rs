//! What an op is. Each op is one file under [`crate::ops`]; this is what such a file answers.

use std::fmt::Debug;

use serde::Serialize;
use unisono_shaders::Snippet;

use crate::trace::{Identity, Var, Window};
use crate::values::{Array, Frame, Lead, Type};

/// An operation of the graph.
///
/// An op is known by its type and its fields ([`Identity`]): two nodes whose ops and operands are equal are one, and passes look
/// for types. Names are for readers only.
pub trait Op: Identity + Debug + Send + Sync {
    /// Returns the op's name for messages, printed graphs and the names of kernels. Ops of the registry have names of their own.
    fn name(&self) -> &'static str;

    /// Returns the fields as text for printed graphs, for example `axes=[1]`. Default: nothing.
    fn attrs(&self) -> String {
        String::new()
    }

    /// The result's type, or what is wrong with the operands.
    fn infer(&self, inputs: &[&Type]) -> Result<Type, String>;

    /// The gradient that arrives at each operand, as nodes of the same tape; `None` where there is none.
    ///
    /// A gradient may have the lead of the output where the operand is global: who accumulates sums it over the shards.
    fn gradient(&self, io: &Io<'_>) -> Vec<Option<Var>>;

    /// The result in f64: what the kernels are held to.
    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array;

    /// How a device computes it.
    fn lowering(&self) -> Lowering;
}

/// What a gradient rule sees.
#[derive(Debug)]
pub struct Io<'a> {
    /// The operands.
    pub x: &'a [Var],
    /// The result.
    pub y: &'a Var,
    /// The gradient that arrives at the result.
    pub dy: &'a Var,
}

/// How a device computes an op.
#[derive(Clone, Debug)]
pub enum Lowering {
    /// Data from outside: a step's input or a tensor of the state. Never computed.
    Leaf,
    /// The same number everywhere.
    Constant(f32),
    /// An expression of the operands' elements; fused with its neighbours.
    Pointwise(Expression),
    /// The operand's elements, found elsewhere; costs nothing where it is fused.
    View(View),
    /// `x[..., index]`: a view that depends on data.
    Take,
    /// Rows of a table by ids: a view that depends on data.
    Embed,
    /// The operand at an offset on each axis, zeros around it.
    Pad(Vec<usize>),
    /// The elements of windows; `fill` on the border.
    Im2Col {
        /// The windows.
        window: Window,
        /// The value on the border.
        fill: f32,
    },
    /// The transpose of that; 0 where no window lies.
    Col2Im {
        /// The windows.
        window: Window,
    },
    /// The operands one behind the other along this axis: each is written where it lies.
    Concat(usize),
    /// A sum or maximum over axes.
    Reduce(Reduction),
    /// Rows times columns.
    MatMul {
        /// The left operand is stored transposed.
        transpose_a: bool,
        /// The right operand is stored transposed.
        transpose_b: bool,
        /// The result is rounded to what f16 holds.
        rounds: bool,
    },
    /// Products of samples' rows, summed over each shard's samples.
    Contract,
    /// The sum over shards; ends a segment.
    SumShards,
}

impl Lowering {
    /// Whether each element is found in the operand, perhaps by way of data or with something else around it.
    pub fn is_lookup(&self) -> bool {
        matches!(self, Self::Take | Self::Embed | Self::Pad(_) | Self::Im2Col { .. } | Self::Col2Im { .. })
    }

    /// Whether it can be an expression inside the kernels of its users.
    pub fn is_inline(&self) -> bool {
        self.is_lookup() || matches!(self, Self::Pointwise(_))
    }
}

/// A pointwise op in WGSL.
#[derive(Clone, Debug)]
pub struct Expression {
    /// `$0`, `$1`, ... stand for the operands' elements, `$row` for the sample, `$element` for the place in the sample,
    /// `$axisN` for the coordinate on axis N.
    pub wgsl: String,
    /// What the expression calls.
    pub snippets: &'static [Snippet],
    /// Operands whose storage buffer is named instead of their element (`$1[0]`).
    pub whole: &'static [usize],
    /// Whether the result may be a product that was not rounded on its own.
    pub product: Product,
    /// Whether an operand may reach an addition unrounded.
    pub adds: bool,
    /// Whether the result is a number that f16 holds.
    pub halves: Halves,
}

/// Whether results are numbers that f16 holds: then they may be stored as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halves {
    /// Not as far as is known.
    Never,
    /// Where all operands are.
    Keeps,
    /// Whatever the operands are.
    Makes,
}

/// Where unrounded products come from: no product may reach an addition, or a compiler would choose whether to fuse them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// The result is no product, whatever the operands are.
    Never,
    /// The result is a product.
    Makes,
    /// The result may be an operand unchanged, or with another sign.
    Passes,
}

/// Where the elements of a view are found in its operand.
#[derive(Clone, Debug, PartialEq)]
pub enum View {
    /// The same row-major order under other axes.
    Reshape,
    /// Axes of length 1, missing axes or a missing lead are repeated.
    Broadcast,
    /// Axis i of the view is axis `.0[i]` of the operand; the lead stays first.
    Permute(Vec<usize>),
    /// A box that starts at this coordinate on each axis.
    Slice(Vec<usize>),
}

/// A reduction over axes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reduction {
    /// How two values combine.
    pub kind: ReduceKind,
    /// Axes of the sample (the batch axis does not count), ascending.
    pub axes: Vec<usize>,
    /// Also over the samples of each shard; the result then has [`Lead::Shard`].
    pub samples: bool,
}

/// How two values combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ReduceKind {
    /// Addition, in the order of [`crate::tree`].
    Sum,
    /// The larger one.
    Max,
}

/// The lead that operands share, seen together: samples win over shards, shards over global.
pub fn join_leads(inputs: &[&Type]) -> Lead {
    inputs.iter().map(|t| t.lead).max().unwrap_or(Lead::Global)
}
