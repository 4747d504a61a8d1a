//! How a wave reads and writes memory.

use crate::LANES;
use crate::memory::{Memory, UNWRITTEN};
use crate::text::{Instruction, Place};
use crate::wave::Wave;

/// The high half of the address of descriptors.
const DESCRIPTORS: u32 = 0xffff_8000;

impl Wave {
    pub(super) fn load_scalars(
        &mut self,
        instruction: &Instruction,
        (from_buffer, words): (bool, u16),
        memory: &Memory<'_>,
    ) -> Option<()> {
        let [to, base, offset] = instruction.operands[..] else { return None };
        if to.words != words || base.words != if from_buffer { 4 } else { 2 } {
            return None;
        }
        let (Place::Scalar(to), Place::Scalar(base)) = (to.place, base.place) else { return None };
        let at = self.word(offset)?.wrapping_add(instruction.offsets[0]);
        let [first, second] = [0, 1].map(|word| self.scalars[usize::from(base) + word]);
        let bytes = if from_buffer { self.scalars[usize::from(base) + 2] } else { 0 };
        for word in 0..words {
            let at = at.wrapping_add(4 * u32::from(word));
            let loaded = match from_buffer {
                true => memory.load(first, bytes, at)?,
                false if second == DESCRIPTORS => memory.descriptor(first.wrapping_add(at))?,
                false => return None,
            };
            self.scalars[usize::from(to + word)] = loaded;
        }
        Some(())
    }

    pub(super) fn buffer(
        &mut self,
        instruction: &Instruction,
        (stores, words): (bool, u16),
        memory: &mut Memory<'_>,
    ) -> Option<()> {
        let [value, index, buffer, base] = instruction.operands[..] else { return None };
        if value.words != words || buffer.words != 4 {
            return None;
        }
        let (Place::Vector(value), Place::Scalar(buffer)) = (value.place, buffer.place) else { return None };
        let base = self.word(base)?.wrapping_add(instruction.offsets[0]);
        let [number, _, bytes] = [0, 1, 2].map(|word| self.scalars[usize::from(buffer) + word]);
        let exec = self.exec();
        for lane in (0..LANES).filter(|lane| exec >> lane & 1 == 1) {
            let index = if instruction.has_index { self.lane(index, lane) } else { 0 };
            let first = base.wrapping_add(index);
            for word in 0..words {
                let at = first.wrapping_add(4 * u32::from(word));
                let register = &mut self.vectors[usize::from(value + word)][lane];
                match stores {
                    true => memory.store(number, bytes, at, *register)?,
                    false => *register = memory.load(number, bytes, at)?,
                }
            }
        }
        Some(())
    }

    pub(super) fn scratch(&mut self, instruction: &Instruction, (stores, words): (bool, u16)) -> Option<()> {
        let [first, second, base] = instruction.operands[..] else { return None };
        let (value, index) = if stores { (second, first) } else { (first, second) };
        if value.words != words {
            return None;
        }
        let Place::Vector(value) = value.place else { return None };
        let base = self.word(base)?.wrapping_add(instruction.offsets[0]);
        let exec = self.exec();
        for lane in (0..LANES).filter(|lane| exec >> lane & 1 == 1) {
            let first = base.wrapping_add(self.lane(index, lane));
            for word in 0..words {
                let at = first.wrapping_add(4 * u32::from(word));
                let own = &mut self.scratch.entry(at).or_insert([UNWRITTEN; LANES])[lane];
                let register = &mut self.vectors[usize::from(value + word)][lane];
                if stores {
                    *own = *register;
                } else {
                    *register = *own;
                }
            }
        }
        Some(())
    }

    pub(super) fn shared(
        &mut self,
        instruction: &Instruction,
        (stores, words, twice): (bool, u16, Option<u32>),
        memory: &mut Memory<'_>,
    ) -> Option<()> {
        let operands = &instruction.operands;
        let addresses = if twice.is_some() { 2 } else { 1 };
        let (address, values) = match stores {
            true => operands.split_first()?,
            false => operands.split_last()?,
        };
        // The registers of a load are consecutive.
        let (count, each) = if stores { (addresses, words) } else { (1, addresses as u16 * words) };
        if values.len() != count || values.iter().any(|value| value.words != each) {
            return None;
        }
        let exec = self.exec();
        for lane in (0..LANES).filter(|lane| exec >> lane & 1 == 1) {
            let base = self.lane(*address, lane);
            for (number, &offset) in instruction.offsets.iter().take(addresses).enumerate() {
                let offset = offset.wrapping_mul(twice.unwrap_or(1));
                for word in 0..words {
                    let (value, first) = match stores {
                        true => (values[number], 0),
                        false => (values[0], number as u16 * words),
                    };
                    let Place::Vector(at) = value.place else { return None };
                    let own = memory.shared(base.wrapping_add(offset).wrapping_add(4 * u32::from(word)))?;
                    let register = &mut self.vectors[usize::from(at + first + word)][lane];
                    if stores {
                        *own = *register;
                    } else {
                        *register = *own;
                    }
                }
            }
        }
        Some(())
    }
}
