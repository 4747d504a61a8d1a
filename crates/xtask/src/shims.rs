//! GPUs of several makers without any hardware: Mesa 26 compiles for them, and a library of its own stands in
//! for the kernel's driver. It accepts everything that is submitted, and runs none of it.
//!
//! Such a GPU lives in a folder of Debian 13's packages, to which a program of this machine is copied. That
//! takes `chroot`, and so a user who may call it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::debian13;
use crate::files::{copy, failed, make};
use crate::run;

/// Where the packages have their libraries.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// The directory that a program writes to, in the folder of packages.
pub const OUT: &str = "/out";

/// The directory of PyTorch's cases, in the folder of packages.
pub const ORACLE: &str = "/oracle";

/// The directories of a run.
pub struct Folders<'a> {
    /// Where the folder of packages is, or is made.
    pub target: &'a Path,
    /// PyTorch's cases.
    pub oracle: &'a Path,
    /// Where the program's files are copied to.
    pub out: &'a Path,
}

/// A GPU that is not there.
struct Chip {
    /// The name on the command line.
    name: &'static str,
    /// The name of the library that stands in for the kernel's driver.
    kernel: &'static str,
    /// The name of the driver.
    driver: &'static str,
    /// The variable that chooses the chip, and its value.
    chosen_by: Option<(&'static str, &'static str)>,
}

const fn amd(name: &'static str) -> Chip {
    Chip { name, kernel: "amdgpu", driver: "radeon", chosen_by: Some(("AMDGPU_GPU_ID", name)) }
}

const fn nvidia(name: &'static str, chipset: &'static str) -> Chip {
    Chip { name, kernel: "nouveau", driver: "nouveau", chosen_by: Some(("NOUVEAU_CHIPSET", chipset)) }
}

const fn adreno(name: &'static str, id: &'static str) -> Chip {
    Chip { name, kernel: "freedreno", driver: "freedreno", chosen_by: Some(("FD_GPU_ID", id)) }
}

/// The chips, as `cargo xtask isa --chip` names them.
const CHIPS: [Chip; 18] = [
    amd("polaris10"),
    amd("vega10"),
    amd("raven2"),
    amd("navi10"),
    amd("navi21"),
    amd("navi31"),
    amd("navi33"),
    amd("strix1"),
    amd("gfx1201"),
    nvidia("turing", "164"),
    nvidia("ampere", "172"),
    nvidia("ga106", "176"),
    adreno("adreno618", "618"),
    adreno("adreno630", "630"),
    adreno("adreno660", "660"),
    adreno("adreno740", "740"),
    adreno("adreno750", "750"),
    Chip { name: "m1", kernel: "asahi", driver: "asahi", chosen_by: None },
];

/// Returns the names of all chips.
pub fn names() -> Vec<OsString> {
    CHIPS.iter().map(|chip| chip.name.into()).collect()
}

/// Runs a program with arguments on a chip, in the folder of packages, which is made if it is not there. The
/// program finds PyTorch's cases in [`ORACLE`]. What it writes to [`OUT`] is copied to the folder `out`.
///
/// # Errors
/// There is no such chip, the packages cannot be had, or the program fails.
pub fn run_on(
    folders: &Folders<'_>,
    (chip, program): (&OsStr, &Path),
    args: &[OsString],
) -> Result<(), String> {
    let Folders { target, oracle, out } = *folders;
    let names: Vec<&str> = CHIPS.iter().map(|chip| chip.name).collect();
    let known = CHIPS.iter().find(|own| chip == own.name);
    let chip = known.ok_or_else(|| format!("--chip {}: one of {}", chip.display(), names.join(", ")))?;
    let root = debian13::MESA.root(target)?;
    let [written, cases] = [OUT, ORACLE].map(|dir| root.join(dir.trim_start_matches('/')));
    for dir in [root.join("dev"), root.join("sys"), root.join("proc"), written.clone(), cases.clone()] {
        make(&dir)?;
    }
    let null = root.join("dev/null");
    if !null.exists() {
        run(Command::new("mknod").args(["-m", "666"]).arg(&null).args(["c", "1", "3"]))?;
    }
    // NVIDIA's driver asks how much memory the machine has.
    let memory = root.join("proc/meminfo");
    let text = fs::read("/proc/meminfo").map_err(failed(Path::new("/proc/meminfo")))?;
    fs::write(&memory, text).map_err(failed(&memory))?;
    copy(program, &root.join("program"))?;
    for file in fs::read_dir(oracle).map_err(failed(oracle))?.flatten().filter(|file| file.path().is_file()) {
        copy(&file.path(), &cases.join(file.file_name()))?;
    }
    for file in fs::read_dir(&written).map_err(failed(&written))?.flatten() {
        fs::remove_file(file.path()).map_err(failed(&file.path()))?;
    }
    let mut command = Command::new("chroot");
    command.arg(&root).args(["/usr/bin/env", "-i", "HOME=/tmp", "PATH=/usr/bin", "NODEVICE_SELECT=1"]);
    command.args(["XDG_RUNTIME_DIR=/tmp", "MESA_SHADER_CACHE_DISABLE=true"]);
    command.arg(format!("VK_DRIVER_FILES=/usr/share/vulkan/icd.d/{}_icd.json", chip.driver));
    command.arg(format!("LD_PRELOAD={LIBRARIES}/lib{}_noop_drm_shim.so", chip.kernel));
    command.args(chip.chosen_by.iter().map(|(name, value)| format!("{name}={value}")));
    run(command.arg("/program").args(args))?;
    make(out)?;
    for file in fs::read_dir(&written).map_err(failed(&written))?.flatten() {
        copy(&file.path(), &out.join(file.file_name()))?;
    }
    Ok(())
}
