//! The hostfile: a line for each host.

use std::fs;
use std::io::Write;
use std::net::{ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};

/// A host of the hostfile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name or address.
    pub name: String,
    /// The number of ranks on it. Default: 1.
    pub slots: usize,
    /// What else the line says, for mpirun.
    rest: String,
}

impl Host {
    /// Returns whether this is the machine on which this program runs.
    pub fn is_here(&self) -> bool {
        let own = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        if self.name == "localhost" || self.name == own.trim() {
            return true;
        }
        // Only an address of this machine can be bound.
        let addresses = (self.name.as_str(), 0).to_socket_addrs();
        addresses.is_ok_and(|mut all| all.any(|address| UdpSocket::bind(address).is_ok()))
    }
}

/// Reads a hostfile. A host without `slots=` has one rank. Lines of one host are added up.
pub fn read(path: &Path) -> Result<Vec<Host>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn parse(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts: Vec<Host> = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        // ssh would take such a name for an option.
        if name.starts_with('-') {
            return Err(format!("{line}: a line begins with the name of a host"));
        }
        let words: Vec<&str> = words.collect();
        let slots = match words.iter().find_map(|word| word.strip_prefix("slots=")) {
            Some(slots) => slots.parse().map_err(|_| format!("{line}: slots is no number"))?,
            None => 1,
        };
        let rest: Vec<&str> = words.into_iter().filter(|word| !word.starts_with("slots=")).collect();
        match hosts.iter_mut().find(|host| host.name == name) {
            Some(host) => host.slots += slots,
            None => hosts.push(Host { name: name.to_owned(), slots, rest: rest.join(" ") }),
        }
    }
    hosts.retain(|host| host.slots > 0);
    if hosts.is_empty() { Err("no host is left".into()) } else { Ok(hosts) }
}

/// A hostfile for mpirun with the hosts of one start, which is removed with this. It has the number of slots
/// on each line: without it, Open MPI counts cores and puts all ranks on the first hosts.
pub struct Written(pub PathBuf);

impl Written {
    /// Writes the file into the folder for temporary files.
    pub fn new(hosts: &[Host]) -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("relaunch-{}.hosts", std::process::id()));
        // What an earlier process of this number has left.
        let _ = fs::remove_file(&path);
        let lines: String = hosts
            .iter()
            .map(|Host { name, slots, rest }| {
                format!("{name} slots={slots} {rest}").trim_end().to_owned() + "\n"
            })
            .collect();
        let written = fs::File::create_new(&path).and_then(|mut file| file.write_all(lines.as_bytes()));
        written.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The number of ranks on some hosts.
pub fn ranks(hosts: &[Host]) -> usize {
    hosts.iter().map(|host| host.slots).sum()
}
