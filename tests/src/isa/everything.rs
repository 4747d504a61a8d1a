//! Compiles every kernel that there is reference data for, with the plans for one GPU, and counts them: those
//! of a training step of each model, and those of each op, layer, loss, metric and optimizer of the reference
//! cases, with their gradients.

use std::collections::BTreeMap;
use std::path::Path;

use clap::ValueEnum;
use unisono::graph::plan::{Command, Kernel, Plan, WorkKind};
use unisono::graph::{GraphError, Program, Run, Target};
use unisono::{Precision, gpu::Adapter};
use unisono_examples::{Error, Model};

use super::Step;
use super::driver::Compiler;
use crate::vendors::{Subject, ops, suites};

/// The chips whose products must not spill a register. On others a spill is only reported.
pub const NO_SPILLS: [&str; 5] = ["navi21", "navi31", "gfx1201", "turing", "ampere"];

/// What came of one model or of one suite of cases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The name of the model with its precision, or of the suite.
    pub what: String,
    /// The number of plans that were made.
    pub plans: usize,
    /// The number of programs that have no plan, because the GPU lacks f16 or a limit stands against it.
    pub refused: usize,
    /// The number of distinct kernels, each compiled as a pipeline.
    pub pipelines: usize,
    /// Why the first program that was refused has no plan.
    pub why: Option<String>,
}

/// A kernel that spills registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spill {
    /// The model or suite that has the kernel first.
    pub what: String,
    /// The kernel's name.
    pub kernel: String,
    /// What the driver counts: registers or instructions, each driver by its own unit.
    pub spilled: u64,
    /// Whether the kernel is a matrix product.
    pub is_product: bool,
}

/// All that was compiled for a GPU.
pub struct Everything<'a> {
    compiler: &'a Compiler,
    target: Target,
    /// The spilled registers of each pipeline, by the kernel's text and the number of its bindings.
    pipelines: BTreeMap<(String, usize), u64>,
    /// The models and suites.
    pub counts: Vec<Count>,
    /// The kernels that spill.
    pub spills: Vec<Spill>,
}

impl<'a> Everything<'a> {
    /// Returns an empty count for the target of an adapter.
    pub fn new(compiler: &'a Compiler, adapter: &Adapter) -> Self {
        let (pipelines, counts, spills) = Default::default();
        Self { compiler, target: adapter.target(), pipelines, counts, spills }
    }

    /// Returns the number of distinct pipelines.
    pub fn pipelines(&self) -> usize {
        self.pipelines.len()
    }

    /// Compiles the kernels of a training step of every model with AdamW, in f32 and in mixed precision.
    ///
    /// # Errors
    /// A program is not traced or planned for another reason than a limit of the GPU, or the driver refuses a
    /// kernel.
    pub fn models(&mut self) -> Result<(), Error> {
        for &model in Model::value_variants() {
            for precision in [Precision::F32, Precision::Mixed] {
                let step = Step { model, batch: model.batch(), shards: 8, replicas: 1, precision };
                let program = step.program()?;
                let mut run = step.run();
                let mut count = Count { what: format!("{} {precision}", model.flag()), ..Count::default() };
                // What does not fit at once is planned a shard at a time, as a trainer does.
                if matches!(program.plan(&run, &self.target), Err(GraphError::Limit { .. })) {
                    run.sizes.truncate(1);
                }
                self.program(&mut count, &program, &run)?;
                self.counts.push(count);
            }
        }
        Ok(())
    }

    /// Compiles the kernels of every case of every op and of the suites of a directory, with gradients.
    ///
    /// # Errors
    /// As [`Everything::models`]; the suites cannot be read.
    pub fn cases(&mut self, oracle: &Path) -> Result<(), Error> {
        let mut counts: BTreeMap<String, Count> = BTreeMap::new();
        for Subject { name, graph, feed } in ops()?.into_iter().chain(suites(oracle)?) {
            let name = name.trim_start_matches("gradient of ").split(' ').next().unwrap_or_default();
            let what =
                if name == "op" { "every op".to_owned() } else { format!("PyTorch's cases of {name}") };
            let program = Program::compile(&graph)?;
            let count = counts.entry(what.clone()).or_default();
            count.what = what;
            self.program(count, &program, &Run::whole(&feed.frame.shards))?;
        }
        self.counts.extend(counts.into_values());
        Ok(())
    }

    /// Plans a program and compiles those of its kernels that are new.
    fn program(&mut self, count: &mut Count, program: &Program, run: &Run) -> Result<(), Error> {
        let plan = match program.plan(run, &self.target) {
            Ok(plan) => plan,
            Err(error) if is_limit(&error, &self.target) => {
                count.refused += 1;
                count.why.get_or_insert_with(|| error.to_string());
                return Ok(());
            }
            Err(error) => return Err(format!("{}: {error}", count.what).into()),
        };
        count.plans += 1;
        for (index, kernel) in plan.kernels.iter().enumerate() {
            let key = (kernel.wgsl.clone(), kernel.bindings.len());
            if self.pipelines.contains_key(&key) {
                continue;
            }
            let spilled = self.compile(kernel).map_err(|error| format!("{}: {error}", count.what))?;
            count.pipelines += 1;
            self.pipelines.insert(key, spilled);
            if spilled > 0 {
                let (what, kernel) = (count.what.clone(), kernel.name.clone());
                self.spills.push(Spill { what, kernel, spilled, is_product: is_product(&plan, index) });
            }
        }
        Ok(())
    }

    fn compile(&self, kernel: &Kernel) -> Result<u64, String> {
        let machine = self.compiler.compile(kernel).map_err(|error| format!("{}: {error}", kernel.name))?;
        Ok(machine.spilled())
    }
}

/// Returns whether a plan's kernel computes a matrix product.
pub fn is_product(plan: &Plan, kernel: usize) -> bool {
    let commands = plan.segments.iter().flat_map(|segment| &segment.commands);
    commands.into_iter().any(|command| match command {
        Command::Launch(launch) => launch.kernel == kernel && launch.work.kind == WorkKind::Product,
        Command::Copy { .. } | Command::Clear(_) => false,
    })
}

/// Returns whether a program has no plan because of what the GPU is.
fn is_limit(error: &GraphError, target: &Target) -> bool {
    match error {
        GraphError::NoF16 { .. } => !target.f16,
        GraphError::Limit { .. } | GraphError::Grid { .. } | GraphError::Kernel { .. } => true,
        _ => false,
    }
}

/// Checks that no product spills on a chip of [`NO_SPILLS`].
///
/// # Errors
/// A text with the products that do.
pub fn check(chip: &str, spills: &[Spill]) -> Result<(), String> {
    if !NO_SPILLS.contains(&chip) {
        return Ok(());
    }
    let products = spills.iter().filter(|spill| spill.is_product);
    let names: Vec<String> =
        products.map(|own| format!("{}: {} spills {}", own.what, own.kernel, own.spilled)).collect();
    match names.is_empty() {
        true => Ok(()),
        false => Err(format!("products spill registers on {chip}: {}", names.join("; "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_that_spills_fails_on_the_chips_that_are_held() {
        let spill = |is_product| {
            vec![Spill { what: "gpt f32".into(), kernel: "matmul_nt".into(), spilled: 3, is_product }]
        };
        assert_eq!(check("adreno740", &spill(true)), Ok(()));
        for chip in NO_SPILLS {
            assert_eq!(check(chip, &spill(false)), Ok(()));
            let error = check(chip, &spill(true)).unwrap_err();
            assert_eq!(error, format!("products spill registers on {chip}: gpt f32: matmul_nt spills 3"));
        }
    }
}
