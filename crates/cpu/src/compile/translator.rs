//! Makes a function of Cranelift's of an entry point. The function computes some of the invocations of a
//! workgroup, one after the other.

use std::collections::{HashMap, HashSet};
use std::mem::offset_of;
use std::rc::Rc;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    self, Block, InstBuilder, MemFlagsData, SigRef, StackSlot, StackSlotData, StackSlotKind, types,
};
use cranelift_codegen::isa::TargetFrontendConfig;
use cranelift_frontend::FunctionBuilder;
use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{AddressSpace, BuiltIn, Expression, Function, Handle, Module, TypeInner};

use super::bodies::Body;
use super::loops::Weights;
use super::value::{ENTRY, Known, Memory, Packs, Place, Pointer, Root, Slot, Val, leaf, parts, room};
use super::{Binding, Bound, Context, Kind, LINE, MOST_FRAME, Mode, Stop};
use crate::native::Vectors;

/// The most bytes of a variable in registers.
const MOST_REGISTERS: u64 = 16 << 10;

/// What a translation found out.
pub(super) struct Facts {
    pub shared_bytes: usize,
    pub has_barriers: bool,
}

/// A translation.
pub(super) struct Translator<'m> {
    pub module: &'m Module,
    pub info: &'m ModuleInfo,
    entry: usize,
    bindings: &'m [Binding],
    in_memory: &'m HashSet<Root>,
    pub mode: Mode,
    /// The vectors that native code may use.
    pub vectors: Vectors,
    pub weights: Weights,
}

/// A translation that has begun.
pub(super) struct Writer<'m, 'b> {
    pub plan: &'b Translator<'m>,
    pub b: FunctionBuilder<'b>,
    /// The integers that are known.
    pub numbers: HashMap<ir::Value, u64>,
    /// The vectors of which all components are one scalar.
    pub splats: HashMap<ir::Value, ir::Value>,
    pub packs: Packs,
    /// The condition and the values of choices that masks make.
    pub selects: HashMap<ir::Value, [ir::Value; 3]>,
    /// The registers whose value is a known integer here.
    pub known: Known,
    /// Where global variables are.
    pub globals: Vec<Option<Pointer>>,
    private: Vec<(usize, Option<Handle<Expression>>, TypeInner)>,
    context: ir::Value,
    wait: Option<SigRef>,
    stack: HashMap<Root, StackSlot>,
    /// How many blocks of statements are around, those of callers included.
    pub depth: usize,
    /// The blocks to which a `break` or a `continue` goes, or the end of a turn.
    pub goals: HashSet<Block>,
    /// Where a vector goes whose components are indexed.
    pub scratch: Option<StackSlot>,
    /// Where the task of native code is.
    pub task: Option<StackSlot>,
    /// Where goes what is written behind the end of a buffer.
    pub nowhere: Option<StackSlot>,
    facts: Facts,
}

/// A function that is being inlined.
pub(super) struct Frame<'m> {
    pub function: &'m Function,
    pub info: &'m FunctionInfo,
    pub values: Vec<Option<Val>>,
    pub arguments: Vec<Val>,
    pub locals: Vec<Place>,
    pub number: usize,
    /// What the bodies of the loops around evaluate, the innermost loop last.
    pub bodies: Vec<Body>,
    /// Where `return` goes, and the registers of what is returned, once a `return` needed them.
    pub exit: Option<(Block, Option<Slot>)>,
    /// What the last statement of the function returned.
    pub returned: Option<Val>,
}

impl<'m> Translator<'m> {
    pub fn new(
        (module, info): (&'m Module, &'m ModuleInfo),
        entry: usize,
        bindings: &'m [Binding],
        in_memory: &'m HashSet<Root>,
        mode: Mode,
        vectors: Vectors,
    ) -> Self {
        Self { module, info, entry, bindings, in_memory, mode, vectors, weights: Weights::of(module) }
    }

    /// Writes the function.
    pub fn translate(&self, mut b: FunctionBuilder<'_>, target: TargetFrontendConfig) -> Result<Facts, Stop> {
        let block = b.create_block();
        b.append_block_params_for_function_params(block);
        b.switch_to_block(block);
        let [context, first, end] = [0, 1, 2].map(|at| b.block_params(block)[at]);
        let mut writer = Writer {
            plan: self,
            b,
            numbers: HashMap::new(),
            splats: HashMap::new(),
            packs: Packs::default(),
            selects: HashMap::new(),
            known: Known::default(),
            globals: Vec::new(),
            private: Vec::new(),
            context,
            wait: None,
            stack: HashMap::new(),
            depth: 0,
            goals: HashSet::new(),
            scratch: None,
            task: None,
            nowhere: None,
            facts: Facts { shared_bytes: 0, has_barriers: false },
        };
        writer.place_globals()?;
        writer.lanes(first, end)?;
        writer.b.ins().return_(&[]);
        let Writer { mut b, facts, .. } = writer;
        b.seal_all_blocks();
        b.finalize(target);
        Ok(facts)
    }
}

impl<'m> Writer<'m, '_> {
    /// Finds a place for each global variable.
    fn place_globals(&mut self) -> Result<(), Stop> {
        let module = self.plan.module;
        let constant = MemFlagsData::trusted().with_readonly().with_can_move();
        let context = self.context;
        for (number, (handle, variable)) in module.global_variables.iter().enumerate() {
            let inner = &module.types[variable.ty].inner;
            if self.plan.info.get_entry_point(self.plan.entry)[handle].is_empty() {
                self.globals.push(None);
                continue;
            }
            let pointer = match variable.space {
                AddressSpace::Private => {
                    let root = Root::Private(number);
                    self.private.push((number, variable.init, inner.clone()));
                    let place = self.place(root, inner)?;
                    self.pointer(root, &place)
                }
                AddressSpace::WorkGroup => {
                    let (bytes, alignment) = room(module, inner)?;
                    let alignment = if bytes < LINE as u64 { alignment as usize } else { LINE };
                    let start = self.facts.shared_bytes.next_multiple_of(alignment);
                    self.facts.shared_bytes = start + bytes as usize;
                    let at = offset_of!(Context, shared) as i32;
                    let base = self.b.ins().load(types::I64, constant, context, at);
                    Pointer::Memory(Memory {
                        base,
                        offset: None,
                        known: start as i64,
                        bound: None,
                        constant: None,
                        is_shared: false,
                        is_mask: false,
                    })
                }
                _ => {
                    let number = variable.binding.as_ref().map_or(0, |binding| binding.binding);
                    let own = self.plan.bindings.iter().find(|binding| binding.number == number);
                    let binding = *own.ok_or_else(|| Stop::unsupported("a buffer without a number"))?;
                    let at = offset_of!(Context, bindings) as i32;
                    let all = self.b.ins().load(types::I64, constant, context, at);
                    let own = number as i32 * size_of::<Bound>() as i32;
                    let (start, bytes) = (offset_of!(Bound, start) as i32, offset_of!(Bound, bytes) as i32);
                    let base = self.b.ins().load(types::I64, constant, all, own + start);
                    let bound = self.b.ins().load(types::I64, constant, all, own + bytes);
                    Pointer::Memory(Memory {
                        base,
                        offset: None,
                        known: 0,
                        bound: Some(bound),
                        constant: (binding.kind != Kind::Written).then_some(binding.least),
                        is_shared: true,
                        is_mask: false,
                    })
                }
            };
            self.globals.push(Some(pointer));
        }
        Ok(())
    }

    /// Writes the loop over invocations, of which there is one at least. It looks for its end behind its
    /// body: Cranelift moves what is the same for all invocations out of loops whose body it meets before
    /// what is behind them.
    fn lanes(&mut self, first: ir::Value, end: ir::Value) -> Result<(), Stop> {
        let [body, done] = [(); 2].map(|()| self.b.create_block());
        let lane = self.b.declare_var(types::I32);
        self.b.def_var(lane, first);
        self.b.ins().jump(body, &[]);
        self.go_to(body);
        let number = self.b.use_var(lane);
        for (number, init, inner) in self.private.clone() {
            let Some(pointer) = self.globals[number].clone() else { continue };
            match init {
                Some(init) => {
                    let value = self.global_constant(init)?;
                    self.store(&pointer, &inner, &value)?;
                }
                None => self.clear(&pointer, &inner)?,
            }
        }
        let module = self.plan.module;
        let function = &module.entry_points[self.plan.entry].function;
        let mut arguments = Vec::new();
        for argument in &function.arguments {
            arguments.push(self.argument(argument.binding.as_ref(), argument.ty, number)?);
        }
        let info = self.plan.info.get_entry_point(self.plan.entry);
        self.inline(function, info, ENTRY, arguments)?;
        let next = self.b.ins().iadd_imm_s(number, 1);
        self.b.def_var(lane, next);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, next, end);
        self.b.ins().brif(more, body, &[], done, &[]);
        self.go_to(done);
        Ok(())
    }

    /// Returns an argument of the entry point.
    fn argument(
        &mut self,
        binding: Option<&naga::Binding>,
        ty: Handle<naga::Type>,
        lane: ir::Value,
    ) -> Result<Val, Stop> {
        let module = self.plan.module;
        if let TypeInner::Struct { members, .. } = &module.types[ty].inner {
            let parts: Result<Vec<Val>, Stop> = members
                .iter()
                .map(|member| self.argument(member.binding.as_ref(), member.ty, lane))
                .collect();
            return Ok(Val::Many(parts?.into()));
        }
        let Some(naga::Binding::BuiltIn(built_in)) = binding else {
            return Err(Stop::unsupported("an argument of the entry point"));
        };
        let size = module.entry_points[self.plan.entry].workgroup_size;
        let numbers = match built_in {
            BuiltIn::LocalInvocationIndex => return Ok(Val::One(lane)),
            BuiltIn::LocalInvocationId => self.local(lane, size),
            BuiltIn::WorkGroupId => self.words(offset_of!(Context, group)),
            BuiltIn::NumWorkGroups => self.words(offset_of!(Context, groups)),
            BuiltIn::GlobalInvocationId => {
                let (local, group) = (self.local(lane, size), self.words(offset_of!(Context, group)));
                let mut all = Vec::new();
                for axis in 0..3 {
                    let first = self.b.ins().imul_imm_s(group[axis], i64::from(size[axis]));
                    all.push(self.b.ins().iadd(first, local[axis]));
                }
                all
            }
            other => return Err(Stop::unsupported(format!("the built-in value {other:?}"))),
        };
        Ok(Val::Many(numbers.into_iter().map(Val::One).collect()))
    }

    /// Returns the place of an invocation in its workgroup.
    fn local(&mut self, lane: ir::Value, [x, y, z]: [u32; 3]) -> Vec<ir::Value> {
        let zero = self.number(types::I32, 0);
        let mut rest = lane;
        let mut all = Vec::new();
        for (size, behind) in [(x, y * z), (y, z), (z, 1)] {
            all.push(match (size, behind) {
                (1, _) => zero,
                (_, 1) => rest,
                (size, _) => {
                    let own = self.b.ins().urem_imm_s(rest, i64::from(size));
                    rest = self.b.ins().udiv_imm_s(rest, i64::from(size));
                    own
                }
            });
        }
        all
    }

    /// Returns three words of the context.
    fn words(&mut self, at: usize) -> Vec<ir::Value> {
        let flags = MemFlagsData::trusted().with_readonly().with_can_move();
        let word = |axis| at as i32 + 4 * axis;
        (0..3).map(|axis| self.b.ins().load(types::I32, flags, self.context, word(axis))).collect()
    }

    /// Writes a function where it is called. Returns what it returns.
    pub fn inline(
        &mut self,
        function: &'m Function,
        info: &'m FunctionInfo,
        number: usize,
        arguments: Vec<Val>,
    ) -> Result<Option<Val>, Stop> {
        if self.native(function, &arguments) {
            return Ok(None);
        }
        let mut frame = Frame {
            function,
            info,
            values: vec![None; function.expressions.len()],
            arguments,
            locals: Vec::new(),
            number,
            bodies: Vec::new(),
            exit: None,
            returned: None,
        };
        let module = self.plan.module;
        for (handle, local) in function.local_variables.iter() {
            let inner = &module.types[local.ty].inner;
            let root = Root::Local(number, handle);
            let place = self.place(root, inner)?;
            frame.locals.push(place.clone());
            let pointer = self.pointer(root, &place);
            match local.init {
                Some(init) => {
                    let value = self.value(&mut frame, init)?;
                    self.store(&pointer, inner, &value)?;
                }
                None => self.clear(&pointer, inner)?,
            }
        }
        let goes_on = self.block(&mut frame, &function.body, None, true)?;
        let Some((exit, slot)) = frame.exit.take() else {
            if !goes_on {
                // It never returns, and nobody reaches what follows.
                let nowhere = self.b.create_block();
                self.go_to(nowhere);
            }
            return match (frame.returned, &function.result) {
                (None, Some(result)) => self.zero(&module.types[result.ty].inner).map(Some),
                (value, _) => Ok(value),
            };
        };
        if goes_on {
            if let (Some(slot), Some(value)) = (&slot, frame.returned.take()) {
                self.define(slot, &value)?;
            }
            self.b.ins().jump(exit, &[]);
        }
        self.go_to(exit);
        self.known.clear();
        Ok(slot.map(|slot| self.read(&slot)))
    }

    /// Goes on at another block.
    pub fn go_to(&mut self, block: Block) {
        self.packs = Packs::default();
        self.b.switch_to_block(block);
    }

    /// Returns a new place for a variable.
    fn place(&mut self, root: Root, inner: &TypeInner) -> Result<Place, Stop> {
        let (bytes, alignment) = room(self.plan.module, inner)?;
        if bytes > MOST_FRAME as u64 {
            return Err(Stop::unsupported(format!("a variable of {bytes} bytes")));
        }
        if bytes <= MOST_REGISTERS && !self.plan.in_memory.contains(&root) {
            return Ok(Place::Slot(self.slot(inner)?));
        }
        // A function does not call itself, so that one place is enough wherever it is inlined.
        if let Some(known) = self.stack.get(&root) {
            return Ok(Place::Stack(*known));
        }
        // Zeros are written in vectors.
        let bytes = bytes.next_multiple_of(16) as u32;
        let shift = alignment.max(16).trailing_zeros() as u8;
        let data = StackSlotData::new(StackSlotKind::ExplicitSlot, bytes, shift);
        let slot = self.b.create_sized_stack_slot(data);
        self.stack.insert(root, slot);
        Ok(Place::Stack(slot))
    }

    /// Returns new registers for a value.
    pub fn slot(&mut self, inner: &TypeInner) -> Result<Slot, Stop> {
        if let Some(ty) = leaf(inner)? {
            return Ok(Slot::Leaf(self.b.declare_var(ty)));
        }
        let found = parts(self.plan.module, inner, false)?;
        let slots: Result<Rc<[Slot]>, Stop> = (0..found.count)
            .map(|index| match found.part(index) {
                Some((_, part)) => self.slot(part),
                None => Err(Stop::unsupported("a part that is not there")),
            })
            .collect();
        Ok(Slot::Many(slots?))
    }

    /// Returns a pointer to a variable.
    pub fn pointer(&mut self, root: Root, place: &Place) -> Pointer {
        match place {
            Place::Slot(slot) => Pointer::Slot { root, slot: slot.clone(), lane: None },
            Place::Stack(slot) => Pointer::Memory(Memory {
                base: self.b.ins().stack_addr(types::I64, *slot, 0),
                offset: None,
                known: 0,
                bound: None,
                constant: None,
                is_shared: false,
                is_mask: false,
            }),
        }
    }

    /// Calls the function by which an invocation waits for the others of its workgroup.
    pub fn barrier(&mut self) {
        self.facts.has_barriers = true;
        let flags = MemFlagsData::trusted();
        let (wait, waiter) = (offset_of!(Context, wait) as i32, offset_of!(Context, waiter) as i32);
        let wait = self.b.ins().load(types::I64, flags, self.context, wait);
        let waiter = self.b.ins().load(types::I64, flags, self.context, waiter);
        let known = self.wait;
        let signature = known.unwrap_or_else(|| {
            let mut signature = ir::Signature::new(self.b.func.signature.call_conv);
            signature.params.push(ir::AbiParam::new(types::I64));
            self.b.import_signature(signature)
        });
        self.wait = Some(signature);
        self.b.ins().call_indirect(signature, wait, &[waiter]);
    }

    /// Returns an integer, or a boolean.
    pub fn number(&mut self, ty: ir::Type, number: u64) -> ir::Value {
        let mask = u64::MAX >> (64 - ty.bits());
        let number = number & mask;
        let value = self.b.ins().iconst(ty, number as i64);
        self.numbers.insert(value, number);
        value
    }
}
