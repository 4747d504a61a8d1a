//! What ranks tell of each other: those that were started with something else, lost devices, slow ranks,
//! signals, full disks.

use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::{RUN, alone, digest, digits, mpirun, one_at_a_time, process_of, signal, start, text};

/// Runs the digits on three ranks. `before` is a shell command on one of them, and `more` are its own flags.
fn three(rank: usize, before: &str, more: &str, all: &[&str]) -> Output {
    let own = format!("[ $OMPI_COMM_WORLD_RANK = {rank} ] && {{ {before}; more='{more}'; }}");
    let script = format!("{own}; exec {} {} {} $more", digits(), RUN.join(" "), all.join(" "));
    mpirun(3, "bash").args(["-c", &script]).output().unwrap()
}

#[test]
fn a_rank_with_something_else_is_refused_by_name() {
    let _alone = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let packed = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.csv.gz");
    let data = dir.path().join("digits.csv");
    let unpacked = Command::new("gzip").args(["-dc", packed]).output().unwrap().stdout;
    fs::write(&data, &unpacked).unwrap();
    let data = data.to_str().unwrap();
    // The same shapes with another value in one sample.
    let other = dir.path().join("other.csv");
    fs::write(&other, String::from_utf8(unpacked).unwrap().replacen("13,", "14,", 1)).unwrap();
    let cases = [
        ("true", "--global-batch 32".to_owned(), "--global-batch 32, rank 0: 64", &[][..]),
        ("true", "--seed 9".to_owned(), "--seed 9, rank 0: 42", &[]),
        ("true", format!("--data {}", other.display()), "the fingerprint of the data ", &[]),
        ("export UNISONO_UNPROTECTED=1", String::new(), "the numeric class of the adapter split ", &[]),
    ];
    for (before, more, words, all) in cases {
        let ran = three(2, before, &more, all);
        let text = text(&ran);
        assert!(!ran.status.success(), "{text}");
        let refused = |line: &str| line.contains("error: rank 2 (") && line.contains(&format!("): {words}"));
        assert!(text.lines().any(refused), "{words}: {text}");
    }
    // What only some ranks act on is compared before the checkpoints, and a relative path begins in a folder.
    let out = dir.path().join("run");
    let out = format!("--out {}", out.display());
    let flag = |flag: &str| format!("{flag} is given, rank 0: is not given");
    for (before, more, words, all) in [
        ("true", out.as_str(), flag("--out"), &[][..]),
        ("true", "--trace /dev/null", flag("--trace"), &[]),
        ("cd /", "", "a relative path begins in the folder /, rank 0: /".to_owned(), &["--out", "run"]),
    ] {
        let ran = three(2, before, more, all);
        let text = text(&ran);
        assert_eq!(ran.status.code(), Some(2), "{text}");
        let refused = |line: &str| line.contains("error: rank 2 (") && line.contains(&format!("): {words}"));
        assert!(text.lines().any(refused), "{words}: {text}");
        // Each line is one rank's.
        assert!(text.lines().all(|line| line.matches("error: ").count() < 2), "{text}");
    }
    // Checkpoints of an earlier run on another rank's disk are named with that rank and its directory.
    let own = dir.path().join("run.rank1");
    let mut store = unisono::checkpoint::Store::open(&own).unwrap();
    store.save(3, &unisono::checkpoint::Contents::default()).unwrap();
    let ran = three(2, "true", "", &out.split(' ').collect::<Vec<_>>());
    let named = format!("): {out}: {} holds the checkpoints of an earlier run", own.display());
    assert!(text(&ran).contains("rank 1 (") && text(&ran).contains(&named), "{}", text(&ran));
    // The same samples from another file are the same data.
    let ran = three(2, "true", &format!("--data {data}"), &[]);
    assert_eq!(digest(&ran), alone(digits(), &RUN));
}

/// The hosts are names of this machine, so that mpirun fills the first one.
#[test]
fn hosts_without_a_rank_are_noted() {
    let _alone = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let hosts = dir.path().join("hosts");
    fs::write(&hosts, "localhost slots=2\nnowhere.example slots=2\n").unwrap();
    // A process between mpirun and the ranks is mpirun in name, and does not look for that host.
    let named = dir.path().join("mpirun");
    std::os::unix::fs::symlink("/bin/bash", &named).unwrap();
    let script = format!("{} {}; exit $?", digits(), RUN.join(" "));
    let script = ["-c", &script, "--hostfile", hosts.to_str().unwrap()];
    let ran = mpirun(2, named.to_str().unwrap()).args(script).output().unwrap();
    assert_eq!(digest(&ran), alone(digits(), &RUN));
    let notes: Vec<String> = text(&ran)
        .lines()
        .filter(|line| line.starts_with("note: no rank is on "))
        .map(str::to_owned)
        .collect();
    assert_eq!(notes.len(), 1, "{}", text(&ran));
    assert!(notes[0].starts_with("note: no rank is on nowhere.example"), "{notes:?}");
}

#[test]
fn a_device_that_is_lost_concerns_its_rank_alone() {
    let _alone = one_at_a_time();
    let fault = "export FAILPOINTS='rank-1:replica-1:step-30=return(lose)'";
    let ran = three(1, fault, "", &["--replicas", "2"]);
    let text = text(&ran);
    assert_eq!(digest(&ran), alone(digits(), &RUN), "{text}");
    let left: Vec<&str> = text.lines().filter(|line| line.contains(" left at step ")).collect();
    assert_eq!(left.len(), 1, "{text}");
    assert!(left[0].starts_with("rank 1 (") && left[0].contains("): replica 1 ("), "{left:?}");
}

#[test]
fn the_table_names_a_slow_rank() {
    let _alone = one_at_a_time();
    let ran = three(1, "export FAILPOINTS='rank-1:replica-0=return(sample:3000)'", "", &["--replicas", "1"]);
    let text = text(&ran);
    assert_eq!(digest(&ran), alone(digits(), &RUN), "{text}");
    let named =
        |line: &str| line.starts_with("rank 1 (") && line.contains(" was the slowest: all others waited ");
    assert!(text.lines().any(named), "{text}");
}

/// A file of this size cannot be written on rank 0.
#[test]
fn a_full_disk_ends_all_with_the_same_message_where_checkpoints_are_required() {
    let _alone = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let flags =
        ["--out", out.to_str().unwrap(), "--checkpoint-every", "10", "--require-checkpoints", "--all-ranks"];
    let ran = three(0, "trap \"\" XFSZ; ulimit -f 20", "", &flags);
    let text = text(&ran);
    assert!(!ran.status.success(), "{text}");
    let errors: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once("error: ")?.1)).collect();
    assert!(!errors.is_empty() && errors.iter().all(|error| *error == errors[0]), "{text}");
    assert!(errors[0].starts_with("rank 0 (") && errors[0].contains("File too large"), "{text}");
}

#[test]
fn a_signal_to_one_rank_ends_all_after_the_same_step() {
    let _alone = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let mut run = start(3, &out, "200", "60");
    signal(process_of(2, &out), "-TERM");
    let since = Instant::now();
    while run.try_wait().unwrap().is_none() {
        assert!(since.elapsed() < Duration::from_secs(60), "the run did not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = run.wait_with_output().unwrap();
    assert!(
        text(&ended).contains("asked to stop: step ") || text(&ended).contains("interrupted after step "),
        "{}",
        text(&ended)
    );
    let step = |rank| unisono::checkpoint::list(unisono::dir_of_rank(&out, rank)).unwrap()[0].0;
    assert_eq!(step(0), step(1), "both save the same step");
}
