//! Relative positions as a bias of attention's scores.

use unisono_graph::ops::Iota;
use unisono_graph::{Lead, Var};

/// The buckets that distances between positions fall into (Raffel et al. 2020: T5).
///
/// Half of the buckets are for the distances 0, 1, 2 and so on. The others are for ranges whose lengths grow
/// with the logarithm of the distance, up to `farthest`. All distances from there on share the last bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelativeBuckets {
    /// The number of buckets, at least 2, or 4 in both directions.
    pub buckets: usize,
    /// The distance from which on all distances share the last bucket. It must be greater than `buckets` / 4
    /// if there are buckets for both directions, otherwise greater than `buckets` / 2, and at most 2^20.
    pub farthest: usize,
    /// Whether positions after the query have buckets of their own: the second half. If false, all positions
    /// after the query share bucket 0 with the query itself, which suits causal attention.
    pub both_directions: bool,
}

impl RelativeBuckets {
    /// Returns the number of buckets of one direction.
    fn each(&self) -> usize {
        if self.both_directions { self.buckets / 2 } else { self.buckets }
    }

    /// Returns what is wrong with the sizes.
    pub(crate) fn problem(&self) -> Option<String> {
        let exact = self.each() / 2;
        let is_valid =
            exact > 0 && self.farthest > exact && self.farthest <= 1 << 20 && self.buckets <= 1 << 10;
        (!is_valid).then(|| format!("{} buckets up to a distance of {}", self.buckets, self.farthest))
    }

    /// Returns the bucket of a distance in one direction.
    fn bucket(&self, distance: usize) -> usize {
        let (each, exact) = (self.each(), self.each() / 2);
        if distance < exact {
            return distance;
        }
        let log = |distance: usize| libm::log(distance as f64 / exact as f64);
        let share = log(distance) / log(self.farthest);
        // A distance at the start of a range belongs to the range, also if its logarithm is rounded down.
        let place = share * (each - exact) as f64 + 1e-6;
        (exact + place as usize).min(each - 1)
    }
}

/// Returns the biases of T queries and S positions by their distances, for
/// [`scaled_dot_product_attention_biased`](super::scaled_dot_product_attention_biased) (T5's
/// `relative_attention_bias`). `table` has a row for each bucket.
///
/// Shapes: table `[buckets, heads]`, of no sample, to `[heads, T, S]`.
///
/// Errors: the sizes of the buckets do not fit each other, or the table has another number of rows.
pub fn relative_position_bias(table: &Var, queries: usize, positions: usize, by: RelativeBuckets) -> Var {
    let (tape, &[rows, heads]) = (table.tape(), table.dims()) else {
        table.tape().fail_here("relative_position_bias", format!("{} is no table of buckets", table.ty()));
        return table.clone();
    };
    let wrong = by.problem().or_else(|| (rows != by.buckets).then(|| format!("{rows} rows for {by:?}")));
    if let Some(problem) = wrong {
        tape.fail_here("relative_position_bias", problem);
        return table.clone();
    }
    // All distances once: those of the positions 0 to S - 1 from query 0, and then those before a query, the
    // farthest first. Row t of the result is this list, turned by t.
    let all = queries + positions;
    let place = tape.apply(Iota { dims: vec![all], axis: 0 }, &[]).to_f32();
    let after = (tape.constant(positions as f32) - 0.5).greater(&place);
    let before = tape.constant(all as f32) - &place;
    let zero = tape.constant(0.0);
    let bucket = if by.both_directions {
        let shift = after.select(&(place.greater(&zero) * by.each() as f32), &zero);
        buckets(&after.select(&place, &before), by) + shift
    } else {
        buckets(&after.select(&zero, &before), by)
    };
    let biases = table.embed(&bucket.to_i32()).permute(&[1, 0]).reshape(&[heads, 1, all]);
    let turned = biases.expand(Lead::Global, &[heads, queries, all]).reshape(&[heads, queries * all]);
    let turned = turned.slice(-1, 0..queries * (all - 1)).reshape(&[heads, queries, all - 1]);
    turned.slice(-1, 0..positions)
}

/// Returns the buckets of distances, both in f32.
fn buckets(distance: &Var, by: RelativeBuckets) -> Var {
    let tape = distance.tape();
    let exact = by.each() / 2;
    let mut bucket = distance.minimum(&tape.constant(exact as f32));
    let mut first = exact;
    for number in exact + 1..by.each() {
        // The first distance of each bucket. One that is empty begins where the next one does.
        while first < by.farthest && by.bucket(first) < number {
            first += 1;
        }
        bucket = bucket + distance.greater(&tape.constant(first as f32 - 0.5));
    }
    bucket
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_fall_into_the_buckets_of_t5() {
        let by = RelativeBuckets { buckets: 32, farthest: 128, both_directions: true };
        // By transformers' `_relative_position_bucket`.
        let expected = [(0, 0), (7, 7), (8, 8), (11, 8), (12, 9), (15, 9), (16, 10), (23, 11), (32, 12)];
        let far = [(45, 12), (46, 13), (64, 14), (91, 15), (128, 15), (1000, 15)];
        for (distance, bucket) in expected.into_iter().chain(far) {
            assert_eq!(by.bucket(distance), bucket, "{distance}");
        }
        assert!(by.problem().is_none());
        assert!(RelativeBuckets { farthest: 8, ..by }.problem().is_some());
        assert!(RelativeBuckets { buckets: 3, ..by }.problem().is_some());
    }
}
