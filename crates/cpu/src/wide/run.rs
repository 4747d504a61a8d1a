//! Runs the instructions of a kernel over blocks of its invocations.

use std::ops::Range;

use super::graph::Code;
use super::machine::Entry;
use super::moves::moved;
use super::pass::{MOST_STREAMS, Pass};
use super::plan::{Action, Instruction, Slot, Width};
use crate::native::{Bound, Rounding, Vectors, canonical, elementary};

/// The most invocations of a block.
pub(super) const BLOCK: usize = 128;

/// The words that are computed at once.
pub(super) const CHUNK: usize = 16;

/// The words of a whole slot.
pub(super) const WHOLE: usize = 4 * BLOCK;

/// The invocations that instructions run for, and where their values are.
pub(super) struct Scope<'p> {
    pub bindings: *const Bound,
    /// The passes and their code.
    pub passes: (&'p [Pass], &'p [Entry]),
    /// The number of the first invocation, and what the others have in common with it.
    pub place: [u32; 3],
    pub count: usize,
    pub short: *mut u32,
    pub whole: *mut u32,
    /// A word for each invocation, which is not 0 if it ends early.
    pub ended: *mut u32,
}

/// Code that runs instructions.
pub(super) type Run = unsafe fn(&[Instruction], &Scope<'_>);

/// Returns the code for these vectors, or `None` if there is none.
pub(super) fn code(vectors: Vectors, rounding: Rounding) -> Option<Run> {
    #[cfg(target_arch = "x86_64")]
    return match (vectors, rounding) {
        (Vectors::Avx512, Rounding::Split) => Some(x86::split_avx512),
        (Vectors::Avx512, Rounding::Fused) => Some(x86::fused_avx512),
        (Vectors::Avx2, Rounding::Split) => Some(x86::split_avx2),
        (Vectors::Avx2, Rounding::Fused) if crate::native::has_fma() => Some(x86::fused_avx2),
        _ => None,
    };
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (vectors, rounding);
        None
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "instructions that this CPU has")]
mod x86 {
    use super::{Instruction, Scope, all};

    macro_rules! code {
        ($name:ident, $features:literal, $fma:expr) => {
            /// # Safety
            /// As for [`all`], on a CPU that has these instructions.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name(instructions: &[Instruction], scope: &Scope<'_>) {
                // SAFETY: what the caller promises.
                unsafe { all(instructions, scope, $fma) }
            }
        };
    }

    code!(split_avx512, "avx512f", |x, y, z| x * y + z);
    code!(fused_avx512, "avx512f,fma", |x: f32, y, z| x.mul_add(y, z));
    code!(split_avx2, "avx2", |x, y, z| x * y + z);
    code!(fused_avx2, "avx2,fma", |x: f32, y, z| x.mul_add(y, z));
}

/// A value's words.
#[derive(Clone, Copy)]
pub(super) struct Words {
    pub start: *mut u32,
    /// How far apart two chunks are: 0 if there is one, which repeats.
    pub step: usize,
}

#[expect(unsafe_code, reason = "values lie in memory that only their slots divide")]
impl Words {
    /// Returns the chunk with this number.
    #[inline(always)]
    unsafe fn chunk(self, number: usize) -> [u32; CHUNK] {
        // SAFETY: a slot has as many chunks as there are words.
        unsafe { self.start.add(self.step * number).cast::<[u32; CHUNK]>().read() }
    }

    /// Returns the word with this number.
    #[inline(always)]
    pub unsafe fn word(self, number: usize) -> u32 {
        // SAFETY: as above.
        unsafe { *self.address(number) }
    }

    /// Returns the address of the word with this number. Up to the end of its chunk, others lie behind it.
    #[inline(always)]
    pub unsafe fn address(self, number: usize) -> *const u32 {
        // SAFETY: as above.
        unsafe { self.start.add(if self.step == 0 { number % CHUNK } else { number }) }
    }

    /// Goes over the first words as indices, chunk by chunk. If the indices of a chunk follow one another,
    /// each `STEP` further than the last, it calls `row` once, with the number of the chunk's first word and
    /// with that word. Otherwise it calls `one` for each word. The indices of a slice mostly follow one
    /// another, since most layers have a multiple of sixteen features.
    #[inline(always)]
    pub unsafe fn indices<const STEP: u32>(
        self,
        count: usize,
        row: impl Fn(usize, usize),
        one: impl Fn(usize, usize),
    ) {
        for first in (0..count).step_by(CHUNK) {
            // SAFETY: as above.
            unsafe {
                let words = self.chunk(first / CHUNK);
                let mut differs = 0;
                for lane in 0..CHUNK {
                    differs |= words[lane] ^ words[0].wrapping_add(STEP * lane as u32);
                }
                if differs == 0 && first + CHUNK <= count {
                    row(first, self.word(first) as usize);
                } else {
                    (first..count.min(first + CHUNK)).for_each(|at| one(at, self.word(at) as usize));
                }
            }
        }
    }

    /// Calls `run` with the number of each of the first words, and with the word. There is a loop for words
    /// that repeat and one for others, so that neither decides anew for each word.
    #[inline(always)]
    pub unsafe fn each(self, count: usize, mut run: impl FnMut(usize, u32)) {
        // SAFETY: as above.
        unsafe {
            if self.step > 0 {
                (0..count).for_each(|at| run(at, *self.start.add(at)));
            } else {
                (0..count).for_each(|at| run(at, *self.start.add(at % CHUNK)));
            }
        }
    }
}

#[expect(unsafe_code, reason = "values lie in memory that only their slots divide")]
impl Scope<'_> {
    #[inline(always)]
    pub fn words(&self, slot: Slot) -> Words {
        let Slot { at, repeats } = slot;
        // SAFETY: there are as many slots as the plan says.
        let start = unsafe {
            match repeats {
                true => self.short.add(CHUNK * at as usize),
                false => self.whole.add(WHOLE * at as usize),
            }
        };
        Words { start, step: if repeats { 0 } else { CHUNK } }
    }

    /// Returns the number of words of a width.
    #[inline(always)]
    pub fn count(&self, width: Width) -> usize {
        match width {
            Width::Launch | Width::Block => CHUNK,
            Width::One => self.count,
            Width::Four => 4 * self.count,
        }
    }

    #[inline(always)]
    pub unsafe fn buffer(&self, binding: u32) -> *mut u32 {
        // SAFETY: what a kernel uses is bound.
        unsafe { (*self.bindings.add(binding as usize)).start.cast() }
    }

    /// Computes each word of a result from those of the operands.
    #[inline(always)]
    unsafe fn each<const N: usize>(&self, own: &Instruction, compute: impl Fn([u32; N]) -> u32) {
        let operands: [Words; N] = std::array::from_fn(|at| self.words(own.operands[at]));
        let to = self.words(own.to).start;
        for number in 0..self.count(own.width).div_ceil(CHUNK) {
            // SAFETY: slots have whole chunks.
            unsafe {
                let from: [[u32; CHUNK]; N] = operands.map(|operand| operand.chunk(number));
                let mut found = [0; CHUNK];
                for lane in 0..CHUNK {
                    found[lane] = compute(std::array::from_fn(|at| from[at][lane]));
                }
                to.add(CHUNK * number).cast::<[u32; CHUNK]>().write(found);
            }
        }
    }

    /// As [`Self::each`], of floats, and makes the results canonical if that is asked for.
    #[inline(always)]
    unsafe fn floats<const N: usize>(
        &self,
        own: &Instruction,
        flushes: bool,
        compute: impl Fn([f32; N]) -> f32,
    ) {
        // SAFETY: what the caller promises.
        unsafe {
            if flushes {
                self.each(own, |words| canonical(compute(words.map(f32::from_bits))).to_bits());
            } else {
                self.each(own, |words| compute(words.map(f32::from_bits)).to_bits());
            }
        }
    }

    /// Runs a pass.
    #[inline(always)]
    unsafe fn pass(&self, own: &Instruction, number: usize) {
        let (passes, entries) = self.passes;
        let mut streams = [std::ptr::null_mut(); MOST_STREAMS];
        let words = self.count(own.width);
        // SAFETY: a pass has at most so many streams, and does what the instructions that it consists of do.
        unsafe {
            for (to, stream) in streams.iter_mut().zip(&passes[number].streams) {
                let first = self.words(stream.index).word(0) as usize;
                *to = self.buffer(stream.binding).add(stream.words * first);
            }
            let (whole, rest) = (words / CHUNK * CHUNK, words % CHUNK);
            entries[number](streams.as_ptr(), self.whole, self.short, 4 * whole as u64, (1 << rest) - 1);
        }
    }

    /// As [`Self::each`], of words, and makes the results canonical as floats if that is asked for.
    #[inline(always)]
    unsafe fn integers<const N: usize>(
        &self,
        own: &Instruction,
        flushes: bool,
        compute: impl Fn([u32; N]) -> u32,
    ) {
        // SAFETY: what the caller promises.
        unsafe {
            if flushes {
                self.each(own, |words| canonical(f32::from_bits(compute(words))).to_bits());
            } else {
                self.each(own, compute);
            }
        }
    }
}

/// A function of the kernels. It is no closure, since closures of many operations are not compiled for the
/// vectors of the code that calls them.
trait Function {
    fn of(x: f32, fma: &impl Fn(f32, f32, f32) -> f32) -> f32;
}

macro_rules! function {
    ($name:ident, $of:path) => {
        struct $name;

        impl Function for $name {
            #[inline(always)]
            fn of(x: f32, fma: &impl Fn(f32, f32, f32) -> f32) -> f32 {
                $of(x, fma)
            }
        }
    };
}

function!(Exp, elementary::exp);
function!(Log, elementary::log);
function!(Tanh, elementary::tanh);
function!(Erf, elementary::erf);
function!(Sigmoid, elementary::sigmoid);

#[expect(unsafe_code, reason = "values lie in memory that only their slots divide")]
impl Scope<'_> {
    /// As [`Self::floats`], of a function.
    #[inline(always)]
    unsafe fn function<F: Function>(
        &self,
        own: &Instruction,
        flushes: bool,
        fma: impl Fn(f32, f32, f32) -> f32,
    ) {
        let (from, to) = (self.words(own.operands[0]), self.words(own.to).start);
        for number in 0..self.count(own.width).div_ceil(CHUNK) {
            // SAFETY: slots have whole chunks.
            unsafe {
                let words = from.chunk(number);
                let mut found = [0; CHUNK];
                for lane in 0..CHUNK {
                    let result = F::of(f32::from_bits(words[lane]), &fma);
                    found[lane] = if flushes { canonical(result) } else { result }.to_bits();
                }
                to.add(CHUNK * number).cast::<[u32; CHUNK]>().write(found);
            }
        }
    }
}

/// Runs instructions.
///
/// # Safety
/// The scope has the slots of the plan, and the instructions before these have run. The kernel accesses no
/// memory outside its buffers.
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn all(instructions: &[Instruction], scope: &Scope<'_>, fma: impl Fn(f32, f32, f32) -> f32 + Copy) {
    for own in instructions {
        // SAFETY: what the caller promises.
        unsafe {
            match own.action {
                Action::Op(code, flushes) => operation(own, (code, flushes), scope, fma),
                Action::Number(number) => scope.each::<0>(own, |_| number),
                Action::Numbers(numbers) => {
                    let to = scope.words(own.to).start;
                    (0..CHUNK).for_each(|lane| *to.add(lane) = numbers[lane % 4]);
                }
                Action::Param { binding, word } => {
                    let number = *scope.buffer(binding).add(word as usize);
                    scope.each::<0>(own, |_| number);
                }
                Action::Place(0) => {
                    let to = scope.words(own.to).start;
                    let first = scope.place[0];
                    (0..scope.count).for_each(|lane| *to.add(lane) = first.wrapping_add(lane as u32));
                }
                Action::First | Action::Place(_) => {
                    let axis = if let Action::Place(axis) = own.action { axis } else { 0 };
                    let number = scope.place[usize::from(axis)];
                    scope.each::<0>(own, |_| number);
                }
                Action::Pass(number) => scope.pass(own, number as usize),
                _ => moved(own, scope),
            }
        }
    }
}

#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn operation(
    own: &Instruction,
    (code, flushes): (Code, bool),
    scope: &Scope<'_>,
    fma: impl Fn(f32, f32, f32) -> f32 + Copy,
) {
    let truth = |truth: bool| if truth { u32::MAX } else { 0 };
    // SAFETY: what the caller promises.
    unsafe {
        match code {
            Code::Add => scope.floats(own, flushes, |[x, y]| x + y),
            Code::Sub => scope.floats(own, flushes, |[x, y]| x - y),
            Code::Mul => scope.floats(own, flushes, |[x, y]| x * y),
            Code::Div => scope.floats(own, flushes, |[x, y]| x / y),
            Code::Fma => scope.floats(own, flushes, |[x, y, z]| fma(x, y, z)),
            Code::Sqrt => scope.floats(own, flushes, |[x]| x.sqrt()),
            Code::Flush => scope.floats(own, flushes, |[x]| canonical(x)),
            Code::Exp => scope.function::<Exp>(own, flushes, fma),
            Code::Log => scope.function::<Log>(own, flushes, fma),
            Code::Tanh => scope.function::<Tanh>(own, flushes, fma),
            Code::Erf => scope.function::<Erf>(own, flushes, fma),
            Code::Sigmoid => scope.function::<Sigmoid>(own, flushes, fma),
            Code::AddWord => scope.integers(own, flushes, |[x, y]| x.wrapping_add(y)),
            Code::SubWord => scope.integers(own, flushes, |[x, y]| x.wrapping_sub(y)),
            Code::MulWord => scope.integers(own, flushes, |[x, y]| x.wrapping_mul(y)),
            Code::And => scope.integers(own, flushes, |[x, y]| x & y),
            Code::Or => scope.integers(own, flushes, |[x, y]| x | y),
            Code::Xor => scope.integers(own, flushes, |[x, y]| x ^ y),
            Code::ShiftLeft => scope.integers(own, flushes, |[x, y]| x << (y & 31)),
            Code::ShiftRight => scope.integers(own, flushes, |[x, y]| x >> (y & 31)),
            Code::ShiftRightSigned => {
                scope.integers(own, flushes, |[x, y]| ((x as i32) >> (y & 31)) as u32);
            }
            Code::Min => scope.integers(own, flushes, |[x, y]| x.min(y)),
            Code::Max => scope.integers(own, flushes, |[x, y]| x.max(y)),
            Code::MinSigned => scope.integers(own, flushes, |[x, y]| (x as i32).min(y as i32) as u32),
            Code::MaxSigned => scope.integers(own, flushes, |[x, y]| (x as i32).max(y as i32) as u32),
            Code::Quotient => {
                let (_, by) = divisor(own, scope);
                scope.integers(own, flushes, |[x, _]| quotient(x, by));
            }
            Code::Rest => {
                let (number, by) = divisor(own, scope);
                scope.integers(own, flushes, |[x, _]| x.wrapping_sub(quotient(x, by).wrapping_mul(number)));
            }
            Code::Equal => scope.each(own, |[x, y]| truth(x == y)),
            Code::Less => scope.each(own, |[x, y]| truth(x < y)),
            Code::LessEqual => scope.each(own, |[x, y]| truth(x <= y)),
            Code::LessSigned => scope.each(own, |[x, y]| truth((x as i32) < y as i32)),
            Code::LessEqualSigned => scope.each(own, |[x, y]| truth(x as i32 <= y as i32)),
            Code::EqualFloat => scope.each(own, |[x, y]| truth(f32::from_bits(x) == f32::from_bits(y))),
            Code::LessFloat => scope.each(own, |[x, y]| truth(f32::from_bits(x) < f32::from_bits(y))),
            Code::LessEqualFloat => scope.each(own, |[x, y]| truth(f32::from_bits(x) <= f32::from_bits(y))),
            Code::Select => scope.integers(own, flushes, |[truth, x, y]| x & truth | y & !truth),
            Code::FloatOfWord => scope.integers(own, flushes, |[x]| (x as f32).to_bits()),
            Code::FloatOfSigned => scope.integers(own, flushes, |[x]| (x as i32 as f32).to_bits()),
            Code::WordOfFloat => scope.integers(own, flushes, |[x]| f32::from_bits(x) as u32),
            Code::SignedOfFloat => scope.integers(own, flushes, |[x]| f32::from_bits(x) as i32 as u32),
        }
    }
}

/// Returns the number that an instruction divides by, and 1 over it.
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn divisor(own: &Instruction, scope: &Scope<'_>) -> (u32, f64) {
    // SAFETY: what the caller promises. The second operand is a known number.
    let number = unsafe { scope.words(own.operands[1]).word(0) };
    (number, 1.0 / f64::from(number))
}

/// Returns x / n, given 1 / n.
///
/// (x + 1/2) / n is at least 1 / 2n away from any whole number, and is computed with an error below
/// 2^-51 2^32 / n.
#[expect(unsafe_code, reason = "one instruction, which vectors have as well")]
#[inline(always)]
fn quotient(x: u32, by: f64) -> u32 {
    // SAFETY: the quotient is less than 2^32.
    unsafe { ((f64::from(x) + 0.5) * by).to_int_unchecked() }
}

/// Returns the runs of invocations that have not ended.
pub(super) fn left(ended: &[u32]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, _) in ended.iter().enumerate().filter(|(_, ended)| **ended == 0) {
        match runs.last_mut() {
            Some(run) if run.end == at => run.end += 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}
