//! Drills of a witness, 400 of each kind with `UNISONO_LONG`: how often it finds a single device that is
//! wrong, and how soon. Every kind is done on the CPU and, where there is lavapipe, on that as the GPU. Its
//! witness is then the CPU in the arithmetic `split`.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use unisono::Witness;
use unisono_gpu::select;
use unisono_testkit::left_out;

use super::*;

/// The epochs of a drill, of four steps each.
const LONG: u32 = 20;
/// The steps of a drill.
const MADE: u64 = 4 * LONG as u64;
/// The steps in which a device may be wrong that is wrong at random.
const WINDOW: u64 = 60;
/// Such a device is wrong in one of this many steps.
const RARE: u32 = 10;
/// An audit is due at the latest after this many steps.
const WITHIN: u64 = 2 * EVERY - 1;

/// Counts the steps that were made. Makes them slow, so that the witness is seldom busy when an audit is due.
#[derive(Clone, Default)]
struct Paced(Arc<AtomicU64>);

impl Observer for Paced {
    fn step(&mut self, _step: &unisono::Step) {
        self.0.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A run on one device with a witness, and what was seen of it.
struct Watched {
    trainer: Trainer,
    hears: Hears,
    watching: Watching,
    paced: Paced,
}

impl Watched {
    /// Returns the run of a drill on the adapter that `device` selects.
    fn new(device: &str, points: Vec<(String, String)>) -> Self {
        let scope = Drill { replicas: 1, points, wrong: 0 }.scope();
        let (hears, watching, paced) = (Hears::default(), Watching::default(), Paced::default());
        let builder = perceptron(8).global_batch(16).replicas(1).adapter(device).audits(Audits::Every(EVERY));
        let builder = builder.fault_scope(&scope).witness(Witness::cpu().share(1.0));
        let builder = builder.observer(hears.clone()).observer(watching.clone()).observer(paced.clone());
        let trainer = builder.build(&data().fields().unwrap()).unwrap();
        let of = &trainer.witness().unwrap().adapter;
        assert_eq!(of.contains("split"), device != "cpu", "the witness of {device} is {of}");
        Self { trainer, hears, watching, paced }
    }

    /// Runs a drill that ends with an error. Returns the error, and the number of steps that were made.
    fn error(mut self) -> (Error, u64) {
        let error = self.trainer.fit(&data(), None, LONG).unwrap_err();
        (error, self.paced.0.load(Ordering::Relaxed))
    }
}

/// How soon drills were found.
#[derive(Debug, Default)]
struct Found {
    drills: u64,
    /// The sum of the steps from the first wrong one up to the one that the witness found wrong.
    steps: u64,
    /// The most of these in one drill.
    most: u64,
    /// The drills in which they were no more than until the next audit.
    in_time: u64,
    /// The steps that were made until the run ended, those that the run made in the meantime included.
    made: u64,
    most_made: u64,
}

impl Found {
    /// Counts a drill whose device was wrong from step `first` on and which ended after `made` steps.
    fn count(&mut self, error: &Error, first: u64, made: u64) {
        let Error::Refused { step: back, .. } = error else { panic!("{error}") };
        assert!(*back <= first, "wrong from {first} on, and back at {back}");
        let text = error.to_string();
        let (found, _) = text.trim_start_matches("step ").split_once(' ').unwrap();
        let steps = found.parse::<u64>().unwrap() + 1 - first;
        self.drills += 1;
        self.steps += steps;
        self.most = self.most.max(steps);
        self.in_time += u64::from(steps <= WITHIN);
        self.made += made - first;
        self.most_made = self.most_made.max(made - first);
    }

    /// Checks that the witness was given a wrong step in time. On a busy machine it may miss an audit: it is
    /// not done with an earlier step. A short run has so few drills that this can happen in most of them.
    fn check(&self, device: &str, what: &str) {
        println!("{device}, {what}: {self:?}, stated {WITHIN} steps and the time of two");
        let least = if is_long() { self.drills - self.drills / 10 - 1 } else { 1 };
        assert!(self.in_time >= least, "{self:?}");
    }
}

fn is_long() -> bool {
    std::env::var_os("UNISONO_LONG").is_some()
}

fn drills(short: u64) -> u64 {
    if is_long() { 400 } else { short }
}

/// Calls a function for each device that goes wrong, at the same time.
fn each_device(drill: impl Fn(&str) + Sync) {
    let mut devices = vec!["cpu"];
    match select(&["llvmpipe"]) {
        Ok(found) if !found.is_empty() => devices.push("llvmpipe"),
        _ => left_out("a witness of lavapipe is not tried: this machine does not have it"),
    }
    std::thread::scope(|scope| {
        for device in devices {
            let drill = &drill;
            scope.spawn(move || drill(device));
        }
    });
}

fn at(step: u64, action: &str) -> (String, String) {
    (format!(":step-{step}"), action.to_owned())
}

/// A bit of the state flips in one step of ten, at random.
#[test]
fn a_device_that_is_wrong_in_one_step_of_some_is_found_as_often_as_stated() {
    let drills = drills(12);
    each_device(|device| {
        let (mut found, mut by_witness) = (0, 0);
        for drill in 0..drills {
            let mut draws = Draws::of(drill, "test", "one-of-some", 0, 0);
            // Every run audits the same steps, so that the window of those that may be wrong moves. The last
            // step of a run is always audited, and is not one of them.
            let first = u64::from(draws.below((MADE - WINDOW) as u32));
            let wrong: Vec<u64> = (first..first + WINDOW).filter(|_| draws.below(RARE) == 0).collect();
            let points = wrong.iter().map(|&step| at(step, "1*return(state:0)")).collect();
            let mut run = Watched::new(device, points);
            let ended = run.trainer.fit(&data(), None, LONG);
            // A run whose steps are wrong once more when they are made again is refused.
            let is_refused = matches!(ended, Err(Error::Refused { .. }));
            assert!(ended.is_ok() || is_refused, "drill {drill}: {ended:?}");
            let is_found = is_refused || !run.watching.0.lock().unwrap().is_empty();
            found += u32::from(is_found);
            let notes = run.hears.notes.lock().unwrap();
            by_witness += u32::from(notes.iter().any(|note| note.contains("the witness, computes another")));
            assert!(!is_found || !wrong.is_empty(), "drill {drill}: a sound device was accused: {notes:?}");
        }
        let chance = 1.0 - (1.0 - 1.0 / f64::from(RARE) / EVERY as f64).powi(WINDOW as i32);
        let error = (chance * (1.0 - chance) / drills as f64).sqrt();
        let share = f64::from(found) / drills as f64;
        println!(
            "{device}: found {found} of {drills}, {by_witness} of them by the witness: {share:.4}, stated \
             {chance:.4} +- {error:.4}"
        );
        assert!((share - chance).abs() < 4.0 * error, "{device}: found {share}, stated {chance} +- {error}");
    });
}

/// The same bit of the state flips in every step from one on.
#[test]
fn a_device_that_is_always_wrong_is_found_within_the_stated_steps() {
    each_device(|device| {
        let mut found = Found::default();
        for drill in 0..drills(4) {
            let mut draws = Draws::of(drill, "test", "always", 0, 0);
            let first = u64::from(draws.below((MADE - WINDOW) as u32));
            let points = (first..2 * MADE).map(|step| at(step, "return(state:0)")).collect();
            let (error, made) = Watched::new(device, points).error();
            assert!(error.to_string().contains("each repeat their own result"), "{error}");
            found.count(&error, first, made);
        }
        found.check(device, "always wrong");
    });
}

/// From one step on a device computes nothing, and its driver reports all as done. Marks show that on a GPU
/// in that very step. The CPU has none, and its witness finds it out.
#[test]
fn a_device_that_computes_nothing_any_more_is_found_at_once() {
    each_device(|device| {
        let mut found = Found::default();
        for drill in 0..drills(4) {
            let mut draws = Draws::of(drill, "test", "dead", 0, 0);
            let first = u64::from(draws.below((MADE - WINDOW) as u32));
            let lie = ["nothing", "zeros", "stale"][drill as usize % 3];
            let (error, made) = Watched::new(device, vec![at(first, &format!("return({lie})"))]).error();
            if device == "cpu" {
                assert!(error.to_string().contains("fails the known-answer test"), "{error}");
                found.count(&error, first, made);
            } else {
                assert!(error.to_string().contains("that it had dropped"), "{lie}: {error}");
                assert_eq!(made, first, "{lie}: {error}");
            }
        }
        match device {
            "cpu" => found.check(device, "computes nothing"),
            _ => println!("{device}, computes nothing: all {} were found in that step", drills(4)),
        }
    });
}
