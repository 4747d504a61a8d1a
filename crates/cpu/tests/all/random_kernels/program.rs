//! Random kernels as data: a small part of WGSL that is printed, interpreted and shrunk.

use std::rc::Rc;

/// A type of scalars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    Bool,
    I32,
    U32,
    F32,
    I64,
    U64,
}

impl Scalar {
    /// Returns the bytes of such a number in memory.
    pub fn bytes(self) -> usize {
        if matches!(self, Self::I64 | Self::U64) { 8 } else { 4 }
    }
}

/// A type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ty {
    Scalar(Scalar),
    Vector(usize, Scalar),
    /// A matrix of so many columns and rows.
    Matrix(usize, usize),
    Array(Rc<Ty>, usize),
    Struct(usize),
}

pub const BOOL: Ty = Ty::Scalar(Scalar::Bool);
pub const U32: Ty = Ty::Scalar(Scalar::U32);
pub const F32: Ty = Ty::Scalar(Scalar::F32);

impl Ty {
    /// Returns the scalar of a scalar, a vector or a matrix.
    pub fn scalar(&self) -> Option<Scalar> {
        match *self {
            Self::Scalar(scalar) | Self::Vector(_, scalar) => Some(scalar),
            Self::Matrix(..) => Some(Scalar::F32),
            _ => None,
        }
    }

    /// Returns the number of components of a scalar or a vector.
    pub fn width(&self) -> Option<usize> {
        match *self {
            Self::Scalar(_) => Some(1),
            Self::Vector(width, _) => Some(width),
            _ => None,
        }
    }

    /// Returns a scalar or a vector of so many components.
    pub fn of(scalar: Scalar, width: usize) -> Self {
        if width == 1 { Self::Scalar(scalar) } else { Self::Vector(width, scalar) }
    }
}

/// A variable or a value: by its number in its function, in the kernel, or among the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    Local(usize),
    /// What a pointer points to that is a parameter or was named by `let`.
    Pointer(usize),
    Private(usize),
    Buffer(usize),
    /// The workgroup's own array, one element an invocation.
    Shared,
}

/// A place in a variable.
#[derive(Clone, Debug)]
pub struct Place {
    pub root: Root,
    pub path: Vec<Step>,
}

#[derive(Clone, Debug)]
pub enum Step {
    Member(usize),
    At(Expr),
}

#[derive(Clone, Debug)]
pub struct Expr {
    pub ty: Ty,
    pub node: Node,
}

#[derive(Clone, Debug)]
pub enum Node {
    /// The bits of a scalar.
    Literal(u64),
    Zero,
    Load(Place),
    /// What `let` has named, or a parameter.
    Named(usize),
    Unary(&'static str, Box<Expr>),
    Binary(&'static str, Box<[Expr; 2]>),
    Builtin(&'static str, Vec<Expr>),
    /// A value of its parts in order.
    Compose(Vec<Expr>),
    Splat(Box<Expr>),
    Swizzle(Box<Expr>, Vec<usize>),
    Index(Box<[Expr; 2]>),
    Member(Box<Expr>, usize),
    Convert(Box<Expr>),
    /// The bits of a float, those of any NaN being the same.
    Bits(Box<Expr>),
    Call(usize, Vec<Argument>),
}

#[derive(Clone, Debug)]
pub enum Argument {
    Value(Expr),
    Pointer(Place),
}

#[derive(Clone, Debug)]
pub enum Stmt {
    Let(usize, Expr),
    Var(usize, Option<Expr>),
    LetPointer(usize, Place),
    Store(Place, Expr),
    Compound(Place, &'static str, Expr),
    If(Expr, Vec<Stmt>, Vec<Stmt>),
    /// A selector, and cases: their numbers, whether one of them is the default, and their statements.
    Switch(Expr, Vec<(Vec<u64>, bool, Vec<Stmt>)>),
    For(Box<Stmt>, Expr, Option<Box<Stmt>>, Vec<Stmt>),
    While(Expr, Vec<Stmt>),
    /// A body, what continues, and the condition that ends the loop there.
    Loop(Vec<Stmt>, Vec<Stmt>, Option<Expr>),
    Block(Vec<Stmt>),
    Break,
    Continue,
    Return(Option<Expr>),
    Call(usize, Vec<Argument>),
}

/// A function. Its names are numbers, whose types are listed.
#[derive(Clone, Debug, Default)]
pub struct Function {
    pub names: Vec<Ty>,
    /// The parameters, and whether they are pointers.
    pub parameters: Vec<(usize, bool)>,
    pub result: Option<Ty>,
    pub body: Vec<Stmt>,
}

/// A kernel of two workgroups. Its first names are the number of the invocation in the launch and in its
/// workgroup. Buffer 0 is what it writes beside the state, buffer 1 what it reads, and buffer 2 the state.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub structs: Vec<Vec<Ty>>,
    pub private: Vec<(Ty, Option<Expr>)>,
    pub functions: Vec<Function>,
    pub main: Function,
    /// What follows the main function's body, each part behind a barrier.
    pub phases: Vec<Vec<Stmt>>,
    pub lanes: usize,
    pub shared: Option<Ty>,
    pub buffers: Vec<Ty>,
    /// Whether the buffer that is read is a uniform one.
    pub uniform: bool,
}

pub const GROUPS: usize = 2;

impl Program {
    /// Returns the number of scalars of a type.
    pub fn leaves(&self, ty: &Ty) -> usize {
        match ty {
            Ty::Scalar(_) => 1,
            Ty::Vector(width, _) => *width,
            Ty::Matrix(columns, rows) => columns * rows,
            Ty::Array(of, count) => self.leaves(of) * count,
            Ty::Struct(number) => self.structs[*number].iter().map(|member| self.leaves(member)).sum(),
        }
    }

    /// Returns the type of a part, and the number of scalars before it.
    pub fn part(&self, ty: &Ty, at: usize) -> (Ty, usize) {
        match ty {
            Ty::Scalar(_) => unreachable!("a scalar has no parts"),
            Ty::Vector(_, scalar) => (Ty::Scalar(*scalar), at),
            Ty::Matrix(_, rows) => (Ty::Vector(*rows, Scalar::F32), at * rows),
            Ty::Array(of, _) => ((**of).clone(), at * self.leaves(of)),
            Ty::Struct(number) => {
                let members = &self.structs[*number];
                (members[at].clone(), members[..at].iter().map(|member| self.leaves(member)).sum())
            }
        }
    }

    /// Returns the number of parts.
    pub fn parts(&self, ty: &Ty) -> usize {
        match ty {
            Ty::Scalar(_) => 0,
            Ty::Vector(count, _) | Ty::Matrix(count, _) | Ty::Array(_, count) => *count,
            Ty::Struct(number) => self.structs[*number].len(),
        }
    }

    /// Returns the alignment and the size of a type in a buffer.
    fn layout(&self, ty: &Ty) -> (usize, usize) {
        match ty {
            Ty::Scalar(scalar) => (scalar.bytes(), scalar.bytes()),
            Ty::Vector(width, scalar) => (width.next_power_of_two() * scalar.bytes(), width * scalar.bytes()),
            Ty::Matrix(columns, rows) => {
                let column = rows.next_power_of_two() * 4;
                (column, column * columns)
            }
            Ty::Array(of, count) => {
                let (alignment, size) = self.layout(of);
                (alignment, size.next_multiple_of(alignment) * count)
            }
            Ty::Struct(number) => {
                let (mut most, mut end) = (1, 0);
                for member in &self.structs[*number] {
                    let (alignment, size) = self.layout(member);
                    most = most.max(alignment);
                    end = usize::next_multiple_of(end, alignment) + size;
                }
                (most, end.next_multiple_of(most))
            }
        }
    }

    /// Returns the bytes of a value in a buffer.
    pub fn size(&self, ty: &Ty) -> usize {
        self.layout(ty).1
    }

    /// Lists where the scalars of a value are in a buffer.
    pub fn places(&self, ty: &Ty, at: usize, found: &mut Vec<(usize, Scalar)>) {
        match ty {
            Ty::Scalar(scalar) => found.push((at, *scalar)),
            Ty::Vector(width, scalar) => {
                found.extend((0..*width).map(|i| (at + i * scalar.bytes(), *scalar)));
            }
            Ty::Matrix(columns, rows) => {
                let column = Ty::Vector(*rows, Scalar::F32);
                for i in 0..*columns {
                    self.places(&column, at + i * rows.next_power_of_two() * 4, found);
                }
            }
            Ty::Array(of, count) => {
                let (alignment, size) = self.layout(of);
                for i in 0..*count {
                    self.places(of, at + i * size.next_multiple_of(alignment), found);
                }
            }
            Ty::Struct(number) => {
                let mut end = at;
                for member in &self.structs[*number] {
                    let (alignment, size) = self.layout(member);
                    end = end.next_multiple_of(alignment);
                    self.places(member, end, found);
                    end += size;
                }
            }
        }
    }
}
