//! The environment variables and the machine that drivers find.

/// Sets the environment variables that make Mesa's drivers fast here, unless they are set already. Call it
/// first thing in `main`, before threads start and before adapters are listed; nothing else of this crate
/// touches the environment.
///
/// - `LP_NUM_THREADS=0`: a software device computes on one thread, instead of one for each core; a launch
///   then costs a tenth, and devices of several replicas do not fight for the cores.
/// - `NODEVICE_SELECT=1`, only on machines without `XDG_RUNTIME_DIR`: Mesa's device-select layer would look
///   for a Wayland display and print `error: XDG_RUNTIME_DIR is invalid or not set in the environment` each
///   time.
///
/// Returns whether it did. If other threads run already, or cannot be counted, it leaves the environment
/// alone.
pub fn prepare_environment() -> bool {
    // Elsewhere no driver reads any of these.
    if !cfg!(target_os = "linux") {
        return true;
    }
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    if !matches!(threads, Ok(1)) {
        return false;
    }
    set("LP_NUM_THREADS", "0");
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        set("NODEVICE_SELECT", "1");
    }
    true
}

#[expect(unsafe_code, reason = "the only way to set a variable")]
fn set(name: &str, value: &str) {
    if std::env::var_os(name).is_none() {
        // SAFETY: this is the process' only thread, so nothing reads the environment meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
}

/// Returns the bytes of memory of this machine, or `None` if the system does not say.
pub(crate) fn host_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
