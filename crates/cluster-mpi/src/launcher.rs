//! What the launcher of this process was given.

use std::path::{Path, PathBuf};

/// Arguments of mpirun that name a file of hosts, and those that name the hosts.
const FILES: [&str; 3] = ["hostfile", "machinefile", "default-hostfile"];
const NAMES: [&str; 3] = ["host", "H", "hosts"];

/// Returns the hosts that `mpirun` was given on this machine, if it was given some and has started this
/// process itself: those of its hostfile, or of `--host`. Linux alone tells.
pub fn given_hosts() -> Vec<String> {
    let parent = || -> Option<(String, PathBuf)> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().to_owned();
        let line = std::fs::read(format!("/proc/{parent}/cmdline")).ok()?;
        let folder = std::fs::read_link(format!("/proc/{parent}/cwd")).ok()?;
        Some((String::from_utf8_lossy(&line).into_owned(), folder))
    };
    let Some((line, folder)) = parent() else { return Vec::new() };
    let args: Vec<&str> = line.split('\0').collect();
    hosts_of(&args, &folder)
}

/// Reads the hosts from the arguments of mpirun.
fn hosts_of(args: &[&str], folder: &Path) -> Vec<String> {
    let is_mpirun = args.first().is_some_and(|program| {
        let name = program.rsplit('/').next().unwrap_or_default();
        name.starts_with("mpirun") || name.starts_with("mpiexec") || name.starts_with("prterun")
    });
    let mut hosts: Vec<String> = Vec::new();
    let mut add = |name: &str| {
        let name = name.trim();
        if !name.is_empty() && !hosts.iter().any(|host| host == name) {
            hosts.push(name.to_owned());
        }
    };
    for pair in args.windows(2).filter(|_| is_mpirun) {
        let Some(flag) = pair[0].strip_prefix("--").or(pair[0].strip_prefix('-')) else { continue };
        if FILES.contains(&flag) {
            let text = std::fs::read_to_string(folder.join(pair[1])).unwrap_or_default();
            for line in text.lines() {
                let line = line.split('#').next().unwrap_or_default();
                add(line.split_whitespace().next().unwrap_or_default());
            }
        } else if NAMES.contains(&flag) {
            pair[1].split(',').for_each(|host| add(host.split(':').next().unwrap_or_default()));
        }
    }
    hosts
}

/// Returns those of the given hosts on which no rank is, if some have none. A host may be given by its short
/// name, its full one or an address, so their numbers are compared: where the names do not show which of them
/// are left, all that no rank has by name are returned.
pub fn idle_hosts(given: &[String], used: &[String]) -> Vec<String> {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let mut distinct: Vec<&String> = used.iter().collect();
    distinct.sort();
    distinct.dedup();
    if given.len() <= distinct.len() {
        return Vec::new();
    }
    // mpirun runs on this machine, and has started a rank here.
    let has = |name: &String| {
        name == "localhost" || distinct.iter().any(|host| *host == name || short(host) == short(name))
    };
    given.iter().filter(|name| !has(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_a_rank_are_found() {
        let dir = std::env::temp_dir().join(format!("unisono-hosts-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("hosts"), "# all\nhosta\nhostb slots=2 # two\n\nhostc\n").unwrap();
        let given = |args: &[&str]| hosts_of(args, &dir).join(" ");
        for (args, wanted) in [
            (&["mpirun", "--hostfile", "hosts", "-n", "2", "x"][..], "hosta hostb hostc"),
            (&["/usr/bin/mpirun.openmpi", "-machinefile", "hosts", "x"], "hosta hostb hostc"),
            (&["mpirun", "-H", "hosta:2,hostb", "x"], "hosta hostb"),
            (&["mpirun", "--host", "hosta,hosta", "x"], "hosta"),
            (&["mpirun", "-n", "2", "x"], ""),
            (&["bash", "--host", "hosta"], ""),
            (&[], ""),
        ] {
            assert_eq!(given(args), wanted, "{args:?}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
        let names = |names: &str| names.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let idle = |given: &str, used: &str| idle_hosts(&names(given), &names(used)).join(" ");
        assert_eq!(idle("a b c d", "a a b b"), "c d");
        assert_eq!(idle("a b", "a.example b.example"), "");
        assert_eq!(idle("a.example b.example", "a a"), "b.example");
        assert_eq!(idle("10.0.0.1 10.0.0.2", "a b"), "");
        assert_eq!((idle("localhost", "a a"), idle("localhost b", "a a")), ("".into(), "b".into()));
    }
}
