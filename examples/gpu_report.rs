//! Tells in minutes what there is to know about training on this machine's GPU: whether it computes
//! correctly, which other hardware gives the same bits, how fast it is, and what goes wrong. Each part runs
//! in a process of its own with a time limit, and its result is on disk before the next part begins.
//!
//!     cargo run --release -p unisono-examples --bin gpu_report -- --out report
//!
//! `cargo xtask gpu-report --pack DIR` makes a folder that does the same where nothing is installed or built.

#[path = "adapters.rs"]
mod adapters;
#[path = "bench.rs"]
mod bench;
#[path = "digits.rs"]
mod digits;
#[path = "mnist_cnn.rs"]
mod mnist_cnn;
#[path = "report/mod.rs"]
mod report;
#[path = "text_lstm.rs"]
mod text_lstm;
#[path = "tiny_gpt.rs"]
mod tiny_gpt;

use std::process::ExitCode;

/// The variable that names the part that a process is to run. All of the arguments are the part's.
const PART: &str = "UNISONO_PART";

fn main() -> ExitCode {
    match std::env::var(PART).as_deref() {
        Ok("adapters") => adapters::main(),
        Ok("bench") => bench::main(),
        Ok("conformance") => unisono_cases::conformance::main(),
        Ok("digits") => digits::main(),
        Ok("limits") => report::limits::main(),
        Ok("machine") => report::machine::main(),
        Ok("mnist_cnn") => mnist_cnn::main(),
        Ok("speed") => report::speed::main(),
        Ok("steady") => report::steady::main(),
        Ok("text_lstm") => text_lstm::main(),
        Ok("units") => report::units::main(),
        Ok("tiny_gpt") => tiny_gpt::main(),
        Ok("vendors") => unisono_cases::vendors::main(),
        _ => report::main(),
    }
}
