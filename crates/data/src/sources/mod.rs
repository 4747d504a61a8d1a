//! Sources of samples: in memory, in files of arrays, tables, tokens and pictures.

#[cfg(feature = "ndarray")]
mod arrays_of_ndarray;
pub(crate) mod budget;
#[cfg(feature = "parquet")]
pub(crate) mod columnar;
#[cfg(feature = "csv")]
pub(crate) mod csv;
mod directories;
pub(crate) mod episodes;
pub(crate) mod files;
mod gzip;
pub(crate) mod memory;
pub(crate) mod replay;
pub(crate) mod sequences;
pub(crate) mod shards;
pub(crate) mod sounds;
#[cfg(feature = "tokenizers")]
pub(crate) mod tokenizer;
pub(crate) mod vocabulary;
pub(crate) mod windows;
