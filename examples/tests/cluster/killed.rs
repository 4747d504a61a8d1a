//! Ranks that are killed or stopped, and what goes on after them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{
    alone, as_root, digest, digits, is_long, mpirun, one_at_a_time, process_of, signal, start, text,
};

#[test]
fn a_killed_rank_ends_the_job_which_goes_on_with_fewer_and_with_more() {
    let _alone = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let wanted = alone(digits(), &["--epochs", "8", "--adapter", "llvmpipe"]);
    let run = start(4, &out, "8", "300");
    signal(process_of(2, &out), "-KILL");
    let since = Instant::now();
    let ended = run.wait_with_output().unwrap();
    // What ends it is not the deadline.
    assert!(since.elapsed() < Duration::from_secs(120), "it took {:?}", since.elapsed());
    assert!(!ended.status.success() && text(&ended).contains("rank 2 with PID"), "{}", text(&ended));

    // Rank 0 is lost with its disk: rank 1 has a checkpoint too.
    let resume = |ranks: usize, epochs: &str| {
        let args = ["--resume", "--out", out.to_str().unwrap(), "--epochs", epochs, "--adapter", "llvmpipe"];
        mpirun(ranks, digits()).args(args).args(["--checkpoint-every", "10"]).output().unwrap()
    };
    fs::remove_dir_all(&out).unwrap();
    let ended = resume(3, "5");
    assert!(ended.status.success() && text(&ended).contains("resumed at step "), "{}", text(&ended));
    let ended = resume(5, "8");
    assert!(text(&ended).contains("resumed at step "), "{}", text(&ended));
    assert_eq!(digest(&ended), wanted);
}

/// One kill, and thirty at random moments where `UNISONO_LONG` is set.
#[test]
fn the_relaunch_loop_goes_on_with_the_hosts_that_are_left() {
    let _alone = one_at_a_time();
    let kills = if is_long() { 30 } else { 1 };
    let epochs = (5 + 15 * kills).to_string();
    let dir = tempfile::tempdir().unwrap();
    let (out, hosts) = (dir.path().join("run"), dir.path().join("hosts"));
    let wanted = alone(digits(), &["--epochs", &epochs, "--adapter", "llvmpipe"]);
    fs::write(&hosts, "localhost slots=4\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_relaunch"));
    as_root(&mut command);
    command.arg("--hostfile").arg(&hosts).args(["--pause", "0", "--retries", "40", "--", digits()]);
    command.args(["--out", out.to_str().unwrap(), "--checkpoint-every", "10", "--epochs", &epochs]);
    command.args(["--adapter", "llvmpipe"]);
    let run = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    for kill in 0..kills {
        // The moment differs from kill to kill.
        std::thread::sleep(Duration::from_millis(kill * 7919 % 1000));
        let pid = process_of(kill as usize % 3, &out);
        fs::write(&hosts, format!("localhost slots={}\n", 3 + kill % 2)).unwrap();
        signal(pid, "-KILL");
        while Path::new(&format!("/proc/{pid}/environ")).exists()
            && fs::read(format!("/proc/{pid}/environ")).is_ok()
        {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let ended = run.wait_with_output().unwrap();
    assert!(text(&ended).contains("start 2 on 3 ranks"), "{}", text(&ended));
    assert_eq!(digest(&ended), wanted);
}

#[test]
fn a_rank_that_does_not_answer_is_named_within_the_deadline() {
    let _alone = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let run = start(3, &out, "200", "20");
    let pid = process_of(1, &out);
    signal(pid, "-STOP");
    let since = Instant::now();
    let ended = run.wait_with_output().unwrap();
    let took = since.elapsed();
    let text = text(&ended);
    assert!(!ended.status.success() && text.contains("no answer from rank 1 ("), "{text}");
    assert!(took < Duration::from_secs(60), "it took {took:?}: {text}");
}
