//! Layers that are applied with averages of their weights.

use unisono_graph::{StateKind, Var};

use super::Context;
use crate::model::{Initializer, Layer};

impl Context {
    /// Applies a layer as [`Context::apply`] does, but with moving averages of its weights: as a target
    /// network (DQN), a momentum encoder (BYOL, MoCo) or a mean teacher. Other applications under the same
    /// name train the weights, and the averages follow: average = decay average + (1 - decay) weight.
    ///
    /// If a weight is computed from others ([`WeightNorm`](crate::WeightNorm)), those others are averaged.
    ///
    /// An average starts where its weight does, and is saved as a statistic, `path.name.*.average`. It
    /// changes once in each training step, however often the layer is applied in this way, and all uses in a
    /// step see its value from before the step. Gradients flow through the layer to `x`, but not to the
    /// weights. Statistics of layers inside, such as those of a batch norm, are those of the other
    /// applications and are not changed here.
    /// [`Builder::use_average_weights`](crate::Builder::use_average_weights) is for averages that only
    /// predict.
    ///
    /// Errors: the decay is not in [0, 1]; more than 128 layers are nested.
    ///
    /// ```
    /// use unisono::{Dense, Model, Outputs};
    ///
    /// // Q-learning: the best value of the next state comes from a network that changes slowly.
    /// let net = Dense::new(2);
    /// let model = Model::new(move |cx, x| {
    ///     let values = cx.apply("net", &net, &x["state"]);
    ///     let next = cx.apply_average("net", &net, &x["next"], 0.99).detach();
    ///     let target = &x["reward"] + next.max(&[-1]) * 0.99;
    ///     let value = (&values * x["action"].one_hot(2)).sum(&[-1]);
    ///     cx.loss("difference", &(value - target).square(), 1.0);
    ///     Outputs::new().with("values", &values)
    /// });
    /// ```
    #[doc(alias("target network", "momentum encoder", "mean teacher", "ema"))]
    pub fn apply_average(&mut self, name: &str, layer: &dyn Layer, x: &Var, decay: f32) -> Var {
        if !(0.0..=1.0).contains(&decay) {
            self.fail("average", format!("a decay of {decay} is not in [0, 1]"));
        }
        let around = self.averaged.replace(decay);
        let y = self.apply_frozen(name, layer, x);
        self.averaged = around;
        y
    }

    /// Returns what a layer gets as the parameter of this name.
    pub(super) fn in_use(&mut self, name: &str, var: Var) -> Var {
        let var = self.averaged.map_or_else(|| var.clone(), |decay| self.average(name, &var, decay));
        self.reparametrized(name, var)
    }

    /// Returns the average of a weight as it was before the step.
    fn average(&mut self, name: &str, weight: &Var, decay: f32) -> Var {
        let (full, own) = (self.full(name), format!("{name}.average"));
        let average = self.full(&own);
        if let Some(known) = self.statistics.iter().find(|statistic| statistic.name == average) {
            return known.var.clone();
        }
        let started = self.parameters.iter().find(|parameter| parameter.name == full);
        let initializer = Box::new(started.map(|own| own.initializer.clone()).unwrap_or_default());
        let start = Initializer::Of { name: full, initializer };
        let statistic = self.declare(&own, weight.dims(), StateKind::Statistic, start);
        let var = statistic.var.clone();
        self.statistics.push(statistic);
        // SAM traces a step twice. The second trace is given the statistics and must not update them.
        if self.is_training() && !self.keeps(&average) && !self.is_given(&var) {
            let new = (weight - &var) * (1.0 - decay) + &var;
            self.tape.update(&var, &new);
            self.replaced.insert(var.id(), new);
        }
        var
    }
}
