//! Sources of samples: in memory, in files of arrays, tables, tokens and pictures.

pub(crate) mod budget;
#[cfg(feature = "csv")]
pub(crate) mod csv;
pub(crate) mod files;
mod gzip;
pub(crate) mod memory;
pub(crate) mod sequences;
