//! A part of a batch: the rows that were fetched, and how others are fetched.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::{Batch, DataError};

/// Fetches some rows of a batch.
type Fetch = dyn Fn(Range<usize>) -> Result<Batch, DataError> + Send + Sync;

/// The rows of a [`Batch`] that were fetched, where a loader fetches a part of each batch only.
#[derive(Clone)]
pub struct Part {
    rows: Range<usize>,
    fetch: Arc<Fetch>,
}

impl Part {
    pub(crate) fn new(rows: Range<usize>, fetch: Arc<Fetch>) -> Self {
        Self { rows, fetch }
    }

    /// Returns the rows that were fetched.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Fetches other rows of the batch, by the same order and the same transforms.
    ///
    /// # Errors
    /// A sample cannot be fetched or transformed.
    pub fn fetch(&self, rows: Range<usize>) -> Result<Batch, DataError> {
        (self.fetch)(rows)
    }

    /// Fetches rows of the batch, unless all of them were fetched before.
    ///
    /// # Errors
    /// A sample cannot be fetched or transformed.
    pub fn fetch_unless_loaded(&self, rows: &Range<usize>) -> Result<Option<Batch>, DataError> {
        let is_loaded = rows.is_empty() || self.rows.start <= rows.start && rows.end <= self.rows.end;
        if is_loaded { Ok(None) } else { self.fetch(rows.clone()).map(Some) }
    }
}

/// Parts are equal if they have the same rows.
impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        self.rows == other.rows
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Part").field(&self.rows).finish()
    }
}
