#![doc = include_str!("../README.md")]

mod cuts;
mod error;
mod link;
mod message;
mod packed;
mod session;
mod threads;
mod world;

pub use cuts::{bytes_sent, cuts};
pub use error::{Problem, WorldError};
pub use link::{Link, Received};
pub use packed::{pack, unpack};
pub use session::exchange::Sum;
pub use threads::{Fault, Script, threads};
pub use world::{Records, World};
