use unisono_graph::Var;

use super::{Gradient, Optimizer, Scalar, Update};
use crate::Epoch;

/// Parameter groups: one optimizer for most parameters, others for those whose names they take (PyTorch's parameter groups).
///
/// ```
/// use unisono::{AdamW, Groups, Optimizer, Sgd};
///
/// let optimizer = Groups::new(AdamW::new(1e-3))
///     .group(|name| name.starts_with("encoder."), AdamW::new(1e-5))
///     .group(|name| name.ends_with(".bias"), Sgd::new(0.1))
///     .clip_norm(1.0);
/// ```
pub struct Groups {
    rest: Box<dyn Optimizer>,
    groups: Vec<(Box<Rule>, Box<dyn Optimizer>)>,
    name: String,
}

/// Whether the parameter of this name belongs to a group.
type Rule = dyn Fn(&str) -> bool + Send + Sync;

impl Groups {
    /// `rest` trains what no group takes.
    pub fn new(rest: impl Optimizer + 'static) -> Self {
        let name = rest.name().to_string();
        Self { rest: Box::new(rest), groups: vec![], name }
    }

    /// A group: the parameters whose name `takes` takes and no earlier group does.
    pub fn group(
        mut self,
        takes: impl Fn(&str) -> bool + Send + Sync + 'static,
        optimizer: impl Optimizer + 'static,
    ) -> Self {
        self.name = format!("{}, {}", self.name, optimizer.name());
        self.groups.push((Box::new(takes), Box::new(optimizer)));
        self
    }

    /// The number of a parameter's group, 0 being the rest.
    fn index(&self, name: &str) -> usize {
        self.groups.iter().position(|(takes, _)| takes(name)).map_or(0, |i| i + 1)
    }

    fn optimizer(&self, index: usize) -> &dyn Optimizer {
        index.checked_sub(1).map_or(&*self.rest, |i| &*self.groups[i].1)
    }
}

/// What a group's scalars start with.
fn prefix(index: usize) -> String {
    format!("group {index}/")
}

impl Optimizer for Groups {
    fn name(&self) -> &str {
        &self.name
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        let of = |i: usize| {
            let own = self.optimizer(i).scalars(step);
            own.into_iter().map(move |s| Scalar::new(&format!("{}{}", prefix(i), s.name), s.value))
        };
        (0..=self.groups.len()).flat_map(of).collect()
    }

    fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
        self.rest.observe(history)?;
        self.groups.iter_mut().try_for_each(|(_, optimizer)| optimizer.observe(history))
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let index = self.index(cx.parameter());
        cx.in_group(&prefix(index), |cx| self.optimizer(index).update(cx, weight, gradient))
    }

    fn trains(&self, name: &str) -> bool {
        self.optimizer(self.index(name)).trains(name)
    }

    /// Each group looks at its own gradients.
    fn prepare(&self, gradients: Vec<Gradient>) -> Vec<Gradient> {
        let mut parts: Vec<Vec<Gradient>> = vec![vec![]; self.groups.len() + 1];
        gradients.into_iter().for_each(|g| parts[self.index(&g.name)].push(g));
        parts.into_iter().enumerate().flat_map(|(i, part)| self.optimizer(i).prepare(part)).collect()
    }
}
