//! What outlives a process: the disk, the devices, and what the run should be.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use unisono::{Audits, Stop, Trainer};
use unisono_tests::perceptron;

use super::Counts;
use super::data::{BATCH, loader};
use super::plan::{DiskFault, EPOCHS, Life, Plan, Reading, STEPS, segment_of};
use super::power::PowerDisk;
use super::random::Random;

/// The undisturbed run: the state and the history after each epoch.
pub struct Reference(Vec<(String, String)>);

impl Reference {
    /// Runs it.
    pub fn new(evaluates: bool) -> Self {
        let plain = Reading::plain();
        let [train, held_out] = [false, true].map(|held_out| loader(held_out, &plain, &Stop::new()));
        let builder = perceptron(8).global_batch(BATCH).replicas(1).audits(Audits::Never);
        let mut trainer = builder.build(&train.fields().unwrap()).unwrap();
        let epochs = (1..=EPOCHS).map(|epochs| {
            trainer.fit(&train, evaluates.then_some(&held_out), epochs).unwrap();
            (trainer.state_sha256().unwrap(), format!("{:?}", trainer.history()))
        });
        Self(epochs.collect())
    }

    /// Compares a run that has done so many epochs.
    pub fn check(&self, trainer: &Trainer, sha256: &str, epochs: u32) -> Result<(), String> {
        let (state, history) = &self.0[epochs as usize - 1];
        if sha256 != state {
            return Err(format!("wrong bytes after {epochs} epochs: {sha256}, not {state}"));
        }
        let found = format!("{:?}", trainer.history());
        if found != *history {
            return Err(format!("another history:\n{found}\nnot\n{history}"));
        }
        let (steps, expected) = (trainer.steps(), 4 * u64::from(epochs));
        if steps == expected { Ok(()) } else { Err(format!("{steps} steps, not {expected}")) }
    }
}

/// A machine, over several lives of a run's process.
pub struct World<'a> {
    pub reference: &'a Reference,
    pub evaluates: bool,
    /// The directory of the run, on the simulated disk. Only the file that locks it is on the machine's.
    pub dir: tempfile::TempDir,
    pub disk: PowerDisk,
    /// The device that is wrong, until it is found and replaced: see [`Plan::wrong`].
    wrong: Option<(usize, usize, String)>,
    /// Whether the checkpoints were given up: the next life begins anew.
    pub begins_anew: bool,
    /// Whether the life has shown that a device is wrong.
    pub has_shown: bool,
    pub counts: Counts,
    /// The lives so far, and what became of each.
    pub story: Vec<String>,
}

impl<'a> World<'a> {
    pub fn new(plan: &Plan, reference: &'a Reference) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = PowerDisk::new(dir.path());
        Self {
            reference,
            evaluates: plan.evaluates,
            dir,
            disk,
            wrong: plan.wrong.clone(),
            begins_anew: false,
            has_shown: false,
            counts: Counts::default(),
            story: vec![],
        }
    }

    /// Whether a life may show that what a device computes is wrong.
    pub fn alters(&self, life: &Life) -> bool {
        life.alters || self.wrong.is_some()
    }

    /// Sets a life's faults.
    pub fn begin(&mut self, life: &Life) -> Faults {
        self.has_shown = false;
        self.counts.lives += 1;
        self.story.push(format!("{life:?}"));
        match life.disk {
            DiskFault::Once(operations) => self.disk.fails_once_after(operations),
            DiskFault::Full(bytes) => self.disk.is_full_after(bytes),
            DiskFault::Killed(operations) | DiskFault::Power(operations) => {
                self.disk.fails_after(operations);
            }
            DiskFault::None | DiskFault::KilledAt(_) | DiskFault::PowerAt(_) => {}
        }
        let mut points = life.points.clone();
        if let Some((replica, from, fault)) = &mut self.wrong {
            // Steps that are made again, evaluations and audits have numbers too.
            let later = std::mem::take(from)..8 * STEPS;
            let at = segment_of(fault);
            points.extend(
                later.map(|step| (format!("replica-{replica}:step-{step}{at}"), format!("return({fault})"))),
            );
        }
        Faults::new(&points)
    }

    /// Does what happens between a life and the next.
    pub fn between(&mut self, life: &Life, random: &mut Random) {
        match life.disk {
            DiskFault::Power(_) | DiskFault::PowerAt(_) => self.disk.cut(random),
            _ => self.disk.recover(),
        }
        // A device is replaced only if the run could set aside what it did. Otherwise, whoever replaces it
        // has to start anew.
        if self.has_shown && life.disk == DiskFault::None {
            self.wrong = None;
        }
    }
}

/// Fault points that are set, as long as this exists.
pub struct Faults {
    pub scope: Arc<str>,
    names: Vec<String>,
}

impl Faults {
    fn new(points: &[(String, String)]) -> Self {
        static LIVES: AtomicUsize = AtomicUsize::new(0);
        let scope: Arc<str> = format!("whole-run-{}:", LIVES.fetch_add(1, Ordering::Relaxed)).into();
        let names: Vec<String> = points.iter().map(|(point, _)| format!("{scope}{point}")).collect();
        for (name, (_, action)) in names.iter().zip(points) {
            fail::cfg(name, action).unwrap();
        }
        Self { scope, names }
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        self.names.iter().for_each(fail::remove);
    }
}
