//! The other end of a question: what `relaunch` does on a host that is asked whether it answers.
//!
//! It prints a line with a port, a token and the networks of its host, and answers at that port with the
//! token. For each line `try ADDRESS PORT TOKEN` that it reads, it says whether that address has the token.
//! It ends when its input ends.

use std::fs;
use std::io::{self, BufRead, BufReader, Write, stdin, stdout};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// The first argument of this program on a host that is asked.
pub const ANSWER: &str = "answer-to-relaunch";
/// What the first line begins with.
pub const HELLO: &str = "unisono-relaunch-1";
/// The longest time that a connection may take.
const CONNECT: Duration = Duration::from_secs(3);

/// A network of IPv4 that a host has an address in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The host's address in it.
    pub address: Ipv4Addr,
    /// The bits that all addresses of the network have in common.
    pub prefix: u32,
    /// The host's name of the interface.
    pub interface: String,
}

impl Network {
    /// Returns the first address of the network.
    pub fn base(&self) -> Ipv4Addr {
        let mask = u32::MAX.checked_shl(32 - self.prefix).unwrap_or(0);
        Ipv4Addr::from_bits(self.address.to_bits() & mask)
    }

    /// Writes the network as MPI's settings take it.
    pub fn cidr(&self) -> String {
        format!("{}/{}", self.base(), self.prefix)
    }

    /// Reads what [`Network`]'s `Display` has written.
    pub fn read(text: &str) -> Option<Self> {
        let (address, rest) = text.split_once('/')?;
        let (prefix, interface) = rest.split_once('@')?;
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
        Some(Self { address: address.parse().ok()?, prefix, interface: interface.to_owned() })
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}@{}", self.address, self.prefix, self.interface)
    }
}

/// Answers until the input ends.
pub fn answer() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let port = listener.local_addr()?.port();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let token = format!("{}-{}-{port}", host.trim(), std::process::id());
    let networks: String = networks().iter().map(|network| format!(" {network}")).collect();
    say(&format!("{HELLO} {port} {token}{networks}"))?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Who has asked hears nothing if this fails, and says so.
            let _ = (&stream).write_all(format!("{token}\n").as_bytes());
        }
    });
    for line in stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["try", address, port, token] = words[..] {
            match reaches(address, port, token) {
                Ok(()) => say("ok")?,
                Err(error) => say(&format!("no {error}"))?,
            }
        }
    }
    Ok(())
}

fn say(line: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Connects with a host and compares its token.
fn reaches(address: &str, port: &str, token: &str) -> io::Result<()> {
    let port = port.parse().map_err(io::Error::other)?;
    let mut error = io::Error::other("it has no address");
    for address in (address, port).to_socket_addrs()?.filter(SocketAddr::is_ipv4) {
        match TcpStream::connect_timeout(&address, CONNECT).and_then(|stream| read_token(&stream)) {
            Ok(found) if found == token => return Ok(()),
            Ok(_) => error = io::Error::other(format!("{} is another machine", address.ip())),
            Err(failed) => error = failed,
        }
    }
    Err(error)
}

fn read_token(stream: &TcpStream) -> io::Result<String> {
    stream.set_read_timeout(Some(CONNECT))?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

/// Returns the networks of this host, as Linux lists them. Other systems list none.
fn networks() -> Vec<Network> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    list(&read("/proc/net/route"), &read("/proc/net/fib_trie"))
}

/// Finds the own address in each network that needs no gateway.
fn list(route: &str, trie: &str) -> Vec<Network> {
    let mut own: Vec<Ipv4Addr> = Vec::new();
    let mut last = None;
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL" {
            own.extend(last.filter(|address: &Ipv4Addr| !address.is_loopback() && !own.contains(address)));
        }
    }
    let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::swap_bytes);
    let mut networks: Vec<Network> = Vec::new();
    for line in route.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [interface, base, gateway, _, _, _, _, mask, ..] = words[..] else { continue };
        let Some(((base, gateway), mask)) = number(base).zip(number(gateway)).zip(number(mask)) else {
            continue;
        };
        if gateway != 0 || mask == 0 || !cfg!(target_endian = "little") {
            continue;
        }
        let is_in = |address: &&Ipv4Addr| address.to_bits() & mask == base;
        let network = own.iter().find(is_in).map(|&address| Network {
            address,
            prefix: mask.count_ones(),
            interface: interface.to_owned(),
        });
        networks.extend(network.filter(|network| !networks.contains(network)));
    }
    networks
}
