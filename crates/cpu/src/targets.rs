//! Other processors than this one, so that tests can compile kernels for them, and run those of which this
//! processor has all instructions. It is there with the feature `targets`.

use cranelift_codegen::isa::{self, Builder};
use cranelift_codegen::settings::Configurable;

use crate::Options;
use crate::compile::{self, Source};
use crate::native::Vectors;

/// A processor that kernels can be compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The name for messages.
    pub name: &'static str,
    triple: &'static str,
    /// Cranelift's names of its instructions beyond those that all such processors have.
    has: &'static [&'static str],
}

const SSSE3: &[&str] = &["has_sse3", "has_ssse3"];
const SSE42: &[&str] = &["has_sse3", "has_ssse3", "has_sse41", "has_sse42", "has_popcnt"];
const AVX: &[&str] = &["has_sse3", "has_ssse3", "has_sse41", "has_sse42", "has_popcnt", "has_avx"];
const AVX2: &[&str] = &[
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
];
const AVX512: &[&str] = &[
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

/// The processors, from those with the fewest instructions on. None of x86-64 is like all others: those with
/// SSE2 alone are AMD's up to 2011 but for SSE3, those with AVX alone Intel's of 2011.
pub const ALL: [Target; 8] = [
    Target { name: "x86-64 with SSE2", triple: "x86_64-unknown-linux-gnu", has: &[] },
    Target { name: "x86-64 with SSSE3", triple: "x86_64-unknown-linux-gnu", has: SSSE3 },
    Target { name: "x86-64 with SSE4.2", triple: "x86_64-unknown-linux-gnu", has: SSE42 },
    Target { name: "x86-64 with AVX", triple: "x86_64-unknown-linux-gnu", has: AVX },
    Target { name: "x86-64 with AVX2", triple: "x86_64-unknown-linux-gnu", has: AVX2 },
    Target { name: "x86-64 with AVX-512", triple: "x86_64-unknown-linux-gnu", has: AVX512 },
    Target { name: "AArch64", triple: "aarch64-unknown-linux-gnu", has: &[] },
    Target { name: "AArch64 of Apple", triple: "aarch64-apple-darwin", has: &["has_lse", "has_fp16"] },
];

impl Target {
    /// Returns whether it has those instructions alone that all of its kind have.
    pub fn has_least(self) -> bool {
        self.has.is_empty()
    }

    /// Returns whether this processor runs code for that one.
    pub fn runs_here(self) -> bool {
        let Ok(host) = cranelift_native::builder().and_then(|builder| {
            let flags = cranelift_codegen::settings::Flags::new(cranelift_codegen::settings::builder());
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
        compile::code(&Source::parse(wgsl)?, checked, compile::Target::Other(self))
    }

    /// Returns this processor as an adapter whose kernels have that one's instructions alone.
    pub fn adapter(self, options: Options) -> Option<wgpu::Adapter> {
        self.runs_here().then(|| crate::adapter_for(options, compile::Target::Other(self)))
    }

    pub(crate) fn vectors(self) -> Vectors {
        match self.has {
            has if has.contains(&"has_avx512f") => Vectors::Avx512,
            has if has.contains(&"has_avx2") => Vectors::Avx2,
            _ => Vectors::Plain,
        }
    }

    pub(crate) fn builder(self) -> Result<Builder, String> {
        let mut builder = isa::lookup_by_name(self.triple).map_err(|error| error.to_string())?;
        for name in self.has {
            builder.enable(name).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(builder)
    }
}
