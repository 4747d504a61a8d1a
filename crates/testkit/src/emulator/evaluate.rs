//! The values of expressions.

use naga::{BinaryOperator, Expression, Handle, MathFunction, RelationalFunction, SwizzleComponent};

use super::group::{Frame, Group};
use super::module::Root;
use super::value::Value;

impl<'a> Group<'a, '_> {
    /// Returns the value of an expression for these invocations.
    pub fn evaluate(&mut self, frame: &Frame<'a>, handle: Handle<Expression>, active: &[u32]) -> Value {
        let body = frame.body;
        let at = body.function.expressions.get_span(handle);
        let node = &body.nodes[handle.index()];
        let (leaves, lanes, choices) = (node.leaves.len(), self.lanes, self.launch.choices);
        let value = |handle: Handle<Expression>| frame.value(handle).clone();
        let mut is_known = true;
        let mut known = |found: Option<u64>| {
            is_known &= found.is_some();
            found.unwrap_or(0)
        };
        let found = match body.function.expressions[handle] {
            Expression::FunctionArgument(_) if node.root.is_some() => Value::same(vec![0]),
            Expression::FunctionArgument(index) => frame.arguments[index as usize].clone(),
            Expression::GlobalVariable(_) | Expression::LocalVariable(_) => Value::same(vec![0]),
            Expression::Compose { ref components, .. } => {
                let parts: Vec<(Value, usize)> = components
                    .iter()
                    .map(|&part| (value(part), body.nodes[part.index()].leaves.len()))
                    .collect();
                let same = parts.iter().all(|(part, _)| part.is_same());
                let mut from = Vec::with_capacity(leaves);
                for (part, (_, count)) in parts.iter().enumerate() {
                    from.extend((0..*count).map(|leaf| (part, leaf)));
                }
                Value::collect(same, leaves, lanes, active, |leaf, lane| {
                    let (part, leaf) = from[leaf];
                    parts[part].0.get(leaf, lane)
                })
            }
            Expression::Access { base, index } => {
                return self.access(frame, handle, base, &value(index), active);
            }
            Expression::AccessIndex { base, .. } => {
                let (base, first) = (value(base), node.step as usize);
                if node.root.is_some() {
                    Value::collect(base.is_same(), 1, lanes, active, |_, lane| {
                        base.get(0, lane) + first as u64
                    })
                } else {
                    Value::collect(base.is_same(), leaves, lanes, active, |leaf, lane| {
                        base.get(first + leaf, lane)
                    })
                }
            }
            Expression::Splat { value: of, .. } => {
                let of = value(of);
                Value::collect(of.is_same(), leaves, lanes, active, |_, lane| of.get(0, lane))
            }
            Expression::Swizzle { vector, pattern, .. } => {
                let vector = value(vector);
                let component = |leaf: usize| match pattern[leaf] {
                    SwizzleComponent::X => 0,
                    SwizzleComponent::Y => 1,
                    SwizzleComponent::Z => 2,
                    SwizzleComponent::W => 3,
                };
                Value::collect(vector.is_same(), leaves, lanes, active, |leaf, lane| {
                    vector.get(component(leaf), lane)
                })
            }
            Expression::Load { pointer } => return self.load(frame, pointer, active, at),
            Expression::Unary { op, expr } => {
                let (of, scalar) = (value(expr), body.nodes[expr.index()].scalar());
                Value::collect(of.is_same(), leaves, lanes, active, |leaf, lane| {
                    known(choices.unary(op, scalar, of.get(leaf, lane)))
                })
            }
            Expression::Binary { op, left, right } => {
                let scalar = body.nodes[left.index()].scalar();
                let wide = [left, right].map(|side| body.nodes[side.index()].leaves.len());
                let (a, b) = (value(left), value(right));
                let of_matrices = [left, right].iter().any(|side| body.nodes[side.index()].shape != [0; 2]);
                if of_matrices && !wide.contains(&1) && op == BinaryOperator::Multiply {
                    self.fault(at, "products of matrices are not emulated");
                    return Value::same(vec![0; leaves]);
                }
                Value::collect(a.is_same() && b.is_same(), leaves, lanes, active, |leaf, lane| {
                    let a = a.get(if wide[0] == 1 { 0 } else { leaf }, lane);
                    let b = b.get(if wide[1] == 1 { 0 } else { leaf }, lane);
                    known(choices.binary(op, scalar, a, b))
                })
            }
            Expression::Select { condition, accept, reject } => {
                let many = body.nodes[condition.index()].leaves.len() > 1;
                let (condition, accept, reject) = (value(condition), value(accept), value(reject));
                let same = condition.is_same() && accept.is_same() && reject.is_same();
                Value::collect(same, leaves, lanes, active, |leaf, lane| {
                    let is_so = condition.get(if many { leaf } else { 0 }, lane) != 0;
                    if is_so { accept.get(leaf, lane) } else { reject.get(leaf, lane) }
                })
            }
            Expression::Relational { fun, argument } => {
                let width = body.nodes[argument.index()].leaves.len();
                let of = value(argument);
                Value::collect(of.is_same(), 1, lanes, active, |_, lane| {
                    let mut bits = (0..width).map(|leaf| of.get(leaf, lane) != 0);
                    known(match fun {
                        RelationalFunction::All => Some(u64::from(bits.all(|bit| bit))),
                        RelationalFunction::Any => Some(u64::from(bits.any(|bit| bit))),
                        _ => None,
                    })
                })
            }
            Expression::Math { fun: MathFunction::Transpose, arg, .. } => {
                let of = value(arg);
                let [columns, rows] = body.nodes[arg.index()].shape;
                Value::collect(of.is_same(), leaves, lanes, active, |leaf, lane| {
                    of.get(leaf % columns * rows + leaf / columns, lane)
                })
            }
            Expression::Math { fun, arg, arg1, arg2, arg3 } => {
                let scalar = body.nodes[arg.index()].scalar();
                let args: Vec<(Value, bool)> = [Some(arg), arg1, arg2, arg3]
                    .iter()
                    .flatten()
                    .map(|&arg| (value(arg), body.nodes[arg.index()].leaves.len() > 1))
                    .collect();
                let same = args.iter().all(|(arg, _)| arg.is_same());
                let mut bits = vec![0; args.len()];
                Value::collect(same, leaves, lanes, active, |leaf, lane| {
                    for (to, (arg, many)) in bits.iter_mut().zip(&args) {
                        *to = arg.get(if *many { leaf } else { 0 }, lane);
                    }
                    known(choices.math(fun, scalar, &bits))
                })
            }
            Expression::As { expr, kind, convert } => {
                let (of, from) = (value(expr), body.nodes[expr.index()].scalar());
                Value::collect(of.is_same(), leaves, lanes, active, |leaf, lane| {
                    let bits = of.get(leaf, lane);
                    match convert {
                        None => bits,
                        Some(width) => known(choices.convert(from, naga::Scalar { kind, width }, bits)),
                    }
                })
            }
            Expression::ArrayLength(of) => {
                let node = &body.nodes[of.index()];
                let Some(Root::Global(variable)) = node.root else {
                    self.fault(at, "this array's length is not emulated");
                    return Value::same(vec![0]);
                };
                let bytes = self.bound(variable, at);
                Value::same(vec![bytes / u64::from(node.stride.max(1))])
            }
            ref other => {
                let name = format!("{other:?}");
                let name = name.split([' ', '(']).next().unwrap_or_default().to_owned();
                self.fault(at, &format!("{name} is not emulated"));
                Value::same(vec![0; leaves])
            }
        };
        if !is_known {
            self.fault(at, "this operation, or a conversion that rounds to f16, is not emulated");
        }
        found
    }

    /// Returns an element of a value, or where it is in memory.
    fn access(
        &mut self,
        frame: &Frame<'a>,
        handle: Handle<Expression>,
        base: Handle<Expression>,
        index: &Value,
        active: &[u32],
    ) -> Value {
        let node = &frame.body.nodes[handle.index()];
        let base = frame.value(base).clone();
        let same = base.is_same() && index.is_same();
        let (length, step) = (node.length.map_or(u64::MAX, u64::from), node.step as usize);
        let mut outside = false;
        let mut index = |lane: usize| {
            let index = index.get(0, lane);
            outside |= index >= length;
            if index < length { index as usize } else { 0 }
        };
        let value = if node.root.is_some() {
            Value::collect(same, 1, self.lanes, active, |_, lane| {
                base.get(0, lane) + (index(lane) * step) as u64
            })
        } else {
            Value::collect(same, node.leaves.len(), self.lanes, active, |leaf, lane| {
                base.get(index(lane) * step + leaf, lane)
            })
        };
        if outside {
            let at = frame.body.function.expressions.get_span(handle);
            self.fault(at, "the index is behind the end");
        }
        value
    }
}
