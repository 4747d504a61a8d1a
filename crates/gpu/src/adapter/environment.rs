//! The environment variables and the machine that drivers find.

/// Sets the environment variables that make Mesa's drivers fast here, unless they are set already. Call it
/// first thing in `main`, before threads start and before adapters are listed; nothing else of this crate
/// touches the environment. The processor as an adapter reads none of them.
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

/// Returns what tells processors apart that compute at different speeds, in one line: model and features. It
/// is `None` if the system does not say.
pub(crate) fn processor() -> Option<String> {
    if cfg!(windows) {
        return std::env::var("PROCESSOR_IDENTIFIER").ok();
    }
    processor_in(&std::fs::read_to_string("/proc/cpuinfo").ok()?)
}

/// Returns the processor that a list of them, as in `/proc/cpuinfo`, begins with.
fn processor_in(list: &str) -> Option<String> {
    const TOLD: [&str; 8] = [
        "vendor_id",
        "cpu family",
        "model",
        "model name",
        "flags",
        "CPU implementer",
        "CPU part",
        "Features",
    ];
    let values = |line: &str| {
        let (key, value) = line.split_once(':')?;
        TOLD.contains(&key.trim()).then(|| value.trim().to_owned())
    };
    let first = list.trim_start().lines().take_while(|line| !line.trim().is_empty());
    Some(first.filter_map(values).collect::<Vec<_>>().join(" ")).filter(|processor| !processor.is_empty())
}

/// Returns the name and the build of Apple's system, such as `macOS` and `23F79`, or `None` if it does not
/// say.
pub(crate) fn apple_system() -> Option<[String; 2]> {
    if !cfg!(target_vendor = "apple") {
        return None;
    }
    named_in(&std::fs::read_to_string("/System/Library/CoreServices/SystemVersion.plist").ok()?)
}

/// Returns the name and the build of a system from its list of properties.
fn named_in(list: &str) -> Option<[String; 2]> {
    let value = |key: &str| {
        let (_, rest) = list.split_once(&format!("<key>{key}</key>"))?;
        let (value, _) = rest.trim_start().strip_prefix("<string>")?.split_once("</string>")?;
        Some(value.trim().to_owned()).filter(|value| !value.is_empty())
    };
    Some([value("ProductName")?, value("ProductBuildVersion")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_its_model_and_features() {
        let one = |clock: &str, features: &str| {
            format!("processor\t: 0\nmodel name\t: A\ncpu MHz\t\t: {clock}\nflags\t\t: {features}\n")
        };
        let two = format!("{}\nprocessor\t: 1\nmodel name\t: B\n", one("3000", "fma avx512f"));
        assert_eq!(processor_in(&two), Some("A fma avx512f".into()));
        assert_eq!(processor_in(&one("2000", "fma avx512f")), processor_in(&two));
        assert_ne!(processor_in(&one("2000", "fma")), processor_in(&two));
        assert_eq!(processor_in("processor\t: 0\n"), None);
    }

    #[test]
    fn a_system_is_named_with_its_build() {
        let list = "<dict>\n\t<key>ProductBuildVersion</key>\n\t<string>23F79</string>\n\t\
                    <key>ProductName</key>\n\t<string>macOS</string>\n</dict>\n";
        assert_eq!(named_in(list), Some(["macOS".into(), "23F79".into()]));
        assert_eq!(named_in(&list.replace("23F79", "")), None);
        assert_eq!(named_in(&list.replace("ProductName", "Name")), None);
    }
}
