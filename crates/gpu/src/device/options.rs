//! How a device is opened.

use std::time::Duration;

use crate::{Backend, Kind, SharedKernels};

/// How a device is opened.
///
/// Make one with [`Options::default`] and [`Options::with`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Whether to compile bounds checks and loop limits into every kernel, to turn the driver's validation
    /// on, and to do without optimisations (memory shared with the host, loads in pairs). For debugging.
    /// Without it, a kernel that reads or writes beyond its bindings is undefined behaviour. (On the CPU
    /// there are bounds checks, but neither loop limits nor a driver to validate.) Default: false.
    pub checked: bool,
    /// How long a wait for a device may take. Time in which the process was stopped does not count. Default:
    /// 300 s.
    pub deadline: Duration,
    /// Whether the device reports when it worked, if it can: see [`crate::Timing::device`]. Default: true.
    pub clock: bool,
    /// Whether to enable `enable f16;` in shaders if the adapter supports it, for plans that store f16.
    /// [`crate::Device::target`] says whether it is enabled. Default: false.
    pub f16: bool,
    /// Whether compilers are kept from contracting, factoring or reordering float operations. On Vulkan,
    /// SPIR-V forbids it ([`crate::spirv`]). On other backends, and with `checked`, integer operations that
    /// compilers cannot see through prevent it ([`unisono_graph::target::Target::masks`]). Without it, an
    /// adapter has no portable class. Default: yes, unless the environment has `UNISONO_UNPROTECTED=1`, which
    /// is meant for tests.
    pub decorate: bool,
    /// The longest time that a step, or a segment of one, may take in one submission. Systems reset a device,
    /// or drop its commands, if it works longer on one submission. What took longer is divided the next time.
    /// What was not timed yet is divided into 16 submissions. [`Duration::MAX`] divides nothing.
    ///
    /// Default: none, which means no limit on CPU adapters, 250 ms on macOS and 1 s elsewhere. (macOS drops
    /// commands that keep the screen waiting and does not say after how long. Windows resets a device after 2
    /// s, Linux after 2 or 10 s.)
    pub longest_submission: Option<Duration>,
    /// Whether the device counts its passes. If a driver drops commands and reports them as done, the error
    /// is then [`crate::GpuError::Lost`], and no result is used. It costs one launch of a single thread for
    /// each pass, and a step has few passes. Default: none, which means yes on every backend except the
    /// CPU's, which has no driver.
    pub marks: Option<bool>,
    /// The number of threads that compile kernels. Default: none, which means one for each core on a GPU, the
    /// device's share of the cores on a CPU adapter (see `devices`), and one on GL, which has one lock.
    pub compile_threads: Option<usize>,
    /// The number of devices that load the same plans at the same time. On CPU adapters they share the cores.
    /// Each starts compiling with other kernels, and finds what others have compiled in the driver's cache or
    /// in `shared`. Default: 1.
    pub devices: usize,
    /// The number of processes, such as ranks, that each open this many devices on this machine. On CPU
    /// adapters they share the machine's cores, unless the system has given each of them cores of its own.
    /// Default: 1.
    pub processes: usize,
    /// The number of the device among those, from 0. Default: 0.
    pub turn: usize,
    /// The kernels that the device shares with others, if it is the CPU. Default: none, which means
    /// that it compiles its own.
    pub shared: Option<SharedKernels>,
}

impl Default for Options {
    fn default() -> Self {
        let deadline = Duration::from_secs(300);
        let decorate = !is_unprotected();
        Self {
            checked: false,
            deadline,
            clock: true,
            f16: false,
            decorate,
            longest_submission: None,
            marks: None,
            compile_threads: None,
            devices: 1,
            processes: 1,
            turn: 0,
            shared: None,
        }
    }
}

impl Options {
    /// Returns these options, changed: `Options::default().with(|options| options.f16 = true)`.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Returns whether a device of this backend counts its passes.
    pub(crate) fn marks(&self, backend: Backend) -> bool {
        self.marks.unwrap_or(backend != Backend::Cpu)
    }

    /// Returns the longest time for one submission to a device of this kind.
    pub(crate) fn longest_for(&self, kind: Kind) -> Option<Duration> {
        self.longest_submission.or_else(|| longest(std::env::consts::OS, kind))
    }
}

/// Returns the longest time for one submission on a system of this name.
fn longest(system: &str, kind: Kind) -> Option<Duration> {
    match (kind, system) {
        (Kind::Cpu, _) => None,
        (_, "macos") => Some(Duration::from_millis(250)),
        _ => Some(Duration::from_secs(1)),
    }
}

/// Returns whether the environment asks for kernels that nothing protects from compilers, for tests:
/// `UNISONO_UNPROTECTED=1`. See [`Options::decorate`].
pub fn is_unprotected() -> bool {
    std::env::var_os("UNISONO_UNPROTECTED").is_some_and(|value| value == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_and_backends_that_drop_commands_have_their_own_defaults() {
        let of = |kind| ["linux", "windows", "macos"].map(|system| longest(system, kind));
        let second = Some(Duration::from_secs(1));
        assert_eq!(of(Kind::Discrete), [second, second, Some(Duration::from_millis(250))]);
        assert_eq!(of(Kind::Cpu), [None; 3]);
        let all = Backend::ALL;
        assert_eq!(all.map(|backend| Options::default().marks(backend)), [true, true, true, true, false]);
        let on = Options::default().with(|options| options.marks = Some(true));
        assert!(all.iter().all(|backend| on.marks(*backend)));
    }
}
