//! Files that Python's `safetensors` package reads, and files that it writes. `UNISONO_PYTHON` names another
//! interpreter than `python3`.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::common::contents;
use serde_json::{Value, json};
use unisono_checkpoint::{
    Export, Tensor, TensorDType, TensorFile, Tensors, WeightPrecision, export_model, read_tensors,
    write_model,
};

/// A script that prints names, types, shapes and bytes of a file.
const READ: &str = r#"
import json, sys
from safetensors import safe_open
found = {}
with safe_open(sys.argv[1], "np") as file:
    for name in file.keys():
        array = file.get_tensor(name)
        found[name] = [str(array.dtype), list(array.shape), array.tobytes().hex()]
print(json.dumps(found))
"#;

/// A script that writes a file with metadata, as PyTorch does.
const WRITE: &str = r#"
import sys, numpy
from safetensors.numpy import save_file
save_file({
    "module.fc.weight": numpy.arange(6, dtype=numpy.float32).reshape(2, 3) / 7,
    "half": numpy.array([0.1, -2.0, numpy.inf], dtype=numpy.float16),
    "double": numpy.array(0.1, dtype=numpy.float64),
    "num_batches_tracked": numpy.array(7, dtype=numpy.int64),
    "empty": numpy.zeros((0, 4), dtype=numpy.uint8),
}, sys.argv[1], metadata={"format": "pt"})
"#;

/// Returns what a script prints. Where there is no Python that has the package, prints a line that says so
/// and returns `None`.
fn python(script: &str, path: &Path) -> Option<String> {
    let interpreter = std::env::var("UNISONO_PYTHON").unwrap_or_else(|_| "python3".into());
    let has = Command::new(&interpreter).args(["-c", "import numpy, safetensors.numpy"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        left_out(&format!(
            "{interpreter} with the packages numpy and safetensors is not there (install: pip install \
             safetensors numpy)"
        ));
        return None;
    }
    let output = Command::new(interpreter).args(["-c", script]).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Says on stderr what a test leaves out, also where it passes: the harness catches what `eprintln!` writes.
/// `cargo xtask test` lists it from the file that `UNISONO_LEFT_OUT` names.
fn left_out(what: &str) {
    let line = format!("left out: {what}\n");
    // Nobody may be there to read it.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(file) = std::env::var_os("UNISONO_LEFT_OUT") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns what Python should print of these tensors.
fn expected(tensors: &Tensors) -> Value {
    let dtype = |dtype| match dtype {
        TensorDType::F16 => "float16",
        TensorDType::F32 => "float32",
        TensorDType::U32 => "uint32",
        other => panic!("no {other} is made here"),
    };
    let one = |tensor: &Tensor| json!([dtype(tensor.dtype()), tensor.shape(), hex(tensor.bytes())]);
    tensors.iter().map(|(name, tensor)| (name.clone(), one(tensor))).collect()
}

#[test]
fn python_reads_what_is_written_here() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let mut tensors = contents(3).model;
    tensors.extend(contents(3).optimizer);
    tensors.insert("quoted \"name\" é\n".into(), Tensor::f32(&[1, 1, 2], &[f32::INFINITY, 1e-45]).unwrap());
    write_model(&path, &tensors).unwrap();
    let Some(found) = python(READ, &path) else { return };
    assert_eq!(serde_json::from_str::<Value>(&found).unwrap(), expected(&tensors));

    export_model(&path, &tensors, &Export::default().precision(WeightPrecision::F16)).unwrap();
    let found = python(READ, &path).unwrap();
    let halves = read_tensors(&path).unwrap();
    assert_eq!(halves["dense.bias"].dtype(), TensorDType::F16);
    assert_eq!(serde_json::from_str::<Value>(&found).unwrap(), expected(&halves));
}

#[test]
fn what_python_writes_is_read_here() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("theirs.safetensors");
    if python(WRITE, &path).is_none() {
        return;
    }
    let file = TensorFile::open(&path).unwrap();
    assert_eq!(file.metadata()["format"], "pt");
    let found: Vec<String> = file.infos().map(|(name, info)| format!("{name} {info}")).collect();
    let names = [
        "double F64[]",
        "empty U8[0, 4]",
        "half F16[3]",
        "module.fc.weight F32[2, 3]",
        "num_batches_tracked I64[]",
    ];
    assert_eq!(found, names);
    let sevenths: Vec<f32> = (0..6).map(|i| i as f32 / 7.0).collect();
    assert_eq!(file.tensor("module.fc.weight").unwrap().to_f32(), Some(sevenths));
    assert_eq!(file.bytes("half").unwrap(), [0x2e66u16, 0xc000, 0x7c00].map(u16::to_le_bytes).concat());
    assert_eq!(file.bytes("double").unwrap(), 0.1f64.to_le_bytes());
}
