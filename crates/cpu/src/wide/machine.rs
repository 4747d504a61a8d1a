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
    /// Returns the code of passes in an empty module, or `None` if there is no memory for it or a pass has
    /// what there is no code for.
    pub fn new(passes: &[Pass], rounding: Rounding, module: JITModule) -> Option<Self> {
        let mut own = Self { module: ManuallyDrop::new(module), entries: Vec::new() };
        let mut functions = Vec::new();
        for pass in passes {
            let bytes = code(pass, rounding)?;
            let signature = Signature::new(CallConv::SystemV);
            let function = own.module.declare_anonymous_function(&signature).ok()?;
            own.module.define_function_bytes(function, 64, &bytes, &[]).ok()?;
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

/// Returns the code of a pass, or `None` if it has an action that is no part of passes, or more values at a
/// time than there are registers.
fn code(pass: &Pass, rounding: Rounding) -> Option<Vec<u8>> {
    let mut assembler = Assembler::default();
    assembler.repeat(ALL_BUT_SIGN, 0x7fff_ffff);
    assembler.repeat(LEAST, 0x0080_0000);
    let mut is_written = true;
    assembler.advance(|assembler, masked| {
        is_written &= Body::new(assembler, pass, rounding).write(masked).is_some();
    });
    is_written.then_some(assembler.bytes)
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

    fn write(mut self, masked: Masked) -> Option<()> {
        for (at, member) in self.pass.members.iter().enumerate() {
            self.member(at, member, masked)?;
            if let Some(slot) = member.to {
                self.assembler.two(Name::STORE, self.places[at]?, slot_operand(slot), Masked::No);
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
        Some(())
    }

    fn member(&mut self, at: usize, member: &Member, masked: Masked) -> Option<()> {
        match member.action {
            Action::Load { .. } | Action::LoadFour { .. } => {
                let to = self.new_place(at)?;
                let from = self.stream();
                let zeroed = match masked {
                    Masked::Keep(mask) => Masked::Zero(mask),
                    other => other,
                };
                self.assembler.two(Name::LOAD, to, from, zeroed);
            }
            Action::StoreWord { .. } | Action::StoreFour { .. } => {
                let from = self.register(member.operands[1])?;
                let to = self.stream();
                self.assembler.two(Name::STORE, from, to, masked);
            }
            Action::Op(code, flushes) => {
                self.operation(at, code, member.operands)?;
                if flushes {
                    let to = self.places[at]?;
                    self.flush(to, Operand::Register(to));
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Returns the place of the next stream's words.
    fn stream(&mut self) -> Operand {
        self.assembler.load_rax(Base::Rdi, self.streams);
        self.streams += 1;
        Operand::Memory { base: Base::Rax, moves: true, offset: 0 }
    }

    fn new_place(&mut self, at: usize) -> Option<Vector> {
        self.places[at] = self.free.pop();
        self.places[at]
    }

    fn operand(&self, source: Source) -> Option<Operand> {
        match source {
            Source::Member(at) => self.places[at].map(Operand::Register),
            Source::Slot(slot) => Some(slot_operand(slot)),
        }
    }

    /// Returns a register that holds a value, which is [`SPARE`] if it is in memory.
    fn register(&mut self, source: Source) -> Option<Vector> {
        Some(match self.operand(source)? {
            Operand::Register(register) => register,
            memory => {
                self.assembler.two(Name::LOAD, SPARE, memory, Masked::No);
                SPARE
            }
        })
    }

    /// Writes an operation of two operands.
    fn two(&mut self, at: usize, name: Name, x: Source, y: Source) -> Option<()> {
        let first = self.register(x)?;
        let second = self.operand(y)?;
        let to = self.new_place(at)?;
        self.assembler.three(name, to, first, second);
        Some(())
    }

    /// Writes a comparison, whose result has all bits where it is true.
    fn compare(&mut self, at: usize, name: Name, x: Source, y: Source, by: u8) -> Option<()> {
        let first = self.register(x)?;
        let second = self.operand(y)?;
        self.assembler.compare(name, TRUTHS, first, second, by);
        let to = self.new_place(at)?;
        self.assembler.ternary(to, to, Operand::Register(to), 0xff, Masked::Zero(TRUTHS));
        Some(())
    }

    /// Writes an operation of one operand.
    fn one(&mut self, at: usize, name: Name, x: Source) -> Option<()> {
        let from = self.operand(x)?;
        let to = self.new_place(at)?;
        self.assembler.two(name, to, from, Masked::No);
        Some(())
    }

    /// Makes numbers canonical: those of magnitude 2^-126 or less become +0.
    fn flush(&mut self, to: Vector, from: Operand) {
        self.assembler.three(Name::AND, SPARE, ALL_BUT_SIGN, from);
        self.assembler.compare(Name::COMPARE_SIGNED, TRUTHS, SPARE, Operand::Register(LEAST), 6);
        self.assembler.two(Name::LOAD, to, from, Masked::Zero(TRUTHS));
    }

    /// Writes x * y + z.
    fn fma(&mut self, at: usize, [x, y, z]: [Source; 3]) -> Option<()> {
        // What is the same for all numbers stands last, where it may be in memory.
        let (x, y) = if x.repeats() && !y.repeats() { (y, x) } else { (x, y) };
        if self.rounding == Rounding::Split {
            let first = self.register(x)?;
            let second = self.operand(y)?;
            self.assembler.three(Name::MUL, SPARE, first, second);
            let third = self.operand(z)?;
            let to = self.new_place(at)?;
            self.assembler.three(Name::ADD, to, SPARE, third);
            return Some(());
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
                let from = self.operand(z)?;
                let to = self.new_place(at)?;
                self.assembler.two(Name::LOAD, to, from, Masked::No);
                (Name::FMA_231, x, y)
            }
        };
        let first = self.register(first)?;
        let last = self.operand(last)?;
        self.assembler.three(name, self.places[at]?, first, last);
        Some(())
    }

    fn operation(&mut self, at: usize, code: Code, [a, b, c, _]: [Source; 4]) -> Option<()> {
        match code {
            Code::Add => self.two(at, Name::ADD, a, b),
            Code::Sub => self.two(at, Name::SUB, a, b),
            Code::Mul => self.two(at, Name::MUL, a, b),
            Code::Div => self.two(at, Name::DIV, a, b),
            Code::Fma => self.fma(at, [a, b, c]),
            Code::Sqrt => self.one(at, Name::SQRT, a),
            Code::Flush => {
                let from = self.operand(a)?;
                let to = self.new_place(at)?;
                self.flush(to, from);
                Some(())
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
                let (truth, otherwise) = (self.operand(a)?, self.operand(c)?);
                let chosen = self.register(b)?;
                let to = self.new_place(at)?;
                self.assembler.two(Name::LOAD, to, truth, Masked::No);
                // The second where the first is 1, otherwise the third.
                self.assembler.ternary(to, chosen, otherwise, 0xca, Masked::No);
                Some(())
            }
            Code::FloatOfWord => self.one(at, Name::FLOAT_OF_UNSIGNED, a),
            Code::FloatOfSigned => self.one(at, Name::FLOAT_OF_SIGNED, a),
            // Passes have no others: see `is_simple`.
            Code::Exp
            | Code::Log
            | Code::Tanh
            | Code::Erf
            | Code::Sigmoid
            | Code::Quotient
            | Code::Rest
            | Code::WordOfFloat
            | Code::SignedOfFloat => None,
        }
    }
}

/// Returns where a slot's words are.
fn slot_operand(Slot { at, repeats }: Slot) -> Operand {
    let (base, words) = if repeats { (Base::Rdx, CHUNK) } else { (Base::Rsi, WHOLE) };
    Operand::Memory { base, moves: !repeats, offset: (4 * words as u32 * at) as i32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wide::pass::is_simple;

    const SLOT: Source = Source::Slot(Slot { at: 1, repeats: false });

    /// All operations, in their order.
    const ALL: [Code; Code::SignedOfFloat as usize + 1] = {
        use Code::*;
        [
            Add,
            Sub,
            Mul,
            Div,
            Fma,
            Sqrt,
            Flush,
            Exp,
            Log,
            Tanh,
            Erf,
            Sigmoid,
            AddWord,
            SubWord,
            MulWord,
            And,
            Or,
            Xor,
            ShiftLeft,
            ShiftRight,
            ShiftRightSigned,
            Min,
            Max,
            MinSigned,
            MaxSigned,
            Quotient,
            Rest,
            Equal,
            Less,
            LessEqual,
            LessSigned,
            LessEqualSigned,
            EqualFloat,
            LessFloat,
            LessEqualFloat,
            Select,
            FloatOfWord,
            FloatOfSigned,
            WordOfFloat,
            SignedOfFloat,
        ]
    };

    fn length(members: Vec<Member>) -> Option<usize> {
        code(&Pass::new(members), Rounding::Fused).map(|bytes| bytes.len())
    }

    /// What may be part of a pass has code, and the other operations have none.
    #[test]
    fn each_simple_operation_has_code() {
        let empty = length(vec![]).unwrap();
        for (at, code) in ALL.into_iter().enumerate() {
            assert_eq!(code as usize, at);
            let to = Some(Slot { at: 2, repeats: false });
            let alone = length(vec![Member { action: Action::Op(code, false), operands: [SLOT; 4], to }]);
            assert_eq!(alone.is_some_and(|length| length > empty), is_simple(code), "{code:?}");
            let flushed = length(vec![Member { action: Action::Op(code, true), operands: [SLOT; 4], to }]);
            assert!(flushed >= alone, "{code:?}");
        }
    }

    /// A pass that does not fit has no code, so that its kernel is computed in another way.
    #[test]
    fn what_does_not_fit_has_no_code() {
        let member = |action, operands| Member { action, operands, to: None };
        assert_eq!(length(vec![member(Action::Repeat, [SLOT; 4])]), None);
        // More values at a time than there are registers: all of them are used behind the last one.
        let many = |count: usize| {
            let value = || member(Action::Op(Code::Add, false), [SLOT; 4]);
            let last = |at| member(Action::Op(Code::Add, false), [Source::Member(at); 4]);
            (0..count).map(|_| value()).chain((0..count).map(last)).collect::<Vec<_>>()
        };
        assert!(length(many(REGISTERS - 1)).is_some());
        assert_eq!(length(many(REGISTERS + 1)), None);
        // A value that is not there yet.
        assert_eq!(length(vec![member(Action::Op(Code::Sqrt, false), [Source::Member(0); 4])]), None);
    }
}
