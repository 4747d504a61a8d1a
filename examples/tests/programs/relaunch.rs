//! The program `relaunch` with an mpirun that only notes how it was called.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::err;
use crate::saving::hangups_are_ignored;

/// Runs `relaunch` on a program with these flags. mpirun ends with the codes, one a start, or of a signal if
/// the number is negative.
fn relaunch(dir: &Path, codes: &[i32], flags: &[&str]) -> (Output, Vec<String>) {
    let end = |code: i32| if code < 0 { format!("kill {code} $$") } else { format!("exit {code}") };
    let cases: String =
        codes.iter().enumerate().map(|(at, code)| format!("{}) {};; ", at + 1, end(*code))).collect();
    let mut command = command(dir, &format!("case $(wc -l < CALLS) in {cases} esac"));
    let output = command.args(flags).output().unwrap();
    (output, calls(dir))
}

/// Returns the lines that mpirun has noted, one a start.
fn calls(dir: &Path) -> Vec<String> {
    let calls = fs::read_to_string(dir.join("calls")).unwrap_or_default();
    calls.lines().map(str::to_owned).collect()
}

/// Returns the command of `relaunch` on a program, with an mpirun that notes its flags in the file CALLS and
/// runs a script.
fn command(dir: &Path, script: &str) -> Command {
    let (calls, mpirun) = (dir.join("calls"), dir.join("mpirun"));
    let _ = fs::remove_file(&calls);
    let script = format!("#!/bin/sh\necho \"$@\" >> CALLS\n{script}\nexit 77\n");
    fs::write(&mpirun, script.replace("CALLS", calls.to_str().unwrap())).unwrap();
    fs::set_permissions(&mpirun, fs::Permissions::from_mode(0o755)).unwrap();
    let hosts = dir.join("hosts");
    fs::write(&hosts, "localhost slots=2\n").unwrap();
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_relaunch"));
    command.env("PATH", path).arg("--hostfile").arg(hosts).args(["--pause", "0", "--retries", "2", "--"]);
    command.arg("program");
    command
}

/// It could never be resumed.
#[test]
fn a_program_without_a_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (output, calls) = relaunch(dir.path(), &[1, 0], &["--epochs", "3"]);
    assert!(err(&output).contains("the program has no --out DIR"), "{}", err(&output));
    assert_eq!((calls.len(), output.status.code()), (0, Some(1)));
    // One that is started only once needs none.
    let script = "exit 0";
    let args: Vec<_> = command(dir.path(), script).get_args().map(std::ffi::OsStr::to_owned).collect();
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let mut once = Command::new(env!("CARGO_BIN_EXE_relaunch"));
    once.env("PATH", path).args(&args[..2]).args(["--retries", "0", "--ask-every", "0", "--", "program"]);
    let output = once.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
}

#[test]
fn a_run_that_was_lost_is_started_again_and_one_that_is_refused_or_asked_to_end_is_not() {
    let dir = tempfile::tempdir().unwrap();
    for (codes, starts, ended) in [
        (&[0][..], 1, 0),
        (&[1, 137, 0], 3, 0),
        (&[1, 1, 1], 3, 1),
        (&[2], 1, 2),
        (&[1, 2], 2, 2),
        (&[129], 1, 129),
        (&[130], 1, 130),
        (&[143], 1, 143),
        (&[-15], 1, 143),
        (&[-9, 0], 2, 0),
    ] {
        let (output, calls) = relaunch(dir.path(), codes, &["--out", "run"]);
        assert_eq!((calls.len(), output.status.code()), (starts, Some(ended)), "{codes:?}: {}", err(&output));
        let resumes: Vec<bool> = calls.iter().map(|call| call.ends_with(" --resume")).collect();
        assert!(!resumes[0] && resumes[1..].iter().all(|resumes| *resumes), "{calls:?}");
    }
}

#[test]
fn a_directory_of_an_earlier_run_is_not_taken_for_the_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let mut store = unisono::checkpoint::Store::open(&out).unwrap();
    store.save(3, &unisono::checkpoint::Contents::default()).unwrap();
    let out = out.to_str().unwrap();
    for flags in [&["--out", out][..], &[&format!("--out={out}")]] {
        let (output, calls) = relaunch(dir.path(), &[1, 0], flags);
        assert!(err(&output).contains("holds the checkpoints of an earlier run"), "{}", err(&output));
        assert_eq!((calls.len(), output.status.code()), (0, Some(1)));
    }
    let (output, calls) = relaunch(dir.path(), &[1, 0], &["--resume", "--out", out]);
    assert_eq!((calls.len(), output.status.code()), (2, Some(0)), "{}", err(&output));
}

/// The script waits for a signal, so that it ends by what it was sent.
#[test]
fn a_signal_goes_on_to_mpirun_and_starts_nothing_again() {
    let dir = tempfile::tempdir().unwrap();
    let signals = [("TERM", 143), ("INT", 130), ("HUP", 129)];
    for (signal, code) in signals.into_iter().filter(|(signal, _)| *signal != "HUP" || !hangups_are_ignored())
    {
        let script = format!("trap 'echo got {signal} >> CALLS; kill $!; exit 1' {signal}");
        let script = format!("{script}\nsleep 600 &\necho ready >&2\nwait");
        let mut command = command(dir.path(), &script);
        command.args(["--out", "run"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line == "ready"));
        let id = process.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
        assert_eq!(process.wait().unwrap().code(), Some(code), "{:?}", calls(dir.path()));
        let calls = calls(dir.path());
        assert!(calls.len() == 2 && calls[1] == format!("got {signal}"), "{calls:?}");
    }
}

/// Nobody may read what it says, as when the `tee` behind it is gone.
#[test]
#[cfg(target_os = "linux")]
fn a_run_is_started_again_where_standard_error_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let script = "case $(wc -l < CALLS) in 1) exit 1;; 2) exit 0;; esac";
    let status = command(dir.path(), script).args(["--out", "run"]).stderr(full).status().unwrap();
    assert_eq!((calls(dir.path()).len(), status.code()), (2, Some(0)));
}

/// Returns the command of `relaunch` with these hosts and flags. mpirun runs a script with the number of its
/// call in `$call`, and the hosts of each call are noted in a file of that number. ssh reaches all hosts but
/// those that are down: each has a file of its name.
fn with_hosts(dir: &Path, hosts: &str, script: &str, flags: &[&str]) -> Command {
    let place = dir.to_str().unwrap();
    let script = format!("call=$(wc -l < {place}/calls)\ncp $2 {place}/hosts-$call\ncd {place}\n{script}");
    drop(command(dir, &script));
    let ssh = format!(
        "#!/bin/sh\nwhile [ \"$1\" = -o ]; do shift 2; done\n\
         [ -f {place}/down-$1 ] && {{ echo \"connect to $1: No route to host\" >&2; exit 255; }}\n\
         exec sh -c \"$2\"\n"
    );
    fs::write(dir.join("ssh"), ssh).unwrap();
    fs::set_permissions(dir.join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.join("hosts"), hosts).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_relaunch"));
    let path = format!("{place}:{}", std::env::var("PATH").unwrap());
    command.env("PATH", path).arg("--hostfile").arg(dir.join("hosts")).args(["--pause", "0"]).args(flags);
    command.args(["--", "program", "--out", "run"]);
    command
}

/// Returns the hosts with which mpirun was called.
fn hosts_of(dir: &Path, call: usize) -> String {
    fs::read_to_string(dir.join(format!("hosts-{call}"))).unwrap().replace('\n', "; ")
}

/// Open MPI counts cores for a host without slots, and would put all ranks on the first hosts.
#[test]
fn a_host_without_slots_has_one_rank() {
    let dir = tempfile::tempdir().unwrap();
    let hosts = "# two machines\n\nhosta\nhostb slots=2 max_slots=4 # with two GPUs\nhosta\nhostc slots=0\n";
    let output = with_hosts(dir.path(), hosts, "exit 0", &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(hosts_of(dir.path(), 1), "hosta slots=2; hostb slots=2 max_slots=4; ");
    let call = &calls(dir.path())[0];
    assert!(call.contains(" -n 4 ") && call.contains("ServerAliveInterval="), "{call}");
    for (hosts, wanted) in [
        ("", "no host is left"),
        ("hosta slots=two\n", "hosta slots=two: slots is no number"),
        ("--mca x\n", "a line begins with the name of a host"),
    ] {
        let output = with_hosts(dir.path(), hosts, "exit 0", &[]).output().unwrap();
        assert!(output.status.code() == Some(1) && err(&output).contains(wanted), "{}", err(&output));
    }
}

#[test]
fn a_host_that_does_not_answer_is_left_out_until_it_answers_again() {
    let dir = tempfile::tempdir().unwrap();
    let script = "case $call in 1) touch down-hostb; exit 1;; 2) rm down-hostb; exit 1;; 3) exit 0;; esac";
    let output = with_hosts(dir.path(), "hosta\nhostb\nhostc\n", script, &[]).output().unwrap();
    let text = err(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let all = "hosta slots=1; hostb slots=1; hostc slots=1; ";
    let hosts = [1, 2, 3].map(|call| hosts_of(dir.path(), call));
    assert_eq!(hosts, [all, "hosta slots=1; hostc slots=1; ", all], "{text}");
    assert!(text.contains("relaunch: hostb: connect to hostb: No route to host"), "{text}");
    assert!(text.contains("start 2 on 2 ranks of hosta, hostc, without hostb"), "{text}");
}

/// The first start wants all hosts, since one that is missing there is most often one that is set up wrongly.
#[test]
fn a_first_start_without_all_hosts_is_refused_unless_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("down-hostb"), "").unwrap();
    let run = |flags: &[&str]| with_hosts(dir.path(), "hosta\nhostb\n", "exit 0", flags).output().unwrap();
    let output = run(&[]);
    let wanted = "1 of 2 hosts can be used, and 2 are needed; --min-hosts N starts with fewer";
    assert!(output.status.code() == Some(1) && err(&output).contains(wanted), "{}", err(&output));
    assert!(calls(dir.path()).is_empty());
    let output = run(&["--min-hosts", "1"]);
    assert_eq!((output.status.code(), hosts_of(dir.path(), 1).as_str()), (Some(0), "hosta slots=1; "));
    // Fewer than are asked for is an error later too, after a wait.
    let script = "touch down-hosta; exit 1";
    let mut command = with_hosts(dir.path(), "hosta\nhostb\n", script, &["--min-hosts", "1", "--wait", "0"]);
    let output = command.output().unwrap();
    let wanted = "0 of 2 hosts can be used, and 1 are needed, after 0 s (--wait)";
    assert!(output.status.code() == Some(1) && err(&output).contains(wanted), "{}", err(&output));
}

#[test]
fn a_host_without_the_folder_or_the_program_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let said = |program: &str, ssh: Option<&str>| {
        let command = with_hosts(dir.path(), "hosta\n", "exit 0", &[]);
        if let Some(ssh) = ssh {
            fs::write(dir.path().join("ssh"), ssh).unwrap();
        }
        let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let mut own = Command::new(env!("CARGO_BIN_EXE_relaunch"));
        own.env("PATH", format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap()));
        own.args(args.iter().map(|arg| if arg == "program" { program.as_ref() } else { arg.as_os_str() }));
        let output = own.output().unwrap();
        assert_eq!((output.status.code(), calls(dir.path()).len()), (Some(1), 0), "{}", err(&output));
        err(&output)
    };
    let text = said("no/such/program", None);
    let wanted = "hosta: it has no program no/such/program: it lies at the same place on all hosts";
    assert!(text.contains(wanted), "{text}");
    // The folder of this test is not on that host.
    let text = said("program", Some("#!/bin/sh\nfor last; do :; done\ncd() { return 1; }\neval \"$last\"\n"));
    assert!(text.contains("hosta: it has no folder ") && text.contains("; make it there"), "{text}");
}

/// A rank is a child of mpirun with its number in the environment.
#[test]
fn an_mpirun_that_does_not_end_after_its_ranks_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let hangs = "env OMPI_COMM_WORLD_RANK=0 sleep 2; trap '' TERM; exec sleep 600";
    let script = format!("[ $call = 1 ] && {{ {hangs}; }}; exit 0");
    let since = Instant::now();
    let mut command = with_hosts(dir.path(), "localhost\n", &script, &["--end-deadline", "2"]);
    let output = command.output().unwrap();
    let text = err(&output);
    assert_eq!((output.status.code(), calls(dir.path()).len()), (Some(0), 2), "{text}");
    assert!(text.contains("the run failed (mpirun did not end after its ranks)"), "{text}");
    assert!(since.elapsed() < Duration::from_secs(120), "{:?}", since.elapsed());
}

#[test]
fn an_mpirun_that_starts_nothing_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let script = "[ $call = 1 ] && exec sleep 600; exit 0";
    let mut command = with_hosts(dir.path(), "localhost\n", script, &["--start-deadline", "2"]);
    let output = command.output().unwrap();
    let text = err(&output);
    assert_eq!((output.status.code(), calls(dir.path()).len()), (Some(0), 2), "{text}");
    assert!(text.contains("the run failed (mpirun did not start the program)"), "{text}");
}

#[test]
fn a_run_begins_again_with_a_host_that_answers_again() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("down-hostb"), "").unwrap();
    let rank = "exec sleep 600 & while wait $!; do :; done; exit 143";
    let script = format!(
        "[ $call = 1 ] || exit 0\nrm down-hostb\nOMPI_COMM_WORLD_RANK=0 sh -c 'trap \"kill \\$!; exit 143\" TERM; {rank}'\nexit 143"
    );
    let flags = ["--min-hosts", "1", "--ask-every", "1", "--retries", "0"];
    let output = with_hosts(dir.path(), "localhost\nhostb\n", &script, &flags).output().unwrap();
    let text = err(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let hosts = [1, 2].map(|call| hosts_of(dir.path(), call));
    assert_eq!(hosts, ["localhost slots=1; ", "localhost slots=1; hostb slots=1; "], "{text}");
    assert!(calls(dir.path())[1].ends_with(" --resume"), "{text}");
}

/// The part of `relaunch` that runs on a host which is asked.
#[test]
fn a_host_says_whether_it_reaches_an_address() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_relaunch"));
    command.arg("answer-to-relaunch").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut to = process.stdin.take().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
    let hello = lines.next().unwrap();
    let words: Vec<&str> = hello.split_whitespace().collect();
    let ["unisono-relaunch-1", port, token, networks @ ..] = &words[..] else { panic!("{hello}") };
    assert!(networks.iter().all(|network| network.contains('/') && network.contains('@')), "{hello}");
    let mut says = |line: String| {
        writeln!(to, "{line}").unwrap();
        lines.next().unwrap()
    };
    assert_eq!(says(format!("try 127.0.0.1 {port} {token}")), "ok");
    assert_eq!(says(format!("try 127.0.0.1 {port} other")), "no 127.0.0.1 is another machine");
    assert!(says(format!("try 127.0.0.1 1 {token}")).starts_with("no Connection refused"));
    assert!(says(format!("try 127.0.0.1 x {token}")).starts_with("no invalid digit"));
    drop(to);
    assert!(process.wait().unwrap().success());
}
