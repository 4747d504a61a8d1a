//! The schedule: which positions make which batch, by arithmetic on two integers.

use std::sync::Arc;

use crate::order::buckets::Buckets;
use crate::{DataError, Position};

/// The positions of one batch, before anything was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// The number of this unit in its schedule, from 0.
    pub number: u64,
    pub epoch: u32,
    pub first: u64,
    pub count: u64,
    pub index_in_epoch: u64,
    pub after: Position,
}

/// The batches from a position on, in order. A batch never spans two epochs.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    len: u64,
    batch: u64,
    /// The fewest samples that make a batch.
    least: u64,
    /// The first epoch that is not run. 2^32 stands for no end.
    end_epoch: u64,
    position: Position,
    next_number: u64,
    /// The buckets, if batches also end with their bucket.
    buckets: Option<Arc<Buckets>>,
    /// The largest number of batches in an epoch.
    most: u64,
}

impl Schedule {
    pub fn new(
        len: u64,
        batch: u64,
        drop_last: bool,
        from: Position,
        end_epoch: u64,
    ) -> Result<Self, DataError> {
        let wrong = |setting, what: String| Err(DataError::Setting { setting, what });
        if batch == 0 {
            return wrong("batch", "a batch needs at least one sample".into());
        }
        if len == 0 {
            return wrong("source", "it has no samples".into());
        }
        if drop_last && len < batch {
            return wrong("drop_last", format!("{len} samples never fill a batch of {batch}"));
        }
        if from.sample > len {
            return Err(DataError::Position { epoch: from.epoch, sample: from.sample, len });
        }
        let least = if drop_last { batch } else { 1 };
        let mut schedule = Self {
            len,
            batch,
            least,
            end_epoch,
            position: from,
            next_number: 0,
            buckets: None,
            most: u64::MAX,
        };
        schedule.position = schedule.settle(from);
        Ok(schedule)
    }

    /// Returns the same schedule with batches that also end with their bucket.
    pub fn in_buckets(self, buckets: Option<Arc<Buckets>>) -> Self {
        Self { buckets, ..self }
    }

    /// Returns the same schedule with at most this many batches in an epoch.
    pub fn limited(mut self, most: Option<u64>) -> Self {
        self.most = most.unwrap_or(u64::MAX);
        self.position = self.settle(self.position);
        self
    }

    /// Returns how many samples the batch that holds a position has from there on, if it is full, and the
    /// batch's number in the epoch.
    fn batch_at(&self, first: u64) -> (u64, u64) {
        match &self.buckets {
            Some(buckets) => buckets.batch_at(first),
            None => (self.batch, first / self.batch),
        }
    }

    /// Returns the position at which the next batch starts.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Returns the start of the next epoch if the rest of this one makes no batch, else the position itself.
    /// The very last epoch has no next one.
    fn settle(&self, position: Position) -> Position {
        let within = |sample| self.most == u64::MAX || self.batch_at(sample).1 < self.most;
        if self.len - position.sample >= self.least && within(position.sample) {
            return position;
        }
        match position.epoch.checked_add(1) {
            Some(epoch) => Position { epoch, sample: 0 },
            None => Position { epoch: position.epoch, sample: self.len },
        }
    }
}

impl Iterator for Schedule {
    type Item = Unit;

    fn next(&mut self) -> Option<Unit> {
        let Position { epoch, sample: first } = self.position;
        let left = self.len - first;
        if u64::from(epoch) >= self.end_epoch || left < self.least {
            return None;
        }
        let (most, index_in_epoch) = self.batch_at(first);
        let count = left.min(most);
        let after = self.settle(Position { epoch, sample: first + count });
        let number = self.next_number;
        self.position = after;
        self.next_number += 1;
        Some(Unit { number, epoch, first, count, index_in_epoch, after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(len: u64, batch: u64, drop_last: bool, from: (u32, u64), end: u64) -> Vec<(u32, u64, u64)> {
        let from = Position { epoch: from.0, sample: from.1 };
        let schedule = Schedule::new(len, batch, drop_last, from, end).unwrap();
        schedule.map(|unit| (unit.epoch, unit.first, unit.count)).collect()
    }

    #[test]
    fn batches_end_with_the_epoch() {
        assert_eq!(
            units(5, 2, false, (0, 0), 2),
            [(0, 0, 2), (0, 2, 2), (0, 4, 1), (1, 0, 2), (1, 2, 2), (1, 4, 1)]
        );
        assert_eq!(units(5, 2, true, (0, 0), 2), [(0, 0, 2), (0, 2, 2), (1, 0, 2), (1, 2, 2)]);
        assert_eq!(units(5, 9, false, (3, 0), 4), [(3, 0, 5)]);
        assert_eq!(units(5, 2, false, (4, 0), 4), []);
    }

    #[test]
    fn a_limit_of_batches_ends_the_epoch() {
        let limited = |from: (u32, u64), most| {
            let from = Position { epoch: from.0, sample: from.1 };
            let schedule = Schedule::new(9, 2, false, from, 3).unwrap().limited(Some(most));
            schedule.map(|unit| (unit.epoch, unit.first, unit.count, unit.after)).collect::<Vec<_>>()
        };
        let at = |epoch, sample| Position { epoch, sample };
        assert_eq!(
            limited((1, 0), 2),
            [(1, 0, 2, at(1, 2)), (1, 2, 2, at(2, 0)), (2, 0, 2, at(2, 2)), (2, 2, 2, at(3, 0))]
        );
        assert_eq!(limited((1, 4), 2), limited((2, 0), 2));
        assert_eq!(limited((2, 0), 7).len(), 5);
    }

    #[test]
    fn a_start_within_or_at_the_end() {
        assert_eq!(units(5, 2, false, (0, 1), 1), [(0, 1, 2), (0, 3, 2)]);
        assert_eq!(units(5, 2, false, (0, 5), 2)[0], (1, 0, 2));
        assert_eq!(units(5, 2, true, (0, 4), 2)[0], (1, 0, 2));
        assert_eq!(units(5, 2, false, (0, 5), 1), []);
    }

    /// Checks every length to 2,000, with batches that do and do not divide it.
    #[test]
    fn an_epoch_holds_each_position_once() {
        for len in 1..=2000 {
            for batch in [1, 7, 64, len, len + 1] {
                let mut next = 0;
                for (_, first, count) in units(len, batch, false, (0, 0), 1) {
                    assert_eq!(first, next);
                    assert!(count > 0 && count <= batch);
                    next = first + count;
                }
                assert_eq!(next, len);
            }
        }
    }

    #[test]
    fn the_last_epoch_of_all_ends() {
        let from = Position { epoch: u32::MAX, sample: 3 };
        let mut schedule = Schedule::new(5, 2, false, from, 1 << 32).unwrap();
        assert_eq!(schedule.next().unwrap().after, Position { epoch: u32::MAX, sample: 5 });
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn huge_epochs() {
        let len = (1 << 48) + 1;
        let from = Position { epoch: 1, sample: (1 << 48) - 100 };
        let units: Vec<_> = Schedule::new(len, 64, false, from, 2).unwrap().collect();
        assert_eq!(units.iter().map(|unit| unit.count).collect::<Vec<_>>(), [64, 37]);
        assert_eq!(units[1].after, Position { epoch: 2, sample: 0 });
    }

    #[test]
    fn settings_that_cannot_work() {
        let message = |len, batch, drop_last, sample| {
            let from = Position { epoch: 2, sample };
            Schedule::new(len, batch, drop_last, from, 3).unwrap_err().to_string()
        };
        assert_eq!(message(5, 0, false, 0), "batch: a batch needs at least one sample");
        assert_eq!(message(0, 2, false, 0), "source: it has no samples");
        assert_eq!(message(5, 6, true, 0), "drop_last: 5 samples never fill a batch of 6");
        assert_eq!(message(5, 2, false, 6), "position 6 of epoch 2: an epoch has 5 samples");
    }
}
