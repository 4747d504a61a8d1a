//! Other CPUs, for tests that compile kernels for them. A test can also run such a kernel if this CPU has
//! all of its instructions. Needs the feature `targets`.

use cranelift_codegen::settings;

use crate::Options;
use crate::compile::{self, Source};

pub use crate::compile::Features as Target;

/// Cranelift's names of instructions of x86-64, from the oldest on.
const X86: &[&str; 14] = &[
    "has_sse3",
    "has_ssse3",
    "has_sse41",
    "has_sse42",
    "has_popcnt",
    "has_avx",
    "has_avx2",
    "has_fma",
    "has_bmi1",
    "has_bmi2",
    "has_lzcnt",
    "has_avx512f",
    "has_avx512dq",
    "has_avx512vl",
];

/// Returns an x86-64 CPU with the first `count` of the instruction sets in `X86`.
const fn x86(name: &'static str, count: usize) -> Target {
    Target { name, triple: "x86_64-unknown-linux-gnu", has: X86.split_at(count).0 }
}

/// The CPUs, those of x86-64 from the fewest instructions on.
pub const ALL: [Target; 8] = [
    x86("x86-64 with SSE2", 0),
    x86("x86-64 with SSSE3", 2),
    x86("x86-64 with SSE4.2", 5),
    x86("x86-64 with AVX", 6),
    x86("x86-64 with AVX2", 11),
    x86("x86-64 with AVX-512", 14),
    Target { name: "AArch64", triple: "aarch64-unknown-linux-gnu", has: &[] },
    Target { name: "AArch64 of Apple", triple: "aarch64-apple-darwin", has: &["has_lse", "has_fp16"] },
];

impl Target {
    /// Returns whether it has those instructions alone that all of its kind have.
    pub fn has_least(self) -> bool {
        self.has.is_empty()
    }

    /// Returns whether this CPU runs code for that one.
    pub fn runs_here(self) -> bool {
        let Ok(host) = cranelift_native::builder().and_then(|builder| {
            let flags = settings::Flags::new(settings::builder());
            builder.finish(flags).map_err(|_| "")
        }) else {
            return false;
        };
        let own = host.isa_flags();
        let has = |name: &&str| own.iter().any(|flag| flag.name == *name && flag.as_bool() == Some(true));
        self.triple.starts_with(std::env::consts::ARCH) && !cfg!(windows) && self.has.iter().all(has)
    }

    /// Compiles the only entry point of a kernel, with bounds checks or without. Returns the bytes of its
    /// code.
    ///
    /// # Errors
    /// A message, if it is not valid WGSL, or is not supported.
    pub fn compile(self, wgsl: &str, checked: bool) -> Result<Vec<u8>, String> {
        let mode = compile::Mode { checked, ..compile::Mode::default() };
        compile::code(&Source::parse(wgsl, compile::EXTENSIONS)?, mode, compile::Target::Other(self))
    }

    /// Returns this CPU as an adapter whose kernels have that one's instructions alone.
    pub fn adapter(self, options: Options) -> Option<wgpu::Adapter> {
        self.runs_here().then(|| crate::adapter_for(options, compile::Target::Other(self)))
    }
}
