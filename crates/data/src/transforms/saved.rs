//! Statistics kept in a file, as long as the data stay the same.

use std::path::Path;

use serde_json::{Value, json};

use crate::{DataError, Fingerprint, Per, Source, Statistics};

/// The version of the file.
const VERSION: u64 = 1;

impl Statistics {
    /// Computes statistics as [`of`](Self::of) does, and keeps them in a file. They are read from the file if
    /// it was made from the same data (by the source's fingerprint), the same field and the same grouping,
    /// else computed and written. The bits are the same either way.
    ///
    /// The file is replaced by a rename, so it is never there in part.
    pub fn saved(
        path: impl AsRef<Path>,
        source: &dyn Source,
        field: &str,
        per: Per,
        threads: usize,
    ) -> Result<Self, DataError> {
        let path = path.as_ref();
        let key =
            Fingerprint::new().word(VERSION).word(source.fingerprint()).text(field).word(per as u64).finish();
        if let Some(statistics) = std::fs::read(path).ok().and_then(|bytes| parse(&bytes, key)) {
            return Ok(statistics);
        }
        let statistics = Self::of(source, field, per, threads)?;
        let io = |cause| DataError::Io { path: path.into(), cause };
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        std::fs::write(&partial, statistics.text(key)).map_err(io)?;
        std::fs::rename(&partial, path).map_err(io)?;
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

/// Returns the statistics in a file's bytes, if they are complete and of this key.
fn parse(bytes: &[u8], key: u64) -> Option<Statistics> {
    let text: Value = serde_json::from_slice(bytes).ok()?;
    let values = |name: &str| -> Option<Vec<f64>> {
        text.get(name)?.as_array()?.iter().map(|bits| bits.as_u64().map(f64::from_bits)).collect()
    };
    let (mean, deviation) = (values("mean_bits")?, values("deviation_bits")?);
    let whole = text.get("key")?.as_u64()? == key && mean.len() == deviation.len();
    let count = text.get("count")?.as_u64()?;
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
}
