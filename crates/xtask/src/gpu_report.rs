//! Reports on this machine's GPU, or packs a folder that does so on other machines.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::files::{copy, failed, write};
use crate::{cargo, example, root, run, target_dir};

/// Flags of `cargo xtask gpu-report`.
#[derive(Args)]
pub struct Flags {
    /// Create a folder to copy to a machine with a GPU. Nothing is built or downloaded there
    #[arg(long, value_name = "DIR")]
    pack: Option<PathBuf>,
    /// Arguments for the reporting program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, conflicts_with = "pack")]
    args: Vec<OsString>,
}

/// The most that the folder may take.
const MOST: u64 = 40 << 20;

/// What starts the program: it also works where there is no HOME, and says what is missing.
const SCRIPT: &str = r#"#!/bin/sh
# Reports on this machine's GPU: ./gpu-report [--short] [--adapter NAME] [--out DIR]. README.md says more.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
: "${XDG_RUNTIME_DIR:=${TMPDIR:-/tmp}}"
export XDG_RUNTIME_DIR
if ! ldconfig -p 2> /dev/null | grep -q 'libvulkan\.so\.1' && ! ls /usr/lib*/*/libvulkan.so.1 > /dev/null 2>&1
then
    echo "gpu-report: no libvulkan.so.1 was seen here: README.md says how to bring it" >&2
fi
exec "$here/unisono-gpu-report" "$@"
"#;

/// Runs the report, or packs it.
pub fn gpu_report(flags: &Flags) -> Result<(), String> {
    match &flags.pack {
        Some(dir) => pack(dir),
        None => example("gpu_report", &flags.args),
    }
}

/// Makes the folder: the program, its script, the data of its parts, and a page.
fn pack(dir: &Path) -> Result<(), String> {
    run(cargo().args(["build", "--release", "-p", "unisono-examples", "--bin", "gpu_report"]))?;
    let program = dir.join("unisono-gpu-report");
    copy(&target_dir().join("release/gpu_report"), &program)?;
    run(Command::new("strip").arg(&program))?;
    let script = dir.join("gpu-report");
    write(&script, SCRIPT)?;
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&script, mode).map_err(failed(&script))?;
    }
    let (examples, tests) = (root().join("examples"), root().join("tests"));
    copy(&examples.join("report/README.md"), &dir.join("README.md"))?;
    for name in ["digits.csv.gz", "reviews.tsv"] {
        copy(&examples.join("data").join(name), &dir.join("data").join(name))?;
    }
    copy(&tests.join("peers/torch/step.py"), &dir.join("data/step.py"))?;
    let oracle = tests.join("oracle");
    for entry in fs::read_dir(&oracle).map_err(failed(&oracle))? {
        let path = entry.map_err(failed(&oracle))?.path();
        if path.extension().is_some_and(|end| end == "json" || end == "safetensors") {
            copy(&path, &dir.join("data/oracle").join(path.file_name().unwrap_or_default()))?;
        }
    }
    let bytes = size(dir)?;
    let (mib, most) = (bytes as f64 / f64::from(1 << 20), MOST >> 20);
    if bytes > MOST {
        return Err(format!("{}: {mib:.1} MiB, more than {most} MiB", dir.display()));
    }
    println!("{}: {mib:.1} MiB. Copy it to a machine with a GPU and run ./gpu-report there", dir.display());
    Ok(())
}

/// Returns the bytes of all files in a directory.
fn size(dir: &Path) -> Result<u64, String> {
    let failed = failed(dir);
    let mut bytes = 0;
    for entry in fs::read_dir(dir).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        let data = entry.metadata().map_err(&failed)?;
        bytes += if data.is_dir() { size(&entry.path())? } else { data.len() };
    }
    Ok(bytes)
}
