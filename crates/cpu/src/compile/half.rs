//! Numbers of 16 bits. In registers they are f32 that f16 holds; in memory that kernels share they have their
//! own bits. Kernels store and load them and convert them, and compute with f32.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, InstBuilder, MemFlagsData, types};
use naga::{ScalarKind, TypeInner};

use super::translator::Writer;

/// Returns whether a value is a number of 16 bits, or a vector of them.
pub(super) fn is_half(inner: &TypeInner) -> bool {
    inner.scalar().is_some_and(|scalar| scalar.kind == ScalarKind::Float && scalar.width == 2)
}

impl Writer<'_, '_> {
    /// Returns an integer in the place of each component of `like`.
    fn all(&mut self, like: ir::Value, number: u32) -> ir::Value {
        let scalar = self.number(types::I32, number.into());
        if self.ty(like).is_vector() { self.splat_of(types::I32X4, scalar) } else { scalar }
    }

    fn float(&mut self, like: ir::Value, number: f32) -> ir::Value {
        let scalar = self.b.ins().f32const(number);
        if self.ty(like).is_vector() { self.splat_of(types::F32X4, scalar) } else { scalar }
    }

    fn as_bits(&mut self, x: ir::Value) -> ir::Value {
        let ty = if self.ty(x).is_vector() { types::I32X4 } else { types::I32 };
        self.bits_as(x, ty)
    }

    fn as_float(&mut self, x: ir::Value) -> ir::Value {
        let ty = if self.ty(x).is_vector() { types::F32X4 } else { types::F32 };
        self.bits_as(x, ty)
    }

    fn one_of(&mut self, condition: ir::Value, yes: ir::Value, no: ir::Value) -> ir::Value {
        let ty = self.ty(yes);
        if ty.is_vector() { self.chosen(ty, condition, yes, no) } else { self.selected(condition, yes, no) }
    }

    /// Returns the numbers of these bits of 16 in 32.
    fn widened_half(&mut self, half: ir::Value) -> ir::Value {
        let [mask, sign, thousand, top, shift, infinite] =
            [0x7fff, 0x8000, 0x400, 0x7c00, 112 << 23, 0x7f80_0000].map(|number| self.all(half, number));
        let [by13, by16] = [13, 16].map(|by| self.number(types::I32, by));
        let size = self.b.ins().band(half, mask);
        let sign = self.b.ins().band(half, sign);
        let sign = self.b.ins().ishl(sign, by16);
        let shifted = self.b.ins().ishl(size, by13);
        let normal = self.b.ins().iadd(shifted, shift);
        let endless = self.b.ins().bor(shifted, infinite);
        // Below the normal numbers: so many times 2^-24.
        let float = if self.ty(half).is_vector() { types::F32X4 } else { types::F32 };
        let count = self.b.ins().fcvt_from_sint(float, size);
        let unit = self.float(half, 1.0 / (1 << 24) as f32);
        let small = self.b.ins().fmul(count, unit);
        let small = self.as_bits(small);
        let is_small = self.b.ins().icmp(IntCC::SignedLessThan, size, thousand);
        let is_endless = self.b.ins().icmp(IntCC::SignedGreaterThanOrEqual, size, top);
        let found = self.one_of(is_small, small, normal);
        let found = self.one_of(is_endless, endless, found);
        let found = self.b.ins().bor(found, sign);
        self.as_float(found)
    }

    /// Returns the bits of the nearest numbers of 16 bits, in 32.
    fn narrowed_half(&mut self, x: ir::Value) -> ir::Value {
        let bits = self.as_bits(x);
        let [mask, sign, least, last, infinite, top, nan, down, round, one] =
            [0x7fff_ffff, 0x8000, 0x3880_0000, 0x477f_f000, 0x7f80_0000, 0x7c00, 0x7e00, 112 << 23, 0xfff, 1]
                .map(|number| self.all(bits, number));
        let [by13, by16] = [13, 16].map(|by| self.number(types::I32, by));
        let size = self.b.ins().band(bits, mask);
        let above = self.b.ins().ushr(bits, by16);
        let sign = self.b.ins().band(above, sign);
        // The unit in the last place of 1/2 is 2^-24, so that the sum is rounded to that.
        let half = self.float(bits, 0.5);
        let magnitude = self.as_float(size);
        let small = self.b.ins().fadd(magnitude, half);
        let (small, base) = (self.as_bits(small), self.as_bits(half));
        let small = self.b.ins().isub(small, base);
        let odd = self.b.ins().ushr(size, by13);
        let odd = self.b.ins().band(odd, one);
        let normal = self.b.ins().isub(size, down);
        let normal = self.b.ins().iadd(normal, round);
        let normal = self.b.ins().iadd(normal, odd);
        let normal = self.b.ins().ushr(normal, by13);
        let is_small = self.b.ins().icmp(IntCC::SignedLessThan, size, least);
        let is_endless = self.b.ins().icmp(IntCC::SignedGreaterThanOrEqual, size, last);
        let is_nan = self.b.ins().icmp(IntCC::SignedGreaterThan, size, infinite);
        let found = self.one_of(is_small, small, normal);
        let found = self.one_of(is_endless, top, found);
        let found = self.one_of(is_nan, nan, found);
        self.b.ins().bor(found, sign)
    }

    /// Returns the nearest numbers that f16 holds.
    pub fn rounded_half(&mut self, x: ir::Value) -> ir::Value {
        let half = self.narrowed_half(x);
        self.widened_half(half)
    }

    /// Loads a number or a vector of four.
    pub fn load_half(&mut self, is_vector: bool, flags: MemFlagsData, address: ir::Value) -> ir::Value {
        let half = if is_vector {
            let four = self.b.ins().load(types::I64, flags, address, 0);
            let vector = self.b.ins().scalar_to_vector(types::I64X2, four);
            let halves = self.bits_as(vector, types::I16X8);
            self.b.ins().uwiden_low(halves)
        } else {
            self.b.ins().uload16(types::I32, flags, address, 0)
        };
        self.widened_half(half)
    }

    /// Stores a number or a vector of four.
    pub fn store_half(&mut self, value: ir::Value, flags: MemFlagsData, address: ir::Value) {
        let half = self.narrowed_half(value);
        if self.ty(half).is_vector() {
            let halves = self.b.ins().unarrow(half, half);
            let words = self.bits_as(halves, types::I64X2);
            let four = self.b.ins().extractlane(words, 0);
            self.b.ins().store(flags, four, address, 0);
        } else {
            self.b.ins().istore16(flags, half, address, 0);
        }
    }
}
