//! Runs cases on a device and compares the answers.

use std::collections::BTreeMap;
use std::fmt;

use unisono_gpu::{Adapter, Device, Options};
use unisono_graph::{Array, DType, Feed, Frame, Graph, Layout, Lead, Precision, Program, Tape, Type, Var};
use unisono_replica::shards;

use super::{Case, Recipe, Reference, Suite, Vars, metrics, optimizers, recipe, training};

/// The result of a case: its worst error over its tolerance (it passed if this is at most 1), or why it could
/// not be run.
pub type Verdict = Result<f64, String>;

/// The result of a suite. It prints as a line, followed by a line for each failure.
#[derive(Clone, Debug)]
pub struct Outcome {
    suite: String,
    adapter: String,
    cases: usize,
    worst: f64,
    ran: Ran,
    /// The cases that failed, and why.
    pub failures: Vec<String>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { suite, adapter, cases, worst, ran: Ran { plans, pipelines }, failures } = self;
        let passed = cases - failures.len();
        write!(
            f,
            "{suite} on {adapter}: {cases} cases, {passed} passed, worst error {worst:.2} of its tolerance, \
             {plans} plans with {pipelines} pipelines"
        )?;
        failures.iter().try_for_each(|failure| write!(f, "\n  FAILED {failure}"))
    }
}

/// What devices were given.
#[derive(Clone, Copy, Debug, Default)]
struct Ran {
    plans: u64,
    /// The compiled kernels. Each device compiles its own.
    pipelines: u64,
}

/// The largest error that passes in mixed precision, relative to the norm of what is expected: eight times
/// the rounding of an f16.
const OF_HALVES: f64 = 8.0 / 2048.0;

/// Runs cases on one adapter.
pub struct Runner {
    adapter: Adapter,
    device: Device,
    options: Options,
    precision: Precision,
    /// What the devices before this one were given.
    before: Ran,
    /// The sizes of the states that the device has, in elements.
    states: Vec<usize>,
}

impl Runner {
    /// Opens an adapter. The error says why that is not possible.
    pub fn open(adapter: &Adapter) -> Result<Self, String> {
        Self::open_with(adapter, Options::default())
    }

    /// Opens an adapter with these options.
    ///
    /// # Errors
    /// It does not open.
    pub fn open_with(adapter: &Adapter, options: Options) -> Result<Self, String> {
        let device = Device::open_with(adapter, options.clone()).map_err(|e| e.to_string())?;
        let (before, precision) = (Ran::default(), Precision::F32);
        Ok(Self { adapter: adapter.clone(), device, options, precision, before, states: vec![] })
    }

    /// Opens an adapter for cases whose products are in this precision. Then ops, layers and losses may be
    /// off by the rounding of f16; optimizers, metrics and short runs are computed in f32.
    ///
    /// # Errors
    /// The adapter does not open, or does not have what the precision needs.
    pub fn open_in(adapter: &Adapter, precision: Precision) -> Result<Self, String> {
        let adapter = match precision {
            Precision::MatrixUnits => adapter.with_matrix_units().map_err(|e| e.to_string())?,
            Precision::F32 | Precision::Mixed => adapter.clone(),
        };
        let options = Options::default().with(|options| options.f16 = precision.is_mixed());
        Ok(Self { precision, ..Self::open_with(&adapter, options)? })
    }

    /// Returns the largest error that a case may have.
    fn tolerance(&self, case: &Case) -> f64 {
        if self.precision.is_mixed() { case.tolerance.max(OF_HALVES) } else { case.tolerance }
    }

    /// Runs every case of a suite.
    pub fn suite(&mut self, suite: &Suite) -> Outcome {
        let (mut worst, mut failures) = (0.0f64, Vec::new());
        for case in &suite.cases {
            match self.run(case) {
                Ok(error) if error <= 1.0 => worst = worst.max(error),
                Ok(error) => failures
                    .push(format!("{}: {error:.2} times its tolerance of {:e}", case.name, case.tolerance)),
                Err(problem) => failures.push(format!("{}: {problem}", case.name)),
            }
        }
        let (suite, cases) = (suite.name.clone(), suite.cases.len());
        Outcome { suite, adapter: self.adapter.label(), cases, worst, ran: self.ran(), failures }
    }

    /// Runs a case with every number of shards, or of replicas, that applies. Returns the worst result.
    pub fn run(&mut self, case: &Case) -> Verdict {
        if case.op == "train" {
            return training::train(case, &self.adapter);
        }
        if let Some(steps) = optimizers::steps(case) {
            return steps.and_then(|steps| self.optimize(case, &steps));
        }
        if let Some(metric) = metrics::metric(case) {
            return self.measure(case, &*metric?);
        }
        let recipe = recipe(case)?;
        let (graph, rows) = trace(case, &recipe, self.precision)?;
        let layout = Layout { f16: self.precision.is_mixed(), ..Layout::default() };
        let program = Program::compile_with(&graph, layout).map_err(|e| e.to_string())?;
        let tolerance = self.tolerance(case);
        let counts: &[usize] = if rows > 1 { &[1, 3, 8] } else { &[1] };
        let mut worst = 0.0f64;
        for &count in counts {
            let feed = feed(case, &recipe, &graph, &shards::sizes(rows, count, rows));
            let (outputs, states) = self.step(&program, &feed)?;
            for (role, expected) in &case.expect {
                // What a layer's statistics become is in its states.
                let answer = outputs.get(role).or_else(|| states.get(role.strip_prefix("after.")?));
                let error = error(answer, expected).map_err(|e| format!("{role}, {count} shards: {e}"))?;
                worst = worst.max(error / tolerance);
                if error > tolerance {
                    let times = error / tolerance;
                    let of = format!("times its tolerance of {tolerance:e}");
                    return Err(format!("{role}, {count} shards: {times:.2} {of}"));
                }
            }
        }
        Ok(worst)
    }

    /// Computes a metric's values with every number of shards, and reduces them in the order of the samples.
    /// It is a failure if the shards show in a bit.
    fn measure(&mut self, case: &Case, metric: &dyn unisono::Metric) -> Verdict {
        let recipe = metrics::recipe(case)?;
        let (graph, rows) = trace(case, &recipe, Precision::F32)?;
        let program = Program::compile(&graph).map_err(|e| e.to_string())?;
        let mut first: Option<Vec<f64>> = None;
        for count in [1, 3, 8] {
            let feed = feed(case, &recipe, &graph, &shards::sizes(rows, count, rows));
            let (outputs, _) = self.step(&program, &feed)?;
            let values = outputs.get("y").ok_or("it did not come out")?;
            let answer = metrics::reduce(case, metric, values);
            let bits = |answer: &[f64]| answer.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            if bits(first.get_or_insert_with(|| answer.clone())) != bits(&answer) {
                return Err(format!("{count} shards give other bits than 1"));
            }
        }
        let answer: Vec<f32> = first.iter().flatten().map(|&x| x as f32).collect();
        let expected = case.expect.get("y").ok_or("no y to compare with")?;
        Ok(error(Some(&answer), expected)? / case.tolerance)
    }

    /// Takes the steps of an optimizer and compares the weight after the last one.
    fn optimize(&mut self, case: &Case, steps: &optimizers::Steps) -> Verdict {
        let mut states: Vec<Array> = steps.states.clone();
        for scalars_and_gradient in &steps.inputs {
            let feed = Feed {
                frame: Frame { shards: vec![1] },
                inputs: scalars_and_gradient.clone(),
                states: states.clone(),
            };
            let (_, new) = self.step(&steps.program, &feed)?;
            for (decl, state) in steps.program.states().iter().zip(&mut states) {
                *state = Array::new(&decl.ty.dims, new[&decl.name].iter().map(|&x| f64::from(x)).collect());
            }
        }
        let mut worst = 0.0f64;
        case.expect.get("y").ok_or("no y to compare with")?;
        for (role, expected) in &case.expect {
            // The weight is y; what is kept beside it has its own role.
            let name = if role == "y" { "w".to_owned() } else { format!("w/{role}") };
            let at = steps.program.states().iter().position(|state| state.name == name);
            let answer: Option<Vec<f32>> = at.map(|at| states[at].data.iter().map(|&x| x as f32).collect());
            worst = worst.max(error(answer.as_ref(), expected)? / case.tolerance);
        }
        Ok(worst)
    }

    /// Returns what all devices so far were given. Short runs open devices of their own, which are not
    /// counted.
    fn ran(&self) -> Ran {
        let device = self.device.counters();
        Ran { plans: self.before.plans + device.loads, pipelines: self.before.pipelines + device.kernels }
    }

    fn step(&mut self, program: &Program, feed: &Feed) -> Result<(Values, Values), String> {
        // A device keeps the states that it was first given, so that other ones need a new device.
        let states: Vec<usize> = program.states().iter().map(|state| state.ty.count()).collect();
        if states != self.states {
            let opened = Self::open_with(&self.adapter, self.options.clone())?;
            *self = Self { states, before: self.ran(), precision: self.precision, ..opened };
        }
        let ran = unisono_testkit::run(&mut self.device, program, feed).map_err(|e| e.to_string())?;
        Ok((ran.outputs, ran.states))
    }
}

type Values = BTreeMap<String, Vec<f32>>;

/// Returns the graphs of a case with the values of their inputs and states: one, or one for each step of an
/// optimizer.
///
/// # Errors
/// There is no recipe for the case, or it cannot be traced.
pub fn steps(case: &Case) -> Result<Vec<(Graph, Feed)>, String> {
    if let Some(steps) = optimizers::steps(case) {
        let steps = steps?;
        // Each step starts from the same states, which is enough to compare adapters.
        let feed = |inputs: &Vec<Array>| Feed {
            frame: Frame { shards: vec![1] },
            inputs: inputs.clone(),
            states: steps.states.clone(),
        };
        return Ok(steps.inputs.iter().map(|inputs| (steps.graph.clone(), feed(inputs))).collect());
    }
    let recipe = match metrics::metric(case) {
        Some(_) => metrics::recipe(case)?,
        None => recipe(case)?,
    };
    let (graph, rows) = trace(case, &recipe, Precision::F32)?;
    let sizes = shards::sizes(rows, if rows > 1 { 3 } else { 1 }, rows);
    let feed = feed(case, &recipe, &graph, &sizes);
    Ok(vec![(graph, feed)])
}

/// Returns the graph of a case with its gradients, and the number of rows of the batch (1 if there is no
/// batch).
fn trace(case: &Case, recipe: &Recipe, precision: Precision) -> Result<(Graph, usize), String> {
    let tape = Tape::with_precision(precision);
    let mut rows = 1;
    let mut declare = |role: &str, tensor: &Reference, batched: bool| {
        if batched {
            rows = tensor.dims[0];
        }
        let dims = if batched { &tensor.dims[1..] } else { &tensor.dims[..] };
        let ty = if batched { Type::sample(dims) } else { Type::global(dims) };
        tape.input(role, ty.of(tensor.dtype))
    };
    let is_gradient = |role: &str| {
        role.starts_with('g') && role.len() > 1 && !case.expect.contains_key(&format!("d{role}"))
    };
    let mut inputs = Vars::new();
    let is_parameter = |role: &str| recipe.parameters.iter().any(|(own, _)| own == role);
    for (role, tensor) in case.inputs.iter().filter(|(role, _)| !is_gradient(role) && !is_parameter(role)) {
        inputs.insert(role.clone(), declare(role, tensor, recipe.batched.contains(&role.as_str())));
    }
    let mut outputs = (recipe.build)(&tape, &inputs);
    for (role, name) in &recipe.parameters {
        inputs.extend(outputs.remove(name).map(|var| (role.clone(), var)));
    }
    let mut total: Option<Var> = None;
    let wants_gradients = case.expect.keys().any(|role| role.starts_with('d'));
    for (role, output) in &outputs {
        if case.expect.contains_key(role) {
            tape.output(role, &output.to_f32());
        }
        let gradient = case.inputs.get(&format!("g{role}"));
        let weighted = match gradient {
            Some(tensor) => output * &declare(&format!("g{role}"), tensor, output.ty().lead == Lead::Sample),
            None if output.ty() == &Type::global(&[]) => output.clone(),
            None => continue,
        };
        let sum = weighted.sum_all();
        let sum = if sum.ty().lead == Lead::Sample { sum.sum_shards() } else { sum };
        total = Some(total.map_or_else(|| sum.clone(), |t| &t + &sum));
    }
    if let (Some(total), true) = (total, wants_gradients) {
        let wanted: Vec<(&String, &Var)> =
            inputs.iter().filter(|(role, _)| case.expect.contains_key(&format!("d{role}"))).collect();
        let vars: Vec<Var> = wanted.iter().map(|(_, var)| (*var).clone()).collect();
        for ((role, _), gradient) in wanted.iter().zip(tape.gradients(&total, &vars)) {
            tape.output(&format!("d{role}"), &gradient);
        }
    }
    Ok((tape.finish().map_err(|e| e.to_string())?, rows))
}

fn feed(case: &Case, recipe: &Recipe, graph: &Graph, sizes: &[usize]) -> Feed {
    let input = |name: &String| case.inputs.get(name).map(|r| Array::new(&r.dims, r.data.clone()));
    let inputs = graph.inputs.iter().map(|i| input(&i.name).unwrap_or_else(|| Array::scalar(0.0)));
    let role = |name: &str| recipe.parameters.iter().find(|(_, own)| own == name).map(|(role, _)| role);
    let states = graph.states.iter().map(|state| {
        let given = role(&state.name).and_then(|role| case.inputs.get(role));
        given.map_or_else(|| Array::scalar(0.0), |r| Array::new(&r.dims, r.data.clone()))
    });
    Feed { frame: Frame { shards: sizes.to_vec() }, inputs: inputs.collect(), states: states.collect() }
}

/// Returns the norm of the difference over the norm of what is expected. If the latter is 0, it is replaced
/// by 1.
pub(super) fn error(answer: Option<&Vec<f32>>, expected: &Reference) -> Result<f64, String> {
    let answer = answer.ok_or("it did not come out")?;
    if answer.len() != expected.data.len() {
        return Err(format!("{} values instead of {:?}", answer.len(), expected.dims));
    }
    if expected.dtype == DType::I32 && answer.iter().zip(&expected.data).any(|(&a, &e)| f64::from(a) != e) {
        return Err("indices differ".into());
    }
    let error = unisono_testkit::relative_error(answer, &Array::new(&expected.dims, expected.data.clone()));
    if error.is_finite() { Ok(error) } else { Err("a value is not finite".into()) }
}
