//! A workgroup: its invocations take each statement together, those that reach it.

use std::collections::BTreeSet;

use naga::{AddressSpace, Barrier, Block, BuiltIn, Expression, Handle, Span, Statement, SwitchValue};

use super::arithmetic::Choices;
use super::memory::{Cell, Cells};
use super::module::{Body, Prepared, Root};
use super::value::Value;
use crate::products::quote;
use unisono_graph::plan::Slice;

/// The turns that a loop may take.
const MOST_TURNS: usize = 1 << 19;

/// What the workgroups of a launch share.
pub(super) struct Launch<'a> {
    pub code: &'a Prepared<'a>,
    pub name: &'a str,
    pub wgsl: &'a str,
    pub choices: Choices,
    pub number: u32,
    pub grid: [u32; 3],
    /// The words of the params.
    pub params: &'a [u8],
    /// What each storage binding from 1 on is bound to.
    pub bindings: &'a [Slice],
    pub buffers: &'a mut [Vec<u8>],
    pub cells: &'a mut [Cells],
    pub faults: &'a mut BTreeSet<String>,
}

/// The scalars of a workgroup's own memory.
#[derive(Default)]
pub(super) struct Shared {
    pub bits: Vec<u64>,
    pub cells: Vec<Cell>,
}

/// A workgroup that runs.
pub(super) struct Group<'a, 'b> {
    pub launch: &'b mut Launch<'a>,
    pub id: [u32; 3],
    pub size: [u32; 3],
    pub lanes: usize,
    /// The barriers passed: those for storage, and those for the workgroup's memory.
    pub epochs: [u32; 2],
    /// The private variables by their handles: scalars of each invocation.
    pub private: Vec<Vec<u64>>,
    pub shared: Vec<Shared>,
}

/// A function that runs.
pub(super) struct Frame<'a> {
    pub body: &'a Body<'a>,
    pub values: Vec<Option<Value>>,
    pub arguments: Vec<Value>,
    pub locals: Vec<Vec<u64>>,
    /// What each argument that is a pointer points to: the caller's variable, until the function returns.
    pub lent: Vec<Vec<u64>>,
    returned: Vec<u64>,
}

/// The invocations that have left a loop or a switch, and those that wait for its next turn.
#[derive(Default)]
struct Left {
    broken: Vec<u32>,
    continued: Vec<u32>,
}

impl Frame<'_> {
    pub fn value(&self, handle: Handle<Expression>) -> &Value {
        match &self.values[handle.index()] {
            Some(value) => value,
            None => unreachable!("naga has validated that {handle:?} comes before its uses"),
        }
    }
}

impl<'a> Group<'a, '_> {
    /// Runs a workgroup of a kernel.
    pub fn run(launch: &mut Launch<'a>, id: [u32; 3]) {
        let code = launch.code;
        let entry = &code.module.entry_points[0];
        let lanes = entry.workgroup_size.iter().product::<u32>() as usize;
        let unwritten = u64::from(launch.choices.unwritten());
        let mut private = Vec::new();
        let mut shared = Vec::new();
        for ((_, variable), leaves) in code.module.global_variables.iter().zip(&code.globals) {
            let is_shared = variable.space == AddressSpace::WorkGroup;
            let count = leaves.len();
            private.push(if is_shared { Vec::new() } else { vec![0; count * lanes] });
            let bits = if is_shared { vec![unwritten; count] } else { Vec::new() };
            shared.push(Shared { cells: vec![Cell::default(); bits.len()], bits });
        }
        let size = entry.workgroup_size;
        let mut group = Group { launch, id, size, lanes, epochs: [0; 2], private, shared };
        let body = &code.bodies[code.bodies.len() - 1];
        let arguments = entry.function.arguments.iter();
        let arguments = arguments.map(|argument| group.built_in(argument.binding.as_ref())).collect();
        let all: Vec<u32> = (0..lanes as u32).collect();
        group.call(body, arguments, Vec::new(), &all);
    }

    /// Returns a built-in value of the entry point.
    fn built_in(&mut self, binding: Option<&naga::Binding>) -> Value {
        let Some(&naga::Binding::BuiltIn(built_in)) = binding else {
            return Value::same(vec![0; 4]);
        };
        let (lanes, size, id, grid) = (self.lanes, self.size, self.id, self.launch.grid);
        let words = |of: [u32; 3]| of.map(u64::from).to_vec();
        let local = |axis: usize, lane: usize| {
            let lane = lane as u32;
            u64::from([lane % size[0], lane / size[0] % size[1], lane / size[0] / size[1]][axis])
        };
        let all: Vec<u32> = (0..lanes as u32).collect();
        let each =
            |leaves, scalar: &dyn Fn(usize, usize) -> u64| Value::collect(false, leaves, lanes, &all, scalar);
        match built_in {
            BuiltIn::WorkGroupId => Value::same(words(id)),
            BuiltIn::NumWorkGroups => Value::same(words(grid)),
            BuiltIn::LocalInvocationIndex => each(1, &|_, lane| lane as u64),
            BuiltIn::LocalInvocationId => each(3, &|axis, lane| local(axis, lane)),
            BuiltIn::GlobalInvocationId => {
                each(3, &|axis, lane| u64::from(id[axis]) * u64::from(size[axis]) + local(axis, lane))
            }
            other => {
                self.fault(Span::UNDEFINED, &format!("{other:?} is not emulated"));
                Value::same(vec![0; 4])
            }
        }
    }

    /// Records a fault.
    pub fn fault(&mut self, at: Span, what: &str) {
        let text = if at.is_defined() { format!("{}: ", quote(at, self.launch.wgsl)) } else { String::new() };
        self.launch.faults.insert(format!("{}: {text}{what}", self.launch.name));
    }

    /// Runs a function. Returns its result, and what became of the variables that were lent to it.
    fn call(
        &mut self,
        body: &'a Body<'a>,
        arguments: Vec<Value>,
        lent: Vec<Vec<u64>>,
        active: &[u32],
    ) -> (Value, Vec<Vec<u64>>) {
        let mut frame = Frame {
            body,
            values: body.constants.clone(),
            arguments,
            locals: body.locals.iter().map(|leaves| vec![0; leaves.len() * self.lanes]).collect(),
            lent,
            returned: Vec::new(),
        };
        for (handle, expression) in body.function.expressions.iter() {
            if expression.needs_pre_emit() && frame.values[handle.index()].is_none() {
                frame.values[handle.index()] = Some(self.evaluate(&frame, handle, active));
            }
        }
        for ((index, (_, local)), leaves) in
            body.function.local_variables.iter().enumerate().zip(&body.locals)
        {
            let Some(first) = local.init else { continue };
            if frame.values[first.index()].is_none() {
                frame.values[first.index()] = Some(self.evaluate(&frame, first, active));
            }
            let value = frame.value(first).clone();
            for leaf in 0..leaves.len() {
                for &lane in active {
                    frame.locals[index][leaf * self.lanes + lane as usize] = value.get(leaf, lane as usize);
                }
            }
        }
        self.block(&mut frame, &body.function.body, active.to_vec(), &mut Left::default());
        (Value::each(frame.returned, self.lanes), frame.lent)
    }

    /// Calls a function with arguments of another. A variable to which an argument points is the callee's
    /// until it returns; no two arguments point to one.
    fn call_with(
        &mut self,
        frame: &mut Frame<'a>,
        callee: &'a Body<'a>,
        arguments: &[Handle<Expression>],
        active: &[u32],
        at: Span,
    ) -> Value {
        let lanes = self.lanes;
        let globals = &self.launch.code.module.global_variables;
        let is_lent = |argument: &Handle<Expression>| match frame.body.nodes[argument.index()].root {
            Some(Root::Local(_) | Root::Argument(_)) => true,
            Some(Root::Global(variable)) => globals[variable].space == AddressSpace::Private,
            None => false,
        };
        let pointers: Vec<_> =
            arguments.iter().map(|argument| Some(*argument).filter(|_| is_lent(argument))).collect();
        let mut lent = Vec::new();
        for pointer in &pointers {
            let all = pointer.map(|pointer| self.load(frame, pointer, active, at));
            let leaves = pointer.map_or(0, |pointer| frame.body.nodes[pointer.index()].leaves.len());
            let slots = (0..leaves * lanes).map(|slot| (slot / lanes, slot % lanes));
            lent.push(slots.map(|(leaf, lane)| all.as_ref().map_or(0, |all| all.get(leaf, lane))).collect());
        }
        let values = arguments.iter().map(|argument| frame.value(*argument).clone()).collect();
        let (result, lent) = self.call(callee, values, lent, active);
        for (pointer, lent) in pointers.into_iter().zip(lent) {
            if let Some(pointer) = pointer {
                self.store(frame, pointer, &Value::each(lent, lanes), active, false, at);
            }
        }
        result
    }

    /// Runs a block, and returns the invocations that come to its end.
    fn block(
        &mut self,
        frame: &mut Frame<'a>,
        block: &'a Block,
        active: Vec<u32>,
        left: &mut Left,
    ) -> Vec<u32> {
        let mut active = active;
        for (statement, &at) in block.span_iter() {
            if active.is_empty() {
                break;
            }
            active = self.statement(frame, statement, at, active, left);
        }
        active
    }

    fn statement(
        &mut self,
        frame: &mut Frame<'a>,
        statement: &'a Statement,
        at: Span,
        active: Vec<u32>,
        left: &mut Left,
    ) -> Vec<u32> {
        match statement {
            Statement::Emit(range) => {
                for handle in range.clone() {
                    frame.values[handle.index()] = Some(self.evaluate(frame, handle, &active));
                }
            }
            Statement::Block(inner) => return self.block(frame, inner, active, left),
            Statement::If { condition, accept, reject } => {
                let condition = frame.value(*condition).clone();
                let (yes, no) = active.into_iter().partition(|&lane| condition.get(0, lane as usize) != 0);
                let mut both = self.block(frame, accept, yes, left);
                both.extend(self.block(frame, reject, no, left));
                both.sort_unstable();
                return both;
            }
            Statement::Switch { selector, cases } => {
                let selector = frame.value(*selector).clone();
                return self.switch(frame, &selector, cases, active, left);
            }
            Statement::Loop { body, continuing, break_if } => {
                let mut own = Left::default();
                let mut active = active;
                for turn in 0.. {
                    if turn == MOST_TURNS {
                        self.fault(at, "the loop does not end");
                        break;
                    }
                    if active.is_empty() {
                        break;
                    }
                    let mut again = self.block(frame, body, active, &mut own);
                    again.append(&mut own.continued);
                    again.sort_unstable();
                    active = self.block(frame, continuing, again, &mut own);
                    if active.is_empty() {
                        break;
                    }
                    if let Some(condition) = break_if {
                        let condition = frame.value(*condition).clone();
                        let (out, on) =
                            active.into_iter().partition(|&lane| condition.get(0, lane as usize) != 0);
                        own.broken.extend::<Vec<u32>>(out);
                        active = on;
                    }
                }
                own.broken.sort_unstable();
                return own.broken;
            }
            Statement::Break => {
                left.broken.extend(active);
                return Vec::new();
            }
            Statement::Continue => {
                left.continued.extend(active);
                return Vec::new();
            }
            Statement::Return { value } => {
                if let Some(value) = value {
                    let leaves = frame.body.nodes[value.index()].leaves.len();
                    let value = frame.value(*value).clone();
                    frame.returned.resize(leaves * self.lanes, 0);
                    for leaf in 0..leaves {
                        for &lane in &active {
                            let to = leaf * self.lanes + lane as usize;
                            frame.returned[to] = value.get(leaf, lane as usize);
                        }
                    }
                }
                return Vec::new();
            }
            Statement::ControlBarrier(barrier) => {
                if active.len() != self.lanes {
                    self.fault(at, "not every invocation of the workgroup comes to this barrier");
                }
                self.epochs[0] += u32::from(barrier.contains(Barrier::STORAGE));
                self.epochs[1] += u32::from(barrier.contains(Barrier::WORK_GROUP));
            }
            Statement::Store { pointer, value } => {
                let is_atomic = self.is_atomic(frame, *pointer);
                let value = frame.value(*value).clone();
                self.store(frame, *pointer, &value, &active, is_atomic, at);
            }
            Statement::Atomic { pointer, fun, value, result } => {
                self.atomic(frame, *pointer, fun, *value, *result, &active, at);
            }
            Statement::Call { function, arguments, result } => {
                let callee = &self.launch.code.bodies[function.index()];
                let value = self.call_with(frame, callee, arguments, &active, at);
                if let Some(result) = result {
                    frame.values[result.index()] = Some(value);
                }
            }
            other => {
                let name = format!("{other:?}");
                let name = name.split([' ', '(']).next().unwrap_or_default().to_owned();
                self.fault(at, &format!("{name} is not emulated"));
            }
        }
        active
    }

    fn switch(
        &mut self,
        frame: &mut Frame<'a>,
        selector: &Value,
        cases: &'a [naga::SwitchCase],
        active: Vec<u32>,
        left: &mut Left,
    ) -> Vec<u32> {
        let number = |value: &SwitchValue| match *value {
            SwitchValue::I32(x) => Some(u64::from(x as u32)),
            SwitchValue::U32(x) => Some(u64::from(x)),
            SwitchValue::Default => None,
        };
        let numbers: Vec<Option<u64>> = cases.iter().map(|case| number(&case.value)).collect();
        let case_of = |lane: u32| {
            let x = selector.get(0, lane as usize);
            let own = numbers.iter().position(|&number| number == Some(x));
            own.or_else(|| numbers.iter().position(Option::is_none))
        };
        let mut own = Left::default();
        let (mut through, mut after): (Vec<u32>, Vec<u32>) = Default::default();
        for (index, case) in cases.iter().enumerate() {
            let mut here = std::mem::take(&mut through);
            here.extend(active.iter().copied().filter(|&lane| case_of(lane) == Some(index)));
            here.sort_unstable();
            let end = self.block(frame, &case.body, here, &mut own);
            if case.fall_through { through = end } else { after.extend(end) }
        }
        after.extend(through);
        after.append(&mut own.broken);
        left.continued.append(&mut own.continued);
        after.sort_unstable();
        after
    }
}
