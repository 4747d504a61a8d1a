//! The three graphs of a trainer: train, evaluate, predict. Their states have the same numbers.

use std::sync::Arc;

use unisono_data::{Dtype, FieldSpec};
use unisono_graph::{DType, Graph, GraphError, Layout, Precision, Program, StateKind, Tape, Type, Var};

use crate::model::context::{Mode, Parameter, SummaryLine};
use crate::optimizers::{Chain, Gradient, trace_update};
use crate::run::carries;
use crate::run::loss_scale::{INVERSE, SCALE};
use crate::{Context, Error, Initializer, Layer, Loss, Metric};

/// The field with the model's input.
pub const INPUT: &str = "x";
/// The field with the target of the loss.
pub const TARGET: &str = "y";
/// The field with each sample's weight, where there is one.
pub const WEIGHT: &str = "w";

/// Output of each sample's loss.
pub(crate) const LOSS: &str = "loss";
/// Output of each sample's weight, where the loss has weights of its own.
pub(crate) const LOSS_WEIGHT: &str = "loss weight";
/// Output of the sum of the weights.
pub(crate) const WEIGHT_SUM: &str = "weight sum";
/// Output of the penalties.
pub(crate) const PENALTY: &str = "penalty";
/// The sum of its absolute values: it is in no sum over samples, so that nothing else would notice if it were not finite.
pub(crate) const PENALTY_GRADIENT: &str = "gradient of the penalty";
/// Output of the model.
pub(crate) const OUTPUT: &str = "output";

/// What a trainer trains.
pub(crate) struct Parts {
    pub model: Box<dyn Layer>,
    pub loss: Box<dyn Loss>,
    pub optimizer: Chain,
    pub metrics: Vec<Box<dyn Metric>>,
    pub precision: Precision,
}

/// The compiled graphs, and what the host has to know of them.
pub(crate) struct Programs {
    pub train: Arc<Program>,
    pub evaluate: Arc<Program>,
    pub predict: Arc<Program>,
    /// The forward pass in training, to say where numbers went bad.
    pub forward: Graph,
    pub summary: Vec<SummaryLine>,
    /// Start values of the states by index; `None`: zeros.
    pub initializers: Vec<Option<Initializer>>,
    /// The type of the model's output.
    pub output: Type,
    /// What ids in the model's input are below, see [`crate::model::ids::limits`].
    pub ids: Option<Vec<usize>>,
}

/// The fields that a model is built for.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    pub input: Type,
    pub target: Type,
    pub weighted: bool,
    /// What ids in the input are below, see [`crate::model::ids::limits`].
    pub ids: Option<Vec<usize>>,
}

impl Fields {
    pub fn of(specs: &[FieldSpec]) -> Result<Self, Error> {
        let find = |name: &str| specs.iter().find(|s| &*s.name == name);
        let there = || specs.iter().map(|s| s.name.to_string()).collect::<Vec<_>>().join(", ");
        let missing = |name: &str| Error::Field {
            field: name.into(),
            expected: "a field of this name".into(),
            got: there(),
        };
        let input = field_type(find(INPUT).ok_or_else(|| missing(INPUT))?);
        let target = field_type(find(TARGET).ok_or_else(|| missing(TARGET))?);
        let weight = find(WEIGHT).map(field_type);
        match weight {
            Some(ty) if ty != Type::sample(&[]) => Err(Error::Field {
                field: WEIGHT.into(),
                expected: Type::sample(&[]).to_string(),
                got: ty.to_string(),
            }),
            _ => Ok(Self { input, target, weighted: weight.is_some(), ids: None }),
        }
    }
}

impl Fields {
    /// Names and types of those that samples need to be trained on.
    pub fn expected(&self) -> Vec<(&'static str, Type)> {
        let weight = self.weighted.then(|| (WEIGHT, Type::sample(&[])));
        let own = [(INPUT, self.input.clone()), (TARGET, self.target.clone())];
        own.into_iter().chain(weight).collect()
    }
}

/// The type that a field has in a graph.
pub(crate) fn field_type(spec: &FieldSpec) -> Type {
    let dtype = match spec.dtype {
        Dtype::F32 => DType::F32,
        Dtype::I32 => DType::I32,
    };
    Type::sample(&spec.shape).of(dtype)
}

impl Programs {
    pub fn trace(parts: &Parts, fields: &Fields, layout: Layout) -> Result<Self, Error> {
        let train = Trace::new(parts, fields, Mode::Train)?;
        let forward = train.tape.finish()?;
        let (summary, output) = (train.cx.summary().to_vec(), train.output.ty().clone());
        let ids = train.cx.id_limits(&forward, &train.input);
        let asked: Vec<Parameter> = [train.cx.parameters(), train.cx.statistics()].concat();
        let graph = train.with_update(parts)?;
        let start = |name: &str| asked.iter().find(|p| p.name == name).map(|p| p.initializer.clone());
        let initializers = graph.states.iter().map(|s| start(&s.name)).collect();
        let evaluate = Trace::new(parts, fields, Mode::Evaluate)?.tape.finish()?;
        let predict = trace_predict(parts, fields)?;
        let train = Arc::new(Program::compile_with(&graph, layout)?);
        if let Some(name) = carries::too_late(&train) {
            let problem = format!("{name:?} depends on what is known only when the step commits");
            return Err(Error::setting("carries", problem));
        }
        Ok(Self {
            train,
            evaluate: Arc::new(Program::compile_with(&evaluate, layout)?),
            predict: Arc::new(Program::compile_with(&predict, layout)?),
            forward,
            summary,
            initializers,
            output,
            ids,
        })
    }

    /// Indices of the parameters, statistics, and what the optimizer keeps.
    pub fn states_of(&self, kinds: &[StateKind]) -> Vec<usize> {
        let states = self.train.states();
        (0..states.len()).filter(|&i| kinds.contains(&states[i].kind)).collect()
    }
}

/// A forward pass with loss and metrics as outputs.
struct Trace {
    tape: Tape,
    cx: Context,
    input: Var,
    output: Var,
    loss: Var,
    weight: Option<Var>,
}

impl Trace {
    fn new(parts: &Parts, fields: &Fields, mode: Mode) -> Result<Self, Error> {
        let tape = Tape::with_precision(parts.precision);
        let mut cx = Context::new(&tape, mode);
        let x = tape.input(INPUT, fields.input.clone());
        let y = tape.input(TARGET, fields.target.clone());
        let given = fields.weighted.then(|| tape.input(WEIGHT, Type::sample(&[])));
        let output = parts.model.forward(&mut cx, &x);
        // An error of the model comes before what follows from it.
        tape.finish()?;
        fits(&tape, parts, &output, &y);
        tape.finish()?;
        let loss = tape.scope("loss", || tape.in_f32(|| parts.loss.per_sample(&output, &y)));
        if loss.ty() != &Type::sample(&[]) {
            let problem = format!("gives {}, not a number for each sample", loss.ty());
            tape.fail(GraphError::Op { scope: "loss".into(), op: parts.loss.name().into(), problem });
        }
        tape.output(LOSS, &loss);
        let own = tape.scope("loss", || parts.loss.weight(&y));
        let weighs = own.is_some();
        let weight = match (given, own) {
            (Some(given), Some(own)) => Some(given * own),
            (given, own) => own.or(given),
        };
        if let Some(weight) = weight.as_ref().filter(|_| weighs) {
            tape.output(LOSS_WEIGHT, weight);
        }
        for metric in &parts.metrics {
            tape.output(metric.name(), &metric.per_sample(&output, &y));
        }
        carries::trace(&tape, &cx);
        tape.finish()?;
        Ok(Self { tape, cx, input: x, output, loss, weight })
    }

    /// Adds the gradients and the optimizer: sums over all samples, each divided by the sum of the weights once. In mixed
    /// precision they are those of a scaled loss, and scaled back first.
    fn with_update(self, parts: &Parts) -> Result<Graph, Error> {
        let tape = &self.tape;
        let ones = tape.constant(1.0).expand(self.loss.ty().lead, &[]);
        let weight = self.weight.clone().unwrap_or(ones);
        let weight_sum = weight.sum_shards();
        tape.output(WEIGHT_SUM, &weight_sum);
        let total = (&self.loss * &weight).sum_shards();
        let parameters: Vec<Parameter> = self.cx.parameters().to_vec();
        let vars: Vec<Var> = parameters.iter().map(|p| p.var.clone()).collect();
        let scalar = |name| tape.input(name, Type::global(&[]));
        let scales = (parts.precision == Precision::Mixed).then(|| [SCALE, INVERSE].map(scalar));
        let total = scales.as_ref().map_or(total.clone(), |[scale, _]| &total * scale);
        let mean = |sum: &Var| match &scales {
            Some([_, inverse]) => sum * inverse / &weight_sum,
            None => sum / &weight_sum,
        };
        let mut gradients: Vec<Var> = tape.gradients(&total, &vars).iter().map(mean).collect();
        if let Some(penalty) = self.cx.penalties() {
            tape.output(PENALTY, &penalty);
            let more = tape.gradients(&penalty, &vars);
            let sizes = more.iter().map(|gradient| tape.in_f32(|| gradient.abs().sum_all()));
            sizes.reduce(|a, b| a + b).iter().for_each(|size| tape.output(PENALTY_GRADIENT, size));
            gradients = gradients.iter().zip(&more).map(|(g, p)| g + p).collect();
        }
        let gradients = parameters.into_iter().zip(gradients);
        let gradients = gradients.map(|(p, gradient)| Gradient { name: p.name, weight: p.var, gradient });
        tape.in_f32(|| trace_update(tape, &parts.optimizer, gradients.collect()));
        Ok(tape.finish()?)
    }
}

fn fits(tape: &Tape, parts: &Parts, output: &Var, target: &Var) {
    let fail = |op: &str, problem| tape.fail(GraphError::Op { scope: "loss".into(), op: op.into(), problem });
    match parts.loss.target(output.ty()) {
        Ok(expected) if &expected == target.ty() => {}
        Ok(expected) => {
            let problem = format!(
                "the model gives {}, which needs targets {expected}; got {}",
                output.ty(),
                target.ty()
            );
            fail(parts.loss.name(), problem);
        }
        Err(problem) => fail(parts.loss.name(), problem),
    }
    for (at, metric) in parts.metrics.iter().enumerate() {
        let name = metric.name();
        if parts.metrics[..at].iter().any(|other| other.name() == name) {
            fail(name, "two metrics have this name".into());
        } else if [LOSS, LOSS_WEIGHT, WEIGHT_SUM, PENALTY, PENALTY_GRADIENT].contains(&name) {
            fail(
                name,
                "a metric cannot have this name, which is that of a value of the trainer's own".into(),
            );
        }
        if let Err(problem) = metric.accepts(output.ty(), target.ty()) {
            fail(name, problem);
        }
    }
}

fn trace_predict(parts: &Parts, fields: &Fields) -> Result<Graph, Error> {
    let tape = Tape::with_precision(parts.precision);
    let mut cx = Context::new(&tape, Mode::Evaluate);
    let output = parts.model.forward(&mut cx, &tape.input(INPUT, fields.input.clone()));
    tape.output(OUTPUT, &output);
    carries::trace(&tape, &cx);
    Ok(tape.finish()?)
}
