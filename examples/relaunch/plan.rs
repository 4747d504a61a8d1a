//! What one start is to be: the hosts that answer, and what mpirun is told.

use std::path::Path;

use crate::hostfile::{self, Host};
use crate::hosts::{Question, Reached, SSH, ask, reach, worst};

/// The settings of MPI that choose its networks: where one is given, it is left as it is.
const NETWORKS: [&str; 4] =
    ["btl_tcp_if_include", "btl_tcp_if_exclude", "oob_tcp_if_include", "oob_tcp_if_exclude"];

/// The hosts of a start.
#[derive(Debug, Default)]
pub struct Plan {
    /// The hosts that are used.
    pub hosts: Vec<Host>,
    /// The hosts that are not used, with the reason of each.
    pub left_out: Vec<(Host, String)>,
    /// What is to be known, such as the network that MPI is to use.
    pub notes: Vec<String>,
    /// The settings of MPI that follow from the hosts.
    pub settings: Vec<(String, String)>,
}

/// Asks the hosts of a hostfile, and chooses those that answer and reach each other. `given` has the
/// arguments of mpirun.
pub fn plan(hostfile: &Path, question: Option<&Question>, given: &[String]) -> Result<Plan, String> {
    let hosts = hostfile::read(hostfile)?;
    let alone = hosts.len() == 1 && hosts.iter().all(Host::is_here);
    let Some(question) = question.filter(|_| !alone) else { return Ok(Plan { hosts, ..Plan::default() }) };
    let (mut talks, mut left_out) = ask(&hosts, question);
    let chosen = NETWORKS.iter().any(|name| is_given(given, name));
    let reached = loop {
        if chosen || talks.len() < 2 {
            break Reached::default();
        }
        let reached = reach(&mut talks);
        let Some(name) = worst(&reached.apart, &hosts) else { break reached };
        let why = reached.apart.iter().find(|(a, b, _)| *a == name || *b == name);
        let why = why.map(|(a, b, why)| {
            format!(
                "{a} does not reach {b} at {why}; if a firewall is between them, it must pass all ports (docs/MACHINES.md)"
            )
        });
        let at = talks.iter().position(|talk| talk.host.name == name);
        let Some(talk) = at.map(|at| talks.remove(at)) else { break reached };
        left_out.push((talk.host.clone(), why.unwrap_or_default()));
    };
    let used: Vec<Host> = talks.iter().map(|talk| talk.host.clone()).collect();
    let (settings, notes) = networks(&reached);
    Ok(Plan { hosts: used, left_out, notes, settings })
}

/// Returns the settings that keep MPI to networks that connect all hosts, and what to say of them.
fn networks(reached: &Reached) -> (Vec<(String, String)>, Vec<String>) {
    if reached.bad.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let why: Vec<String> = reached.bad.iter().map(|(cidr, why)| format!("{cidr} ({why})")).collect();
    let why = why.join(", ");
    match &reached.good {
        Some(good) => {
            let note = format!("MPI uses the network {good}, not {why}");
            let of = |name: &str| (name.to_owned(), good.clone());
            (vec![of("btl_tcp_if_include"), of("oob_tcp_if_include")], vec![note])
        }
        None => {
            let bad: Vec<&str> = reached.bad.iter().map(|(cidr, _)| cidr.as_str()).collect();
            let bad = format!("127.0.0.0/8,{}", bad.join(","));
            let of = |name: &str| (name.to_owned(), bad.clone());
            let note = format!("MPI does not use {why}");
            (vec![of("btl_tcp_if_exclude"), of("oob_tcp_if_exclude")], vec![note])
        }
    }
}

/// Returns the settings that let mpirun notice lost hosts, and give up a start, without those that are given.
pub fn settings(ssh: &str, start_seconds: u64, given: &[String]) -> Vec<(String, String)> {
    let mut settings = vec![
        ("plm_rsh_args".to_owned(), SSH.join(" ")),
        ("orte_startup_timeout".to_owned(), start_seconds.to_string()),
        ("oob_tcp_keepalive_time".to_owned(), "10".to_owned()),
        ("oob_tcp_keepalive_intvl".to_owned(), "5".to_owned()),
        ("oob_tcp_keepalive_probes".to_owned(), "6".to_owned()),
    ];
    if ssh != "ssh" {
        settings.push(("plm_rsh_agent".to_owned(), ssh.to_owned()));
    }
    settings.retain(|(name, _)| !is_given(given, name));
    settings
}

/// Returns whether a setting of MPI is given to mpirun or in the environment.
fn is_given(given: &[String], name: &str) -> bool {
    given.iter().any(|arg| arg.contains(name)) || std::env::var_os(format!("OMPI_MCA_{name}")).is_some()
}
