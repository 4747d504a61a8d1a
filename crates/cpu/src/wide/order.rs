//! Puts the steps of a plan in an order, and gives each value a slot.

use super::pass::{Member, Pass, Source, Unit};
use super::plan::{Action, Instruction, Plan, Planner, Slot, Value, Width};

impl Planner {
    /// Puts the steps in an order and gives each value a slot. Joins steps to passes if `has_passes`.
    pub fn in_order(&self, ends: &[Value], stores: &[(u32, u32, Value)], has_passes: bool) -> Plan {
        let mut order = Order { planner: self, is_placed: vec![false; self.steps.len()], values: Vec::new() };
        ends.iter().for_each(|end| order.place(*end));
        let first = order.values.len();
        // What is loaded before a store is loaded before it.
        for &(epoch, binding, store) in stores {
            for value in 0..self.steps.len() {
                let is_before = match self.steps[value].action {
                    Action::Load { binding: own, epoch: at }
                    | Action::LoadFour { binding: own, epoch: at, .. } => own == binding && at <= epoch,
                    _ => false,
                };
                if is_before {
                    order.place(value as Value);
                }
            }
            order.place(store);
        }
        let each = |value: &Value| Unit::Step(*value);
        let (before, rest) = order.values.split_at(first);
        let mut units: Vec<Unit> = before.iter().map(each).collect();
        if has_passes {
            units.extend(self.units(rest));
        } else {
            units.extend(rest.iter().map(each));
        }
        self.with_slots(&units, first)
    }

    /// Gives each value that lives on behind its unit a slot. The first units are those of the ends.
    fn with_slots(&self, units: &[Unit], ends: usize) -> Plan {
        let mut plan = Plan::default();
        // The unit that makes each value, and the one that uses it last.
        let (mut made, mut last) = (vec![0; self.steps.len()], vec![0; self.steps.len()]);
        for (at, unit) in units.iter().enumerate() {
            for &value in unit.values() {
                (made[value as usize], last[value as usize]) = (at, at);
                self.operands(value).iter().for_each(|operand| last[*operand as usize] = at);
            }
        }
        let mut slots = vec![Slot::default(); self.steps.len()];
        let mut free: Vec<u32> = Vec::new();
        let needs_slot = |value: Value| {
            let own = value as usize;
            let stays = last[own] > made[own] || matches!(units[made[own]], Unit::Step(_));
            self.width(value) > Width::Block && stays && !is_effect(self.steps[own].action)
        };
        for (at, unit) in units.iter().enumerate() {
            for &value in unit.values() {
                if self.width(value) <= Width::Block {
                    plan.short += 1;
                    slots[value as usize] = Slot { at: plan.short - 1, repeats: true };
                } else if needs_slot(value) {
                    let own = free.pop().unwrap_or_else(|| {
                        plan.whole += 1;
                        plan.whole - 1
                    });
                    slots[value as usize] = Slot { at: own, repeats: false };
                }
            }
            let instruction = match unit {
                &Unit::Step(value) => self.instruction(value, &slots),
                Unit::Pass(values) => {
                    let source = |operand: &Value| match values.iter().position(|own| own == operand) {
                        Some(member) => Source::Member(member),
                        None => Source::Slot(slots[*operand as usize]),
                    };
                    let member = |value: &Value| {
                        let step = self.steps[*value as usize];
                        let to = needs_slot(*value).then_some(slots[*value as usize]);
                        Member { action: step.action, operands: step.operands.each_ref().map(source), to }
                    };
                    plan.passes.push(Pass::new(values.iter().map(member).collect()));
                    let action = Action::Pass(plan.passes.len() as u32 - 1);
                    Instruction { action, ..self.instruction(values[0], &slots) }
                }
            };
            let list = match (instruction.width, at < ends) {
                (Width::Launch, true) => &mut plan.once,
                (Width::Launch, false) => &mut plan.late,
                (_, true) => &mut plan.first,
                (_, false) => &mut plan.rest,
            };
            list.push(instruction);
            // Slots of what is used for the last time are free behind this unit, not for its own results:
            // results of other widths are written before all operands are read.
            let operands = unit.values().iter().flat_map(|value| self.operands(*value));
            let mut ended: Vec<Value> = operands.chain(unit.values()).copied().collect();
            ended.sort_unstable();
            ended.dedup();
            ended.retain(|value| last[*value as usize] == at && needs_slot(*value));
            free.extend(ended.into_iter().map(|value| slots[value as usize].at));
        }
        plan
    }

    fn instruction(&self, value: Value, slots: &[Slot]) -> Instruction {
        let step = self.steps[value as usize];
        Instruction {
            action: step.action,
            width: self.width(value),
            operands: step.operands.map(|operand| slots[operand as usize]),
            to: slots[value as usize],
            in_row: step.in_row,
        }
    }

    /// Returns the operands of a step.
    pub(super) fn operands(&self, value: Value) -> &[Value] {
        let step = &self.steps[value as usize];
        if has_operands(step.action) { &step.operands } else { &[] }
    }
}

/// Returns whether a step has no result.
pub(super) fn is_effect(action: Action) -> bool {
    use Action::{End, StoreFour, StoreIfAny, StoreWord};
    matches!(action, StoreWord { .. } | StoreFour { .. } | StoreIfAny { .. } | End)
}

fn has_operands(action: Action) -> bool {
    use Action::{First, Number, Numbers, Param, Place};
    !matches!(action, Number(_) | Numbers(_) | Param { .. } | Place(_) | First)
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
        self.planner.operands(value).iter().for_each(|operand| self.place(*operand));
        self.values.push(value);
    }
}
