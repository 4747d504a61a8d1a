//! The programs that all replicas know, by their numbers. Programs may be added and forgotten while replicas
//! run.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use unisono_graph::Program;

use crate::worker::message::Failure;

/// The programs, shared by the coordinator and all workers. A number stands for the same program for ever:
/// that of a forgotten program is not given out again.
#[derive(Clone, Debug)]
pub(crate) struct Programs(Arc<RwLock<BTreeMap<usize, Arc<Program>>>>);

impl Programs {
    /// Numbers the programs from 0.
    pub fn new(programs: &[Arc<Program>]) -> Self {
        Self(Arc::new(RwLock::new(programs.iter().cloned().enumerate().collect())))
    }

    /// Adds programs, numbered from `first`.
    pub fn add(&self, first: usize, more: &[Arc<Program>]) {
        let numbered = (first..).zip(more.iter().cloned());
        self.0.write().unwrap_or_else(PoisonError::into_inner).extend(numbered);
    }

    /// Forgets programs, which no worker is ordered to run any more.
    pub fn forget(&self, programs: &Range<usize>) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|program, _| !programs.contains(program));
    }

    pub fn has(&self, program: usize) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(&program)
    }

    /// Returns a program. The coordinator only gives out numbers of programs that are there: a worker misses
    /// one only if the run went on without that worker.
    pub fn get(&self, program: usize) -> Result<Arc<Program>, Failure> {
        let programs = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let forgotten = || Failure::Plan(format!("program {program} was forgotten"));
        programs.get(&program).cloned().ok_or_else(forgotten)
    }

    /// Returns whether any of the programs stores f16.
    pub fn store_f16(&self) -> bool {
        let programs = self.0.read().unwrap_or_else(PoisonError::into_inner);
        programs.values().any(|program| program.stores_f16())
    }
}
