//! Values that a model gets in place of its states.

use std::collections::BTreeMap;

use unisono_graph::Var;

use crate::model::Context;

impl Context {
    /// Gives the model values for tensors by name, in place of states that would be declared.
    pub(crate) fn give(&mut self, given: BTreeMap<String, Var>) {
        self.given = given;
    }

    /// Returns whether a statistic was given. It then has no new value.
    pub(super) fn is_given(&self, statistic: &Var) -> bool {
        self.given.values().any(|given| given.id() == statistic.id())
    }
}
