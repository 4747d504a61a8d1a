//! Loads and stores.

use std::rc::Rc;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, InstBuilder, MemFlagsData, StackSlotData, StackSlotKind, types};
use naga::{Module, TypeInner};

use super::Stop;
use super::half::is_half;
use super::translator::Writer;
use super::value::{Lane, Memory, Pointer, Slot, Val, leaf, parts, room};

/// The bytes that can be read from the beginning of any binding: buffers end, and bindings begin, at
/// multiples of it.
const SURE: u64 = 16;

/// Returns the type behind a pointer.
pub(super) fn behind(module: &Module, inner: &TypeInner) -> Result<TypeInner, Stop> {
    Ok(match *inner {
        TypeInner::Pointer { base, .. } => module.types[base].inner.clone(),
        TypeInner::ValuePointer { size: Some(size), scalar, .. } => TypeInner::Vector { size, scalar },
        TypeInner::ValuePointer { size: None, scalar, .. } => TypeInner::Scalar(scalar),
        ref other => return Err(Stop::unsupported(format!("a pointer of type {other:?}"))),
    })
}

/// Returns the bytes of what is in one register.
fn leaf_bytes(inner: &TypeInner, ty: ir::Type, memory: &Memory) -> u64 {
    let bytes = u64::from(ty.bytes());
    if is_half(inner) && memory.is_shared { bytes / 2 } else { bytes }
}

impl Writer<'_, '_> {
    /// Sets registers to a value.
    pub fn define(&mut self, slot: &Slot, value: &Val) -> Result<(), Stop> {
        match (slot, value) {
            (Slot::Leaf(variable), Val::One(value)) => {
                self.b.def_var(*variable, *value);
                self.known.set(*variable, self.known_number(*value));
                Ok(())
            }
            (Slot::Many(slots), Val::Many(values)) => {
                slots.iter().zip(values.iter()).try_for_each(|(slot, value)| self.define(slot, value))
            }
            _ => Err(Stop::unsupported("a value of another type")),
        }
    }

    /// Returns the value of registers.
    pub fn read(&mut self, slot: &Slot) -> Val {
        match slot {
            Slot::Leaf(variable) => match self.known.get(*variable) {
                Some(number) => {
                    let before = self.b.use_var(*variable);
                    let ty = self.b.func.dfg.value_type(before);
                    Val::One(self.number(ty, number))
                }
                None => Val::One(self.b.use_var(*variable)),
            },
            Slot::Many(slots) => Val::Many(slots.iter().map(|slot| self.read(slot)).collect()),
        }
    }

    /// Loads a value of this type.
    pub fn load(&mut self, from: &Pointer, inner: &TypeInner) -> Result<Val, Stop> {
        match from {
            Pointer::Slot { slot, lane: None, .. } => Ok(self.read(slot)),
            Pointer::Slot { slot, lane: Some(lane), .. } => {
                let Val::One(vector) = self.read(slot) else {
                    return Err(Stop::unsupported("a component of no vector"));
                };
                let value = self.lane(vector, *lane);
                Ok(Val::One(self.as_component(value, inner)))
            }
            Pointer::Memory(memory) => self.load_memory(memory, inner),
        }
    }

    fn load_memory(&mut self, memory: &Memory, inner: &TypeInner) -> Result<Val, Stop> {
        if memory.is_mask {
            let address = self.address(memory, 4, false);
            let mask = self.b.ins().load(types::I32, MemFlagsData::new().with_notrap(), address, 0);
            return Ok(Val::One(self.as_component(mask, inner)));
        }
        if let Some(ty) = leaf(inner)? {
            let bytes = leaf_bytes(inner, ty, memory);
            let address = self.address(memory, bytes, false);
            let mut flags = MemFlagsData::new().with_notrap();
            if let Some(least) = memory.constant {
                flags = flags.with_readonly();
                // Cranelift may load what can move before the condition of the load is known.
                let end = memory.known as u64 + bytes;
                let is_there = memory.offset.is_none() && end <= least.max(SURE);
                if is_there || self.plan.mode.checked && memory.bound.is_some() {
                    flags = flags.with_can_move();
                }
            }
            if is_half(inner) && memory.is_shared {
                return Ok(Val::One(self.load_half(ty.is_vector(), flags, address)));
            }
            return Ok(Val::One(self.b.ins().load(ty, flags, address, 0)));
        }
        let found = parts(self.plan.module, inner, memory.is_shared)?;
        let values: Result<Rc<[Val]>, Stop> = (0..found.count)
            .map(|index| {
                let (offset, part) = found.part(index).ok_or_else(|| Stop::unsupported("no such part"))?;
                let at = Memory { known: memory.known + offset as i64, ..*memory };
                self.load_memory(&at, part)
            })
            .collect();
        Ok(Val::Many(values?))
    }

    /// Stores zeros of this type in a variable of its own.
    pub fn clear(&mut self, to: &Pointer, inner: &TypeInner) -> Result<(), Stop> {
        let Pointer::Memory(memory) = to else {
            let zero = self.zero(inner)?;
            return self.store(to, inner, &zero);
        };
        let (bytes, _) = room(self.plan.module, inner)?;
        let address = self.address(memory, bytes, true);
        let zero = self.b.ins().f32const(0.0);
        let zeros = self.splat_of(types::F32X4, zero);
        let (head, after) = (self.b.create_block(), self.b.create_block());
        let at = self.b.declare_var(types::I64);
        let first = self.b.ins().iconst(types::I64, 0);
        self.b.def_var(at, first);
        self.b.ins().jump(head, &[]);
        self.go_to(head);
        let offset = self.b.use_var(at);
        let place = self.b.ins().iadd(address, offset);
        self.b.ins().store(MemFlagsData::trusted(), zeros, place, 0);
        let next = self.b.ins().iadd_imm_s(offset, 16);
        self.b.def_var(at, next);
        let more = self.b.ins().icmp_imm_s(IntCC::UnsignedLessThan, next, bytes.next_multiple_of(16) as i64);
        self.b.ins().brif(more, head, &[], after, &[]);
        self.go_to(after);
        Ok(())
    }

    /// Stores a value of this type.
    pub fn store(&mut self, to: &Pointer, inner: &TypeInner, value: &Val) -> Result<(), Stop> {
        match to {
            Pointer::Slot { slot, lane: None, .. } => self.define(slot, value),
            Pointer::Slot { slot, lane: Some(lane), .. } => {
                let (Val::One(vector), Val::One(value)) = (self.read(slot), value) else {
                    return Err(Stop::unsupported("a component of no vector"));
                };
                let value = self.as_lane(*value, inner);
                let vector = self.with_lane(vector, *lane, value);
                self.define(slot, &Val::One(vector))
            }
            Pointer::Memory(memory) => self.store_memory(memory, inner, value),
        }
    }

    fn store_memory(&mut self, memory: &Memory, inner: &TypeInner, value: &Val) -> Result<(), Stop> {
        match (leaf(inner)?, value) {
            (Some(_), Val::One(value)) if memory.is_mask => {
                let address = self.address(memory, 4, true);
                let mask = self.as_lane(*value, inner);
                self.b.ins().store(MemFlagsData::new().with_notrap(), mask, address, 0);
                Ok(())
            }
            (Some(ty), Val::One(value)) => {
                let address = self.address(memory, leaf_bytes(inner, ty, memory), true);
                let flags = MemFlagsData::new().with_notrap();
                if is_half(inner) && memory.is_shared {
                    self.store_half(*value, flags, address);
                } else {
                    self.b.ins().store(flags, *value, address, 0);
                }
                Ok(())
            }
            (None, Val::Many(values)) => {
                let found = parts(self.plan.module, inner, memory.is_shared)?;
                for (index, value) in values.iter().enumerate() {
                    let found = found.part(index as u32);
                    let (offset, part) = found.ok_or_else(|| Stop::unsupported("no such part"))?;
                    let at = Memory { known: memory.known + offset as i64, ..*memory };
                    self.store_memory(&at, part, value)?;
                }
                Ok(())
            }
            _ => Err(Stop::unsupported("a value of another type")),
        }
    }

    /// Returns the address of so many bytes. If accesses are checked, bytes behind the end of a buffer are
    /// read at its beginning and written nowhere.
    pub fn address(&mut self, memory: &Memory, bytes: u64, writes: bool) -> ir::Value {
        let offset = match (memory.offset, memory.known) {
            (None, 0) if memory.bound.is_none() || !self.plan.mode.checked => return memory.base,
            (None, known) => self.b.ins().iconst(types::I64, known),
            (Some(offset), 0) => offset,
            (Some(offset), known) => self.b.ins().iadd_imm_s(offset, known),
        };
        let address = self.b.ins().iadd(memory.base, offset);
        let Some(bound) = memory.bound.filter(|_| self.plan.mode.checked) else { return address };
        let last = self.b.ins().iadd_imm_s(bound, -(bytes as i64));
        let is_inside = self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, offset, last);
        let otherwise = if writes {
            let data = StackSlotData::new(StackSlotKind::ExplicitSlot, 16, 4);
            let nowhere = *self.nowhere.get_or_insert_with(|| self.b.create_sized_stack_slot(data));
            self.b.ins().stack_addr(types::I64, nowhere, 0)
        } else {
            memory.base
        };
        self.b.ins().select(is_inside, address, otherwise)
    }

    /// Returns a component of a vector of four.
    pub fn lane(&mut self, vector: ir::Value, lane: Lane) -> ir::Value {
        match lane {
            Lane::Known(lane) => match self.splats.get(&vector) {
                Some(&scalar) => scalar,
                None => self.b.ins().extractlane(vector, lane),
            },
            Lane::Computed(index) => {
                let ty = self.b.func.dfg.value_type(vector);
                let data = StackSlotData::new(StackSlotKind::ExplicitSlot, 16, 4);
                let slot = *self.scratch.get_or_insert_with(|| self.b.create_sized_stack_slot(data));
                let base = self.b.ins().stack_addr(types::I64, slot, 0);
                self.b.ins().store(MemFlagsData::trusted(), vector, base, 0);
                let index = self.b.ins().band_imm_s(index, 3);
                let index = self.b.ins().uextend(types::I64, index);
                let offset = self.b.ins().ishl_imm_u(index, 2);
                let address = self.b.ins().iadd(base, offset);
                self.b.ins().load(ty.lane_type(), MemFlagsData::trusted(), address, 0)
            }
        }
    }

    /// Returns a vector of four with another component.
    pub fn with_lane(&mut self, vector: ir::Value, lane: Lane, value: ir::Value) -> ir::Value {
        match lane {
            Lane::Known(lane) => self.b.ins().insertlane(vector, value, lane),
            Lane::Computed(index) => {
                let ty = self.b.func.dfg.value_type(vector);
                let all = self.b.ins().splat(types::I32X4, index);
                let zero = self.b.ins().iconst(types::I32, 0);
                let mut numbers = self.b.ins().splat(types::I32X4, zero);
                for lane in 1..4u8 {
                    let number = self.b.ins().iconst(types::I32, i64::from(lane));
                    numbers = self.b.ins().insertlane(numbers, number, lane);
                }
                let is_it = self.b.ins().icmp(IntCC::Equal, all, numbers);
                let is_it = self.bits_as(is_it, ty);
                let value = self.b.ins().splat(ty, value);
                self.b.ins().bitselect(is_it, value, vector)
            }
        }
    }
}
