//! Workers that keep a few plans loaded, and programs that are forgotten.

use std::collections::VecDeque;

use super::super::*;
use super::simulation::{Fate, Simulation, Step as Wanted};
use super::{Draw, job, policy};

/// The plans that a simulated worker has loaded.
#[derive(Debug, Default)]
pub(super) struct Plans {
    /// The plan that was used last is at the end.
    loaded: VecDeque<(usize, Arc<Run>)>,
    /// Those that were dropped since the worker told of it.
    pub dropped: Vec<(usize, Arc<Run>)>,
}

impl Plans {
    pub fn has(&self, program: usize, run: &Arc<Run>) -> bool {
        self.loaded.contains(&(program, Arc::clone(run)))
    }

    /// Uses a plan. If it is not loaded, the oldest one is dropped where there are `most`, and this one is
    /// loaded if there is memory for it.
    pub fn take(&mut self, program: usize, run: &Arc<Run>, most: Option<usize>, fits: bool) {
        let key = (program, Arc::clone(run));
        let known =
            self.loaded.iter().position(|loaded| *loaded == key).and_then(|at| self.loaded.remove(at));
        if known.is_none() && Some(self.loaded.len()) == most {
            self.dropped.extend(self.loaded.pop_front());
        }
        self.loaded.extend(known.or(fits.then_some(key)));
    }

    pub fn forget(&mut self, programs: &Range<usize>) {
        self.loaded.retain(|(program, _)| !programs.contains(program));
    }
}

fn of(program: usize, sizes: Vec<usize>) -> Wanted {
    Wanted { job: Job { program, sizes, ..job(1, true) }, skip: false, not_finite: false }
}

/// Three programs take turns on workers that keep two plans. Each step loads, within the time for loading,
/// and what a worker has dropped does not count as loaded: `Simulation::load` checks both.
#[test]
fn a_plan_that_was_dropped_has_the_time_to_be_loaded_again() {
    let mut simulation = Simulation::new(2, policy(), Fate::default(), Draw(3));
    simulation.keeps = Some(2);
    for turn in 0..12 {
        assert_eq!(simulation.step(&of(turn % 3, vec![8; 4])), Ok(true));
    }
    assert_eq!((simulation.loads, simulation.lost), (2 * 12, 0));
    for turn in 0..12 {
        assert_eq!(simulation.step(&of(turn % 2, vec![8; 4])), Ok(true));
    }
    assert_eq!((simulation.loads, simulation.lost), (2 * 12 + 2 * 2, 0));
}

/// A worker with more groups of shards than it keeps plans loads each of them once a step.
#[test]
fn a_step_of_more_plans_than_are_kept_loads_each_of_them_once() {
    let policy = Policy { shards_at_once: Some(1), ..policy() };
    let mut simulation = Simulation::new(1, policy, Fate::default(), Draw(3));
    simulation.keeps = Some(3);
    for _ in 0..10 {
        assert_eq!(simulation.step(&of(0, vec![8; 8])), Ok(true));
    }
    assert_eq!(simulation.lost, 0);
    // The first step finds out that they do not fit.
    assert!(simulation.loads <= 10 * 8 + 4, "{}", simulation.loads);
}

/// What a worker could load once says what it can load, also when it has dropped those plans since.
#[test]
fn a_limit_of_memory_is_known_from_plans_that_were_dropped() {
    let mut simulation = Simulation::new(2, policy(), Fate::default(), Draw(5));
    simulation.keeps = Some(1);
    simulation.speeds(&[(3e3, 0.0), (1e3, 0.0)]);
    simulation.rooms(&[4, 8]);
    let alone =
        |program| Wanted { job: Job { few_at_once: false, ..of(program, vec![8; 8]).job }, ..of(0, vec![]) };
    for turn in 0..16 {
        assert_eq!(simulation.step(&alone(turn % 2)), Ok(true));
    }
    assert_eq!((simulation.lost, simulation.committed), (0, 16));
}

/// Programs come and go. What is left of those that are forgotten is nothing.
#[test]
fn nothing_is_left_of_programs_that_are_forgotten() {
    let mut simulation = Simulation::new(3, policy(), Fate::default(), Draw(3));
    for program in 0..40 {
        (0..3).for_each(|_| assert_eq!(simulation.step(&of(program, vec![8; 4])), Ok(true)));
        simulation.forget(program..program + 1);
    }
    let records = simulation.records();
    let none =
        ["paces: {}", "loaded: {}", "could: {}", "at_once_limits: {}", "even_limits: {}", "layouts: {}"];
    assert!(none.iter().all(|none| records.contains(none)) && !records.contains("sizes"), "{records}");
}
