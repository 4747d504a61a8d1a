//! The environment variables and the machine that drivers find.

use std::sync::LazyLock;

/// Sets the environment variables that make Mesa's drivers fast here, unless they are set already. Call it
/// first thing in `main`, before threads start and before adapters are listed; nothing else of this crate
/// touches the environment. The CPU as an adapter reads none of them.
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

/// Returns the number of threads that compute at the same time on this machine, as it was at first: to ask
/// the system takes tens of microseconds.
pub(crate) fn cores() -> usize {
    static CORES: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    *CORES
}

/// Returns the number of cores of this machine, of which this process may use fewer, or `None` if the system
/// does not say.
pub(crate) fn all_cores() -> Option<usize> {
    cores_in(&std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?)
}

/// Returns the number of cores in a list like `0-3,8`.
fn cores_in(list: &str) -> Option<usize> {
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let [first, last] = [first, last].map(|core| core.trim().parse::<usize>().ok());
        last?.checked_sub(first?)?.checked_add(1)
    };
    list.split(',').map(count).try_fold(0usize, |sum, count| sum.checked_add(count?))
}

/// Returns the bytes of memory that this process may have: those of the machine, or fewer if a control group
/// that it is in, such as a container, has less. It is `None` if the system does not say.
pub(crate) fn host_memory() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").as_deref().and_then(memory_in);
    let group = read("/proc/self/cgroup").and_then(|groups| least_limit(&groups, read));
    machine.into_iter().chain(group).min()
}

/// Returns the bytes of the machine's memory as `/proc/meminfo` has them.
fn memory_in(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the least limit of memory of the control groups in a list as in `/proc/self/cgroup`, and of those
/// around them. In a container a list may have paths of the machine outside, which `read` does not find; the
/// container's own group is then the outermost one.
fn least_limit(groups: &str, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let mut least: Option<u64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            all if all.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut path = Some(path.trim_end_matches('/'));
        while let Some(group) = path {
            // A group without a limit has the text `max`, or the largest number there is.
            let limit = read(&format!("{root}{group}/{file}")).and_then(|text| text.trim().parse().ok());
            least = least.into_iter().chain(limit).min();
            path = group.rsplit_once('/').map(|(around, _)| around);
        }
    }
    least
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
    fn a_container_has_less_memory_than_its_machine() {
        assert_eq!(memory_in("MemTotal:       24000000 kB\nMemFree: 1 kB\n"), Some(24_000_000 << 10));
        let of = |groups: &str, files: &[(&str, &str)]| {
            least_limit(groups, |path| {
                let found = files.iter().find(|(known, _)| *known == path);
                found.map(|(_, text)| (*text).to_owned())
            })
        };
        let newer = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "4096\n"),
            ("/sys/fs/cgroup/memory.max", "8192\n"),
        ];
        assert_eq!(of("0::/a/b\n", &newer), Some(4096));
        assert_eq!(of("0::/\n", &newer), Some(8192));
        assert_eq!(of("0::/docker/1\n", &newer), Some(8192));
        let older = [("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000")];
        assert_eq!(of("3:cpu,cpuacct:/x\n2:memory:/docker/1\n0::/docker/1\n", &older), Some(1000));
        assert_eq!(of("", &newer), None);
    }

    #[test]
    fn cores_are_counted() {
        assert_eq!(
            ["0-3\n", "0", "0-3,8,10-11\n", "", "3-1"].map(cores_in),
            [Some(4), Some(1), Some(7), None, None]
        );
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
