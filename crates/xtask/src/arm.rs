//! Runs the CPU's adapter as programs of AArch64 under QEMU, on a machine of x86-64, and compares what
//! they give with what this machine gives.

use std::process::{Command, Stdio};

use clap::Args;

use crate::{cargo, output, run};

/// The target, and what runs and links its programs.
const TARGET: &str = "aarch64-unknown-linux-gnu";
const TOOLS: [&str; 2] = ["qemu-aarch64", "aarch64-linux-gnu-gcc"];
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// Flags of `cargo xtask arm`.
#[derive(Args)]
pub struct Arm {
    /// The CPU that QEMU emulates
    #[arg(long, default_value = "max")]
    cpu: String,
    /// Of so many subjects one is compared: ops, layers, losses, metrics, optimizers, models
    #[arg(long, default_value_t = 10)]
    every: usize,
    /// The number of random graphs of which subjects are taken as well
    #[arg(long, default_value_t = 300)]
    fuzz: u64,
}

/// Returns what is missing on this machine, if anything is.
pub fn missing() -> Option<String> {
    let there = |tool: &&&str| {
        let version =
            Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        !version.is_ok_and(|status| status.success())
    };
    let tool = TOOLS.iter().find(there)?;
    Some(format!(
        "{tool} is not there: install qemu-user, gcc-aarch64-linux-gnu and libc6-dev-arm64-cross (Debian's \
         names), and run rustup target add {TARGET}"
    ))
}

/// Runs the tests of `unisono-cpu`, and compares the numeric class and digests.
///
/// # Errors
/// Something is missing, a test fails, or bits differ.
pub fn arm(flags: &Arm) -> Result<(), String> {
    if let Some(missing) = missing() {
        return Err(missing);
    }
    // Under QEMU, a program cannot start itself again. Tests that do this are skipped.
    let own = ["test", "--target", TARGET, "-p", "unisono-cpu", "--", "--skip", "confined::"];
    run(emulated(&flags.cpu).args(own))?;
    // Bits that were written down on x86-64.
    // The test that is skipped starts a process for each vector width.
    let golden = ["test", "--target", TARGET, "-p", "unisono-tests", "--test", "numbers", "golden::"];
    let apart = ["--", "--skip", "width_of_the_drivers_vectors"];
    run(emulated(&flags.cpu).args(golden).args(apart))?;
    // The mode of threads.
    let mode = ["test", "--target", TARGET, "-p", "unisono-gpu", "--lib", "float_mode"];
    run(emulated(&flags.cpu).args(mode))?;
    let (here, there) =
        (digests(cargo(), &[], flags)?, digests(emulated(&flags.cpu), &["--target", TARGET], flags)?);
    // The class comes first, and is another one (docs/NUMERICS.md, "Just below the smallest normal number").
    let differ: Vec<String> = here
        .lines()
        .zip(there.lines())
        .skip(1)
        .filter(|(own, other)| own != other)
        .map(|(own, other)| format!("{own}\n  here, and there\n{other}"))
        .collect();
    let (own, other) = (here.lines().count(), there.lines().count());
    println!("{own} digests here, {other} under QEMU: {} differ", differ.len());
    match own == other && differ.is_empty() {
        true => Ok(()),
        false => Err(differ.join("\n")),
    }
}

/// Returns a cargo whose programs of the target run under QEMU.
fn emulated(cpu: &str) -> Command {
    let mut command = cargo();
    let prefix = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU";
    command.env(format!("{prefix}_LINKER"), TOOLS[1]);
    command.env(format!("{prefix}_RUNNER"), format!("{} -cpu {cpu} -L {LIBRARIES}", TOOLS[0]));
    command
}

/// Returns what the program prints of the CPU's adapter.
fn digests(mut cargo: Command, target: &[&str], flags: &Arm) -> Result<String, String> {
    let (every, fuzz) = (flags.every.to_string(), flags.fuzz.to_string());
    cargo.args(["run", "--quiet", "-p", "unisono-tests", "--bin", "vendors"]).args(target);
    cargo.args(["--", "--adapter", "cpu", "--digests", &every, "--fuzz", &fuzz]);
    output(&mut cargo)
}
