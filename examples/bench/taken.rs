//! The device memory that this process takes, as the system tells it.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};
use unisono::gpu::{Adapter, Kind};

/// The vendor number of NVIDIA.
const NVIDIA: u32 = 0x10de;

/// Memory that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The number of bytes.
    pub bytes: u64,
    /// Who says so, and what exactly.
    pub by: String,
}

/// The memory that was taken before a measurement, by each source that tells.
pub struct Watch {
    /// The host's memory of this process, in bytes.
    host: Option<u64>,
    /// The output of `nvidia-smi`.
    nvidia: Option<String>,
    /// The GPU memory of this process, in bytes, from drivers that are part of the kernel.
    kernel: Option<u64>,
}

impl Watch {
    /// Reads what is taken now. Starts `nvidia-smi` if it is installed.
    pub fn begin() -> Self {
        // Linux counts the largest amount from here on.
        fs::write("/proc/self/clear_refs", "5").unwrap_or_default();
        Self { host: of_host(), nvidia: nvidia_smi(), kernel: of_kernel() }
    }

    /// Returns the bytes of the adapter's memory that were taken since, or `None` if the system does not
    /// tell.
    pub fn end(&self, adapter: &Adapter) -> Option<Taken> {
        let (now, before, by) = if adapter.kind == Kind::Cpu {
            (of_host()?, self.host?, "Linux, most host memory of this process")
        } else if adapter.vendor == NVIDIA
            && let Some(before) = self.nvidia.as_deref().and_then(|csv| of_bus(csv, &adapter.pci_bus))
        {
            (of_bus(&nvidia_smi()?, &adapter.pci_bus)?, before, "nvidia-smi, of the GPU")
        } else {
            // Such a driver tells nothing until the process has the GPU open.
            (of_kernel()?, self.kernel.unwrap_or(0), "Linux, of this process")
        };
        Some(Taken { bytes: now.saturating_sub(before), by: by.to_owned() })
    }
}

/// Returns the largest amount of host memory that this process had.
fn of_host() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(1024 * line.split_whitespace().next()?.parse::<u64>().ok()?)
}

/// Returns the used memory of each NVIDIA GPU by its PCI bus id. It includes that of other processes.
fn nvidia_smi() -> Option<String> {
    let query = ["--query-gpu=pci.bus_id,memory.used", "--format=csv,noheader,nounits"];
    let output = Command::new("nvidia-smi").args(query).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn of_kernel() -> Option<u64> {
    let files = fs::read_dir("/proc/self/fdinfo").ok()?;
    of_clients(files.flatten().filter_map(|file| fs::read_to_string(file.path()).ok()))
}

/// Returns the bytes of GPU memory in texts of `/proc/PID/fdinfo` (the kernel's `drm-usage-stats`), each
/// client counted once, or `None` if no driver tells.
fn of_clients(texts: impl Iterator<Item = String>) -> Option<u64> {
    let mut seen = Vec::new();
    let mut all = None;
    for text in texts {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
            Some(line.trim().to_owned())
        };
        let Some(client) = value("drm-client-id").filter(|client| !seen.contains(client)) else { continue };
        // A region is named once in each form, and drivers differ in which forms they have.
        let regions =
            ["drm-total-vram", "drm-total-vram0", "drm-memory-vram", "drm-total-gtt", "drm-memory-gtt"];
        let Some(bytes) = regions.into_iter().find_map(|region| bytes_of(&value(region)?)) else { continue };
        seen.push(client);
        *all.get_or_insert(0) += bytes;
    }
    all
}

/// Returns the bytes of `12 MiB`, `12 KiB` or `12`.
fn bytes_of(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    let power = match words.next() {
        Some("KiB") => 10,
        Some("MiB") => 20,
        _ => 0,
    };
    Some(number << power)
}

/// Returns the bytes of the GPU at a PCI bus. A line is `00000000:65:00.0, 1234`: the bus, and MiB. Some
/// drivers do not tell the bus (it is empty); then a single line is taken.
fn of_bus(csv: &str, bus: &str) -> Option<u64> {
    let lines: Vec<(&str, &str)> = csv.lines().filter_map(|line| line.split_once(',')).collect();
    let ends = |own: &str| own.to_lowercase().trim_start_matches('0').to_owned();
    let is_own = |own: &str| match bus.is_empty() {
        true => lines.len() == 1,
        false => ends(own.trim()) == ends(bus),
    };
    let (_, mib) = lines.iter().find(|(own, _)| is_own(own))?;
    Some(mib.trim().parse::<u64>().ok()? << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_of_a_kernel_driver_counts_once() {
        let amd =
            "drm-driver:\tamdgpu\ndrm-client-id:\t7\ndrm-memory-vram:\t2048 KiB\ndrm-memory-gtt:\t9 KiB\n";
        let intel = "drm-driver:\txe\ndrm-client-id:\t8\ndrm-total-vram0:\t3 MiB\n";
        let texts = [amd, amd, intel, "pos:\t0\n"].map(str::to_owned);
        assert_eq!(of_clients(texts.into_iter()), Some(5 << 20));
        assert_eq!(of_clients(["pos:\t0\n".to_owned()].into_iter()), None);
    }

    #[test]
    fn the_gpu_of_a_bus_is_found() {
        let two = "00000000:65:00.0, 1234\n00000000:B3:00.0, 7\n";
        assert_eq!(of_bus(two, "0000:b3:00.0"), Some(7 << 20));
        assert_eq!(of_bus(two, ""), None);
        assert_eq!(of_bus("00000000:65:00.0, 1234\n", ""), Some(1234 << 20));
        assert_eq!(of_bus("00000000:65:00.0, 1234\n", "0000:b3:00.0"), None);
        assert_eq!(of_bus("", "0000:b3:00.0"), None);
    }
}
