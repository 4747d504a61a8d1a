//! Installs a Vulkan driver on a machine that has none: Mesa's software driver, with the machine's package
//! manager. Training needs none, because the CPU is an adapter; tests and benches compare it with one.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::run;

/// A package manager: its program, the arguments that update its lists (none needed: empty), and the
/// arguments that install the driver.
struct Manager {
    program: &'static str,
    update: &'static [&'static str],
    install: &'static [&'static str],
}

const MANAGERS: [Manager; 5] = [
    Manager {
        program: "apt-get",
        update: &["update"],
        // The last two are for tests of what is given to a driver.
        install: &[
            "install",
            "-y",
            "mesa-vulkan-drivers",
            "libvulkan1",
            "libegl1",
            "libgl1-mesa-dri",
            "vulkan-validationlayers",
            "spirv-tools",
        ],
    },
    Manager {
        program: "dnf",
        update: &[],
        install: &[
            "install",
            "-y",
            "mesa-vulkan-drivers",
            "vulkan-loader",
            "mesa-libEGL",
            "mesa-dri-drivers",
        ],
    },
    Manager {
        program: "pacman",
        update: &[],
        install: &["-Sy", "--needed", "--noconfirm", "vulkan-swrast", "vulkan-icd-loader", "mesa"],
    },
    Manager {
        program: "zypper",
        update: &[],
        install: &["--non-interactive", "install", "libvulkan_lvp", "libvulkan1", "Mesa-libEGL1", "Mesa-dri"],
    },
    Manager {
        program: "apk",
        update: &[],
        install: &["add", "mesa-vulkan-swrast", "vulkan-loader", "mesa-egl", "mesa-dri-gallium"],
    },
];

/// The directories in which the Vulkan loader looks for driver manifests, besides the home directory.
const DRIVER_DIRS: [&str; 5] = [
    "/usr/share/vulkan/icd.d",
    "/usr/local/share/vulkan/icd.d",
    "/etc/vulkan/icd.d",
    "/usr/local/etc/vulkan/icd.d",
    "/run/opengl-driver/share/vulkan/icd.d",
];

/// The directories in which the loader may lie if `ldconfig` does not list it. That of musl has no cache.
const LIBRARY_DIRS: [&str; 4] = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib"];

/// Installs a Vulkan driver if there is none. macOS and Windows come with what wgpu needs.
///
/// Without a known package manager, or without the right to install, the error says what to do.
pub fn adapter() -> Result<(), String> {
    if !cfg!(target_os = "linux") || driver_present() {
        return Ok(());
    }
    let Some(manager) = MANAGERS.iter().find(|manager| on_path(manager.program)) else {
        return Err(
            "no Vulkan driver found, and no package manager that I know: install Mesa's Vulkan drivers \
            (lavapipe) and the Vulkan loader, then run this again, or run cargo test on the CPU alone"
                .to_owned(),
        );
    };
    let Some(root) = as_root() else {
        return Err(format!(
            "no Vulkan driver found. This installs Mesa's software driver; run it, then run this again:\n\n    {}\n",
            manager.shown("sudo ")
        ));
    };
    eprintln!("xtask: no Vulkan driver found; installing Mesa's software driver:");
    eprintln!("    {}", manager.shown(if root { "" } else { "sudo " }));
    for args in manager.steps() {
        run(&mut command(root, manager.program, args))?;
    }
    if driver_present() {
        return Ok(());
    }
    Err(format!("{} is done, and there is still no Vulkan driver", manager.program))
}

/// Installs what tests need that look at what a driver is given, and a driver of GL beside that of Vulkan,
/// where this machine has Debian's package manager. Elsewhere it does nothing: the tests say what is missing.
pub fn tools() -> Result<(), String> {
    let layer = ["/usr/share/vulkan", "/usr/local/share/vulkan", "/etc/vulkan"]
        .map(|dir| Path::new(dir).join("explicit_layer.d/VkLayer_khronos_validation.json"));
    let is_there = layer.iter().any(|path| path.exists()) && on_path("spirv-val") && driver_present();
    if is_there || !cfg!(target_os = "linux") || !on_path("apt-get") {
        return Ok(());
    }
    let Some(root) = as_root() else {
        return Err(format!(
            "tests need tools that are not there; run this first: {}",
            MANAGERS[0].shown("sudo ")
        ));
    };
    for args in MANAGERS[0].steps() {
        run(&mut command(root, MANAGERS[0].program, args))?;
    }
    Ok(())
}

/// Installs Open MPI with apt-get if there is no mpirun. Programs open its library when they run, so nothing
/// else of it is needed to build them.
pub fn mpi() -> Result<(), String> {
    if on_path("mpirun") {
        return Ok(());
    }
    let Some(root) = on_path("apt-get").then(as_root).flatten() else {
        return Err(
            "there is no mpirun: install Open MPI (Debian: openmpi-bin), then run this again".to_owned()
        );
    };
    eprintln!("xtask: no mpirun found; installing Open MPI with apt-get");
    run(&mut command(root, "apt-get", &["update"]))?;
    run(&mut command(root, "apt-get", &["install", "-y", "--no-install-recommends", "openmpi-bin"]))
}

impl Manager {
    fn steps(&self) -> impl Iterator<Item = &'static [&'static str]> {
        [self.update, self.install].into_iter().filter(|args| !args.is_empty())
    }

    /// Returns the command as a person would type it.
    fn shown(&self, sudo: &str) -> String {
        let steps = self.steps().map(|args| format!("{sudo}{} {}", self.program, args.join(" ")));
        steps.collect::<Vec<_>>().join(" && ")
    }
}

/// Returns whether the user is root. Returns `None` if the user is not, and cannot run commands as root
/// without a password.
fn as_root() -> Option<bool> {
    let root = output("id", &["-u"]).is_some_and(|id| id.trim() == "0");
    (root || output("sudo", &["-n", "true"]).is_some()).then_some(root)
}

/// Returns the command for one step of a package manager. It asks no questions.
fn command(root: bool, program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(if root { "env" } else { "sudo" });
    if !root {
        command.args(["-n", "env"]);
    }
    command.args(["DEBIAN_FRONTEND=noninteractive", program]).args(args);
    // Standard output belongs to the program that runs next, and may be read by a machine.
    command.stdin(Stdio::null()).stdout(std::io::stderr());
    command
}

fn driver_present() -> bool {
    loader_present() && driver_manifests().iter().any(|path| path.exists())
}

fn loader_present() -> bool {
    const LOADER: &str = "libvulkan.so.1";
    let cached = ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"]
        .iter()
        .any(|ldconfig| output(ldconfig, &["-p"]).is_some_and(|listed| listed.contains(LOADER)));
    let named = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    cached
        || env::split_paths(&named)
            .chain(LIBRARY_DIRS.map(PathBuf::from))
            .any(|dir| dir.join(LOADER).exists())
}

/// Returns the driver manifests that the loader would read: those named in the environment, or else those
/// found.
fn driver_manifests() -> Vec<PathBuf> {
    for variable in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"] {
        if let Some(named) = env::var_os(variable).filter(|named| !named.is_empty()) {
            return env::split_paths(&named).collect();
        }
    }
    let home = env::home_dir().map(|home| home.join(".local/share/vulkan/icd.d"));
    DRIVER_DIRS.map(PathBuf::from).into_iter().chain(home).flat_map(|dir| manifests_in(&dir)).collect()
}

fn manifests_in(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect()
}

fn on_path(program: &str) -> bool {
    env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|dir| dir.join(program).is_file())
}

/// Returns what a program prints, if it is there and succeeds.
fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_to_type_is_complete() {
        let apt = MANAGERS[0].shown("sudo ");
        let expected = "sudo apt-get update && sudo apt-get install -y mesa-vulkan-drivers libvulkan1 libegl1 \
                        libgl1-mesa-dri vulkan-validationlayers spirv-tools";
        assert_eq!(apt, expected);
        assert!(MANAGERS[1].shown("").starts_with("dnf install -y mesa-vulkan-drivers "));
    }

    #[test]
    fn no_step_asks_a_question() {
        let words = |root| format!("{:?}", command(root, "apt-get", &["update"])).replace('"', "");
        assert_eq!(words(true), "env DEBIAN_FRONTEND=noninteractive apt-get update");
        assert_eq!(words(false), "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get update");
    }

    #[test]
    fn a_directory_that_is_not_there_holds_no_driver() {
        assert!(manifests_in(Path::new("/nowhere")).is_empty());
    }
}
