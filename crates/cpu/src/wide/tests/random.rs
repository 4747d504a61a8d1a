//! Random kernels: what computes many invocations at once and what Cranelift makes leave the same bits.

use super::generate::{Kernel, Random, WORDS, generate};
use super::*;

/// The binding of each buffer whose words are floats.
const FLOATS: [usize; 2] = [3, 4];

/// What became of a kernel.
#[derive(Debug, PartialEq)]
enum Outcome {
    Same,
    /// Cranelift compiles it.
    Compiled,
    /// Its text is not valid: it has a sum of numbers that overflows, for example.
    Invalid,
    Differs(String),
}

fn buffers(kernel: &Kernel, seed: u64) -> Vec<Vec<u32>> {
    let mut random = Random(seed ^ 0x5eed);
    let salt = random.below(1000);
    let floats = |own: usize| (0..WORDS).map(|i| float(i * 7 + own + salt)).collect::<Vec<_>>();
    let [columns, rows, _] = kernel.groups;
    let mut all = vec![
        vec![kernel.n, columns * kernel.lanes, 5, 0, 7, rows],
        floats(1),
        floats(2),
        floats(3),
        floats(4),
        vec![0; 16],
    ];
    for _ in 0..3 {
        let word = |_| if random.chance(50) { random.below(100) as u32 } else { random.next() as u32 };
        all.push((0..WORDS).map(word).collect());
    }
    all[6][..2].fill(77);
    all
}

/// Returns the bits of a number of any size. There is one NaN.
fn float(i: usize) -> u32 {
    let number = number(i);
    if number.is_nan() { 0x7fc0_0000 } else { number.to_bits() }
}

/// Returns where two launches have left different numbers. Which NaN an operation returns is not specified.
fn difference(own: &[Vec<u32>], expected: &[Vec<u32>]) -> Option<String> {
    for (at, (own, expected)) in own.iter().zip(expected).enumerate() {
        let is_nan = |word: u32| FLOATS.contains(&at) && f32::from_bits(word).is_nan();
        let differs = |(own, expected): (&u32, &u32)| own != expected && !(is_nan(*own) && is_nan(*expected));
        if let Some(word) = own.iter().zip(expected).position(differs) {
            return Some(format!("binding {at}, word {word}: {:#x}, not {:#x}", own[word], expected[word]));
        }
    }
    None
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

/// Compares a kernel, with all vectors and both kinds of `fma`. A thread takes subnormal numbers for 0 with
/// every second seed.
fn compare(kernel: &Kernel, seed: u64) -> Outcome {
    let parts = [ELEMENTARY, FLUSH, OWN_QUOTIENT, OWN_ROOT, FINITE_BITS].map(|part| part.text());
    let wgsl = format!("{}{}", parts.concat(), kernel.wgsl());
    let Ok(source) = Source::parse(&wgsl, EXTENSIONS) else { return Outcome::Invalid };
    flush(seed % 2 == 1);
    let outcome = compare_source(&source, kernel, seed);
    flush(false);
    outcome
}

#[expect(unsafe_code, reason = "memory of kernels")]
fn compare_source(source: &Source, kernel: &Kernel, seed: u64) -> Outcome {
    let mut outcome = Outcome::Compiled;
    let mut random = Random(seed);
    for rounding in [Rounding::Split, Rounding::Fused] {
        let mut expected = None;
        // Without code for passes, there are none.
        let ways = known(rounding).into_iter().flat_map(|vectors| [(vectors, true), (vectors, false)]);
        for (vectors, has_passes) in ways {
            let code = || if has_passes { code() } else { None };
            let Some(wide) = Wide::new(&source.module, &source.info, 0, (vectors, rounding), &code) else {
                continue;
            };
            if vectors < Vectors::Avx512 && !has_passes {
                continue;
            }
            let expected = expected.get_or_insert_with(|| {
                compiled(source, rounding, buffers(kernel, seed), (kernel.lanes, kernel.groups))
            });
            outcome = Outcome::Same;
            let mut own = buffers(kernel, seed);
            let bounds = bounds(&mut own);
            let [columns, rows, layers] = kernel.groups;
            let all = u64::from(columns * rows * layers);
            let mut first = 0;
            while first < all {
                let end = first + 1 + random.below((all - first) as usize) as u64;
                if random.chance(20) {
                    // One workgroup, in two parts.
                    let number = first as u32;
                    let group = [number % columns, number / columns % rows, number / (columns * rows)];
                    let cut = random.below(kernel.lanes as usize + 1) as u32;
                    for part in [0..cut, cut..kernel.lanes] {
                        // SAFETY: all places of the kernels lie in the buffers.
                        unsafe { wide.run_some(bounds.as_ptr(), group, part) };
                    }
                    first += 1;
                } else {
                    // SAFETY: as above.
                    unsafe { wide.run_groups(bounds.as_ptr(), kernel.groups, first..end) };
                    first = end;
                }
            }
            if let Some(how) = difference(&own, expected) {
                return Outcome::Differs(format!("{rounding:?}, {vectors:?}, passes: {has_passes}: {how}"));
            }
        }
    }
    outcome
}

/// Removes statements for as long as the kernel differs.
fn shrink(mut kernel: Kernel, seed: u64) -> Kernel {
    let mut at = 0;
    while at < kernel.statements.len() {
        let removed = kernel.statements.remove(at);
        if !matches!(compare(&kernel, seed), Outcome::Differs(_)) {
            kernel.statements.insert(at, removed);
            at += 1;
        }
    }
    kernel
}

/// Three hundred kernels, and ten thousand where `UNISONO_LONG` is set. `UNISONO_FUZZ_FIRST` and
/// `UNISONO_FUZZ_COUNT` say otherwise which seeds are tried.
#[test]
fn random_kernels_leave_the_same_bits_as_compiled_ones() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let count = if std::env::var_os("UNISONO_LONG").is_some() { 10_000 } else { 300 };
    let first = number("UNISONO_FUZZ_FIRST").unwrap_or(0);
    let count = number("UNISONO_FUZZ_COUNT").unwrap_or(count);
    if known(Rounding::Split).is_empty() {
        return;
    }
    let mut counts = [0u64; 3];
    let mut failures = Vec::new();
    for seed in first..first + count {
        let kernel = generate(seed);
        match compare(&kernel, seed) {
            Outcome::Same => counts[0] += 1,
            Outcome::Compiled => counts[1] += 1,
            Outcome::Invalid => counts[2] += 1,
            Outcome::Differs(_) => {
                let small = shrink(kernel, seed);
                let Kernel { lanes, groups, n, .. } = small;
                let launch = format!("{lanes} invocations in {groups:?} workgroups, n = {n}");
                let how = compare(&small, seed);
                failures.push(format!("seed {seed}, {launch}: {how:?}\n{}", small.statements.join("\n")));
                if failures.len() == 5 {
                    break;
                }
            }
        }
    }
    let [same, compiled, invalid] = counts;
    eprintln!("{same} the same, {compiled} compiled by Cranelift, {invalid} not valid");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(
        same * 10 > count * 7,
        "{same} of {count} were compared, {compiled} compiled, {invalid} not valid"
    );
}
