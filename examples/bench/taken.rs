//! The device memory that this process takes, as the system tells it.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};
use unisono::gpu::{Adapter, Kind};

/// Memory that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The number of bytes.
    pub bytes: u64,
    /// Who says so, and what exactly.
    pub by: String,
}

/// Memory that was taken before what is measured began.
pub struct Watch {
    source: Option<(Source, u64)>,
}

/// Where a number of bytes is read.
enum Source {
    /// What Linux tells of the process's open GPUs, for drivers that are part of the kernel.
    Kernel,
    /// What NVIDIA's tool tells of a GPU, by its PCI bus id. It counts other processes too.
    Nvidia(String),
    /// The most memory of the host that the process had, where the adapter is a CPU.
    Host,
}

impl Source {
    fn read(&self) -> Option<u64> {
        match self {
            Self::Kernel => {
                let files = fs::read_dir("/proc/self/fdinfo").ok()?;
                of_clients(files.flatten().filter_map(|file| fs::read_to_string(file.path()).ok()))
            }
            Self::Nvidia(bus) => {
                let query = ["--query-gpu=pci.bus_id,memory.used", "--format=csv,noheader,nounits"];
                let output = Command::new("nvidia-smi").args(query).output().ok()?;
                of_bus(&String::from_utf8_lossy(&output.stdout), bus)
            }
            Self::Host => {
                let status = fs::read_to_string("/proc/self/status").ok()?;
                let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
                Some(1024 * line.split_whitespace().next()?.parse::<u64>().ok()?)
            }
        }
    }

    fn says(&self) -> &'static str {
        match self {
            Self::Kernel => "Linux, of this process",
            Self::Nvidia(_) => "nvidia-smi, of the GPU",
            Self::Host => "Linux, most host memory of this process",
        }
    }
}

impl Watch {
    /// Reads what is taken now, from the first source that knows the adapter's memory.
    pub fn begin(adapter: &Adapter) -> Self {
        if adapter.kind == Kind::Cpu {
            // From here on the most is that of what is measured.
            fs::write("/proc/self/clear_refs", "5").unwrap_or_default();
            return Self { source: Source::Host.read().map(|bytes| (Source::Host, bytes)) };
        }
        let nvidia = Source::Nvidia(adapter.pci_bus.clone());
        match nvidia.read() {
            Some(bytes) => Self { source: Some((nvidia, bytes)) },
            // A driver of the kernel's tells nothing before the process has the GPU open.
            None => Self { source: Some((Source::Kernel, Source::Kernel.read().unwrap_or(0))) },
        }
    }

    /// Returns the bytes that were taken since, or `None` if the system does not tell.
    pub fn end(&self) -> Option<Taken> {
        let (source, before) = self.source.as_ref()?;
        Some(Taken { bytes: source.read()?.saturating_sub(*before), by: source.says().to_owned() })
    }
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
    Some(
        number
            << match words.next() {
                Some("KiB") => 10,
                Some("MiB") => 20,
                _ => 0,
            },
    )
}

/// Returns the bytes of the line of a PCI bus in `00000000:65:00.0, 1234`, in MiB. If there is one line, the
/// bus does not matter, because some drivers tell none.
fn of_bus(csv: &str, bus: &str) -> Option<u64> {
    let lines: Vec<(&str, &str)> = csv.lines().filter_map(|line| line.split_once(',')).collect();
    let ends = |own: &str| own.to_lowercase().trim_start_matches('0').to_owned();
    let is_own = |own: &str| !bus.is_empty() && ends(own.trim()) == ends(bus);
    let (_, mib) =
        lines.iter().find(|(own, _)| is_own(own)).or(lines.first().filter(|_| lines.len() == 1))?;
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
        assert_eq!(of_bus("", "0000:b3:00.0"), None);
    }
}
