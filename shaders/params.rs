//! The params of each kernel: one list of fields is the Rust struct, its packing to words, and the WGSL
//! declaration.

/// The number of starts that the kernel of a product declares, and the most that a generated kernel declares.
///
/// A start is a param `s0`, `s1`, ... that says where a slice or a part of a buffer begins. As a param, and
/// not as a literal of the kernel's text, it lets one kernel serve all steps of a loop.
pub const STARTS: usize = 16;

/// The params of a kernel: the `u32` fields of the uniform at `@group(0) @binding(0)`.
///
/// Implementations come from the list in this file, so that a kernel's WGSL and the words of its launches
/// cannot differ.
pub trait Params {
    /// The names of the fields in order, without the starts behind them.
    const NAMES: &'static [&'static str];

    /// Returns the fields in order, one word each.
    fn fields(&self) -> Vec<u32>;

    /// Returns the words of a launch: the fields, then the starts that the kernel declares.
    fn words(&self, starts: &[u32]) -> Vec<u32> {
        [&self.fields(), starts].concat()
    }

    /// Returns the WGSL that declares the struct `Params` with so many starts, and the uniform `params`.
    fn declaration(starts: usize) -> String {
        let names = Self::NAMES.iter().map(|name| (*name).to_owned());
        let fields: Vec<String> =
            names.chain((0..starts).map(start)).map(|name| format!("{name}: u32")).collect();
        format!(
            "struct Params {{ {} }}\n@group(0) @binding(0) var<uniform> params: Params;\n",
            fields.join(", ")
        )
    }
}

/// Returns the name of a start in the struct `Params`: `s0`, `s1`, ...
pub fn start(index: usize) -> String {
    format!("s{index}")
}

macro_rules! params {
    ($($(#[$doc:meta])* $ident:ident { $($(#[$field_doc:meta])* $field:ident,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $ident { $($(#[$field_doc])* pub $field: u32,)* }

        impl Params for $ident {
            const NAMES: &'static [&'static str] = &[$(stringify!($field)),*];

            fn fields(&self) -> Vec<u32> {
                vec![$(self.$field),*]
            }
        }
    )*};
}

params! {
    /// The params of a product: `snippets/product.wgsl`. Its kernels declare [`STARTS`] starts, for the
    /// epilogue.
    ProductParams {
        /// The rows of the result.
        m,
        /// The columns of the result.
        n,
        /// The inner size; 0 where it differs from shard to shard.
        k,
        /// The number of chunks of the inner range.
        chunks,
        /// The first element of the left operand.
        a_offset,
        /// The elements from one left operand to the next.
        a_batch,
        /// The first element of the right operand.
        b_offset,
        /// The elements from one right operand to the next.
        b_batch,
        /// The first element of the result.
        c_offset,
        /// The elements from one result to the next.
        c_batch,
        /// The elements from one chunk of the result to the next.
        c_chunk,
        /// The rows that a sample has in a product over samples.
        rows_a_sample,
        /// The first layer of this launch, where the layers take several launches.
        first_z,
        /// The tiles in a row of the result, for `matmul.wgsl`.
        columns,
        /// The invocations in a row of the grid, for `matmul.wgsl`.
        width,
        /// The first shard that is joined.
        first_shard,
        /// The end of the shards that are joined.
        end_shard,
        /// The number of shards that a layer joins.
        join,
        /// The elements from one stored row of the left operand to the next.
        a_step,
        /// The elements from one stored row of the right operand to the next.
        b_step,
        /// Zero, which a compiler cannot know: for bit patterns that must not be constants.
        zero,
    }

    /// The params of `tree.wgsl`. All but `leaves`, `width`, `groups` and `used` count the kernel's
    /// `Number`s.
    TreeParams {
        /// The elements of a leaf.
        elements,
        /// The number of leaves.
        leaves,
        /// The elements from one leaf to the next.
        leaf_stride,
        /// The first element of the first leaf.
        x_offset,
        /// The first element of the result.
        y_offset,
        /// The elements from one group's result to the next.
        y_group,
        /// The elements from one shard's part of the result to the next.
        y_lead,
        /// The elements of a part of the result.
        inner,
        /// The invocations in a row of the grid.
        width,
        /// The number of groups of leaves.
        groups,
        /// The number of f32 of the result that count; those after them become 0.
        used,
    }

    /// The params of `trees.wgsl`.
    TreesParams {
        /// The number of invocations.
        n,
        /// The invocations in a row of the grid.
        width,
    }

    /// The params of the kernels of attention. A start behind them says where each of their memories begins.
    AttentionParams {
        /// The first pair of sample and head of this launch, where they take several launches.
        first_z,
        /// Zero, which a compiler cannot know: for bit patterns that must not be constants.
        zero,
    }

    /// The params of `sort_tiles.wgsl`, `sort_digits.wgsl` and `sort_merge.wgsl`.
    SortParams {
        /// The number of positions.
        n,
        /// The invocations in a row of the grid.
        width,
        /// The number of ids. Larger ones are in no row.
        rows,
        /// The pairs of a sorted tile that is merged with others.
        tile,
        /// The first id.
        offset,
    }

    /// The params of `row_sums.wgsl`.
    RowSumsParams {
        /// The number of positions.
        n,
        /// The invocations in a row of the grid.
        width,
        /// The number of fours of columns, rounded up.
        quads,
        /// The number of columns.
        columns,
        /// The number of rows of the result.
        rows,
        /// The first position of the launch.
        first,
        /// The end of the positions of the launch.
        end,
        /// The first shard of the launch.
        first_shard,
        /// The end of the shards of the launch.
        end_shard,
        /// The number of positions of a sample.
        positions,
        /// The number of bits that number the chunks of a shard.
        chunk_bits,
        /// The first element of what is summed.
        b_offset,
        /// The first element of the result.
        c_offset,
        /// The elements from one shard's result to the next.
        c_batch,
        /// Zero, which a compiler cannot know: for bit patterns that must not be constants.
        zero,
    }

    /// The params of `finite.wgsl`.
    FiniteParams {
        /// The number of `Bits`: of fours of f32, or of f32.
        n,
        /// The invocations in a row of the grid.
        width,
    }

    /// The params of `verdict.wgsl`.
    VerdictParams {
        /// The number of flags.
        flags,
        /// The number of words from one flag to the next.
        stride,
        /// The first number that must be finite.
        first,
        /// The end of the numbers that must be finite.
        end,
        /// The word that is the sum of the weights.
        weight,
    }

    /// The params of `replace.wgsl`.
    ReplaceParams {
        /// The number of words.
        n,
        /// The invocations in a row of the grid.
        width,
        /// The first word that is read.
        source_first,
        /// The first word that is written.
        target_first,
    }

    /// The params of `turned_weights.wgsl`.
    TurnedWeightsParams {
        /// The number of invocations: the channels times the places.
        n,
        /// The invocations in a row of the grid.
        width,
        /// The places in a window.
        places,
        /// The outputs of the convolution.
        outputs,
        /// The first element of the weights.
        first,
    }

    /// The params of `packed_panels.wgsl`.
    PackedPanelsParams {
        /// The columns.
        n,
        /// The inner size.
        k,
        /// The first element of the operand.
        first,
        /// The elements from one step to the next.
        step,
        /// The elements from one column to the next.
        column,
    }

    /// The params of a generated map.
    MapParams {
        /// The number of invocations.
        n,
        /// The invocations in a row of the grid.
        width,
        /// The first sample's row in the run.
        row,
        /// Zero, which a compiler cannot know: for bit patterns that must not be constants.
        zero,
    }

    /// The params of a generated reduction.
    ReduceParams {
        /// The number of results.
        n,
        /// The invocations in a row of the grid.
        width,
        /// The number of chunks of what is reduced to one result.
        chunks,
        /// The first sample's row in the run.
        row,
        /// Zero, which a compiler cannot know: for bit patterns that must not be constants.
        zero,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_declaration_have_the_same_order() {
        let params = MapParams { n: 5, width: 64, row: 2, zero: 0 };
        assert_eq!(params.words(&[7, 9]), [5, 64, 2, 0, 7, 9]);
        assert_eq!(
            MapParams::declaration(2),
            "struct Params { n: u32, width: u32, row: u32, zero: u32, s0: u32, s1: u32 }\n\
             @group(0) @binding(0) var<uniform> params: Params;\n"
        );
    }
}
