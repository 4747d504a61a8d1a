//! Which hosts answer, and through which networks they reach each other.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::answer::{ANSWER, HELLO, Network};
use crate::hostfile::Host;

/// What ssh is told when it asks a host, and when mpirun starts its daemon there: to ask no questions, and to
/// notice when the host is gone.
pub const SSH: [&str; 8] = [
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=10",
    "-o",
    "ServerAliveCountMax=3",
];
/// How long a host may take to answer.
const ANSWERS: Duration = Duration::from_secs(20);
/// How long a host may take to try another one.
const TRIES: Duration = Duration::from_secs(10);
/// How many others each host tries, where there are many.
const NEXT: usize = 8;
/// The codes with which the shell on a host ends: no such folder, no such program, no such `relaunch`.
const MISSING: [i32; 3] = [71, 72, 73];

/// How hosts are asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// The program that runs a command on another host.
    pub ssh: String,
    /// The program of the run.
    pub program: String,
}

/// A host that is asked.
pub struct Talk {
    pub host: Host,
    child: Child,
    to: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Option<ChildStderr>,
    port: String,
    token: String,
    networks: Vec<Network>,
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks all hosts. Returns those that answer, and of the others what is wrong with each.
pub fn ask(hosts: &[Host], question: &Question) -> (Vec<Talk>, Vec<(Host, String)>) {
    let begun: Vec<_> = hosts.iter().map(|host| (host, Talk::begin(host, question))).collect();
    let until = Instant::now() + ANSWERS;
    let (mut talks, mut wrong) = (Vec::new(), Vec::new());
    for (host, talk) in begun {
        match talk.and_then(|talk| talk.hello(question, until)) {
            Ok(talk) => talks.push(talk),
            Err(error) => wrong.push((host.clone(), error)),
        }
    }
    (talks, wrong)
}

impl Talk {
    fn begin(host: &Host, question: &Question) -> Result<Self, String> {
        let text = |path: std::io::Result<std::path::PathBuf>| -> Result<String, String> {
            path.map(|path| path.display().to_string()).map_err(|error| error.to_string())
        };
        let (here, own) = (text(std::env::current_dir())?, text(std::env::current_exe())?);
        let program = question.program.as_str();
        let [folder, missing, none] = MISSING;
        let has = if program.contains('/') {
            format!("test -x {} || exit {missing}; ", quoted(program))
        } else {
            String::new()
        };
        let own = quoted(&own);
        let script = format!(
            "cd {} || exit {folder}; {has}test -x {own} || exit {none}; exec {own} {ANSWER}",
            quoted(&here)
        );
        let mut command = if host.is_here() {
            let mut command = Command::new("sh");
            command.arg("-c");
            command
        } else {
            let mut command = Command::new(&question.ssh);
            command.args(SSH).arg(&host.name);
            command
        };
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C ends the run, not the question.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", question.ssh))?;
        let (sender, lines) = channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                let lines = BufReader::new(out).lines().map_while(Result::ok);
                lines.for_each(|line| drop(sender.send(line)));
            });
        }
        let (to, errors) = (child.stdin.take(), child.stderr.take());
        let (port, token) = (String::new(), String::new());
        Ok(Self { host: host.clone(), child, to, lines, errors, port, token, networks: Vec::new() })
    }

    /// Waits for the first line.
    fn hello(mut self, question: &Question, until: Instant) -> Result<Self, String> {
        loop {
            // What a shell prints at its start comes before.
            let wait = until.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(wait) else { return Err(self.why(question, wait)) };
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [HELLO, port, token, networks @ ..] = &words[..] {
                (self.port, self.token) = ((*port).to_owned(), (*token).to_owned());
                self.networks = networks.iter().filter_map(|text| Network::read(text)).collect();
                return Ok(self);
            }
        }
    }

    /// Says why a host has not answered.
    fn why(&mut self, question: &Question, wait: Duration) -> String {
        if wait.is_zero() {
            return format!("no answer within {} s", ANSWERS.as_secs());
        }
        let code = self.child.wait().ok().and_then(|status| status.code());
        let mut errors = String::new();
        let _ = self.errors.take().map(|mut pipe| pipe.read_to_string(&mut errors));
        let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no answer").trim();
        let show = |path: std::io::Result<std::path::PathBuf>| path.unwrap_or_default().display().to_string();
        match code.and_then(|code| MISSING.iter().position(|missing| *missing == code)) {
            Some(0) => format!(
                "it has no folder {}, in which the program would run; make it there",
                show(std::env::current_dir())
            ),
            Some(1) => {
                format!("it has no program {}: it lies at the same place on all hosts", question.program)
            }
            Some(_) => format!(
                "it has no program {}: it lies at the same place on all hosts",
                show(std::env::current_exe())
            ),
            None => last.to_owned(),
        }
    }

    /// Has this host try an address of another one. [`Talk::reached`] returns what came of it.
    fn try_address(&mut self, address: &str, other: (&str, &str)) {
        let line = format!("try {address} {} {}\n", other.0, other.1);
        // A host that is gone gives no answer.
        let _ = self.to.as_mut().map(|to| to.write_all(line.as_bytes()));
    }

    /// Returns whether this host has reached the address of the earliest try without an answer.
    fn reached(&mut self) -> Result<(), String> {
        match self.lines.recv_timeout(TRIES) {
            Ok(line) if line == "ok" => Ok(()),
            Ok(line) => Err(line.strip_prefix("no ").unwrap_or(&line).to_owned()),
            Err(_) => Err("no answer".into()),
        }
    }
}

/// Makes a word of a shell of any text.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// What is known of the networks between hosts.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// The network through which all hosts reach each other, if there is one.
    pub good: Option<String>,
    /// The networks that several hosts have, but in which some do not reach each other, with the reason.
    pub bad: Vec<(String, String)>,
    /// The pairs of hosts that do not reach each other at all, with the reason.
    pub apart: Vec<(String, String, String)>,
}

/// Lets the hosts try each other in all networks that they share, and by name if no network is that of all.
pub fn reach(talks: &mut [Talk]) -> Reached {
    let mut networks: BTreeMap<String, BTreeMap<usize, Network>> = BTreeMap::new();
    for (at, talk) in talks.iter().enumerate() {
        for network in &talk.networks {
            networks.entry(network.cidr()).or_default().entry(at).or_insert_with(|| network.clone());
        }
    }
    let mut reached = Reached::default();
    for (cidr, members) in networks.into_iter().filter(|(_, members)| members.len() > 1) {
        let ids: Vec<usize> = members.keys().copied().collect();
        let address =
            |at: usize| members.get(&at).map_or(String::new(), |network| network.address.to_string());
        match pairs(talks, &ids, &address).into_iter().next() {
            Some((a, b, why)) => {
                let interface = members.values().next().map_or("", |network| network.interface.as_str());
                let why = format!("{interface}: {a} does not reach {b} there: {why}");
                reached.bad.push((cidr, why));
            }
            None if ids.len() == talks.len() => drop(reached.good.get_or_insert(cidr)),
            None => {}
        }
    }
    // A system that lists no networks says nothing of them.
    if reached.good.is_none() && talks.iter().any(|talk| !talk.networks.is_empty()) {
        let names: Vec<String> = talks.iter().map(|talk| talk.host.name.clone()).collect();
        let ids: Vec<usize> = (0..talks.len()).collect();
        reached.apart = pairs(talks, &ids, &|at| names.get(at).cloned().unwrap_or_default());
    }
    reached
}

/// Lets some hosts try each other at the given addresses. Returns the pairs that do not reach each other.
fn pairs(
    talks: &mut [Talk],
    ids: &[usize],
    address: &dyn Fn(usize) -> String,
) -> Vec<(String, String, String)> {
    let next = ids.len().saturating_sub(1).min(NEXT);
    let mut tries = Vec::new();
    // All hosts try at once.
    for (place, &from) in ids.iter().enumerate() {
        for step in 1..=next {
            let to = ids.get((place + step) % ids.len()).copied().unwrap_or_default();
            let Some(other) = talks.get(to) else { continue };
            let (name, port, token) = (other.host.name.clone(), other.port.clone(), other.token.clone());
            let address = address(to);
            if let Some(talk) = talks.get_mut(from) {
                talk.try_address(&address, (&port, &token));
                tries.push((from, name, format!("{address}, port {port}")));
            }
        }
    }
    let mut apart = Vec::new();
    for (from, name, place) in tries {
        if let Some(talk) = talks.get_mut(from)
            && let Err(why) = talk.reached()
        {
            apart.push((talk.host.name.clone(), name, format!("{place}: {why}")));
        }
    }
    apart
}

/// Leaves out hosts until all that are left reach each other: first the one with the most pairs.
pub fn worst(apart: &[(String, String, String)], order: &[Host]) -> Option<String> {
    let names: BTreeSet<&String> = apart.iter().flat_map(|(a, b, _)| [a, b]).collect();
    let count = |name: &String| apart.iter().filter(|(a, b, _)| a == name || b == name).count();
    let place = |name: &String| order.iter().position(|host| host.name == *name).unwrap_or(usize::MAX);
    names.into_iter().max_by_key(|name| (count(name), place(name))).cloned()
}
