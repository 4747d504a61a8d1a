//! What probes found, kept in a file for each adapter, driver and version of the arithmetic.

use std::env;
use std::fs;
use std::io::Write;
#[cfg(test)]
use std::path::Path;
use std::path::PathBuf;

use unisono_gpu::{Adapter, is_unprotected};

use super::{ARITHMETIC, Class, PROBE, Rounding, machine};
use crate::Digest;

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
        let machine = machine(adapter);
        let text = fs::read_to_string(self.file(&machine)?).ok()?;
        let mut lines = text.lines();
        // Names of files are digests. The text itself says whose it is.
        let (own, rounding, digest) = (lines.next()?, lines.next()?, lines.next()?);
        let rounding = Rounding::ALL.into_iter().find(|known| known.name() == rounding)?;
        let digest = Digest::parse(digest)?;
        let is_portable = !is_unprotected();
        (own == title(&machine)).then_some(Class { machine, rounding, is_portable, digest })
    }

    /// Keeps what a probe found. A cache that cannot be written is none.
    pub fn write(&self, class: &Class) {
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

/// Returns what a file's result holds for: the machine, this crate, its arithmetic and its probe.
fn title(machine: &str) -> String {
    format!("{machine}, unisono {}, arithmetic {ARITHMETIC}, probe {PROBE}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_again_for_the_same_machine_alone() {
        let Some(adapter) = unisono_gpu::adapters(&[]).pop() else { return };
        let folder = env::temp_dir().join(format!("unisono-probes-{}", std::process::id()));
        let cache = Cache::at(&folder);
        assert_eq!(cache.read(&adapter), None);
        let mut digest = Digest::default();
        digest.update(b"bits");
        let class =
            Class { machine: machine(&adapter), rounding: Rounding::Split, is_portable: true, digest };
        cache.write(&class);
        assert_eq!(cache.read(&adapter), Some(class));
        let newer = Adapter { driver_info: "another version".into(), ..adapter };
        assert_eq!(cache.read(&newer), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
