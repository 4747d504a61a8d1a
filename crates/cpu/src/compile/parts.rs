//! Parts of values, and pointers to parts.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, InstBuilder, types};
use naga::{TypeInner, VectorSize};

use super::Stop;
use super::memory::behind;
use super::translator::Writer;
use super::value::{Lane, Memory, Pointer, Slot, Val, is_bool, parts};

impl Writer<'_, '_> {
    /// Returns the last index of a value, or of what a pointer points to: what lies behind it is any part.
    pub fn most(&self, inner: &TypeInner) -> Result<u64, Stop> {
        let inner = match inner {
            TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. } => behind(self.plan.module, inner)?,
            inner => inner.clone(),
        };
        Ok(u64::from(parts(self.plan.module, &inner, true)?.count.saturating_sub(1)))
    }

    /// Returns a part of a value, or a pointer to it.
    pub fn part(&mut self, inner: &TypeInner, of: &Val, index: u32) -> Result<Val, Stop> {
        let missing = || Stop::unsupported(format!("part {index} of {inner:?}"));
        Ok(match of {
            Val::Many(parts) => parts.get(index as usize).cloned().ok_or_else(missing)?,
            Val::One(vector) => {
                let lane =
                    Lane::Known(u8::try_from(index).ok().filter(|lane| *lane < 4).ok_or_else(missing)?);
                let scalar = self.lane(*vector, lane);
                let part = TypeInner::Scalar(inner.scalar().ok_or_else(missing)?);
                Val::One(self.as_component(scalar, &part))
            }
            Val::Pointer(Pointer::Slot { root, slot, .. }) => match slot {
                Slot::Many(slots) => {
                    let slot = slots.get(index as usize).cloned().ok_or_else(missing)?;
                    Val::Pointer(Pointer::Slot { root: *root, slot, lane: None })
                }
                Slot::Leaf(_) => {
                    let lane = u8::try_from(index).ok().filter(|lane| *lane < 4).ok_or_else(missing)?;
                    let lane = Some(Lane::Known(lane));
                    Val::Pointer(Pointer::Slot { root: *root, slot: slot.clone(), lane })
                }
            },
            Val::Pointer(Pointer::Memory(memory)) => {
                let inner = behind(self.plan.module, inner)?;
                let found = parts(self.plan.module, &inner, memory.is_shared)?;
                let (offset, _) = found.part(index).ok_or_else(missing)?;
                let (known, is_mask) = (memory.known + offset as i64, is_mask(&inner));
                Val::Pointer(Pointer::Memory(Memory { known, is_mask, ..*memory }))
            }
        })
    }

    /// Returns a part of a value, or a pointer to it, by an index that is not known.
    pub fn computed_part(&mut self, inner: &TypeInner, of: &Val, index: ir::Value) -> Result<Val, Stop> {
        Ok(match of {
            Val::Many(parts) => {
                let mut found = parts.last().cloned().ok_or_else(|| Stop::unsupported("an empty array"))?;
                for (at, part) in parts.iter().enumerate().rev().skip(1) {
                    let is_it = self.b.ins().icmp_imm_s(IntCC::Equal, index, at as i64);
                    found = self.choose(is_it, part, &found)?;
                }
                found
            }
            Val::One(vector) => {
                let scalar = self.lane(*vector, Lane::Computed(index));
                let part = TypeInner::Scalar(inner.scalar().ok_or_else(|| Stop::unsupported("no scalar"))?);
                Val::One(self.as_component(scalar, &part))
            }
            Val::Pointer(Pointer::Slot { root, slot, .. }) => match slot {
                Slot::Many(_) => return Err(Stop::Demote(*root)),
                Slot::Leaf(_) => {
                    let lane = Some(Lane::Computed(index));
                    Val::Pointer(Pointer::Slot { root: *root, slot: slot.clone(), lane })
                }
            },
            Val::Pointer(Pointer::Memory(memory)) => {
                let inner = behind(self.plan.module, inner)?;
                let found = parts(self.plan.module, &inner, memory.is_shared)?;
                let stride = found.stride.ok_or_else(|| Stop::unsupported("a member by number"))?;
                // A buffer's bound is checked when it is accessed, that of a variable is known here.
                let is_own = memory.bound.is_none() || found.count != u32::MAX;
                let index = if self.plan.mode.checked && is_own {
                    let last = self.number(types::I32, u64::from(found.count.saturating_sub(1)));
                    let is_inside = self.b.ins().icmp(IntCC::UnsignedLessThan, index, last);
                    self.b.ins().select(is_inside, index, last)
                } else {
                    index
                };
                let wide = self.b.ins().uextend(types::I64, index);
                let own = self.b.ins().imul_imm_s(wide, stride as i64);
                let offset = match memory.offset {
                    Some(before) => self.b.ins().iadd(before, own),
                    None => own,
                };
                let is_mask = is_mask(&inner);
                Val::Pointer(Pointer::Memory(Memory { offset: Some(offset), is_mask, ..*memory }))
            }
        })
    }

    /// Returns one value or the other.
    pub fn choose(&mut self, condition: ir::Value, yes: &Val, no: &Val) -> Result<Val, Stop> {
        Ok(match (yes, no) {
            (Val::One(yes), Val::One(no)) => Val::One(self.selected(condition, *yes, *no)),
            (Val::Many(yes), Val::Many(no)) => {
                let values: Result<_, Stop> =
                    yes.iter().zip(no.iter()).map(|(yes, no)| self.choose(condition, yes, no)).collect();
                Val::Many(values?)
            }
            _ => return Err(Stop::unsupported("a choice of pointers")),
        })
    }
}

/// Returns whether the components of a vector are masks.
fn is_mask(inner: &TypeInner) -> bool {
    matches!(inner, TypeInner::Vector { size: VectorSize::Quad, .. }) && is_bool(inner)
}
