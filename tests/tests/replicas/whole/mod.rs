//! The whole trainer under simulation. A seed draws the life of one run, over several processes: replicas
//! that are lost, late, slow or wrong and others that join; a disk that fails, fills up, stops or loses
//! power; samples that come late or not; requests to stop. Each run ends in the bytes and the history of the
//! undisturbed one.
//!
//! | part | how it is simulated |
//! | --- | --- |
//! | processes | a trainer is dropped, and another resumes from what the disk holds |
//! | replicas | fault points; each replica is a thread with a device of the software adapter; one alone has two steps in flight, as on a GPU |
//! | disk | in memory, with an end of power, a last byte, or one operation that fails |
//! | loader threads | a source whose samples come late, or fail |
//! | signals | a request to stop, at a step or while an evaluation reads |
//! | clock | a replica that sleeps beyond a deadline |
//!
//! The life of a process may end in an error only if it is of a kind that follows from one of its faults: no
//! replica is left, the disk failed, a sample could not be read, the run was refused. The next life resumes,
//! or begins anew where the error said so. Lives without a fault end the run.
//!
//! A device that is wrong for good stays until a life has found it and has set aside what it did; its run has
//! as many replicas in every life, and loses none of them. Not drawn are gradients that are wrong once, which
//! audits find only by chance, and a clock that jumps, which the simulation of the scheduler has
//! (`schedule/tests` of `unisono_replica`). Threads are real: a seed gives the same schedule each time, and
//! not the same interleaving.
//!
//! `UNISONO_SEED=17` repeats one run, `UNISONO_SEED=100..200` those runs. There are 6 by default, and 2,000
//! with `UNISONO_LONG`.

mod data;
mod life;
mod plan;
#[path = "../../../../crates/checkpoint/tests/all/common/power.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod power;
#[path = "../../../../crates/checkpoint/tests/all/common/random.rs"]
mod random;
mod world;

use std::ops::{AddAssign, Range};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use plan::{Plan, Reading};
use power::PowerDisk;
use unisono::{BestBy, Saving, Stop};
use world::{Reference, World};

/// The longest that one run may take. One takes about a second; this is to notice one that hangs.
const LONGEST: Duration = Duration::from_secs(600);
/// The most lives that a run needs after the last fault.
const LAST_LIVES: usize = 5;

/// How often something occurred.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub lives: usize,
    pub ended: usize,
    pub stopped: usize,
    pub lost: usize,
    pub joined: usize,
    pub rolled_back: usize,
    pub refused: usize,
    pub disk: usize,
    pub data: usize,
    pub resumed: usize,
    /// Steps that were begun while another was in flight.
    pub overlapped: usize,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.lives += other.lives;
        self.ended += other.ended;
        self.stopped += other.stopped;
        self.lost += other.lost;
        self.joined += other.joined;
        self.rolled_back += other.rolled_back;
        self.refused += other.refused;
        self.disk += other.disk;
        self.data += other.data;
        self.resumed += other.resumed;
        self.overlapped += other.overlapped;
    }
}

/// Lives all the lives of a seed's run.
fn run(seed: u64, references: &[Reference; 2]) -> Result<Counts, String> {
    lives(Plan::of(seed), references)
}

fn lives(plan: Plan, references: &[Reference; 2]) -> Result<Counts, String> {
    let mut world = World::new(&plan, &references[usize::from(plan.evaluates)]);
    let wrong = plan.wrong.clone();
    let lived = all_lives(plan, &mut world);
    lived.map_err(|error| format!("{error}\nwrong device: {wrong:?}\n{}", world.story.join("\n")))
}

fn all_lives(mut plan: Plan, world: &mut World<'_>) -> Result<Counts, String> {
    for at in 0..plan.lives.len() {
        let life = plan.lives[at].clone();
        let lived = life::live(world, &life);
        lived.map_err(|error| format!("life {at}: {error}"))?;
        world.between(&life, &mut plan.random);
    }
    for at in 0..LAST_LIVES {
        let life = plan.calm();
        let done = life::live(world, &life);
        if done.map_err(|error| format!("last life {at}: {error}"))? {
            return Ok(world.counts);
        }
        world.between(&life, &mut plan.random);
    }
    Err(format!("does not end in {LAST_LIVES} lives without a fault"))
}

/// Lives a run on a thread of its own, for so long.
fn watched(seed: u64, references: &Arc<[Reference; 2]>) -> Result<Counts, String> {
    let (sender, receiver) = channel();
    let references = Arc::clone(references);
    std::thread::spawn(move || sender.send(run(seed, &references)));
    receiver.recv_timeout(LONGEST).unwrap_or_else(|why| match why {
        RecvTimeoutError::Timeout => Err(format!("hangs: it takes more than {LONGEST:?}")),
        RecvTimeoutError::Disconnected => Err("panics".to_owned()),
    })
}

/// Returns the seeds that are asked for.
fn seeds() -> Range<u64> {
    let number = |text: &str| text.parse().expect("UNISONO_SEED is 17 or 100..200");
    match std::env::var("UNISONO_SEED") {
        Ok(asked) => match asked.split_once("..") {
            Some((from, to)) => number(from)..number(to),
            None => number(&asked)..number(&asked) + 1,
        },
        Err(_) => 0..if std::env::var_os("UNISONO_LONG").is_some() { 2000 } else { 6 },
    }
}

#[test]
fn every_run_ends_in_the_bytes_of_the_undisturbed_one() {
    let references = Arc::new([false, true].map(Reference::new));
    let (mut all, mut failed) = (Counts::default(), Vec::new());
    let seeds = seeds();
    for seed in seeds.clone() {
        match watched(seed, &references) {
            Ok(counts) => all += counts,
            Err(error) => {
                eprintln!("UNISONO_SEED={seed}: {error}");
                failed.push(seed);
            }
        }
        if (seed + 1).is_multiple_of(50) {
            eprintln!("seed {seed}: {all:?}");
        }
    }
    eprintln!("seeds {seeds:?}: {all:?}");
    assert!(failed.is_empty(), "repeat each with UNISONO_SEED: {failed:?}");
    // The faults take place. A few seeds may have no stop and no fault of the data.
    let asked = seeds.end - seeds.start;
    let Counts { ended, stopped, lost, joined, rolled_back, disk, data, resumed, overlapped, .. } = all;
    let each = [ended, lost, joined, rolled_back, disk, resumed, overlapped];
    assert!(asked < 6 || each.iter().all(|&times| times > 0), "{all:?}");
    assert!(asked < 12 || (stopped > 0 && data > 0), "{all:?}");
}

/// Checks that the simulation sees what is wrong: without audits a wrong device is not found.
#[test]
fn without_audits_a_run_ends_in_wrong_bytes_and_is_seen_to() {
    let references = [Reference::new(false), Reference::new(true)];
    let error = |seed| {
        let mut plan = Plan::of(seed);
        (plan.audits, plan.lives) = (false, vec![]);
        plan.wrong = Some((0, 7, "gradient".to_owned()));
        lives(plan, &references).err()
    };
    // In some runs the device has no shards from then on, or its last bits are rounded away.
    let errors: Vec<String> = (0..6).filter_map(error).collect();
    assert!(!errors.is_empty());
    assert!(errors.iter().all(|error| error.contains("wrong bytes after 5 epochs")), "{errors:?}");
}

#[test]
fn the_best_checkpoint_is_that_of_the_disk_that_was_given() {
    let plain = Reading::plain();
    let train = data::loader(false, &plain, &Stop::new());
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(PowerDisk::new(dir.path()));
    let builder = unisono_tests::perceptron(8).global_batch(data::BATCH).replicas(1);
    let mut trainer = builder.build(&train.fields().unwrap()).unwrap();
    let best = BestBy::Lowest("loss".into());
    trainer.save_to(Saving::new(dir.path()).keep_best(best).keep_last(1).on(disk)).unwrap();
    trainer.fit(&train, None, 3).unwrap();
    let lowest = trainer.history().iter().min_by(|a, b| a.train.loss.total_cmp(&b.train.loss));
    let step = lowest.unwrap().steps;
    assert_eq!(trainer.load_best().unwrap(), step);
    trainer.save_model().unwrap();
    // The machine's own has the file that locks the directory, and nothing else.
    let names: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [".lock"]);
}
