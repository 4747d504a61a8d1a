//! Runs the test programs of the workspace, as many at a time as the machine has cores.
//!
//! `cargo test` runs one program after another, and a program whose last test is long leaves the other cores
//! idle. Here each core takes the next program when it is free. The output of a program is printed as a whole
//! when the program ends, so that the lines of two programs do not mix.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cargo;

mod stuck;

/// The programs that take longest. They start first, so that none of them runs alone at the end.
const LONGEST: [&str; 6] = [
    "examples/programs",
    "tests/numbers",
    "tests/replicas",
    "testkit/all",
    "tests/machines",
    "tests/training",
];

/// The longest time that a program may take. The slowest takes 15 minutes on two slow cores; one that takes
/// longer than this waits for something that does not come.
const LIMIT: Duration = Duration::from_secs(40 * 60);

/// The time between two looks at a program that runs.
const PAUSE: Duration = Duration::from_millis(20);

/// The number of programs whose time is printed at the end.
const SHOWN: usize = 10;

/// A test program, or the doc tests of all packages.
struct Program {
    name: String,
    command: Command,
}

/// How a program ended.
struct Ended {
    name: String,
    took: Duration,
    passed: bool,
}

/// Builds and runs all test programs and doc tests that `cargo ARGS` runs. With `all` it goes on after a
/// failed program; otherwise it starts no further one. While a program runs, its output goes to a file in
/// `dir`.
///
/// # Errors
///
/// If they are not built, or naming each program that fails.
pub fn run_all(args: &[&str], all: bool, environment: &[(&str, OsString)], dir: &Path) -> Result<(), String> {
    let mut command = cargo();
    command.args(args).args(["--no-run", "--message-format=json-render-diagnostics"]);
    // What cargo has to say goes to this process's stderr.
    command.stderr(Stdio::inherit());
    let built = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !built.status.success() {
        return Err(format!("{command:?}: {}", built.status).replace('"', ""));
    }
    let mut documents = cargo();
    documents.args(args).arg("--doc");
    let mut programs = vec![Program { name: "doc tests".to_owned(), command: documents }];
    let found = executables(&String::from_utf8_lossy(&built.stdout))?;
    programs.extend(found.into_iter().map(|(name, executable, package)| {
        let mut command = Command::new(executable);
        command.current_dir(&package);
        // Programs of two packages may have one name.
        let package = package.file_name().unwrap_or_default().display();
        Program { name: format!("{package}/{name}"), command }
    }));
    programs[1..].sort_by_key(|program| {
        LONGEST.iter().position(|long| *long == program.name).unwrap_or(LONGEST.len())
    });
    for program in &mut programs {
        program.command.envs(environment.iter().cloned());
    }
    fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let ended = run_at_once(programs, all, dir)?;
    summary(ended)
}

/// Returns name, executable and package directory of each test program that cargo's messages name.
fn executables(messages: &str) -> Result<Vec<(String, PathBuf, PathBuf)>, String> {
    let mut found = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value =
            serde_json::from_str(line).map_err(|error| format!("cargo's message: {error}"))?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let is_test = message["profile"]["test"] == Value::Bool(true);
        let (name, executable) = (text(&message["target"]["name"]), text(&message["executable"]));
        let package =
            text(&message["manifest_path"]).and_then(|path| Some(Path::new(&path).parent()?.into()));
        if let (true, Some(name), Some(executable), Some(package)) = (is_test, name, executable, package) {
            found.push((name, executable.into(), package));
        }
    }
    Ok(found)
}

/// Runs the programs, on each core one at a time.
fn run_at_once(programs: Vec<Program>, all: bool, dir: &Path) -> Result<Vec<Ended>, String> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let waiting = Mutex::new(VecDeque::from(programs));
    let ended = Mutex::new(Vec::new());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = |worker: usize| -> io::Result<()> {
        let log = dir.join(format!("output-{worker}.txt"));
        while let Some(program) = next() {
            let done = run_one(program, &log, LIMIT)?;
            // Whoever holds this prints.
            let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
            eprintln!("     Running {} ({:.1} s)", done.name, done.took.as_secs_f64());
            io::copy(&mut File::open(&log)?, &mut io::stdout().lock())?;
            if !all && !done.passed {
                waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
            ended.push(done);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|worker| scope.spawn(move || work(worker))).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result.map_err(|error| format!("{}: {error}", dir.display())),
            Err(_) => Err("a thread that runs test programs has panicked".to_owned()),
        })
    })?;
    Ok(ended.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Runs a program, whose output becomes the file `log`. A program that takes longer than `limit` is killed
/// and has failed, and the output ends with what its threads and its children waited for.
fn run_one(mut program: Program, log: &Path, limit: Duration) -> io::Result<Ended> {
    let output = File::create(log)?;
    program.command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
    let start = Instant::now();
    let mut child = program.command.spawn()?;
    let passed = loop {
        if let Some(status) = child.try_wait()? {
            break status.success();
        }
        if start.elapsed() > limit {
            let seconds = limit.as_secs();
            writeln!(&output, "\nxtask: {} has not ended within {seconds} s and is killed", program.name)?;
            stuck::tell_and_kill(child.id(), &output)?;
            child.kill()?;
            child.wait()?;
            break false;
        }
        thread::sleep(PAUSE);
    };
    Ok(Ended { name: program.name, took: start.elapsed(), passed })
}

/// Prints which programs took longest. Returns an error that names those that failed.
fn summary(mut ended: Vec<Ended>) -> Result<(), String> {
    ended.sort_by_key(|done| std::cmp::Reverse(done.took));
    let longest = ended.iter().take(SHOWN);
    let longest: Vec<_> = longest.map(|d| format!("{} {:.0} s", d.name, d.took.as_secs_f64())).collect();
    eprintln!("xtask: {} test programs; the longest: {}", ended.len(), longest.join(", "));
    let failed: Vec<_> = ended.iter().filter(|done| !done.passed).map(|done| done.name.as_str()).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("tests failed in: {}", failed.join(", "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_cargos_messages() {
        let line = |name: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/tests/Cargo.toml","target":{{"name":"{name}"}},"#
            ) + &format!(r#""profile":{{"test":{test}}},"executable":{executable}}}"#)
        };
        let messages = [
            line("conformance", true, r#""/w/target/conformance-1""#),
            line("conformance", false, r#""/w/target/conformance""#),
            line("unisono", false, "null"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let found = executables(&messages.join("\n")).unwrap();
        let one = ("conformance".to_owned(), "/w/target/conformance-1".into(), "/w/tests".into());
        assert_eq!(found, [one]);
        assert!(executables("{\"reason\"").is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_program_that_does_not_end_is_killed_with_its_children_and_says_where_it_waits() {
        let dir = std::env::temp_dir().join(format!("unisono-xtask-stuck-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let log = dir.join("output.txt");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & wait"]);
        let program = Program { name: "stuck".into(), command };
        let ended = run_one(program, &log, Duration::from_secs(1)).unwrap();
        assert!(!ended.passed);
        let told = fs::read_to_string(&log).unwrap();
        assert!(told.contains("stuck has not ended within 1 s"), "{told}");
        let child = told.lines().find(|line| line.contains("sleep 1000")).unwrap();
        let process = child.split_whitespace().find_map(|word| word.parse::<u32>().ok()).unwrap();
        // What is killed may be there until its new parent has looked at it.
        let state = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "{state}");
        fs::remove_dir_all(dir).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn programs_run_until_one_fails_and_failures_are_named() {
        let dir = std::env::temp_dir().join(format!("unisono-xtask-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let programs = |count: usize| {
            let all = ["false"].into_iter().chain(std::iter::repeat_n("true", count - 1));
            all.map(|name| Program { name: name.to_owned(), command: Command::new(name) }).collect()
        };
        let ended = run_at_once(programs(200), true, &dir).unwrap();
        assert_eq!(ended.len(), 200);
        assert_eq!(summary(ended), Err("tests failed in: false".to_owned()));
        let ended = run_at_once(programs(200), false, &dir).unwrap();
        assert!(ended.len() < 200);
        let none =
            run_at_once(vec![Program { name: "x".into(), command: Command::new("/no/such") }], true, &dir);
        assert!(none.is_err());
        fs::remove_dir_all(dir).unwrap();
    }
}
