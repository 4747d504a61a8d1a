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
        let (Place::Scalar(to), Place::Scalar(base)) = (to.place, base.place) else { return None };
        let at = self.word(offset)?.wrapping_add(instruction.offsets[0]);
        let [first, second, third] = [0, 1, 2].map(|word| self.scalars[usize::from(base) + word]);
        for word in 0..words {
            let at = at.wrapping_add(4 * u32::from(word));
            let loaded = match from_buffer {
                true => memory.load(first, third, at),
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
                    true => memory.store(number, bytes, at, *register),
                    false => *register = memory.load(number, bytes, at),
                }
            }
        }
        Some(())
    }

    pub(super) fn scratch(&mut self, instruction: &Instruction, (stores, words): (bool, u16)) -> Option<()> {
        let [first, second, base] = instruction.operands[..] else { return None };
        let (value, index) = if stores { (second, first) } else { (first, second) };
        let Place::Vector(value) = value.place else { return None };
        let base = self.word(base)?.wrapping_add(instruction.offsets[0]);
        let exec = self.exec();
        for lane in (0..LANES).filter(|lane| exec >> lane & 1 == 1) {
            for word in 0..words {
                let at = base.wrapping_add(self.lane(index, lane)).wrapping_add(4 * u32::from(word));
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
        let (address, values) = match (stores, operands.len()) {
            (false, 2) => (operands[1], vec![operands[0]]),
            (true, 2 | 3) => (operands[0], operands[1..].to_vec()),
            _ => return None,
        };
        let exec = self.exec();
        for lane in (0..LANES).filter(|lane| exec >> lane & 1 == 1) {
            let base = self.lane(address, lane);
            for (number, &offset) in
                instruction.offsets.iter().take(1 + usize::from(twice.is_some())).enumerate()
            {
                let offset = offset * twice.unwrap_or(1);
                for word in 0..words {
                    // A load's values lie one behind the other.
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
