//! How a device computes.

/// How a device computes.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The number of threads that compute. Default: as many as the system has cores for.
    pub threads: usize,
    /// Called on each of these threads when it starts, for instance to set the processor's floating-point
    /// mode. Default: nothing.
    pub begin: fn(),
}

impl Default for Options {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads, begin: || () }
    }
}
