//! The memory plan: values that are never alive at the same time share a buffer.

/// The size of a value and when it is needed. Time is counted in launches from the start of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The size of the value in bytes.
    pub bytes: u64,
    /// The first launch that needs the value.
    pub first: usize,
    /// The last launch that needs the value.
    pub last: usize,
}

/// The buffer of each value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// For each lifetime the index of its buffer in `buffer_bytes`.
    pub buffer: Vec<usize>,
    /// The size of each buffer in bytes.
    pub buffer_bytes: Vec<u64>,
}

/// Returns which values share a buffer.
///
/// The largest values are placed first, each into the first buffer in which it meets no other value; so a
/// buffer is as large as its first value. There are several buffers instead of one arena because drivers
/// track hazards by buffer.
pub fn plan_memory(lifetimes: &[Lifetime]) -> MemoryPlan {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lifetimes[i].bytes), lifetimes[i].first, i));
    let mut plan = MemoryPlan { buffer: vec![0; lifetimes.len()], buffer_bytes: vec![] };
    let mut tenants: Vec<Vec<usize>> = vec![];
    for i in order {
        let meets = |&other: &usize| {
            lifetimes[i].first <= lifetimes[other].last && lifetimes[other].first <= lifetimes[i].last
        };
        let free = tenants.iter().position(|t| !t.iter().any(meets)).unwrap_or_else(|| {
            tenants.push(vec![]);
            plan.buffer_bytes.push(lifetimes[i].bytes);
            tenants.len() - 1
        });
        tenants[free].push(i);
        plan.buffer[i] = free;
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn life(bytes: u64, first: usize, last: usize) -> Lifetime {
        Lifetime { bytes, first, last }
    }

    #[test]
    fn a_chain_needs_two_buffers() {
        let chain: Vec<Lifetime> = (0..10).map(|i| life(64, i, i + 1)).collect();
        assert_eq!(plan_memory(&chain).buffer_bytes, [64, 64]);
    }

    proptest! {
        #[test]
        fn values_alive_together_never_share(spans in prop::collection::vec((1u64..100, 0usize..30, 0usize..10), 0..40)) {
            let lives: Vec<Lifetime> = spans.iter().map(|&(b, first, more)| life(b, first, first + more)).collect();
            let plan = plan_memory(&lives);
            for (i, a) in lives.iter().enumerate() {
                prop_assert!(plan.buffer_bytes[plan.buffer[i]] >= a.bytes);
                for (j, b) in lives.iter().enumerate().skip(i + 1) {
                    let together = a.first <= b.last && b.first <= a.last;
                    prop_assert!(!(together && plan.buffer[i] == plan.buffer[j]), "{i} and {j}");
                }
            }
        }
    }
}
