//! What probes found, kept in a file for each adapter, driver and version of the arithmetic.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use unisono_gpu::{Adapter, Backend, is_unprotected};

use super::{ARITHMETIC, Class, PROBE, Rounding, has_version, machine};
use crate::Digest;

/// The most bytes of a file.
const LONGEST: u64 = 1 << 16;

/// The files of what probes found.
pub(super) struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// Returns the user's cache: `UNISONO_CACHE`, or `unisono` in the system's folder for caches. An empty
    /// `UNISONO_CACHE` stands for none.
    pub fn of_user() -> Self {
        let given = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let system = || {
            let home = given("HOME").map(|home| home.join(".cache"));
            let folder = given("XDG_CACHE_HOME").or_else(|| given("LOCALAPPDATA")).or(home);
            folder.map(|folder| folder.join("unisono"))
        };
        let folder = if env::var_os("UNISONO_CACHE").is_some() { given("UNISONO_CACHE") } else { system() };
        Self { folder: folder.map(|folder| folder.join("probes")) }
    }

    /// Returns a cache in a folder.
    #[cfg(test)]
    pub fn at(folder: &Path) -> Self {
        Self { folder: Some(folder.to_owned()) }
    }

    /// Returns what a probe of the same adapter, driver and arithmetic found.
    pub fn read(&self, adapter: &Adapter) -> Option<Class> {
        if !tells_compiler(adapter) {
            return None;
        }
        let machine = machine(adapter);
        let text = read(&self.file(&machine)?)?;
        let mut lines = text.lines();
        // Names of files are digests. The text itself says whose it is.
        let (own, rounding, digest) = (lines.next()?, lines.next()?, lines.next()?);
        let rounding = Rounding::ALL.into_iter().find(|known| known.name() == rounding)?;
        let digest = Digest::parse(digest)?;
        let is_portable = !is_unprotected();
        (own == title(&machine)).then_some(Class { machine, rounding, is_portable, digest })
    }

    /// Keeps what a probe found. A cache that cannot be written is none.
    pub fn write(&self, adapter: &Adapter, class: &Class) {
        if !tells_compiler(adapter) {
            return;
        }
        let Some(file) = self.file(&class.machine) else { return };
        let Some(folder) = file.parent() else { return };
        let text = format!("{}\n{}\n{}\n", title(&class.machine), class.rounding.name(), class.digest);
        // Written beside its place and renamed, so that nobody reads a half of it.
        let half = folder.join(format!("{}.new", std::process::id()));
        // Created anew, so that no link that somebody has put there is followed.
        let create = || fs::OpenOptions::new().write(true).create_new(true).open(&half);
        let written = fs::create_dir_all(folder).and_then(|()| create()?.write_all(text.as_bytes()));
        if written.and_then(|()| fs::rename(&half, &file)).is_err() {
            _ = fs::remove_file(&half);
        }
    }

    fn file(&self, machine: &str) -> Option<PathBuf> {
        let mut digest = Digest::default();
        digest.update(title(machine).as_bytes());
        Some(self.folder.as_deref()?.join(format!("{digest:.32}")))
    }
}

/// Returns whether an adapter's description changes with its compiler. With DX12 the compiler is none of the
/// driver: it is `dxcompiler.dll`, of whatever version, if there is one, and otherwise the system's own.
fn tells_compiler(adapter: &Adapter) -> bool {
    adapter.backend != Backend::Dx12 && has_version(adapter)
}

/// Reads a regular file that is as short as the cache's are. Anything else, such as a pipe, which would be
/// waited for, is no file of the cache.
fn read(file: &Path) -> Option<String> {
    let is_short = |found: fs::Metadata| found.is_file() && found.len() <= LONGEST;
    if !is_short(fs::metadata(file).ok()?) {
        return None;
    }
    let mut text = String::new();
    fs::File::open(file).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns what a file's result holds for: the machine, this crate, its arithmetic and its probe.
fn title(machine: &str) -> String {
    format!("{machine}, unisono {}, arithmetic {ARITHMETIC}, probe {PROBE}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_again_for_the_same_machine_alone() {
        let adapter = unisono_gpu::adapters(&[]).pop().expect("no adapter");
        let folder = env::temp_dir().join(format!("unisono-probes-{}", std::process::id()));
        let cache = Cache::at(&folder);
        assert_eq!(cache.read(&adapter), None);
        let mut digest = Digest::default();
        digest.update(b"bits");
        let class =
            Class { machine: machine(&adapter), rounding: Rounding::Split, is_portable: true, digest };
        cache.write(&adapter, &class);
        assert_eq!(cache.read(&adapter), Some(class));
        let newer = Adapter { driver_info: "another version".into(), ..adapter };
        assert_eq!(cache.read(&newer), None);
        fs::remove_dir_all(folder).unwrap();
    }

    /// A system may be updated between two runs, and its compiler with it.
    #[test]
    fn nothing_is_kept_of_an_adapter_that_does_not_tell_its_compiler() {
        let adapter = unisono_gpu::adapters(&[]).pop().expect("no adapter");
        let folder = env::temp_dir().join(format!("unisono-nameless-probes-{}", std::process::id()));
        let cache = Cache::at(&folder);
        let silent = Adapter { driver: String::new(), driver_info: " ".into(), ..adapter.clone() };
        let dx12 = Adapter { backend: Backend::Dx12, ..adapter };
        for adapter in [silent, dx12] {
            let digest = Digest::default();
            let class =
                Class { machine: machine(&adapter), rounding: Rounding::Split, is_portable: true, digest };
            cache.write(&adapter, &class);
            assert!(!folder.exists());
            assert_eq!(cache.read(&adapter), None);
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_short_file_is_passed_by() {
        let adapter = unisono_gpu::adapters(&[]).pop().expect("no adapter");
        let folder = env::temp_dir().join(format!("unisono-planted-probes-{}", std::process::id()));
        let cache = Cache::at(&folder);
        let file = cache.file(&machine(&adapter)).unwrap();
        fs::create_dir_all(&folder).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        assert_eq!(cache.read(&adapter), None);
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        assert_eq!(cache.read(&adapter), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
