//! The order of samples: which sample comes at which position, by arithmetic on (seed, epoch, position).

pub(crate) mod buckets;
pub(crate) mod schedule;

use std::sync::Arc;

use unisono_random::{Draws, Permutation};

use crate::order::buckets::Buckets;
use crate::{DataError, FieldSpec, Fingerprint};

/// The order of every epoch.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub shuffled: bool,
    pub kind: Kind,
    /// The names of two settings that ask for different orders.
    pub conflict: Option<[&'static str; 2]>,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Plain,
    /// Shuffled within windows of this many samples.
    Window(u64),
    /// For batches of this many rows, each of which reads its own stretch of the source.
    Lanes(u64),
    Buckets(Arc<Buckets>),
}

impl Kind {
    /// Returns the setting of the loader that asks for this order.
    fn setting(&self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Window(_) => Some("shuffle_window"),
            Self::Lanes(_) => Some("lanes"),
            Self::Buckets(_) => Some("buckets"),
        }
    }
}

impl Order {
    /// Returns the order of the source.
    pub fn plain() -> Self {
        Self { shuffled: false, kind: Kind::Plain, conflict: None }
    }

    /// Sets the kind. Another kind that was set before is a conflict.
    pub fn set(&mut self, kind: Kind) {
        let both = self.kind.setting().zip(kind.setting());
        self.conflict = self.conflict.or(both.filter(|(old, new)| old != new).map(|(old, new)| [old, new]));
        self.kind = kind;
    }

    /// Checks that samples of these fields can come in this order.
    pub fn check_fields(&self, specs: &[FieldSpec]) -> Result<(), DataError> {
        if let Some([old, setting]) = self.conflict {
            let what = format!("a loader has one order: leave out `{setting}` or `{old}`");
            return Err(DataError::Setting { setting, what });
        }
        match &self.kind {
            Kind::Window(0) => {
                let what = "a window of 0 samples has none to shuffle".into();
                Err(DataError::Setting { setting: "shuffle_window", what })
            }
            Kind::Buckets(buckets) => buckets.check_fields(specs),
            _ => Ok(()),
        }
    }

    /// Returns the order of one epoch over `len` samples.
    pub fn of_epoch(&self, seed: u64, epoch: u32, len: u64) -> EpochOrder<'_> {
        match &self.kind {
            Kind::Plain if !self.shuffled => EpochOrder::Plain,
            Kind::Plain => EpochOrder::Shuffled(Permutation::new(seed, epoch, len)),
            &Kind::Window(window) => {
                let window = window.max(1);
                let offset = u128::from(Draws::of(seed, "window", "", epoch, 0).next_u32());
                let offset = ((offset * u128::from(window)) >> 32) as u64;
                EpochOrder::Window { seed, epoch, len, window, offset, current: None }
            }
            &Kind::Lanes(rows) => EpochOrder::Lanes { rows, len },
            Kind::Buckets(buckets) => EpochOrder::Buckets(buckets.of_epoch(seed, epoch, self.shuffled)),
        }
    }
}

/// The order of one epoch.
pub(crate) enum EpochOrder<'a> {
    Plain,
    Shuffled(Permutation),
    /// Windows start at `offset`, and then every `window` samples. What comes before the first is a shorter
    /// window.
    Window {
        seed: u64,
        epoch: u32,
        len: u64,
        window: u64,
        offset: u64,
        /// The window that the last position asked for lies in, by its start.
        current: Option<(u64, Permutation)>,
    },
    Lanes {
        rows: u64,
        len: u64,
    },
    Buckets(crate::order::buckets::EpochBuckets<'a>),
}

impl EpochOrder<'_> {
    /// Returns the index in the source of the sample at a position within the epoch, or `None` where a
    /// shuffle has no such position.
    pub fn at(&mut self, position: u64) -> Option<u64> {
        match self {
            EpochOrder::Plain => Some(position),
            EpochOrder::Shuffled(order) => order.at(position),
            EpochOrder::Window { seed, epoch, len, window, offset, current } => {
                let (start, size) = match position.checked_sub(*offset) {
                    None => (0, (*offset).min(*len)),
                    Some(beyond) => {
                        let start = *offset + beyond / *window * *window;
                        (start, len.saturating_sub(start).min(*window))
                    }
                };
                let order = match current {
                    Some((own, order)) if *own == start => order,
                    other => {
                        let key = Fingerprint::new().word(*seed).word(start).finish();
                        &mut other.insert((start, Permutation::new(key, *epoch, size))).1
                    }
                };
                Some(start + order.at(position - start)?)
            }
            // Row r reads a stretch of len / rows samples; the first len % rows rows read one more.
            &mut EpochOrder::Lanes { rows, len } => {
                let (time, row) = (position / rows, position % rows);
                Some(row * (len / rows) + row.min(len % rows) + time)
            }
            EpochOrder::Buckets(order) => order.at(position),
        }
    }

    /// Returns what the fields look like in the batch that starts at a position. Buckets cut sequences to
    /// their own length.
    pub fn cut_to(&self, first: u64, specs: &[FieldSpec]) -> Vec<FieldSpec> {
        match self {
            EpochOrder::Buckets(order) => order.cut_to(first, specs),
            _ => specs.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(kind: Kind, epoch: u32, len: u64) -> Vec<u64> {
        let order = Order { kind, ..Order::plain() };
        let mut order = order.of_epoch(3, epoch, len);
        (0..len).map(|position| order.at(position).unwrap()).collect()
    }

    #[test]
    fn windows_and_lanes_hold_each_sample_once_for_every_length_to_2000() {
        for len in 1..=2000 {
            for kind in
                [Kind::Window(1 + len % 70), Kind::Window(5000), Kind::Lanes(1 + len % 33), Kind::Lanes(3000)]
            {
                let mut order = all(kind, len as u32 % 3, len);
                order.sort_unstable();
                assert!(order.iter().enumerate().all(|(i, &index)| i as u64 == index));
            }
        }
    }

    #[test]
    fn a_window_keeps_samples_near_their_place() {
        let order = all(Kind::Window(10), 1, 1000);
        assert!(order.iter().enumerate().all(|(i, &index)| (i as u64).abs_diff(index) < 10));
        assert!(order.iter().enumerate().filter(|&(i, &index)| i as u64 != index).count() > 700);
        assert_ne!(order, all(Kind::Window(10), 2, 1000));
        // A position asked for by itself gives what it gives in sequence.
        let kind = Order { shuffled: true, kind: Kind::Window(10), conflict: None };
        assert!(
            (0..1000)
                .rev()
                .all(|position| kind.of_epoch(3, 1, 1000).at(position) == Some(order[position as usize]))
        );
    }

    #[test]
    fn a_row_continues_its_own_stretch() {
        assert_eq!(all(Kind::Lanes(3), 0, 11), [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7]);
    }

    #[test]
    fn huge_lengths() {
        for len in [(1 << 32) + 7, 1 << 48] {
            for kind in [Kind::Window(1 << 33), Kind::Lanes(64)] {
                let order = Order { kind, ..Order::plain() };
                let mut order = order.of_epoch(1, 0, len);
                let some: Vec<u64> =
                    (0..1000).map(|i| order.at(len - 1 - i * (len / 1000)).unwrap()).collect();
                let distinct: std::collections::HashSet<_> = some.iter().collect();
                assert!(distinct.len() == 1000 && some.iter().all(|&index| index < len));
            }
        }
    }
}
