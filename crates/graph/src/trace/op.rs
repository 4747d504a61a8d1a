//! The trait of ops and what its methods speak of. Each op is a file of the module `ops`.

use std::fmt::Debug;

use serde::Serialize;
use unisono_shaders::Snippet;

use crate::trace::{Identity, Var, Window};
use crate::values::{Array, Frame, Lead, Type};

/// An operation of the graph.
///
/// An op is known by its type and its fields ([`Identity`]): two nodes whose ops and operands are equal are
/// one, and passes look for types. Names are for readers only.
pub trait Op: Identity + Debug + Send + Sync {
    /// Returns the op's name for messages, printed graphs and the names of kernels. Ops of the registry have
    /// names of their own.
    fn name(&self) -> &'static str;

    /// Returns the fields as text for printed graphs, for example `axes=[1]`. Default: nothing.
    fn attrs(&self) -> String {
        String::new()
    }

    /// Returns the result's type.
    ///
    /// # Errors
    /// Says what is wrong with the operands.
    fn infer(&self, inputs: &[&Type]) -> Result<Type, String>;

    /// Returns the gradient of each operand as a node of the same tape, `None` for an operand that has none.
    ///
    /// The gradient of a global operand may have the lead of the result. [`crate::Tape::gradients`] sums it
    /// over samples and shards.
    fn gradient(&self, io: &Io<'_>) -> Vec<Option<Var>>;

    /// Returns the result in f64. Kernels are compared with it.
    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array;

    /// Returns how a device computes the op.
    fn lowering(&self) -> Lowering;
}

/// The values that a gradient rule works with.
#[derive(Debug)]
pub struct Io<'a> {
    /// The operands of the op.
    pub x: &'a [Var],
    /// The result of the op.
    pub y: &'a Var,
    /// The gradient that arrives at the result.
    pub dy: &'a Var,
}

/// How a device computes an op.
#[derive(Clone, Debug)]
pub enum Lowering {
    /// It does not: the value is data from outside, an input of the step or a tensor of the state.
    Leaf,
    /// Every element is this number.
    Constant(f32),
    /// Each element is an expression of the operands' elements. Such ops are fused with their neighbours.
    Pointwise(Expression),
    /// Each element is one of the operand's at another place. A view that is fused costs nothing.
    View(View),
    /// Each element is `x[..., index]`: a view that depends on data.
    Take,
    /// Each row is one of a table's, by id: a view that depends on data.
    Embed,
    /// The operand lies at this offset on each axis, with zeros around it.
    Pad(Vec<usize>),
    /// Each element is the one that a window of an image has at a place, or `fill` on the border.
    Im2Col {
        /// The windows.
        window: Window,
        /// The value on the border.
        fill: f32,
    },
    /// The transpose of [`Lowering::Im2Col`]: each element is the one that an image's window has at a place,
    /// or 0 where there is no window.
    Col2Im {
        /// The windows.
        window: Window,
    },
    /// The operands lie one behind the other along this axis. Each is written where it lies.
    Concat(usize),
    /// The result is a sum or maximum over axes.
    Reduce(Reduction),
    /// The result is a matrix product.
    MatMul {
        /// Whether the left operand is stored transposed.
        transpose_a: bool,
        /// Whether the right operand is stored transposed.
        transpose_b: bool,
        /// Whether the result is rounded to numbers that f16 holds.
        rounds: bool,
    },
    /// The result is the sum of products of samples' rows over each shard's samples.
    Contract,
    /// The result is for each id below `rows` the sum of the rows that it names, over each shard's samples.
    RowSums {
        /// The number of ids, and of the result's rows.
        rows: usize,
    },
    /// The result is one of those of attention. What is computed of the same operands in one go shares a
    /// kernel.
    Attention {
        /// Whether a query sees the keys up to its own place only.
        causal: bool,
        /// The factor of the scores.
        scale: f32,
        /// Which result it is.
        result: AttentionResult,
    },
    /// The result is a sum over shards. The step is cut here: a segment ends.
    SumShards,
}

impl Lowering {
    /// Returns whether a device has the value in memory before any kernel computes with it: it comes from
    /// outside, or it was summed over shards.
    pub(crate) fn is_given(&self) -> bool {
        matches!(self, Self::Leaf | Self::SumShards)
    }

    /// Returns whether each element is one of the operand's, where a [`View`] says.
    pub(crate) fn is_view(&self) -> bool {
        matches!(self, Self::View(_))
    }

    /// Returns whether the elements are the operand's in the same order, so that both may share a memory.
    pub(crate) fn is_reshape(&self) -> bool {
        matches!(self, Self::View(View::Reshape))
    }

    /// Returns whether each element is one of an operand's at a place that takes more than a [`View`] to
    /// find, or a border.
    pub fn is_lookup(&self) -> bool {
        matches!(self, Self::Take | Self::Embed | Self::Pad(_) | Self::Im2Col { .. } | Self::Col2Im { .. })
    }

    /// Returns whether the op can be an expression inside the kernels of its users.
    pub fn is_inline(&self) -> bool {
        self.is_lookup() || matches!(self, Self::Pointwise(_))
    }
}

/// A result of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum AttentionResult {
    /// The weighted means of the values.
    Values,
    /// For each query, the logarithm of the sum of e^score over the keys that the query sees.
    LogSums,
    /// The gradient by the queries.
    Query,
    /// The gradient by the keys.
    Key,
    /// The gradient by the values.
    Value,
}

impl AttentionResult {
    /// Returns the first result that one kernel computes with this one.
    pub(crate) fn first(self) -> Self {
        match self {
            Self::LogSums => Self::Values,
            Self::Value => Self::Key,
            own => own,
        }
    }
}

/// A pointwise op in WGSL.
#[derive(Clone, Debug)]
pub struct Expression {
    /// The expression. In it `$0`, `$1`, ... stand for the operands' elements, `$row` for the sample,
    /// `$element` for the place in the sample, and `$axisN` for the coordinate on axis N.
    pub wgsl: String,
    /// The shader functions that the expression calls.
    pub snippets: &'static [Snippet],
    /// Operands that stand for their whole storage buffer instead of an element (`$1[0]`).
    pub whole: &'static [usize],
    /// Whether the result may be a product that was not rounded on its own.
    pub product: Product,
    /// Whether an operand may reach an addition unrounded.
    pub adds: bool,
    /// Whether the result is a number that f16 holds.
    pub halves: Halves,
    /// Whether the result is canonical wherever all operands are ([`crate::tree::canonical`]). If not, the
    /// kernel makes it so.
    pub canonical: bool,
}

/// Whether the results of an op are numbers that f16 holds. Such results may be stored as f16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halves {
    /// The results are not known to be such numbers.
    Never,
    /// The results are such numbers where all operands are.
    Keeps,
    /// The results are such numbers whatever the operands are.
    Makes,
}

/// Whether the result of an op may be a product that was not rounded on its own. No such product may reach an
/// addition: a driver's compiler would be free to fuse the two, and results would depend on its choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// The result is never a product, whatever the operands are.
    Never,
    /// The result is a product.
    Makes,
    /// The result may be an operand unchanged or with another sign, and so a product where the operand is
    /// one.
    Passes,
}

/// Where the elements of a view are found in its operand.
#[derive(Clone, Debug, PartialEq)]
pub enum View {
    /// The elements are in the same row-major order under other axes.
    Reshape,
    /// Axes of length 1, missing axes or a missing lead are repeated.
    Broadcast,
    /// Axis i of the view is axis `.0[i]` of the operand; the lead stays first.
    Permute(Vec<usize>),
    /// The view is a box that starts at this coordinate on each axis.
    Slice(Vec<usize>),
}

/// A reduction over axes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reduction {
    /// How two values are combined.
    pub kind: ReduceKind,
    /// The reduced axes of a sample in ascending order. The batch axis is not counted.
    pub axes: Vec<usize>,
    /// Whether the samples of each shard are reduced too. The result then has [`Lead::Shard`].
    pub samples: bool,
}

impl Reduction {
    /// Returns whether the reduced axes of a sample of this type are its last ones, so that what is reduced
    /// lies side by side.
    pub(crate) fn is_trailing(&self, from: &Type) -> bool {
        self.axes.iter().rev().enumerate().all(|(i, &axis)| axis + 1 + i == from.dims.len())
    }
}

/// How a reduction combines two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ReduceKind {
    /// Values are added, in the order of [`crate::tree`].
    Sum,
    /// The larger value is kept.
    Max,
}

/// Returns the lead of what is made of several operands: samples win over shards, shards over global.
pub fn join_leads(inputs: &[&Type]) -> Lead {
    inputs.iter().map(|t| t.lead).max().unwrap_or(Lead::Global)
}
