//! Makes machine code of passes for AVX-512. It computes sixteen words at a time.

use std::mem::ManuallyDrop;

use cranelift_codegen::ir::Signature;
use cranelift_codegen::isa::CallConv;
use cranelift_jit::JITModule;
use cranelift_module::Module;

use super::assembler::{Assembler, Base, Mask, Masked, Name, Operand, Vector};
use super::graph::Code;
use super::pass::{Member, Pass, Source};
use super::plan::{Action, Slot};
use super::run::{CHUNK, WHOLE};
use crate::native::Rounding;

/// Runs a pass: takes the addresses of its streams, of the whole slots and of the short ones, the bytes of
/// whole vectors, and a bit for each word behind them.
#[cfg(target_arch = "x86_64")]
pub(super) type Entry = unsafe extern "sysv64" fn(*const *mut u32, *mut u32, *const u32, u64, u32);
#[cfg(not(target_arch = "x86_64"))]
pub(super) type Entry = unsafe extern "C" fn(*const *mut u32, *mut u32, *const u32, u64, u32);

/// Machine code of passes.
pub(super) struct Machine {
    module: ManuallyDrop<JITModule>,
    pub entries: Vec<Entry>,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("entries", &self.entries.len()).finish()
    }
}

impl Drop for Machine {
    #[expect(unsafe_code, reason = "nobody runs the code any more")]
    fn drop(&mut self) {
        // SAFETY: entries are called with a reference to this, so nobody is inside of the code.
        unsafe { ManuallyDrop::take(&mut self.module).free_memory() };
    }
}

impl Machine {
    /// Returns the code of passes in an empty module, or `None` if there is no memory for it.
    pub fn new(passes: &[Pass], rounding: Rounding, module: JITModule) -> Option<Self> {
        let mut own = Self { module: ManuallyDrop::new(module), entries: Vec::new() };
        let mut functions = Vec::new();
        for pass in passes {
            let signature = Signature::new(CallConv::SystemV);
            let function = own.module.declare_anonymous_function(&signature).ok()?;
            own.module.define_function_bytes(function, 64, &code(pass, rounding), &[]).ok()?;
            functions.push(function);
        }
        own.module.finalize_definitions().ok()?;
        for function in functions {
            let start = own.module.get_finalized_function(function);
            // SAFETY: `code` writes a function of this signature.
            #[expect(unsafe_code, reason = "the code is known by its address")]
            own.entries.push(unsafe { std::mem::transmute::<*const u8, Entry>(start) });
        }
        Some(own)
    }
}

/// A register for what is needed for a moment. Those of values are before it.
const SPARE: Vector = Vector(29);
const ALL_BUT_SIGN: Vector = Vector(30);
const LEAST: Vector = Vector(31);
const TRUTHS: Mask = Mask(2);

/// How many values have registers.
pub(super) const REGISTERS: usize = SPARE.0 as usize;

/// Returns the code of a pass.
fn code(pass: &Pass, rounding: Rounding) -> Vec<u8> {
    let mut assembler = Assembler::default();
    assembler.repeat(ALL_BUT_SIGN, 0x7fff_ffff);
    assembler.repeat(LEAST, 0x0080_0000);
    assembler.advance(|assembler, masked| Body::new(assembler, pass, rounding).write(masked));
    assembler.bytes
}

/// One turn of a pass's loop.
struct Body<'p> {
    assembler: &'p mut Assembler,
    pass: &'p Pass,
    rounding: Rounding,
    /// The register of each member that has one.
    places: Vec<Option<Vector>>,
    free: Vec<Vector>,
    /// The member that uses each member last.
    last: Vec<usize>,
    streams: usize,
}

impl<'p> Body<'p> {
    fn new(assembler: &'p mut Assembler, pass: &'p Pass, rounding: Rounding) -> Self {
        let mut last: Vec<usize> = (0..pass.members.len()).collect();
        for (at, member) in pass.members.iter().enumerate() {
            for source in member.sources() {
                if let Source::Member(used) = *source {
                    last[used] = at;
                }
            }
        }
        let free = (0..SPARE.0).rev().map(Vector).collect();
        Self { assembler, pass, rounding, places: vec![None; last.len()], free, last, streams: 0 }
    }

    fn write(mut self, masked: Masked) {
        for (at, member) in self.pass.members.iter().enumerate() {
            self.member(at, member, masked);
            if let (Some(to), Some(slot)) = (self.places[at], member.to) {
                self.assembler.two(Name::STORE, to, slot_operand(slot), Masked::No);
            }
            // A register is free behind the last use of its value.
            for source in member.sources().iter().chain([&Source::Member(at)]) {
                if let Source::Member(used) = *source
                    && self.last[used] == at
                {
                    self.free.extend(self.places[used].take());
                }
            }
        }
    }

    fn member(&mut self, at: usize, member: &Member, masked: Masked) {
        match member.action {
            Action::Load { .. } | Action::LoadFour { .. } => {
                let to = self.new_place(at);
                let from = self.stream();
                let zeroed = match masked {
                    Masked::Keep(mask) => Masked::Zero(mask),
                    other => other,
                };
                self.assembler.two(Name::LOAD, to, from, zeroed);
            }
            Action::StoreWord { .. } | Action::StoreFour { .. } => {
                let from = self.register(member.operands[1]);
                let to = self.stream();
                self.assembler.two(Name::STORE, from, to, masked);
            }
            Action::Op(code, flushes) => {
                self.operation(at, code, member.operands);
                if flushes {
                    let to = self.places[at].unwrap_or(SPARE);
                    self.flush(to, Operand::Register(to));
                }
            }
            // A pass has no others.
            _ => {}
        }
    }

    /// Returns the place of the next stream's words.
    fn stream(&mut self) -> Operand {
        self.assembler.load_rax(Base::Rdi, self.streams);
        self.streams += 1;
        Operand::Memory { base: Base::Rax, moves: true, offset: 0 }
    }

    fn new_place(&mut self, at: usize) -> Vector {
        // A pass has no more values at a time than there are registers.
        let place = self.free.pop().unwrap_or(SPARE);
        self.places[at] = Some(place);
        place
    }

    fn operand(&self, source: Source) -> Operand {
        match source {
            Source::Member(at) => Operand::Register(self.places[at].unwrap_or(SPARE)),
            Source::Slot(slot) => slot_operand(slot),
        }
    }

    /// Returns a register that holds a value, which is [`SPARE`] if it is in memory.
    fn register(&mut self, source: Source) -> Vector {
        match self.operand(source) {
            Operand::Register(register) => register,
            memory => {
                self.assembler.two(Name::LOAD, SPARE, memory, Masked::No);
                SPARE
            }
        }
    }

    /// Writes an operation of two operands.
    fn two(&mut self, at: usize, name: Name, x: Source, y: Source) {
        let first = self.register(x);
        let second = self.operand(y);
        let to = self.new_place(at);
        self.assembler.three(name, to, first, second);
    }

    /// Writes a comparison, whose result has all bits where it is true.
    fn compare(&mut self, at: usize, name: Name, x: Source, y: Source, by: u8) {
        let first = self.register(x);
        let second = self.operand(y);
        self.assembler.compare(name, TRUTHS, first, second, by);
        let to = self.new_place(at);
        self.assembler.ternary(to, to, Operand::Register(to), 0xff, Masked::Zero(TRUTHS));
    }

    /// Writes an operation of one operand.
    fn one(&mut self, at: usize, name: Name, x: Source) {
        let from = self.operand(x);
        let to = self.new_place(at);
        self.assembler.two(name, to, from, Masked::No);
    }

    /// Makes numbers canonical: those of magnitude 2^-126 or less become +0.
    fn flush(&mut self, to: Vector, from: Operand) {
        self.assembler.three(Name::AND, SPARE, ALL_BUT_SIGN, from);
        self.assembler.compare(Name::COMPARE_SIGNED, TRUTHS, SPARE, Operand::Register(LEAST), 6);
        self.assembler.two(Name::LOAD, to, from, Masked::Zero(TRUTHS));
    }

    /// Writes x * y + z.
    fn fma(&mut self, at: usize, [x, y, z]: [Source; 3]) {
        // What is the same for all numbers stands last, where it may be in memory.
        let (x, y) = if x.repeats() && !y.repeats() { (y, x) } else { (x, y) };
        if self.rounding == Rounding::Split {
            let first = self.register(x);
            let second = self.operand(y);
            self.assembler.three(Name::MUL, SPARE, first, second);
            let third = self.operand(z);
            let to = self.new_place(at);
            self.assembler.three(Name::ADD, to, SPARE, third);
            return;
        }
        // The result takes the register of an operand that is used for the last time.
        let ending = |source| match source {
            Source::Member(used) if self.last[used] == at => Some(used),
            _ => None,
        };
        let (name, first, last) = match (ending(z), ending(x)) {
            (None, Some(own)) if x != y => {
                self.places[at] = self.places[own].take();
                (Name::FMA_213, y, z)
            }
            (Some(own), _) if z != x && z != y => {
                self.places[at] = self.places[own].take();
                (Name::FMA_231, x, y)
            }
            _ => {
                let from = self.operand(z);
                let to = self.new_place(at);
                self.assembler.two(Name::LOAD, to, from, Masked::No);
                (Name::FMA_231, x, y)
            }
        };
        let first = self.register(first);
        let last = self.operand(last);
        let to = self.places[at].unwrap_or(SPARE);
        self.assembler.three(name, to, first, last);
    }

    fn operation(&mut self, at: usize, code: Code, [a, b, c, _]: [Source; 4]) {
        match code {
            Code::Add => self.two(at, Name::ADD, a, b),
            Code::Sub => self.two(at, Name::SUB, a, b),
            Code::Mul => self.two(at, Name::MUL, a, b),
            Code::Div => self.two(at, Name::DIV, a, b),
            Code::Fma => self.fma(at, [a, b, c]),
            Code::Sqrt => self.one(at, Name::SQRT, a),
            Code::Flush => {
                let from = self.operand(a);
                let to = self.new_place(at);
                self.flush(to, from);
            }
            Code::AddWord => self.two(at, Name::ADD_D, a, b),
            Code::SubWord => self.two(at, Name::SUB_D, a, b),
            Code::MulWord => self.two(at, Name::MUL_D, a, b),
            Code::And => self.two(at, Name::AND, a, b),
            Code::Or => self.two(at, Name::OR, a, b),
            Code::Xor => self.two(at, Name::XOR, a, b),
            // A shift is by a known number of bits, below 32.
            Code::ShiftLeft => self.two(at, Name::SHIFT_LEFT, a, b),
            Code::ShiftRight => self.two(at, Name::SHIFT_RIGHT, a, b),
            Code::ShiftRightSigned => self.two(at, Name::SHIFT_RIGHT_SIGNED, a, b),
            Code::Min => self.two(at, Name::MIN_UNSIGNED, a, b),
            Code::Max => self.two(at, Name::MAX_UNSIGNED, a, b),
            Code::MinSigned => self.two(at, Name::MIN_SIGNED, a, b),
            Code::MaxSigned => self.two(at, Name::MAX_SIGNED, a, b),
            Code::Equal => self.compare(at, Name::COMPARE_UNSIGNED, a, b, 0),
            Code::Less => self.compare(at, Name::COMPARE_UNSIGNED, a, b, 1),
            Code::LessEqual => self.compare(at, Name::COMPARE_UNSIGNED, a, b, 2),
            Code::LessSigned => self.compare(at, Name::COMPARE_SIGNED, a, b, 1),
            Code::LessEqualSigned => self.compare(at, Name::COMPARE_SIGNED, a, b, 2),
            Code::EqualFloat => self.compare(at, Name::COMPARE, a, b, 0),
            Code::LessFloat => self.compare(at, Name::COMPARE, a, b, 1),
            Code::LessEqualFloat => self.compare(at, Name::COMPARE, a, b, 2),
            Code::Select => {
                let [truth, otherwise] = [a, c].map(|source| self.operand(source));
                let chosen = self.register(b);
                let to = self.new_place(at);
                self.assembler.two(Name::LOAD, to, truth, Masked::No);
                // The second where the first is 1, otherwise the third.
                self.assembler.ternary(to, chosen, otherwise, 0xca, Masked::No);
            }
            Code::FloatOfWord => self.one(at, Name::FLOAT_OF_UNSIGNED, a),
            Code::FloatOfSigned => self.one(at, Name::FLOAT_OF_SIGNED, a),
            // A pass has no others: see `is_simple`.
            Code::Exp
            | Code::Log
            | Code::Tanh
            | Code::Erf
            | Code::Sigmoid
            | Code::Quotient
            | Code::Rest
            | Code::WordOfFloat
            | Code::SignedOfFloat => {}
        }
    }
}

/// Returns where a slot's words are.
fn slot_operand(Slot { at, repeats }: Slot) -> Operand {
    let (base, words) = if repeats { (Base::Rdx, CHUNK) } else { (Base::Rsi, WHOLE) };
    Operand::Memory { base, moves: !repeats, offset: (4 * words as u32 * at) as i32 }
}
