//! Parts that run one after another, and what is known when each has ended.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use serde_json::{Map, Value, json};
use unisono::checkpoint::write_whole;
use unisono_examples::{Error, Refused, say};

use super::process::{self, Ended, Ran};
use crate::PART;

/// How many times the limit of a part an adapter that computes on a CPU may take: some software drivers need
/// minutes for what takes a GPU seconds, and other programs may run.
const SLOWER: u32 = 5;

/// What a part is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Whether results are right.
    Right,
    /// Whether trouble is dealt with.
    Steady,
    /// How fast it is.
    Fast,
    /// What is only told: nothing of ours is wrong if it fails.
    Told,
}

/// A part: a program with arguments.
pub struct Part {
    name: String,
    group: Group,
    says: &'static str,
    program: String,
    python: Option<String>,
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
    limit: Duration,
    ends: Ended,
    /// The part that needs this one, and is asked for together with it.
    needed_by: Option<&'static str>,
    /// A directory of the part's own, which is removed before it runs.
    own: Option<PathBuf>,
}

impl Part {
    /// Returns a part of a program of this one.
    pub fn new(name: &str, group: Group, program: &str) -> Self {
        Self {
            name: name.to_owned(),
            group,
            says: "",
            program: program.to_owned(),
            python: None,
            args: Vec::new(),
            env: Vec::new(),
            limit: Duration::from_secs(60),
            ends: Ended::Well,
            needed_by: None,
            own: None,
        }
    }

    /// Runs a script of Python instead.
    pub fn python(self, script: &str) -> Self {
        Self { python: Some(script.to_owned()), ..self }
    }

    pub fn says(self, says: &'static str) -> Self {
        Self { says, ..self }
    }

    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    pub fn adapters(self, names: &[&str]) -> Self {
        names.iter().fold(self, |part, name| part.args(["--adapter", name]))
    }

    pub fn env(mut self, name: &'static str, value: &str) -> Self {
        self.env.push((name, value.to_owned()));
        self
    }

    /// Sets the time limit in seconds.
    pub fn limit(self, seconds: u64) -> Self {
        Self { limit: Duration::from_secs(seconds), ..self }
    }

    /// The part runs as well if this one is asked for.
    pub fn needed_by(self, name: &'static str) -> Self {
        Self { needed_by: Some(name), ..self }
    }

    /// The part begins without this directory, which it writes to.
    pub fn writes_to(self, dir: &Path) -> Self {
        Self { own: Some(dir.to_owned()), ..self }
    }

    /// The part has to fail.
    pub fn fails(self) -> Self {
        Self { ends: Ended::Failed, ..self }
    }

    /// Returns the line of a shell that runs the part again.
    fn line(&self) -> String {
        let quoted = |text: &String| match text.contains([' ', '(', '[', ';', '=']) {
            true => format!("'{text}'"),
            false => text.clone(),
        };
        let mut words: Vec<String> =
            self.env.iter().map(|(name, value)| format!("{name}={}", quoted(value))).collect();
        match &self.python {
            Some(script) => words.extend(["python3".to_owned(), script.clone()]),
            None => words.extend([format!("{PART}={}", self.program), "./gpu-report".to_owned()]),
        }
        words.extend(self.args.iter().map(quoted));
        words.join(" ")
    }

    fn command(&self) -> Result<Command, Error> {
        let mut command = match &self.python {
            Some(script) => {
                let mut command = Command::new("python3");
                command.arg(script);
                command
            }
            None => Command::new(std::env::current_exe()?),
        };
        command.env(PART, &self.program).args(&self.args);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }
}

/// What is known of a part.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    pub name: String,
    pub group: Group,
    pub says: &'static str,
    pub ended: Ended,
    /// Whether it ended as it has to.
    pub is_right: bool,
    pub seconds: f64,
    /// The last line that it printed.
    pub last_line: String,
    /// The beginning and the end of all that it printed, if it failed.
    pub output: String,
    /// How to run it again.
    pub command: String,
}

/// Returns the first and the last lines of a text.
fn ends_of(text: &str) -> String {
    const LINES: usize = 40;
    let lines: Vec<&str> = text.lines().collect();
    let (first, last) =
        (lines.len().min(LINES), lines.len().saturating_sub(LINES).max(LINES.min(lines.len())));
    let between = if last > first { vec!["..."] } else { Vec::new() };
    [&lines[..first], &between, &lines[last..]].concat().join("\n")
}

/// The states that a program ended in, by how it was run.
pub type States = BTreeMap<String, Vec<(String, String)>>;

/// All that is known so far.
pub struct Report {
    pub dir: PathBuf,
    pub label: String,
    pub short: bool,
    pub records: Vec<Record>,
    pub states: States,
    pub facts: Map<String, Value>,
    /// What is spoiled on purpose.
    pub plant: Option<String>,
    only: Vec<String>,
    /// The parts that `only` left out.
    unwanted: Vec<String>,
    began: Instant,
    limit: Duration,
}

impl Report {
    pub fn new(
        dir: &Path,
        label: &str,
        short: bool,
        limit: Duration,
        only: Vec<String>,
    ) -> Result<Self, Error> {
        let failed = |error| {
            format!(
                "the report cannot be written to {}: {error}: name another folder by --out DIR",
                dir.display()
            )
        };
        // A few parts would replace a report of all.
        if !only.is_empty() && dir.join("report.json").exists() {
            let what =
                format!("--out {}: holds an earlier report, which --only would replace", dir.display());
            return Err(Refused(format!("{what}: name another folder by --out DIR, or remove it")).into());
        }
        for folder in ["parts", "cache"] {
            fs::create_dir_all(dir.join(folder)).map_err(failed)?;
        }
        let dir = dir.canonicalize().map_err(failed)?;
        let (records, states, unwanted) = Default::default();
        let facts = Map::from_iter([("machine".to_owned(), Value::Null)]);
        let (label, began) = (label.to_owned(), Instant::now());
        Ok(Self { dir, label, short, records, states, facts, plant: None, only, unwanted, began, limit })
    }

    /// Returns whether the adapter computes on a CPU.
    pub fn is_cpu(&self) -> bool {
        self.facts.get("machine").is_some_and(|machine| machine["adapter"]["kind"] == "cpu")
    }

    /// Returns whether the CPU can compute the same bits as the adapter.
    pub fn is_class_of_cpu(&self) -> bool {
        self.facts.get("machine").is_some_and(|machine| machine["cpus_of_the_same_class"][0].is_string())
    }

    /// Returns whether the adapter has 16-bit floats.
    pub fn has_f16(&self) -> bool {
        self.facts.get("machine").is_some_and(|machine| machine["features"]["f16"] == true)
    }

    /// Returns an error if parts were asked for that this report does not have.
    pub fn check_wanted(&self) -> Result<(), Error> {
        let has = |only: &str| self.records.iter().any(|record| record.name.starts_with(only));
        match self.only.iter().find(|only| !has(only)) {
            None => Ok(()),
            Some(only) => {
                let ran = self.records.iter().map(|record| &record.name);
                let names: Vec<&str> = ran.chain(&self.unwanted).map(String::as_str).collect();
                let names = names.join("; ");
                Err(format!("no part of this report begins with {only}. Its parts are: {names}").into())
            }
        }
    }

    /// Returns whether a part is asked for. The part `machine` always is.
    fn wants(&self, part: &Part) -> bool {
        let mut names = part.needed_by.into_iter().chain([part.name.as_str()]);
        let is_named = names.any(|name| self.only.iter().any(|only| name.starts_with(only.as_str())));
        self.only.is_empty() || part.name == "machine" || is_named
    }

    /// Runs a part, unless the time is over or others are asked for. Returns what became of it.
    pub fn run(&mut self, part: Part) -> Result<Option<Ran>, Error> {
        if !self.wants(&part) {
            self.unwanted.push(part.name);
            return Ok(None);
        }
        let left = self.limit.saturating_sub(self.began.elapsed());
        if left.is_zero() {
            let why = "the time for the whole report was over";
            self.record(&part, Ended::LeftOut, Duration::ZERO, why, "")?;
            return Ok(None);
        }
        if let Some(own) = part.own.as_ref().filter(|own| own.exists()) {
            fs::remove_dir_all(own).map_err(|error| format!("{}: {error}", own.display()))?;
        }
        let mut command = part.command()?;
        command.env("UNISONO_CACHE", self.dir.join("cache"));
        // Drivers keep compiled kernels in the home directory otherwise, where they may not be able to write.
        for name in ["MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH"] {
            if std::env::var_os(name).is_none() {
                command.env(name, self.dir.join("cache"));
            }
        }
        let file = part.name.replace([' ', ','], "_");
        let limit = if self.is_cpu() { SLOWER * part.limit } else { part.limit };
        let ran = match process::run(&mut command, &self.dir.join("parts"), &file, limit.min(left)) {
            Ok(ran) => ran,
            Err(error) => {
                let why = format!("could not be run: {error}");
                self.record(&part, Ended::NotStarted, Duration::ZERO, &why, &why)?;
                return Ok(None);
            }
        };
        if ran.ended == Ended::TimedOut && left < limit {
            self.record(&part, Ended::LeftOut, ran.took, "the time for the whole report was over", "")?;
            return Ok(None);
        }
        self.record(&part, ran.ended, ran.took, ran.last_line(), &(ran.output.clone() + &ran.errors))?;
        Ok(Some(ran))
    }

    /// Runs a part that trains, and keeps the state that it ends in.
    pub fn state(&mut self, program: &str, how: &str, part: Part) -> Result<(), Error> {
        let Some(ran) = self.run(part.says("the state that a run ends in"))? else { return Ok(()) };
        let state = ran.errors.lines().rev().find_map(|line| Some(line.split_once(", state ")?.1.trim()));
        let state = state.filter(|_| ran.ended == Ended::Well).unwrap_or("none").to_owned();
        self.states.entry(program.to_owned()).or_default().push((how.to_owned(), state));
        self.save()
    }

    /// Takes the JSON that a part printed last as a fact.
    pub fn take(&mut self, name: &str, ran: &Ran) {
        let last = ran.output.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
        self.facts.insert(name.to_owned(), last.unwrap_or(Value::Null));
    }

    fn record(
        &mut self,
        part: &Part,
        ended: Ended,
        took: Duration,
        last: &str,
        output: &str,
    ) -> Result<(), Error> {
        let is_right = ended == part.ends || ended == Ended::LeftOut;
        let seconds = took.as_secs_f64();
        let word = match (ended, is_right) {
            (Ended::LeftOut, _) => "left out",
            (_, true) => "ok",
            (Ended::TimedOut, _) => "TIMED OUT",
            _ if part.group == Group::Told => "no",
            _ => "FAILED",
        };
        say!("{seconds:>6.1} s  {word:<9}  {}", part.name);
        let last_line = last.chars().take(300).collect();
        let output = if is_right { String::new() } else { ends_of(output) };
        let (name, group, says, command) = (part.name.clone(), part.group, part.says, part.line());
        self.records.push(Record { name, group, says, ended, is_right, seconds, last_line, output, command });
        self.save()
    }

    /// Writes all that is known to report.json.
    pub fn save(&self) -> Result<(), Error> {
        let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        let report = json!({
            "version": env!("CARGO_PKG_VERSION"), "adapter": self.label, "short": self.short,
            "unix_time": seconds, "seconds": self.began.elapsed().as_secs_f64(),
            "verdict": super::verdict::of(self), "parts": self.records, "states": self.states,
            "facts": self.facts,
        });
        let path = self.dir.join("report.json");
        let text = serde_json::to_string_pretty(&report)?;
        Ok(write_whole(path, &[text.as_bytes(), b"\n"])?)
    }
}
