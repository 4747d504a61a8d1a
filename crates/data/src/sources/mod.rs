//! Sources of samples: in memory, in files of arrays, tables, tokens and pictures.

pub(crate) mod csv;
pub(crate) mod files;
pub(crate) mod memory;
pub(crate) mod sequences;
