//! How a workgroup reads and writes the memory of variables.

use naga::{
    AddressSpace, AtomicFunction, BinaryOperator, Expression, GlobalVariable, Handle, MathFunction, Span,
};

use super::group::{Frame, Group};
use super::memory::{MANY, Touch};
use super::module::Root;
use super::value::Value;
use unisono_graph::plan::Slice;

/// Where a global variable's memory is.
enum Place {
    Params,
    Storage(Slice),
    Private,
    Shared,
}

impl<'a> Group<'a, '_> {
    /// Returns where a global variable's memory is.
    fn place(&mut self, variable: Handle<GlobalVariable>, at: Span) -> Option<Place> {
        let variable = &self.launch.code.module.global_variables[variable];
        match variable.space {
            AddressSpace::Uniform => Some(Place::Params),
            AddressSpace::Private => Some(Place::Private),
            AddressSpace::WorkGroup => Some(Place::Shared),
            AddressSpace::Storage { .. } => {
                let number = variable.binding.map_or(0, |binding| binding.binding as usize);
                let slice = number.checked_sub(1).and_then(|at| self.launch.bindings.get(at));
                if slice.is_none() {
                    self.fault(at, "nothing is bound to this buffer");
                }
                slice.copied().map(Place::Storage)
            }
            _ => {
                self.fault(at, "this kind of variable is not emulated");
                None
            }
        }
    }

    /// Returns the bytes that a storage buffer is bound to.
    pub fn bound(&mut self, variable: Handle<GlobalVariable>, at: Span) -> u64 {
        match self.place(variable, at) {
            Some(Place::Storage(slice)) => slice.bytes,
            _ => 0,
        }
    }

    fn touch(&self, lane: u32, epoch: usize, is_atomic: bool) -> Touch {
        let [x, y, z] = self.id;
        let [width, height, _] = self.launch.grid;
        let group = x + width * (y + height * z);
        Touch { launch: self.launch.number, group, epoch: self.epochs[epoch], lane, is_atomic }
    }

    pub fn is_atomic(&self, frame: &Frame<'a>, pointer: Handle<Expression>) -> bool {
        frame.body.nodes[pointer.index()].is_atomic
    }

    /// Returns what a pointer points to.
    pub fn load(
        &mut self,
        frame: &Frame<'a>,
        pointer: Handle<Expression>,
        active: &[u32],
        at: Span,
    ) -> Value {
        let node = &frame.body.nodes[pointer.index()];
        let (leaves, lanes) = (node.leaves.clone(), self.lanes);
        let from = frame.value(pointer).clone();
        let slot = |leaf: usize, lane: usize| from.get(0, lane) as usize + leaf;
        let own = |memory: &[u64]| {
            Value::collect(false, leaves.len(), lanes, active, |leaf, lane| {
                memory.get(slot(leaf, lane) * lanes + lane).copied().unwrap_or(0)
            })
        };
        let is_atomic = self.is_atomic(frame, pointer);
        let variable = match node.root {
            Some(Root::Local(local)) => return own(&frame.locals[local.index()]),
            Some(Root::Argument(index)) => return own(&frame.lent[index as usize]),
            Some(Root::Global(variable)) => variable,
            None => {
                self.fault(at, "this pointer is not emulated");
                return Value::same(vec![0; leaves.len()]);
            }
        };
        let nothing = Value::same(vec![0; leaves.len()]);
        let Some(place) = self.place(variable, at) else { return nothing };
        let same = from.is_same();
        // Where all invocations read one place, all of them are its readers.
        let reader = |lane: usize| if same && active.len() > 1 { MANY } else { lane as u32 };
        let (mut races, mut outside) = (false, false);
        let value = match place {
            Place::Private => return own(&self.private[variable.index()]),
            Place::Params => {
                let params = self.launch.params;
                Value::collect(same, leaves.len(), lanes, active, |leaf, lane| {
                    let first = from.get(0, lane) as usize + leaves[leaf].at as usize;
                    let word = params.get(first..first + 4).and_then(|word| word.try_into().ok());
                    outside |= word.is_none();
                    u64::from(u32::from_le_bytes(word.unwrap_or_default()))
                })
            }
            Place::Shared => {
                let touch = self.touch(0, 1, is_atomic);
                let shared = &mut self.shared[variable.index()];
                Value::collect(same, leaves.len(), lanes, active, |leaf, lane| {
                    let slot = slot(leaf, lane);
                    races |= shared.cells[slot].read(Touch { lane: reader(lane), ..touch });
                    shared.bits[slot]
                })
            }
            Place::Storage(slice) => {
                let touch = self.touch(0, 0, is_atomic);
                let bytes = &self.launch.buffers[slice.buffer];
                let cells = &mut self.launch.cells[slice.buffer];
                Value::collect(same, leaves.len(), lanes, active, |leaf, lane| {
                    let (leaf, width) = (leaves[leaf], usize::from(leaves[leaf].scalar.width));
                    let first = from.get(0, lane) + u64::from(leaf.at);
                    if first + width as u64 > slice.bytes {
                        outside = true;
                        return 0;
                    }
                    let touch = Touch { lane: reader(lane), ..touch };
                    let first = (slice.offset + first) as usize;
                    races |= cells.read(first, width, touch);
                    let mut bits = [0; 8];
                    bits[..width].copy_from_slice(&bytes[first..first + width]);
                    u64::from_le_bytes(bits)
                })
            }
        };
        if outside {
            self.fault(at, "reads behind the end of what is bound");
        }
        if races {
            self.fault(at, "reads what another invocation writes, and no barrier is between");
        }
        value
    }

    pub fn store(
        &mut self,
        frame: &mut Frame<'a>,
        pointer: Handle<Expression>,
        value: &Value,
        active: &[u32],
        is_atomic: bool,
        at: Span,
    ) {
        let node = &frame.body.nodes[pointer.index()];
        let (leaves, lanes, root) = (node.leaves.clone(), self.lanes, node.root);
        let to = frame.value(pointer).clone();
        let slot = |leaf: usize, lane: u32| to.get(0, lane as usize) as usize + leaf;
        let own = |memory: &mut [u64]| {
            for leaf in 0..leaves.len() {
                for &lane in active {
                    if let Some(bits) = memory.get_mut(slot(leaf, lane) * lanes + lane as usize) {
                        *bits = value.get(leaf, lane as usize);
                    }
                }
            }
        };
        let variable = match root {
            Some(Root::Local(local)) => return own(&mut frame.locals[local.index()]),
            Some(Root::Argument(index)) => return own(&mut frame.lent[index as usize]),
            Some(Root::Global(variable)) => variable,
            None => return self.fault(at, "this pointer is not emulated"),
        };
        let (mut races, mut outside) = (false, false);
        match self.place(variable, at) {
            Some(Place::Private) => own(&mut self.private[variable.index()]),
            Some(Place::Shared) => {
                let touch = self.touch(0, 1, is_atomic);
                let shared = &mut self.shared[variable.index()];
                for leaf in 0..leaves.len() {
                    for &lane in active {
                        let slot = slot(leaf, lane);
                        races |= shared.cells[slot].write(Touch { lane, ..touch });
                        shared.bits[slot] = value.get(leaf, lane as usize);
                    }
                }
            }
            Some(Place::Storage(slice)) => {
                let touch = self.touch(0, 0, is_atomic);
                let bytes = &mut self.launch.buffers[slice.buffer];
                let cells = &mut self.launch.cells[slice.buffer];
                for (index, leaf) in leaves.iter().enumerate() {
                    let width = usize::from(leaf.scalar.width);
                    for &lane in active {
                        let first = to.get(0, lane as usize) + u64::from(leaf.at);
                        if first + width as u64 > slice.bytes {
                            outside = true;
                            continue;
                        }
                        let bits = value.get(index, lane as usize);
                        let first = (slice.offset + first) as usize;
                        bytes[first..first + width].copy_from_slice(&bits.to_le_bytes()[..width]);
                        races |= cells.write(first, width, Touch { lane, ..touch });
                    }
                }
            }
            _ => {}
        }
        if outside {
            self.fault(at, "writes behind the end of what is bound");
        }
        if races {
            self.fault(at, "writes what another invocation reads or writes, and no barrier is between");
        }
    }

    /// Runs an atomic operation, one invocation after the other.
    #[expect(clippy::too_many_arguments, reason = "these are the fields of the statement")]
    pub fn atomic(
        &mut self,
        frame: &mut Frame<'a>,
        pointer: Handle<Expression>,
        fun: &AtomicFunction,
        value: Handle<Expression>,
        result: Option<Handle<Expression>>,
        active: &[u32],
        at: Span,
    ) {
        let scalar = frame.body.nodes[pointer.index()].scalar();
        let operand = frame.value(value).clone();
        let mut before = vec![0; self.lanes];
        for &lane in active {
            let old = self.load(frame, pointer, &[lane], at).get(0, lane as usize);
            let x = operand.get(0, lane as usize);
            let choices = self.launch.choices;
            let new = match fun {
                AtomicFunction::Add => choices.binary(BinaryOperator::Add, scalar, old, x),
                AtomicFunction::Subtract => choices.binary(BinaryOperator::Subtract, scalar, old, x),
                AtomicFunction::And => choices.binary(BinaryOperator::And, scalar, old, x),
                AtomicFunction::ExclusiveOr => choices.binary(BinaryOperator::ExclusiveOr, scalar, old, x),
                AtomicFunction::InclusiveOr => choices.binary(BinaryOperator::InclusiveOr, scalar, old, x),
                AtomicFunction::Min => choices.math(MathFunction::Min, scalar, &[old, x]),
                AtomicFunction::Max => choices.math(MathFunction::Max, scalar, &[old, x]),
                AtomicFunction::Exchange { compare: None } => Some(x),
                AtomicFunction::Exchange { .. } => None,
            };
            match new {
                Some(new) => self.store(frame, pointer, &Value::same(vec![new]), &[lane], true, at),
                None => self.fault(at, "this atomic operation is not emulated"),
            }
            before[lane as usize] = old;
        }
        if let Some(result) = result {
            frame.values[result.index()] = Some(Value::each(before, self.lanes));
        }
    }
}
