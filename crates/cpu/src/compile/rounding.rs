//! What Cranelift calls where a CPU of x86-64 has no SSE4.1 (rounding to whole numbers) or no FMA3. The
//! functions of the system's library would do for most numbers. But a program that is linked statically does
//! not find them by name, and some of them look at bits, and so do not know of the mode in which subnormal
//! numbers are zeros.

use cranelift_jit::JITBuilder;

use crate::native;

/// From here on all numbers are whole.
const WHOLE: f32 = 8_388_608.0;

/// Gives the functions the names that Cranelift calls them by.
pub(super) fn define(builder: &mut JITBuilder) {
    builder.symbol("floorf", floor as *const u8);
    builder.symbol("ceilf", ceil as *const u8);
    builder.symbol("truncf", trunc as *const u8);
    builder.symbol("nearbyintf", nearest as *const u8);
    builder.symbol("fmaf", fused as *const u8);
}

/// Returns whether this is one of the functions.
#[cfg(feature = "targets")]
pub(super) fn is_known(target: &cranelift_codegen::FinalizedRelocTarget) -> bool {
    use cranelift_codegen::FinalizedRelocTarget::ExternalName;
    use cranelift_codegen::ir::{ExternalName::LibCall, LibCall::*};
    matches!(target, ExternalName(LibCall(FloorF32 | CeilF32 | TruncF32 | NearestF32 | FmaF32)))
}

extern "C" fn fused(x: f32, y: f32, z: f32) -> f32 {
    native::fused(x, y, z)
}

/// Rounds to the nearest whole number, of two to the even one.
extern "C" fn nearest(x: f32) -> f32 {
    let size = x.abs();
    if size < WHOLE {
        ((size + WHOLE) - WHOLE).copysign(x)
    } else if x.is_nan() {
        // As the instructions do, it makes a signaling one quiet.
        x + x
    } else {
        x
    }
}

extern "C" fn floor(x: f32) -> f32 {
    let near = nearest(x);
    if near > x { (near - 1.0).copysign(x) } else { near }
}

extern "C" fn ceil(x: f32) -> f32 {
    let near = nearest(x);
    if near < x { (near + 1.0).copysign(x) } else { near }
}

extern "C" fn trunc(x: f32) -> f32 {
    if x < 0.0 { ceil(x) } else { floor(x) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_as_the_language_rounds_them() {
        let all = (0..u32::MAX).step_by(4099).map(f32::from_bits);
        let ties = (-70_000..70_000).map(|n| n as f32 / 4.0);
        let ends = [WHOLE - 0.5, WHOLE, 0.5 - f32::EPSILON / 4.0, f32::INFINITY, 0.0, f32::NAN, 1e-45];
        for x in all.chain(ties).chain(ends.into_iter().flat_map(|x| [x, -x])) {
            let pairs = [
                (nearest(x), x.round_ties_even()),
                (floor(x), x.floor()),
                (ceil(x), x.ceil()),
                (trunc(x), x.trunc()),
            ];
            for (own, expected) in pairs {
                assert!(own.to_bits() == expected.to_bits() || x.is_nan() && own.is_nan(), "{x:e}: {own:e}");
            }
        }
    }
}
