//! Passes: operations that are done together, one after the other to sixteen words at a time, so that values
//! between them are in registers.

use super::graph::Code;
use super::machine::REGISTERS;
use super::order::is_effect;
use super::plan::{Action, Counts, Planner, Slot, Step, Value, Width};

/// The most loads and stores of a pass.
pub(super) const MOST_STREAMS: usize = 16;

/// Where an operand of a pass is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A register, with the result of the pass's action of this number.
    Member(usize),
    Slot(Slot),
}

impl Source {
    pub fn repeats(self) -> bool {
        matches!(self, Self::Slot(Slot { repeats: true, .. }))
    }
}

/// An action of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub action: Action,
    pub operands: [Source; 4],
    /// The slot to which its result goes, if others need it.
    pub to: Option<Slot>,
}

impl Member {
    /// Returns the operands that are words of the pass, and not the place of a load or store.
    pub fn sources(&self) -> &[Source] {
        match self.action {
            Action::Load { .. } | Action::LoadFour { .. } => &[],
            Action::StoreWord { .. } | Action::StoreFour { .. } => &self.operands[1..2],
            _ => &self.operands[..3],
        }
    }
}

/// The words of a buffer that a load or store of a pass begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub binding: u32,
    pub index: Slot,
    /// How many words an index counts.
    pub words: usize,
}

/// Actions that are done in one loop.
#[derive(Debug)]
pub(super) struct Pass {
    pub members: Vec<Member>,
    pub streams: Vec<Stream>,
}

impl Pass {
    pub fn new(members: Vec<Member>) -> Self {
        let mut streams = Vec::new();
        for member in &members {
            let (binding, words) = match member.action {
                Action::Load { binding, .. } | Action::StoreWord { binding } => (binding, 1),
                Action::LoadFour { binding, counts: Counts::Vectors, .. } | Action::StoreFour { binding } => {
                    (binding, 4)
                }
                _ => continue,
            };
            if let Source::Slot(index) = member.operands[0] {
                streams.push(Stream { binding, index, words });
            }
        }
        Self { members, streams }
    }
}

/// Steps that are done at once.
#[derive(Debug)]
pub(super) enum Unit {
    Step(Value),
    /// Several, in one pass.
    Pass(Vec<Value>),
}

impl Unit {
    pub fn values(&self) -> &[Value] {
        match self {
            Self::Step(value) => std::slice::from_ref(value),
            Self::Pass(values) => values,
        }
    }
}

/// Returns whether an operation is one instruction of AVX-512 or a few.
pub(super) fn is_simple(code: Code) -> bool {
    use Code::{Erf, Exp, Log, Quotient, Rest, Sigmoid, SignedOfFloat, Tanh, WordOfFloat};
    !matches!(code, Exp | Log | Tanh | Erf | Sigmoid | Quotient | Rest | WordOfFloat | SignedOfFloat)
}

/// Steps that may become a pass.
struct Open {
    width: Width,
    members: Vec<Value>,
    streams: usize,
    /// The buffers to which it stores.
    stored: Vec<u32>,
}

impl Planner {
    /// Joins steps, which are in order, to passes.
    pub(super) fn units(&self, values: &[Value]) -> Vec<Unit> {
        let mut last = vec![0; self.steps.len()];
        for (at, &value) in values.iter().enumerate() {
            self.operands(value).iter().for_each(|operand| last[*operand as usize] = at);
        }
        let mut units = Vec::new();
        let mut open: Option<Open> = None;
        for (at, &value) in values.iter().enumerate() {
            let (step, width) = (self.steps[value as usize], self.width(value));
            let joins = self.joins(step, width);
            if let Some(pass) = &mut open {
                let live = pass.members.iter().filter(|member| last[**member as usize] >= at).count();
                let has_room = live + 1 < REGISTERS && pass.streams < MOST_STREAMS;
                if joins && width == pass.width && has_room {
                    pass.add(value, step);
                    continue;
                }
                if pass.may_follow(self.operands(value), step.action) {
                    units.push(Unit::Step(value));
                    continue;
                }
            }
            units.extend(open.take().map(Open::close));
            if joins {
                let mut pass = Open { width, members: Vec::new(), streams: 0, stored: Vec::new() };
                pass.add(value, step);
                open = Some(pass);
            } else {
                units.push(Unit::Step(value));
            }
        }
        units.extend(open.map(Open::close));
        units
    }

    /// Returns whether a step may be part of a pass.
    fn joins(&self, step: Step, width: Width) -> bool {
        if width <= Width::Block {
            return false;
        }
        match step.action {
            Action::Load { .. } | Action::LoadFour { .. } => step.in_row,
            Action::StoreWord { .. } | Action::StoreFour { .. } => step.in_row,
            Action::Op(code, _) => is_simple(code),
            _ => false,
        }
    }
}

impl Open {
    fn add(&mut self, value: Value, step: Step) {
        match step.action {
            Action::Load { .. } | Action::LoadFour { .. } => self.streams += 1,
            Action::StoreWord { binding } | Action::StoreFour { binding } => {
                self.streams += 1;
                self.stored.push(binding);
            }
            _ => {}
        }
        self.members.push(value);
    }

    /// Returns whether this pass may be done behind a step that came later.
    fn may_follow(&self, operands: &[Value], action: Action) -> bool {
        let needs_this = operands.iter().any(|operand| self.members.contains(operand));
        let reads_this = match action {
            Action::Load { binding, .. } | Action::LoadFour { binding, .. } => self.stored.contains(&binding),
            _ => false,
        };
        !needs_this && !reads_this && !is_effect(action)
    }

    fn close(self) -> Unit {
        match self.members[..] {
            [value] => Unit::Step(value),
            _ => Unit::Pass(self.members),
        }
    }
}
