//! Runs on four hosts in network namespaces, where `UNISONO_LONG` is set: what hosts have that were set up by
//! different people, and what networks do.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use crate::network::{HOSTS, Lab, Settings, missing, wait_for};
use crate::{alone, digest, digits, is_long, one_at_a_time, text};

/// A short run on the CPU.
const RUN: [&str; 4] = ["--epochs", "3", "--adapter", "cpu"];

/// Returns four hosts and the right to use them, or `None` where these tests are left out.
fn hosts() -> Option<(Lab, MutexGuard<'static, ()>)> {
    let why = match is_long() {
        false => Some("UNISONO_LONG is not set".to_owned()),
        true => missing(),
    };
    let Some(why) = why else {
        let guard = one_at_a_time();
        let lab = Lab::new();
        // No slots: Open MPI would put two ranks on each host with two cores.
        fs::write(lab.disk("hosta").join("hosts"), HOSTS.join("\n")).unwrap();
        return Some((lab, guard));
    };
    let line = format!("left out: runs on four hosts in namespaces: {why}\n");
    // Nobody may be there to read it.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(file) = std::env::var_os("UNISONO_LEFT_OUT") {
        let file = fs::OpenOptions::new().create(true).append(true).open(file);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
    None
}

/// Returns the command of `relaunch` on the first host, with flags of its own and of the digits.
fn relaunch(lab: &Lab, own: &[&str], flags: &[&str]) -> Command {
    let start = [env!("CARGO_BIN_EXE_relaunch"), "--hostfile", "hosts", "--pause", "0"];
    // A run without a directory cannot be restarted.
    let once: &[&str] = if flags.contains(&"--out") { &[] } else { &["--retries", "0", "--ask-every", "0"] };
    lab.command("hosta", &[&start[..], once, own, &["--", digits()], flags].concat())
}

/// Returns the lines with the ranks of each host.
fn ranks(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("rank ") && line.contains(" replicas, ")).collect()
}

/// The hostfile has no slots, and all hosts have Docker's bridge.
#[test]
fn one_rank_a_host_ends_in_the_state_of_one_process() {
    let Some((lab, _alone)) = hosts() else { return };
    let wanted = alone(digits(), &RUN);
    let check = |ended: &Output| {
        let text = text(ended);
        assert_eq!(digest(ended), wanted, "{text}");
        let ranks = ranks(&text);
        assert_eq!(ranks.len(), 4, "{text}");
        for (rank, host) in HOSTS.iter().enumerate() {
            assert!(ranks[rank].starts_with(&format!("rank {rank} ({host}): 1 replicas")), "{ranks:?}");
        }
    };
    check(&relaunch(&lab, &[], &RUN).output().unwrap());
    lab.with_docker();
    let ended = relaunch(&lab, &[], &RUN).output().unwrap();
    check(&ended);
    assert!(
        text(&ended).contains("relaunch: MPI uses the network 10.77.0.0/24, not 172.17.0.0/16 (docker0: ")
    );

    // Without relaunch, the ranks name each other, and what to set.
    let flags = [&RUN[..], &["--cluster-deadline", "10"]].concat();
    let start =
        ["mpirun", "--hostfile", "hosts", "--bind-to", "none", "--map-by", "node", "-n", "4", digits()];
    let since = Instant::now();
    let ended = lab.command("hosta", &[&start[..], &flags].concat()).output().unwrap();
    let text = text(&ended);
    let wanted = "error: rank 0 (hosta): it has heard nothing from rank 1 (hostb), rank 2 (hostc), rank 3 (hostd) within";
    assert!(text.contains(wanted) && text.contains("--mca btl_tcp_if_include"), "{text}");
    assert!(!ended.status.success() && since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
}

/// mpirun would wait for ever for its daemons.
#[test]
fn a_firewall_that_passes_ssh_alone_is_named_before_the_start() {
    let Some((lab, _alone)) = hosts() else { return };
    lab.set(Settings { only_ssh: true, ..Settings::default() });
    let ended = relaunch(&lab, &[], &RUN).output().unwrap();
    let text = text(&ended);
    assert_eq!(ended.status.code(), Some(1), "{text}");
    assert!(text.contains(" does not reach ") && text.contains("if a firewall is between them"), "{text}");
    // Without that question mpirun is ended after a while.
    let flags = ["--no-ask", "--start-deadline", "10"];
    let since = Instant::now();
    let ended = relaunch(&lab, &flags, &RUN).output().unwrap();
    assert!(!ended.status.success() && since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
}

#[test]
fn the_report_tells_latency_and_rate_apart() {
    let Some((lab, _alone)) = hosts() else { return };
    let flags = ["--epochs", "2", "--adapter", "cpu", "--global-batch", "256"];
    let wanted = alone(digits(), &flags);
    let says = |settings: Settings, what: &str| {
        lab.set(settings);
        let ended = relaunch(&lab, &[], &flags).output().unwrap();
        assert_eq!(digest(&ended), wanted);
        let text = text(&ended);
        assert!(text.lines().any(|line| line.starts_with(what)), "{text}");
    };
    says(Settings { delay: Duration::from_millis(100), ..Settings::default() }, "latency-bound: ");
    says(Settings { rate: Some(200_000.0), ..Settings::default() }, "network-bound: ");
}

/// Nothing tells the others that the host is gone: its connections stay open.
#[test]
fn a_run_goes_on_without_a_host_that_is_cut_off_and_takes_it_back() {
    let Some((lab, _alone)) = hosts() else { return };
    let flags = ["--epochs", "250", "--adapter", "cpu", "--out", "run", "--checkpoint-every", "20"];
    let wanted = alone(digits(), &[&["--epochs", "250"], &flags[2..4]].concat());
    let own = ["--ask-every", "3", "--end-deadline", "5"];
    let mut command = relaunch(&lab, &own, &[&flags[..], &["--cluster-deadline", "10"]].concat());
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (sender, lines) = std::sync::mpsc::channel();
    let pipe = run.stderr.take().unwrap();
    std::thread::spawn(move || {
        BufReader::new(pipe).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
    });
    let mut seen: Vec<String> = Vec::new();
    let mut says = |words: &str| {
        let since = Instant::now();
        while !seen.iter().any(|line| line.contains(words)) {
            let line = lines.recv_timeout(Duration::from_secs(120));
            seen.push(line.unwrap_or_else(|_| panic!("no {words:?} in {seen:#?}")));
        }
        since.elapsed()
    };
    says("saved run/checkpoints/");
    lab.set(Settings { side: [0, 0, 0, 1], ..Settings::default() });
    says("error: no answer from rank 3 (hostd)");
    let took = says("start 2 on 3 ranks of hosta, hostb, hostc, without hostd");
    assert!(took < Duration::from_secs(90), "{took:?}");
    lab.set(Settings::default());
    says("hosts answer again: the run is restarted with them");
    says("start 3 on 4 ranks");
    says(&format!(" steps, state {wanted}"));
    wait_for("the end", || run.try_wait().unwrap().is_some());
    assert!(run.wait().unwrap().success());
}
