//! Reading suites: `NAME.json` and `NAME.safetensors`.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde_json::{Map, Value};
use unisono_graph::DType;

/// A tensor of a suite.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// F32, or I32 for ids and labels.
    pub dtype: DType,
    /// Its axes.
    pub dims: Vec<usize>,
    /// Its values.
    pub data: Vec<f64>,
}

/// One case of a suite.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// What it computes.
    pub op: String,
    /// How.
    pub attrs: Map<String, Value>,
    /// Inputs by role.
    pub inputs: BTreeMap<String, Reference>,
    /// What must come out, by role.
    pub expect: BTreeMap<String, Reference>,
    /// Largest error relative to the expected norm.
    pub tolerance: f64,
}

/// A suite of cases.
#[derive(Clone, Debug)]
pub struct Suite {
    /// Its name.
    pub name: String,
    /// Its cases.
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
    /// All suites of a directory, by name.
    pub fn all(dir: &Path) -> Result<Vec<Self>, String> {
        let entries = std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let mut files: Vec<_> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
        files.retain(|p| p.extension().is_some_and(|e| e == "json"));
        files.sort();
        files.iter().map(|p| Self::read(p)).collect()
    }

    /// One suite from its `.json`; the tensors are beside it.
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
    /// A number among the attributes.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.attrs.get(name)?.as_f64()
    }

    /// A list of whole numbers among the attributes, not negative.
    pub fn sizes(&self, name: &str) -> Option<Vec<usize>> {
        self.attrs.get(name)?.as_array()?.iter().map(|v| v.as_u64().map(|n| n as usize)).collect()
    }

    /// A list of numbers among the attributes.
    pub fn numbers(&self, name: &str) -> Option<Vec<f64>> {
        self.attrs.get(name)?.as_array()?.iter().map(Value::as_f64).collect()
    }

    /// A text among the attributes.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.attrs.get(name)?.as_str()
    }

    /// Two sizes, for images.
    pub fn pair(&self, name: &str) -> Option<[usize; 2]> {
        self.sizes(name)?.try_into().ok()
    }

    /// A flag among the attributes.
    pub fn flag(&self, name: &str) -> bool {
        self.attrs.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The axes of an input.
    pub fn dims(&self, role: &str) -> &[usize] {
        self.inputs.get(role).map_or(&[], |r| &r.dims)
    }
}
