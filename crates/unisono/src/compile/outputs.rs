//! What a program computed for a batch, read by the names of its outputs.

use unisono_graph::{Conditions, DType, OutputDecl, OutputKind, Program};
use unisono_replica::{Outputs, Verdict};

use crate::Error;
use crate::compile::objective::{LossOn, On};
use crate::compile::parts::Parts;
use crate::compile::programs::{
    LOSS, LOSS_WEIGHT, PENALTY, PENALTY_GRADIENT, WEIGHT_SUM, predicted, weight_of_loss, weight_of_output,
};
use crate::objective::running::{Measured, OfMetric};

/// The outputs of a program by name.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'a> {
    program: &'a Program,
    outputs: &'a Outputs,
}

impl<'a> Reading<'a> {
    /// Reads the outputs of a program.
    pub fn new(program: &'a Program, outputs: &'a Outputs) -> Self {
        Self { program, outputs }
    }

    /// Returns an output's values, or `None` if the program does not have it. A carry of the same name is
    /// another output.
    pub fn named(&self, name: &str) -> Option<&'a [f32]> {
        self.outputs.floats(self.index_of(name)?)
    }

    fn index_of(&self, name: &str) -> Option<usize> {
        let is_it = |output: &OutputDecl| output.kind == OutputKind::Value && output.name == name;
        self.program.outputs().iter().position(is_it)
    }

    /// Returns each sample's loss.
    pub fn losses(&self) -> &'a [f32] {
        self.named(LOSS).unwrap_or_default()
    }

    /// Returns one of the model's outputs by its name, `[samples, ...]`. Integers are returned as the same
    /// numbers in f32.
    ///
    /// # Errors
    /// An integer that f32 does not hold.
    pub fn predictions(&self, output: &str) -> Result<Vec<f32>, Error> {
        let Some(index) = self.index_of(&predicted(output)) else { return Ok(Vec::new()) };
        if self.program.outputs()[index].ty.dtype == DType::F32 {
            return Ok(self.outputs.floats(index).unwrap_or_default().to_vec());
        }
        let exact = |&word: &u32| {
            let (integer, number) = (word.cast_signed(), word.cast_signed() as f32);
            let problem = || format!("the output {output:?} is {integer}, which f32 does not hold");
            let is_it = f64::from(number) == f64::from(integer);
            is_it.then_some(number).ok_or_else(|| Error::setting("predict", problem()))
        };
        self.outputs.words(index).unwrap_or_default().iter().map(exact).collect()
    }

    /// Returns the sum of the model's penalties, or 0 if it has none.
    pub fn penalty(&self) -> f64 {
        self.named(PENALTY).and_then(<[f32]>::first).map_or(0.0, |&penalty| f64::from(penalty))
    }

    /// Returns what a batch measured, sample by sample. `given` has the weights of all samples where the data
    /// have any. The weights in the loss come from the loss, or else from the data.
    pub fn measured(&self, parts: &Parts, given: Option<&'a [f32]>, penalty: f64) -> Measured<'a> {
        let of_losses: Vec<Option<&[f32]>> =
            (0..parts.objective().losses.len()).map(|number| self.named(&weight_of_loss(number))).collect();
        let differ = of_losses.iter().any(Option::is_some);
        let in_loss = |at: usize, on: &On| {
            let is_it = |other: &usize| parts.objective().losses[*other].on == *on;
            let number = if at < parts.objective().measured_losses {
                Some(at)
            } else {
                (0..of_losses.len()).find(is_it)
            };
            let own =
                if differ { number.and_then(|number| of_losses[number]) } else { self.named(LOSS_WEIGHT) };
            own.or(given)
        };
        let metrics = parts.objective().metrics.iter().zip(&parts.objective().measured).enumerate();
        let metrics = metrics.map(|(at, (metric, on))| OfMetric {
            values: self.named(metric.name()).unwrap_or_default(),
            given: self.named(&weight_of_output(&on.output)).or(given),
            weights: in_loss(at, on),
        });
        let counts = |part: &LossOn| f64::from(part.weight);
        Measured {
            losses: self.losses(),
            metrics: metrics.collect(),
            weights: self.named(LOSS_WEIGHT).or(given),
            several: if differ { parts.objective().losses.iter().map(counts).collect() } else { Vec::new() },
            penalty,
        }
    }

    /// Returns the row of the first sample whose loss is not finite.
    pub fn bad_sample(&self) -> Option<usize> {
        self.losses().iter().position(|loss| !loss.is_finite())
    }

    /// Returns the name of the penalty, or of its gradient, if that is not finite.
    pub fn bad_penalty(&self) -> Option<&'static str> {
        let is_bad = |name: &&str| self.named(name).is_some_and(|x| !x.iter().all(|x| x.is_finite()));
        [PENALTY, PENALTY_GRADIENT].into_iter().find(is_bad)
    }

    /// Returns the name of the first carry that is not finite, of those that the outputs have.
    pub fn bad_carry(&self) -> Option<&'a str> {
        let outputs = self.program.outputs().iter().enumerate();
        let is_bad = |index| self.outputs.floats(index).is_some_and(|x| !x.iter().all(|x| x.is_finite()));
        let mut carries = outputs.filter(|(_, output)| output.kind == OutputKind::Carry);
        carries.find(|(index, _)| is_bad(*index)).map(|(_, output)| &*output.name)
    }

    /// Decides whether a training step commits. It does not if a loss, a penalty or a carry is not finite, or
    /// if all weights are 0.
    pub fn verdict(&self) -> Verdict {
        let weight = self.named(WEIGHT_SUM).and_then(|w| w.first().copied());
        let is_bad =
            self.bad_sample().is_some() || self.bad_penalty().is_some() || self.bad_carry().is_some();
        let skip = is_bad || weight == Some(0.0);
        if skip { Verdict::Skip } else { Verdict::Commit }
    }
}

/// Returns by which outputs a training step commits: a device decides by the same as [`Reading::verdict`].
pub(crate) fn conditions(program: &Program) -> Conditions {
    let must_be_finite = |output: &OutputDecl| {
        output.kind == OutputKind::Carry || [LOSS, PENALTY, PENALTY_GRADIENT].contains(&&*output.name)
    };
    let weights = |output: &OutputDecl| output.kind == OutputKind::Value && output.name == WEIGHT_SUM;
    let outputs = program.outputs();
    Conditions {
        finite: (0..outputs.len()).filter(|&at| must_be_finite(&outputs[at])).collect(),
        nonzero: outputs.iter().position(weights),
    }
}
