//! What a training step is on a GPU, counted without one: launches, barriers, bytes and floating-point
//! operations of its plan (`index`, `steps`), and the machine code of its kernels (`driver`, `assembly`,
//! `slab`, `reduction`), with what a compiler did to their float operations (`arithmetic`).
//!
//! Nothing here is timed, and no device computes anything: Mesa's drivers compile for GPUs that are not
//! there.

pub mod arithmetic;
pub mod assembly;
pub mod columns;
pub mod driver;
pub mod everything;
pub mod index;
pub mod reduction;
pub mod slab;
pub mod steps;

use std::sync::Arc;

use unisono::gpu::{Adapter, Backend, Features, Kind, Limits};
use unisono::graph::{Plan, Program, Run, Target};
use unisono::{AdamW, Precision, ProgramId, Trainer};
use unisono_examples::{Error, Model};

/// Which step is planned.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The model.
    pub model: Model,
    /// The samples of a global batch.
    pub batch: usize,
    /// The shards that a batch is cut into.
    pub shards: usize,
    /// The number of replicas. The one with the most shards is planned.
    pub replicas: usize,
    /// The precision of products.
    pub precision: Precision,
}

impl Step {
    /// Returns the plan of a training step with AdamW for a target, and the bytes of its state.
    ///
    /// # Errors
    /// As [`unisono::Builder::program`] and [`unisono::graph::Program::plan`].
    pub fn plan(&self, target: &Target) -> Result<(Plan, u64), Error> {
        let program = self.program()?;
        let state = program.states().iter().map(|state| 4 * state.ty.count() as u64).sum();
        Ok((program.plan(&self.run(), target)?, state))
    }

    /// Returns the program of a training step with AdamW.
    ///
    /// # Errors
    /// As [`unisono::Builder::program`].
    pub fn program(&self) -> Result<Arc<Program>, Error> {
        let builder = Trainer::builder(self.model.layers()).optimizer(AdamW::new(1e-3));
        let builder = builder.global_batch(self.batch).shards(self.shards).precision(self.precision);
        builder.program(ProgramId::Train, &self.model.fields()).map_err(Error::from)
    }

    /// Returns the shards of the first replica, which has as many as any other.
    pub fn run(&self) -> Run {
        let shards = self.shards.min(self.batch);
        let first = |shard: usize| shard * self.batch / shards;
        let own = shards.div_ceil(self.replicas.max(1));
        Run { first: 0, sizes: (0..own).map(|shard| first(shard + 1) - first(shard)).collect(), shards }
    }
}

/// Returns the target of a discrete GPU with the limits that drivers of today's report.
pub fn target() -> Target {
    let adapter = Adapter {
        name: "a discrete GPU".to_owned(),
        backend: Backend::Vulkan,
        kind: Kind::Discrete,
        driver: String::new(),
        driver_info: String::new(),
        vendor: 0,
        device: 0,
        pci_bus: String::new(),
        arithmetic: None,
        twin: 0,
        limits: Limits {
            buffer_bytes: 4 << 30,
            storage_binding_bytes: (2 << 30) - 4,
            storage_buffers: 64,
            workgroups: 65_535,
            invocations: 1024,
            workgroup_bytes: 32 << 10,
            storage_alignment: 32,
            uniform_alignment: 64,
            subgroup: (32, 64),
        },
        features: Features { f16: true, timestamps: true, subgroups: true, mappable: false },
        matrix_sizes: Vec::new(),
        unit: None,
    };
    adapter.target()
}
