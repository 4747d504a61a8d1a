//! Random expressions.

use std::rc::Rc;

use super::super::program::*;
use super::{Generator, Kind, NUMBERS, Name};

impl Generator {
    /// Returns a place of this type.
    pub(super) fn place(&mut self, ty: &Ty, writes: bool) -> Option<Place> {
        for _ in 0..12 {
            let (root, mut own, mut path) = match self.random.below(10) {
                0 if self.is_main => {
                    let lane = Expr { ty: U32, node: Node::Named(0) };
                    let Ty::Array(of, _) = self.program.buffers[2].clone() else { return None };
                    (Root::Buffer(2), (*of).clone(), vec![Step::At(lane)])
                }
                1 if !writes => (Root::Buffer(1), self.program.buffers[1].clone(), Vec::new()),
                2 | 3 => {
                    let number = self.random.below(self.program.private.len());
                    (Root::Private(number), self.program.private[number].0.clone(), Vec::new())
                }
                4 if self.shared.is_some() && (!writes || self.shared == Some(false)) => {
                    let Some(of) = self.program.shared.clone() else { continue };
                    let index = if self.shared == Some(true) {
                        self.index(self.program.lanes)
                    } else {
                        Expr { ty: U32, node: Node::Named(1) }
                    };
                    (Root::Shared, of, vec![Step::At(index)])
                }
                _ => {
                    let own = self.names.iter().filter(|name| match name.kind {
                        Kind::Value => false,
                        Kind::Variable => !writes || !name.is_fixed,
                        Kind::Pointer => true,
                    });
                    let own: Vec<Name> = own.cloned().collect();
                    if own.is_empty() {
                        continue;
                    }
                    let name = self.random.of(&own);
                    let of = if name.kind == Kind::Pointer { Root::Pointer } else { Root::Local };
                    (of(name.number), name.ty, Vec::new())
                }
            };
            while own != *ty && !matches!(own, Ty::Scalar(_)) {
                let count = self.program.parts(&own);
                if let Ty::Struct(_) = own {
                    let at = self.random.below(count);
                    own = self.program.part(&own, at).0;
                    path.push(Step::Member(at));
                } else {
                    own = self.program.part(&own, 0).0;
                    path.push(Step::At(self.index(count)));
                }
            }
            if own == *ty {
                return Some(Place { root, path });
            }
        }
        None
    }

    /// Returns the type of what the last step of a place is a part of.
    pub(super) fn whole(&self, place: &Place) -> Option<Ty> {
        let mut ty = match place.root {
            Root::Local(name) | Root::Pointer(name) => self.function.names[name].clone(),
            Root::Private(number) => self.program.private[number].0.clone(),
            Root::Buffer(number) => self.program.buffers[number].clone(),
            Root::Shared => return None,
        };
        let (_, before) = place.path.split_last()?;
        for step in before {
            let number = if let Step::Member(number) = step { *number } else { 0 };
            ty = self.program.part(&ty, number).0;
        }
        Some(ty)
    }

    /// Returns whether a pointer may point there: into a variable of a function, and not into a vector.
    pub(super) fn can_point(&self, place: &Place) -> bool {
        let is_local = matches!(place.root, Root::Local(_) | Root::Pointer(_));
        is_local && !matches!(self.whole(place), Some(Ty::Vector(..)))
    }

    /// Returns an index of so many parts.
    pub(super) fn index(&mut self, count: usize) -> Expr {
        let ty = Ty::Scalar(self.random.of(&[Scalar::U32, Scalar::U32, Scalar::I32]));
        let literal = |ty: &Ty, bits: usize| Expr { ty: ty.clone(), node: Node::Literal(bits as u64) };
        if self.random.chance(40) {
            let own = self.names.iter().filter(|name| name.below.is_some_and(|below| below <= count));
            let own: Vec<Name> = own.cloned().collect();
            if !own.is_empty() {
                let name = self.random.of(&own);
                let node = match name.kind {
                    Kind::Value => Node::Named(name.number),
                    _ => Node::Load(Place { root: Root::Local(name.number), path: Vec::new() }),
                };
                return Expr { ty: name.ty, node };
            }
        }
        if self.indices > 0 || self.random.chance(50) {
            return literal(&ty, self.random.below(count));
        }
        self.indices += 1;
        let found = self.computed_index(ty, count);
        self.indices -= 1;
        found
    }

    pub(super) fn computed_index(&mut self, ty: Ty, count: usize) -> Expr {
        let literal = |ty: &Ty, bits: usize| Expr { ty: ty.clone(), node: Node::Literal(bits as u64) };
        match count.is_power_of_two() {
            true => {
                let sides = [self.runtime(&ty, 1), literal(&ty, count - 1)];
                Expr { ty, node: Node::Binary("&", Box::new(sides)) }
            }
            _ => {
                let sides = [self.runtime(&U32, 1), literal(&U32, count)];
                Expr { ty: U32, node: Node::Binary("%", Box::new(sides)) }
            }
        }
    }

    /// Returns an expression that is not known when the kernel is read.
    pub(super) fn runtime(&mut self, ty: &Ty, depth: usize) -> Expr {
        for _ in 0..4 {
            let found = self.expr(ty, depth);
            if !is_constant(&found) {
                return found;
            }
        }
        let scalar = ty.scalar().unwrap_or(Scalar::U32);
        let of = Ty::Scalar(scalar);
        let number = self.program.private.iter().position(|(own, _)| *own == of).unwrap_or(0);
        let one = Expr { ty: of, node: Node::Load(Place { root: Root::Private(number), path: Vec::new() }) };
        if matches!(ty, Ty::Vector(..)) {
            return Expr { ty: ty.clone(), node: Node::Splat(Box::new(one)) };
        }
        one
    }

    /// Returns an expression of a type.
    pub(super) fn expr(&mut self, ty: &Ty, depth: usize) -> Expr {
        let node = self.node(ty, depth);
        Expr { ty: ty.clone(), node }
    }

    /// Returns a value that is at hand, or a constant.
    pub(super) fn simple(&mut self, ty: &Ty) -> Node {
        if self.random.chance(70) {
            let own = self.names.iter().filter(|name| name.kind == Kind::Value && name.ty == *ty);
            let own: Vec<usize> = own.map(|name| name.number).collect();
            if !own.is_empty() && self.random.chance(60) {
                return Node::Named(self.random.of(&own));
            }
            if let Some(place) = self.place(ty, false) {
                return Node::Load(place);
            }
        }
        match ty {
            Ty::Scalar(scalar) => Node::Literal(self.random.bits(*scalar)),
            _ if self.random.chance(30) => Node::Zero,
            _ => self.composed(ty, 0),
        }
    }

    pub(super) fn composed(&mut self, ty: &Ty, depth: usize) -> Node {
        if let (Ty::Vector(width, scalar), true) = (ty, self.random.chance(20)) {
            let split = 1 + self.random.below(width - 1);
            let widths = [split, width - split];
            return Node::Compose(widths.map(|width| self.expr(&Ty::of(*scalar, width), depth)).into());
        }
        let count = self.program.parts(ty);
        let parts = (0..count).map(|at| {
            let (part, _) = self.program.part(ty, at);
            self.expr(&part, depth)
        });
        Node::Compose(parts.collect())
    }

    /// Returns four scalars that are computed alike, or nearly.
    pub(super) fn alike(&mut self, scalar: Scalar, depth: usize) -> Node {
        let one = self.runtime(&Ty::Scalar(scalar), depth + 1);
        let odd = self.random.below(8);
        let parts = (0..4).map(|lane| {
            if lane == odd { self.expr(&Ty::Scalar(scalar), depth) } else { self.varied(&one, lane) }
        });
        Node::Compose(parts.collect())
    }

    /// Returns the same expression of another component.
    pub(super) fn varied(&self, of: &Expr, lane: usize) -> Expr {
        let again = |of: &Expr| self.varied(of, lane);
        let node = match &of.node {
            Node::Load(place) => {
                let mut place = place.clone();
                let is_four = matches!(self.whole(&place), Some(Ty::Vector(4, _)));
                if let (true, Some(Step::At(index))) = (is_four, place.path.last_mut())
                    && let Node::Literal(_) = index.node
                {
                    index.node = Node::Literal(lane as u64);
                }
                Node::Load(place)
            }
            Node::Swizzle(x, lanes) if lanes.len() == 1 => match x.ty {
                Ty::Vector(4, _) => Node::Swizzle(x.clone(), vec![lane]),
                _ => of.node.clone(),
            },
            Node::Unary(op, x) => Node::Unary(op, Box::new(again(x))),
            Node::Binary(op, sides) => Node::Binary(op, Box::new([again(&sides[0]), again(&sides[1])])),
            Node::Builtin(name, all) => Node::Builtin(name, all.iter().map(again).collect()),
            Node::Convert(x) => Node::Convert(Box::new(again(x))),
            other => other.clone(),
        };
        Expr { ty: of.ty.clone(), node }
    }

    pub(super) fn node(&mut self, ty: &Ty, depth: usize) -> Node {
        if depth == 0 || self.random.chance(20) {
            return self.simple(ty);
        }
        let deeper = depth - 1;
        let (Some(scalar), Some(width)) = (ty.scalar(), ty.width()) else {
            if let Ty::Matrix(columns, rows) = *ty {
                match self.random.below(6) {
                    0 => {
                        let of = self.expr(&Ty::Matrix(rows, columns), deeper);
                        return Node::Builtin("transpose", vec![of]);
                    }
                    1 => {
                        let sides = [self.runtime(ty, deeper), self.expr(ty, deeper)];
                        if !is_constant(&sides[0]) && sides[0].ty == *ty {
                            return Node::Binary(self.random.of(&["+", "-"]), Box::new(sides));
                        }
                    }
                    2 => {
                        let sides = [self.expr(ty, deeper), self.runtime(&F32, deeper)];
                        return Node::Binary("*", Box::new(sides));
                    }
                    _ => {}
                }
            }
            return if self.random.chance(50) { self.simple(ty) } else { self.composed(ty, deeper) };
        };
        if width == 4 && scalar != Scalar::Bool && self.random.chance(25) {
            return self.alike(scalar, deeper);
        }
        match self.random.below(12) {
            0 if width > 1 => Node::Splat(Box::new(self.expr(&Ty::Scalar(scalar), deeper))),
            1 if width > 1 => self.composed(ty, deeper),
            2 if scalar.bytes() == 4 => {
                let from = 2 + self.random.below(3);
                let vector = self.expr(&Ty::Vector(from, scalar), deeper);
                Node::Swizzle(Box::new(vector), (0..width).map(|_| self.random.below(from)).collect())
            }
            3 => self.indexed(ty, deeper),
            4 | 5 => self.builtin(scalar, ty, deeper),
            6 => self.converted(scalar, width, deeper),
            7 if scalar != Scalar::Bool => {
                let of: &[&str] = match scalar {
                    Scalar::F32 | Scalar::I64 => &["-"],
                    Scalar::I32 => &["-", "~"],
                    _ => &["~"],
                };
                Node::Unary(self.random.of(of), Box::new(self.runtime(ty, deeper)))
            }
            _ if scalar == Scalar::Bool => self.truth(width, deeper),
            _ => self.arithmetic(scalar, ty, deeper),
        }
    }

    /// Returns a part of a value.
    pub(super) fn indexed(&mut self, ty: &Ty, depth: usize) -> Node {
        let count = 1 + self.random.below(4);
        let of = match ty {
            Ty::Scalar(scalar) if count > 1 && scalar.bytes() == 4 && self.random.chance(50) => {
                Ty::Vector(count, *scalar)
            }
            _ => Ty::Array(Rc::new(ty.clone()), count),
        };
        let value = self.expr(&of, depth);
        let index = self.index(count);
        Node::Index(Box::new([value, index]))
    }

    pub(super) fn truth(&mut self, width: usize, depth: usize) -> Node {
        let ty = Ty::of(Scalar::Bool, width);
        let counters = self.names.iter().filter(|name| name.kind == Kind::Variable && name.is_fixed);
        let counters: Vec<Name> = counters.cloned().collect();
        if width == 1 && !counters.is_empty() && self.random.chance(30) {
            let counter = self.random.of(&counters);
            let from = Place { root: Root::Local(counter.number), path: Vec::new() };
            let number = Node::Literal(self.random.below(5) as u64);
            let sides = [Node::Load(from), number].map(|node| Expr { ty: counter.ty.clone(), node });
            return Node::Binary(self.random.of(&["==", "!=", "<", "<=", ">", ">="]), Box::new(sides));
        }
        match self.random.below(10) {
            0 => Node::Unary("!", Box::new(self.runtime(&ty, depth))),
            1 | 2 => {
                let ops: &[&'static str] =
                    if width == 1 { &["&&", "||", "&", "|", "==", "!="] } else { &["&", "|"] };
                let op = self.random.of(ops);
                Node::Binary(op, Box::new([self.runtime(&ty, depth), self.expr(&ty, depth)]))
            }
            3 if width == 1 => {
                let width = 2 + self.random.below(3);
                let of = self.expr(&Ty::Vector(width, Scalar::Bool), depth);
                Node::Builtin(self.random.of(&["all", "any"]), vec![of])
            }
            _ => {
                let wide = self.has_wide && width < 4 && self.random.chance(20);
                let of =
                    if wide { self.random.of(&[Scalar::I64, Scalar::U64]) } else { self.random.of(&NUMBERS) };
                let of = Ty::of(of, width);
                let op = self.random.of(&["==", "!=", "<", "<=", ">", ">="]);
                Node::Binary(op, Box::new([self.runtime(&of, depth), self.expr(&of, depth)]))
            }
        }
    }

    /// Returns integers none of which is known when the kernel is read.
    pub(super) fn unknown(&mut self, ty: &Ty, depth: usize) -> Expr {
        let sides = [self.runtime(ty, 0), self.expr(ty, depth)];
        Expr { ty: ty.clone(), node: Node::Binary("^", Box::new(sides)) }
    }

    pub(super) fn arithmetic(&mut self, scalar: Scalar, ty: &Ty, depth: usize) -> Node {
        let floats = ["+", "-", "*", "/"];
        let integers = ["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"];
        let op = self.random.of(if scalar == Scalar::F32 { &floats[..] } else { &integers[..] });
        let left = self.runtime(ty, depth);
        if op == "<<" || op == ">>" {
            let by = self.unknown(&Ty::of(Scalar::U32, ty.width().unwrap_or(1)), depth);
            return Node::Binary(op, Box::new([left, by]));
        }
        let is_vector = matches!(ty, Ty::Vector(..));
        let one = Ty::Scalar(scalar);
        let right =
            if is_vector && !["&", "|", "^"].contains(&op) && self.random.chance(20) { &one } else { ty };
        let is_quotient = scalar != Scalar::F32 && (op == "/" || op == "%");
        let right = if is_quotient { self.unknown(right, depth) } else { self.expr(right, depth) };
        Node::Binary(op, Box::new([left, right]))
    }

    pub(super) fn builtin(&mut self, scalar: Scalar, ty: &Ty, depth: usize) -> Node {
        if self.random.chance(25) || scalar == Scalar::Bool {
            let width = if self.random.chance(50) { ty.width().unwrap_or(1) } else { 1 };
            let condition = self.runtime(&Ty::of(Scalar::Bool, width), depth);
            return Node::Builtin("select", vec![self.expr(ty, depth), self.expr(ty, depth), condition]);
        }
        if matches!(ty, Ty::Scalar(_)) && scalar.bytes() == 4 && self.random.chance(10) {
            let of = Ty::Vector(2 + self.random.below(3), scalar);
            return Node::Builtin("dot", vec![self.runtime(&of, depth), self.expr(&of, depth)]);
        }
        let floats = [
            ("abs", 1),
            ("sqrt", 1),
            ("floor", 1),
            ("ceil", 1),
            ("trunc", 1),
            ("round", 1),
            ("sign", 1),
            ("fract", 1),
            ("inverseSqrt", 1),
            ("saturate", 1),
            ("min", 2),
            ("max", 2),
            ("clamp", 3),
            ("fma", 3),
            ("mix", 3),
        ];
        let integers = [
            ("abs", 1),
            ("min", 2),
            ("max", 2),
            ("clamp", 3),
            ("countOneBits", 1),
            ("countLeadingZeros", 1),
            ("countTrailingZeros", 1),
            ("reverseBits", 1),
            ("firstLeadingBit", 1),
        ];
        let (name, count) = match scalar {
            Scalar::F32 => self.random.of(&floats),
            Scalar::U32 => self.random.of(&integers),
            Scalar::I32 => self.random.of(&integers[..8]),
            _ => self.random.of(&integers[..4]),
        };
        Node::Builtin(name, (0..count).map(|_| self.runtime(ty, depth)).collect())
    }

    pub(super) fn converted(&mut self, to: Scalar, width: usize, depth: usize) -> Node {
        let mut from = vec![Scalar::Bool, Scalar::I32, Scalar::U32, Scalar::F32];
        if self.has_wide && width < 4 {
            from.extend([Scalar::I64, Scalar::U64]);
        }
        if to.bytes() == 8 {
            from.retain(|own| *own != Scalar::F32);
        }
        let from = self.random.of(&from);
        if to == Scalar::U32 && from == Scalar::F32 && width == 1 && self.random.chance(50) {
            return Node::Bits(Box::new(self.expr(&F32, depth)));
        }
        Node::Convert(Box::new(self.runtime(&Ty::of(from, width), depth)))
    }
}

fn is_constant(of: &Expr) -> bool {
    match &of.node {
        Node::Literal(_) | Node::Zero => true,
        Node::Load(_) | Node::Named(_) | Node::Call(..) => false,
        Node::Unary(_, x) | Node::Splat(x) | Node::Swizzle(x, _) | Node::Member(x, _) => is_constant(x),
        Node::Convert(x) | Node::Bits(x) => is_constant(x),
        Node::Binary(_, sides) | Node::Index(sides) => sides.iter().all(is_constant),
        Node::Builtin(_, all) | Node::Compose(all) => all.iter().all(is_constant),
    }
}
