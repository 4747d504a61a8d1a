//! The ops, one file each, and the registry of them.
//!
//! An op's file says what the op computes, the shape of its result, its gradient, its reference in f64 and
//! the cases that tests run on every adapter. A line of the list in this file makes the file a part of the
//! crate, exports the op and registers its cases: a file that is not in the list is not compiled, and a test
//! fails for an op that has no cases.

mod activations;
mod convolution;
mod cumulative;
mod einsum;
mod functions;
mod operators;
mod registry;
mod segments;
mod softmax;
mod sort;
mod top_k;

pub use crate::trace::{Constant, Input, Pointwise, State, Window};
pub(crate) use attention::Sizes as AttentionSizes;
pub use attention::{BLOCK as ATTENTION_BLOCK, MAX_WIDTH as ATTENTION_MAX_WIDTH};
pub use registry::{Case, Entry};

/// Declares ops: `file: Type, ...;`. Pointwise ops have their cases in [`Pointwise::CASES`], other files in
/// `ENTRIES`.
macro_rules! ops {
    (
        pointwise { $($file:ident: $($op:ident),+;)* }
        others { $($other:ident: $($item:ident),+;)* }
    ) => {
        $(mod $file; pub use $file::{$($op),+};)*
        $(mod $other; pub use $other::{$($item),+};)*

        /// All ops that compute. Tests and documentation iterate it.
        pub static REGISTRY: &[&[Entry]] = &[
            &[$($(Entry { name: <$op as Pointwise>::NAME, cases: || registry::pointwise(|| $op) }),+),*],
            $($other::ENTRIES),*
        ];
    };
}

ops! {
    pointwise {
        abs: Abs;
        add: Add;
        div: Div;
        eq: Eq;
        erf: Erf;
        exp: Exp;
        floor: Floor;
        fma: Fma;
        greater: Greater;
        log: Log;
        maximum: Maximum;
        minimum: Minimum;
        mul: Mul;
        neg: Neg;
        relu: Relu;
        round: Round;
        round_half: RoundHalf;
        select: Select;
        sigmoid: Sigmoid;
        sign: Sign;
        sin: Cos, Sin;
        sqrt: Sqrt;
        sub: Sub;
        tanh: Tanh;
    }
    others {
        attention: Attention, AttentionLse;
        attention_gradient: AttentionGradient;
        broadcast: Broadcast;
        cast: ToF32, ToI32;
        checkpoint: Checkpoint;
        concat: Concat;
        contract: Contract;
        dropout: Dropout;
        embed: Embed;
        embed_gradient: EmbedGradient;
        gather_batch: BatchRow, GatheredBatch;
        im2col: Col2Im, Im2Col;
        iota: Iota;
        matmul: MatMul;
        matmul_half: MatMulHalf;
        pad: Pad;
        permute: Permute;
        reduce: Reduce;
        reshape: Detach, Reshape;
        saved: Saved;
        slice: Slice;
        sum_shards: SumShards;
        take: Take;
        uniform: Uniform;
    }
}

#[cfg(test)]
mod tests;
