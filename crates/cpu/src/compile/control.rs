//! Statements.

use cranelift_codegen::ir::condcodes::{CondCode, IntCC};
use cranelift_codegen::ir::{
    self, AtomicRmwOp, Block, InstBuilder, InstructionData, MemFlagsData, ValueDef, types,
};
use naga::{AtomicFunction, Expression, Handle, Statement, SwitchValue, TypeInner};

use super::Stop;
use super::memory::behind;
use super::translator::{Frame, Writer};
use super::value::{Known, Pointer, Val};

/// The instructions from which on nothing more is inlined.
const MOST: usize = 1_000_000;

/// The most blocks of statements within one another, those of callers included: each takes some of the stack
/// of the thread that compiles.
const MOST_DEPTH: usize = 128;

/// Where `break` and `continue` go.
#[derive(Clone, Copy)]
pub(super) struct Around {
    pub broken: Block,
    pub continued: Option<Block>,
}

impl<'m> Writer<'m, '_> {
    /// Writes the statements of a block. Returns whether the end of the block is reached. `is_last` tells
    /// whether nothing of the function comes behind the block.
    pub fn block(
        &mut self,
        frame: &mut Frame<'m>,
        block: &'m naga::Block,
        around: Option<Around>,
        is_last: bool,
    ) -> Result<bool, Stop> {
        if self.depth == MOST_DEPTH {
            return Err(Stop::unsupported("statements so deep within one another"));
        }
        self.depth += 1;
        let count = block.len();
        let mut goes_on = true;
        for (at, statement) in block.iter().enumerate() {
            if !self.statement(frame, statement, around, is_last && at + 1 == count)? {
                goes_on = false;
                break;
            }
        }
        self.depth -= 1;
        Ok(goes_on)
    }

    pub fn statement(
        &mut self,
        frame: &mut Frame<'m>,
        statement: &'m Statement,
        around: Option<Around>,
        is_last: bool,
    ) -> Result<bool, Stop> {
        match statement {
            Statement::Emit(range) => {
                for handle in range.clone() {
                    let value = self.evaluate(frame, handle)?;
                    frame.values[handle.index()] = Some(value);
                }
            }
            Statement::Block(block) => return self.block(frame, block, around, is_last),
            Statement::If { condition, accept, reject } => {
                let condition = self.one(frame, *condition)?;
                if let Some(known) = self.known_number(condition) {
                    let taken = if known != 0 { accept } else { reject };
                    return self.block(frame, taken, around, is_last);
                }
                let [yes, no, after] = [(); 3].map(|()| self.b.create_block());
                if around.is_some() && matches!(reject.last(), Some(Statement::Break)) {
                    // The way out of the loop is named first, so that Cranelift meets the loop's body before
                    // what is behind it: only then it moves what is the same in all turns out of the loop.
                    let condition = self.opposite(condition);
                    self.b.ins().brif(condition, no, &[], yes, &[]);
                } else {
                    self.b.ins().brif(condition, yes, &[], no, &[]);
                }
                let before = self.known.clone();
                self.go_to(yes);
                let mut ends = Vec::new();
                for (start, branch) in [(None, accept), (Some(no), reject)] {
                    if let Some(start) = start {
                        self.go_to(start);
                        self.known = before.clone();
                    }
                    if self.block(frame, branch, around, false)? {
                        self.b.ins().jump(after, &[]);
                        ends.push(std::mem::take(&mut self.known));
                    }
                }
                return Ok(self.join(after, ends));
            }
            Statement::Switch { selector, cases } => return self.switch(frame, *selector, cases, around),
            Statement::Loop { body, continuing, break_if } => {
                return self.turns(frame, body, continuing, *break_if);
            }
            Statement::Break => {
                let to = around.ok_or_else(|| Stop::unsupported("break outside of a loop"))?;
                self.leave_for(to.broken);
                return Ok(false);
            }
            Statement::Continue => {
                let to = around.and_then(|around| around.continued);
                let to = to.ok_or_else(|| Stop::unsupported("continue outside of a loop"))?;
                frame.skip();
                self.leave_for(to);
                return Ok(false);
            }
            Statement::Return { value } => return self.leave(frame, *value, is_last),
            Statement::ControlBarrier(_) => self.barrier(),
            Statement::MemoryBarrier(_) => {}
            Statement::Store { pointer, value } => {
                let value = self.value(frame, *value)?;
                let to = self.place_of(frame, *pointer)?;
                let inner = behind(self.plan.module, self.inner(frame, *pointer))?;
                self.store(&to, &inner, &value)?;
            }
            Statement::Atomic { pointer, fun, value, result } => {
                self.atomic(frame, *pointer, fun, *value, *result)?;
            }
            Statement::WorkGroupUniformLoad { pointer, result } => {
                self.barrier();
                let from = self.place_of(frame, *pointer)?;
                let inner = behind(self.plan.module, self.inner(frame, *pointer))?;
                let value = self.load(&from, &inner)?;
                frame.values[result.index()] = Some(value);
                self.barrier();
            }
            Statement::Call { function, arguments, result } => {
                let mut given = Vec::new();
                for &argument in arguments {
                    given.push(self.value(frame, argument)?);
                }
                let (callee, info) = (&self.plan.module.functions[*function], &self.plan.info[*function]);
                if self.written() > MOST {
                    return Err(Stop::unsupported("a kernel of so many calls"));
                }
                let value = self.inline(callee, info, function.index(), given)?;
                if let Some(result) = result {
                    frame.values[result.index()] = value;
                }
            }
            other => {
                let name = format!("{other:?}");
                let name = name.split([' ', '(']).next().unwrap_or_default().to_owned();
                return Err(Stop::unsupported(format!("the statement {name}")));
            }
        }
        Ok(true)
    }

    /// Returns whether a condition does not hold.
    fn opposite(&mut self, condition: ir::Value) -> ir::Value {
        if let ValueDef::Result(inst, 0) = self.b.func.dfg.value_def(condition) {
            match self.b.func.dfg.insts[inst] {
                InstructionData::IntCompare { cond, args: [a, b], .. } => {
                    return self.b.ins().icmp(cond.complement(), a, b);
                }
                InstructionData::FloatCompare { cond, args: [a, b], .. } => {
                    return self.b.ins().fcmp(cond.complement(), a, b);
                }
                _ => {}
            }
        }
        self.b.ins().bxor_imm_u(condition, 1)
    }

    /// Goes on at `after`, where these ends meet. Returns whether there is any.
    fn join(&mut self, after: Block, ends: Vec<Known>) -> bool {
        let mut ends = ends.into_iter();
        let Some(mut known) = ends.next() else { return false };
        for other in ends {
            known.meet(&other);
        }
        self.known = known;
        self.go_to(after);
        true
    }

    /// Writes a `return`.
    fn leave(
        &mut self,
        frame: &mut Frame<'m>,
        value: Option<Handle<Expression>>,
        is_last: bool,
    ) -> Result<bool, Stop> {
        let value = match value {
            Some(value) => Some(self.value(frame, value)?),
            None => None,
        };
        if is_last {
            frame.returned = value;
            return Ok(true);
        }
        let (exit, slot) = match frame.exit.clone() {
            Some(known) => known,
            None => {
                let slot = match &frame.function.result {
                    Some(result) => Some(self.slot(&self.plan.module.types[result.ty].inner)?),
                    None => None,
                };
                let exit = (self.b.create_block(), slot);
                frame.exit = Some(exit.clone());
                exit
            }
        };
        if let (Some(slot), Some(value)) = (&slot, &value) {
            self.define(slot, value)?;
        }
        self.b.ins().jump(exit, &[]);
        Ok(false)
    }

    fn switch(
        &mut self,
        frame: &mut Frame<'m>,
        selector: Handle<Expression>,
        cases: &'m [naga::SwitchCase],
        around: Option<Around>,
    ) -> Result<bool, Stop> {
        let selector = self.one(frame, selector)?;
        let after = self.b.create_block();
        let inside = Around { broken: after, continued: around.and_then(|around| around.continued) };
        // Cases without statements of their own fall through to the next one that has some.
        let blocks: Vec<Block> = cases.iter().map(|_| self.b.create_block()).collect();
        let mut default = after;
        for (case, block) in cases.iter().zip(&blocks) {
            let number = match case.value {
                SwitchValue::I32(number) => number as u32,
                SwitchValue::U32(number) => number,
                SwitchValue::Default => {
                    default = *block;
                    continue;
                }
            };
            let next = self.b.create_block();
            let number = self.number(types::I32, number.into());
            let is_so = self.b.ins().icmp(IntCC::Equal, selector, number);
            self.b.ins().brif(is_so, *block, &[], next, &[]);
            self.go_to(next);
        }
        self.b.ins().jump(default, &[]);
        self.known.clear();
        for (at, case) in cases.iter().enumerate() {
            self.go_to(blocks[at]);
            self.known.clear();
            if self.block(frame, &case.body, Some(inside), false)? {
                let to = if case.fall_through { blocks.get(at + 1).copied() } else { None };
                self.b.ins().jump(to.unwrap_or(after), &[]);
            }
        }
        self.known.clear();
        self.go_to(after);
        Ok(true)
    }

    fn atomic(
        &mut self,
        frame: &mut Frame<'m>,
        pointer: Handle<Expression>,
        fun: &AtomicFunction,
        value: Handle<Expression>,
        result: Option<Handle<Expression>>,
    ) -> Result<(), Stop> {
        let operand = self.one(frame, value)?;
        let to = self.place_of(frame, pointer)?;
        let inner = behind(self.plan.module, self.inner(frame, pointer))?;
        let TypeInner::Atomic(scalar) = inner else {
            return Err(Stop::unsupported("an atomic operation on what is not atomic"));
        };
        let is_signed = scalar.kind == naga::ScalarKind::Sint;
        let op = match fun {
            AtomicFunction::Add => AtomicRmwOp::Add,
            AtomicFunction::Subtract => AtomicRmwOp::Sub,
            AtomicFunction::And => AtomicRmwOp::And,
            AtomicFunction::ExclusiveOr => AtomicRmwOp::Xor,
            AtomicFunction::InclusiveOr => AtomicRmwOp::Or,
            AtomicFunction::Min if is_signed => AtomicRmwOp::Smin,
            AtomicFunction::Min => AtomicRmwOp::Umin,
            AtomicFunction::Max if is_signed => AtomicRmwOp::Smax,
            AtomicFunction::Max => AtomicRmwOp::Umax,
            AtomicFunction::Exchange { compare: None } => AtomicRmwOp::Xchg,
            AtomicFunction::Exchange { .. } => {
                return Err(Stop::unsupported("an exchange that compares"));
            }
        };
        let Pointer::Memory(memory) = to else {
            return Err(Stop::unsupported("an atomic variable outside of buffers"));
        };
        let ty = if scalar.width == 8 { types::I64 } else { types::I32 };
        let address = self.address(&memory, ty.bytes().into(), true);
        let before = self.b.ins().atomic_rmw(ty, MemFlagsData::trusted(), op, address, operand);
        if let Some(result) = result {
            frame.values[result.index()] = Some(Val::One(before));
        }
        Ok(())
    }
}
