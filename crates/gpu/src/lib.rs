#![doc = include_str!("../README.md")]

mod adapter;
mod cache;
mod device;
mod error;
mod execution;

pub use adapter::arithmetic::Arithmetic;
pub use adapter::environment::prepare_environment;
pub use adapter::matrix::{MatrixNumbers, MatrixSize};
pub use adapter::select::{select, select_in};
pub use adapter::shared::SharedKernels;
pub use adapter::{Adapter, Backend, Features, Kind, Limits, adapters};
pub use cache::Cache;
pub use device::clock::Stretch;
pub use device::counters::Counters;
pub use device::fault::Lie;
pub use device::mapped::{MappedDownload, MappedUpload, UploadPart};
pub use device::options::{Options, is_unprotected};
pub use device::spirv::spirv;
pub use device::staging::Writer;
pub use device::stopwatch::Stopwatch;
pub use device::threads::on_threads;
pub use device::{Device, Memory};
pub use error::GpuError;
pub use execution::executable::{Executable, Kernels};
pub use execution::{InFlight, Pending, Timing};
