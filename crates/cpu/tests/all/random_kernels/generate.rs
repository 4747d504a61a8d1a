//! Random kernels that are valid, and that mostly end.

mod expressions;
mod statements;

use std::rc::Rc;

use super::program::*;

/// Numbers that follow from a seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Returns whether something happens that happens so many times in a hundred.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    /// Returns the bits of a scalar, often those of a number at an edge.
    pub fn bits(&mut self, scalar: Scalar) -> u64 {
        match scalar {
            Scalar::Bool => self.next() & 1,
            Scalar::F32 => {
                let edges = [0x0000_0000, 0x8000_0000, 0x3f80_0000, 0xbf80_0000, 0x0000_0001, 0x8070_0000];
                let more = [0x7f7f_ffff, 0x4b00_0001, 0x4f00_0000, 0xcf00_0000, 0x3f00_0000, 0xbfc0_0000];
                match self.below(4) {
                    0 => self.of(&edges),
                    1 => self.of(&more),
                    _ => u64::from(((self.below(8001) as f32 - 4000.0) / 64.0).to_bits()),
                }
            }
            _ => {
                let most = if scalar.bytes() == 8 { u64::MAX } else { 0xffff_ffff };
                let edges = [0, 1, 2, 3, 5, 7, 31, 32, 33, 255, most, most - 1, most >> 1, (most >> 1) + 1];
                let bits = if self.chance(70) { self.of(&edges) } else { self.next() & most };
                // WGSL has no literal for the least i64.
                if bits == 1 << 63 { bits + 1 } else { bits }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Value,
    Variable,
    Pointer,
}

#[derive(Clone, Debug)]
struct Name {
    number: usize,
    kind: Kind,
    ty: Ty,
    /// The number that it stays below, if that is known.
    below: Option<usize>,
    /// Whether nothing is stored there: the counter of a loop.
    is_fixed: bool,
}

/// What may stand where a statement is written.
#[derive(Clone, Copy, Default)]
struct Around {
    in_loop: bool,
    /// Whether `continue` may stand here.
    continues: bool,
    in_continuing: bool,
}

struct Generator {
    random: Random,
    program: Program,
    function: Function,
    names: Vec<Name>,
    /// The statements that may still be written.
    left: usize,
    is_main: bool,
    /// Which workgroup memory may be used: none, that of the invocation, or what all have written.
    shared: Option<bool>,
    has_wide: bool,
    /// How many `continuing` blocks are around: nothing may return from there.
    continuing: usize,
    /// How many indices are around that are computed.
    indices: usize,
}

const NUMBERS: [Scalar; 4] = [Scalar::U32, Scalar::I32, Scalar::F32, Scalar::U32];

/// Returns the kernel of a seed.
pub fn generate(seed: u64) -> Program {
    let mut random = Random(seed);
    let has_wide = random.chance(15);
    let lanes = random.of(&[1, 2, 4, 5]);
    let program = Program { lanes, ..Program::default() };
    let mut it = Generator {
        random,
        program,
        function: Function::default(),
        names: Vec::new(),
        left: 0,
        is_main: false,
        shared: None,
        has_wide,
        continuing: 0,
        indices: 0,
    };
    it.declare();
    it.program
}

impl Generator {
    fn declare(&mut self) {
        for _ in 0..self.random.below(3) {
            let count = 1 + self.random.below(4);
            let members = (0..count).map(|_| self.ty(2, false)).collect();
            self.program.structs.push(members);
        }
        let scalars = [Scalar::Bool, Scalar::I32, Scalar::U32, Scalar::F32, Scalar::I64, Scalar::U64];
        for scalar in &scalars[..if self.has_wide { 6 } else { 4 }] {
            let bits = if *scalar == Scalar::Bool { 1 } else { self.random.bits(*scalar) };
            let ty = Ty::Scalar(*scalar);
            let first = Expr { ty: ty.clone(), node: Node::Literal(bits) };
            self.program.private.push((ty, Some(first)));
        }
        for _ in 0..self.random.below(3) {
            let ty = self.ty(2, true);
            self.program.private.push((ty, None));
        }
        let all = self.program.lanes * GROUPS;
        self.program.uniform = self.random.chance(20);
        let read =
            if self.program.uniform { Ty::Vector(4, self.random.of(&NUMBERS)) } else { self.ty(2, false) };
        let read = Ty::Array(Rc::new(read), 1 + self.random.below(6));
        let state = Ty::Array(Rc::new(self.ty(3, false)), all);
        self.program.buffers = vec![Ty::Array(Rc::new(U32), all), read, state];
        for _ in 0..self.random.below(4) {
            self.function();
        }
        self.program.shared = self.random.chance(25).then(|| self.ty(1, true));
        self.main();
    }

    /// Returns a random type, of values that buffers may hold unless `any`.
    fn ty(&mut self, depth: usize, any: bool) -> Ty {
        let scalar = match self.random.below(20) {
            0 | 1 if any => Scalar::Bool,
            2 if self.has_wide => Scalar::U64,
            3 if self.has_wide => Scalar::I64,
            _ => self.random.of(&NUMBERS),
        };
        match self.random.below(if depth == 0 { 6 } else { 10 }) {
            0..3 => Ty::Scalar(scalar),
            3..6 => {
                let width = 2 + self.random.below(if scalar.bytes() == 8 { 2 } else { 3 });
                Ty::Vector(width, scalar)
            }
            6 => Ty::Matrix(2 + self.random.below(3), 2 + self.random.below(3)),
            7 if !self.program.structs.is_empty() => {
                Ty::Struct(self.random.below(self.program.structs.len()))
            }
            _ => Ty::Array(Rc::new(self.ty(depth - 1, any)), 1 + self.random.below(5)),
        }
    }

    fn name(&mut self, kind: Kind, ty: Ty) -> usize {
        let number = self.function.names.len();
        self.function.names.push(ty.clone());
        self.names.push(Name { number, kind, ty, below: None, is_fixed: false });
        number
    }

    fn function(&mut self) {
        (self.function, self.names, self.left) = (Function::default(), Vec::new(), 12);
        for _ in 0..self.random.below(4) {
            let is_pointer = self.random.chance(35);
            let ty = self.ty(2, true);
            let name = self.name(if is_pointer { Kind::Pointer } else { Kind::Value }, ty);
            self.function.parameters.push((name, is_pointer));
        }
        self.function.result = self.random.chance(75).then(|| self.ty(1, true));
        let mut body = self.block(Around::default(), 3);
        if let Some(ty) = self.function.result.clone()
            && !matches!(body.last(), Some(Stmt::Return(_)))
        {
            let value = self.expr(&ty, 2);
            body.push(Stmt::Return(Some(value)));
        }
        self.function.body = body;
        self.program.functions.push(std::mem::take(&mut self.function));
    }

    fn main(&mut self) {
        (self.function, self.names, self.left, self.is_main) = (Function::default(), Vec::new(), 30, true);
        for _ in 0..2 {
            self.name(Kind::Value, U32);
        }
        self.names[1].below = Some(self.program.lanes);
        self.shared = self.program.shared.is_some().then_some(false);
        let mut body = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let ty = self.ty(2, true);
            let first = self.random.chance(70).then(|| self.expr(&ty, 3));
            body.push(Stmt::Var(self.name(Kind::Variable, ty), first));
        }
        body.extend(self.statements(Around::default(), 3));
        self.function.body = body;
        for phase in 0..if self.shared.is_some() { 1 + self.random.below(3) } else { 0 } {
            (self.shared, self.left) = (Some(phase % 2 == 0), 8);
            let body = self.statements(Around::default(), 2);
            self.program.phases.push(body);
        }
        let dump = self.dump();
        match self.program.phases.last_mut() {
            Some(last) => last.extend(dump),
            None => self.function.body.extend(dump),
        }
        self.program.main = std::mem::take(&mut self.function);
    }

    /// Writes all that is known at the end to the buffer of results.
    fn dump(&mut self) -> Vec<Stmt> {
        let all = self.program.lanes * GROUPS;
        let mut words = Vec::new();
        let own = |number: usize, kind: Kind, ty: &Ty| match kind {
            Kind::Value => Expr { ty: ty.clone(), node: Node::Named(number) },
            Kind::Variable => {
                let root = Root::Local(number);
                Expr { ty: ty.clone(), node: Node::Load(Place { root, path: Vec::new() }) }
            }
            Kind::Pointer => {
                let root = Root::Pointer(number);
                Expr { ty: ty.clone(), node: Node::Load(Place { root, path: Vec::new() }) }
            }
        };
        let mut values: Vec<Expr> =
            self.names[2..].iter().map(|name| own(name.number, name.kind, &name.ty)).collect();
        for (number, (ty, _)) in self.program.private.iter().enumerate() {
            let from = Place { root: Root::Private(number), path: Vec::new() };
            values.push(Expr { ty: ty.clone(), node: Node::Load(from) });
        }
        for value in values {
            self.words(value, &mut words);
        }
        let count = words.len();
        self.program.buffers[0] = Ty::Array(Rc::new(U32), all * count.max(1));
        let number = |bits: usize| Expr { ty: U32, node: Node::Literal(bits as u64) };
        let stores = words.into_iter().enumerate().map(|(at, word)| {
            let lane = Expr { ty: U32, node: Node::Named(0) };
            let first = Node::Binary("*", Box::new([lane, number(count)]));
            let sides = [Expr { ty: U32, node: first }, number(at)];
            let index = Expr { ty: U32, node: Node::Binary("+", Box::new(sides)) };
            Stmt::Store(Place { root: Root::Buffer(0), path: vec![Step::At(index)] }, word)
        });
        stores.collect()
    }

    /// Lists the scalars of a value as words.
    fn words(&mut self, value: Expr, found: &mut Vec<Expr>) {
        let count = self.program.parts(&value.ty);
        if let Ty::Scalar(scalar) = value.ty {
            let node = match scalar {
                Scalar::F32 => Node::Bits(Box::new(value)),
                Scalar::U32 => return found.push(value),
                _ => Node::Convert(Box::new(value)),
            };
            return found.push(Expr { ty: U32, node });
        }
        if found.len() > 60 {
            return;
        }
        for at in 0..count {
            let (ty, _) = self.program.part(&value.ty, at);
            let part = match &value.node {
                Node::Load(place) => {
                    let mut place = place.clone();
                    place.path.push(match value.ty {
                        Ty::Struct(_) => Step::Member(at),
                        _ => Step::At(Expr { ty: U32, node: Node::Literal(at as u64) }),
                    });
                    Node::Load(place)
                }
                _ => self.part_of(value.clone(), at),
            };
            self.words(Expr { ty, node: part }, found);
        }
    }

    fn part_of(&mut self, value: Expr, at: usize) -> Node {
        match value.ty {
            Ty::Struct(_) => Node::Member(Box::new(value), at),
            Ty::Vector(..) if self.random.chance(70) => Node::Swizzle(Box::new(value), vec![at]),
            _ => Node::Index(Box::new([value, Expr { ty: U32, node: Node::Literal(at as u64) }])),
        }
    }
}
