//! The memory of machine code.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::default_libcall_names;

use super::rounding;

/// A module of machine code that is freed with it. Nobody is inside of the code then.
pub(super) struct Jit(ManuallyDrop<JITModule>);

impl Jit {
    pub fn new(isa: OwnedTargetIsa) -> Self {
        #[cfg(test)]
        tests::HELD.set(tests::HELD.get() + 1);
        Self(ManuallyDrop::new(jit(isa)))
    }
}

impl Deref for Jit {
    type Target = JITModule;

    fn deref(&self) -> &JITModule {
        &self.0
    }
}

impl DerefMut for Jit {
    fn deref_mut(&mut self) -> &mut JITModule {
        &mut self.0
    }
}

impl Drop for Jit {
    #[expect(unsafe_code, reason = "nobody runs the code any more")]
    fn drop(&mut self) {
        #[cfg(test)]
        tests::HELD.set(tests::HELD.get() - 1);
        // SAFETY: it is taken once, and code is called with a reference to what has this.
        unsafe { ManuallyDrop::take(&mut self.0).free_memory() };
    }
}

/// Returns an empty module of code for this CPU. Its memory is leaked unless it is freed.
pub(crate) fn jit(isa: OwnedTargetIsa) -> JITModule {
    let mut builder = JITBuilder::with_isa(isa, default_libcall_names());
    rounding::define(&mut builder);
    JITModule::new(builder)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use crate::compile::{EXTENSIONS, Mode, Program, Source, Target};

    thread_local! {
        /// The modules that this thread has.
        pub static HELD: Cell<i32> = const { Cell::new(0) };
    }

    #[test]
    fn code_is_freed_with_its_program_and_if_there_is_an_error() {
        let compile = |arrays: usize| {
            let each = |make: fn(usize) -> String| (0..arrays).map(make).collect::<String>();
            let declared = each(|k| format!("var a{k}: array<u32, 8000>; a{k}[x[0] % 8000u] = x[1];"));
            let used = each(|k| format!(" + a{k}[x[2] % 8000u]"));
            let wgsl = format!(
                "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
                @compute @workgroup_size(1) fn main() {{ {declared} x[3] = 1u{used}; }}"
            );
            let source = Source::parse(&wgsl, EXTENSIONS).unwrap();
            Program::compile(&source, None, Mode::default(), Target::Host)
        };
        let program = compile(1).unwrap();
        assert_eq!(HELD.get(), 1);
        let error = compile(8).unwrap_err();
        assert!(error.contains("bytes of variables and"), "{error}");
        assert_eq!(HELD.get(), 1);
        drop(program);
        assert_eq!(HELD.get(), 0);
    }
}
