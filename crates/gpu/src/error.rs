//! The errors between a plan and its results.

use std::time::Duration;

/// Why a device could not be found, opened, loaded or run.
///
/// After [`GpuError::Lost`], [`GpuError::Timeout`] and [`GpuError::Wrong`] the device must be dropped. After
/// the other errors it can still be used.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// No adapter fits what was asked for.
    #[error("{}", no_adapter(wanted, available))]
    NoAdapter {
        /// What was asked for; empty for any adapter at all.
        wanted: String,
        /// The label of each adapter that there is, see [`crate::Adapter::label`].
        available: Vec<String>,
    },
    /// This build leaves out every backend that could have what was asked for.
    #[error("{}", no_backend(wanted, missing))]
    NoBackend {
        /// What was asked for; empty for any adapter at all.
        wanted: String,
        /// The features of this crate, one for each backend that is asked for and not compiled in.
        missing: Vec<&'static str>,
    },
    /// The adapter has no matrix unit that kernels can use.
    #[error(
        "{adapter}: matrix units are not available: {why}; leave out --matrix-units, or `matrix_units()`"
    )]
    NoMatrixUnit {
        /// The adapter's label.
        adapter: String,
        /// What it lacks.
        why: String,
    },
    /// The adapter is no longer there, or its driver refuses to open a device.
    #[error("{adapter}: could not be opened: {reason}")]
    Open {
        /// The adapter's label.
        adapter: String,
        /// What the driver says.
        reason: String,
    },
    /// The device does not compute what every device computes, so none of its results can be believed.
    #[error("{adapter}: does not compute: {what}")]
    Wrong {
        /// The adapter's label.
        adapter: String,
        /// What was wrong.
        what: String,
    },
    /// The plan needs more than the adapter allows.
    #[error("{what}: needs {needs}, the adapter allows {allows}")]
    Limit {
        /// The kernel or buffer, and the limit.
        what: String,
        /// What the plan asks for.
        needs: u64,
        /// What the adapter offers.
        allows: u64,
    },
    /// The plan contradicts itself, or the caller used the device in a wrong order. This is a bug of the code
    /// that made the plan, or of the caller.
    #[error("{what}: {message}")]
    Plan {
        /// The kernel, buffer, segment or slot.
        what: String,
        /// What is wrong with it.
        message: String,
    },
    /// The driver or wgpu refused a shader, a pipeline or a command.
    #[error("{what}: {message}")]
    Validation {
        /// The kernel or the work at hand.
        what: String,
        /// The compiler's or validator's own words.
        message: String,
    },
    /// The adapter has no memory left.
    #[error("{what}: out of memory{}", requested(*bytes))]
    OutOfMemory {
        /// The buffer or the work at hand.
        what: String,
        /// The number of bytes that was asked for; 0 where it is not known.
        bytes: u64,
    },
    /// The device is lost: unplugged, reset or crashed.
    #[error("{adapter}: device lost: {reason}")]
    Lost {
        /// The adapter's label.
        adapter: String,
        /// What the driver says.
        reason: String,
    },
    /// The device did not finish in time.
    #[error("{adapter}: no answer after {after:?}")]
    Timeout {
        /// The adapter's label.
        adapter: String,
        /// How long the host waited.
        after: Duration,
    },
}

/// Prints the message, so that a `main` that returns the error shows it.
impl std::fmt::Debug for GpuError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl GpuError {
    pub(crate) fn plan(what: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Plan { what: what.into(), message: message.into() }
    }
}

fn no_backend(wanted: &str, missing: &[&str]) -> String {
    let what =
        if wanted.is_empty() { "no adapter found".to_owned() } else { format!("no adapter for {wanted:?}") };
    format!(
        "{what}: this build has no backend for it (features left out or not of this system: {})",
        missing.join(", ")
    )
}

fn requested(bytes: u64) -> String {
    if bytes == 0 { String::new() } else { format!(" ({bytes} bytes requested)") }
}

/// Names the backends of drivers that this build was given.
fn compiled() -> String {
    let backends = [
        ("Vulkan", cfg!(all(feature = "vulkan", not(target_vendor = "apple")))),
        ("Metal", cfg!(all(feature = "metal", target_vendor = "apple"))),
        ("DX12", cfg!(all(feature = "dx12", windows))),
        ("GL", cfg!(all(feature = "gles", not(target_vendor = "apple")))),
    ];
    let compiled: Vec<&str> = backends.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect();
    compiled.join(" or ")
}

/// Names what is missing: drivers for any of these backends, and a CPU that kernels can be compiled for.
fn missing(drivers: &str, has_cpu: bool) -> String {
    let drivers = (!drivers.is_empty()).then(|| format!("no driver for {drivers}"));
    let cpu = || format!("kernels cannot be compiled for this CPU ({})", std::env::consts::ARCH);
    drivers.into_iter().chain(has_cpu.then(cpu)).collect::<Vec<_>>().join(", and ")
}

fn no_adapter(wanted: &str, available: &[String]) -> String {
    match (wanted, available) {
        ("", []) => format!("no adapter found: {}", missing(&compiled(), cfg!(feature = "cpu"))),
        (_, []) => format!("no adapter matches {wanted:?}: none found"),
        _ => format!("no adapter matches {wanted:?}; there are: {}", available.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_nobody_knows_are_left_out() {
        let error = |bytes| GpuError::OutOfMemory { what: "scratch".to_owned(), bytes }.to_string();
        assert_eq!(error(64), "scratch: out of memory (64 bytes requested)");
        assert_eq!(error(0), "scratch: out of memory");
    }

    #[test]
    fn what_is_missing_is_named() {
        let cpu = format!("kernels cannot be compiled for this CPU ({})", std::env::consts::ARCH);
        assert_eq!(missing("Vulkan or GL", false), "no driver for Vulkan or GL");
        assert_eq!(missing("Vulkan", true), format!("no driver for Vulkan, and {cpu}"));
        assert_eq!(missing("", true), cpu);
    }
}
