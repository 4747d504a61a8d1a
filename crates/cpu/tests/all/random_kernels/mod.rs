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

use unisono_cpu::{Options, adapter, baseline_adapter};

use self::generate::Random;
use self::program::{GROUPS, Program, Scalar};
use crate::common::Machine;

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

/// Runs a kernel on a device, with bounds checks or without.
fn compiled(
    program: &Program,
    wgsl: &str,
    first: &[Vec<u64>],
    machine: &Machine,
    checked: bool,
) -> Result<Vec<Vec<u64>>, String> {
    let pipeline = machine.pipeline(wgsl, checked)?;
    let mut buffers = Vec::new();
    for (ty, values) in program.buffers.iter().zip(first) {
        let mut places = Vec::new();
        program.places(ty, 0, &mut places);
        let mut bytes = vec![0u8; program.size(ty)];
        for ((at, scalar), bits) in places.into_iter().zip(values) {
            bytes[at..at + scalar.bytes()].copy_from_slice(&bits.to_le_bytes()[..scalar.bytes()]);
        }
        buffers.push(machine.buffer(&bytes));
    }
    machine.launch(&pipeline, &buffers.iter().collect::<Vec<_>>(), [GROUPS as u32, 1, 1]);
    let mut found = Vec::new();
    for (ty, buffer) in program.buffers.iter().zip(&buffers) {
        let bytes = machine.read(buffer);
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

/// The devices: one with all instructions of this CPU, and one with those of every CPU of its architecture.
struct Devices([Machine; 2]);

impl Devices {
    /// Opens devices whose thread takes subnormal numbers for 0, or not.
    fn new(flushes: bool) -> Self {
        let begin = if flushes { || flush(true) } else { || flush(false) };
        Self(
            [adapter, baseline_adapter]
                .map(|adapter| Machine::of(&adapter(Options { threads: 1, begin, ..Options::default() }))),
        )
    }
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
fn compare(program: &Program, seed: u64, devices: &[Devices; 2]) -> Outcome {
    let first = buffers(program, seed);
    let mut expected = first.clone();
    let flushes = seed % 2 == 1;
    flush(flushes);
    let ran = catch_unwind(AssertUnwindSafe(|| interpret::run(program, &mut expected)));
    flush(false);
    if !matches!(ran, Ok(Ok(()))) {
        return Outcome::Endless;
    }
    let wgsl = print::wgsl(program);
    let Devices(machines) = &devices[usize::from(flushes)];
    for (extended, checked) in [(true, true), (true, false), (false, true), (false, false)] {
        let machine = &machines[usize::from(!extended)];
        let way = format!("checked: {checked}, extended: {extended}");
        let found = catch_unwind(AssertUnwindSafe(|| compiled(program, &wgsl, &first, machine, checked)));
        let found = match found {
            Ok(Ok(found)) => found,
            Ok(Err(error)) if error.contains("panicked") => {
                return Outcome::Differs(format!("{way}: {error}"));
            }
            Ok(Err(error)) => return Outcome::Refused(error),
            Err(_) => return Outcome::Differs(format!("{way}: a panic")),
        };
        for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let mut places = Vec::new();
            program.places(&program.buffers[number], 0, &mut places);
            for ((at, scalar), (a, b)) in places.iter().zip(found.iter().zip(expected)) {
                let is_nan = |x: u64| *scalar == Scalar::F32 && f32::from_bits(x as u32).is_nan();
                if a != b && !(is_nan(*a) && is_nan(*b)) {
                    let place = format!("buffer {number}, byte {at}: {a:#x} instead of {b:#x}");
                    return Outcome::Differs(format!("{way}, {place}"));
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
    let devices = [false, true].map(Devices::new);
    let mut counts = [0u64; 3];
    let mut failures = Vec::new();
    for seed in first..first + count {
        if verbose {
            eprintln!("seed {seed}");
        }
        let program = generate::generate(seed);
        match compare(&program, seed, &devices) {
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
                let mut fails =
                    |program: &Program| matches!(compare(program, seed, &devices), Outcome::Differs(_));
                let small = shrink::shrink(program, &mut fails);
                let how = compare(&small, seed, &devices);
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
