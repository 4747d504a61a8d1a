//! What lasts from one step to the next beside the state: carries, which the caller has, and resident memory,
//! which stays on devices.

use super::Tape;
use crate::trace::{Input, InputKind, OutputKind, Var};
use crate::values::{Lead, Type};

impl Tape {
    /// Declares a value that the caller takes from one step to the next: what [`Tape::keep`] made of it in
    /// the step before.
    pub fn carry(&self, name: &str, ty: Type) -> Var {
        self.declare_input(name, ty, InputKind::Carry)
    }

    /// Makes `value` the contents of `carry` in the next step. `value` becomes the output of
    /// [`OutputKind::Carry`] with the name of `carry`. It is an error if `carry` does not come from
    /// [`Tape::carry`], if the two types differ, or if `carry` already has a value for the next step.
    pub fn keep(&self, carry: &Var, value: &Var) {
        if !self.owns("keep", &[carry, value]) {
            return;
        }
        let index = self.node(carry.id).op.downcast_ref().map(|&Input(index)| index);
        let decl = index.map(|index| self.inner.borrow().graph.inputs[index].clone());
        match decl.filter(|decl| decl.kind == InputKind::Carry) {
            Some(decl) if decl.ty == value.ty => self.show(&decl.name, OutputKind::Carry, value),
            Some(decl) => self.fail_here("keep", format!("a carry {} cannot become {}", decl.ty, value.ty)),
            None => self.fail_here("keep", "the first operand is not a carry".into()),
        }
    }

    /// Declares memory that stays on the device from one step to the next: what [`Tape::keep_resident`] left
    /// there. It has a row for each sample that the device computes, and nothing of it crosses the host.
    pub fn resident(&self, number: usize, ty: Type) -> Var {
        if ty.lead != Lead::Sample {
            self.fail_here("resident", format!("{ty} has no row for each sample"));
        }
        self.declare_input(&resident_name(number), ty, InputKind::Resident(number))
    }

    /// Makes `value` what the device's resident memory of this number holds from then on, with its type. Two
    /// values for one memory are an error, and so is a value of another type than [`Tape::resident`] declared
    /// before.
    pub fn keep_resident(&self, number: usize, value: &Var) {
        if value.ty.lead != Lead::Sample {
            self.fail_here("keep_resident", format!("{} has no row for each sample", value.ty));
        }
        let kind = InputKind::Resident(number);
        let old =
            self.inner.borrow().graph.inputs.iter().find(|input| input.kind == kind).map(|i| i.ty.clone());
        if let Some(old) = old.filter(|old| *old != value.ty) {
            self.fail_here("keep_resident", format!("memory of {old} cannot hold {}", value.ty));
        }
        self.show(&resident_name(number), OutputKind::Resident(number), value);
    }
}

/// Returns the name of a resident memory.
fn resident_name(number: usize) -> String {
    format!("resident {number}")
}
