//! What probes found, kept for each adapter, driver and version of the arithmetic.

use unisono_gpu::{Adapter, Backend, Cache, is_unprotected};

use super::{ARITHMETIC, Class, PROBE, Rounding, has_version, machine};
use crate::Digest;

/// Returns the user's cache of what probes found.
pub(super) fn of_user() -> Cache {
    Cache::of_user("probes")
}

/// Returns what a probe of the same adapter, driver and arithmetic found.
pub(super) fn read(cache: &Cache, adapter: &Adapter) -> Option<Class> {
    if !tells_compiler(adapter) {
        return None;
    }
    let machine = machine(adapter);
    let text = cache.read(&title(&machine))?;
    let (rounding, digest) = text.trim_end().split_once('\n')?;
    let rounding = Rounding::ALL.into_iter().find(|known| known.name() == rounding)?;
    let digest = Digest::parse(digest)?;
    Some(Class { machine, rounding, is_portable: !is_unprotected(), by_unit: adapter.unit.is_some(), digest })
}

/// Keeps what a probe found.
pub(super) fn write(cache: &Cache, adapter: &Adapter, class: &Class) {
    if tells_compiler(adapter) {
        cache.write(&title(&class.machine), &format!("{}\n{}\n", class.rounding.name(), class.digest));
    }
}

/// Returns whether an adapter's description changes with its compiler. With DX12 the compiler is none of the
/// driver: it is `dxcompiler.dll`, of whatever version, if there is one, and otherwise the system's own.
pub(super) fn tells_compiler(adapter: &Adapter) -> bool {
    adapter.backend != Backend::Dx12 && has_version(adapter)
}

/// Returns what a result holds for: the machine, this crate, its arithmetic and its probe.
pub(super) fn title(machine: &str) -> String {
    format!("{machine}, unisono {}, arithmetic {ARITHMETIC}, probe {PROBE}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(adapter: &Adapter) -> Class {
        let mut digest = Digest::default();
        digest.update(b"bits");
        Class {
            machine: machine(adapter),
            rounding: Rounding::Split,
            is_portable: true,
            by_unit: false,
            digest,
        }
    }

    #[test]
    fn a_result_is_read_again_for_the_same_machine_alone() {
        let adapter = unisono_gpu::adapters(&[]).pop().expect("no adapter");
        let folder = std::env::temp_dir().join(format!("unisono-probes-{}", std::process::id()));
        let cache = Cache::at(&folder);
        assert_eq!(read(&cache, &adapter), None);
        let class = class(&adapter);
        write(&cache, &adapter, &class);
        assert_eq!(read(&cache, &adapter), Some(class));
        cache.write(&title(&machine(&adapter)), "split\nno digest\n");
        assert_eq!(read(&cache, &adapter), None);
        let newer = Adapter { driver_info: "another version".into(), ..adapter };
        assert_eq!(read(&cache, &newer), None);
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// A system may be updated between two runs, and its compiler with it.
    #[test]
    fn nothing_is_kept_of_an_adapter_that_does_not_tell_its_compiler() {
        let adapter = unisono_gpu::adapters(&[]).pop().expect("no adapter");
        let folder = std::env::temp_dir().join(format!("unisono-nameless-probes-{}", std::process::id()));
        let cache = Cache::at(&folder);
        let silent = Adapter { driver: String::new(), driver_info: " ".into(), ..adapter.clone() };
        let dx12 = Adapter { backend: Backend::Dx12, ..adapter };
        for adapter in [silent, dx12] {
            write(&cache, &adapter, &class(&adapter));
            assert!(!folder.exists());
            assert_eq!(read(&cache, &adapter), None);
        }
    }
}
