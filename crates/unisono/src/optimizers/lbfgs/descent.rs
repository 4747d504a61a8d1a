//! A step of L-BFGS: several iterations, each a direction and a line search along it. Step by step it does
//! what PyTorch's `LBFGS.step` does with the closure `evaluate`.

use super::Lbfgs;
use super::curvature::{Curvature, dot, largest};
use super::search::{Evaluate, Line, Point};

/// Why a step of L-BFGS ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LbfgsEnd {
    /// No element of the gradient is larger than [`Lbfgs::tolerance_grad`].
    Gradient,
    /// The loss does not fall along the direction by more than [`Lbfgs::tolerance_change`].
    Slope,
    /// The last iteration changed no parameter by more than [`Lbfgs::tolerance_change`].
    Change,
    /// The last iteration changed the loss by less than [`Lbfgs::tolerance_change`].
    Loss,
    /// The iterations of [`Lbfgs::max_iter`] are done.
    Iterations,
    /// The evaluations of [`Lbfgs::max_eval`] are used up.
    Evaluations,
}

impl LbfgsEnd {
    /// Returns whether further steps would hardly change anything.
    pub fn is_converged(self) -> bool {
        !matches!(self, Self::Iterations | Self::Evaluations)
    }
}

/// What a step of L-BFGS did. [`Trainer::lbfgs_step`](crate::Trainer::lbfgs_step) returns it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LbfgsStep {
    /// The mean loss of all samples before the step, with penalties (what PyTorch's `LBFGS.step` returns).
    pub loss_before: f64,
    /// The mean loss of all samples after the step, with penalties.
    pub loss: f64,
    /// The largest absolute value of an element of the gradient after the step.
    pub largest_gradient: f64,
    /// The number of iterations: of directions, each with a line search.
    pub iterations: u32,
    /// The number of times that all samples were evaluated.
    pub evaluations: u32,
    /// Why the step ended.
    pub end: LbfgsEnd,
}

impl Lbfgs {
    /// Does a step from the parameters `x`, which it moves. `evaluate` returns the loss of all samples and
    /// its gradient at given parameters.
    ///
    /// # Errors
    /// Those of an evaluation. `x` and `known` have changed then.
    pub(crate) fn descend<E>(
        &self,
        known: &mut Curvature,
        x: &mut Vec<f64>,
        evaluate: &mut Evaluate<'_, E>,
    ) -> Result<LbfgsStep, E> {
        let (loss, gradient) = evaluate(x)?;
        known.evaluations += 1;
        let mut now = Point { t: 0.0, loss, gradient, slope: 0.0 };
        let mut step = LbfgsStep {
            loss_before: loss,
            loss,
            largest_gradient: largest(&now.gradient),
            iterations: 0,
            evaluations: 1,
            end: LbfgsEnd::Gradient,
        };
        if step.largest_gradient <= self.tolerance_grad {
            return Ok(step);
        }
        loop {
            step.iterations += 1;
            self.turn(known, &now.gradient);
            now.slope = dot(&now.gradient, &known.direction);
            if now.slope > -self.tolerance_change {
                step.end = LbfgsEnd::Slope;
                return Ok(step);
            }
            let most = self.most_evaluations().saturating_sub(step.evaluations);
            let mut line = Line { from: &x[..], direction: &known.direction, evaluate, evaluations: 0 };
            let start = Point { t: 0.0, ..now };
            let found = line.search(&start, known.length, self.tolerance_change, most)?;
            let (moved, evaluations) = (line.at(found.t), line.evaluations);
            *x = moved;
            known.length = found.t;
            known.evaluations += u64::from(evaluations);
            step.evaluations += evaluations;
            now = found;
            (step.loss, step.largest_gradient) = (now.loss, largest(&now.gradient));
            if let Some(end) = self.end(&step, start.loss, now.t * largest(&known.direction)) {
                step.end = end;
                return Ok(step);
            }
        }
    }

    /// Makes the next direction, and the length that is tried first.
    fn turn(&self, known: &mut Curvature, gradient: &[f64]) {
        known.iterations += 1;
        if known.iterations == 1 {
            let sum: f64 = gradient.iter().fold(0.0, |sum, g| sum + g.abs());
            known.length = (1.0 / sum).min(1.0) * self.lr;
            known.direction = gradient.iter().map(|g| -g).collect();
            known.scale = 1.0;
        } else {
            known.learn(gradient, self.history_size);
            known.length = self.lr;
            known.direction = known.newton_direction(gradient);
        }
        known.gradient = gradient.to_vec();
    }

    /// Returns why a step ends after an iteration that changed a parameter by up to `change`, if it does.
    fn end(&self, step: &LbfgsStep, loss_before: f64, change: f64) -> Option<LbfgsEnd> {
        let ends = [
            (step.iterations >= self.max_iter, LbfgsEnd::Iterations),
            (step.evaluations >= self.most_evaluations(), LbfgsEnd::Evaluations),
            (step.largest_gradient <= self.tolerance_grad, LbfgsEnd::Gradient),
            (change <= self.tolerance_change, LbfgsEnd::Change),
            ((step.loss - loss_before).abs() < self.tolerance_change, LbfgsEnd::Loss),
        ];
        ends.into_iter().find(|(is_met, _)| *is_met).map(|(_, end)| end)
    }
}
