//! Puts the steps of a plan in an order, and gives each value a slot.

use super::plan::{Action, Instruction, Plan, Planner, Slot, Value, Width};

impl Planner {
    /// Puts the steps in an order and gives each value a slot.
    pub fn in_order(&self, ends: &[Value], stores: &[(u32, u32, Value)]) -> Plan {
        let mut order = Order { planner: self, is_placed: vec![false; self.steps.len()], values: Vec::new() };
        ends.iter().for_each(|end| order.place(*end));
        let first = order.values.len();
        // What is loaded before a store is loaded before it.
        for &(epoch, binding, store) in stores {
            for value in 0..self.steps.len() {
                let is_before = match self.steps[value].action {
                    Action::Load { binding: own, epoch: at }
                    | Action::LoadFour { binding: own, epoch: at } => own == binding && at <= epoch,
                    _ => false,
                };
                if is_before {
                    order.place(value as Value);
                }
            }
            order.place(store);
        }
        let mut plan = Plan::default();
        let last = self.last_uses(&order.values);
        let mut slots = vec![Slot::default(); self.steps.len()];
        let mut free: Vec<u32> = Vec::new();
        for (at, &value) in order.values.iter().enumerate() {
            let step = self.steps[value as usize];
            let width = self.width(value);
            slots[value as usize] = if width <= Width::Block {
                plan.short += 1;
                Slot { at: plan.short - 1, repeats: true }
            } else if is_effect(step.action) {
                Slot::default()
            } else {
                let own = free.pop().unwrap_or_else(|| {
                    plan.whole += 1;
                    plan.whole - 1
                });
                Slot { at: own, repeats: false }
            };
            let instruction = Instruction {
                action: step.action,
                width,
                operands: step.operands.map(|operand| slots[operand as usize]),
                to: slots[value as usize],
                in_row: step.in_row,
            };
            let list = match (width, at < first) {
                (Width::Launch, true) => &mut plan.once,
                (Width::Launch, false) => &mut plan.late,
                (_, true) => &mut plan.first,
                (_, false) => &mut plan.rest,
            };
            list.push(instruction);
            // Slots of what is used for the last time are free behind this step, not for its own result:
            // results of other widths are written before all operands are read.
            let mut ended: Vec<Value> = step.operands.to_vec();
            ended.push(value);
            ended.sort_unstable();
            ended.dedup();
            for operand in ended {
                let has_slot =
                    self.width(operand) > Width::Block && !is_effect(self.steps[operand as usize].action);
                if has_slot && last[operand as usize] == at {
                    free.push(slots[operand as usize].at);
                }
            }
        }
        plan
    }

    /// Returns the place in this order at which each value is used for the last time.
    fn last_uses(&self, values: &[Value]) -> Vec<usize> {
        let mut last = vec![0; self.steps.len()];
        for (at, &value) in values.iter().enumerate() {
            last[value as usize] = at;
            if has_operands(self.steps[value as usize].action) {
                self.steps[value as usize].operands.iter().for_each(|operand| last[*operand as usize] = at);
            }
        }
        last
    }
}

/// Returns whether a step has no result.
fn is_effect(action: Action) -> bool {
    use Action::{End, StoreFour, StoreIfAny, StoreWord};
    matches!(action, StoreWord { .. } | StoreFour { .. } | StoreIfAny { .. } | End)
}

fn has_operands(action: Action) -> bool {
    use Action::{Number, Numbers, Param, Place};
    !matches!(action, Number(_) | Numbers(_) | Param { .. } | Place(_))
}

struct Order<'p> {
    planner: &'p Planner,
    is_placed: Vec<bool>,
    values: Vec<Value>,
}

impl Order<'_> {
    /// Places a step behind its operands.
    fn place(&mut self, value: Value) {
        if std::mem::replace(&mut self.is_placed[value as usize], true) {
            return;
        }
        let step = self.planner.steps[value as usize];
        if has_operands(step.action) {
            step.operands.into_iter().for_each(|operand| self.place(operand));
        }
        self.values.push(value);
    }
}
