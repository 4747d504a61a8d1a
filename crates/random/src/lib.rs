//! Random numbers that are a function of *what* they are for, never of who draws them or when.
//!
//! The generator is Philox 4x32-10, a counter-based generator: 128 bits of counter and 64 bits of key go in,
//! four 32-bit words come out, and there is no state in between. Every draw has an address, so a worker thread, a
//! shader and a resumed run all find the same value at the same address.
//!
//! # Layout
//!
//! This layout is part of the format of every run and checkpoint; it must not change.
//!
//! | word | holds |
//! |---|---|
//! | key 0 | seed, low 32 bits |
//! | key 1 | seed, high 32 bits, XOR the *stream* |
//! | counter 0 | block = element / 4 |
//! | counter 1 | position in the epoch, low 32 bits |
//! | counter 2 | epoch |
//! | counter 3 | position in the epoch, high 32 bits |
//!
//! Element `e` is word `e % 4` of block `e / 4`, so a position has 2^34 elements. The *stream* is 32 bits hashed from
//! a purpose and a path (see [`stream`]), such as `stream("dropout", "2.dropout")`. `shaders/snippets/philox.wgsl`
//! computes the same words on a device.
//!
//! What has no epoch or position (initial weights) uses zero for them.
//!
//! # What is drawn
//!
//! * [`Stream::word`]: the raw word at an address; [`unit_f32`], [`uniform`], [`below`] and [`normal`] turn one word
//!   into one value.
//! * [`Draws`]: reads the elements of one position in sequence, for code that transforms a sample.
//! * [`permute`]: the order of an epoch, one position at a time, in constant memory.
//! * [`fill_uniform`], [`fill_normal`], [`fill_truncated_normal`]: initial weights, each a function of its index.
//!
//! Floating-point results use only `+ - * /`, `sqrt` and comparisons, which IEEE 754 fixes to the bit; no function of
//! the platform's mathematics library is called. So they agree on every platform.
//!
//! ```
//! use unisono_random::{Stream, permute, stream, unit_f32};
//!
//! let dropout = Stream::new(42, stream("dropout", "2.dropout"));
//! let keep = unit_f32(dropout.word(3, 1_000_000, 17)) < 0.9;
//! assert_eq!(keep, unit_f32(dropout.word(3, 1_000_000, 17)) < 0.9);
//!
//! let mut order: Vec<u64> = (0..10).map(|position| permute(42, 0, position, 10)).collect();
//! order.sort();
//! assert_eq!(order, (0..10).collect::<Vec<u64>>());
//! ```
//!
//! **This crate never** keeps a global generator, reads the clock or asks the operating system for entropy, and is
//! not for cryptography.

mod draws;
mod initial;
mod normal;
mod permutation;
mod philox;
mod stream;

pub use draws::{Draws, below, uniform, unit_f32};
pub use initial::{fill_normal, fill_truncated_normal, fill_uniform};
pub use normal::{normal, normal_quantile, truncated_normal};
pub use permutation::{Permutation, permute, unpermute};
pub use philox::philox4x32;
pub use stream::{Stream, stream};
