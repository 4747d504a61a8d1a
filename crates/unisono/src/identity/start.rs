//! What parameters and statistics start with.

use sha2::{Digest, Sha256};

use crate::Initializer;
use crate::identity::part::{Part, hex};
use crate::model::context::Parameter;

/// Returns the part of the start values: each tensor's initializer with its numbers. The seed is a setting.
pub(crate) fn start_values(parameters: &[Parameter]) -> Part {
    Part::of_settings(parameters.iter().map(|p| (p.name.clone(), described(&p.initializer))))
}

fn described(initializer: &Initializer) -> String {
    match initializer {
        Initializer::Values(values) => {
            let mut hash = Sha256::new();
            values.iter().for_each(|value| hash.update(value.to_le_bytes()));
            format!("{} values {}", values.len(), &hex(&hash.finalize())[..16])
        }
        Initializer::Of { name, initializer } => format!("{} of {name}", described(initializer)),
        other => format!("{other:?}"),
    }
}
