//! Runs over Open MPI 5 and MPICH of Debian 13, in a folder of their own that
//! `cargo xtask test --cluster --long` makes (`UNISONO_DEBIAN_13`): a rank that is killed is left behind, and
//! the others go on without a restart.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const RUN: [&str; 6] = ["--epochs", "3", "--adapter", "llvmpipe", "--cluster-deadline", "60"];
const MPIRUN: [&str; 7] =
    ["mpirun.openmpi", "--with-ft", "ulfm", "--oversubscribe", "--bind-to", "none", "-n"];

/// Shows the directories of this machine in the folder, in a mount namespace that ends with the command. It
/// takes the folder, the number of directories, these, and the command.
const INSIDE: &str = r#"
root=$1 count=$2; shift 2
while [ $count -gt 0 ]; do
    mkdir -p "$root$1" && mount --rbind "$1" "$root$1" || exit 99
    count=$((count - 1)); shift
done
exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/root LP_NUM_THREADS=0 NODEVICE_SELECT=1 \
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "$@"
"#;

/// One run at a time: each has several ranks, and deadlines.
static ALONE: Mutex<()> = Mutex::new(());

fn digits() -> &'static str {
    env!("CARGO_BIN_EXE_digits")
}

/// Returns the folder and the right to run in it, or `None` where these tests are left out.
fn folder() -> Option<(PathBuf, MutexGuard<'static, ()>)> {
    let folder = std::env::var_os("UNISONO_DEBIAN_13").map(PathBuf::from);
    if folder.is_none() {
        let what = "Open MPI 5: UNISONO_DEBIAN_13 is not set";
        let line = format!("left out: {what}\n");
        // Nobody may be there to read it.
        let _ = std::io::stderr().write_all(line.as_bytes());
        if let Some(file) = std::env::var_os("UNISONO_LEFT_OUT") {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
            let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
        }
    }
    let folder = folder?;
    Some((folder, ALONE.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// Returns a command that runs a program in the folder. Its first arguments may set variables.
fn inside(folder: &Path, args: &[&str]) -> Command {
    let programs = Path::new(digits()).parent().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let shown = [Path::new("/proc"), Path::new("/dev"), Path::new("/sys"), programs, source];
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", INSIDE, "inside"]).arg(folder).arg(shown.len().to_string());
    command.args(shown).args(args).stderr(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// Returns the digest that a program printed once.
fn digest(text: &str) -> String {
    let found: Vec<&str> =
        text.lines().filter_map(|line| line.split_once(" steps, state ")).map(|line| line.1).collect();
    assert_eq!(found.len(), 1, "one rank prints the digest: {text}");
    found[0].to_owned()
}

fn alone(args: &[&str]) -> String {
    digest(&text(&Command::new(digits()).args(args).output().unwrap()))
}

/// Ends a rank at a fault point, and checks that the others go on to the same state.
#[test]
fn the_others_go_on_without_a_rank_that_ends_in_any_part_of_a_step() {
    let Some((folder, _alone)) = folder() else { return };
    let wanted = alone(&RUN);
    // Gradients, exchange, agreement, between agreement and commit, commit.
    let parts = [
        "replica-0:step-30:segment-0",
        "exchange:step-30",
        "agree:step-30",
        "agreed:step-30",
        "replica-0:step-30:segment-1",
    ];
    for rank in 0..3 {
        for part in parts {
            let fault = format!("FAILPOINTS=rank-{rank}:{part}=return(abort)");
            let args = [&[fault.as_str()][..], &MPIRUN, &["3", digits(), "--replicas", "1"], &RUN].concat();
            let ended = text(&inside(&folder, &args).output().unwrap());
            assert_eq!(digest(&ended), wanted, "{fault}: {ended}");
            let told = ended.lines().find(|line| line.contains("was lost: its process is gone"));
            assert!(told.is_some_and(|line| line.contains(&format!("rank {rank} ("))), "{fault}: {ended}");
        }
    }
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

/// Kills ranks at moments that differ from kill to kill.
#[test]
fn the_others_go_on_without_a_rank_that_is_killed() {
    let Some((folder, _alone)) = folder() else { return };
    let longer = [&RUN[2..], &["--epochs", "8"]].concat();
    let wanted = alone(&longer);
    // A directory that the folder shows, too.
    let dir = tempfile::tempdir_in(Path::new(digits()).parent().unwrap()).unwrap();
    for kill in 0..6_u64 {
        let out = dir.path().join(format!("run{kill}"));
        let save = ["--out", out.to_str().unwrap(), "--checkpoint-every", "10"];
        let args = [&MPIRUN[..], &["3", digits()], &longer, &save].concat();
        let mut run = inside(&folder, &args).spawn().unwrap();
        let pid = process_of(kill as usize % 3, &out, &mut run);
        std::thread::sleep(Duration::from_millis(kill * 37 % 100));
        assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
        let ended = text(&run.wait_with_output().unwrap());
        assert_eq!(digest(&ended), wanted, "kill {kill}: {ended}");
        assert!(ended.contains("was lost: its process is gone; the others continue without it"), "{ended}");
    }
}

#[test]
fn mpich_runs_too() {
    let Some((folder, _alone)) = folder() else { return };
    let wanted = alone(&RUN);
    for ranks in ["2", "3"] {
        let mpiexec = ["UNISONO_MPI=libmpi.so.12", "mpiexec.mpich", "-n", ranks, digits()];
        let ended = inside(&folder, &[&mpiexec[..], &RUN].concat()).output().unwrap();
        assert!(ended.status.success(), "{}", text(&ended));
        assert_eq!(digest(&text(&ended)), wanted);
    }
}
