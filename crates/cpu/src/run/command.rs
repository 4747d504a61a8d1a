//! What a submission is made of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::launch::Launch;
use super::memory::{Memory, Owner};
use super::pool::Pool;

/// A command.
#[derive(Debug)]
pub(crate) enum Command {
    Copy {
        from: Arc<Memory>,
        from_at: u64,
        to: Arc<Memory>,
        to_at: u64,
        bytes: u64,
    },
    Clear {
        to: Arc<Memory>,
        at: u64,
        bytes: u64,
    },
    Launch(Launch),
    /// Writes the time, in nanoseconds.
    Stamp {
        to: Arc<[AtomicU64]>,
        at: u32,
    },
    /// Copies times to a buffer.
    Fetch {
        from: Arc<[AtomicU64]>,
        first: u32,
        count: u32,
        to: Arc<Memory>,
        at: u64,
    },
}

impl Command {
    /// Runs it; times count from `begin`. Returns whether it could be run.
    #[expect(unsafe_code, reason = "buffers are memory without an owner")]
    pub fn run(self, pool: &Pool, begin: Instant) -> bool {
        match self {
            Self::Copy { from, from_at, to, to_at, bytes } => {
                // SAFETY: the encoder has checked that both hold the bytes, and nothing else runs.
                unsafe { std::ptr::copy(from.at(from_at), to.at(to_at), bytes as usize) };
            }
            Self::Clear { to, at, bytes } => {
                // SAFETY: as above.
                unsafe { std::ptr::write_bytes(to.at(at), 0, bytes as usize) };
            }
            Self::Launch(launch) => return pool.run(&launch),
            Self::Stamp { to, at } => {
                if let Some(place) = to.get(at as usize) {
                    place.store(begin.elapsed().as_nanos() as u64 + 1, Ordering::Relaxed);
                }
            }
            Self::Fetch { from, first, count, to, at } => {
                for number in 0..count {
                    let time = from.get((first + number) as usize);
                    let time = time.map_or(0, |time| time.load(Ordering::Relaxed)).to_ne_bytes();
                    let place = to.at(at + 8 * u64::from(number));
                    // SAFETY: the encoder has checked that the buffer holds all of them.
                    unsafe { std::ptr::copy_nonoverlapping(time.as_ptr(), place, 8) };
                }
            }
        }
        true
    }

    /// Returns who owns the memories that the command uses: the device if all of them are the device's.
    pub fn owner(&self) -> Owner {
        match self {
            Self::Copy { from, to, .. } => from.owner().and(to.owner()),
            Self::Clear { to, .. } | Self::Fetch { to, .. } => to.owner(),
            Self::Launch(launch) => launch.bindings.owner(),
            Self::Stamp { .. } => Owner::Device,
        }
    }
}
