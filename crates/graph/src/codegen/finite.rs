//! The check of new states: a kernel that stores them sets a flag if one is infinite or not a number, and
//! stores nothing in a step that does not commit.

use unisono_shaders::snippets;

use super::Binding;
use super::writer::Writer;
use crate::fuse::Store;
use crate::plan::Access;
use crate::trace::NodeId;

impl Writer<'_> {
    /// Returns whether the kernel checks a value that it stores for numbers that are not finite.
    pub(super) fn is_checked(&self, root: NodeId) -> bool {
        self.stores.checked.contains(&root)
    }

    /// Returns whether the kernel stores a value only if the step commits.
    pub(super) fn is_guarded(&self, root: NodeId) -> bool {
        self.stores.guarded.contains(&root)
    }

    /// Returns the condition under which an invocation of a kernel that stores new states does nothing: it
    /// has no element, or the step does not commit.
    pub(super) fn guard(&mut self, has_none: &str) -> String {
        let commit = Binding { store: Store::Commit, row: None };
        let commit = self.bind_as(commit, Access::Read, "u32");
        self.shared.push_str(&format!("    let skipped = b{commit}[0];\n"));
        format!("({has_none}) | (skipped != 0u)")
    }

    /// Returns the statements that set the flag of the states if an element of these values is not finite.
    /// All values have the same number of elements.
    pub(super) fn check(&mut self, values: &[&[String]]) -> String {
        if values.is_empty() {
            return String::new();
        }
        let is_one = values.iter().all(|value| value.len() == 1);
        let all = values.iter().flat_map(|value| value.chunks(4));
        let exponents: Vec<String> = all
            .map(|four| match four {
                [one] => format!("exponent({one})"),
                four => format!("exponents(vec4<f32>({}))", four.join(", ")),
            })
            .collect();
        let largest = exponents
            .into_iter()
            .reduce(|largest, next| format!("max({largest}, {next})"))
            .unwrap_or_default();
        let is_bad = if is_one {
            format!("{largest} == EXPONENT")
        } else {
            format!("any({largest} == vec4<u32>(EXPONENT))")
        };
        self.snippets.insert(snippets::FINITE_BITS);
        let flag = Binding { store: Store::StateFlag, row: None };
        let flag = self.bind_as(flag, Access::ReadWrite, "atomic<u32>");
        format!("    if {is_bad} {{ atomicStore(&b{flag}[0], 1u); }}\n")
    }
}
