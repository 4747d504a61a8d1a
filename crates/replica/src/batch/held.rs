//! The rows of a batch that a machine has, where several machines share the batch.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::batch::feed::Feed;

/// Brings the inputs of some rows of a batch.
type Bring = dyn Fn(Range<usize>) -> Result<Vec<Arc<[u8]>>, String> + Send + Sync;

/// Says what is wrong with inputs that were brought.
type Check<'a> = dyn Fn(&[Arc<[u8]>]) -> Result<(), String> + 'a;

/// The rows that the inputs of a [`Feed`] have, where these are not all rows of the batch.
///
/// Which rows a machine computes may change after its batch was loaded, because another machine is lost or
/// the cuts between machines move. It then brings the rows that it needs. Clones share what was brought.
#[derive(Clone)]
pub struct Held {
    rows: Range<usize>,
    bring: Arc<Bring>,
    brought: Arc<Mutex<Option<Brought>>>,
}

/// Inputs that were brought later, with their rows.
type Brought = (Range<usize>, Arc<[Arc<[u8]>]>);

impl Held {
    /// Returns the rows that the inputs of a feed have, and what brings the inputs of others.
    pub fn new(
        rows: Range<usize>,
        bring: impl Fn(Range<usize>) -> Result<Vec<Arc<[u8]>>, String> + Send + Sync + 'static,
    ) -> Self {
        Self { rows, bring: Arc::new(bring), brought: Arc::default() }
    }

    /// Returns the rows that the inputs of the feed have.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Returns inputs that were brought later, with their rows.
    pub(crate) fn brought(&self) -> Option<Brought> {
        self.brought.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Feed {
    /// Makes sure that these rows are there. `check` validates newly fetched inputs.
    ///
    /// # Errors
    /// The rows cannot be fetched, or `check` refuses them.
    pub(crate) fn hold(&self, rows: Range<usize>, check: &Check<'_>) -> Result<(), String> {
        let Some(held) = &self.held else { return Ok(()) };
        let has = |own: &Range<usize>| rows.is_empty() || own.start <= rows.start && rows.end <= own.end;
        if has(&held.rows) || held.brought().is_some_and(|(own, _)| has(&own)) {
            return Ok(());
        }
        let inputs = (held.bring)(rows.clone())?;
        check(&inputs)?;
        *held.brought.lock().unwrap_or_else(PoisonError::into_inner) = Some((rows, inputs.into()));
        Ok(())
    }

    /// Returns the bytes of some rows of an input, each of so many bytes.
    pub(crate) fn rows_of(&self, index: usize, row: usize, rows: Range<usize>, to: &mut dyn FnMut(&[u8])) {
        let part = |own: &Range<usize>, bytes: &[u8], to: &mut dyn FnMut(&[u8])| {
            let first = rows.start.checked_sub(own.start).filter(|_| rows.end <= own.end);
            let part = first.and_then(|first| bytes.get(first * row..(first + rows.len()) * row));
            part.map(to).is_some()
        };
        let own = self.held.as_ref().map_or(0..self.rows, Held::rows);
        if self.inputs.get(index).is_some_and(|bytes| part(&own, bytes, to)) {
            return;
        }
        if let Some((own, inputs)) = self.held.as_ref().and_then(Held::brought)
            && let Some(bytes) = inputs.get(index)
        {
            part(&own, bytes, to);
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&self.rows).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(held: Range<usize>) -> Feed {
        let bytes = |rows: Range<usize>| vec![Arc::from(rows.map(|row| row as u8).collect::<Vec<_>>())];
        let inputs = bytes(held.clone());
        let held =
            Held::new(held, move |rows| if rows.end > 8 { Err("gone".into()) } else { Ok(bytes(rows)) });
        Feed { rows: 10, inputs, held: Some(held), ..Feed::default() }
    }

    fn read(feed: &Feed, rows: Range<usize>) -> Vec<u8> {
        let mut read = Vec::new();
        feed.rows_of(0, 1, rows, &mut |bytes| read.extend_from_slice(bytes));
        read
    }

    #[test]
    fn rows_that_are_not_there_are_brought() {
        let feed = feed(2..5);
        let hold = |rows| feed.hold(rows, &|_| Ok(()));
        hold(3..5).unwrap();
        assert_eq!((read(&feed, 3..5), read(&feed, 4..6)), (vec![3, 4], vec![]));
        hold(0..0).unwrap();
        hold(4..6).unwrap();
        assert_eq!((read(&feed, 4..6), read(&feed, 2..3)), (vec![4, 5], vec![2]));
        assert!(hold(7..9).unwrap_err().contains("gone"));
        assert_eq!(feed.hold(5..7, &|_| Err("wrong".into())), Err("wrong".into()));
        assert_eq!((read(&feed, 4..6), read(&feed, 5..7)), (vec![4, 5], vec![]));
    }
}
