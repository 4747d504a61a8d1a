//! The errors of this crate, all of which are found before a step runs.

/// An error in a model, found when it is traced or planned.
#[derive(Clone, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum GraphError {
    /// An op was given operands that it cannot take.
    #[error("{}{op}: {problem}", layer(.scope))]
    Op {
        /// The path of the layer. It is empty outside of layers.
        scope: String,
        /// The name of the op.
        op: String,
        /// What is wrong with the operands, and their shapes.
        problem: String,
    },
    /// Two states, inputs or outputs have one name.
    #[error("{kind} {name:?} is declared twice")]
    Duplicate {
        /// What is declared twice: "state", "input", "carry", "output" or "kept carry".
        kind: &'static str,
        /// The name that is declared twice.
        name: String,
    },
    /// A program stores values as f16, and the device does not have f16.
    #[error("{what} is stored as f16, which the adapter does not have (shader-f16)")]
    NoF16 {
        /// The layer and op of the first such tensor.
        what: String,
    },
    /// A value does not fit the device.
    #[error("{what} needs {needs} bytes in one buffer; the adapter's limit is {adapter_allows}{}", advice(*.of_samples))]
    Limit {
        /// The layer and op of the tensor.
        what: String,
        /// The bytes that the tensor takes.
        needs: u64,
        /// The most bytes that the device allows a buffer to have, or a kernel to read of one.
        adapter_allows: u64,
        /// Whether the tensor has values for each sample, so that fewer samples need less.
        of_samples: bool,
    },
    /// A value has more rows or columns than a launch has workgroups for.
    #[error("{what} needs {needs} workgroups along an axis; the adapter's limit is {adapter_allows}")]
    Grid {
        /// The layer and op of the tensor.
        what: String,
        /// The workgroups along the axis that has most of them.
        needs: u64,
        /// The most that the device allows.
        adapter_allows: u64,
    },
    /// A kernel needs more of a workgroup, or more buffers, than the device has, and no other kernel computes
    /// the same with less.
    #[error("{what} needs {needs} {limit}; the adapter's limit is {adapter_allows}")]
    Kernel {
        /// The layer and op of the tensor, and the name of the kernel.
        what: String,
        /// What the kernel needs of the limit.
        needs: u64,
        /// What is limited: "storage buffers", "invocations a workgroup" or "bytes of workgroup memory".
        limit: &'static str,
        /// The most that the device allows.
        adapter_allows: u64,
    },
    /// A kernel would go over more elements than its indices count, all of which belong to one sample, or to
    /// no sample.
    #[error("{what} reduces {elements} elements at once; a kernel can reduce at most {most}")]
    Elements {
        /// The layer and op of the reduction.
        what: String,
        /// The number of elements.
        elements: u64,
        /// The most elements of a kernel.
        most: u64,
    },
    /// Programs of one device disagree about a tensor of the state.
    #[error("state {what} takes {wanted} bytes, but its place in the other program has {}", given(.found))]
    States {
        /// The name of the tensor.
        what: String,
        /// The bytes that the tensor takes.
        wanted: u64,
        /// The bytes of its place; `None` if it has none.
        found: Option<u64>,
    },
}

fn advice(of_samples: bool) -> &'static str {
    if of_samples { ": use fewer samples a shard" } else { "" }
}

fn given(bytes: &Option<u64>) -> String {
    bytes.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string())
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
