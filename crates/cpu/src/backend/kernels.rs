//! Compiles kernels, with every way in which that can fail turned into a message.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::compile::{Program, Source, Target};

/// Compiles an entry point of a module, as [`Program::compile`] does.
///
/// # Errors
/// A message, also where the compiler panics. (Cranelift does if a system lets no process order its
/// processors to forget old code, as a filter of system calls may on AArch64.)
pub(super) fn compile(
    source: &Source,
    entry: Option<&str>,
    checked: bool,
    target: Target,
) -> Result<Program, String> {
    let compiled = catch_unwind(AssertUnwindSafe(|| Program::compile(source, entry, checked, target)));
    compiled.unwrap_or_else(|_| Err("the compiler panicked".to_owned()))
}

/// Checks that this process may make code and run it: some systems forbid to make memory executable that was
/// writable.
///
/// # Errors
/// A message that says what is forbidden.
pub(super) fn check(target: Target) -> Result<(), String> {
    let source = Source::parse("@compute @workgroup_size(1) fn main() {}")?;
    let compiled = compile(&source, None, true, target);
    compiled.map(drop).map_err(|error| format!("this process may not make code: {error}"))
}
