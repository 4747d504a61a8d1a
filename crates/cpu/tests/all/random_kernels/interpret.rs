//! Kernels as the text says, statement by statement.

use super::arithmetic;
use super::program::*;

/// The statements and expressions that a kernel may take.
const MOST_STEPS: u64 = 300_000;

/// A kernel that takes too long, or leaves an array.
#[derive(Debug)]
pub struct Stop;

enum Flow {
    Next,
    Break,
    Continue,
    Return(Vec<u64>),
}

#[derive(Clone)]
enum Slot {
    None,
    Value(Vec<u64>),
    /// A variable or a pointer: the memory and the first scalar.
    Place(usize, usize),
}

struct Frame<'p> {
    function: &'p Function,
    slots: Vec<Slot>,
}

struct Machine<'p> {
    program: &'p Program,
    /// The buffers, the workgroup's own memory, private variables, and the variables of functions.
    memory: Vec<Vec<u64>>,
    steps: u64,
}

/// Runs a kernel on buffers of scalars.
///
/// # Errors
/// If it is none that can be run.
pub fn run(program: &Program, buffers: &mut [Vec<u64>]) -> Result<(), Stop> {
    let mut machine = Machine { program, memory: buffers.to_vec(), steps: 0 };
    let shared = program.shared.as_ref().map_or(0, |of| program.leaves(of)) * program.lanes;
    machine.memory.push(Vec::new());
    for group in 0..GROUPS {
        machine.memory.truncate(buffers.len() + 1);
        machine.memory[buffers.len()] = vec![0; shared];
        // Each invocation has private variables of its own.
        let mut lanes = Vec::new();
        for lane in 0..program.lanes {
            let mut slots = vec![Slot::None; program.main.names.len()];
            slots[0] = Slot::Value(vec![(group * program.lanes + lane) as u64]);
            slots[1] = Slot::Value(vec![lane as u64]);
            lanes.push((Frame { function: &program.main, slots }, Vec::new()));
        }
        for (phase, body) in std::iter::once(&program.main.body).chain(&program.phases).enumerate() {
            for (frame, private) in &mut lanes {
                if phase == 0 {
                    for (of, first) in &program.private {
                        let value = match first {
                            Some(first) => machine.expr(frame, first)?,
                            None => vec![0; program.leaves(of)],
                        };
                        private.push(value);
                    }
                }
                // Variables of the main function live from phase to phase, and stay where they are.
                machine.swap(private);
                machine.block(frame, body)?;
                machine.swap(private);
            }
        }
    }
    for (to, from) in buffers.iter_mut().zip(machine.memory) {
        *to = from;
    }
    Ok(())
}

impl<'p> Machine<'p> {
    /// Puts an invocation's private variables where they are read, or takes them back.
    fn swap(&mut self, private: &mut [Vec<u64>]) {
        let first = self.program.buffers.len() + 1;
        while self.memory.len() < first + self.program.private.len() {
            self.memory.push(Vec::new());
        }
        for (at, own) in private.iter_mut().enumerate() {
            std::mem::swap(own, &mut self.memory[first + at]);
        }
    }

    fn step(&mut self) -> Result<(), Stop> {
        self.steps += 1;
        if self.steps > MOST_STEPS { Err(Stop) } else { Ok(()) }
    }

    fn place(&mut self, frame: &Frame<'p>, of: &Place) -> Result<(usize, usize, Ty), Stop> {
        let program = self.program;
        let count = program.buffers.len();
        let (memory, mut at, mut ty) = match of.root {
            Root::Local(name) | Root::Pointer(name) => match frame.slots[name] {
                Slot::Place(memory, at) => (memory, at, frame.function.names[name].clone()),
                _ => return Err(Stop),
            },
            Root::Private(number) => (count + 1 + number, 0, program.private[number].0.clone()),
            Root::Buffer(number) => (number, 0, program.buffers[number].clone()),
            Root::Shared => {
                let of = program.shared.clone().ok_or(Stop)?;
                (count, 0, Ty::Array(of.into(), program.lanes))
            }
        };
        for step in &of.path {
            let number = match step {
                Step::Member(number) => *number,
                Step::At(index) => self.expr(frame, index)?[0] as usize,
            };
            if number >= program.parts(&ty) {
                return Err(Stop);
            }
            let (part, before) = program.part(&ty, number);
            (at, ty) = (at + before, part);
        }
        Ok((memory, at, ty))
    }

    fn call(&mut self, frame: &Frame<'p>, number: usize, all: &[Argument]) -> Result<Vec<u64>, Stop> {
        let function = &self.program.functions[number];
        let mut slots = vec![Slot::None; function.names.len()];
        for (argument, (name, _)) in all.iter().zip(&function.parameters) {
            slots[*name] = match argument {
                Argument::Value(value) => Slot::Value(self.expr(frame, value)?),
                Argument::Pointer(to) => {
                    let (memory, at, _) = self.place(frame, to)?;
                    Slot::Place(memory, at)
                }
            };
        }
        let before = self.memory.len();
        let mut inner = Frame { function, slots };
        let flow = self.block(&mut inner, &function.body)?;
        self.memory.truncate(before);
        Ok(match flow {
            Flow::Return(value) => value,
            _ => Vec::new(),
        })
    }

    fn expr(&mut self, frame: &Frame<'p>, of: &Expr) -> Result<Vec<u64>, Stop> {
        self.step()?;
        let scalar = of.ty.scalar().unwrap_or(Scalar::U32);
        Ok(match &of.node {
            Node::Literal(bits) => vec![*bits],
            Node::Zero => vec![0; self.program.leaves(&of.ty)],
            Node::Load(from) => {
                let (memory, at, ty) = self.place(frame, from)?;
                self.memory[memory][at..at + self.program.leaves(&ty)].to_vec()
            }
            Node::Named(name) => match &frame.slots[*name] {
                Slot::Value(value) => value.clone(),
                _ => return Err(Stop),
            },
            Node::Unary(op, x) => {
                self.expr(frame, x)?.into_iter().map(|x| arithmetic::unary(op, scalar, x)).collect()
            }
            Node::Binary(op, sides) => {
                let (a, b) = (self.expr(frame, &sides[0])?, self.expr(frame, &sides[1])?);
                let scalar = sides[0].ty.scalar().ok_or(Stop)?;
                let at = |of: &[u64], at: usize| if of.len() == 1 { of[0] } else { of[at] };
                (0..a.len().max(b.len()))
                    .map(|lane| arithmetic::binary(op, scalar, at(&a, lane), at(&b, lane)))
                    .collect()
            }
            Node::Builtin(name, all) => {
                let mut values = Vec::new();
                for each in all {
                    values.push(self.expr(frame, each)?);
                }
                if *name == "transpose" {
                    let Ty::Matrix(columns, rows) = all[0].ty else { return Err(Stop) };
                    return Ok((0..columns * rows)
                        .map(|leaf| values[0][leaf % columns * rows + leaf / columns])
                        .collect());
                }
                if *name == "select" && values[2].len() == 1 {
                    return Ok(values.swap_remove(usize::from(values[2][0] != 0)));
                }
                let scalar = all[0].ty.scalar().ok_or(Stop)?;
                match *name {
                    "all" => vec![u64::from(values[0].iter().all(|x| *x != 0))],
                    "any" => vec![u64::from(values[0].iter().any(|x| *x != 0))],
                    "dot" => {
                        let products = values[0].iter().zip(&values[1]);
                        let mut products = products.map(|(a, b)| arithmetic::binary("*", scalar, *a, *b));
                        let first = products.next().unwrap_or_default();
                        vec![products.fold(first, |sum, x| arithmetic::binary("+", scalar, sum, x))]
                    }
                    name => (0..values[0].len())
                        .map(|lane| {
                            let x: Vec<u64> = values.iter().map(|value| value[lane]).collect();
                            arithmetic::builtin(name, scalar, &x)
                        })
                        .collect(),
                }
            }
            Node::Compose(parts) => {
                let mut all = Vec::new();
                for part in parts {
                    all.extend(self.expr(frame, part)?);
                }
                all
            }
            Node::Splat(x) => vec![self.expr(frame, x)?[0]; self.program.leaves(&of.ty)],
            Node::Swizzle(x, lanes) => {
                let x = self.expr(frame, x)?;
                lanes.iter().map(|&lane| x[lane]).collect()
            }
            Node::Index(sides) => {
                let value = self.expr(frame, &sides[0])?;
                let index = self.expr(frame, &sides[1])?[0] as usize;
                self.part(value, &sides[0].ty, index)?
            }
            Node::Member(x, number) => {
                let value = self.expr(frame, x)?;
                self.part(value, &x.ty, *number)?
            }
            Node::Convert(x) => {
                let from = x.ty.scalar().ok_or(Stop)?;
                self.expr(frame, x)?.into_iter().map(|x| arithmetic::convert(from, scalar, x)).collect()
            }
            Node::Bits(x) => {
                let bits = self.expr(frame, x)?[0];
                vec![if f32::from_bits(bits as u32).is_nan() { 0x7fc0_0000 } else { bits }]
            }
            Node::Call(number, all) => self.call(frame, *number, all)?,
        })
    }

    fn part(&self, value: Vec<u64>, ty: &Ty, at: usize) -> Result<Vec<u64>, Stop> {
        if at >= self.program.parts(ty) {
            return Err(Stop);
        }
        let (part, first) = self.program.part(ty, at);
        Ok(value[first..first + self.program.leaves(&part)].to_vec())
    }

    fn truth(&mut self, frame: &Frame<'p>, of: &Expr) -> Result<bool, Stop> {
        Ok(self.expr(frame, of)?[0] != 0)
    }

    fn block(&mut self, frame: &mut Frame<'p>, of: &'p [Stmt]) -> Result<Flow, Stop> {
        for each in of {
            match self.stmt(frame, each)? {
                Flow::Next => {}
                other => return Ok(other),
            }
        }
        Ok(Flow::Next)
    }

    fn store(&mut self, frame: &Frame<'p>, to: &Place, value: &[u64]) -> Result<(), Stop> {
        let (memory, at, _) = self.place(frame, to)?;
        self.memory[memory][at..at + value.len()].copy_from_slice(value);
        Ok(())
    }

    fn stmt(&mut self, frame: &mut Frame<'p>, of: &'p Stmt) -> Result<Flow, Stop> {
        self.step()?;
        match of {
            Stmt::Let(name, value) => frame.slots[*name] = Slot::Value(self.expr(frame, value)?),
            Stmt::Var(name, first) => {
                let value = match first {
                    Some(first) => self.expr(frame, first)?,
                    None => vec![0; self.program.leaves(&frame.function.names[*name])],
                };
                self.memory.push(value);
                frame.slots[*name] = Slot::Place(self.memory.len() - 1, 0);
            }
            Stmt::LetPointer(name, to) => {
                let (memory, at, _) = self.place(frame, to)?;
                frame.slots[*name] = Slot::Place(memory, at);
            }
            Stmt::Store(to, value) => {
                let value = self.expr(frame, value)?;
                self.store(frame, to, &value)?;
            }
            Stmt::Compound(to, op, value) => {
                let (memory, at, ty) = self.place(frame, to)?;
                let x = self.expr(frame, value)?;
                let scalar = ty.scalar().ok_or(Stop)?;
                for lane in 0..self.program.leaves(&ty) {
                    let y = x[if x.len() == 1 { 0 } else { lane }];
                    let own = &mut self.memory[memory][at + lane];
                    *own = arithmetic::binary(op, scalar, *own, y);
                }
            }
            Stmt::If(condition, yes, no) => {
                let taken = if self.truth(frame, condition)? { yes } else { no };
                return self.block(frame, taken);
            }
            Stmt::Switch(selector, cases) => {
                let number = self.expr(frame, selector)?[0];
                let found = cases.iter().find(|(numbers, ..)| numbers.contains(&number));
                let found = found.or_else(|| cases.iter().find(|(_, is_default, _)| *is_default));
                if let Some((_, _, body)) = found {
                    return Ok(match self.block(frame, body)? {
                        Flow::Break => Flow::Next,
                        other => other,
                    });
                }
            }
            Stmt::For(first, condition, next, body) => {
                self.stmt(frame, first)?;
                while self.truth(frame, condition)? {
                    match self.block(frame, body)? {
                        Flow::Break => break,
                        Flow::Return(value) => return Ok(Flow::Return(value)),
                        _ => {}
                    }
                    if let Some(next) = next {
                        self.stmt(frame, next)?;
                    }
                }
            }
            Stmt::While(condition, body) => {
                while self.truth(frame, condition)? {
                    match self.block(frame, body)? {
                        Flow::Break => break,
                        Flow::Return(value) => return Ok(Flow::Return(value)),
                        _ => {}
                    }
                }
            }
            Stmt::Loop(body, continuing, break_if) => loop {
                self.step()?;
                match self.block(frame, body)? {
                    Flow::Break => break,
                    Flow::Return(value) => return Ok(Flow::Return(value)),
                    _ => {}
                }
                self.block(frame, continuing)?;
                if let Some(condition) = break_if
                    && self.truth(frame, condition)?
                {
                    break;
                }
            },
            Stmt::Block(body) => return self.block(frame, body),
            Stmt::Break => return Ok(Flow::Break),
            Stmt::Continue => return Ok(Flow::Continue),
            Stmt::Return(value) => {
                let value = value.as_ref().map(|value| self.expr(frame, value)).transpose()?;
                return Ok(Flow::Return(value.unwrap_or_default()));
            }
            Stmt::Call(number, all) => drop(self.call(frame, *number, all)?),
        }
        Ok(Flow::Next)
    }
}
