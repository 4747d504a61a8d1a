//! Lines of text files as samples.

use std::path::Path;
use std::sync::Arc;

use super::Shards;
use crate::sources::budget::{Budget, DECODED_BYTES, reserve};
use crate::sources::files::Bytes;
use crate::{BoxError, Coverage, DataError, FieldSpec, Fingerprint, Sample, Source};

/// The bytes that are read at once to find the ends of lines.
const AT_ONCE: u64 = 1 << 20;

type Parse = dyn Fn(&str) -> Result<Sample, BoxError> + Send + Sync;

/// The lines of one or several text files, such as JSON lines. Each line is parsed to a sample when it is
/// needed.
///
/// Opening reads each file once to find the ends of its lines, which takes 8 bytes of memory for each line.
/// After that, a line is read by its position, so files may be larger than memory. A line ends with a
/// newline, with or without a carriage return; the last line may lack it. Empty lines are samples too. Files
/// must not change while they are open.
///
/// ```
/// use unisono_data::{Field, Lines, Loader, Sample};
/// # let dir = tempfile::tempdir().unwrap();
/// # let shard = |at: usize| dir.path().join(format!("{at}.txt"));
/// # std::fs::write(shard(0), "1.5 0\n2.5 1\n").unwrap();
/// # std::fs::write(shard(1), "3.5 0\n").unwrap();
/// let lines = Lines::open([shard(0), shard(1)], |line| {
///     let (x, y) = line.split_once(' ').ok_or("not two columns")?;
///     Ok(Sample::new().with("x", Field::f32([1], [x.parse()?])).with("y", Field::i32([], [y.parse()?])))
/// })?;
/// let loader = Loader::new(lines).shuffle_window(42, 10_000);
/// assert_eq!(loader.samples(), 3);
/// # Ok::<(), unisono_data::DataError>(())
/// ```
#[doc(alias("TextLineDataset", "IterableDataset", "jsonl"))]
#[derive(Clone)]
pub struct Lines {
    shards: Shards,
    /// Where each line of each file ends, behind its newline.
    line_ends: Vec<Arc<Vec<u64>>>,
    specs: Vec<FieldSpec>,
    parse: Arc<Parse>,
    most: u64,
}

impl Lines {
    /// Opens files in this order. `parse` turns a line into a sample. All samples must have the fields of the
    /// first one, with the same shapes.
    ///
    /// # Errors
    /// A file cannot be read, or is not a regular file. There is no line. The first line cannot be parsed.
    pub fn open<P: AsRef<Path>>(
        files: impl IntoIterator<Item = P>,
        parse: impl Fn(&str) -> Result<Sample, BoxError> + Send + Sync + 'static,
    ) -> Result<Self, DataError> {
        let mut shards = Shards::new();
        let mut line_ends = Vec::new();
        for path in files {
            let file = Bytes::open(path.as_ref())?;
            let ends = ends_of_lines(&file)?;
            shards.push(file, ends.len());
            line_ends.push(Arc::new(ends));
        }
        let parse = Arc::new(parse);
        let mut lines = Self { shards, line_ends, specs: vec![], parse, most: DECODED_BYTES };
        if lines.is_empty() {
            let files: Vec<_> =
                lines.shards.files.iter().map(|file| file.path().display().to_string()).collect();
            return Err(DataError::other(format!("no lines in the files {files:?}")));
        }
        lines.specs = lines.fetch(0)?.specs();
        Ok(lines)
    }

    /// Sets the maximum number of bytes of one line. A longer line is an error. Default: [`DECODED_BYTES`].
    pub fn most_bytes(self, most: u64) -> Self {
        Self { most, ..self }
    }
}

/// Returns where each line ends, behind its newline.
fn ends_of_lines(file: &Bytes) -> Result<Vec<u64>, DataError> {
    let mut ends = Vec::new();
    let mut start = 0;
    while start < file.len() {
        let bytes = file.to_vec(start, AT_ONCE.min(file.len() - start))?;
        for at in (0..bytes.len()).filter(|&at| bytes[at] == b'\n') {
            reserve(file.path(), &mut ends, 1, usize::MAX)?;
            ends.push(start + at as u64 + 1);
        }
        start += bytes.len() as u64;
    }
    if ends.last().copied().unwrap_or(0) < file.len() {
        ends.push(file.len());
    }
    Ok(ends)
}

impl Source for Lines {
    fn len(&self) -> u64 {
        self.shards.len()
    }

    fn fields(&self) -> &[FieldSpec] {
        &self.specs
    }

    fn fetch(&self, index: u64) -> Result<Sample, DataError> {
        let (shard, line) = self.shards.locate(index)?;
        let (file, ends) = (&self.shards.files[shard], &self.line_ends[shard]);
        let start = line.checked_sub(1).map_or(0, |before| ends[before]);
        let length = ends[line] - start;
        let budget = Budget { most: self.most, setting: "Lines::most_bytes" };
        budget.check(file.path(), &format!("line {}", line + 1), Some(length))?;
        let bytes = file.to_vec(start, length)?;
        let wrong = |what: &str| DataError::format(file.path(), format!("line {}: {what}", line + 1));
        let text = std::str::from_utf8(&bytes).map_err(|_| wrong("it is not UTF-8"))?;
        let text = text.strip_suffix('\n').unwrap_or(text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        (self.parse)(text).map_err(|error| wrong(&error.to_string()))
    }

    /// Returns the line's file and number.
    fn describe(&self, index: u64) -> String {
        match self.shards.locate(index) {
            Ok((shard, line)) => format!("{}: line {}", self.shards.files[shard].path().display(), line + 1),
            Err(_) => format!("sample {index}"),
        }
    }

    /// Covers the fields and the files' bytes: all of them up to 64 MiB a file, and parts of larger ones.
    fn fingerprint(&self) -> u64 {
        fingerprint(&self.shards.files, Fingerprint::new().source(self.len(), &self.specs))
    }

    /// The samples are hashed as they are parsed, so the content covers what `parse` makes of a line.
    fn coverage(&self) -> Coverage {
        Coverage::Hashed
    }
}

/// Adds the bytes of files to a fingerprint. A file that cannot be read any more counts as such; fetching its
/// samples is the error.
pub(super) fn fingerprint(files: &[Bytes], hash: Fingerprint) -> u64 {
    let add = |hash: Fingerprint, file: &Bytes| {
        let unread = hash.clone().text("unread");
        file.fingerprint(hash).unwrap_or(unread)
    };
    files.iter().fold(hash, add).finish()
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files: Vec<_> = self.shards.files.iter().map(Bytes::path).collect();
        f.debug_struct("Lines").field("files", &files).field("lines", &self.len()).finish_non_exhaustive()
    }
}
