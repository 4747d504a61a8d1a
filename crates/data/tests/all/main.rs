//! Data from outside: formats, good and damaged, and the same batches whatever the threads.

#[cfg(feature = "parquet")]
mod columnar;
mod content;
#[cfg(all(feature = "csv", feature = "gzip"))]
mod csv_files;
mod faults;
#[cfg(all(feature = "pictures", feature = "zip", feature = "gzip"))]
mod formats;
#[cfg(all(feature = "pictures", feature = "csv", feature = "zip", feature = "gzip"))]
mod hostile;
mod order;
mod orders;
mod shards;
mod stopped;
