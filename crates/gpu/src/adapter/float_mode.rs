//! The floating-point mode in which a software driver computes: subnormal operands and results are zeros.
//!
//! Mesa's software drivers compute in the mode of the thread that submits work, or of a thread that they
//! started, which has the mode of the thread that started it (on Linux; on Windows each thread begins in the
//! CPU's own mode, so software drivers there may keep subnormal numbers). SwiftShader sets this mode by
//! itself. In it the partial sums of a product are the same on both: no kernel can flush those without paying
//! for it in its inner loop.

use crate::{Adapter, Kind};

/// Runs `work`, on a CPU adapter in the mode in which subnormal numbers are zeros, unless it is asked to keep
/// them. Threads that `work` starts
/// keep that mode on Linux.
pub(crate) fn for_adapter<T>(adapter: &Adapter, work: impl FnOnce() -> T) -> T {
    let keeps = adapter.arithmetic.is_some_and(|arithmetic| arithmetic.subnormals);
    let _mode = (adapter.kind == Kind::Cpu && !keeps).then(Mode::flushing);
    work()
}

/// Sets the mode on this thread in which subnormal numbers are numbers, for good.
#[cfg(feature = "cpu")]
pub(crate) fn keep() {
    write(read() & !FLUSHES);
}

/// Sets the mode on this thread in which subnormal numbers are zeros, for good.
#[cfg(feature = "cpu")]
pub(crate) fn flush() {
    std::mem::forget(Mode::flushing());
}

/// The mode of this thread before it was changed. It is set again on drop.
struct Mode(u64);

impl Mode {
    fn flushing() -> Self {
        let before = read();
        write(before | FLUSHES);
        Self(before)
    }
}

impl Drop for Mode {
    fn drop(&mut self) {
        write(self.0);
    }
}

/// The bits FTZ (results) and DAZ (operands) of MXCSR.
#[cfg(target_arch = "x86_64")]
const FLUSHES: u64 = 1 << 15 | 1 << 6;
/// The bit FZ of FPCR.
#[cfg(target_arch = "aarch64")]
const FLUSHES: u64 = 1 << 24;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const FLUSHES: u64 = 0;

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the register has no safe name")]
fn read() -> u64 {
    let mut mode = 0u32;
    // SAFETY: the instruction stores the register in `mode` and does nothing else.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack, preserves_flags)) };
    u64::from(mode)
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the register has no safe name")]
fn write(mode: u64) {
    let mode = mode as u32;
    // SAFETY: all bits but those of `FLUSHES` are as they were read, so no exception is unmasked. Between the
    // two writes this thread runs wgpu and the driver; wgpu's few float operations never see a subnormal
    // number.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack, preserves_flags)) };
}

#[cfg(target_arch = "aarch64")]
#[expect(unsafe_code, reason = "the register has no safe name")]
fn read() -> u64 {
    let mode: u64;
    // SAFETY: the instruction reads the register and does nothing else.
    unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) mode, options(nomem, nostack, preserves_flags)) };
    mode
}

#[cfg(target_arch = "aarch64")]
#[expect(unsafe_code, reason = "the register has no safe name")]
fn write(mode: u64) {
    // SAFETY: all bits but those of `FLUSHES` are as they were read. See above for what runs in between.
    unsafe { std::arch::asm!("msr fpcr, {}", in(reg) mode, options(nomem, nostack, preserves_flags)) };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn read() -> u64 {
    0
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn write(_: u64) {}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn subnormal_numbers_are_zeros_until_the_mode_is_dropped() {
        let half = || black_box(f32::MIN_POSITIVE) * black_box(0.5);
        assert!(half() > 0.0);
        let mode = Mode::flushing();
        let (here, there) = (half().to_bits(), std::thread::spawn(move || half().to_bits()).join());
        drop(mode);
        assert_eq!(here, 0);
        if cfg!(not(windows)) {
            assert_eq!(there.ok(), Some(0));
        }
        assert!(half() > 0.0);
    }
}
