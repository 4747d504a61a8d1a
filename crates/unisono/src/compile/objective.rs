//! What is minimised and measured, and of which output of the model.

use std::sync::Arc;

use unisono_graph::{DType, Lead, Type, Var};

use crate::model::functional::OUTPUT;
use crate::objective::losses::mean_of_sample;
use crate::objective::metrics::{Better, MeanInLoss, Reduction};
use crate::{Loss, Metric};

/// The name of the field with the target of the loss.
pub const TARGET: &str = "y";

/// What is minimised and what is measured.
#[derive(Clone, Default)]
pub(crate) struct Objective {
    /// The losses; at least one.
    pub losses: Vec<LossOn>,
    pub metrics: Vec<Arc<dyn Metric>>,
    /// What each metric is measured on.
    pub measured: Vec<On>,
    /// The number of metrics that are losses by themselves. These are the first ones.
    pub measured_losses: usize,
}

/// An output of the model, and the field that it is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct On {
    pub output: String,
    /// The field. `None` for a value that the model makes to be minimised or measured by itself.
    pub target: Option<String>,
}

/// A loss of an output, and what it counts in the sum of all.
#[derive(Clone)]
pub(crate) struct LossOn {
    pub on: On,
    pub loss: Arc<dyn Loss>,
    pub weight: f32,
}

impl Objective {
    /// Measures a metric.
    pub fn measure(&mut self, on: On, metric: Arc<dyn Metric>) {
        self.metrics.push(metric);
        self.measured.push(on);
    }

    /// Returns the metrics, each with what it is measured on and the name that it has by itself. In the
    /// history, a metric of a named output has the output's name in front.
    pub fn named_metrics(&self) -> impl Iterator<Item = (&dyn Metric, &On, &str)> {
        self.metrics.iter().zip(&self.measured).map(|(metric, on)| {
            let name = metric.name().strip_prefix(&*on.output).and_then(|name| name.strip_prefix(' '));
            (&**metric, on, name.unwrap_or(metric.name()))
        })
    }

    /// Measures each loss by itself, before all metrics, where there are several.
    pub fn settle(&mut self) {
        self.metrics.drain(..self.measured_losses);
        self.measured.drain(..self.measured_losses);
        self.measured_losses = if self.losses.len() < 2 { 0 } else { self.losses.len() };
        let names = names_of_losses(&self.losses[..self.measured_losses]);
        for (at, (LossOn { on, loss, .. }, name)) in self.losses.iter().zip(names).enumerate() {
            self.metrics.insert(at, Arc::new(PartLoss { name, loss: Arc::clone(loss) }));
            self.measured.insert(at, on.clone());
        }
    }
}

impl On {
    /// Returns the only output of a [`Layer`](crate::Layer), and its target.
    pub fn only() -> Self {
        Self::new(OUTPUT, TARGET)
    }

    /// Returns an output and the field that it is compared with.
    pub fn new(output: &str, target: &str) -> Self {
        Self { output: output.into(), target: Some(target.into()) }
    }

    /// Returns a value of the model that is compared with nothing.
    pub fn itself(output: &str) -> Self {
        Self { output: output.into(), target: None }
    }

    /// Says that the model has these outputs, and not this one.
    pub fn not_among(&self, outputs: &[impl AsRef<str>]) -> String {
        let names: Vec<&str> = outputs.iter().map(AsRef::as_ref).collect();
        let problem = format!("the model has no output {:?}, only {}", self.output, names.join(", "));
        match (&names[..], &self.target) {
            ([only], Some(target)) => format!(
                "{problem}: use Builder::loss_between({only:?}, {target:?}, ..) and metric_between, or call it {:?}",
                self.output
            ),
            _ => format!("{problem}: name one of them (loss_of, metric_of)"),
        }
    }

    /// Returns what a message calls the target.
    pub fn target(&self) -> &str {
        self.target.as_deref().unwrap_or("itself")
    }
}

impl LossOn {
    /// Returns the only loss of a model with one output.
    pub fn only(loss: impl Loss + 'static) -> Self {
        Self { on: On::only(), loss: Arc::new(loss), weight: 1.0 }
    }

    /// Returns the loss that is a value of the model itself.
    pub fn itself(name: &str, weight: f32) -> Self {
        Self { on: On::itself(name), loss: Arc::new(Itself(name.into())), weight }
    }
}

/// A value of the model as a loss or metric, by its name: the mean over a sample's elements. A number that is
/// the same for all samples is that of each.
pub(crate) struct Itself(pub String);

impl Itself {
    /// Checks the value.
    ///
    /// # Errors
    /// It is not of f32, or a sum of a shard.
    fn is_a_number(value: &Type) -> Result<(), String> {
        let is_number = value.dtype == DType::F32 && value.lead != Lead::Shard;
        let problem = || format!("the model's value is {value}, not f32 numbers of samples, [B] or [B, ...]");
        if is_number { Ok(()) } else { Err(problem()) }
    }

    /// Traces a number for each sample, `[B]`.
    fn each(value: &Var) -> Var {
        value.tape().in_f32(|| match value.ty().lead {
            Lead::Global if value.dims().is_empty() => value.expand(Lead::Sample, &[]),
            Lead::Global => value.flatten().mean(&[-1]).expand(Lead::Sample, &[]),
            _ => mean_of_sample(value),
        })
    }
}

impl Loss for Itself {
    fn name(&self) -> &str {
        &self.0
    }

    fn target(&self, output: &Type) -> Result<Type, String> {
        Self::is_a_number(output).map(|()| output.clone())
    }

    fn per_sample(&self, output: &Var, _: &Var) -> Var {
        Self::each(output)
    }
}

impl Metric for Itself {
    fn name(&self) -> &str {
        &self.0
    }

    fn accepts(&self, output: &Type, _: &Type) -> Result<(), String> {
        Self::is_a_number(output)
    }

    fn per_sample(&self, output: &Var, _: &Var) -> Var {
        Self::each(output)
    }
}

/// Returns the names of several losses as metrics: those of their outputs, and where an output has several
/// losses, what else tells them apart.
fn names_of_losses(losses: &[LossOn]) -> Vec<String> {
    let forms: [fn(&LossOn) -> String; 3] = [
        |part| format!("{} loss", part.on.output),
        |part| format!("{} as {} loss", part.on.output, part.on.target()),
        |part| format!("{} as {} loss: {}", part.on.output, part.on.target(), part.loss.name()),
    ];
    let name = |(at, part): (usize, &LossOn)| {
        let is_alone = |form: &&fn(&LossOn) -> String| {
            let name = form(part);
            losses.iter().filter(|other| form(other) == name).count() == 1
        };
        forms
            .iter()
            .find(is_alone)
            .map_or_else(|| format!("{} {}", forms[2](part), at + 1), |form| form(part))
    };
    losses.iter().enumerate().map(name).collect()
}

/// A loss that is one of several, as a metric.
struct PartLoss {
    name: String,
    loss: Arc<dyn Loss>,
}

impl Metric for PartLoss {
    fn name(&self) -> &str {
        &self.name
    }

    fn better(&self) -> Option<Better> {
        Some(Better::Lower)
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        self.loss.per_sample(output, target)
    }

    fn reduction(&self) -> Option<&dyn Reduction> {
        Some(&MeanInLoss)
    }
}

/// A metric under another name.
pub(crate) struct Named<M> {
    pub name: String,
    pub metric: M,
}

impl<M: Metric> Metric for Named<M> {
    fn name(&self) -> &str {
        &self.name
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        self.metric.accepts(output, target)
    }

    fn better(&self) -> Option<Better> {
        self.metric.better()
    }

    fn counts_label(&self, label: i32) -> bool {
        self.metric.counts_label(label)
    }

    fn takes_largest(&self) -> bool {
        self.metric.takes_largest()
    }

    fn takes_logits(&self) -> bool {
        self.metric.takes_logits()
    }

    fn takes_probabilities(&self) -> bool {
        self.metric.takes_probabilities()
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        self.metric.per_sample(output, target)
    }

    fn reduction(&self) -> Option<&dyn Reduction> {
        self.metric.reduction()
    }
}
