//! Kernels, each compiled once for all devices that share them, with every way in which that can fail turned
//! into a message.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use naga::valid::Capabilities;

use crate::compile::{Mode, Program, Source, Target};

/// The compiled kernels of devices that share them. Clones are the same kernels.
///
/// A kernel is compiled once, by the device that asks first; the others wait for it if they ask meanwhile. It
/// stays as long as one of them has a pipeline of it.
#[derive(Clone, Debug, Default)]
pub struct Kernels(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The modules that somebody has.
    modules: Mutex<HashMap<Text, Weak<Module>>>,
    compiled: AtomicU64,
}

/// The text of a module, and the bits of what it may use beyond WGSL's core.
type Text = (Arc<str>, u64);

/// A module of WGSL that is valid, with what was compiled of it.
#[derive(Debug)]
pub(crate) struct Module {
    text: Text,
    made: Mutex<Compiled>,
}

#[derive(Debug, Default)]
struct Compiled {
    /// The module as it was read, until something was compiled of it: few have two entry points, and it takes
    /// more memory than the code.
    source: Option<Source>,
    programs: Vec<(Entry, Arc<Program>)>,
}

/// What is compiled of a module: an entry point, in a mode, for a CPU.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    name: Option<String>,
    mode: Mode,
    target: Target,
}

impl PartialEq for Kernels {
    /// Returns whether both are the same kernels.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Kernels {}

impl Kernels {
    /// Returns the number of kernels that were compiled so far.
    pub fn compiled(&self) -> u64 {
        self.0.compiled.load(Ordering::Relaxed)
    }

    /// Returns a module, which is read if nobody has it.
    ///
    /// # Errors
    /// A message, if it is not valid WGSL, or uses what is not `enabled`.
    pub(crate) fn module(&self, wgsl: &str, enabled: Capabilities) -> Result<Arc<Module>, String> {
        let text: Text = (wgsl.into(), enabled.bits());
        let module = {
            let mut modules = lock(&self.0.modules);
            let found = modules.get(&text).and_then(Weak::upgrade);
            found.unwrap_or_else(|| {
                modules.retain(|_, module| module.strong_count() > 0);
                let module = Arc::new(Module { text: text.clone(), made: Mutex::default() });
                modules.insert(text, Arc::downgrade(&module));
                module
            })
        };
        let mut made = lock(&module.made);
        if made.source.is_none() && made.programs.is_empty() {
            made.source = Some(module.read()?);
        }
        drop(made);
        Ok(module)
    }

    /// Returns an entry point of a module, which is compiled if that has not been done, as
    /// [`Program::compile`] does.
    ///
    /// # Errors
    /// A message.
    pub(crate) fn program(
        &self,
        module: &Module,
        entry: Option<&str>,
        mode: Mode,
        target: Target,
    ) -> Result<Arc<Program>, String> {
        let entry = Entry { name: entry.map(str::to_owned), mode, target };
        let mut made = lock(&module.made);
        if let Some((_, program)) = made.programs.iter().find(|(other, _)| *other == entry) {
            return Ok(Arc::clone(program));
        }
        let source = made.source.take().map_or_else(|| module.read(), Ok)?;
        let compiled = compile(&source, entry.name.as_deref(), mode, target);
        let program = match compiled {
            Ok(program) => Arc::new(program),
            Err(message) => {
                made.source = Some(source);
                return Err(message);
            }
        };
        self.0.compiled.fetch_add(1, Ordering::Relaxed);
        made.programs.push((entry, Arc::clone(&program)));
        Ok(program)
    }
}

impl Module {
    fn read(&self) -> Result<Source, String> {
        Source::parse(&self.text.0, Capabilities::from_bits_retain(self.text.1))
    }
}

/// Checks that this process may make code and run it: some systems forbid to make memory executable that was
/// writable.
///
/// # Errors
/// A message that says what is forbidden.
pub(crate) fn check(target: Target) -> Result<(), String> {
    let source = Source::parse("@compute @workgroup_size(1) fn main() {}", Capabilities::empty())?;
    let compiled = compile(&source, None, Mode { checked: true, ..Mode::default() }, target);
    compiled.map(drop).map_err(|error| format!("this process may not make code: {error}"))
}

/// Compiles an entry point. A panic of the compiler is a message as well. (Cranelift panics if a system
/// lets no process order its CPUs to forget old code, as a filter of system calls may on AArch64.)
fn compile(source: &Source, entry: Option<&str>, mode: Mode, target: Target) -> Result<Program, String> {
    let compiled = catch_unwind(AssertUnwindSafe(|| Program::compile(source, entry, mode, target)));
    compiled.unwrap_or_else(|_| Err("the compiler panicked".to_owned()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::EXTENSIONS;
    use crate::native::Rounding;

    fn kernel(value: u32) -> String {
        let buffer = "@group(0) @binding(0) var<storage, read_write> a: array<u32>;";
        format!("{buffer} @compute @workgroup_size(1) fn main() {{ a[0] = {value}u; }}")
    }

    fn program(kernels: &Kernels, module: &Module, checked: bool) -> Arc<Program> {
        let mode = Mode { checked, ..Mode::default() };
        kernels.program(module, Some("main"), mode, Target::Host).unwrap()
    }

    #[test]
    fn kernels_are_compiled_once_however_many_threads_ask() {
        let kernels = Kernels::default();
        let all = |order: &[u32]| {
            let one = |value: &u32| {
                let module = kernels.module(&kernel(*value), EXTENSIONS).unwrap();
                let program = program(&kernels, &module, false);
                (module, program)
            };
            order.iter().map(one).collect::<Vec<_>>()
        };
        let made = std::thread::scope(|scope| {
            let backwards: Vec<u32> = (0..8).rev().collect();
            let one = scope.spawn(|| all(&[0, 1, 2, 3, 4, 5, 6, 7]));
            let other = scope.spawn(move || all(&backwards));
            [one.join().unwrap(), other.join().unwrap()]
        });
        assert_eq!(kernels.compiled(), 8);
        let [one, other] = made;
        for ((a, first), (b, second)) in one.iter().zip(other.iter().rev()) {
            assert!(Arc::ptr_eq(a, b) && Arc::ptr_eq(first, second));
            assert!(lock(&a.made).source.is_none(), "what was read is dropped");
        }
        assert!(!Arc::ptr_eq(&one[0].1, &one[1].1));
        // One with checks is another one.
        let checked = program(&kernels, &one[0].0, true);
        assert!(!Arc::ptr_eq(&one[0].1, &checked));
        // So is one that rounds in another way.
        let split = Mode { rounding: Rounding::Split, ..Mode::default() };
        let split = kernels.program(&one[0].0, Some("main"), split, Target::Host).unwrap();
        assert!(!Arc::ptr_eq(&one[0].1, &split));
        assert_eq!(kernels.compiled(), 10);
    }

    #[test]
    fn a_kernel_goes_with_the_last_that_has_it() {
        let kernels = Kernels::default();
        let first = kernels.module(&kernel(1), EXTENSIONS).unwrap();
        let again = kernels.clone().module(&kernel(1), EXTENSIONS).unwrap();
        program(&kernels, &again, false);
        drop(first);
        program(&kernels, &again, false);
        assert_eq!(kernels.compiled(), 1);
        drop(again);
        let module = kernels.module(&kernel(2), EXTENSIONS).unwrap();
        assert_eq!(lock(&kernels.0.modules).len(), 1);
        drop(module);
        program(&kernels, &kernels.module(&kernel(1), EXTENSIONS).unwrap(), false);
        assert_eq!(kernels.compiled(), 2);
    }

    #[test]
    fn what_cannot_be_compiled_is_said_to_each_that_asks() {
        let kernels = Kernels::default();
        for _ in 0..2 {
            assert!(kernels.module("fn main(", EXTENSIONS).unwrap_err().contains("expected"));
            let module = kernels.module(&kernel(1), EXTENSIONS).unwrap();
            let missing = kernels.program(&module, Some("other"), Mode::default(), Target::Host);
            assert_eq!(missing.unwrap_err(), "there is no entry point other");
            program(&kernels, &module, false);
        }
    }
}
