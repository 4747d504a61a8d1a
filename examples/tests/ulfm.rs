//! Runs over Open MPI 5 and MPICH of Debian 13, in a folder of their own that
//! `cargo xtask test --world --long` makes (`UNISONO_DEBIAN_13`): a rank that is
//! killed is left behind, and the others go on without a restart.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const RUN: [&str; 6] = ["--epochs", "6", "--adapter", "llvmpipe", "--world-deadline", "60"];

fn digits() -> &'static str {
    env!("CARGO_BIN_EXE_digits")
}

/// Returns the folder, or `None` where these tests are left out.
fn folder() -> Option<PathBuf> {
    std::env::var_os("UNISONO_DEBIAN_13").map(PathBuf::from)
}

/// Returns a command that runs a program in the folder.
fn inside(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("chroot");
    command.arg(folder).args(["/usr/bin/env", "-i", "PATH=/usr/bin:/bin", "HOME=/root"]);
    command.args(["OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "LP_NUM_THREADS=0"]);
    command.args(args).stderr(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// Returns the digest that a program printed.
fn digest(text: &str) -> String {
    let line = text.lines().find_map(|line| line.split_once(" steps, state "));
    line.unwrap_or_else(|| panic!("no digest: {text}")).1.to_owned()
}

fn alone() -> String {
    digest(&text(&Command::new(digits()).args(RUN).output().unwrap()))
}

/// Waits until the run has saved a checkpoint, and returns the process of a rank.
fn process_of(rank: usize, out: &Path, run: &mut Child) -> u32 {
    let wanted = format!("OMPI_COMM_WORLD_RANK={rank}");
    for _ in 0..6000 {
        assert!(run.try_wait().unwrap().is_none(), "the run has ended");
        let found = fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).into_owned();
            let variables = fs::read(entry.path().join("environ")).ok()?;
            let has = String::from_utf8_lossy(&variables).split('\0').any(|variable| variable == wanted);
            let is_it = line.split('\0').next() == Some(digits()) && line.contains(out.to_str()?);
            (is_it && has).then_some(pid)
        });
        let saved = unisono::checkpoint::list(out).is_ok_and(|list| !list.is_empty());
        if let Some(pid) = found.filter(|_| saved) {
            return pid;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("no checkpoint in {}", out.display());
}

#[test]
fn the_others_go_on_without_a_rank_that_is_killed() {
    let Some(folder) = folder() else { return };
    let wanted = alone();
    // A directory that the folder shows, too.
    let dir = tempfile::tempdir_in(Path::new(digits()).parent().unwrap()).unwrap();
    // Moments in a step differ from kill to kill: gradients, exchange, agreement, commit.
    for kill in 0..8_u64 {
        let out = dir.path().join(format!("run{kill}"));
        let mpirun = ["mpirun.openmpi", "--with-ft", "ulfm", "--oversubscribe", "--bind-to", "none"];
        let save = ["--out", out.to_str().unwrap(), "--checkpoint-every", "10"];
        let args = [&mpirun[..], &["-n", "3", digits()], &RUN, &save].concat();
        let mut run = inside(&folder, &args).spawn().unwrap();
        let pid = process_of(kill as usize % 3, &out, &mut run);
        std::thread::sleep(Duration::from_millis(kill * 137 % 500));
        assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
        let ended = text(&run.wait_with_output().unwrap());
        assert_eq!(digest(&ended), wanted, "kill {kill}: {ended}");
        // Rank 0, if it is left, says who was lost.
        let told = ended.contains("was lost: its process is gone; the others go on without it");
        assert!(told || kill % 3 == 0, "{ended}");
    }
}

#[test]
fn mpich_runs_too() {
    let Some(folder) = folder() else { return };
    let wanted = alone();
    let args = [&["UNISONO_MPI=libmpi.so.12", "mpiexec.mpich", "-n", "2", digits()][..], &RUN].concat();
    let ended = inside(&folder, &args).output().unwrap();
    assert!(ended.status.success(), "{}", text(&ended));
    assert_eq!(digest(&text(&ended)), wanted);
}
