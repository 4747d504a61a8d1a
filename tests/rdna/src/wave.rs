//! A wave: 64 lanes that run each instruction together. A lane is active if its bit in `exec` is set.

use std::collections::HashMap;

use crate::memory::{Memory, UNWRITTEN};
use crate::scalar::Scalar;
use crate::text::{EXEC, Instruction, NULL, Op, Operand, Place, VECTORS, When};
use crate::vector::Vector;
use crate::{LANES, Mode};

/// A wave that runs more instructions than this is taken to be in an endless loop.
const MOST: u64 = 1 << 32;

/// A wave that runs.
pub struct Wave {
    pub scalars: [u32; 128],
    pub vectors: Vec<[u32; LANES]>,
    /// The lanes' own memory: for each address, the words of all lanes.
    pub(super) scratch: HashMap<u32, [u32; LANES]>,
    scc: bool,
    next: usize,
    mode: Mode,
    /// The number of instructions so far.
    pub taken: u64,
}

/// Why a wave pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    Barrier,
    End,
}

impl Wave {
    /// Returns a wave whose first `lanes` lanes are active.
    pub fn new(mode: Mode, lanes: usize) -> Self {
        // A register contains a NaN until it is written.
        let vectors = vec![[UNWRITTEN; LANES]; VECTORS];
        let mut wave = Self {
            scalars: [UNWRITTEN; 128],
            vectors,
            scratch: HashMap::new(),
            scc: false,
            next: 0,
            mode,
            taken: 0,
        };
        wave.set_double(EXEC, u64::MAX >> (LANES - lanes));
        wave
    }

    /// Runs up to the next barrier, or to the end.
    pub fn run(&mut self, code: &[Instruction], memory: &mut Memory<'_>) -> Result<Pause, String> {
        while let Some(instruction) = code.get(self.next) {
            self.next += 1;
            self.taken += 1;
            match instruction.op {
                Op::Nothing => {}
                Op::End => {
                    // A wave that has ended stays at its last instruction.
                    self.next -= 1;
                    return Ok(Pause::End);
                }
                Op::Barrier => return Ok(Pause::Barrier),
                Op::Jump(when, to) => {
                    if self.is_taken(when) {
                        self.next = to;
                    }
                }
                _ => self
                    .step(instruction, memory)
                    .ok_or_else(|| format!("cannot be run: {}", instruction.line))?,
            }
            if self.taken > MOST {
                return Err(format!("does not end: {}", instruction.line));
            }
        }
        Err("goes on behind its last instruction".to_owned())
    }

    fn is_taken(&self, when: When) -> bool {
        match when {
            When::Always => true,
            When::Scc(set) => self.scc == set,
            When::Zero(register, zero) => (self.double_at(register) == 0) == zero,
        }
    }

    /// Runs an instruction. Returns `None` if its operands do not fit.
    fn step(&mut self, instruction: &Instruction, memory: &mut Memory<'_>) -> Option<()> {
        let operands = &instruction.operands[..];
        match instruction.op {
            Op::Scalar(op) => self.scalar(op, operands),
            Op::Vector(op) => self.vector(op, operands, instruction.clamps),
            Op::LoadScalars { from_buffer, words } => {
                self.load_scalars(instruction, (from_buffer, words), memory)
            }
            Op::Buffer { stores, words } => self.buffer(instruction, (stores, words), memory),
            Op::Scratch { stores, words } => self.scratch(instruction, (stores, words)),
            Op::Shared { stores, words, twice } => self.shared(instruction, (stores, words, twice), memory),
            Op::Nothing | Op::End | Op::Barrier | Op::Jump(..) => None,
        }
    }

    fn double_at(&self, register: u16) -> u64 {
        let at = usize::from(register);
        u64::from(self.scalars[at]) | u64::from(self.scalars[at + 1]) << 32
    }

    fn set_double(&mut self, register: u16, value: u64) {
        let at = usize::from(register);
        if register != NULL {
            (self.scalars[at], self.scalars[at + 1]) = (value as u32, (value >> 32) as u32);
        }
    }

    pub(super) fn exec(&self) -> u64 {
        self.double_at(EXEC)
    }

    /// Returns a word that all lanes share.
    pub(super) fn word(&self, operand: Operand) -> Option<u32> {
        match operand.place {
            Place::Scalar(NULL) | Place::Off => Some(0),
            Place::Scalar(at) => Some(self.scalars[usize::from(at)]),
            Place::Scc => Some(self.scc.into()),
            Place::Number(number) => Some(number as u32),
            Place::Vector(_) => None,
        }
    }

    /// Returns a double word that all lanes share.
    fn double(&self, operand: Operand) -> Option<u64> {
        match operand.place {
            Place::Scalar(NULL) => Some(0),
            Place::Scalar(at) if operand.words == 2 => Some(self.double_at(at)),
            Place::Number(number) => Some(number),
            _ => None,
        }
    }

    fn set_word(&mut self, to: Operand, word: u32) -> Option<()> {
        let Place::Scalar(at) = to.place else { return None };
        if at != NULL {
            self.scalars[usize::from(at)] = word;
        }
        Some(())
    }

    fn scalar(&mut self, op: Scalar, operands: &[Operand]) -> Option<()> {
        let operand = |at: usize| operands.get(at).copied();
        let to = operand(0)?;
        let register = |operand: Operand| match operand.place {
            Place::Scalar(at) if operand.words == 2 || at == NULL => Some(at),
            _ => None,
        };
        match op {
            Scalar::One(of) => self.set_word(to, of(self.word(operand(1)?)?)),
            Scalar::Two(of) => self.set_word(to, of(self.word(operand(1)?)?, self.word(operand(2)?)?)),
            Scalar::TwoSets(of) => {
                let (word, scc) = of(self.word(operand(1)?)?, self.word(operand(2)?)?);
                self.scc = scc;
                self.set_word(to, word)
            }
            Scalar::Wide(of) => {
                let a = self.double(operand(1)?)?;
                let b = operand(2).map_or(Some(0), |operand| self.double(operand))?;
                let value = of(a, b);
                self.scc = value != 0;
                self.set_double(register(to)?, value);
                Some(())
            }
            Scalar::WideMove => {
                let value = self.double(operand(1)?)?;
                self.set_double(register(to)?, value);
                Some(())
            }
            Scalar::Compares(of) => {
                self.scc = of(self.word(to)?, self.word(operand(1)?)?);
                Some(())
            }
            Scalar::Selects(words) => {
                let from = operand(if self.scc { 1 } else { 2 })?;
                if words == 1 {
                    return self.set_word(to, self.word(from)?);
                }
                self.set_double(register(to)?, self.double(from)?);
                Some(())
            }
            Scalar::SavesExec(of) => {
                let (from, exec) = (self.double(operand(1)?)?, self.exec());
                self.set_double(register(to)?, exec);
                let exec = of(from, exec);
                self.set_double(EXEC, exec);
                self.scc = exec != 0;
                Some(())
            }
            Scalar::InPlace(of) => {
                let (word, scc) = of(self.word(to)?, self.word(operand(1)?)?);
                self.scc = scc.unwrap_or(self.scc);
                self.set_word(to, word)
            }
        }
    }

    /// Returns a lane's word of an operand.
    pub(super) fn lane(&self, operand: Operand, lane: usize) -> u32 {
        let word = match operand.place {
            Place::Vector(at) => self.vectors[usize::from(at)][lane],
            _ => self.word(operand).unwrap_or_default(),
        };
        let word = if operand.absolute { word & 0x7fff_ffff } else { word };
        if operand.negated { word ^ 0x8000_0000 } else { word }
    }

    /// Returns a lane's double word of an operand.
    fn lane_double(&self, operand: Operand, lane: usize) -> u64 {
        match operand.place {
            Place::Vector(at) if operand.words == 2 => {
                let [low, high] = [at, at + 1].map(|at| u64::from(self.vectors[usize::from(at)][lane]));
                low | high << 32
            }
            _ => self.double(operand).unwrap_or_default(),
        }
    }

    fn float(&self, operand: Operand, lane: usize) -> f32 {
        self.flushed(f32::from_bits(self.lane(operand, lane)))
    }

    fn flushed(&self, x: f32) -> f32 {
        if self.mode.flushes && x.is_subnormal() { 0f32.copysign(x) } else { x }
    }

    /// Writes a word to each active lane.
    fn each(&mut self, to: Operand, of: impl Fn(&Self, usize) -> u32) -> Option<()> {
        let Place::Vector(at) = to.place else { return None };
        let exec = self.exec();
        let mut words = self.vectors[usize::from(at)];
        for (lane, word) in words.iter_mut().enumerate() {
            if exec >> lane & 1 == 1 {
                *word = of(self, lane);
            }
        }
        self.vectors[usize::from(at)] = words;
        Some(())
    }

    /// Returns a word with a bit for each active lane for which `of` is true.
    fn bits(&self, of: impl Fn(usize) -> bool) -> u64 {
        let exec = self.exec();
        let is_set = |&lane: &usize| exec >> lane & 1 == 1 && of(lane);
        (0..LANES).filter(is_set).fold(0, |bits, lane| bits | 1 << lane)
    }

    fn vector(&mut self, op: Vector, operands: &[Operand], clamps: bool) -> Option<()> {
        if operands.len() != op.operands() {
            return None;
        }
        let operand = |at: usize| operands.get(at).copied();
        let to = operand(0)?;
        let float = |own: &Self, x: f32| own.flushed(x).to_bits();
        // An instruction with fewer operands does not look at the others.
        let [a, b, c] = [1, 2, 3].map(|at| operand(at).unwrap_or(to));
        match op {
            Vector::Float1(of) => self.each(to, |own, lane| float(own, of(own.float(a, lane)))),
            Vector::Rough(of) => self.each(to, |own, lane| float(own, own.rough(of, own.float(a, lane)))),
            Vector::Float2(of) => {
                self.each(to, |own, lane| float(own, of(own.float(a, lane), own.float(b, lane))))
            }
            Vector::Float3(of) => self.each(to, |own, lane| {
                float(own, of(own.float(a, lane), own.float(b, lane), own.float(c, lane)))
            }),
            Vector::MultiplyAdd => self.each(to, |own, lane| {
                float(own, own.float(a, lane).mul_add(own.float(b, lane), own.float(to, lane)))
            }),
            Vector::FromFloat(of) => self.each(to, |own, lane| of(own.float(a, lane))),
            Vector::ToFloat(of) => self.each(to, |own, lane| float(own, of(own.lane(a, lane)))),
            Vector::Word1(of) => self.each(to, |own, lane| of(own.lane(a, lane))),
            Vector::Word2(of) => self.each(to, |own, lane| of(own.lane(a, lane), own.lane(b, lane))),
            Vector::Sum(of, most) => {
                self.each(to, |own, lane| match of(own.lane(a, lane), own.lane(b, lane)) {
                    (_, true) if clamps => most,
                    (sum, _) => sum,
                })
            }
            Vector::Word3(of) => {
                self.each(to, |own, lane| of(own.lane(a, lane), own.lane(b, lane), own.lane(c, lane)))
            }
            Vector::Selects => {
                let mask = self.double(c)?;
                self.each(to, |own, lane| own.lane(if mask >> lane & 1 == 1 { b } else { a }, lane))
            }
            Vector::CompareFloats { sets_exec, of } => {
                self.compared((to, operands), sets_exec, |own, [a, b], lane| {
                    of(own.float(a, lane), own.float(b, lane))
                })
            }
            Vector::CompareWords { sets_exec, of } => {
                self.compared((to, operands), sets_exec, |own, [a, b], lane| {
                    of(own.lane(a, lane), own.lane(b, lane))
                })
            }
            Vector::CompareSigned { sets_exec, of } => {
                self.compared((to, operands), sets_exec, |own, [a, b], lane| {
                    of(own.lane(a, lane) as i32, own.lane(b, lane) as i32)
                })
            }
            Vector::Carries { reads, of } => {
                let (a, b) = (operand(2)?, operand(3)?);
                let carries = if reads { self.double(operand(4)?)? } else { 0 };
                let one = |own: &Self, lane: usize| {
                    of(own.lane(a, lane), own.lane(b, lane), (carries >> lane & 1) as u32)
                };
                let set = self.bits(|lane| one(self, lane).1);
                self.each(to, |own, lane| one(own, lane).0)?;
                let carry = operand(1)?;
                let Place::Scalar(at) = carry.place else { return None };
                if carry.words == 2 {
                    self.set_double(at, set);
                }
                Some(())
            }
            Vector::Shift(of) => {
                let shifted = |own: &Self, lane: usize| of(own.lane(a, lane), own.lane_double(b, lane));
                self.each_double(to, shifted)
            }
            Vector::Swaps => {
                let (Place::Vector(one), Place::Vector(other)) = (to.place, a.place) else { return None };
                let exec = self.exec();
                for lane in (0..LANES).filter(|lane| exec >> lane & 1 == 1) {
                    let [first, second] = [one, other].map(|at| self.vectors[usize::from(at)][lane]);
                    self.vectors[usize::from(one)][lane] = second;
                    self.vectors[usize::from(other)][lane] = first;
                }
                Some(())
            }
            Vector::FirstLane => {
                let first = (self.exec().trailing_zeros() as usize) % LANES;
                self.set_word(to, self.lane(a, first))
            }
        }
    }

    /// Writes a double word to each active lane.
    fn each_double(&mut self, to: Operand, of: impl Fn(&Self, usize) -> u64) -> Option<()> {
        let Place::Vector(at) = to.place else { return None };
        if to.words != 2 {
            return None;
        }
        let exec = self.exec();
        let results: Vec<u64> = (0..LANES).map(|lane| of(self, lane)).collect();
        for lane in (0..LANES).filter(|lane| exec >> lane & 1 == 1) {
            self.vectors[usize::from(at)][lane] = results[lane] as u32;
            self.vectors[usize::from(at) + 1][lane] = (results[lane] >> 32) as u32;
        }
        Some(())
    }

    /// Compares two operands of each lane. The result is in a pair of registers, or in `exec`.
    fn compared(
        &mut self,
        (to, operands): (Operand, &[Operand]),
        sets_exec: bool,
        of: impl Fn(&Self, [Operand; 2], usize) -> bool,
    ) -> Option<()> {
        let first = usize::from(!sets_exec);
        let pair = [*operands.get(first)?, *operands.get(first + 1)?];
        let bits = self.bits(|lane| of(self, pair, lane));
        match (sets_exec, to.place) {
            (true, _) => self.set_double(EXEC, bits),
            (false, Place::Scalar(at)) if to.words == 2 => self.set_double(at, bits),
            _ => return None,
        }
        Some(())
    }

    /// Returns a result of an approximate instruction: one of the two floats around the exact one, so it is
    /// off by less than a unit in the last place.
    fn rough(&self, of: fn(f64) -> f64, x: f32) -> f32 {
        let exact = of(f64::from(x));
        let near = exact as f32;
        let chooses = (x.to_bits() ^ self.mode.seed).wrapping_mul(0x9e37_79b1) >> 31 == 1;
        if self.mode.seed == 0 || !chooses || !near.is_normal() || f64::from(near) == exact {
            return near;
        }
        if f64::from(near) < exact { near.next_up() } else { near.next_down() }
    }
}
