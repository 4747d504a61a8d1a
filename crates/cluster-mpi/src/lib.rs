#![doc = include_str!("../README.md")]

mod error;
#[cfg(unix)]
#[expect(unsafe_code, reason = "calls of a C library")]
mod failures;
mod launcher;
#[cfg(unix)]
#[expect(unsafe_code, reason = "calls of a C library")]
mod library;
mod link;
#[cfg(unix)]
mod meeting;
#[cfg(unix)]
#[expect(unsafe_code, reason = "calls of a C library")]
mod names;
#[cfg(unix)]
mod owner;
#[cfg(unix)]
mod parts;

pub use error::MpiError;
pub use launcher::{given_hosts, idle_hosts};
pub use link::{connect, connect_within, is_bound, is_launched};
