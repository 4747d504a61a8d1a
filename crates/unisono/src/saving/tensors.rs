//! The tensors of a run and of a checkpoint: what each is in a file, and whether they fit together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use unisono_checkpoint::{Contents, Info, LoadReport, Mismatch, Tensor, TensorDType};
use unisono_graph::{DType, StateDecl, Type};

use crate::Error;

/// The name of a run's final model.
const MODEL: &str = "model.safetensors";

/// Returns the file of weights that a path stands for: itself, or the model in a run's directory.
///
/// # Errors
/// It is a directory without a model.
pub(crate) fn weights_file(path: &Path) -> Result<PathBuf, Error> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let file = path.join(MODEL);
    if !file.exists() && path.join("checkpoints").is_dir() {
        let problem = format!(
            "{} has checkpoints of a run and no {MODEL}: Trainer::export writes one, and each checkpoints/step-* has the \
             weights of its step",
            path.display()
        );
        return Err(Error::setting("weights", problem));
    }
    Ok(file)
}

/// Returns what a tensor of the state is in a file.
pub(crate) fn info(ty: &Type) -> Info {
    let dtype = match ty.dtype {
        DType::F32 => TensorDType::F32,
        DType::I32 => TensorDType::I32,
        DType::U32 => TensorDType::U32,
    };
    Info { dtype, shape: ty.dims.clone() }
}

/// Returns a checkpoint's tensors in the order of a trainer's states.
///
/// # Errors
/// Everything that does not fit: a tensor that is missing, unexpected, or of another type or shape.
pub(crate) fn in_order<'a>(
    contents: &'a Contents,
    states: &[StateDecl],
) -> Result<Vec<&'a Tensor>, Box<LoadReport>> {
    let mut found: BTreeMap<&String, &Tensor> = contents.model.iter().chain(&contents.optimizer).collect();
    let (mut report, mut tensors) = (LoadReport::default(), Vec::new());
    for state in states {
        let model = info(&state.ty);
        match found.remove(&state.name) {
            None => report.missing.push(state.name.clone()),
            Some(tensor) if *tensor.info() == model => {
                report.loaded.push(state.name.clone());
                tensors.push(tensor);
            }
            Some(tensor) => {
                report.mismatched.push(Mismatch {
                    name: state.name.clone(),
                    file: tensor.info().clone(),
                    model,
                });
            }
        }
    }
    report.unexpected = found.into_keys().cloned().collect();
    if report.is_exact() { Ok(tensors) } else { Err(Box::new(report)) }
}
