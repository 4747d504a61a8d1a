//! The CPU that code is made for: this one, or for tests one with fewer instructions or another kind.

use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};

use crate::native::{Vectors, vectors};

/// A CPU that kernels can be compiled for.
#[cfg(feature = "targets")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The name for messages.
    pub name: &'static str,
    pub(crate) triple: &'static str,
    /// Cranelift's names of its instructions beyond those that all such CPUs have.
    pub(crate) has: &'static [&'static str],
}

#[cfg(feature = "targets")]
impl Features {
    fn vectors(self) -> Vectors {
        match self.has {
            has if has.contains(&"has_avx512f") => Vectors::Avx512,
            has if has.contains(&"has_avx2") => Vectors::Avx2,
            _ => Vectors::Plain,
        }
    }

    fn builder(self) -> Result<cranelift_codegen::isa::Builder, String> {
        let found = cranelift_codegen::isa::lookup_by_name(self.triple);
        let mut builder = found.map_err(|error| error.to_string())?;
        for name in self.has {
            builder.enable(name).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(builder)
    }
}

/// The CPU that code is made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    /// This CPU, with all that it has.
    Host,
    /// This CPU, with only the instructions that every CPU of its architecture has. For tests.
    Baseline,
    /// Another one, for tests.
    #[cfg(feature = "targets")]
    Other(Features),
}

impl Target {
    /// Returns the vectors of which native code may use.
    pub fn vectors(self) -> Vectors {
        match self {
            Self::Host => vectors(),
            Self::Baseline => Vectors::Plain,
            #[cfg(feature = "targets")]
            Self::Other(other) => other.vectors().min(vectors()),
        }
    }

    /// Returns what Cranelift needs to know of the CPU.
    ///
    /// # Errors
    /// A message, if Cranelift does not know it.
    pub fn isa(self) -> Result<OwnedTargetIsa, String> {
        let builder = match self {
            Self::Host => cranelift_native::builder()?,
            Self::Baseline => cranelift_native::builder_with_options(false)?,
            #[cfg(feature = "targets")]
            Self::Other(other) => other.builder()?,
        };
        let mut flags = settings::builder();
        let all = [
            ("enable_probestack", "true"),
            ("probestack_strategy", "inline"),
            ("opt_level", "speed"),
            ("is_pic", "false"),
            ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
            ("unwind_info", "false"),
            ("enable_alias_analysis", "true"),
        ];
        for (name, value) in all {
            flags.set(name, value).map_err(|error| format!("{name}: {error}"))?;
        }
        builder.finish(settings::Flags::new(flags)).map_err(|error| error.to_string())
    }
}
