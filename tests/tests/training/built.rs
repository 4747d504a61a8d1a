//! The time that a model takes to build.

use std::time::{Duration, Instant};

use unisono::data::{Field, Sample};
use unisono::{MeanSquaredError, MultiHeadAttention, Trainer};

/// Returns the shorter of two times in which an attention with heads of so many columns is built.
fn builds_in(columns: usize) -> Duration {
    let heads = 4;
    let (length, width) = (24, heads * columns);
    let field = || Field::f32([length, width], vec![0.5; length * width]);
    let fields = Sample::new().with("x", field()).with("y", field()).specs();
    let build = |_| {
        let began = Instant::now();
        let builder = Trainer::builder(MultiHeadAttention::new(heads)).loss(MeanSquaredError);
        builder.adapter("cpu").replicas(1).global_batch(8).build(&fields).unwrap();
        began.elapsed()
    };
    (0..2).map(build).min().unwrap()
}

/// Loops over few columns of a head were unrolled with all that is in them: 12 columns took 8 times as long
/// as 16 do.
#[test]
fn attention_with_narrow_heads_is_built_as_fast_as_with_wide_ones() {
    let wide = builds_in(16);
    for columns in [4, 8, 12, 20] {
        let narrow = builds_in(columns);
        assert!(narrow < 3 * wide, "{columns} columns: {narrow:?}, and 16 columns: {wide:?}");
    }
}
