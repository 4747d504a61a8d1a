#![doc = include_str!("../README.md")]

mod cluster;
mod cuts;
mod error;
mod link;
mod message;
mod packed;
mod session;
mod threads;

pub use cluster::{Cluster, Records};
pub use cuts::{bytes_sent, cuts};
pub use error::{ClusterError, Problem};
pub use link::{Link, Received};
pub use packed::{pack, unpack};
pub use session::exchange::Sum;
pub use threads::{Fault, Script, threads};
