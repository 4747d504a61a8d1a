//! Plans, adapters and devices, on every adapter of this machine.

mod clock;
mod common;
mod decorated;
mod listing;
mod mapped;
mod marks;
mod resident;
mod run;
mod whole;
