//! Runs reference cases on every adapter found: `cargo run --release -p unisono-tests --bin conformance --
//! DIR...`

use std::process::ExitCode;

fn main() -> ExitCode {
    unisono_cases::conformance::main()
}
