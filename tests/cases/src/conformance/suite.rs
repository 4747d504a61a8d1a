//! Reads suites: `NAME.json` and `NAME.safetensors`.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde_json::{Map, Value};
use unisono_graph::DType;

/// A tensor of a suite.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// The element type: F32, or I32 for ids and labels.
    pub dtype: DType,
    /// The length of each axis.
    pub dims: Vec<usize>,
    /// The values in row-major order.
    pub data: Vec<f64>,
}

/// One case of a suite.
#[derive(Clone, Debug)]
pub struct Case {
    /// The name of the case.
    pub name: String,
    /// The name of what the case computes.
    pub op: String,
    /// The settings of what the case computes, and notes for readers.
    pub attrs: Map<String, Value>,
    /// The inputs by role.
    pub inputs: BTreeMap<String, Reference>,
    /// The expected outputs and gradients by role.
    pub expect: BTreeMap<String, Reference>,
    /// The largest error that passes, relative to the norm of what is expected.
    pub tolerance: f64,
}

/// A suite of cases.
#[derive(Clone, Debug)]
pub struct Suite {
    /// The name of the suite.
    pub name: String,
    /// The cases in the order of the file.
    pub cases: Vec<Case>,
}

#[derive(Deserialize)]
struct SuiteFile {
    suite: String,
    cases: Vec<CaseFile>,
}

#[derive(Deserialize)]
struct CaseFile {
    name: String,
    op: String,
    #[serde(default)]
    attrs: Map<String, Value>,
    inputs: BTreeMap<String, String>,
    expect: BTreeMap<String, String>,
    tolerance: f64,
}

impl Suite {
    /// Reads all suites of a directory, in the order of their names.
    pub fn all(dir: &Path) -> Result<Vec<Self>, String> {
        let entries = std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let mut files: Vec<_> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
        files.retain(|p| p.extension().is_some_and(|e| e == "json"));
        files.sort();
        files.iter().map(|p| Self::read(p)).collect()
    }

    /// Reads a suite from its `.json` file. The tensors are in the `.safetensors` file beside it.
    pub fn read(json: &Path) -> Result<Self, String> {
        let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", json.display());
        let text = std::fs::read_to_string(json).map_err(|e| failed(&e))?;
        let file: SuiteFile = serde_json::from_str(&text).map_err(|e| failed(&e))?;
        let bytes = std::fs::read(json.with_extension("safetensors")).map_err(|e| failed(&e))?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|e| failed(&e))?;
        let all = |names: BTreeMap<String, String>| -> Result<BTreeMap<String, Reference>, String> {
            names.into_iter().map(|(role, name)| Ok((role, reference(&tensors, &name)?))).collect()
        };
        let case = |c: CaseFile| -> Result<Case, String> {
            let (inputs, expect) = (all(c.inputs)?, all(c.expect)?);
            Ok(Case { name: c.name, op: c.op, attrs: c.attrs, inputs, expect, tolerance: c.tolerance })
        };
        let cases: Result<Vec<Case>, String> = file.cases.into_iter().map(case).collect();
        Ok(Self { name: file.suite, cases: cases.map_err(|e| failed(&e))? })
    }
}

fn reference(tensors: &SafeTensors<'_>, name: &str) -> Result<Reference, String> {
    let tensor = tensors.tensor(name).map_err(|e| format!("{name}: {e}"))?;
    let words = tensor.data().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
    let (dtype, data) = match tensor.dtype() {
        Dtype::F32 => (DType::F32, words.map(|b| f64::from(f32::from_le_bytes(b))).collect()),
        Dtype::I32 => (DType::I32, words.map(|b| f64::from(i32::from_le_bytes(b))).collect()),
        other => return Err(format!("{name}: dtype {other:?} is not of this format")),
    };
    Ok(Reference { dtype, dims: tensor.shape().to_vec(), data })
}

impl Case {
    /// Returns an attribute that is a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.attrs.get(name)?.as_f64()
    }

    /// Returns an attribute that is a list of whole numbers, none of them negative.
    pub fn sizes(&self, name: &str) -> Option<Vec<usize>> {
        self.attrs.get(name)?.as_array()?.iter().map(|v| v.as_u64().map(|n| n as usize)).collect()
    }

    /// Returns an attribute that is a list of numbers.
    pub fn numbers(&self, name: &str) -> Option<Vec<f64>> {
        self.attrs.get(name)?.as_array()?.iter().map(Value::as_f64).collect()
    }

    /// Returns an attribute that is a text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.attrs.get(name)?.as_str()
    }

    /// Returns an attribute that is a pair of sizes, for images.
    pub fn pair(&self, name: &str) -> Option<[usize; 2]> {
        self.sizes(name)?.try_into().ok()
    }

    /// Returns an attribute that is a flag. One that is missing is false.
    pub fn flag(&self, name: &str) -> bool {
        self.attrs.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Returns the case of an attribute that is an object: its member `op` is the op, the others are the
    /// attributes. The tensors are those of this case.
    pub fn part(&self, name: &str) -> Option<Self> {
        let mut attrs = self.attrs.get(name)?.as_object()?.clone();
        let op = attrs.remove("op")?.as_str()?.to_owned();
        Some(Self { op, attrs, ..self.clone() })
    }

    /// Returns the axes of an input.
    pub fn dims(&self, role: &str) -> &[usize] {
        self.inputs.get(role).map_or(&[], |r| &r.dims)
    }
}
