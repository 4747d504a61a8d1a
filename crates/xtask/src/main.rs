//! `cargo xtask demo | check | test | fuzz | bench | gpu-report | isa | vendors | arm | tidy | modules |
//! lines`: the tasks that a person or CI runs in this repository.
//!
//! **This package must never depend on wgpu**: it is built first on a fresh machine, before there is a
//! driver.

mod arm;
#[cfg(unix)]
mod debian13;
mod files;
mod fuzz;
mod gpu_report;
mod lines;
mod parts;
mod peers;
mod programs;
mod setup;
#[cfg(unix)]
mod shims;
mod tidy;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::{Args, Parser};

/// The arguments that run the tests. The profile `dev` keeps overflow checks in the host code under test;
/// kernels run at full speed in every profile.
const TEST: [&str; 4] = ["test", "--workspace", "--profile", "dev"];

/// The argument of `cargo test` that runs all tests, although some fail.
const ALL: &str = "--no-fail-fast";

/// The arguments that run the tests of what is behind features: other formats of data, the dashboard, and
/// kernels for other CPUs. Their dependencies take minutes to build, so they run with the long tests
/// alone.
const FEATURES: [&[&str]; 3] = [
    &[
        "test",
        "-p",
        "unisono-data",
        "-p",
        "unisono-fuzz",
        "--features",
        "unisono-data/parquet,unisono-data/tokenizers,unisono-data/ndarray,unisono-data/more-pictures",
        "--features",
        "unisono-fuzz/columnar,unisono-fuzz/more-pictures",
    ],
    &["test", "-p", "unisono", "--features", "dashboard,tracing", "--lib", "dashboard"],
    &[
        "test",
        "-p",
        "unisono-cpu",
        "-p",
        "unisono-tests",
        "--features",
        "unisono-cpu/targets,unisono-tests/targets",
        "--test",
        "all",
        "--test",
        "numbers",
        "targets::",
    ],
];

/// The arguments that run the tests of runs on several machines: over threads, and over MPI on this machine.
/// All packages are built with the features of [`TEST`] and one more, so that little is built twice.
const CLUSTER: [&str; 14] = [
    "test",
    "--workspace",
    "--profile",
    "dev",
    "--features",
    "unisono-examples/mpi",
    "--test",
    "ranks",
    "--test",
    "machines",
    "--test",
    "cluster",
    "--test",
    "ulfm",
];

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Tasks of the Unisono repository")]
enum Task {
    /// Train on the UCI handwritten digits, on the GPUs or the CPU of this machine
    Demo(Rest),
    /// Say within minutes whether a change is worth all tests: house rules, clippy, and the tests of the
    /// packages that differ from the last commit
    Check,
    /// Make this machine ready and run the tests, or those of a crate (`test data`) or by name
    /// (`test lost::`); those behind features, and of several machines, by flags
    Test {
        /// Run the long versions too (sets UNISONO_LONG=1), and the tests of what is behind features
        #[arg(long)]
        long: bool,
        /// Run only the tests of runs on several machines, with all ranks on this machine. Installs Open MPI
        /// if it is missing
        #[arg(long, alias = "world")]
        cluster: bool,
        /// Install what tests compare with, Python's packages in target/python, and fail if a test leaves out
        /// what this machine can have
        #[arg(long)]
        complete: bool,
        #[command(flatten)]
        rest: Rest,
    },
    /// Run the readers of files and directories on made-up inputs, under a limit on memory
    Fuzz(fuzz::Fuzz),
    /// Make this machine ready and measure
    Bench(Rest),
    /// Report on this machine's GPU, or pack a folder that reports on another machine's
    GpuReport(gpu_report::Flags),
    /// Show what the kernels of a model become on a GPU, which this machine need not have
    Isa(Rest),
    /// Compare the bytes that all adapters of this machine give, SwiftShader among them where it is installed
    Vendors(Rest),
    /// Run the CPU's adapter as code of AArch64 under QEMU, and compare its bits with those of this
    /// machine
    Arm(arm::Arm),
    /// Check the house rules
    Tidy,
    /// Print the lines of the example programs beside those of the same programs in Keras, and of ten of them
    /// beside those of keras.io's own examples
    Lines {
        /// Checkout of keras-team/keras-io whose examples are counted [default: the numbers that were
        /// recorded]
        #[arg(long, value_name = "DIR")]
        keras_io: Option<PathBuf>,
    },
    /// Print each crate's modules, the latest first, and which modules each imports from
    #[command(alias = "rooms")]
    Modules,
}

#[derive(Args)]
struct Rest {
    /// Passed on as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

fn main() -> ExitCode {
    let result = match Task::parse() {
        Task::Demo(rest) => demo(rest.args),
        Task::Test { long, cluster, complete, rest } => test([long, cluster, complete], &rest.args),
        Task::Check => parts::check(&root()),
        Task::Fuzz(args) => fuzz::fuzz(&args),
        Task::Bench(rest) => bench(&rest.args),
        Task::GpuReport(flags) => gpu_report::gpu_report(&flags),
        Task::Isa(rest) => isa(&rest.args),
        Task::Vendors(rest) => vendors(&rest.args),
        Task::Arm(flags) => arm::arm(&flags),
        Task::Tidy => tidy::run(&root()),
        Task::Lines { keras_io } => {
            lines::report(&root(), keras_io.as_deref()).map(|report| print!("{report}"))
        }
        Task::Modules => tidy::modules::show(&root()).map(|text| print!("{text}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Trains the digits. Default of `--out`: `target/demo`, where a run without `--resume` replaces the earlier
/// one.
fn demo(mut args: Vec<OsString>) -> Result<(), String> {
    let given = |flag: &str| args.iter().filter_map(|arg| arg.to_str()).any(|arg| is_flag(arg, flag));
    let (out, resume) = (given("--out"), given("--resume"));
    let dir = root().join("target").join("demo");
    if !out {
        args.extend(["--out".into(), dir.clone().into()]);
    }
    // A machine without a driver trains on its CPU.
    let train = || example("digits", &args);
    if out || resume { train() } else { replaced(&dir, train) }
}

/// Runs a program that makes a directory anew. What was there comes back if the program makes none, as one
/// whose flags are wrong.
fn replaced(dir: &Path, run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let earlier = dir.with_extension("earlier");
    let failed = |error| format!("{}: {error}", earlier.display());
    if dir.exists() {
        remove(&earlier)?;
        fs::rename(dir, &earlier).map_err(failed)?;
    }
    let result = run();
    match dir.exists() {
        true => remove(&earlier)?,
        false if earlier.exists() => fs::rename(&earlier, dir).map_err(failed)?,
        false => {}
    }
    result
}

/// Removes a directory, if it is there.
fn remove(dir: &Path) -> Result<(), String> {
    if !dir.exists() {
        return Ok(());
    }
    fs::remove_dir_all(dir).map_err(|error| format!("{}: cannot empty: {error}", dir.display()))
}

/// Runs the tests and lists what they left out.
fn test([long, cluster, complete]: [bool; 3], args: &[OsString]) -> Result<(), String> {
    let left_out = target_dir().join("left_out.txt");
    let kept = fs::create_dir_all(target_dir()).and_then(|()| fs::write(&left_out, ""));
    kept.map_err(|error| format!("{}: {error}", left_out.display()))?;
    let python = if complete { Some(peers::install(&target_dir())?) } else { None };
    let environment = peers::environment(&left_out, python.as_deref());
    let passed = run_tests([long, cluster], args, &environment);
    let listed = fs::read_to_string(&left_out).unwrap_or_default();
    let problem = peers::report(&listed, complete);
    passed.and(problem.map_or(Ok(()), Err))
}

/// Runs the tests with more variables in their environment.
fn run_tests(
    [long, cluster]: [bool; 2],
    args: &[OsString],
    environment: &[(&str, OsString)],
) -> Result<(), String> {
    setup::adapter()?;
    if cluster {
        setup::mpi()?;
    }
    let mut environment = environment.to_vec();
    if long {
        environment.push(("UNISONO_LONG", "1".into()));
    }
    #[cfg(unix)]
    if long && cluster {
        environment.push(("UNISONO_DEBIAN_13", debian13::MPI.root(&target_dir())?.into()));
    }
    let is_whole = args.iter().all(|arg| arg == ALL);
    let package = args.first().and_then(|name| parts::package(&root(), name.to_str()?));
    if let Some(package) = package.filter(|_| !cluster) {
        return run(cargo().envs(environment).args(["test", "-p", &package]).args(&args[1..]));
    }
    if is_whole && !cluster {
        programs::run_all(&TEST, !args.is_empty(), &environment, &target_dir().join("tests"))?;
    } else {
        let own = if cluster { &CLUSTER[..] } else { &TEST[..] };
        run(cargo().envs(environment.iter().cloned()).args(own).args(args))?;
    }
    // Arguments choose some tests of those above.
    let behind_features = if long && !cluster && args.is_empty() { &FEATURES[..] } else { &[] };
    behind_features.iter().try_for_each(|own| run(cargo().envs(environment.iter().cloned()).args(*own)))
}

/// Runs the program that counts what a step is on a GPU. It needs no adapter. With `--chip NAME` it runs
/// where newer drivers compile for that chip, and with `--chip all` once for each chip. With `--everything`
/// the program reads the reference cases there.
fn isa(args: &[OsString]) -> Result<(), String> {
    let mut args: Vec<OsString> = args.iter().flat_map(|arg| parts(arg)).collect();
    let Some(chip_at) = value_of(&args, "--chip") else {
        return run(cargo().args(["run", "--quiet", "-p", "unisono-tests", "--bin", "isa", "--"]).args(args));
    };
    let chip = args[chip_at].clone();
    #[cfg(not(unix))]
    return Err(format!("--chip {}: its driver runs on Linux alone", chip.display()));
    #[cfg(unix)]
    {
        let place = value_of(&args, "--out").ok_or("--chip needs --out DIR")?;
        let out = PathBuf::from(std::mem::replace(&mut args[place], shims::OUT.into()));
        if let Some(everything) = args.iter_mut().find(|arg| *arg == "--everything") {
            *everything = format!("--everything={}", shims::ORACLE).into();
        }
        run(cargo().args(["build", "--quiet", "-p", "unisono-tests", "--bin", "isa"]))?;
        let (target, oracle) = (target_dir(), root().join("tests/oracle"));
        let chips = if chip == "all" { shims::names() } else { vec![chip] };
        let mut failed = Vec::new();
        for chip in &chips {
            args[chip_at].clone_from(chip);
            let out = if chips.len() > 1 { out.join(chip) } else { out.clone() };
            let folders = shims::Folders { target: &target, oracle: &oracle, out: &out };
            if let Err(error) = shims::run_on(&folders, (chip, &target.join("debug/isa")), &args) {
                failed.push(format!("{}: {error}", chip.display()));
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }
}

/// Returns a flag and its value where they are one argument: `--chip=NAME`.
fn parts(arg: &OsStr) -> Vec<OsString> {
    match arg.to_str().and_then(|arg| arg.split_once('=')) {
        Some((flag, value)) if flag.starts_with("--") => vec![flag.into(), value.into()],
        _ => vec![arg.to_owned()],
    }
}

/// Returns the place of a flag's value among arguments.
fn value_of(args: &[OsString], flag: &str) -> Option<usize> {
    args.iter().position(|arg| arg == flag).map(|at| at + 1).filter(|at| *at < args.len())
}

/// Returns the directory that cargo builds in.
fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Where Debian's `chromium-common` has the Vulkan driver SwiftShader.
const SWIFTSHADER: &str = "/usr/lib/chromium/vk_swiftshader_icd.json";

/// Runs the comparison of adapters. SwiftShader is one of them where it is installed, unless the caller says
/// by himself which drivers there are.
fn vendors(args: &[OsString]) -> Result<(), String> {
    setup::adapter()?;
    let mut command = cargo();
    let is_told = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"];
    if Path::new(SWIFTSHADER).exists() && is_told.iter().all(|name| env::var_os(name).is_none()) {
        command.env("VK_ADD_DRIVER_FILES", SWIFTSHADER);
    } else {
        eprintln!(
            "xtask: SwiftShader is not added: {SWIFTSHADER} (Debian's chromium-common), or drivers are named"
        );
    }
    run(command.args(["run", "--quiet", "-p", "unisono-tests", "--bin", "vendors", "--"]).args(args))
}

/// Runs the bench, which compares adapters: with a driver, where the machine had none.
fn bench(args: &[OsString]) -> Result<(), String> {
    setup::adapter()?;
    example("bench", args)
}

/// Runs one of the example programs, built with optimisation.
fn example(name: &str, args: &[OsString]) -> Result<(), String> {
    run(cargo().args(["run", "--release", "-p", "unisono-examples", "--bin", name, "--"]).args(args))
}

fn is_flag(arg: &str, flag: &str) -> bool {
    arg.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// Returns a command of the cargo that runs this. It keeps the caller's directory, so relative paths stay
/// valid.
fn cargo() -> Command {
    Command::new(env::var_os("CARGO").as_deref().unwrap_or(OsStr::new("cargo")))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new(".")).to_owned()
}

fn run(command: &mut Command) -> Result<(), String> {
    let shown = shown(command);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

/// Runs a command, and returns what it prints on standard output.
fn output(command: &mut Command) -> Result<String, String> {
    let shown = shown(command);
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("{shown}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{shown}: {}", output.status)),
    }
}

/// Returns a command as one types it.
fn shown(command: &Command) -> String {
    format!("{command:?}").replace('"', "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Task::command().debug_assert();
        let Task::Demo(rest) = Task::parse_from(["xtask", "demo", "--epochs", "1", "--json"]) else {
            panic!()
        };
        assert_eq!(rest.args, ["--epochs", "1", "--json"]);
        let Task::Test { long, cluster, complete, rest } =
            Task::parse_from(["xtask", "test", "--long", "-p", "x"])
        else {
            panic!()
        };
        assert!(long && !cluster && !complete && rest.args == ["-p", "x"]);
    }

    #[test]
    fn an_earlier_run_is_kept_until_a_new_one_has_begun() {
        let root = env::temp_dir().join(format!("unisono-xtask-demo-{}", std::process::id()));
        let (dir, file) = (root.join("demo"), root.join("demo/model"));
        let make = |text: &str| {
            files::make(&dir)?;
            files::write(&file, text)
        };
        let kept = || fs::read_to_string(&file).unwrap_or_default();
        replaced(&dir, || make("first")).unwrap();
        assert_eq!(replaced(&dir, || Err("unexpected argument".into())), Err("unexpected argument".into()));
        assert_eq!(kept(), "first");
        replaced(&dir, || if dir.exists() { Err("it is still there".into()) } else { make("second") })
            .unwrap();
        assert_eq!(kept(), "second");
        assert_eq!(fs::read_dir(&root).unwrap().count(), 1);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_flag_may_carry_its_value() {
        assert!(is_flag("--out", "--out") && is_flag("--out=x", "--out") && !is_flag("--output", "--out"));
    }

    #[test]
    fn the_root_is_the_workspace() {
        assert!(root().join("Cargo.toml").exists() && root().join("crates/xtask").exists());
    }
}
