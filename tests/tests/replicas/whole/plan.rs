//! What a seed draws: the lives of a run, and what happens in each.

use super::random::Random;

/// The number of epochs of a run.
pub const EPOCHS: u32 = 5;
/// The number of steps of a run: four in an epoch.
pub const STEPS: usize = 4 * EPOCHS as usize;
/// The number of disk operations and of bytes within which a disk's fault lies: about those of a life.
const OPERATIONS: usize = 500;
const BYTES: usize = 100_000;

/// Returns the end of the name of a fault's point: sums are given back for the last segment.
pub fn segment_of(fault: &str) -> &'static str {
    if fault == "exchange" { ":segment-1" } else { "" }
}

/// A run's lives.
pub struct Plan {
    pub random: Random,
    /// Whether every epoch ends with an evaluation.
    pub evaluates: bool,
    /// The device that computes wrongly in every life until it is found: its replica, from which step of the
    /// first life on, and how.
    pub wrong: Option<(usize, usize, String)>,
    pub lives: Vec<Life>,
    /// Whether the run is audited.
    pub audits: bool,
    /// The replicas of every life, where a device is wrong for good.
    replicas: usize,
}

/// What happens in the life of one process.
#[derive(Clone, Debug)]
pub struct Life {
    pub replicas: usize,
    /// Fault points after the run's scope, and their actions.
    pub points: Vec<(String, String)>,
    /// Whether the points take replicas away, or change what one computes.
    pub loses: bool,
    pub alters: bool,
    /// Whether replicas leave that do not answer within a short time.
    pub is_hasty: bool,
    pub disk: DiskFault,
    /// The step before which the process is asked to stop.
    pub stops_at: Option<u64>,
    pub train: Reading,
    pub held_out: Reading,
    pub audit_every: u64,
    pub digest_every: u64,
    pub save_every: u64,
    pub keep: usize,
    pub keeps_best: bool,
    pub requires: bool,
    /// The number of steps in a loop of its own before the first fit.
    pub own_steps: usize,
    /// The step of that loop before which a replica joins.
    pub joins_at: Option<usize>,
    /// The epochs to which each fit goes.
    pub fits: Vec<u32>,
    /// Whether the same process goes on after data failed or it was asked to stop.
    pub goes_on: bool,
}

/// What happens to the disk in a life.
#[derive(Clone, Debug, PartialEq)]
pub enum DiskFault {
    None,
    /// One operation fails, the one after so many.
    Once(usize),
    /// The disk is full after so many bytes.
    Full(usize),
    /// The process is killed after so many operations: no later one has an effect.
    Killed(usize),
    /// Power fails after so many operations, and what was not synced is lost.
    Power(usize),
    /// The process is killed at a step.
    KilledAt(u64),
    /// Power fails at a step.
    PowerAt(u64),
}

/// How data are read in a life.
#[derive(Clone, Debug)]
pub struct Reading {
    pub threads: usize,
    pub prefetch: usize,
    /// Whether samples come late.
    pub naps: bool,
    /// The read that fails, counted from 0.
    pub fails_at: Option<u64>,
    /// The read at which the process is asked to stop.
    pub stops_at: Option<u64>,
}

impl Reading {
    /// Returns a reading without a fault.
    pub fn plain() -> Self {
        Self { threads: 1, prefetch: 1, naps: false, fails_at: None, stops_at: None }
    }
}

impl Random {
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn maybe(&mut self, one_in: usize, below: usize) -> Option<u64> {
        self.one_in(one_in).then(|| self.below(below) as u64)
    }
}

impl Plan {
    /// Draws the plan of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x5eed);
        let replicas = 2 + random.below(2);
        let wrong = random.one_in(4).then(|| {
            let fault = ["gradient", "exchange", "state:0", "state:3"][random.below(4)];
            (random.below(replicas), random.below(STEPS), fault.to_owned())
        });
        let evaluates = random.one_in(2);
        let lives = 1 + random.below(4);
        let mut plan = Self { random, evaluates, wrong, lives: vec![], audits: true, replicas };
        plan.lives = (0..lives).map(|_| plan.life()).collect();
        plan
    }

    fn life(&mut self) -> Life {
        let mut life = self.calm();
        life.disk = self.disk();
        let random = &mut self.random;
        life.stops_at = random.maybe(5, STEPS);
        life.goes_on = random.one_in(2);
        life.train.fails_at = random.maybe(5, 300);
        life.held_out.fails_at = random.maybe(6, 120);
        life.held_out.stops_at = random.maybe(6, 120);
        if random.one_in(3) {
            life.own_steps = 1 + random.below(3);
            life.joins_at = random.one_in(2).then(|| random.below(life.own_steps));
        }
        if random.one_in(3) {
            life.fits.insert(0, 1 + random.below(EPOCHS as usize - 1) as u32);
        }
        self.replica_faults(&mut life);
        life
    }

    /// Returns a life without a fault of its own. What is drawn for it changes no bit.
    pub fn calm(&mut self) -> Life {
        let reading = |random: &mut Random| Reading {
            threads: 1 + random.below(3),
            prefetch: random.below(4),
            naps: random.one_in(3),
            ..Reading::plain()
        };
        let random = &mut self.random;
        Life {
            replicas: if self.wrong.is_some() { self.replicas } else { 1 + random.below(3) },
            points: vec![],
            loses: false,
            alters: false,
            is_hasty: false,
            disk: DiskFault::None,
            stops_at: None,
            train: reading(random),
            held_out: reading(random),
            audit_every: if self.audits { 3 + random.below(6) as u64 } else { 0 },
            digest_every: [0, 1, 3, 100][random.below(4)],
            save_every: [0, 1, 2, 3, 5][random.below(5)],
            keep: 1 + random.below(3),
            keeps_best: random.one_in(4),
            requires: random.one_in(4),
            own_steps: 0,
            joins_at: None,
            fits: vec![EPOCHS],
            goes_on: false,
        }
    }

    fn disk(&mut self) -> DiskFault {
        let random = &mut self.random;
        match random.below(10) {
            0 => DiskFault::Once(random.below(OPERATIONS)),
            1 => DiskFault::Full(random.below(BYTES)),
            2 => DiskFault::Killed(random.below(OPERATIONS)),
            3 => DiskFault::Power(random.below(OPERATIONS)),
            4 => DiskFault::KilledAt(random.below(STEPS) as u64),
            5 => DiskFault::PowerAt(random.below(STEPS) as u64),
            _ => DiskFault::None,
        }
    }

    /// Draws faults of replicas. Where one is wrong none is lost, for the wrong one could be the last.
    fn replica_faults(&mut self, life: &mut Life) {
        let random = &mut self.random;
        let mut point = |random: &mut Random, action: &str| {
            let (replica, step) = (random.below(life.replicas), random.below(STEPS));
            life.points.push((format!("replica-{replica}:step-{step}"), action.to_owned()));
        };
        if random.one_in(3) {
            point(random, "return(slow:2)");
        }
        if self.wrong.is_some() {
            return;
        }
        if life.replicas > 1 && random.one_in(4) {
            let fault = ["exchange", "state:0", "state:2", "state:7"][random.below(4)];
            let (replica, step) = (random.below(life.replicas), random.below(STEPS));
            let at = segment_of(fault);
            life.points.push((format!("replica-{replica}:step-{step}{at}"), format!("1*return({fault})")));
            life.alters = true;
        } else if random.one_in(2) {
            for _ in 0..1 + random.below(3) {
                let action = match random.below(6) {
                    0 => "return(lose)",
                    1 => "return(panic)",
                    2 => "return(out-of-memory)",
                    3 => "1*return(out-of-memory)",
                    4 => "return(transfer)",
                    _ => "1*sleep(700)",
                };
                life.is_hasty |= action.contains("sleep");
                point(random, action);
            }
            life.loses = true;
        }
    }
}
