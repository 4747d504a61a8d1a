//! Exported models: `NAME.safetensors`, and beside it `NAME.json`, which describes it.
//!
//! ```text
//! {
//!   "format": "unisono-model", "version": 1,
//!   "weights": { "name": "NAME.safetensors", "bytes": 1234, "sha256": "..." },
//!   "description": whatever rebuilds the model
//! }
//! ```
//!
//! Each file is replaced at one instant, the description last. Until then the hash tells that the two do not
//! belong together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::disk::listed::Entry;
use crate::disk::listed::open_as_listed;
use crate::disk::temporary::EXPORT;
use crate::disk::write::{beside, replace_file};
use crate::disk::{Disk, StdDisk};
use crate::model::precision::{Rounded, Stored, WeightPrecision};
use crate::tensors::encoded::Encoded;
use crate::tensors::error::{Error, Result, broken, io};
use crate::tensors::file::TensorFile;
use crate::tensors::json;
use crate::tensors::tensor::Tensors;

const FORMAT: &str = "unisono-model";
const VERSION: u32 = 1;
/// The most bytes of a description.
const LONGEST: u64 = 1 << 24;

/// Options of an export.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Export {
    /// The type in which floating-point tensors are written. Integers stay what they are. Default: `F32`.
    pub precision: WeightPrecision,
    /// The axis of the output channels of each matrix and kernel by name, for [`WeightPrecision::I8`].
    /// Default: none.
    pub channels: BTreeMap<String, usize>,
    /// The description from which the model is rebuilt. Without one, no `NAME.json` is written. Default:
    /// none.
    pub description: Option<Value>,
}

impl Export {
    /// Sets the type in which floating-point tensors are written.
    pub fn precision(self, precision: WeightPrecision) -> Self {
        Self { precision, ..self }
    }

    /// Sets the axis of the output channels of each matrix and kernel by name, for [`WeightPrecision::I8`].
    pub fn channels(self, channels: BTreeMap<String, usize>) -> Self {
        Self { channels, ..self }
    }

    /// Sets the description from which the model is rebuilt, if there is one.
    pub fn description(self, description: impl Into<Option<Value>>) -> Self {
        Self { description: description.into(), ..self }
    }
}

/// The result of an export.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Exported {
    /// The path of `NAME.safetensors`.
    pub weights: PathBuf,
    /// The path of `NAME.json`, if there was a description.
    pub description: Option<PathBuf>,
    /// The tensors with finite values that f16 cannot hold, each with the number of such values. They deserve
    /// a warning: the model is not what it was.
    pub overflowed: Vec<(String, usize)>,
    /// The tensors that are not stored exactly, with their largest errors.
    pub rounded: Vec<Rounded>,
    /// The number of bytes of `NAME.safetensors`.
    pub bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    format: String,
    version: u32,
    weights: Entry,
    description: Value,
}

/// Writes a model as plain safetensors, which any reader loads, and its description. Equal tensors make equal
/// files. Without a description, one of the weights that were there before is removed.
///
/// # Errors
/// Those of [`write_model`](crate::write_model) and of [`WeightPrecision::store`]; a path that ends in
/// `.json`; a description that is too large to be read again.
pub fn export_model(path: impl AsRef<Path>, tensors: &Tensors, export: &Export) -> Result<Exported> {
    let path = path.as_ref();
    export_on(&*beside(path)?, path, EXPORT, tensors, export)
}

pub(crate) fn export_on(
    disk: &dyn Disk,
    path: &Path,
    what: &str,
    tensors: &Tensors,
    export: &Export,
) -> Result<Exported> {
    if path.extension().is_some_and(|extension| extension == "json") {
        return Err(broken(path, "is the name of a description, not of weights"));
    }
    let Stored { tensors, overflowed, rounded } = export.precision.store(tensors, &export.channels)?;
    let encoded = Encoded::new(&tensors)?;
    let bytes = encoded.parts().map(|part| part.len() as u64).sum();
    if let Some(description) = &export.description {
        // What cannot be written is found before anything is replaced. The text with the file's own hash
        // will be as long as this one.
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        describe(description, Entry { name, bytes, sha256: "0".repeat(64) })?;
    }
    let weights = replace_file(disk, path, what, encoded.parts())?;
    let mut described = None;
    let beside = description_path(path);
    if export.description.is_none() && is_description(disk, &beside) {
        // It is of the weights that were there before.
        disk.remove(&beside).map_err(io(&beside, "remove"))?;
    }
    if let Some(description) = &export.description {
        replace_file(disk, &beside, what, std::iter::once(&*describe(description, weights)?))?;
        described = Some(beside);
    }
    Ok(Exported { weights: path.to_owned(), description: described, overflowed, rounded, bytes })
}

/// Returns where the description of weights is: `NAME.json` beside `NAME.safetensors`, and `NAME.json` beside
/// any other `NAME`, so that `model.v1` and `model.v2` have one each.
pub fn description_path(weights: &Path) -> PathBuf {
    match weights.extension() {
        Some(extension) if extension == "safetensors" => weights.with_extension("json"),
        _ => {
            let mut name = weights.as_os_str().to_owned();
            name.push(".json");
            name.into()
        }
    }
}

/// Returns the text of a description, which must not be longer than what is read.
fn describe(description: &Value, weights: Entry) -> Result<Vec<u8>> {
    // The description is nested in the file's own map.
    if !json::is_at_most(description, json::DEEPEST - 1) {
        return Err(Error::Unstorable { reason: "the description is nested too deeply to be read".into() });
    }
    if json::cost(description) > json::PARSED_BYTES / 2 {
        return Err(Error::Unstorable { reason: "the description is too large to be read again".into() });
    }
    let description = description.clone();
    let content = Described { format: FORMAT.into(), version: VERSION, weights, description };
    let mut text = serde_json::to_vec_pretty(&content)
        .map_err(|error| Error::Unstorable { reason: error.to_string() })?;
    text.push(b'\n');
    if text.len() as u64 > LONGEST {
        let reason = format!("the description takes {} bytes, more than {LONGEST}", text.len());
        return Err(Error::Unstorable { reason });
    }
    Ok(text)
}

/// Whether a file is a description of a model, and no other JSON.
fn is_description(disk: &dyn Disk, path: &Path) -> bool {
    let text = disk.read_at_most(path, LONGEST).ok();
    let described = text.and_then(|text| serde_json::from_value::<Described>(json::parse(&text).ok()?).ok());
    described.is_some_and(|described| described.format == FORMAT)
}

/// Opens an exported model and its description, given the path of its `NAME.safetensors`, and checks that
/// they belong together.
///
/// # Errors
/// A file cannot be read; the description is not one, or of an unknown version; the weights are not those
/// that it was written for, by size and SHA-256, or no valid safetensors.
pub fn read_export(path: impl AsRef<Path>) -> Result<(TensorFile, Value)> {
    let path = path.as_ref();
    let disk: &dyn Disk = &StdDisk;
    let beside = description_path(path);
    let text = disk.read_at_most(&beside, LONGEST).map_err(io(&beside, "read"))?;
    let described: Described = json::parse(&text)
        .and_then(serde_json::from_value)
        .map_err(|error| broken(&beside, format!("no valid description of a model: {error}")))?;
    if described.format != FORMAT || described.version != VERSION {
        let Described { format, version, .. } = described;
        return Err(broken(&beside, format!("format {format:?} version {version} is not known")));
    }
    let file = TensorFile::new(path, open_as_listed(disk, path, &described.weights)?)?;
    Ok((file, described.description))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::info::TensorDType;
    use crate::tensors::tensor::Tensor;
    use serde_json::json;

    fn model() -> Tensors {
        let weight = Tensor::f32(&[2, 2], &[1.0, 0.1, 65520.0, -0.0]).unwrap();
        Tensors::from([("w".to_owned(), weight), ("n".to_owned(), Tensor::i32(&[1], &[7]).unwrap())])
    }

    #[test]
    fn a_model_and_its_description_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("digits.safetensors");
        let description = json!({ "layers": [{ "dense": 10 }], "rate": 0.1 });
        let export = Export { description: Some(description.clone()), ..Export::default() };
        let exported = export_model(&path, &model(), &export).unwrap();
        assert_eq!(
            (exported.overflowed, exported.description),
            (vec![], Some(dir.path().join("digits.json")))
        );
        let (file, found) = read_export(&path).unwrap();
        assert_eq!((file.tensors(), found), (model(), description));
        drop(file);

        // Weights that are not the described ones are found out.
        crate::write_model(&path, &Tensors::new()).unwrap();
        let error = read_export(&path).unwrap_err().to_string();
        assert!(error.contains("digits.safetensors: has "), "{error}");
        // Without a description that of other weights goes, and no other JSON.
        export_model(&path, &Tensors::new(), &Export::default()).unwrap();
        assert!(!path.with_extension("json").exists());
        std::fs::write(path.with_extension("json"), "{}").unwrap();
        export_model(&path, &Tensors::new(), &Export::default()).unwrap();
        assert_eq!(std::fs::read_to_string(path.with_extension("json")).unwrap(), "{}");
    }

    #[test]
    fn a_description_that_could_not_be_read_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        export_model(&path, &model(), &Export::default().description(json!(1))).unwrap();
        let before = read_export(&path).unwrap().0.tensors();
        let export = Export::default().description(json!("x".repeat(LONGEST as usize)));
        let other = Tensors::from([("other".to_owned(), Tensor::i32(&[1], &[7]).unwrap())]);
        assert!(export_model(&path, &other, &export).is_err());
        assert_eq!(read_export(&path).unwrap().0.tensors(), before, "weights were replaced all the same");
        let error = export_model(&path, &model(), &export).unwrap_err().to_string();
        assert!(error.starts_with("cannot be stored: the description takes 167"), "{error}");
        let nested = |deep: usize| Export::default().description((0..deep).fold(json!(0), |v, _| json!([v])));
        let error = export_model(&path, &model(), &nested(json::DEEPEST)).unwrap_err().to_string();
        assert!(error.ends_with("nested too deeply to be read"), "{error}");
        export_model(&path, &model(), &nested(json::DEEPEST - 1)).unwrap();
        read_export(&path).unwrap();
        std::fs::write(path.with_extension("json"), vec![b' '; LONGEST as usize + 1]).unwrap();
        let error = read_export(&path).unwrap_err().to_string();
        assert!(error.ends_with("m.json: cannot read: longer than the 16777216 bytes that it may have"));
    }

    #[test]
    fn f16_is_rounded_and_what_overflows_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("half.safetensors");
        let export = Export::default().precision(WeightPrecision::F16);
        let exported = export_model(&path, &model(), &export).unwrap();
        assert_eq!(exported.overflowed, [("w".to_owned(), 1)]);
        let found = crate::read_tensors(&path).unwrap();
        let halves = [0x3c00u16, 0x2e66, 0x7c00, 0x8000].map(u16::to_le_bytes).concat();
        assert_eq!(found["w"], Tensor::new(TensorDType::F16, vec![2, 2], halves).unwrap());
        assert_eq!(found["n"], model()["n"]);
        // The values are widened again.
        export_model(&path, &found, &Export::default()).unwrap();
        let wide = crate::read_tensors(&path).unwrap()["w"].to_f32().unwrap();
        assert_eq!(wide, [1.0, 0.099_975_586, f32::INFINITY, -0.0]);
    }
}
