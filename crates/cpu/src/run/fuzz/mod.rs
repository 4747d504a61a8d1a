//! Random kernels: what the CPU computes is what the text says, operation by operation.
//!
//! A kernel follows from a seed. An interpreter that knows nothing of the compiler runs it as well, and the
//! bits of all buffers are compared, with bounds checks and without, with all that this CPU has and
//! with what every CPU of its architecture has. A kernel that differs is made smaller and printed.

mod arithmetic;
mod generate;
mod interpret;
mod print;
mod program;
mod shrink;

use std::panic::{AssertUnwindSafe, catch_unwind};

use self::generate::Random;
use self::program::{GROUPS, Program, Scalar};
use super::group::{self, Place, Stacks};
use crate::compile::{self, Bound, Features, Source, Target};

/// A CPU with what every one of this architecture has.
const LEAST: Features = Features {
    name: "least",
    triple: if cfg!(target_arch = "x86_64") {
        "x86_64-unknown-linux-gnu"
    } else {
        "aarch64-unknown-linux-gnu"
    },
    has: &[],
};

/// What became of a kernel.
#[derive(Debug)]
enum Outcome {
    Same,
    /// It takes too long, or leaves an array.
    Endless,
    /// It is not compiled.
    Refused(String),
    Differs(String),
}

/// Returns the first values of the buffers.
fn buffers(program: &Program, seed: u64) -> Vec<Vec<u64>> {
    let mut random = Random(seed ^ 0x5eed);
    let mut one = |number: usize, scalar: Scalar| match scalar {
        _ if number == 0 => 0,
        Scalar::F32 if random.chance(5) => random.of(&[0x7f80_0000, 0xff80_0000, 0x7fc0_0000]),
        scalar => random.bits(scalar),
    };
    let mut found = Vec::new();
    for (number, ty) in program.buffers.iter().enumerate() {
        let mut places = Vec::new();
        program.places(ty, 0, &mut places);
        found.push(places.into_iter().map(|(_, scalar)| one(number, scalar)).collect());
    }
    found
}

/// Runs a kernel on the CPU.
#[expect(unsafe_code, reason = "machine code runs")]
fn compiled(
    program: &Program,
    source: &Source,
    first: &[Vec<u64>],
    flushes: bool,
    [checked, extended]: [bool; 2],
) -> Result<Vec<Vec<u64>>, String> {
    let mode = compile::Mode { checked, ..compile::Mode::default() };
    let target = if extended || cfg!(windows) { Target::Host } else { Target::Other(LEAST) };
    let code = compile::Program::compile(source, Some("main"), mode, target)?;
    let mut memory: Vec<Vec<u64>> = Vec::new();
    for (ty, values) in program.buffers.iter().zip(first) {
        let mut places = Vec::new();
        program.places(ty, 0, &mut places);
        let mut bytes = vec![0u8; program.size(ty)];
        for ((at, scalar), bits) in places.into_iter().zip(values) {
            bytes[at..at + scalar.bytes()].copy_from_slice(&bits.to_le_bytes()[..scalar.bytes()]);
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let word = |eight: &[u8]| u64::from_le_bytes(eight.try_into().unwrap_or_default());
        memory.push(bytes.chunks_exact(8).map(word).collect());
    }
    let bound = |(ty, words): (&program::Ty, &mut Vec<u64>)| Bound {
        start: words.as_mut_ptr().cast(),
        bytes: program.size(ty) as u64,
    };
    let bounds: Vec<Bound> = program.buffers.iter().zip(&mut memory).map(bound).collect();
    let stacks = Stacks::new(code.lanes as usize).take(&code);
    let mut stacks = stacks.ok_or_else(|| "no memory for stacks".to_owned())?;
    for group in 0..GROUPS as u32 {
        let place = Place { group: [group, 0, 0], groups: [GROUPS as u32, 1, 1] };
        flush(flushes);
        // SAFETY: the buffers are those of the program, and the interpreter has stayed within them.
        unsafe { group::run(&code, &bounds, place, true, &mut stacks) };
        flush(false);
    }
    let mut found = Vec::new();
    for (ty, words) in program.buffers.iter().zip(&memory) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut places = Vec::new();
        program.places(ty, 0, &mut places);
        let read = |(at, scalar): (usize, Scalar)| {
            let mut eight = [0; 8];
            eight[..scalar.bytes()].copy_from_slice(&bytes[at..at + scalar.bytes()]);
            u64::from_le_bytes(eight)
        };
        found.push(places.into_iter().map(read).collect());
    }
    Ok(found)
}

/// Has this thread take subnormal numbers for 0, or not.
#[cfg(target_arch = "x86_64")]
fn flush(flushes: bool) {
    let mode: u32 = if flushes { 0x9fc0 } else { 0x1f80 };
    // SAFETY: the mode of floating-point numbers, with all exceptions masked.
    #[expect(unsafe_code, reason = "the mode of this thread")]
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mode);
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn flush(_: bool) {}

/// Compares a kernel with what its text says. A thread takes subnormal numbers for 0 with every second seed.
fn compare(program: &Program, seed: u64) -> Outcome {
    let first = buffers(program, seed);
    let mut expected = first.clone();
    let flushes = seed % 2 == 1;
    flush(flushes);
    let ran = catch_unwind(AssertUnwindSafe(|| interpret::run(program, &mut expected)));
    flush(false);
    if !matches!(ran, Ok(Ok(()))) {
        return Outcome::Endless;
    }
    let source = match Source::parse(&print::wgsl(program), compile::EXTENSIONS) {
        Ok(source) => source,
        Err(error) => return Outcome::Refused(error),
    };
    for way in [[true, true], [false, true], [true, false], [false, false]] {
        let found = catch_unwind(AssertUnwindSafe(|| compiled(program, &source, &first, flushes, way)));
        let found = match found {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return Outcome::Refused(error),
            Err(_) => return Outcome::Differs(format!("{way:?}: a panic")),
        };
        for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let mut places = Vec::new();
            program.places(&program.buffers[number], 0, &mut places);
            for ((at, scalar), (a, b)) in places.iter().zip(found.iter().zip(expected)) {
                let is_nan = |x: u64| *scalar == Scalar::F32 && f32::from_bits(x as u32).is_nan();
                if a != b && !(is_nan(*a) && is_nan(*b)) {
                    let place = format!("buffer {number}, byte {at}: {a:#x} instead of {b:#x}");
                    return Outcome::Differs(format!("checked, extended: {way:?}, {place}"));
                }
            }
        }
    }
    Outcome::Same
}

/// Three hundred kernels, and twenty thousand where `UNISONO_LONG` is set. `UNISONO_FUZZ_FIRST` and
/// `UNISONO_FUZZ_COUNT` say otherwise which seeds are tried, and `UNISONO_FUZZ_VERBOSE` names each.
#[test]
fn random_kernels_compute_what_they_say() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let count = if std::env::var_os("UNISONO_LONG").is_some() { 20_000 } else { 300 };
    let first = number("UNISONO_FUZZ_FIRST").unwrap_or(0);
    let count = number("UNISONO_FUZZ_COUNT").unwrap_or(count);
    let verbose = std::env::var_os("UNISONO_FUZZ_VERBOSE").is_some();
    let mut counts = [0u64; 3];
    let mut failures = Vec::new();
    for seed in first..first + count {
        if verbose {
            eprintln!("seed {seed}");
        }
        let program = generate::generate(seed);
        match compare(&program, seed) {
            Outcome::Same => counts[0] += 1,
            Outcome::Endless => counts[1] += 1,
            Outcome::Refused(error) => {
                counts[2] += 1;
                if verbose {
                    eprintln!("seed {seed}: {error}");
                }
            }
            Outcome::Differs(how) => {
                if verbose {
                    eprintln!("seed {seed}: {how}");
                }
                let mut fails = |program: &Program| matches!(compare(program, seed), Outcome::Differs(_));
                let small = shrink::shrink(program, &mut fails);
                let how = compare(&small, seed);
                failures.push(format!("seed {seed}: {how:?}\n{}", print::wgsl(&small)));
                if failures.len() == 5 {
                    break;
                }
            }
        }
    }
    let [same, endless, refused] = counts;
    eprintln!("{same} the same, {endless} do not end, {refused} refused");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(same * 2 > count, "{same} of {count} were compared, {endless} do not end, {refused} are refused");
}
