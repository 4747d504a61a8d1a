//! Loops, which are unrolled if their turns are known.

use std::collections::HashSet;

use cranelift_codegen::ir::{Block, InstBuilder, types};
use cranelift_frontend::Variable;
use naga::{
    BinaryOperator, Expression, Function, Handle, Literal, LocalVariable, Module, Scalar, ScalarKind,
    Statement,
};

use super::Stop;
use super::arithmetic::{Kind, folded};
use super::bodies::{Body, emitted};
use super::control::Around;
use super::translator::{Frame, Writer};
use super::value::{Place, Pointer, Slot, Val};

/// The most turns of a loop that is unrolled.
const MOST_TURNS: u64 = 64;
/// The most expressions of an unrolled loop.
const MOST_WEIGHT: u64 = 12_000;
/// The instructions from which on no loop is unrolled.
const MANY: usize = 100_000;

/// The number of expressions that each function evaluates, loops counted once.
pub(super) struct Weights(Vec<u64>);

impl Weights {
    pub fn of(module: &Module) -> Self {
        // A function comes behind those that it calls.
        let mut weights = Self(Vec::new());
        for (_, function) in module.functions.iter() {
            let weight = weights.block(&function.body);
            weights.0.push(weight);
        }
        weights
    }

    fn block(&self, block: &naga::Block) -> u64 {
        block.iter().fold(0, |sum, statement| u64::saturating_add(sum, self.statement(statement)))
    }

    fn statement(&self, statement: &Statement) -> u64 {
        match statement {
            Statement::Emit(range) => range.clone().count() as u64,
            Statement::Block(block) => self.block(block),
            Statement::If { accept, reject, .. } => self.block(accept).saturating_add(self.block(reject)),
            Statement::Switch { cases, .. } => {
                cases.iter().fold(0, |sum, case| u64::saturating_add(sum, self.block(&case.body)))
            }
            // Most loops are unrolled as well.
            Statement::Loop { body, continuing, .. } => {
                self.block(body).saturating_add(self.block(continuing)).saturating_mul(4)
            }
            Statement::Call { function, .. } => self.0.get(function.index()).copied().unwrap_or(0),
            _ => 1,
        }
    }
}

/// A loop over a counter, the turns of which are known.
struct Counted {
    counter: Variable,
    first: u64,
    step: u64,
    turns: u64,
}

impl<'m> Writer<'m, '_> {
    /// Writes a loop.
    pub fn turns(
        &mut self,
        frame: &mut Frame<'m>,
        body: &'m naga::Block,
        continuing: &'m naga::Block,
        break_if: Option<Handle<Expression>>,
    ) -> Result<bool, Stop> {
        let mut stored = Vec::new();
        self.stored(frame, body, &mut stored)?;
        self.stored(frame, continuing, &mut stored)?;
        let weights = &self.plan.weights;
        let weight = weights.block(body).saturating_add(weights.block(continuing));
        let counted = match break_if {
            None => self.counted(frame, body, continuing, &stored)?,
            Some(_) => None,
        };
        let is_short = |counted: &Counted| {
            counted.turns <= MOST_TURNS && counted.turns.saturating_mul(weight) <= MOST_WEIGHT
        };
        let mut inside = HashSet::new();
        emitted(body, &mut inside);
        frame.bodies.push(Body { emitted: inside.into_iter().collect(), skipped: HashSet::new() });
        let goes_on = match counted.filter(|counted| is_short(counted) && self.written() < MANY) {
            Some(counted) => self.unrolled(frame, body, continuing, &counted, &stored)?,
            None => self.rolled(frame, body, continuing, break_if, &stored)?,
        };
        frame.bodies.pop();
        Ok(goes_on)
    }

    /// Writes a loop that takes any number of turns.
    fn rolled(
        &mut self,
        frame: &mut Frame<'m>,
        body: &'m naga::Block,
        continuing: &'m naga::Block,
        break_if: Option<Handle<Expression>>,
        stored: &[Variable],
    ) -> Result<bool, Stop> {
        frame.begin();
        let [head, next, after] = [(); 3].map(|()| self.b.create_block());
        self.forget(stored);
        self.b.ins().jump(head, &[]);
        self.go_to(head);
        let around = Around { broken: after, continued: Some(next) };
        if self.block(frame, body, Some(around), false)? {
            self.leave_for(next);
        }
        if self.goals.contains(&next) {
            self.go_to(next);
            frame.continues();
            self.forget(stored);
            let goes_on = self.block(frame, continuing, None, false)?;
            match break_if.filter(|_| goes_on) {
                Some(condition) => {
                    let condition = self.one(frame, condition)?;
                    self.goals.insert(after);
                    self.b.ins().brif(condition, after, &[], head, &[]);
                }
                None if goes_on => {
                    self.b.ins().jump(head, &[]);
                }
                None => {}
            }
        }
        if !self.goals.contains(&after) {
            return Ok(false);
        }
        self.go_to(after);
        self.forget(stored);
        Ok(true)
    }

    /// Writes the turns of a loop one behind the other.
    fn unrolled(
        &mut self,
        frame: &mut Frame<'m>,
        body: &'m naga::Block,
        continuing: &'m naga::Block,
        counted: &Counted,
        stored: &[Variable],
    ) -> Result<bool, Stop> {
        let guard = guard(body);
        let leaves = body.iter().enumerate().any(|(at, statement)| Some(at) != guard && breaks(statement));
        let after = self.b.create_block();
        for turn in 0..counted.turns {
            let number = counted.first.wrapping_add(turn.wrapping_mul(counted.step)) & 0xffff_ffff;
            let value = self.number(types::I32, number);
            self.b.def_var(counted.counter, value);
            self.known.set(counted.counter, Some(number));
            let next = self.b.create_block();
            let around = Around { broken: after, continued: Some(next) };
            frame.begin();
            let mut goes_on = true;
            for (_, statement) in body.iter().enumerate().filter(|(at, _)| Some(*at) != guard) {
                if !self.statement(frame, statement, Some(around), false)? {
                    goes_on = false;
                    break;
                }
            }
            if leaves {
                if goes_on {
                    self.leave_for(next);
                }
                if !self.goals.contains(&next) {
                    // No further turn begins.
                    return Ok(self.ends_at(after, stored));
                }
                self.go_to(next);
                frame.continues();
                self.forget(stored);
            } else if !goes_on {
                // It returns in its first turn.
                return Ok(false);
            }
            if !self.block(frame, continuing, None, false)? {
                return Ok(leaves && self.ends_at(after, stored));
            }
        }
        if leaves {
            self.leave_for(after);
            self.ends_at(after, stored);
        } else {
            let number = counted.first.wrapping_add(counted.turns.wrapping_mul(counted.step)) & 0xffff_ffff;
            let value = self.number(types::I32, number);
            self.b.def_var(counted.counter, value);
            self.known.set(counted.counter, Some(number));
        }
        Ok(true)
    }

    /// Goes on at the end of a loop. Returns whether anything goes there.
    fn ends_at(&mut self, after: Block, stored: &[Variable]) -> bool {
        let is_reached = self.goals.contains(&after);
        if is_reached {
            self.go_to(after);
            self.forget(stored);
        }
        is_reached
    }

    /// Writes a jump.
    pub fn leave_for(&mut self, to: Block) {
        self.goals.insert(to);
        self.b.ins().jump(to, &[]);
    }

    /// Returns the number of instructions that are written.
    pub fn written(&self) -> usize {
        self.b.func.dfg.num_insts()
    }

    fn forget(&mut self, stored: &[Variable]) {
        for variable in stored {
            self.known.set(*variable, None);
        }
    }

    /// Collects the registers that a block of a function may write.
    fn stored(
        &mut self,
        frame: &mut Frame<'m>,
        block: &'m naga::Block,
        all: &mut Vec<Variable>,
    ) -> Result<(), Stop> {
        for statement in block.iter() {
            match statement {
                Statement::Block(block) => self.stored(frame, block, all)?,
                Statement::If { accept, reject, .. } => {
                    self.stored(frame, accept, all)?;
                    self.stored(frame, reject, all)?;
                }
                Statement::Switch { cases, .. } => {
                    for case in cases {
                        self.stored(frame, &case.body, all)?;
                    }
                }
                Statement::Loop { body, continuing, .. } => {
                    self.stored(frame, body, all)?;
                    self.stored(frame, continuing, all)?;
                }
                Statement::Store { pointer, .. } => self.registers_of(frame, *pointer, all)?,
                Statement::Call { arguments, .. } => {
                    for &argument in arguments {
                        self.registers_of(frame, argument, all)?;
                    }
                    for global in self.globals.iter().flatten() {
                        if let Pointer::Slot { slot, .. } = global {
                            slot.for_each(&mut |variable| all.push(variable));
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Collects the registers into which a pointer may point.
    fn registers_of(
        &mut self,
        frame: &mut Frame<'m>,
        pointer: Handle<Expression>,
        all: &mut Vec<Variable>,
    ) -> Result<(), Stop> {
        let mut root = pointer;
        loop {
            match frame.function.expressions[root] {
                Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => root = base,
                Expression::LocalVariable(_)
                | Expression::GlobalVariable(_)
                | Expression::FunctionArgument(_) => break,
                _ => return Ok(()),
            }
        }
        if let Val::Pointer(Pointer::Slot { slot, .. }) = self.value(frame, root)? {
            slot.for_each(&mut |variable| all.push(variable));
        }
        Ok(())
    }

    /// Returns the counter of a loop `for (i = A; i < B; i += C)` where A, B and C are known here.
    fn counted(
        &mut self,
        frame: &mut Frame<'m>,
        body: &'m naga::Block,
        continuing: &'m naga::Block,
        stored: &[Variable],
    ) -> Result<Option<Counted>, Stop> {
        let all = &frame.function.expressions;
        let Some(Statement::If { condition, .. }) = guard(body).map(|at| &body[at]) else { return Ok(None) };
        let Expression::Binary { op: BinaryOperator::Less, left, right } = &all[*condition] else {
            return Ok(None);
        };
        let mut inside = HashSet::new();
        emitted(body, &mut inside);
        emitted(continuing, &mut inside);
        // What was loaded before the loop is not what the counter is now.
        let Expression::Load { pointer } = all[*left] else { return Ok(None) };
        let Expression::LocalVariable(counter) = all[pointer] else { return Ok(None) };
        let step = step(frame.function, continuing, counter).filter(|(of, _)| inside.contains(of));
        let (Some((_, step)), true) = (step, inside.contains(left)) else { return Ok(None) };
        let Place::Slot(Slot::Leaf(counter)) = frame.locals[counter.index()] else { return Ok(None) };
        if stored.iter().filter(|variable| **variable == counter).count() != 1 {
            return Ok(None);
        }
        let Some(first) = self.known.get(counter) else { return Ok(None) };
        let Some(end) = self.known_value(frame, *right, stored, &inside)? else { return Ok(None) };
        let scalar = self.inner(frame, *left).scalar().filter(|scalar| scalar.width == 4);
        let most = match scalar.map(|scalar| scalar.kind) {
            Some(ScalarKind::Sint) => 0x7fff_ffff,
            Some(ScalarKind::Uint) => 0xffff_ffff,
            _ => return Ok(None),
        };
        let turns = if step == 0 { 0 } else { end.saturating_sub(first).div_ceil(step) };
        // A counter that is negative, or wraps.
        if step == 0 || first.max(end) > most || first + turns * step > most {
            return Ok(None);
        }
        Ok(Some(Counted { counter, first, step, turns }))
    }

    /// Returns the number that an expression has before a loop and in all of its turns, if it is known.
    fn known_value(
        &mut self,
        frame: &mut Frame<'m>,
        handle: Handle<Expression>,
        stored: &[Variable],
        inside: &HashSet<Handle<Expression>>,
    ) -> Result<Option<u64>, Stop> {
        if !inside.contains(&handle) {
            // What was evaluated before the loop is what it was then.
            if let Some(Val::One(value)) = frame.values[handle.index()] {
                return Ok(self.known_number(value));
            }
        }
        Ok(match frame.function.expressions[handle] {
            Expression::Literal(Literal::U32(number)) => Some(number.into()),
            Expression::Literal(Literal::I32(number)) => Some(u64::from(number as u32)),
            Expression::Constant(_) => {
                let value = self.one(frame, handle)?;
                self.known_number(value)
            }
            Expression::Load { pointer } => match frame.function.expressions[pointer] {
                Expression::LocalVariable(local) => match frame.locals[local.index()] {
                    Place::Slot(Slot::Leaf(variable)) if !stored.contains(&variable) => {
                        self.known.get(variable)
                    }
                    _ => None,
                },
                _ => None,
            },
            Expression::Binary { op, left, right } => {
                let kind = match self.inner(frame, left).scalar() {
                    Some(Scalar { kind: ScalarKind::Uint, width: 4 }) => Kind::Unsigned,
                    Some(Scalar { kind: ScalarKind::Sint, width: 4 }) => Kind::Signed,
                    _ => return Ok(None),
                };
                let left = self.known_value(frame, left, stored, inside)?;
                let right = self.known_value(frame, right, stored, inside)?;
                match (left, right) {
                    (Some(a), Some(b)) => folded(op, kind, types::I32, a, b).map(|(_, found)| found),
                    _ => None,
                }
            }
            Expression::FunctionArgument(index) => match frame.arguments[index as usize] {
                Val::One(value) => self.known_number(value),
                _ => None,
            },
            _ => None,
        })
    }
}

/// Returns the place of the statement that ends a loop when its condition no longer holds, at the beginning
/// of the loop's body.
fn guard(body: &naga::Block) -> Option<usize> {
    let first = body.iter().position(|statement| !matches!(statement, Statement::Emit(_)))?;
    match &body[first] {
        Statement::If { accept, reject, .. } if accept.is_empty() => {
            matches!(reject.first(), Some(Statement::Break)).then_some(first)
        }
        _ => None,
    }
}

/// Returns what a counter was and by how much it grows each turn, if it does nothing else.
fn step(
    function: &Function,
    continuing: &naga::Block,
    counter: Handle<LocalVariable>,
) -> Option<(Handle<Expression>, u64)> {
    let all = &function.expressions;
    let is_counter = |pointer| matches!(all[pointer], Expression::LocalVariable(own) if own == counter);
    let mut steps = continuing.iter().filter_map(|statement| match statement {
        Statement::Store { pointer, value } if is_counter(*pointer) => Some(*value),
        _ => None,
    });
    let (value, None) = (steps.next()?, steps.next()) else { return None };
    let Expression::Binary { op: BinaryOperator::Add, left, right } = all[value] else { return None };
    let Expression::Load { pointer } = all[left] else { return None };
    match all[right] {
        Expression::Literal(Literal::U32(step)) if is_counter(pointer) => Some((left, step.into())),
        Expression::Literal(Literal::I32(step)) if is_counter(pointer) => {
            Some((left, u64::try_from(step).ok()?))
        }
        _ => None,
    }
}

/// Returns whether a statement of a loop's body may end the turn or the loop.
fn breaks(statement: &Statement) -> bool {
    let any = |block: &naga::Block| block.iter().any(breaks);
    match statement {
        Statement::Break | Statement::Continue => true,
        Statement::Block(block) => any(block),
        Statement::If { accept, reject, .. } => any(accept) || any(reject),
        Statement::Switch { cases, .. } => cases.iter().any(|case| any(&case.body)),
        _ => false,
    }
}
