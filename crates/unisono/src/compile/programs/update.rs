//! The training step behind the forward pass: gradients and the optimizer, for the whole model or for a
//! phase.

use std::collections::BTreeMap;

use unisono_graph::{Graph, Lead, StateDecl, StateKind, Type, Var, simplify};

use super::{INVERSE, PENALTY, PENALTY_GRADIENT, Programs, SCALE, Trace, WEIGHT_SUM, check, trace_losses};
use crate::Error;
use crate::compile::fields::Fields;
use crate::compile::parts::Parts;
use crate::compile::phases::Phase;
use crate::compile::weights::{Group, Weighed, groups};
use crate::identity::graph::of_graph;
use crate::identity::part::Part;
use crate::model::context::{Mode, Parameter};
use crate::model::{Context, Outputs};
use crate::optimizers::{Chain, Gradient, norm_of_all, trace_update_of};

impl Trace {
    /// Adds the gradients and the optimizer. Gradients are sums over all samples, each divided by the sum of
    /// the weights once. In mixed precision they are those of a scaled loss, and are scaled back first.
    ///
    /// A step in a phase trains its parameters by its losses. What the optimizers of the phases `before` and
    /// `after` it keep is declared in their places, so that all steps have the same states.
    ///
    /// `longest` is the same step for the longest samples, if this one is for others: a parameter that is
    /// updated there is updated here too.
    pub(super) fn with_update(
        &self,
        parts: &Parts,
        phase: Option<&Phase>,
        [before, after]: [&[StateDecl]; 2],
        longest: Option<&Graph>,
    ) -> Result<Graph, Error> {
        let tape = &self.tape;
        let (total, weight_sum) = self.total(parts, phase);
        let is_trained = |p: &&Parameter| phase.is_none_or(|phase| (phase.trains)(&p.name));
        let parameters: Vec<Parameter> = self.cx.parameters().iter().filter(is_trained).cloned().collect();
        let vars: Vec<Var> = parameters.iter().map(|p| p.var.clone()).collect();
        let scalar = |name| tape.input(name, Type::global(&[]));
        let scales = (parts.precision.is_mixed()).then(|| [SCALE, INVERSE].map(scalar));
        let total = scales.as_ref().map_or(total.clone(), |[scale, _]| &total * scale);
        let mean = |sum: Var| match &scales {
            Some([_, inverse]) => sum * inverse / &weight_sum,
            None => sum / &weight_sum,
        };
        let (optimizer, name) = phase.map_or((&parts.optimizer, ""), |phase| (&phase.optimizer, &phase.name));
        let mut gradients: Vec<Option<Var>> =
            tape.gradients_if_any(&total, &vars).into_iter().map(|sum| sum.map(mean)).collect();
        if let Some(penalty) = self.cx.penalties() {
            tape.output(PENALTY, &penalty);
            let more = tape.gradients_if_any(&penalty, &vars);
            let sizes = more.iter().flatten().map(|gradient| tape.in_f32(|| gradient.abs().sum_all()));
            sizes.reduce(|a, b| a + b).iter().for_each(|size| tape.output(PENALTY_GRADIENT, size));
            gradients = added(gradients, more);
        }
        if let Some(rho) = optimizer.sharpness() {
            let scaled = |total: Var| scales.as_ref().map_or(total.clone(), |[scale, _]| total * scale);
            gradients = self.uphill(parts, phase, (&parameters, &gradients, rho), (&scaled, &mean))?;
        }
        let zeros = |p: &Parameter| {
            let is_updated = longest.is_some_and(|longest| {
                longest.updates.keys().any(|&state| longest.states[state].name == p.name)
            });
            is_updated.then(|| tape.constant(0.0).expand(p.var.ty().lead, p.var.dims()))
        };
        // What has no gradient is not updated: an optimizer's decay would change it. The recurrent weight of
        // a sequence of one step has none, while that of the longest sequences has: there the gradient is 0.
        let gradients = parameters.into_iter().zip(gradients).filter_map(|(p, gradient)| {
            gradient.or_else(|| zeros(&p)).map(|gradient| Gradient { name: p.name, weight: p.var, gradient })
        });
        let declare = |states: &[StateDecl]| {
            states.iter().for_each(|state| drop(tape.state(&state.name, &state.ty.dims, state.kind)));
        };
        declare(before);
        self.check_names_of_scalars(optimizer);
        let statistics = self.cx.moved_statistics();
        tape.in_f32(|| trace_update_of(tape, optimizer, gradients.collect(), &statistics, name));
        declare(after);
        Ok(tape.finish()?)
    }

    /// Returns the gradients where the loss is largest around the parameters, as the first gradients have it:
    /// at the distance `rho` along them (see [`Optimizer::sharpness_aware`](crate::Optimizer)).
    fn uphill(
        &self,
        parts: &Parts,
        phase: Option<&Phase>,
        (parameters, gradients, rho): (&[Parameter], &[Option<Var>], f32),
        (scaled, mean): (&dyn Fn(Var) -> Var, &dyn Fn(Var) -> Var),
    ) -> Result<Vec<Option<Var>>, Error> {
        let tape = &self.tape;
        if !self.cx.carries().is_empty() {
            let problem = "a model with carries cannot be evaluated twice in a step".to_owned();
            return Err(Error::setting("sharpness_aware", problem));
        }
        let optimizer = phase.map_or(&parts.optimizer, |phase| &phase.optimizer);
        let trained = parameters.iter().zip(gradients).filter(|(p, _)| optimizer.trains(&p.name));
        let given = trained.filter_map(|(p, gradient)| {
            let (name, weight, gradient) = (p.name.clone(), p.var.clone(), gradient.clone()?);
            Some(Gradient { name, weight, gradient })
        });
        let given: Vec<Gradient> = given.collect();
        let Some(length) = tape.in_f32(|| norm_of_all(&given)) else { return Ok(gradients.to_vec()) };
        let moved = tape.in_f32(|| {
            let step = rho / (length + 1e-12);
            let moved = given.iter().map(|g| (g.name.clone(), (&g.weight + &g.gradient * &step).detach()));
            moved.collect::<BTreeMap<String, Var>>()
        });
        let states = self.cx.parameters().iter().chain(self.cx.statistics());
        let mut values: BTreeMap<String, Var> = states.map(|p| (p.name.clone(), p.var.clone())).collect();
        values.extend(moved.clone());
        let (cx, outputs, losses) = self.again(parts, values)?;
        let total = scaled(self.total_of(parts, phase, (&outputs, &losses)).0);
        let vars: Vec<Var> = moved.values().cloned().collect();
        let sums = tape.gradients_if_any(&total, &vars).into_iter().map(|sum| sum.map(mean));
        let found = match cx.penalties() {
            Some(penalty) => added(sums.collect(), tape.gradients_if_any(&penalty, &vars)),
            None => sums.collect(),
        };
        let mut found: BTreeMap<String, Option<Var>> = moved.into_keys().zip(found).collect();
        Ok(parameters.iter().map(|p| found.remove(&p.name).flatten()).collect())
    }

    /// Traces the forward pass again, with these values of parameters and statistics. It draws the same
    /// random numbers and changes no statistic.
    fn again(
        &self,
        parts: &Parts,
        values: BTreeMap<String, Var>,
    ) -> Result<(Context, Outputs, Vec<Weighed>), Error> {
        let mut cx = Context::new(&self.tape, Mode::Train);
        cx.give(values);
        cx.freeze_statistics(parts.frozen_statistics.clone());
        let outputs = parts.model.forward(&mut cx, &self.inputs).with_added(&cx);
        check(&self.tape)?;
        let losses = trace_losses(parts, &parts.objective().losses, &self.inputs, &outputs, Mode::Train);
        Ok((cx, outputs, losses))
    }

    /// Reports a number of the optimizer that has the name of a field: both are inputs of one program.
    fn check_names_of_scalars(&self, optimizer: &Chain) {
        let scalars = optimizer.finite_scalars(0).unwrap_or_default();
        let scalars = scalars.iter().map(|scalar| &*scalar.name).chain([SCALE, INVERSE]);
        for name in scalars.filter(|name| self.inputs.get(name).is_some()) {
            let problem =
                format!("the field {name:?} has the name of a number that it needs: rename the field");
            self.tape.fail_here(optimizer.name(), problem);
        }
    }

    /// Returns what is minimised, as a sum over all samples, and the number that this sum is divided by: the
    /// sum of the weights.
    ///
    /// Losses that have other weights than others are divided by their own sums. These are known before the
    /// gradients are computed, so each loss is multiplied by the number of samples over its sum, and the sum
    /// over all losses is divided by the number of samples. The numbers on the way back, which mixed
    /// precision rounds to f16, are then as large as those of a loss without weights. A loss whose weights
    /// are all 0 adds nothing.
    ///
    /// The sum of the weights is an output, too.
    fn total(&self, parts: &Parts, phase: Option<&Phase>) -> (Var, Var) {
        let (total, divisor, weight_sum) = self.total_of(parts, phase, (&self.outputs, &self.losses));
        self.tape.output(WEIGHT_SUM, &weight_sum);
        (total, divisor)
    }

    /// Does [`Trace::total`] without an output, for these outputs of the model and their losses. The last
    /// value is the sum of the weights.
    fn total_of(
        &self,
        parts: &Parts,
        phase: Option<&Phase>,
        (outputs, own_losses): (&Outputs, &[Weighed]),
    ) -> (Var, Var, Var) {
        let (tape, inputs) = (&self.tape, &self.inputs);
        let own = phase.filter(|phase| !phase.losses.is_empty());
        let groups = match own {
            Some(phase) => {
                let losses = trace_losses(parts, &phase.losses, inputs, outputs, Mode::Train);
                groups(&losses, inputs)
            }
            None => groups(own_losses, inputs),
        };
        let ones = tape.constant(1.0).expand(Lead::Sample, &[]);
        let sum = |group: &Group| group.weight.as_ref().unwrap_or(&ones).sum_shards();
        if let [group] = &groups[..] {
            let weight = group.weight.as_ref().unwrap_or(&ones);
            let weight_sum = sum(group);
            return ((&group.loss * weight).sum_shards(), weight_sum.clone(), weight_sum);
        }
        tape.in_f32(|| {
            let samples = ones.sum_shards();
            let [zero, one] = [0.0, 1.0].map(|x| tape.constant(x));
            let (mut total, mut all) = (zero.expand(Lead::Sample, &[]), zero.clone());
            for group in &groups {
                let weights = sum(group);
                let has_any = weights.greater(&zero);
                let scale = has_any.select(&(&samples / has_any.select(&weights, &one)), &zero);
                let weight = group.weight.as_ref().unwrap_or(&ones);
                total = total + &group.loss * (weight * scale);
                all = all + weights;
            }
            (total.sum_shards(), samples, all)
        })
    }
}

/// Adds two gradients for each parameter. `None` stands for a gradient that a parameter does not have.
fn added(gradients: Vec<Option<Var>>, more: Vec<Option<Var>>) -> Vec<Option<Var>> {
    let both = |(g, p): (Option<Var>, Option<Var>)| match (g, p) {
        (Some(g), Some(p)) => Some(g + p),
        (g, p) => g.or(p),
    };
    gradients.into_iter().zip(more).map(both).collect()
}

/// Traces the training steps of all phases. They have the same states in the same order: those of the model,
/// then what the optimizer of each phase keeps. `longest` has the steps for the longest samples, if these are
/// for others.
pub(super) fn phase_graphs(
    parts: &Parts,
    fields: &Fields,
    longest: Option<&Programs>,
) -> Result<Vec<Graph>, Error> {
    let longest = |phase: usize| longest.map(|longest| longest.train_in(phase).graph());
    let (mut kept, mut graphs): (Vec<Vec<StateDecl>>, _) = (Vec::new(), Vec::new());
    for (at, phase) in parts.phases.iter().enumerate() {
        let trace = Trace::new(parts, fields, Mode::Train, None)?;
        let of_model = trace.tape.states().len();
        let graph = trace.with_update(parts, Some(phase), [&[], &[]], longest(at))?;
        kept.push(graph.states[of_model..].to_vec());
    }
    for (at, phase) in parts.phases.iter().enumerate() {
        let [before, after] = [kept[..at].concat(), kept[at + 1..].concat()];
        let trace = Trace::new(parts, fields, Mode::Train, None)?;
        graphs.push(trace.with_update(parts, Some(phase), [&before, &after], longest(at))?);
    }
    Ok(graphs)
}

/// Returns the training step, or those of all phases, as a part of a run's identity.
pub(super) fn of_training(parts: &Parts, first: &Graph, others: &[Graph]) -> Part {
    if parts.phases.is_empty() {
        return of_graph(&simplify(first));
    }
    let graphs = std::iter::once(first).chain(others);
    let hashes = graphs.map(|graph| of_graph(&simplify(graph)).sha256);
    let names = parts.phases.iter().map(|phase| format!("phase {}", phase.name));
    Part::of_settings(names.zip(hashes))
}

/// Returns the names of the parameters that none of these training steps changes.
pub(super) fn kept_by(steps: &[&Graph]) -> Vec<String> {
    let states = steps.first().map_or(&[][..], |step| &step.states).iter().enumerate();
    let kept = states.filter(|(at, state)| {
        state.kind == StateKind::Parameter && !steps.iter().any(|step| step.updates.contains_key(at))
    });
    kept.map(|(_, state)| state.name.clone()).collect()
}
