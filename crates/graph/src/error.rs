//! What can go wrong before a step runs.

/// An error in a model, found when it is traced or planned.
#[derive(Clone, thiserror::Error, PartialEq)]
pub enum GraphError {
    /// An op got operands it cannot take.
    #[error("{}{op}: {problem}", layer(.scope))]
    Op {
        /// The layer, as a path; empty outside of layers.
        scope: String,
        /// The op.
        op: String,
        /// What is wrong, with the shapes.
        problem: String,
    },
    /// Two states, inputs or outputs share a name.
    #[error("{kind} {name:?} is declared twice")]
    Duplicate {
        /// "state", "input" or "output".
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A layout with f16 for a device without.
    #[error("{what} is stored as f16, which the adapter does not have (shader-f16)")]
    NoF16 {
        /// The first such tensor, by layer and op.
        what: String,
    },
    /// A value does not fit the device.
    #[error(
        "{what} needs {needs} bytes in one binding; {adapter_allows} is the adapter's limit: use fewer samples a shard"
    )]
    Limit {
        /// The tensor, by layer and op.
        what: String,
        /// Bytes needed.
        needs: u64,
        /// Bytes allowed.
        adapter_allows: u64,
    },
}

/// Prints the message, so that a `main` that returns the error shows it.
impl std::fmt::Debug for GraphError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

fn layer(scope: &str) -> String {
    if scope.is_empty() { String::new() } else { format!("{scope}: ") }
}
