//! Built-in functions and conversions.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{self, AbiParam, InstBuilder, Signature, types};
use naga::{MathFunction, TypeInner};

use super::Stop;
use super::arithmetic::Kind;
use super::translator::Writer;
use super::value::{Lane, Val};
use crate::native::{self, Code, Rounding};

impl Writer<'_, '_> {
    /// Returns the matrix of this type whose columns are the rows of another.
    pub fn transpose(&mut self, to: &TypeInner, of: &Val) -> Result<Val, Stop> {
        let (TypeInner::Matrix { columns, rows, scalar }, Val::Many(from)) = (to, of) else {
            return Err(Stop::unsupported("transposing what is no matrix"));
        };
        let column = TypeInner::Vector { size: *rows, scalar: *scalar };
        if let [Val::One(a), Val::One(b), Val::One(c), Val::One(d)] = from[..]
            && *columns as u32 == 4
        {
            let ty = self.ty(a);
            let low = [self.shuffle(ty, a, b, [0, 4, 1, 5]), self.shuffle(ty, c, d, [0, 4, 1, 5])];
            let high = [self.shuffle(ty, a, b, [2, 6, 3, 7]), self.shuffle(ty, c, d, [2, 6, 3, 7])];
            let columns =
                [(low, [0, 1, 4, 5]), (low, [2, 3, 6, 7]), (high, [0, 1, 4, 5]), (high, [2, 3, 6, 7])]
                    .map(|([x, y], lanes)| Val::One(self.shuffle(ty, x, y, lanes)));
            return Ok(Val::Many(columns.into()));
        }
        let row = TypeInner::Vector { size: *columns, scalar: *scalar };
        let mut scalars = Vec::new();
        for part in from.iter() {
            scalars.push(self.scalars(&row, part)?);
        }
        let mut found = Vec::new();
        for at in 0..*columns as usize {
            let own: Vec<_> = scalars.iter().map(|row| row[at]).collect();
            found.push(self.vector(&column, &own)?);
        }
        Ok(Val::Many(found.into()))
    }

    /// Returns a built-in function of registers.
    pub fn function(&mut self, fun: MathFunction, kind: Kind, x: &[ir::Value]) -> Result<ir::Value, Stop> {
        let unknown = || Stop::unsupported(format!("the function {fun:?}"));
        let ty = self.ty(x[0]);
        if kind == Kind::Float {
            return Ok(match fun {
                MathFunction::Fma if self.plan.mode.rounding == Rounding::Fused => {
                    self.b.ins().fma(x[0], x[1], x[2])
                }
                MathFunction::Fma => {
                    let product = self.b.ins().fmul(x[0], x[1]);
                    self.b.ins().fadd(product, x[2])
                }
                MathFunction::Abs => self.b.ins().fabs(x[0]),
                MathFunction::Sqrt => self.b.ins().sqrt(x[0]),
                MathFunction::Floor => self.b.ins().floor(x[0]),
                MathFunction::Ceil => self.b.ins().ceil(x[0]),
                MathFunction::Trunc => self.b.ins().trunc(x[0]),
                MathFunction::Round => self.b.ins().nearest(x[0]),
                MathFunction::Min => self.lesser(x[0], x[1]),
                MathFunction::Max => self.greater(x[0], x[1]),
                MathFunction::Clamp => {
                    let low = self.greater(x[0], x[1]);
                    self.lesser(low, x[2])
                }
                MathFunction::Saturate => {
                    let [zero, one] = [0.0, 1.0].map(|number| {
                        let scalar = self.b.ins().f32const(number);
                        if ty.is_vector() { self.splat_of(ty, scalar) } else { scalar }
                    });
                    let low = self.greater(x[0], zero);
                    self.lesser(low, one)
                }
                MathFunction::InverseSqrt => {
                    let one = self.b.ins().f32const(1.0);
                    let one = if ty.is_vector() { self.splat_of(ty, one) } else { one };
                    let root = self.b.ins().sqrt(x[0]);
                    self.b.ins().fdiv(one, root)
                }
                MathFunction::Sign => {
                    let [zero, one, minus] = [0.0, 1.0, -1.0].map(|number| {
                        let scalar = self.b.ins().f32const(number);
                        if ty.is_vector() { self.splat_of(ty, scalar) } else { scalar }
                    });
                    let above = self.b.ins().fcmp(FloatCC::GreaterThan, x[0], zero);
                    let below = self.b.ins().fcmp(FloatCC::LessThan, x[0], zero);
                    let found = self.either(below, minus, x[0]);
                    self.either(above, one, found)
                }
                MathFunction::Fract => {
                    let whole = self.b.ins().floor(x[0]);
                    self.b.ins().fsub(x[0], whole)
                }
                MathFunction::Mix => {
                    let one = self.b.ins().f32const(1.0);
                    let one = if ty.is_vector() { self.splat_of(ty, one) } else { one };
                    let rest = self.b.ins().fsub(one, x[2]);
                    let (a, b) = (self.b.ins().fmul(x[0], rest), self.b.ins().fmul(x[1], x[2]));
                    self.b.ins().fadd(a, b)
                }
                _ => match native::function(fun) {
                    Some(code) => self.called(code, x),
                    None => return Err(unknown()),
                },
            });
        }
        let is_signed = kind == Kind::Signed;
        Ok(match fun {
            MathFunction::Min if is_signed => self.b.ins().smin(x[0], x[1]),
            MathFunction::Min => self.b.ins().umin(x[0], x[1]),
            MathFunction::Max if is_signed => self.b.ins().smax(x[0], x[1]),
            MathFunction::Max => self.b.ins().umax(x[0], x[1]),
            MathFunction::Clamp => {
                let low = self.function(MathFunction::Max, kind, &x[..2])?;
                self.function(MathFunction::Min, kind, &[low, x[2]])?
            }
            MathFunction::Abs if is_signed => self.b.ins().iabs(x[0]),
            MathFunction::Abs => x[0],
            _ if ty.is_vector() => {
                let vectors = [x[0]];
                return self.by_lane(&vectors, &mut |writer, x| writer.function(fun, kind, x));
            }
            MathFunction::CountOneBits => self.b.ins().popcnt(x[0]),
            MathFunction::CountLeadingZeros => self.b.ins().clz(x[0]),
            MathFunction::CountTrailingZeros => self.b.ins().ctz(x[0]),
            MathFunction::ReverseBits => self.b.ins().bitrev(x[0]),
            MathFunction::FirstLeadingBit if !is_signed => {
                let zeros = self.b.ins().clz(x[0]);
                let last = self.b.ins().iconst(ty, i64::from(ty.bits()) - 1);
                self.b.ins().isub(last, zeros)
            }
            _ => return Err(unknown()),
        })
    }

    /// Calls native code, for vectors lane by lane.
    fn called(&mut self, code: Code, x: &[ir::Value]) -> ir::Value {
        if self.ty(x[0]).is_vector() {
            let lanes = [0, 1, 2, 3].map(|lane| {
                let own: Vec<_> = x.iter().map(|vector| self.lane(*vector, Lane::Known(lane))).collect();
                self.called(code, &own)
            });
            let mut vector = self.b.ins().splat(types::F32X4, lanes[0]);
            for (lane, scalar) in lanes.into_iter().enumerate().skip(1) {
                vector = self.b.ins().insertlane(vector, scalar, lane as u8);
            }
            return vector;
        }
        let mut signature = Signature::new(self.b.func.signature.call_conv);
        signature.params.extend(x.iter().map(|_| AbiParam::new(types::F32)));
        signature.returns.push(AbiParam::new(types::F32));
        let signature = self.b.import_signature(signature);
        let address = self.b.ins().iconst(types::I64, code.address() as i64);
        let call = self.b.ins().call_indirect(signature, address, x);
        self.b.inst_results(call)[0]
    }

    /// Returns `a` where it is less than `b`, else `b`.
    fn lesser(&mut self, a: ir::Value, b: ir::Value) -> ir::Value {
        let is_so = self.b.ins().fcmp(FloatCC::LessThan, a, b);
        self.either(is_so, a, b)
    }

    /// Returns `a` where it is greater than `b`, else `b`. Cranelift knows the CPU's instruction by
    /// this comparison alone.
    fn greater(&mut self, a: ir::Value, b: ir::Value) -> ir::Value {
        let is_so = self.b.ins().fcmp(FloatCC::LessThan, b, a);
        self.either(is_so, a, b)
    }

    /// Returns one value or the other, for vectors lane by lane.
    fn either(&mut self, condition: ir::Value, yes: ir::Value, no: ir::Value) -> ir::Value {
        let ty = self.ty(yes);
        if !ty.is_vector() {
            return self.selected(condition, yes, no);
        }
        self.chosen(ty, condition, yes, no)
    }

    /// Returns the same bits as a number of another kind.
    pub fn reinterpreted(&mut self, x: ir::Value, to: Kind) -> ir::Value {
        let ty = match (self.ty(x), to) {
            (types::F32, Kind::Signed | Kind::Unsigned) => types::I32,
            (types::I32, Kind::Float) => types::F32,
            (types::F32X4, Kind::Signed | Kind::Unsigned) => types::I32X4,
            (types::I32X4, Kind::Float) => types::F32X4,
            _ => return x,
        };
        self.bits_as(x, ty)
    }

    /// Converts a number. What is too large for an integer becomes the largest or the smallest one.
    pub fn converted(&mut self, from: Kind, to: Kind, wide: bool, x: ir::Value) -> Result<ir::Value, Stop> {
        let ty = self.ty(x);
        let (word, float) =
            if ty.is_vector() { (types::I32X4, types::F32X4) } else { (types::I32, types::F32) };
        Ok(match (from, to) {
            (Kind::Float, Kind::Float) | (Kind::Bool, Kind::Bool) => x,
            (Kind::Float, Kind::Signed | Kind::Unsigned) if wide => {
                return Err(Stop::unsupported("64-bit integers of floats"));
            }
            (Kind::Float, Kind::Signed) => self.b.ins().fcvt_to_sint_sat(word, x),
            (Kind::Float, Kind::Unsigned) => self.b.ins().fcvt_to_uint_sat(word, x),
            (Kind::Float, Kind::Bool) => {
                let zero = self.b.ins().f32const(0.0);
                let zero = if ty.is_vector() { self.splat_of(ty, zero) } else { zero };
                self.b.ins().fcmp(FloatCC::NotEqual, x, zero)
            }
            (Kind::Bool, _) if wide && ty.is_vector() => {
                return Err(Stop::unsupported("vectors of 64-bit integers"));
            }
            (Kind::Bool, _) => {
                let number = if ty.is_vector() {
                    let one = self.b.ins().iconst(types::I32, 1);
                    let one = self.splat_of(types::I32X4, one);
                    self.b.ins().band(x, one)
                } else {
                    match self.known_number(x) {
                        Some(known) => self.number(types::I32, known),
                        None => self.b.ins().uextend(types::I32, x),
                    }
                };
                match to {
                    Kind::Float => self.b.ins().fcvt_from_uint(float, number),
                    _ if wide => self.b.ins().uextend(types::I64, number),
                    _ => number,
                }
            }
            (_, Kind::Bool) => {
                let zero = self.b.ins().iconst(if ty.is_vector() { types::I32 } else { ty }, 0);
                let zero = if ty.is_vector() { self.splat_of(ty, zero) } else { zero };
                self.b.ins().icmp(IntCC::NotEqual, x, zero)
            }
            (Kind::Signed, Kind::Float) => self.b.ins().fcvt_from_sint(float, x),
            (Kind::Unsigned, Kind::Float) => self.b.ins().fcvt_from_uint(float, x),
            (_, Kind::Signed | Kind::Unsigned) => match (ty, wide) {
                (types::I64, false) => self.b.ins().ireduce(types::I32, x),
                (types::I32, true) if from == Kind::Signed => self.b.ins().sextend(types::I64, x),
                (types::I32, true) => self.b.ins().uextend(types::I64, x),
                (_, true) if ty.is_vector() => return Err(Stop::unsupported("vectors of 64-bit integers")),
                _ => x,
            },
        })
    }
}
