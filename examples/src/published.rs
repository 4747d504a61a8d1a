//! Networks of papers at their published size, whose parameters are counted before a smaller one is trained.

use unisono::Builder;
use unisono::data::{FieldDType, FieldSpec};

use crate::{Error, say};

/// Returns what a sample's field `name` of numbers looks like.
pub fn numbers(name: &str, shape: &[usize]) -> FieldSpec {
    FieldSpec { name: name.into(), dtype: FieldDType::F32, shape: shape.into() }
}

/// Returns what a sample's field `name` of ids or classes looks like.
pub fn ids(name: &str, shape: &[usize]) -> FieldSpec {
    FieldSpec { name: name.into(), dtype: FieldDType::I32, shape: shape.into() }
}

/// Traces a model for training, which opens no device, and says how many parameters it has.
///
/// # Errors
/// It is an error if that is not the published number.
pub fn published(builder: &Builder, fields: &[FieldSpec], expected: u64) -> Result<(), Error> {
    let found = builder.count_parameters(fields)?;
    say!("at its published size it has {found} parameters");
    if found == expected { Ok(()) } else { Err(format!("{found} parameters, not {expected}").into()) }
}
