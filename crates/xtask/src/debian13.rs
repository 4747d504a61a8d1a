//! Folders with programs and libraries of Debian 13, in which programs of this machine run: packages are
//! downloaded with apt-get and unpacked, and nothing of the machine itself changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{failed, make, write};
use crate::run;

/// A folder of packages of Debian 13.
pub struct Folder {
    /// The name of the folder in the target directory.
    name: &'static str,
    /// The parts of the archive that packages may be of.
    suites: &'static [&'static str],
    /// What programs need there. `apt-get` adds what these need.
    packages: &'static [&'static str],
    /// A file of the packages, which is there when the folder is made.
    proof: &'static str,
}

/// The folder with Open MPI 5 and MPICH.
pub const MPI: Folder = Folder {
    name: "debian-13",
    suites: &["trixie"],
    packages: &[
        "openmpi-bin",
        "libopenmpi40",
        "libmpich12",
        "mpich",
        "mesa-vulkan-drivers",
        "libvulkan1",
        "bash",
        "coreutils",
    ],
    proof: "usr/bin/mpirun.openmpi",
};

/// The folder with Mesa 26 and the libraries that stand in for the kernel's drivers of GPUs.
pub const MESA: Folder = Folder {
    name: "mesa-26",
    suites: &["trixie", "trixie-backports"],
    packages: &[
        "mesa-vulkan-drivers/trixie-backports",
        "mesa-drm-shim/trixie-backports",
        "libvulkan1",
        "coreutils",
    ],
    proof: "usr/lib/x86_64-linux-gnu/libamdgpu_noop_drm_shim.so",
};

impl Folder {
    /// Makes the folder in the target directory, if it is not there, and returns its root, to be used with
    /// `chroot`. Nothing is mounted there, so that it can be removed like any other folder: who needs a mount
    /// makes it in a mount namespace of his own.
    ///
    /// # Errors
    /// The packages cannot be downloaded or unpacked.
    pub fn root(&self, target: &Path) -> Result<PathBuf, String> {
        let folder = target.join(self.name);
        let root = folder.join("root");
        if !root.join(self.proof).exists() {
            self.download(&folder)?;
            unpack(&folder, &root)?;
        }
        Ok(root)
    }

    /// Downloads the packages with all that they need, beside those of this machine's own Debian.
    fn download(&self, folder: &Path) -> Result<(), String> {
        for dir in
            ["etc/apt/apt.conf.d", "etc/apt/preferences.d", "state/lists/partial", "cache/archives/partial"]
        {
            make(&folder.join(dir))?;
        }
        let key = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let line =
            |suite: &&str| format!("deb [signed-by={key}] http://deb.debian.org/debian {suite} main\n");
        let list: String = self.suites.iter().map(line).collect();
        write(&folder.join("etc/apt/sources.list"), &list)?;
        write(&folder.join("state/status"), "")?;
        let shown = folder.display();
        let apt = |args: &[&str]| {
            let mut command = Command::new("apt-get");
            let status = format!("Dir::State::status={shown}/state/status");
            for option in [
                &format!("Dir={shown}"),
                "Dir::Etc=etc/apt",
                "Dir::State=state",
                &status,
                "Dir::Cache=cache",
                "APT::Sandbox::User=root",
                "APT::Install-Recommends=false",
                "Debug::NoLocking=1",
            ] {
                command.args(["-o", option]);
            }
            run(command.args(args))
        };
        apt(&["update"])?;
        apt(&[&["-y", "--download-only", "install"][..], self.packages].concat())
    }
}

fn unpack(folder: &Path, root: &Path) -> Result<(), String> {
    make(&root.join("etc"))?;
    let archives = folder.join("cache/archives");
    for package in fs::read_dir(&archives).map_err(failed(&archives))?.flatten().map(|entry| entry.path()) {
        if package.extension().is_some_and(|extension| extension == "deb") {
            run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(root))?;
        }
    }
    for name in ["lib", "lib64", "bin", "sbin"] {
        let link = root.join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(format!("usr/{name}"), &link).map_err(failed(&link))?;
        }
    }
    write(&root.join("etc/hosts"), "127.0.0.1 localhost\n")?;
    write(&root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/bash\n")?;
    for dir in ["root", "tmp"] {
        make(&root.join(dir))?;
    }
    Ok(())
}
