#![doc = include_str!("../README.md")]

mod adapter;
mod bind;
mod check;
mod clock;
mod device;
mod enumerate;
mod environment;
mod error;
mod executable;
mod fault;
mod lend;
mod part;
mod pipeline;
mod pool;
mod run;
mod select;
mod staging;
mod state;
mod stopwatch;
mod wait;

pub use adapter::{Adapter, Backend, Features, Kind, Limits, adapters};
pub use clock::Stretch;
pub use device::{Device, Memory, Options};
pub use environment::prepare_environment;
pub use error::GpuError;
pub use executable::Executable;
pub use lend::Lent;
pub use run::{Pending, Timing};
pub use select::select;
pub use staging::Writer;
pub use stopwatch::Stopwatch;
