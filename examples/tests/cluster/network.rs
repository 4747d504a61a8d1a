//! Four hosts on this machine: network namespaces, each with a name, an sshd and a folder of its own. A
//! switch, which is this program over TAP devices, connects them: it delays, slows and cuts. No other address
//! is contacted.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The names of the hosts.
pub const HOSTS: [&str; 4] = ["hosta", "hostb", "hostc", "hostd"];
/// The port of ssh, which a firewall passes.
const SSH: u16 = 22;

/// What a new process of a host does: it shows the host's own files and folder, and serves ssh.
const HOST: &str = r#"
set -e
lab=$1 host=$2
hostname $host
mount --bind $lab/hosts /etc/hosts
mount --bind $lab/ssh_config /etc/ssh/ssh_config
mount --bind $lab/disks/$host $lab/work
mkdir -p /run/sshd
exec /usr/sbin/sshd -D -e -f /dev/null -h $lab/host_key -o PidFile=none -o UsePAM=no -o StrictModes=no \
    -o PermitRootLogin=yes -o AuthorizedKeysFile=$lab/key.pub
"#;

/// What the switch does with frames.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The time that a frame takes.
    pub delay: Duration,
    /// The bytes a second that a host may send, if they are limited.
    pub rate: Option<f64>,
    /// The side of each host: frames pass between hosts of one side.
    pub side: [u8; 4],
    /// Whether a firewall passes ssh alone.
    pub only_ssh: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { delay: Duration::ZERO, rate: None, side: [0; 4], only_ssh: false }
    }
}

/// Four hosts, which are gone when this is dropped.
pub struct Lab {
    dir: tempfile::TempDir,
    sshds: Vec<Child>,
    settings: Arc<Mutex<Settings>>,
}

/// Says why there can be no such hosts here, if so.
pub fn missing() -> Option<String> {
    let runs = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    for (file, package) in [
        ("/usr/sbin/sshd", "openssh-server"),
        ("/etc/ssh/ssh_config", "openssh-client"),
        ("/usr/bin/ssh-keygen", "openssh-client"),
    ] {
        if !Path::new(file).exists() {
            return Some(format!("there is no {file} (apt-get install {package})"));
        }
    }
    if !runs("ip", &["link"]) {
        return Some("there is no program ip (apt-get install iproute2)".into());
    }
    if !runs("unshare", &["--net", "--mount", "--uts", "true"]) || !Path::new("/dev/net/tun").exists() {
        return Some("no network namespaces or no TAP devices can be made".into());
    }
    None
}

impl Lab {
    /// Makes the hosts.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lab = dir.path().to_str().unwrap().to_owned();
        for name in ["key", "host_key"] {
            run("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &format!("{lab}/{name}")]);
        }
        fs::create_dir(format!("{lab}/work")).unwrap();
        let key = fs::read_to_string(format!("{lab}/host_key.pub")).unwrap();
        let (mut names, mut known) = ("127.0.0.1 localhost\n".to_owned(), String::new());
        for (at, host) in HOSTS.iter().enumerate() {
            names += &format!("10.77.0.{} {host}\n", at + 1);
            known += &format!("{host} {key}");
            fs::create_dir_all(format!("{lab}/disks/{host}")).unwrap();
        }
        let config = format!("Host *\nIdentityFile {lab}/key\nUserKnownHostsFile {lab}/known_hosts\n");
        for (file, text) in [("hosts", &names), ("known_hosts", &known), ("ssh_config", &config)] {
            fs::write(format!("{lab}/{file}"), text).unwrap();
        }
        let mut sshds = Vec::new();
        let mut taps = Vec::new();
        for (at, host) in HOSTS.iter().enumerate() {
            let mut command = Command::new("unshare");
            command.args(["--net", "--mount", "--uts", "sh", "-c", HOST, "host", &lab, host]);
            let log = File::create(format!("{lab}/{host}.log")).unwrap();
            let sshd = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
            let pid = sshd.id().to_string();
            sshds.push(sshd);
            wait_for(&format!("the namespace of {host}"), || {
                let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
                of(&pid).is_some_and(|own| Some(own) != of("self"))
            });
            let name = format!("utap{at}-{}", std::process::id() % 100_000);
            taps.push(tap(&name));
            run("ip", &["link", "set", &name, "netns", &pid]);
            let inside = |args: &[&str]| run("nsenter", &[&["-t", &pid, "-n", "ip"], args].concat());
            inside(&["link", "set", "lo", "up"]);
            inside(&["addr", "add", &format!("10.77.0.{}/24", at + 1), "dev", &name]);
            inside(&["link", "set", &name, "up"]);
        }
        let settings = Arc::new(Mutex::new(Settings::default()));
        switch(taps, &settings);
        let lab = Self { dir, sshds, settings };
        for host in HOSTS {
            wait_for(&format!("sshd of {host}"), || {
                lab.command(HOSTS[0], &["ssh", "-o", "BatchMode=yes", host, "true"])
                    .stderr(Stdio::null())
                    .status()
                    .is_ok_and(|status| status.success())
            });
        }
        lab
    }

    /// Changes what the switch does.
    pub fn set(&self, settings: Settings) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    /// Returns a command on a host, in the folder `work`, of which each host has its own.
    pub fn command(&self, host: &str, args: &[&str]) -> Command {
        let at = HOSTS.iter().position(|name| *name == host).unwrap();
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.sshds[at].id().to_string(), "-n", "-m", "-u"]);
        // The folder is entered behind the mount.
        let inside = format!("cd {} && exec \"$@\"", self.dir.path().join("work").display());
        command.args(["sh", "-c", &inside, "host"]).args(args);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command
    }

    /// Returns the folder of a host as this process sees it.
    pub fn disk(&self, host: &str) -> PathBuf {
        self.dir.path().join("disks").join(host)
    }

    /// Gives each host a bridge with the same address, as Docker does.
    pub fn with_docker(&self) {
        for host in HOSTS {
            for args in [
                &["link", "add", "docker0", "type", "bridge"][..],
                &["addr", "add", "172.17.0.1/16", "dev", "docker0"],
                &["link", "set", "docker0", "up"],
            ] {
                let args = [&["ip"], args].concat();
                assert!(self.command(host, &args).status().unwrap().success(), "{args:?}");
            }
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for sshd in &mut self.sshds {
            // With its last process a namespace goes, and with it its end of the device.
            let _ = sshd.kill();
            let _ = sshd.wait();
        }
    }
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {text}");
}

/// Waits until something is so.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < Duration::from_secs(180), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Makes a TAP device: an interface whose frames this program reads and writes.
#[expect(unsafe_code, reason = "an ioctl that rustix does not have")]
fn tap(name: &str) -> File {
    const SET_INTERFACE: rustix::ioctl::Opcode = 0x4004_54ca;
    const TAP_WITHOUT_HEADER: u16 = 0x1002;
    let file = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    let mut request = [0_u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..18].copy_from_slice(&TAP_WITHOUT_HEADER.to_ne_bytes());
    // SAFETY: TUNSETIFF reads a `struct ifreq`, which has 40 bytes: a name of 16, and flags.
    unsafe {
        let set = rustix::ioctl::Setter::<SET_INTERFACE, [u8; 40]>::new(request);
        rustix::ioctl::ioctl(&file, set).unwrap();
    }
    file
}

/// A frame, and the moment at which it arrives.
type Frame = (Instant, Vec<u8>);

/// Moves frames between the devices until they are gone.
fn switch(taps: Vec<File>, settings: &Arc<Mutex<Settings>>) {
    let known: Arc<Mutex<BTreeMap<[u8; 6], usize>>> = Arc::default();
    let mut writers: Vec<Sender<Frame>> = Vec::new();
    for tap in &taps {
        let (sender, frames) = channel::<Frame>();
        let mut tap = tap.try_clone().unwrap();
        std::thread::spawn(move || {
            for (at, frame) in frames {
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                // A device that is down loses the frame, as a cable does.
                let _ = tap.write(&frame);
            }
        });
        writers.push(sender);
    }
    for (from, mut tap) in taps.into_iter().enumerate() {
        let (known, settings, writers) = (Arc::clone(&known), Arc::clone(settings), writers.clone());
        std::thread::spawn(move || {
            let (mut bytes, mut free) = (vec![0; 65_536], Instant::now());
            while let Ok(len) = tap.read(&mut bytes) {
                let frame = &bytes[..len];
                let Some((to, sender)) = addresses(frame) else { continue };
                let set = settings.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let to = {
                    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                    known.insert(sender, from);
                    known.get(&to).copied()
                };
                if set.only_ssh && !is_passed(frame) {
                    continue;
                }
                free = free.max(Instant::now());
                if let Some(rate) = set.rate {
                    free += Duration::from_secs_f64(len as f64 / rate);
                }
                for (port, writer) in writers.iter().enumerate() {
                    let goes = port != from && to.is_none_or(|to| to == port);
                    if goes && set.side[port] == set.side[from] {
                        let _ = writer.send((free + set.delay, frame.to_vec()));
                    }
                }
            }
        });
    }
}

/// Returns the addresses to which and from which a frame goes.
fn addresses(frame: &[u8]) -> Option<([u8; 6], [u8; 6])> {
    Some((frame.get(..6)?.try_into().ok()?, frame.get(6..12)?.try_into().ok()?))
}

/// Returns whether a firewall that knows ssh alone passes a frame: it drops other TCP.
fn is_passed(frame: &[u8]) -> bool {
    const IPV4: [u8; 2] = [8, 0];
    const TCP: u8 = 6;
    if frame.get(12..14) != Some(&IPV4) || frame.get(23) != Some(&TCP) {
        return true;
    }
    let start = 14 + 4 * usize::from(frame[14] & 15);
    let port = |at: usize| frame.get(at..at + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    port(start) == Some(SSH) || port(start + 2) == Some(SSH)
}
