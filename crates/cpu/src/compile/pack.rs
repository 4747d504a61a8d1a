//! Vectors of scalars that were computed in the same way: kernels compute the four elements of a vector one
//! by one, and what is done to all four is done to the vector here. The operations on scalars are then used
//! by nothing, and Cranelift leaves them out.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{self, InstBuilder, InstructionData, MemFlagsData, Opcode, ValueDef, types};

use super::translator::Writer;
use super::value::Lane;

/// The four components of a vector.
type Four = [ir::Value; 4];

/// How deep an expression is looked into.
const DEPTH: usize = 200;

/// How a scalar was computed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Origin {
    Float(u32),
    Integer(i64),
    Lane(ir::Value, u8),
    Unary(Opcode, ir::Value),
    Bits(ir::Value),
    Binary(Opcode, [ir::Value; 2]),
    Integers(IntCC, [ir::Value; 2]),
    Floats(FloatCC, [ir::Value; 2]),
    Select([ir::Value; 3]),
    Fma([ir::Value; 3]),
    Other,
}

/// What a vector was made of.
#[derive(Clone, Copy, Debug, Default)]
struct Effort {
    /// The operations on vectors.
    vectors: usize,
    /// The vectors that were put together from scalars.
    composed: usize,
}

impl Writer<'_, '_> {
    /// Returns the vector of these scalars, if what they come from is mostly operations on vectors.
    pub fn packed(&mut self, scalars: Four) -> Option<ir::Value> {
        let mut effort = Effort::default();
        let before = self.packs.clone();
        let vector = self.pack(scalars, DEPTH, &mut effort);
        let pays = effort.composed == 0 || effort.vectors >= 4 * effort.composed;
        if !pays {
            self.packs = before;
        }
        pays.then_some(vector)
    }

    /// Returns the scalar that this one has become: a component of a vector.
    pub fn current(&mut self, scalar: ir::Value) -> ir::Value {
        match self.packs.lanes.get(&scalar) {
            Some(&(vector, lane)) => self.lane(vector, Lane::Known(lane)),
            None => scalar,
        }
    }

    fn pack(&mut self, scalars: Four, depth: usize, effort: &mut Effort) -> ir::Value {
        if let Some(&known) = self.packs.vectors.get(&scalars) {
            return known;
        }
        let vector = match self.by_operation(scalars, depth, effort) {
            Some(vector) => {
                for (lane, scalar) in scalars.into_iter().enumerate() {
                    let is_number = matches!(self.origin(scalar), Origin::Float(_) | Origin::Integer(_));
                    if scalars.iter().any(|other| *other != scalars[0]) && !is_number && !self.is_lane(scalar)
                    {
                        self.packs.lanes.insert(scalar, (vector, lane as u8));
                    }
                }
                vector
            }
            None => {
                effort.composed += 1;
                self.composed(scalars)
            }
        };
        self.packs.vectors.insert(scalars, vector);
        vector
    }

    fn is_lane(&self, scalar: ir::Value) -> bool {
        matches!(self.origin(scalar), Origin::Lane(..)) || self.ty(scalar) == types::I8
    }

    /// Returns the type of the vector of four such scalars. A boolean is 32 bits there.
    fn vector_type(&self, scalar: ir::Value) -> Option<ir::Type> {
        match self.ty(scalar) {
            types::F32 => Some(types::F32X4),
            types::I32 | types::I8 => Some(types::I32X4),
            _ => None,
        }
    }

    /// Returns a scalar as a lane.
    fn widened(&mut self, scalar: ir::Value) -> ir::Value {
        if self.ty(scalar) != types::I8 {
            return scalar;
        }
        let wide = self.b.ins().uextend(types::I32, scalar);
        self.b.ins().ineg(wide)
    }

    fn composed(&mut self, scalars: Four) -> ir::Value {
        let ty = self.vector_type(scalars[0]).unwrap_or(types::I32X4);
        let first = self.widened(scalars[0]);
        let mut vector = self.b.ins().splat(ty, first);
        for (lane, scalar) in scalars.into_iter().enumerate().skip(1) {
            let scalar = self.widened(scalar);
            vector = self.b.ins().insertlane(vector, scalar, lane as u8);
        }
        vector
    }

    fn origin(&self, scalar: ir::Value) -> Origin {
        if let Some(&parts) = self.selects.get(&scalar) {
            return Origin::Select(parts);
        }
        let ValueDef::Result(inst, 0) = self.b.func.dfg.value_def(scalar) else { return Origin::Other };
        match self.b.func.dfg.insts[inst] {
            InstructionData::UnaryIeee32 { imm, .. } => Origin::Float(imm.bits()),
            InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => Origin::Integer(imm.bits()),
            InstructionData::BinaryImm8 { opcode: Opcode::Extractlane, arg, imm } => Origin::Lane(arg, imm),
            InstructionData::Unary { opcode, arg } => Origin::Unary(opcode, arg),
            InstructionData::LoadNoOffset { opcode: Opcode::Bitcast, arg, .. } => Origin::Bits(arg),
            InstructionData::Binary { opcode, args } => Origin::Binary(opcode, args),
            InstructionData::IntCompare { cond, args, .. } => Origin::Integers(cond, args),
            InstructionData::FloatCompare { cond, args, .. } => Origin::Floats(cond, args),
            InstructionData::Ternary { opcode: Opcode::Select, args } => Origin::Select(args),
            InstructionData::Ternary { opcode: Opcode::Fma, args } => Origin::Fma(args),
            _ => Origin::Other,
        }
    }

    /// Returns the vector, if all scalars come from the same operation.
    fn by_operation(&mut self, scalars: Four, depth: usize, effort: &mut Effort) -> Option<ir::Value> {
        let ty = self.vector_type(scalars[0])?;
        if scalars.iter().any(|scalar| self.ty(*scalar) != self.ty(scalars[0])) {
            return None;
        }
        if scalars.iter().all(|scalar| *scalar == scalars[0]) {
            let scalar = self.widened(scalars[0]);
            return Some(self.splat_of(ty, scalar));
        }
        let origins = scalars.map(|scalar| self.origin(scalar));
        let deeper = depth.checked_sub(1)?;
        let is_bool = self.ty(scalars[0]) == types::I8;
        let found = match origins[0] {
            Origin::Float(bits) if origins.iter().all(|origin| *origin == Origin::Float(bits)) => {
                self.splat_of(ty, scalars[0])
            }
            Origin::Integer(bits) if origins.iter().all(|origin| *origin == Origin::Integer(bits)) => {
                let scalar = self.widened(scalars[0]);
                self.splat_of(ty, scalar)
            }
            Origin::Lane(vector, 0) if self.ty(vector) == ty => {
                let is_next = |(lane, origin): (usize, &Origin)| *origin == Origin::Lane(vector, lane as u8);
                if !origins.iter().enumerate().all(is_next) {
                    return None;
                }
                vector
            }
            Origin::Unary(opcode, _) => {
                let mut args = scalars;
                for (arg, origin) in args.iter_mut().zip(origins) {
                    let Origin::Unary(own, from) = origin else { return None };
                    if own != opcode {
                        return None;
                    }
                    *arg = from;
                }
                self.unary_of(opcode, ty, args, deeper, effort)?
            }
            Origin::Bits(_) => {
                let mut args = scalars;
                for (arg, origin) in args.iter_mut().zip(origins) {
                    let Origin::Bits(from) = origin else { return None };
                    *arg = from;
                }
                self.vector_type(args[0])?;
                if args.iter().any(|arg| self.ty(*arg) != self.ty(args[0])) {
                    return None;
                }
                let vector = self.pack(args, deeper, effort);
                let flags = MemFlagsData::new().with_endianness(ir::Endianness::Little);
                self.b.ins().bitcast(ty, flags, vector)
            }
            Origin::Binary(opcode, _) => {
                let (mut left, mut right) = (scalars, scalars);
                for lane in 0..4 {
                    let Origin::Binary(own, [a, b]) = origins[lane] else { return None };
                    if own != opcode {
                        return None;
                    }
                    (left[lane], right[lane]) = (a, b);
                }
                self.binary_of(opcode, is_bool, [left, right], deeper, effort)?
            }
            Origin::Integers(cond, _) => {
                let (mut left, mut right) = (scalars, scalars);
                for lane in 0..4 {
                    let Origin::Integers(own, [a, b]) = origins[lane] else { return None };
                    if own != cond || self.ty(a) != types::I32 {
                        return None;
                    }
                    (left[lane], right[lane]) = (a, b);
                }
                let (left, right) = (self.pack(left, deeper, effort), self.pack(right, deeper, effort));
                self.compared(cond, left, right)
            }
            Origin::Floats(cond, _) => {
                let (mut left, mut right) = (scalars, scalars);
                for lane in 0..4 {
                    let Origin::Floats(own, [a, b]) = origins[lane] else { return None };
                    if own != cond || self.ty(a) != types::F32 {
                        return None;
                    }
                    (left[lane], right[lane]) = (a, b);
                }
                let (left, right) = (self.pack(left, deeper, effort), self.pack(right, deeper, effort));
                self.b.ins().fcmp(cond, left, right)
            }
            Origin::Select(_) => {
                let mut parts = [scalars; 3];
                for lane in 0..4 {
                    let Origin::Select(args) = origins[lane] else { return None };
                    for (part, arg) in parts.iter_mut().zip(args) {
                        part[lane] = arg;
                    }
                }
                if parts[0].iter().any(|condition| self.ty(*condition) != types::I8) {
                    return None;
                }
                let [condition, yes, no] = parts.map(|part| self.pack(part, deeper, effort));
                self.chosen(ty, condition, yes, no)
            }
            Origin::Fma(_) => {
                let mut parts = [scalars; 3];
                for lane in 0..4 {
                    let Origin::Fma(args) = origins[lane] else { return None };
                    for (part, arg) in parts.iter_mut().zip(args) {
                        part[lane] = arg;
                    }
                }
                let [a, b, c] = parts.map(|part| self.pack(part, deeper, effort));
                self.b.ins().fma(a, b, c)
            }
            _ => return None,
        };
        effort.vectors += 1;
        Some(found)
    }

    fn unary_of(
        &mut self,
        opcode: Opcode,
        ty: ir::Type,
        args: Four,
        depth: usize,
        effort: &mut Effort,
    ) -> Option<ir::Value> {
        self.vector_type(args[0])?;
        if args.iter().any(|arg| self.ty(*arg) != self.ty(args[0])) {
            return None;
        }
        if opcode == Opcode::Uextend && (self.ty(args[0]) != types::I8 || ty != types::I32X4) {
            return None;
        }
        let known = [
            Opcode::Fneg,
            Opcode::Fabs,
            Opcode::Sqrt,
            Opcode::Floor,
            Opcode::Ceil,
            Opcode::Trunc,
            Opcode::Nearest,
            Opcode::Ineg,
            Opcode::Bnot,
            Opcode::Uextend,
            Opcode::FcvtFromSint,
            Opcode::FcvtFromUint,
            Opcode::FcvtToSintSat,
            Opcode::FcvtToUintSat,
        ];
        if !known.contains(&opcode) {
            return None;
        }
        let x = self.pack(args, depth, effort);
        Some(match opcode {
            Opcode::Fneg => self.negated(x),
            Opcode::Fabs => self.b.ins().fabs(x),
            Opcode::Sqrt => self.b.ins().sqrt(x),
            Opcode::Floor => self.b.ins().floor(x),
            Opcode::Ceil => self.b.ins().ceil(x),
            Opcode::Trunc => self.b.ins().trunc(x),
            Opcode::Nearest => self.b.ins().nearest(x),
            Opcode::Ineg => self.b.ins().ineg(x),
            Opcode::Bnot => self.b.ins().bnot(x),
            Opcode::FcvtFromSint => self.b.ins().fcvt_from_sint(types::F32X4, x),
            Opcode::FcvtFromUint => self.b.ins().fcvt_from_uint(types::F32X4, x),
            Opcode::FcvtToSintSat => self.b.ins().fcvt_to_sint_sat(types::I32X4, x),
            Opcode::FcvtToUintSat => self.b.ins().fcvt_to_uint_sat(types::I32X4, x),
            // A boolean becomes 0 or 1.
            _ => {
                let one = self.number(types::I32, 1);
                let one = self.splat_of(types::I32X4, one);
                self.b.ins().band(x, one)
            }
        })
    }

    fn binary_of(
        &mut self,
        opcode: Opcode,
        is_bool: bool,
        [left, right]: [Four; 2],
        depth: usize,
        effort: &mut Effort,
    ) -> Option<ir::Value> {
        let shifts = [Opcode::Ishl, Opcode::Ushr, Opcode::Sshr];
        if shifts.contains(&opcode) {
            let by = self.origin(right[0]);
            let is_same = right.iter().all(|other| *other == right[0] || self.origin(*other) == by);
            let is_number = matches!(by, Origin::Integer(_)) || right.iter().all(|other| *other == right[0]);
            if is_bool || !is_same || !is_number {
                return None;
            }
            let x = self.pack(left, depth, effort);
            return Some(match opcode {
                Opcode::Ishl => self.b.ins().ishl(x, right[0]),
                Opcode::Ushr => self.b.ins().ushr(x, right[0]),
                _ => self.b.ins().sshr(x, right[0]),
            });
        }
        if is_bool {
            let is_not = |writer: &Self| {
                right.iter().all(|other| writer.origin(*other) == Origin::Integer(1))
                    && opcode == Opcode::Bxor
            };
            if is_not(self) {
                let x = self.pack(left, depth, effort);
                return Some(self.b.ins().bnot(x));
            }
        }
        let known = [
            Opcode::Fadd,
            Opcode::Fsub,
            Opcode::Fmul,
            Opcode::Fdiv,
            Opcode::Iadd,
            Opcode::Isub,
            Opcode::Imul,
            Opcode::Band,
            Opcode::Bor,
            Opcode::Bxor,
            Opcode::Smin,
            Opcode::Smax,
            Opcode::Umin,
            Opcode::Umax,
        ];
        if !known.contains(&opcode) {
            return None;
        }
        let (a, b) = (self.pack(left, depth, effort), self.pack(right, depth, effort));
        Some(match opcode {
            Opcode::Fadd => self.b.ins().fadd(a, b),
            Opcode::Fsub => self.b.ins().fsub(a, b),
            Opcode::Fmul => self.b.ins().fmul(a, b),
            Opcode::Fdiv => self.b.ins().fdiv(a, b),
            Opcode::Iadd => self.b.ins().iadd(a, b),
            Opcode::Isub => self.b.ins().isub(a, b),
            Opcode::Imul => self.b.ins().imul(a, b),
            Opcode::Band => self.b.ins().band(a, b),
            Opcode::Bor => self.b.ins().bor(a, b),
            Opcode::Bxor => self.b.ins().bxor(a, b),
            Opcode::Smin => self.b.ins().smin(a, b),
            Opcode::Smax => self.b.ins().smax(a, b),
            Opcode::Umin => self.b.ins().umin(a, b),
            _ => self.b.ins().umax(a, b),
        })
    }

    /// Returns one value or the other. The CPU has no such instruction for floats, for which Cranelift
    /// branches: if floats decide, nobody can foresee how, and masks choose instead.
    pub fn selected(&mut self, condition: ir::Value, yes: ir::Value, no: ir::Value) -> ir::Value {
        let Origin::Floats(how, [a, b]) = self.origin(condition) else {
            return self.b.ins().select(condition, yes, no);
        };
        if self.ty(yes) != types::F32 || self.ty(a) != types::F32 || self.is_extreme(condition, [yes, no]) {
            return self.b.ins().select(condition, yes, no);
        }
        let [a, b, one, other] = [a, b, yes, no].map(|x| self.b.ins().scalar_to_vector(types::F32X4, x));
        let mask = self.b.ins().fcmp(how, a, b);
        let mask = self.bits_as(mask, types::F32X4);
        let vector = self.b.ins().bitselect(mask, one, other);
        let found = self.b.ins().extractlane(vector, 0);
        self.selects.insert(found, [condition, yes, no]);
        found
    }

    /// Returns whether this is the lesser or the greater of two floats, for which x86-64 has instructions.
    /// They take subnormal numbers for 0 if the thread does, so it is these instructions everywhere, and not
    /// masks in one place.
    fn is_extreme(&self, condition: ir::Value, [yes, no]: [ir::Value; 2]) -> bool {
        let is_less = |sides| self.origin(condition) == Origin::Floats(FloatCC::LessThan, sides);
        is_less([yes, no]) || is_less([no, yes])
    }

    /// Returns lane by lane one value or the other.
    pub fn chosen(&mut self, ty: ir::Type, condition: ir::Value, yes: ir::Value, no: ir::Value) -> ir::Value {
        let is_zero = |writer: &Self, vector: ir::Value| {
            let scalar = writer.splats.get(&vector);
            scalar
                .is_some_and(|scalar| matches!(writer.origin(*scalar), Origin::Float(0) | Origin::Integer(0)))
        };
        let is_extreme = self.is_extreme(condition, [yes, no]);
        let condition = self.bits_as(condition, ty);
        if is_extreme {
            return self.b.ins().bitselect(condition, yes, no);
        }
        if is_zero(self, yes) {
            return self.b.ins().band_not(no, condition);
        }
        if is_zero(self, no) {
            return self.b.ins().band(yes, condition);
        }
        self.b.ins().bitselect(condition, yes, no)
    }
}
