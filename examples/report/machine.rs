//! The part `machine`: an adapter, its limits, its numeric class, and what the system tells of it, as JSON.

use std::fs;
use std::io::{Write, stdout};
use std::path::Path;
use std::process::{Command, ExitCode};

use clap::Parser;
use serde_json::{Value, json};
use unisono::gpu::{Adapter, Arithmetic, select};
use unisono_examples::{Error, program};

#[derive(Parser)]
pub struct Flags {
    /// The adapter
    #[arg(long, value_name = "NAME")]
    adapter: String,
}

pub fn main() -> ExitCode {
    program(tell)
}

fn tell(flags: Flags) -> Result<(), Error> {
    let adapter = select(&[flags.adapter])?.swap_remove(0);
    let (class, same) = classes(&adapter)?;
    let limits = &adapter.limits;
    let facts = json!({
        "adapter": {
            "name": adapter.name, "backend": adapter.backend.to_string(), "kind": adapter.kind.to_string(),
            "driver": format!("{} {}", adapter.driver, adapter.driver_info).trim(),
            "vendor": format!("{:#06x}", adapter.vendor), "device": format!("{:#06x}", adapter.device),
            "pci_bus": adapter.pci_bus,
        },
        "limits": {
            "buffer_bytes": limits.buffer_bytes, "binding_bytes": limits.storage_binding_bytes,
            "bindings": limits.storage_buffers, "workgroups": limits.workgroups,
            "invocations": limits.invocations, "workgroup_bytes": limits.workgroup_bytes,
            "subgroup": [limits.subgroup.0, limits.subgroup.1],
        },
        "features": { "f16": adapter.features.f16, "subgroups": adapter.features.subgroups },
        "class": class,
        "cpus_of_the_same_class": same,
        "link": link(&adapter.pci_bus),
        "system": system(),
    });
    Ok(writeln!(stdout(), "{facts}")?)
}

/// Returns the numeric class, and which arithmetics of the CPU are of the same.
fn classes(adapter: &Adapter) -> Result<(Value, Vec<String>), Error> {
    let class = unisono::probe(adapter)?;
    let is_same = |arithmetic: &Arithmetic| {
        let cpu = Adapter::cpu(*arithmetic).and_then(|cpu| unisono::probe(&cpu).ok());
        cpu.is_some_and(|cpu| cpu.is_same(&class))
    };
    let same = Arithmetic::distinct(false).filter(is_same).map(|cpu| format!("cpu:{}", cpu.name()));
    let digest = class.digest.to_string()[..16].to_owned();
    let value =
        json!({ "rounding": class.rounding.name(), "digest": digest, "is_portable": class.is_portable });
    Ok((value, same.collect()))
}

/// Returns what Linux tells of the PCI Express link and of the memory on it.
fn link(bus: &str) -> Value {
    let dir = Path::new("/sys/bus/pci/devices").join(bus);
    let read = |name: &str| fs::read_to_string(dir.join(name)).ok().map(|text| text.trim().to_owned());
    json!({
        "speed": read("current_link_speed"), "width": read("current_link_width"),
        "most_speed": read("max_link_speed"), "most_width": read("max_link_width"),
        "memory": read("mem_info_vram_total"),
    })
}

/// Returns the host's CPU, cores, memory and system, and what NVIDIA's tool tells.
fn system() -> Value {
    let of = |path: &str, key: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let query = "name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max,clocks.max.sm,\
                 power.limit";
    let asked = Command::new("nvidia-smi").args([&format!("--query-gpu={query}"), "--format=csv"]).output();
    let nvidia = asked.ok().filter(|output| output.status.success());
    json!({
        "os": std::env::consts::OS, "arch": std::env::consts::ARCH,
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "cpu": of("/proc/cpuinfo", "model name"), "memory": of("/proc/meminfo", "MemTotal"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "nvidia_smi": nvidia.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()),
    })
}
