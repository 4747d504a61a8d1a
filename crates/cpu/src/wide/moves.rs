//! Instructions that move words: between slots, and between a slot and a buffer.

use std::sync::atomic::{AtomicU32, Ordering};

use super::plan::{Action, Counts, Instruction};
use super::run::{CHUNK, Scope};

/// Copies words.
///
/// # Safety
/// Both addresses have `COUNT` words.
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
unsafe fn copy<const COUNT: usize>(from: *const u32, to: *mut u32) {
    // SAFETY: what the caller promises.
    unsafe { to.cast::<[u32; COUNT]>().write_unaligned(from.cast::<[u32; COUNT]>().read_unaligned()) }
}

/// Runs an instruction that moves words.
#[expect(unsafe_code, reason = "memory of kernels")]
#[inline(always)]
pub(super) unsafe fn moved(own: &Instruction, scope: &Scope<'_>) {
    let [a, b, c, d] = own.operands.map(|slot| scope.words(slot));
    let to = scope.words(own.to).start;
    let count = scope.count(own.width);
    // SAFETY: what the caller promises.
    unsafe {
        match own.action {
            Action::Load { binding, .. } => {
                let from = scope.buffer(binding);
                if own.in_row {
                    std::ptr::copy_nonoverlapping(from.add(a.word(0) as usize), to, count);
                } else {
                    a.indices::<1>(
                        count,
                        |at, index| copy::<CHUNK>(from.add(index), to.add(at)),
                        |at, index| *to.add(at) = *from.add(index),
                    );
                }
            }
            Action::LoadFour { binding, counts: Counts::Vectors, .. } => {
                let from = scope.buffer(binding);
                if own.in_row {
                    std::ptr::copy_nonoverlapping(from.add(4 * a.word(0) as usize), to, count);
                } else {
                    a.indices::<1>(
                        scope.count,
                        |at, index| copy::<{ 4 * CHUNK }>(from.add(4 * index), to.add(4 * at)),
                        |at, index| copy::<4>(from.add(4 * index), to.add(4 * at)),
                    );
                }
            }
            Action::LoadFour { binding, counts: Counts::Words, .. } => {
                let from = scope.buffer(binding);
                a.indices::<4>(
                    scope.count,
                    |at, index| copy::<{ 4 * CHUNK }>(from.add(index), to.add(4 * at)),
                    |at, index| copy::<4>(from.add(index), to.add(4 * at)),
                );
            }
            Action::Part(part) => {
                (0..count).for_each(|at| *to.add(at) = *a.start.add(4 * at + usize::from(part)));
            }
            Action::Repeat => {
                a.each(scope.count, |at, word| to.add(4 * at).cast::<[u32; 4]>().write_unaligned([word; 4]));
            }
            Action::Mix => {
                for at in 0..scope.count {
                    let four = [a.word(at), b.word(at), c.word(at), d.word(at)];
                    to.add(4 * at).cast::<[u32; 4]>().write_unaligned(four);
                }
            }
            Action::StoreWord { binding } => {
                let to = scope.buffer(binding);
                if own.in_row {
                    let to = to.add(a.word(0) as usize);
                    b.each(count, |at, word| *to.add(at) = word);
                } else {
                    a.indices::<1>(
                        count,
                        |at, index| copy::<CHUNK>(b.address(at), to.add(index)),
                        |at, index| *to.add(index) = b.word(at),
                    );
                }
            }
            Action::StoreFour { binding } => {
                let to = scope.buffer(binding);
                if own.in_row {
                    let to = to.add(4 * a.word(0) as usize);
                    b.each(count, |at, word| *to.add(at) = word);
                } else {
                    a.indices::<1>(
                        scope.count,
                        |at, index| {
                            for first in (0..4 * CHUNK).step_by(CHUNK) {
                                copy::<CHUNK>(b.address(4 * at + first), to.add(4 * index + first));
                            }
                        },
                        |at, index| copy::<4>(b.address(4 * at), to.add(4 * index)),
                    );
                }
            }
            Action::StoreIfAny { binding, at, value } => {
                let mut any = 0;
                a.each(count, |_, word| any |= word);
                if any != 0 {
                    let place = scope.buffer(binding).add(at as usize);
                    // Other threads may write the same number.
                    AtomicU32::from_ptr(place).store(value, Ordering::Relaxed);
                }
            }
            Action::End => a.each(count, |at, word| *scope.ended.add(at) |= word),
            // The others are no moves.
            Action::Number(_)
            | Action::Numbers(_)
            | Action::Param { .. }
            | Action::Place(_)
            | Action::First
            | Action::Pass(_)
            | Action::Op(..) => {}
        }
    }
}
