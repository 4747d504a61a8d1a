//! Compiles every kernel that there is reference data for, with the plans for one GPU, and counts them: those
//! of a training step of each model, and those of each op, layer, loss, metric and optimizer of the reference
//! cases, with their gradients.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clap::ValueEnum;
use serde_json::{Value, json};
use unisono::Precision;
use unisono::graph::plan::{Access, Command, Kernel, Plan, WorkKind};
use unisono::graph::{GraphError, Program, Run, Target};
use unisono_examples::{Error, Model};

use super::Step;
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

/// Compiles kernels. Returns what is spilled of each.
pub type Compile<'a> = dyn FnMut(&[Kernel]) -> Result<Vec<u64>, Error> + 'a;

/// All that was compiled for a GPU.
pub struct Everything<'a> {
    compile: Box<Compile<'a>>,
    target: Target,
    /// The kernels so far, by their text and the number of their bindings.
    known: BTreeSet<(String, usize)>,
    /// The kernels that are not compiled yet, each with where it was found and whether it is a product.
    waiting: Vec<(String, bool, Kernel)>,
    /// The models and suites.
    pub counts: Vec<Count>,
    /// The kernels that spill.
    pub spills: Vec<Spill>,
}

/// The number of kernels that are compiled at once.
const AT_ONCE: usize = 100;

impl<'a> Everything<'a> {
    /// Returns an empty count for a target.
    pub fn new(target: Target, compile: Box<Compile<'a>>) -> Self {
        let (known, waiting, counts, spills) = Default::default();
        Self { compile, target, known, waiting, counts, spills }
    }

    /// Returns the number of distinct pipelines.
    pub fn pipelines(&self) -> usize {
        self.known.len()
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
            if self.known.insert((kernel.wgsl.clone(), kernel.bindings.len())) {
                count.pipelines += 1;
                self.waiting.push((count.what.clone(), is_product(&plan, index), kernel.clone()));
            }
        }
        if self.waiting.len() >= AT_ONCE { self.finish() } else { Ok(()) }
    }

    /// Compiles what is not compiled yet.
    ///
    /// # Errors
    /// The driver refuses a kernel.
    pub fn finish(&mut self) -> Result<(), Error> {
        let waiting = std::mem::take(&mut self.waiting);
        let kernels: Vec<Kernel> = waiting.iter().map(|(.., kernel)| kernel.clone()).collect();
        let spilled = (self.compile)(&kernels)?;
        for ((what, is_product, kernel), spilled) in waiting.into_iter().zip(spilled) {
            if spilled > 0 {
                self.spills.push(Spill { what, kernel: kernel.name, spilled, is_product });
            }
        }
        Ok(())
    }
}

/// Returns kernels as JSON, for a process that compiles them.
pub fn to_json(kernels: &[Kernel]) -> Value {
    let one = |kernel: &Kernel| {
        let reads: Vec<bool> = kernel.bindings.iter().map(|own| *own == Access::Read).collect();
        json!({ "name": kernel.name, "wgsl": kernel.wgsl, "reads": reads })
    };
    kernels.iter().map(one).collect()
}

/// Returns the kernels of [`to_json`], or `None` if it is something else.
pub fn from_json(kernels: &Value) -> Option<Vec<Kernel>> {
    let one = |kernel: &Value| {
        let access = |reads: &Value| Some(if reads.as_bool()? { Access::Read } else { Access::ReadWrite });
        let bindings = kernel["reads"].as_array()?.iter().map(access).collect::<Option<_>>()?;
        Some(Kernel {
            name: kernel["name"].as_str()?.into(),
            wgsl: kernel["wgsl"].as_str()?.into(),
            bindings,
        })
    };
    kernels.as_array()?.iter().map(one).collect()
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
    fn kernels_come_back_from_json() {
        let kernel = Kernel {
            name: "sum".into(),
            wgsl: "fn main() {}".into(),
            bindings: vec![Access::Read, Access::ReadWrite],
        };
        assert_eq!(from_json(&to_json(std::slice::from_ref(&kernel))).unwrap(), [kernel]);
        assert!(from_json(&json!([{ "name": 3 }])).is_none());
    }

    /// The same kernels of another program are not compiled again.
    #[test]
    fn each_kernel_is_compiled_once() {
        let mut compiled = Vec::new();
        let compile = |kernels: &[Kernel]| {
            compiled.extend(kernels.iter().map(|kernel| kernel.name.clone()));
            Ok(kernels.iter().map(|kernel| u64::from(kernel.name.starts_with("matmul"))).collect())
        };
        let step = Step { model: Model::Mlp, batch: 16, shards: 2, replicas: 1, precision: Precision::F32 };
        let mut all = Everything::new(super::super::target(), Box::new(compile));
        let (mut first, mut second) = (Count::default(), Count::default());
        for count in [&mut first, &mut second] {
            all.program(count, &step.program().unwrap(), &step.run()).unwrap();
        }
        all.finish().unwrap();
        assert_eq!((first.plans, second.plans, second.pipelines), (1, 1, 0));
        assert_eq!(first.pipelines, all.pipelines());
        assert!(all.spills.iter().all(|spill| spill.is_product) && !all.spills.is_empty());
        let pipelines = all.pipelines();
        drop(all);
        assert_eq!(compiled.len(), pipelines);
    }

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
