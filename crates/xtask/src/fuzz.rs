//! `cargo xtask fuzz`: runs the readers of `tests/fuzz` under libFuzzer, on the stable toolchain.
//!
//! The compiler's own coverage counters are turned on by `RUSTFLAGS`, and the crate libfuzzer-sys brings the
//! fuzzer, which is C++. Everything is built in `target/fuzz`, beside the normal build. Inputs that reach new
//! code are kept there too; what makes a reader fail is written to `target/fuzz/found`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::files::{copy, failed, make};
use crate::{cargo, output, root, run};

/// The flags that make LLVM count which edges were taken and show libFuzzer what is compared.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// The readers of files and directories, which need no wgpu.
const FILES: [&str; 23] = [
    "csv",
    "idx",
    "npy",
    "npz",
    "cifar",
    "png",
    "jpeg",
    "tokens",
    "safetensors",
    "statistics",
    "tar",
    "lines",
    "wav",
    "vocabulary",
    "replay",
    "tensors",
    "torch",
    "keras",
    "manifest",
    "checkpoint",
    "directory",
    "export",
    "plan",
];

/// The readers of pictures other than JPEG and PNG, which are behind a feature.
const PICTURES: [&str; 4] = ["webp", "bmp", "gif", "tiff"];

/// The reader of Parquet and Arrow files, which is behind a feature.
const TABLES: [&str; 1] = ["columnar"];

/// The readers of the facade.
const RUN: [&str; 2] = ["trainer", "model"];

#[derive(Args)]
pub struct Fuzz {
    /// The readers; `files` stands for those that need no wgpu, `pictures` for those of formats behind a
    /// feature. Default: all
    readers: Vec<String>,
    /// Seconds for each reader
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Maximum number of executions for each reader; 0 for no limit
    #[arg(long, default_value_t = 0)]
    runs: u64,
    /// Maximum length of an input in bytes
    #[arg(long, default_value_t = 4096)]
    longest: u64,
    /// Instead of fuzzing, write the smallest set of inputs that reaches the same code to target/fuzz/minimal
    #[arg(long)]
    minimise: bool,
}

/// Builds the fuzzer, and runs one reader after the other. The error names those that failed.
pub fn fuzz(args: &Fuzz) -> Result<(), String> {
    let readers = chosen(&args.readers)?;
    let any = |of: &[&str]| readers.iter().any(|reader| of.contains(reader));
    let program = build(any(&RUN), any(&PICTURES), any(&TABLES))?;
    let failed: Vec<String> = readers.iter().filter_map(|reader| one(&program, reader, args).err()).collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Returns the names of the readers that are asked for.
fn chosen(asked: &[String]) -> Result<Vec<&'static str>, String> {
    let all = || FILES.into_iter().chain(PICTURES).chain(TABLES).chain(RUN);
    if asked.is_empty() {
        return Ok(all().collect());
    }
    let mut readers = Vec::new();
    for name in asked {
        match all().find(|reader| reader == name) {
            Some(reader) => readers.push(reader),
            None if name == "files" => readers.extend(FILES),
            None if name == "pictures" => readers.extend(PICTURES),
            None => {
                let known = all().collect::<Vec<_>>().join(", ");
                return Err(format!(
                    "no reader {name:?}; there are {known}, and files and pictures for several"
                ));
            }
        }
    }
    Ok(readers)
}

fn folder() -> PathBuf {
    root().join("target").join("fuzz")
}

/// Builds the program that runs a reader, and returns its path. The target is named, so that build scripts
/// and procedural macros are built without coverage.
fn build(facade: bool, pictures: bool, tables: bool) -> Result<PathBuf, String> {
    let host = host()?;
    let features: &[&str] = if facade { &[] } else { &["--no-default-features"] };
    let with = |is: bool, feature: &str| if is { format!(",{feature}") } else { String::new() };
    let guided = format!("guided{}{}", with(pictures, "more-pictures"), with(tables, "columnar"));
    let mut command = cargo();
    command.env("RUSTFLAGS", COVERAGE).env("CARGO_TARGET_DIR", folder());
    command.args(["build", "-p", "unisono-fuzz", "--profile", "fuzz", "--bin", "fuzz_reader"]);
    run(command.args(["--features", &guided, "--target", &host]).args(features))?;
    let built = folder().join(&host).join("fuzz").join("fuzz_reader");
    // The next build, of other features, must not change a program that still runs.
    let kept = folder().join(format!("fuzz_{}", if facade { "all" } else { &guided }));
    let _ = fs::remove_file(&kept);
    copy(&built, &kept)?;
    Ok(kept)
}

/// Returns the name of the machine's own target.
fn host() -> Result<String, String> {
    let text = output(Command::new("rustc").arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc -vV names no host".to_owned())
}

/// Runs one reader. The error says what it failed with and where the input is.
fn one(program: &Path, reader: &str, args: &Fuzz) -> Result<(), String> {
    let (target, seeds) = (folder(), root().join("tests").join("fuzz").join("corpus").join(reader));
    let (grown, minimal) = (target.join("corpus").join(reader), target.join("minimal").join(reader));
    let (found, log) = (target.join("found"), target.join(format!("{reader}.log")));
    for dir in [&grown, &minimal, &found] {
        make(dir)?;
    }
    let file = File::create(&log).map_err(failed(&log))?;
    let mut command = Command::new(program);
    command.env("UNISONO_READER", reader).stderr(file);
    command.arg(format!("-artifact_prefix={}/{reader}-", found.display()));
    command.args(["-timeout=20", "-rss_limit_mb=3000", "-print_final_stats=1"]);
    command.arg(format!("-max_len={}", args.longest));
    if args.minimise {
        command.arg("-merge=1").args([&minimal, &seeds, &grown]);
    } else {
        command.arg(format!("-max_total_time={}", args.seconds));
        if args.runs > 0 {
            command.arg(format!("-runs={}", args.runs));
        }
        command.args([&grown, &seeds]);
    }
    let status = command.status().map_err(failed(program))?;
    let text = fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    println!("{reader:12} {}", summary(&text));
    if status.success() {
        return Ok(());
    }
    let lines: Vec<&str> = text.lines().collect();
    let end = lines[lines.len().saturating_sub(40)..].join("\n");
    Err(format!(
        "{end}\n{reader} failed; its input is in {}, its output in {}",
        found.display(),
        log.display()
    ))
}

/// Returns what a run of libFuzzer did, from its output: executions, and edges of code that were reached.
fn summary(log: &str) -> String {
    let executed = log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units: "));
    let reached = log.lines().rev().find_map(|line| line.split(" cov: ").nth(1)?.split(' ').next());
    format!("{} executions, {} edges", executed.unwrap_or("?").trim(), reached.unwrap_or("?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_are_those_of_the_package() {
        let names = |text: &str| -> Vec<String> {
            let entries = text.split("Reader { name: \"").skip(1);
            entries.map(|entry| entry.split('"').next().unwrap_or_default().to_owned()).collect()
        };
        let package = fs::read_to_string(root().join("tests/fuzz/src/lib.rs")).unwrap();
        assert_eq!(names(&package), chosen(&[]).unwrap());
        assert_eq!(chosen(&["files".into()]).unwrap(), FILES);
        assert_eq!(chosen(&["pictures".into()]).unwrap(), PICTURES);
        assert!(chosen(&["xml".into()]).unwrap_err().starts_with("no reader \"xml\"; there are csv, "));
    }

    #[test]
    fn what_a_run_did_is_read_from_its_output() {
        let log = "#2 INITED cov: 11 ft: 3\n#99 NEW    cov: 42 ft: 11 corp: 5\nstat::number_of_executed_units: 123\n";
        assert_eq!(summary(log), "123 executions, 42 edges");
        assert_eq!(summary(""), "? executions, ? edges");
    }
}
