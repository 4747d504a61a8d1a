//! What the body of a loop evaluates, of which `continue` may leave out some.

use std::collections::HashSet;

use naga::{Expression, Handle, Statement};

use super::translator::Frame;

/// What the body of a loop evaluates.
pub(super) struct Body {
    pub emitted: Vec<Handle<Expression>>,
    /// What has no value where a `continue` stands: what continues must not use it, which naga does not see.
    pub skipped: HashSet<Handle<Expression>>,
}

impl Frame<'_> {
    /// Begins a turn, in which the body has evaluated nothing.
    pub fn begin(&mut self) {
        let Some(body) = self.bodies.last_mut() else { return };
        body.skipped.clear();
        for handle in &body.emitted {
            self.values[handle.index()] = None;
        }
    }

    /// Notes what the innermost loop's body has not evaluated at a `continue`.
    pub fn skip(&mut self) {
        let Some(body) = self.bodies.last_mut() else { return };
        let values = &self.values;
        body.skipped.extend(body.emitted.iter().filter(|handle| values[handle.index()].is_none()));
    }

    /// Comes to what continues, from the body's end and from each `continue`.
    pub fn continues(&mut self) {
        let Some(body) = self.bodies.last() else { return };
        for handle in &body.skipped {
            self.values[handle.index()] = None;
        }
    }
}

/// Collects the expressions that a block evaluates.
pub(super) fn emitted(block: &naga::Block, all: &mut HashSet<Handle<Expression>>) {
    for statement in block.iter() {
        match statement {
            Statement::Emit(range) => all.extend(range.clone()),
            Statement::Call { result, .. } | Statement::Atomic { result, .. } => all.extend(*result),
            Statement::WorkGroupUniformLoad { result, .. } => {
                all.insert(*result);
            }
            Statement::Block(block) => emitted(block, all),
            Statement::If { accept, reject, .. } => [accept, reject].iter().for_each(|own| emitted(own, all)),
            Statement::Switch { cases, .. } => cases.iter().for_each(|case| emitted(&case.body, all)),
            Statement::Loop { body, continuing, .. } => {
                [body, continuing].iter().for_each(|own| emitted(own, all));
            }
            _ => {}
        }
    }
}
