//! The manifest, `manifest.json`: what a checkpoint's files must be. It is written last.
//!
//! It ends in a checksum of its own.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::disk::listed::Entry;
use crate::store::names::{CARRIES, LATEST, MODEL, OPTIMIZER, TRAINER};
use crate::store::retention::Metric;
use crate::store::seal::{check_version, is_sealed, sealed, zeros};
use crate::tensors::error::{Result, broken};

const FORMAT: &str = "unisono-checkpoint";
const VERSION: u32 = 2;
/// The files of a checkpoint, in the order in which they are written and listed. The last need not be there.
pub(crate) const FILES: [&str; 4] = [MODEL, OPTIMIZER, TRAINER, CARRIES];
/// The most bytes of a manifest.
pub(crate) const LONGEST: u64 = 1 << 16;
/// The most bytes of `trainer.json`. Parsed, it may take thirty times as many.
pub(crate) const LONGEST_TRAINER: u64 = 1 << 28;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    format: String,
    version: u32,
    pub(crate) step: u64,
    /// The metric measured at this step, for the retention of the best. It is always finite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metric: Option<f64>,
    /// What the metric is, in the words of whoever measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metric_name: Option<String>,
    pub(crate) files: Vec<Entry>,
    /// The checksum. It comes last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
}

impl Manifest {
    pub(crate) fn new(step: u64, metric: Option<&Metric>, files: Vec<Entry>) -> Self {
        let found = metric.filter(|metric| metric.value.is_finite());
        let (metric, metric_name) =
            (found.map(|metric| metric.value), found.and_then(|metric| metric.name.clone()));
        Self { format: FORMAT.to_owned(), version: VERSION, step, metric, metric_name, files, sha256: None }
    }

    pub(crate) fn parse(path: &Path, text: &[u8]) -> Result<Self> {
        let invalid = |error: serde_json::Error| broken(path, format!("no valid manifest: {error}"));
        check_version(path, text, (FORMAT, VERSION), invalid)?;
        let mut manifest: Self = serde_json::from_slice(text).map_err(invalid)?;
        if manifest.sha256.take().is_none() || !is_sealed(text) {
            return Err(broken(path, "no valid manifest: its SHA-256 of itself is wrong"));
        }
        if manifest.step > LATEST {
            return Err(broken(path, format!("step {} is later than {LATEST}", manifest.step)));
        }
        let names: Vec<&str> = manifest.files.iter().map(|entry| entry.name.as_str()).collect();
        if names != FILES && names != FILES[..3] {
            return Err(broken(
                path,
                format!("lists other files than {} and perhaps {CARRIES}", FILES[..3].join(", ")),
            ));
        }
        Ok(manifest)
    }

    /// Returns the metric with its name.
    pub(crate) fn measured(&self) -> Option<Metric> {
        Some(Metric { value: self.metric?, name: self.metric_name.clone() })
    }

    /// Returns the text, with its checksum.
    pub(crate) fn into_json(mut self) -> serde_json::Result<Vec<u8>> {
        self.sha256 = Some(zeros());
        sealed(&self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Manifest::parse(Path::new("manifest.json"), text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_manifest_comes_back() {
        let entry = |name: &&str| Entry { name: name.to_string(), bytes: 7, sha256: "00".repeat(32) };
        let measured = [Metric::from(0.1 + 0.2), Metric::named(-0.3, "lowest loss")].map(Some);
        for metric in [None].into_iter().chain(measured) {
            let manifest = || Manifest::new(42, metric.as_ref(), FILES.iter().map(entry).collect());
            assert_eq!(manifest().measured(), metric);
            let text = manifest().into_json().unwrap();
            assert_eq!(Manifest::parse(Path::new("m"), &text).unwrap(), manifest());
        }
        assert_eq!(Manifest::new(42, Some(&f64::NAN.into()), Vec::new()).measured(), None);
    }

    #[test]
    fn what_is_none_is_named() {
        assert!(error("").starts_with("manifest.json: no valid manifest: EOF"));
        for other in [1, 3] {
            let other =
                error(&format!(r#"{{"format": "unisono-checkpoint", "version": {other}, "pages": []}}"#));
            assert!(other.ends_with("where \"unisono-checkpoint\" version 2 is known"), "{other}");
        }
        let unsealed = error(r#"{"format": "unisono-checkpoint", "version": 2, "step": 0, "files": []}"#);
        assert!(unsealed.ends_with("its SHA-256 of itself is wrong"), "{unsealed}");
        let fewer = Manifest::new(0, None, Vec::new()).into_json().unwrap();
        assert!(error(&String::from_utf8(fewer).unwrap()).contains("lists other files"));
    }
}
