//! Expressions.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, Endianness, InstBuilder, MemFlagsData, types};
use naga::{Expression, Handle, Literal, SwizzleComponent, TypeInner, VectorSize};

use super::Stop;
use super::memory::behind;
use super::translator::{Frame, Writer};
use super::value::{Lane, Pointer, Val, is_bool, leaf, parts};

impl<'m> Writer<'m, '_> {
    /// Returns the type of an expression.
    pub fn inner<'a>(&self, frame: &'a Frame<'m>, handle: Handle<Expression>) -> &'a TypeInner
    where
        'm: 'a,
    {
        frame.info[handle].ty.inner_with(&self.plan.module.types)
    }

    /// Returns the value of an expression.
    pub fn value(&mut self, frame: &mut Frame<'m>, handle: Handle<Expression>) -> Result<Val, Stop> {
        match frame.values[handle.index()].clone() {
            Some(Val::One(value)) => return Ok(Val::One(self.current(value))),
            Some(value) => return Ok(value),
            None if frame.bodies.iter().any(|body| body.skipped.contains(&handle)) => {
                return Err(Stop::unsupported("a value that `continue` may leave out"));
            }
            None => {}
        }
        // What is not emitted: constants, arguments and variables.
        self.evaluate(frame, handle)
    }

    /// Returns the value of an expression that is in one register.
    pub fn one(&mut self, frame: &mut Frame<'m>, handle: Handle<Expression>) -> Result<ir::Value, Stop> {
        match self.value(frame, handle)? {
            Val::One(value) => Ok(value),
            _ => Err(Stop::unsupported("a value with parts in the place of a scalar")),
        }
    }

    /// Returns where a pointer points.
    pub fn place_of(&mut self, frame: &mut Frame<'m>, handle: Handle<Expression>) -> Result<Pointer, Stop> {
        match self.value(frame, handle)? {
            Val::Pointer(pointer) => Ok(pointer),
            _ => Err(Stop::unsupported("a value in the place of a pointer")),
        }
    }

    /// Returns the number that an integer or a boolean is, if it is known.
    pub fn known_number(&self, value: ir::Value) -> Option<u64> {
        self.numbers.get(&value).copied()
    }

    /// Evaluates an expression.
    pub fn evaluate(&mut self, frame: &mut Frame<'m>, handle: Handle<Expression>) -> Result<Val, Stop> {
        let function = frame.function;
        let module = self.plan.module;
        Ok(match function.expressions[handle] {
            Expression::Literal(literal) => self.literal(literal)?,
            Expression::Constant(constant) => self.global_constant(module.constants[constant].init)?,
            Expression::ZeroValue(ty) => self.zero(&module.types[ty].inner)?,
            Expression::FunctionArgument(index) => frame.arguments[index as usize].clone(),
            Expression::GlobalVariable(variable) => {
                let known = self.globals[variable.index()].clone();
                Val::Pointer(known.ok_or_else(|| Stop::unsupported("a variable of another entry point"))?)
            }
            Expression::LocalVariable(local) => {
                let place = frame.locals[local.index()].clone();
                Val::Pointer(self.pointer(super::value::Root::Local(frame.number, local), &place))
            }
            Expression::Compose { ref components, .. } => {
                let mut values = Vec::new();
                for &component in components {
                    values.push(self.value(frame, component)?);
                }
                let inner = self.inner(frame, handle).clone();
                self.compose(&inner, values)?
            }
            Expression::Splat { value, .. } => {
                let scalar = self.one(frame, value)?;
                let inner = self.inner(frame, handle).clone();
                self.splat(&inner, scalar)?
            }
            Expression::Swizzle { size, vector, pattern } => {
                let of = self.value(frame, vector)?;
                let inner = self.inner(frame, handle).clone();
                self.swizzle(&inner, size, &of, pattern)?
            }
            Expression::Access { base, index } => {
                let number = self.one(frame, index)?;
                let number = self.index(number);
                let of = self.value(frame, base)?;
                let inner = self.inner(frame, base).clone();
                match self.known_number(number) {
                    Some(known) => {
                        let most = self.most(&inner)?;
                        self.part(&inner, &of, known.min(most) as u32)?
                    }
                    None => self.computed_part(&inner, &of, number)?,
                }
            }
            Expression::AccessIndex { base, index } => {
                let of = self.value(frame, base)?;
                let inner = self.inner(frame, base).clone();
                self.part(&inner, &of, index)?
            }
            Expression::Load { pointer } => {
                let from = self.place_of(frame, pointer)?;
                let inner = behind(module, self.inner(frame, pointer))?;
                self.load(&from, &inner)?
            }
            Expression::ArrayLength(array) => {
                let Pointer::Memory(memory) = self.place_of(frame, array)? else {
                    return Err(Stop::unsupported("the length of a variable"));
                };
                let Some(bound) = memory.bound else {
                    return Err(Stop::unsupported("the length of a variable"));
                };
                let inner = behind(module, self.inner(frame, array))?;
                let stride = parts(module, &inner, true)?.stride.unwrap_or(4);
                let bytes = self.b.ins().iadd_imm_s(bound, -memory.known);
                let count = self.b.ins().udiv_imm_s(bytes, stride as i64);
                Val::One(self.b.ins().ireduce(types::I32, count))
            }
            ref other => return self.operation(frame, handle, other),
        })
    }

    /// Returns an index in 32 bits: one of 64 that is larger is the largest.
    fn index(&mut self, number: ir::Value) -> ir::Value {
        if self.b.func.dfg.value_type(number) != types::I64 || self.known_number(number).is_some() {
            return number;
        }
        let most = self.b.ins().iconst(types::I64, i64::from(u32::MAX));
        let least = self.b.ins().umin(number, most);
        self.b.ins().ireduce(types::I32, least)
    }

    /// Returns a float. Cranelift computes with floats that it knows as IEEE 754 says, and a thread may take
    /// subnormal numbers for 0. So it does not see those whose quotient or product may be one.
    fn float_number(&mut self, x: f32) -> ir::Value {
        let size = x.abs();
        if size == 0.0 || (1e-12..1e12).contains(&size) {
            return self.b.ins().f32const(x);
        }
        let bits = self.b.ins().iconst(types::I32, i64::from(x.to_bits()));
        self.bits_as(bits, types::F32)
    }

    fn literal(&mut self, literal: Literal) -> Result<Val, Stop> {
        Ok(Val::One(match literal {
            Literal::F32(x) => self.float_number(x),
            Literal::F16(x) => self.float_number(x.to_f32()),
            Literal::U32(x) => self.number(types::I32, x.into()),
            Literal::I32(x) => self.number(types::I32, u64::from(x as u32)),
            Literal::Bool(x) => self.number(types::I8, x.into()),
            Literal::U64(x) => self.number(types::I64, x),
            Literal::I64(x) => self.number(types::I64, x as u64),
            other => return Err(Stop::unsupported(format!("the number {other:?}"))),
        }))
    }

    /// Returns the value of a constant of the module.
    pub fn global_constant(&mut self, handle: Handle<Expression>) -> Result<Val, Stop> {
        let module = self.plan.module;
        Ok(match module.global_expressions[handle] {
            Expression::Literal(literal) => self.literal(literal)?,
            Expression::Constant(constant) => self.global_constant(module.constants[constant].init)?,
            Expression::ZeroValue(ty) => self.zero(&module.types[ty].inner)?,
            Expression::Compose { ty, ref components } => {
                let values: Result<Vec<Val>, Stop> =
                    components.iter().map(|&component| self.global_constant(component)).collect();
                self.compose(&module.types[ty].inner, values?)?
            }
            Expression::Splat { size, value } => {
                let Val::One(scalar) = self.global_constant(value)? else {
                    return Err(Stop::unsupported("a constant"));
                };
                let of = match module.global_expressions[value] {
                    Expression::Literal(literal) => literal.scalar(),
                    _ => return Err(Stop::unsupported("a constant")),
                };
                self.splat(&TypeInner::Vector { size, scalar: of }, scalar)?
            }
            ref other => return Err(Stop::unsupported(format!("the constant {other:?}"))),
        })
    }

    /// Returns zeros of this type.
    pub fn zero(&mut self, inner: &TypeInner) -> Result<Val, Stop> {
        if let Some(ty) = leaf(inner)? {
            return Ok(Val::One(match ty {
                types::F32 => self.b.ins().f32const(0.0),
                types::F32X4 => {
                    let zero = self.b.ins().f32const(0.0);
                    self.splat_of(types::F32X4, zero)
                }
                types::I32X4 => {
                    let zero = self.number(types::I32, 0);
                    self.splat_of(types::I32X4, zero)
                }
                ty => self.number(ty, 0),
            }));
        }
        let found = parts(self.plan.module, inner, false)?;
        let values: Result<_, Stop> = (0..found.count)
            .map(|index| match found.part(index) {
                Some((_, part)) => self.zero(part),
                None => Err(Stop::unsupported("a part that is not there")),
            })
            .collect();
        Ok(Val::Many(values?))
    }

    /// Returns a vector of four in a register, all of whose components are this scalar.
    pub fn splat_of(&mut self, ty: ir::Type, scalar: ir::Value) -> ir::Value {
        let vector = self.b.ins().splat(ty, scalar);
        self.splats.insert(vector, scalar);
        vector
    }

    fn splat(&mut self, inner: &TypeInner, scalar: ir::Value) -> Result<Val, Stop> {
        Ok(match (leaf(inner)?, inner) {
            (Some(ty), _) => {
                let scalar = self.as_lane_of(scalar, is_bool(inner));
                Val::One(self.splat_of(ty, scalar))
            }
            (None, TypeInner::Vector { size, .. }) => {
                Val::Many((0..*size as u32).map(|_| Val::One(scalar)).collect())
            }
            _ => return Err(Stop::unsupported("a splat of no vector")),
        })
    }

    /// Returns the value that has these components.
    fn compose(&mut self, inner: &TypeInner, values: Vec<Val>) -> Result<Val, Stop> {
        let TypeInner::Vector { .. } = inner else { return Ok(Val::Many(values.into())) };
        let mut scalars = Vec::new();
        for value in values {
            match value {
                Val::One(value) => scalars.push(value),
                Val::Many(parts) => {
                    for part in parts.iter() {
                        match part {
                            Val::One(value) => scalars.push(*value),
                            _ => return Err(Stop::unsupported("a component with parts")),
                        }
                    }
                }
                Val::Pointer(_) => return Err(Stop::unsupported("a pointer as a component")),
            }
        }
        self.vector(inner, &scalars)
    }

    /// Returns a vector of these scalars.
    pub fn vector(&mut self, inner: &TypeInner, scalars: &[ir::Value]) -> Result<Val, Stop> {
        let Some(ty) = leaf(inner)? else {
            return Ok(Val::Many(scalars.iter().copied().map(Val::One).collect()));
        };
        if let [whole] = scalars {
            return Ok(Val::One(*whole));
        }
        let is_bool = is_bool(inner);
        let first = self.as_lane_of(scalars[0], is_bool);
        if scalars.iter().all(|scalar| *scalar == scalars[0]) {
            return Ok(Val::One(self.splat_of(ty, first)));
        }
        if let (false, &[a, b, c, d]) = (is_bool, scalars)
            && let Some(vector) = self.packed([a, b, c, d])
        {
            return Ok(Val::One(vector));
        }
        let mut vector = self.b.ins().splat(ty, first);
        for (at, scalar) in scalars.iter().enumerate().skip(1) {
            let scalar = self.as_lane_of(*scalar, is_bool);
            vector = self.b.ins().insertlane(vector, scalar, at as u8);
        }
        Ok(Val::One(vector))
    }

    /// Returns the components of a vector, or a scalar as its only one.
    pub fn scalars(&mut self, inner: &TypeInner, value: &Val) -> Result<Vec<ir::Value>, Stop> {
        match value {
            Val::One(value) if matches!(inner, TypeInner::Vector { .. }) => {
                let part = TypeInner::Scalar(inner.scalar().ok_or_else(|| Stop::unsupported("no scalar"))?);
                Ok((0..4)
                    .map(|lane| {
                        let scalar = self.lane(*value, Lane::Known(lane));
                        self.as_component(scalar, &part)
                    })
                    .collect())
            }
            Val::One(value) => Ok(vec![*value]),
            Val::Many(parts) => parts
                .iter()
                .map(|part| match part {
                    Val::One(value) => Ok(*value),
                    _ => Err(Stop::unsupported("a component with parts")),
                })
                .collect(),
            Val::Pointer(_) => Err(Stop::unsupported("a pointer as a value")),
        }
    }

    fn swizzle(
        &mut self,
        inner: &TypeInner,
        size: VectorSize,
        of: &Val,
        pattern: [SwizzleComponent; 4],
    ) -> Result<Val, Stop> {
        let lanes: Vec<u8> = pattern[..size as usize].iter().map(|component| *component as u8).collect();
        match of {
            Val::One(vector) => {
                if self.splats.contains_key(vector) && size == VectorSize::Quad {
                    return Ok(of.clone());
                }
                let ty = self.b.func.dfg.value_type(*vector);
                if size == VectorSize::Quad {
                    return Ok(Val::One(self.shuffle(
                        ty,
                        *vector,
                        *vector,
                        [0, 1, 2, 3].map(|at| lanes[at]),
                    )));
                }
                let part = TypeInner::Scalar(inner.scalar().ok_or_else(|| Stop::unsupported("no scalar"))?);
                let scalars: Vec<Val> = lanes
                    .into_iter()
                    .map(|lane| {
                        let scalar = self.lane(*vector, Lane::Known(lane));
                        Val::One(self.as_component(scalar, &part))
                    })
                    .collect();
                Ok(Val::Many(scalars.into()))
            }
            Val::Many(parts) => {
                let values = lanes.iter().map(|lane| parts[usize::from(*lane)].clone()).collect();
                self.compose(inner, values)
            }
            Val::Pointer(_) => Err(Stop::unsupported("components of a pointer")),
        }
    }

    /// Returns the vector of four of these components, which are counted through both vectors.
    pub fn shuffle(&mut self, ty: ir::Type, a: ir::Value, b: ir::Value, lanes: [u8; 4]) -> ir::Value {
        let mut mask = [0u8; 16];
        for (at, byte) in mask.iter_mut().enumerate() {
            *byte = lanes[at / 4] * 4 + (at % 4) as u8;
        }
        let mask = self.b.func.dfg.immediates.push(mask.as_slice().into());
        let (a, b) = (self.bits_as(a, types::I8X16), self.bits_as(b, types::I8X16));
        let found = self.b.ins().shuffle(a, b, mask);
        self.bits_as(found, ty)
    }

    /// Returns the same bits as another type.
    pub fn bits_as(&mut self, value: ir::Value, ty: ir::Type) -> ir::Value {
        if self.b.func.dfg.value_type(value) == ty {
            return value;
        }
        let flags = MemFlagsData::new().with_endianness(Endianness::Little);
        self.b.ins().bitcast(ty, flags, value)
    }

    /// Returns a scalar as a lane of a vector: booleans have another form there.
    fn as_lane_of(&mut self, scalar: ir::Value, is_bool: bool) -> ir::Value {
        if !is_bool {
            return scalar;
        }
        let wide = self.b.ins().uextend(types::I32, scalar);
        self.b.ins().ineg(wide)
    }

    /// As [`Writer::as_lane_of`], by the type of the scalar.
    pub fn as_lane(&mut self, scalar: ir::Value, inner: &TypeInner) -> ir::Value {
        self.as_lane_of(scalar, is_bool(inner))
    }

    /// Returns a lane of a vector as a scalar of this type.
    pub fn as_component(&mut self, lane: ir::Value, inner: &TypeInner) -> ir::Value {
        if is_bool(inner) && self.b.func.dfg.value_type(lane) == types::I32 {
            return self.b.ins().icmp_imm_s(IntCC::NotEqual, lane, 0);
        }
        lane
    }
}
