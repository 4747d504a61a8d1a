//! Compares the adapters of this machine byte by byte: `cargo xtask vendors`.

use std::process::ExitCode;

fn main() -> ExitCode {
    unisono_cases::vendors::main()
}
