//! The programs that all replicas know, by their numbers. Further ones may be added while replicas run.

use std::sync::{Arc, PoisonError, RwLock};

use unisono_graph::Program;

/// The programs, shared by the coordinator and all workers. A number stands for the same program for ever.
#[derive(Clone, Debug)]
pub(crate) struct Programs(Arc<RwLock<Vec<Arc<Program>>>>);

impl Programs {
    pub fn new(programs: &[Arc<Program>]) -> Self {
        Self(Arc::new(RwLock::new(programs.to_vec())))
    }

    /// Adds programs behind those that are there.
    pub fn add(&self, more: &[Arc<Program>]) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).extend_from_slice(more);
    }

    /// Returns a program. The coordinator only gives out numbers of programs that are there.
    pub fn get(&self, index: usize) -> Arc<Program> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)[index])
    }

    /// Returns whether any of the programs stores f16.
    pub fn store_f16(&self) -> bool {
        let programs = self.0.read().unwrap_or_else(PoisonError::into_inner);
        programs.iter().any(|program| program.stores_f16())
    }
}
