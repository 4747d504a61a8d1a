//! The file operations that checkpoints are made of, and files that are complete or not there.

#[cfg(unix)]
mod anchored;
pub(crate) mod listed;
mod systems;
pub(crate) mod temporary;
pub(crate) mod write;

use std::fmt;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use crate::tensors::bytes::FileBytes;
use crate::tensors::regular::{is_at, open_regular, open_to_lock, read_at_most, read_file, too_long};

/// The number of bytes written or read at once.
const BLOCK: usize = 1 << 20;

/// A file system, operation by operation, so that tests can count operations, fail them or lose them.
///
/// Nothing is durable before it is synced. A file's bytes are synced by [`Sink::sync`]. That it exists under
/// its name, was renamed or was removed is synced by [`Disk::sync_dir`] of its directory.
///
/// The kinds of errors matter: a name that is not there is `NotFound`, and what is not a regular file of the
/// expected size is `InvalidInput`, `IsADirectory`, `NotADirectory`, `FileTooLarge` or `UnexpectedEof`. Any
/// other kind counts as a failure that may pass.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Opens the directory that is at the path now, so that what is done below it happens there, whatever
    /// takes its place by name. Returns the disk to do it with, or `None` if there is none. A link at the
    /// path is an error, unless it `may_be_link`. Default: there is none.
    fn anchored(&self, _dir: &Path, _may_be_link: bool) -> io::Result<Option<Arc<dyn Disk>>> {
        Ok(None)
    }

    /// Opens the file by which a run's directory is locked, and makes it if nothing has the name. Anything
    /// but a regular file is an error. Default: the file of the machine's own file system.
    fn lock_file(&self, file: &Path) -> io::Result<File> {
        open_to_lock(file)
    }

    /// Whether a file that [`Disk::lock_file`] has opened is still the one that a second run would open,
    /// which it is not if the directory was removed or moved. A disk that opens a file of its own must
    /// implement this, or no save succeeds. Default: whether it is the file that the machine's own file
    /// system has at the path.
    fn is_lock_file(&self, held: &File, file: &Path) -> bool {
        is_at(held, file)
    }

    /// Makes one directory. Its parent must exist.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Makes a new file. If anything has the name, a link that leads nowhere included, that is an error, and
    /// nothing is opened or followed.
    fn create(&self, file: &Path) -> io::Result<Box<dyn Sink>>;
    /// Makes the entries of a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Moves a file or directory within its parent, at one instant. It replaces a file, but never a
    /// directory.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file, or a directory with all it holds. It is no error if nothing is there.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Returns a number for the name of a temporary file, which nobody can guess and which does not come
    /// again. Default: 64 bits that follow from the system's random numbers.
    fn token(&self) -> u64 {
        RandomState::new().build_hasher().finish()
    }

    /// Whether there is a directory at the path.
    fn is_dir(&self, path: &Path) -> bool;
    /// Whether there is a symbolic link at the path. Default: there are none.
    fn is_link(&self, _path: &Path) -> bool {
        false
    }
    /// Returns the names in a directory, in any order. Names that are not UTF-8 are left out.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Returns the length of a regular file in bytes. Anything else is an error.
    fn size(&self, file: &Path) -> io::Result<u64>;
    /// Reads a whole regular file. Anything else is an error, and is not waited for.
    fn read(&self, file: &Path) -> io::Result<Vec<u8>>;
    /// Reads a regular file that may have at most so many bytes. A longer one is an error of the kind
    /// [`ErrorKind::FileTooLarge`], and at most one byte more than the limit is read of it.
    fn read_at_most(&self, file: &Path, limit: u64) -> io::Result<Vec<u8>> {
        if self.size(file)? > limit {
            return Err(too_long(limit));
        }
        self.read(file)
    }
    /// Opens a whole file, which need not be read before it is looked at.
    fn open(&self, file: &Path) -> io::Result<FileBytes> {
        self.read(file).map(FileBytes::from)
    }
    /// Reads a whole file, piece by piece.
    fn stream(&self, file: &Path, piece: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        self.read(file).map(|bytes| piece(&bytes))
    }
}

/// A file being written.
pub trait Sink: Write {
    /// Begins to make durable what was written, and closes the file. It is not durable before
    /// [`Syncing::wait`] has returned.
    fn sync(self: Box<Self>) -> Syncing;
}

/// A file on its way to the disk, while the next one is written.
#[must_use = "nothing is durable before it was waited for"]
pub struct Syncing(Box<dyn FnOnce() -> io::Result<()>>);

impl Syncing {
    /// Creates the handle of a file from the work that makes it durable.
    pub fn new(rest: impl FnOnce() -> io::Result<()> + 'static) -> Self {
        Self(Box::new(rest))
    }

    /// Waits until the file is durable.
    ///
    /// # Errors
    /// The file could not be made durable.
    pub fn wait(self) -> io::Result<()> {
        (self.0)()
    }
}

impl fmt::Debug for Syncing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Syncing")
    }
}

/// The machine's own file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct StdDisk;

impl Disk for StdDisk {
    #[cfg(unix)]
    fn anchored(&self, dir: &Path, may_be_link: bool) -> io::Result<Option<Arc<dyn Disk>>> {
        Ok(Some(Arc::new(anchored::Anchored::open(dir, may_be_link)?)))
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir(dir)
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn Sink>> {
        Ok(sink(File::options().write(true).create_new(true).open(file)?))
    }

    /// Syncs a directory. Only Unix can do that, and not on every file system; where it cannot be done,
    /// saving goes on without it.
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if cfg!(not(unix)) {
            return Ok(());
        }
        if !fs::metadata(dir)?.is_dir() {
            return Err(ErrorKind::NotADirectory.into());
        }
        sync_opened(&File::open(dir)?)
    }

    /// Renames. On Windows it tries again for some seconds while the files are in use, which a directory in
    /// the new place is not.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        #[cfg(windows)]
        if !to.is_dir() {
            return systems::patiently(|| fs::rename(from, to), thread::sleep);
        }
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let removed = match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(path),
            Ok(_) => fs::remove_file(path),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    fn is_dir(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn is_link(&self, path: &Path) -> bool {
        path.is_symlink()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(io::Result::transpose).collect()
    }

    fn size(&self, file: &Path) -> io::Result<u64> {
        match fs::metadata(file)? {
            found if found.is_file() => Ok(found.len()),
            _ => Err(io::Error::new(ErrorKind::InvalidInput, "no regular file")),
        }
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        read_file(open_regular(file)?)
    }

    fn read_at_most(&self, file: &Path, limit: u64) -> io::Result<Vec<u8>> {
        read_at_most(file, limit)
    }

    /// Maps the file into memory.
    fn open(&self, file: &Path) -> io::Result<FileBytes> {
        FileBytes::map(file)
    }

    fn stream(&self, file: &Path, piece: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        stream_file(open_regular(file)?, piece)
    }
}

/// Returns the writer of a new file.
fn sink(new: File) -> Box<dyn Sink> {
    Box::new(StdSink(BufWriter::with_capacity(BLOCK, new)))
}

/// Syncs an open directory, where the file system can do that.
fn sync_opened(dir: &File) -> io::Result<()> {
    match sync_file(dir) {
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        #[cfg(target_vendor = "apple")]
        Err(error) if systems::is_without(&error) => Ok(()),
        result => result,
    }
}

/// Syncs an open file. On Apple's systems that is a sync down to the platter (`F_FULLFSYNC`), or a plain one
/// where the file system has no other.
fn sync_file(file: &File) -> io::Result<()> {
    #[cfg(target_vendor = "apple")]
    {
        systems::synced(file.sync_all(), || Ok(rustix::fs::fsync(file)?))
    }
    #[cfg(not(target_vendor = "apple"))]
    {
        file.sync_all()
    }
}

/// Reads an open file, piece by piece.
fn stream_file(file: File, piece: &mut dyn FnMut(&[u8])) -> io::Result<()> {
    let length = file.metadata()?.len();
    let mut block = vec![0; usize::try_from(length).unwrap_or(BLOCK).clamp(1, BLOCK)];
    let mut file = file.take(length);
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(read) => piece(&block[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

struct StdSink(BufWriter<File>);

impl Write for StdSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Sink for StdSink {
    /// Syncs on a new thread, or here and now if no thread can be started.
    fn sync(self: Box<Self>) -> Syncing {
        let file = match self.0.into_inner() {
            Ok(file) => Arc::new(file),
            Err(error) => return Syncing::new(|| Err(error.into_error())),
        };
        let theirs = Arc::clone(&file);
        match thread::Builder::new().name("sync".into()).spawn(move || sync_file(&theirs)) {
            Ok(syncing) => Syncing::new(|| {
                syncing.join().unwrap_or_else(|_| Err(io::Error::other("the thread that syncs panicked")))
            }),
            Err(_) => Syncing::new(move || sync_file(&file)),
        }
    }
}
