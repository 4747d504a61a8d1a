//! The WGSL of Unisono: a file a kernel, and snippets that several share.
//!
//! Sharing is visible where a module is put together: a kernel is the concatenation of the snippets it names and its own
//! file, and the constants that its file leaves open. There are no directives inside the files.

/// A piece of WGSL that modules share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Snippet {
    name: &'static str,
    text: &'static str,
}

impl Snippet {
    /// The file's name without `.wgsl`.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The file.
    pub const fn text(&self) -> &'static str {
        self.text
    }
}

macro_rules! snippets {
    ($($(#[$doc:meta])* $ident:ident = $file:literal;)*) => {
        /// The snippets.
        pub mod snippets {
            use super::Snippet;
            $($(#[$doc])* pub const $ident: Snippet =
                Snippet { name: $file, text: include_str!(concat!("snippets/", $file, ".wgsl")) };)*
            /// All of them.
            pub const ALL: &[Snippet] = &[$($ident),*];
        }
    };
}

snippets! {
    /// Exponential, logarithm and friends, with stated error bounds.
    ELEMENTARY = "elementary";
    /// The inner range of a product over all of k.
    INNER_ALL = "inner_all";
    /// The inner range of a product over the rows of each shard.
    INNER_SHARD = "inner_shard";
    /// The counter-based generator.
    PHILOX = "philox";
    /// A draw for an element of a sample. Needs [`PHILOX`].
    RANDOM = "random";
    /// Addition as every sum adds, and the larger of two.
    SUM = "sum";
}

/// Rows times columns, plain, batched, or contracted over the samples of each shard. Needs the constants that the file
/// names, [`snippets::SUM`], and one of [`snippets::INNER_ALL`] and [`snippets::INNER_SHARD`].
pub const MATMUL: &str = include_str!("matmul.wgsl");

/// The binary tree across chunks or shards. Needs the constant that the file names, and [`snippets::SUM`].
pub const TREE: &str = include_str!("tree.wgsl");

/// Whether any number is not finite. Complete.
pub const FINITE: &str = include_str!("finite.wgsl");

/// A module: the snippets, the constants that the kernel's file leaves open, the kernel.
pub fn module(shared: &[Snippet], constants: &str, kernel: &str) -> String {
    let mut text: String = shared.iter().map(Snippet::text).collect();
    text.push_str(constants);
    text.push_str(kernel);
    text
}
