//! The memory plan: values that are never alive at the same time share a buffer.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

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
///
/// Values of one size are placed in the order of time. Where there are many of them, [`Vacancies`] knows
/// meanwhile how long each buffer stays free, so that no buffer is asked in vain.
pub fn plan_memory(lifetimes: &[Lifetime]) -> MemoryPlan {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&i| (Reverse(lifetimes[i].bytes), lifetimes[i].first, i));
    let mut plan = MemoryPlan { buffer: vec![0; lifetimes.len()], buffer_bytes: vec![] };
    let mut tenants = Tenants::default();
    let mut placed = 0;
    for same_size in order.chunk_by(|&a, &b| lifetimes[a].bytes == lifetimes[b].bytes) {
        // Vacancies cost as much as asking so many buffers.
        let is_many = same_size.len() * tenants.0.len() >= placed;
        let mut vacancies = is_many.then(|| Vacancies::new(&tenants));
        for &i in same_size {
            let Lifetime { bytes, first, last } = lifetimes[i];
            let free = match &mut vacancies {
                Some(vacancies) => vacancies.first_beyond(first, last, &tenants),
                None => (0..tenants.0.len()).find(|&buffer| tenants.free_until(buffer, first) > last),
            };
            let free = free.unwrap_or(plan.buffer_bytes.len());
            if free == plan.buffer_bytes.len() {
                plan.buffer_bytes.push(bytes);
            }
            tenants.insert(free, first, last);
            vacancies.iter_mut().for_each(|vacancies| vacancies.take(free, last));
            plan.buffer[i] = free;
        }
        placed += same_size.len();
    }
    plan
}

/// The values in each buffer: for the first moment of each the last one.
#[derive(Default)]
struct Tenants(Vec<BTreeMap<usize, usize>>);

impl Tenants {
    fn insert(&mut self, buffer: usize, first: usize, last: usize) {
        if buffer == self.0.len() {
            self.0.push(BTreeMap::new());
        }
        self.0[buffer].insert(first, last);
    }

    /// Returns the first moment from `now` on at which a buffer is taken. It is 0 if it is taken now.
    fn free_until(&self, buffer: usize, now: usize) -> usize {
        let is_taken = self.0[buffer].range(..=now).next_back().is_some_and(|(_, &last)| last >= now);
        let next = self.0[buffer].range(now..).next().map_or(usize::MAX, |(&first, _)| first);
        if is_taken { 0 } else { next }
    }
}

/// For a moment that only moves forward, until when each buffer is free from then on.
struct Vacancies {
    /// A tree of maxima over the buffers: the children of node n are 2n and 2n + 1, and the buffers are in
    /// the second half.
    tree: Vec<usize>,
    /// The moments at which a buffer begins or ceases to be taken, the next one last.
    changes: Vec<(usize, usize)>,
    /// The moments after the lives of values that were placed since, the next one first.
    ends: BinaryHeap<Reverse<(usize, usize)>>,
}

impl Vacancies {
    fn new(tenants: &Tenants) -> Self {
        let mut changes: Vec<(usize, usize)> = Vec::new();
        for (buffer, lives) in tenants.0.iter().enumerate() {
            changes.extend(lives.iter().flat_map(|(&first, &last)| [(first, buffer), (last + 1, buffer)]));
        }
        changes.sort_unstable_by_key(|&change| Reverse(change));
        let mut vacancies = Self { tree: vec![0; 2], changes, ends: BinaryHeap::new() };
        for buffer in 0..tenants.0.len() {
            vacancies.set(buffer, tenants.free_until(buffer, 0));
        }
        vacancies
    }

    /// Moves on to a moment.
    fn move_to(&mut self, now: usize, tenants: &Tenants) {
        let mut changed = BTreeSet::new();
        while let Some((_, buffer)) = self.changes.pop_if(|(moment, _)| *moment <= now) {
            changed.insert(buffer);
        }
        while let Some(&Reverse((moment, buffer))) = self.ends.peek()
            && moment <= now
        {
            self.ends.pop();
            changed.insert(buffer);
        }
        changed.into_iter().for_each(|buffer| self.set(buffer, tenants.free_until(buffer, now)));
    }

    /// Notes that a buffer is taken from now to `last`.
    fn take(&mut self, buffer: usize, last: usize) {
        self.set(buffer, 0);
        self.ends.push(Reverse((last + 1, buffer)));
    }

    /// Moves on to a moment. Returns the first buffer that is free from then until after `last`.
    fn first_beyond(&mut self, now: usize, last: usize, tenants: &Tenants) -> Option<usize> {
        self.move_to(now, tenants);
        let mut at = 1;
        if self.tree[at] <= last {
            return None;
        }
        while at < self.tree.len() / 2 {
            at = if self.tree[2 * at] > last { 2 * at } else { 2 * at + 1 };
        }
        Some(at - self.tree.len() / 2)
    }

    fn set(&mut self, buffer: usize, until: usize) {
        while buffer >= self.tree.len() / 2 {
            self.grow();
        }
        let mut at = self.tree.len() / 2 + buffer;
        self.tree[at] = until;
        while at > 1 {
            at /= 2;
            self.tree[at] = self.tree[2 * at].max(self.tree[2 * at + 1]);
        }
    }

    /// Makes room for twice as many buffers.
    fn grow(&mut self) {
        let leaves = self.tree.split_off(self.tree.len() / 2);
        self.tree = vec![0; 4 * leaves.len()];
        for (buffer, until) in leaves.into_iter().enumerate() {
            self.set(buffer, until);
        }
    }
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

    /// Returns the same plan by asking every buffer.
    fn plan_slowly(lifetimes: &[Lifetime]) -> MemoryPlan {
        let mut order: Vec<usize> = (0..lifetimes.len()).collect();
        order.sort_by_key(|&i| (Reverse(lifetimes[i].bytes), lifetimes[i].first, i));
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

    proptest! {
        #[test]
        fn each_value_is_in_the_first_buffer_that_is_free(
            spans in prop::collection::vec((1u64..6, 0usize..40, 0usize..12), 0..60)
        ) {
            let lives: Vec<Lifetime> = spans.iter().map(|&(b, first, more)| life(b, first, first + more)).collect();
            prop_assert_eq!(plan_memory(&lives), plan_slowly(&lives));
        }

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
