//! What was found out about adapters, in files of the user's, so that the next process need not ask again.

use std::env;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// The most bytes of a file.
const LONGEST: u64 = 1 << 16;

/// A folder of short texts, each under a title of one line that says all that the text depends on. A folder
/// that cannot be read has none, and one that cannot be written keeps none.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// Returns the folder of this name in the user's cache: `UNISONO_CACHE`, or `unisono` in the system's
    /// folder for caches. An empty `UNISONO_CACHE` stands for none.
    pub fn of_user(name: &str) -> Self {
        let given = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let system = || {
            let home = given("HOME").map(|home| home.join(".cache"));
            let folder = given("XDG_CACHE_HOME").or_else(|| given("LOCALAPPDATA")).or(home);
            folder.map(|folder| folder.join("unisono"))
        };
        let folder = if env::var_os("UNISONO_CACHE").is_some() { given("UNISONO_CACHE") } else { system() };
        Self { folder: folder.map(|folder| folder.join(name)) }
    }

    /// Returns a cache in this folder, which need not be there.
    pub fn at(folder: &Path) -> Self {
        Self { folder: Some(folder.to_owned()) }
    }

    /// Returns the text under this title, or `None` if there is none.
    pub fn read(&self, title: &str) -> Option<String> {
        let whole = read(&self.file(title)?)?;
        // The title itself stands in front, since names of files are hashes.
        let (own, text) = whole.split_once('\n')?;
        (own == title).then(|| text.to_owned())
    }

    /// Keeps a text under this title.
    pub fn write(&self, title: &str, text: &str) {
        let Some(file) = self.file(title) else { return };
        let Some(folder) = file.parent() else { return };
        // Written beside its place and renamed, so that nobody reads a half of it.
        let half = folder.join(half_name());
        // Created anew, so that no link that somebody has put there is followed.
        let create = || fs::OpenOptions::new().write(true).create_new(true).open(&half);
        let Ok(mut created) = fs::create_dir_all(folder).and_then(|()| create()) else { return };
        let written = created.write_all(format!("{title}\n{text}").as_bytes());
        if written.and_then(|()| fs::rename(&half, &file)).is_err() {
            _ = fs::remove_file(&half);
        }
    }

    /// Returns the file of a title: its 64-bit FNV-1a hash.
    fn file(&self, title: &str) -> Option<PathBuf> {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = title.bytes().fold(0xcbf2_9ce4_8422_2325, step);
        Some(self.folder.as_deref()?.join(format!("{hash:016x}")))
    }
}

/// Returns a name for a file that is being written. No other thread or process has it, even if containers
/// that share a volume have equal process ids.
fn half_name() -> String {
    // Every `RandomState` has its own random keys.
    format!("{}-{:016x}.new", std::process::id(), RandomState::new().hash_one(0))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        env::temp_dir().join(format!("unisono-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_text_is_read_again_under_its_own_title_alone() {
        let folder = folder("cache");
        let cache = Cache::at(&folder);
        assert_eq!(cache.read("one"), None);
        cache.write("one", "a\nb\n");
        cache.write("two", "");
        assert_eq!(cache.read("one").as_deref(), Some("a\nb\n"));
        assert_eq!(cache.read("two").as_deref(), Some(""));
        cache.write("one", "c");
        assert_eq!(cache.read("one").as_deref(), Some("c"));
        // A file whose name is that of another title.
        fs::rename(cache.file("one").unwrap(), cache.file("three").unwrap()).unwrap();
        assert_eq!([cache.read("one"), cache.read("three")], [None, None]);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "nothing but the two texts");
        fs::remove_dir_all(folder).unwrap();
    }

    /// Threads of one process, as those of several containers on one volume, may have the same process id.
    #[test]
    fn several_write_at_the_same_time() {
        assert_ne!(half_name(), half_name());
        let folder = folder("crowded-cache");
        std::thread::scope(|scope| {
            for number in 0..8 {
                let cache = Cache::at(&folder);
                scope.spawn(move || {
                    for turn in 0..20 {
                        let title = format!("{number} {turn}");
                        cache.write(&title, &title);
                        assert_eq!(cache.read(&title), Some(title));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 160);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_cache_that_is_nowhere_keeps_nothing() {
        let cache = Cache { folder: None };
        cache.write("one", "a");
        assert_eq!(cache.read("one"), None);
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_short_file_is_passed_by() {
        let folder = folder("planted-cache");
        let cache = Cache::at(&folder);
        let file = cache.file("one").unwrap();
        fs::create_dir_all(&folder).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        assert_eq!(cache.read("one"), None);
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        assert_eq!(cache.read("one"), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
