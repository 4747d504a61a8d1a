#![doc = include_str!("README.md")]

mod packed;
mod params;
mod workgroup;

use std::borrow::Cow;

pub use packed::{Part, params_side_by_side, side_by_side};
pub use params::{
    AttentionParams, FiniteParams, MapParams, PackedPanelsParams, Params, ProductParams, ReduceParams,
    ReplaceParams, RowSumsParams, STARTS, SortParams, TreeParams, TreesParams, TurnedWeightsParams,
    VerdictParams, start,
};
pub use workgroup::Workgroup;

/// A piece of WGSL that modules share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Snippet {
    name: &'static str,
    text: &'static str,
}

impl Snippet {
    /// Returns the file's name without `.wgsl`.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the text of the file.
    pub const fn text(&self) -> &'static str {
        self.text
    }
}

macro_rules! snippets {
    ($($(#[$doc:meta])* $ident:ident = $file:literal;)*) => {
        /// The snippets, each from a file of `snippets/`.
        pub mod snippets {
            use super::Snippet;
            $($(#[$doc])* pub const $ident: Snippet =
                Snippet { name: $file, text: include_str!(concat!("snippets/", $file, ".wgsl")) };)*
            /// All snippets.
            pub const ALL: &[Snippet] = &[$($ident),*];
        }
    };
}

snippets! {
    /// Blocks of a product's left operand. Needs `a_load`.
    A_BLOCK = "a_block";
    /// A product's left operand in eights of f16.
    A_EIGHTS = "a_eights";
    /// [`A_QUADS`] of an operand that is f16.
    A_HALF_QUADS = "a_half_quads";
    /// [`A_WORDS`] of an operand that is f16.
    A_HALF_WORDS = "a_half_words";
    /// Reads four elements of a product's left operand at once.
    A_QUADS = "a_quads";
    /// Blocks of a product's left operand that is stored as a matrix. Needs `a_quad`.
    A_STORED = "a_stored";
    /// Reads four elements of a product's left operand one by one.
    A_WORDS = "a_words";
    /// Blocks of a product's right operand. Needs `b_load`.
    B_BLOCK = "b_block";
    /// A product's right operand in eights of f16.
    B_EIGHTS = "b_eights";
    /// [`B_QUADS`] of an operand that is f16.
    B_HALF_QUADS = "b_half_quads";
    /// [`B_WORDS`] of an operand that is f16.
    B_HALF_WORDS = "b_half_words";
    /// Reads four elements of a product's right operand at once.
    B_QUADS = "b_quads";
    /// Blocks of a product's right operand that is stored as a matrix. Needs `b_quad`.
    B_STORED = "b_stored";
    /// Reads four elements of a product's right operand one by one.
    B_WORDS = "b_words";
    /// [`C_QUADS`] of a product that is rounded to f16. Needs [`ROUND_HALF`] and the type `Kept`.
    C_HALF_QUADS = "c_half_quads";
    /// [`C_WORDS`] of a product that is rounded to f16. Needs [`ROUND_HALF`] and the type `Kept`.
    C_HALF_WORDS = "c_half_words";
    /// Writes four elements of a product at once.
    C_QUADS = "c_quads";
    /// Writes four elements of a product one by one.
    C_WORDS = "c_words";
    /// Tiles of products, each chunk of which is a layer of its own, for
    /// [`MATMUL_TILES`](crate::MATMUL_TILES).
    CHUNKS_APART = "chunks_apart";
    /// Tiles of products, all chunks of which one workgroup computes, for
    /// [`MATMUL_TILES`](crate::MATMUL_TILES).
    CHUNKS_IN_TURN = "chunks_in_turn";
    /// Sums so far, which no compiler may take apart. Needs a param `zero`.
    KEPT = "kept";
    /// A tile of a layer in registers: of one product, or of the sum over shards. Needs [`PRODUCT`] and the
    /// tiles of the kernel's file.
    LAYER_TILE = "layer_tile";
    /// Exponential, logarithm, hyperbolic tangent, error function and sigmoid, with stated error bounds.
    /// Needs [`QUOTIENT`].
    ELEMENTARY = "elementary";
    /// Turns zeros, subnormal numbers and the smallest normal one into +0.
    FLUSH = "flush";
    /// The bits that tell whether numbers are finite.
    FINITE_BITS = "finite_bits";
    /// The epilogue of a product that is stored as it is.
    FINISH_NONE = "finish_none";
    /// The inner range of a product over all of k.
    INNER_ALL = "inner_all";
    /// The inner range of a product over the rows of each shard.
    INNER_SHARD = "inner_shard";
    /// The counter-based generator Philox 4x32-10.
    PHILOX = "philox";
    /// Sizes of a product, and its operands in blocks. Needs [`SUM_QUADS`], [`KEPT`], constants, `a_load`,
    /// `b_load` and what these are given, `put_quad`, `inner_range`, `finish`.
    PRODUCT = "product";
    /// [`QUOTIENT`] for devices whose own division rounds correctly. Needs a param `zero`.
    OWN_QUOTIENT = "own_quotient";
    /// [`ROOT`] for devices whose own square root rounds correctly. Needs a param `zero`.
    OWN_ROOT = "own_root";
    /// Draws a word for an element of a sample. Needs [`PHILOX`].
    RANDOM = "random";
    /// The correctly rounded quotient of two numbers.
    QUOTIENT = "quotient";
    /// The correctly rounded square root.
    ROOT = "root";
    /// Rounds to the nearest number that f16 holds.
    ROUND_HALF = "round_half";
    /// Slabs of f32 and their multiply-adds, for [`MATMUL_TILES`](crate::MATMUL_TILES).
    SLABS = "slabs";
    /// The sum of 16 products as the tensor cores of NVIDIA's Hopper add them.
    ALIGNED = "aligned";
    /// Slabs of f16 for matrix units, for [`MATMUL_TILES`](crate::MATMUL_TILES). A generator replaces three
    /// of its lines.
    UNITS = "units";
    /// The positions of each shard, for [`ROW_SUMS`](crate::ROW_SUMS).
    SHARD_RANGE = "shard_range";
    /// [`SHARD_RANGE`] where values have no samples.
    SHARD_RANGE_NONE = "shard_range_none";
    /// The workgroup memory in which reductions stage rows.
    STAGED = "staged";
    /// Addition as every sum adds, and the larger of two numbers.
    SUM = "sum";
    /// Sine and cosine. Needs a param `zero`.
    TRIGONOMETRY = "trigonometry";
    /// The functions of [`SUM`] for four numbers at once.
    SUM_QUADS = "sum_quads";
    /// The functions that [`SUM_QUADS`] has beyond [`SUM`], for one number at a time.
    WORDS = "words";
}

/// Rows times columns, plain, batched, or contracted over the samples of each shard: a tile in each
/// invocation's registers. This and the other products need [`snippets::PRODUCT`] and what it names, and the
/// constants of their file.
pub const MATMUL: &str = include_str!("matmul.wgsl");

/// The same products for a CPU: an invocation multiplies copies of its operands that are read in order.
pub const MATMUL_PANELS: &str = include_str!("matmul_panels.wgsl");

/// The same products for a CPU and few rows: an invocation reads a part of the right operand once.
pub const MATMUL_FEW: &str = include_str!("matmul_few.wgsl");

/// The same products for GPUs: each workgroup computes a tile, and operands are shared through workgroup
/// memory.
pub const MATMUL_TILES: &str = include_str!("matmul_tiles.wgsl");

/// The binary tree across chunks or shards. Needs the constants that the file names, and [`snippets::SUM`]
/// with [`snippets::WORDS`], or [`snippets::SUM_QUADS`].
pub const TREE: &str = include_str!("tree.wgsl");

/// Several trees across shards in one launch. Needs what the file names, and the snippets of [`TREE`].
pub const TREES: &str = include_str!("trees.wgsl");

/// Finds whether any number is not finite. Needs the constant and the types that the file names.
pub const FINITE: &str = include_str!("finite.wgsl");

/// Finds whether any number of several memories is not finite. Needs what the file names.
pub const FINITE_ALL: &str = include_str!("finite_all.wgsl");

/// Decides on the device whether a step commits. Needs the constants that the file names.
pub const VERDICT: &str = include_str!("verdict.wgsl");

/// Copies new values to a state, if the step commits.
pub const REPLACE: &str = include_str!("replace.wgsl");

/// Copies the right operand of a product to panels, for [`MATMUL_PANELS`]. Needs the constant and the
/// function that the file names.
pub const PACKED_PANELS: &str = include_str!("packed_panels.wgsl");

/// Turns a convolution's weights for its gradient by the image.
pub const TURNED_WEIGHTS: &str = include_str!("turned_weights.wgsl");

/// Attention, forward and backward: what its kernels are put together from. `ROWS`, `OWN`, `OUT` and `WIDTH`
/// stand for the names of memories and the constant that is the length of their rows.
pub mod attention {
    macro_rules! files {
        ($($(#[$doc:meta])* $ident:ident = $file:literal;)*) => {
            $($(#[$doc])* pub const $ident: &str = include_str!(concat!("attention/", $file, ".wgsl"));)*
        };
    }

    files! {
        /// What kernels for the CPU and for GPUs with small workgroups share: tiles in the registers of
        /// invocations.
        ALONE = "alone";
        /// Products of the rows of two memories.
        ALONE_SCORES = "alone_scores";
        /// Sums of a memory's rows, each times its number of the tile.
        ALONE_SPREAD = "alone_spread";
        /// Results that are kept where they are stored.
        ALONE_RESULT = "alone_result";
        /// The weighted means of values.
        ALONE_FORWARD = "alone_forward";
        /// The gradient by queries.
        ALONE_QUERY = "alone_query";
        /// The gradients by keys and values.
        ALONE_KEY = "alone_key";
        /// What kernels for GPUs share: tiles in workgroup memory.
        TILES = "tiles";
        /// [`ALONE_SCORES`] for GPUs.
        TILES_SCORES = "tiles_scores";
        /// [`ALONE_SPREAD`] for GPUs.
        TILES_SPREAD = "tiles_spread";
        /// How results are stored.
        TILES_RESULT = "tiles_result";
        /// [`ALONE_FORWARD`] for GPUs.
        TILES_FORWARD = "tiles_forward";
        /// [`ALONE_QUERY`] for GPUs.
        TILES_QUERY = "tiles_query";
        /// [`ALONE_KEY`] for GPUs.
        TILES_KEY = "tiles_key";
        /// What kernels share where a matrix unit multiplies, behind [`TILES`].
        UNITS = "units";
        /// [`TILES_SCORES`] by a matrix unit. A generator replaces its marks.
        UNITS_SCORES = "units_scores";
        /// [`TILES_SPREAD`] by a matrix unit. A generator replaces its mark.
        UNITS_SPREAD = "units_spread";
        /// The begin of the main function of a kernel that has several of the above as functions.
        TILES_PARTS = "tiles_parts";
    }
}

/// Sorts ids with their positions within tiles. Needs the constant that the file names.
pub const SORT_TILES: &str = include_str!("sort_tiles.wgsl");

/// As [`SORT_TILES`], for devices with few threads. Needs the constants that the file names.
pub const SORT_DIGITS: &str = include_str!("sort_digits.wgsl");

/// Merges sorted tiles. Needs the constant that the file names.
pub const SORT_MERGE: &str = include_str!("sort_merge.wgsl");

/// Sums rows by their ids: an embedding's gradient. Needs [`snippets::SUM_QUADS`], `b_quad`, `put_quad` and
/// `shard_range`, and the constants and functions that the file names.
pub const ROW_SUMS: &str = include_str!("row_sums.wgsl");

/// Returns a module for a device whose own quotients and square roots are known to round correctly: with
/// these in place of [`snippets::QUOTIENT`] and [`snippets::ROOT`]. The bits of results are the same. A
/// module that has neither is returned as it is.
pub fn with_own_quotients(module: &str) -> Cow<'_, str> {
    // A search for the few words of a declaration is quicker than one for a long text.
    let pairs = [
        ("fn quotient(", snippets::QUOTIENT, snippets::OWN_QUOTIENT),
        ("fn root(", snippets::ROOT, snippets::OWN_ROOT),
    ];
    pairs.iter().fold(Cow::Borrowed(module), |text, (declaration, ours, own)| {
        match text.contains(declaration) {
            true => text.replace(ours.text(), own.text()).into(),
            false => text,
        }
    })
}

/// What [`with_masks`] replaces: how [`snippets::FLUSH`], [`snippets::SUM`] and [`snippets::SUM_QUADS`]
/// choose between a number and +0, by a select and by a mask of integers, and how [`snippets::KEPT`] keeps a
/// sum.
pub const MASKS: [[&str; 2]; 3] = [
    [
        "select(bits, 0u, bitcast<i32>(bits & 0x7fffffffu) <= 0x00800000)",
        "bits & bitcast<u32>(bitcast<i32>(0x00800000u - (bits & 0x7fffffffu)) >> 31u)",
    ],
    [
        "select(bits, vec4<u32>(), magnitude <= vec4<i32>(0x00800000))",
        "bits & bitcast<vec4<u32>>((vec4<i32>(0x00800000) - magnitude) >> vec4<u32>(31u))",
    ],
    [
        "fn kept(x: vec4<f32>) -> vec4<f32> {\n    return x;",
        "fn kept(x: vec4<f32>) -> vec4<f32> {\n    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(x) ^ vec4<u32>(params.zero));",
    ],
];

/// Returns a module for a compiler that nothing forbids to change float operations: numbers are made
/// canonical by a mask in place of a select, and sums are kept by an operation of integers. The bits of
/// results are the same.
///
/// A select is no barrier to a compiler whose values have no types: Mesa takes `select(x * 3, 0, c) * 5` for
/// `select(x * 15, 0, c)`. It cannot move a product over an operation of integers, nor an addition.
pub fn with_masks(module: &str) -> String {
    MASKS.iter().fold(module.to_owned(), |text, [select, mask]| text.replace(select, mask))
}

/// Returns a module: the declaration of the params, the snippets, the constants that the kernel's file leaves
/// open, the kernel.
///
/// `params` comes from [`Params::declaration`].
pub fn module(params: &str, shared: &[Snippet], constants: &str, kernel: &str) -> String {
    let mut text = params.to_owned();
    text.extend(shared.iter().map(Snippet::text));
    text.push_str(constants);
    text.push_str(kernel);
    text
}
