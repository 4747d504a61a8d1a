//! Statistics kept in a file, as long as the data stay the same.

use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde_json::json;

use crate::sample::check::ask;
use crate::sample::regular::{check_replaceable, open_regular, replace};
use crate::{DataError, Fingerprint, Per, Source, Statistics};

/// The version of the file.
const VERSION: u64 = 1;
/// The most bytes of the file.
const LONGEST: u64 = 1 << 26;

impl Statistics {
    /// Computes statistics as [`of`](Self::of) does, and keeps them in a file. They are read from the file if
    /// it was made from the same data (by the source's fingerprint), the same field and the same grouping,
    /// else computed and written. The bits are the same either way.
    ///
    /// The file is replaced by a rename, so it is never there in part. A link in its place is replaced, not
    /// written through.
    ///
    /// # Errors
    /// Something else than a regular file or a link is at the path, such as a pipe or a device: that comes
    /// before anything is computed. Those of [`of`](Self::of), where they are computed; the file cannot be
    /// written. A file that cannot be read, or is damaged, is written anew.
    pub fn saved(
        path: impl AsRef<Path>,
        source: &dyn Source,
        field: &str,
        per: Per,
        threads: usize,
    ) -> Result<Self, DataError> {
        let path = path.as_ref();
        check_replaceable(path)?;
        let data = ask(source, "fingerprint", |source| source.fingerprint())?;
        let key = Fingerprint::new().word(VERSION).word(data).text(field).word(per as u64).finish();
        if let Some(statistics) = read_at_most(path, LONGEST).and_then(|bytes| parse(&bytes, key)) {
            return Ok(statistics);
        }
        let statistics = Self::of(source, field, per, threads)?;
        replace(path, statistics.text(key).as_bytes())?;
        Ok(statistics)
    }

    /// Returns the file's text. It has the values as people read them, and as bits; only the bits are read
    /// back.
    fn text(&self, key: u64) -> String {
        let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let text = json!({
            "key": key,
            "count": self.count,
            "mean": self.mean,
            "deviation": self.deviation,
            "mean_bits": bits(&self.mean),
            "deviation_bits": bits(&self.deviation),
        });
        format!("{text:#}\n")
    }
}

/// Reads a regular file of at most so many bytes. Returns `None` if there is none.
fn read_at_most(path: &Path, most: u64) -> Option<Vec<u8>> {
    let file = open_regular(path).ok()?;
    let length = file.metadata().ok()?.len();
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(length).ok().filter(|_| length <= most)?).ok()?;
    file.take(length).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// What is read back of the file.
#[derive(Deserialize)]
struct Written {
    key: u64,
    count: u64,
    mean_bits: Vec<u64>,
    deviation_bits: Vec<u64>,
}

/// Returns the statistics in a file's bytes, if they are complete and of this key.
fn parse(bytes: &[u8], key: u64) -> Option<Statistics> {
    let written: Written = serde_json::from_slice(bytes).ok()?;
    let Written { key: own, count, mean_bits, deviation_bits } = written;
    let whole = own == key && mean_bits.len() == deviation_bits.len();
    let [mean, deviation] =
        [mean_bits, deviation_bits].map(|bits| bits.into_iter().map(f64::from_bits).collect());
    whole.then_some(Statistics { count, mean, deviation })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    #[test]
    fn used_again_for_the_same_data_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("statistics.json");
        let data = |offset: f32| Memory::labelled([0.1 + offset, 0.7, 1.3, 2.9], [2], [0, 1]).unwrap();
        let saved = |offset, per| Statistics::saved(&path, &data(offset), "x", per, 2).unwrap();
        let computed = Statistics::of(&data(0.0), "x", Per::Channel, 1).unwrap();
        assert_eq!(saved(0.0, Per::Channel), computed);
        // The file's contents are used: a forged count comes back.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"count\": 2", "\"count\": 77")).unwrap();
        assert_eq!(saved(0.0, Per::Channel), Statistics { count: 77, ..computed.clone() });
        assert_ne!(saved(1.0, Per::Channel).count, 77);
        assert_eq!(saved(0.0, Per::All).mean.len(), 1);
        for broken in ["", "{", "{}", "[1]", "{\"key\": -1}"] {
            std::fs::write(&path, broken).unwrap();
            assert_eq!(saved(0.0, Per::Channel), computed);
        }
        assert!(Statistics::saved(dir.path().join("no/such"), &data(0.0), "x", Per::All, 1).is_err());
    }

    /// What is no file is refused before anything is read, and stays; a link is replaced, not followed.
    #[test]
    #[cfg(unix)]
    fn pipes_and_links_at_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, link, victim) =
            (dir.path().join("pipe"), dir.path().join("link"), dir.path().join("victim"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let data = Memory::labelled([0.1, 0.7, 1.3, 2.9], [2], [0, 1]).unwrap();
        let saved = |path: &Path| Statistics::saved(path, &data, "x", Per::Channel, 1);
        for path in [&pipe, Path::new("/dev/null"), dir.path()] {
            let error = saved(path).unwrap_err().to_string();
            assert!(error.starts_with(&path.display().to_string()) && error.contains("replaced"), "{error}");
        }
        assert!(!std::fs::symlink_metadata(&pipe).unwrap().is_file());
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        assert_eq!(saved(&link).unwrap(), saved(&link).unwrap());
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        assert!(std::fs::symlink_metadata(&link).unwrap().is_file());
    }
}
