//! Families of random ops. An op computes y = max(x, c) + d, where c and d follow from its type and all of
//! its fields. So a graph in which two different ops were taken for one gives other numbers.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;
use unisono_graph::{Array, Expression, Frame, Halves, Io, Lowering, Op, Product, Type, Var};
use unisono_random::Draws;

/// A random op, and what tells it from others without a look at its identity.
#[derive(Clone, Debug)]
pub struct Made {
    /// The op.
    pub op: Arc<dyn Op>,
    /// The number of the op's type, then its fields as words.
    pub words: Vec<u64>,
}

/// Makes an op of one family. Most fields are drawn from a few values, so that equal ops are frequent, and so
/// are ops that differ in one field.
type Family = fn(&mut Draws) -> Made;

/// A field: its words are the same for two values exactly if these are the same value.
trait Field {
    fn words(&self, to: &mut Vec<u64>);
    fn draw(draws: &mut Draws) -> Self;
}

macro_rules! numbers {
    ($($ty:ty = $values:expr, $word:expr;)+) => {
        $(impl Field for $ty {
            fn words(&self, to: &mut Vec<u64>) {
                let word: fn(&$ty) -> u64 = $word;
                to.push(word(self));
            }
            fn draw(draws: &mut Draws) -> Self {
                let values = $values;
                values[draws.below(values.len() as u32) as usize]
            }
        })+
    };
}

numbers! {
    f32 = [
        0.0,
        -0.0,
        1.0,
        f32::from_bits(1.0f32.to_bits() + 1),
        f32::NAN,
        f32::from_bits(f32::NAN.to_bits() ^ 1),
        -f32::NAN,
        f32::INFINITY,
    ], |x| u64::from(x.to_bits());
    f64 = [0.0, -0.0, 0.1, f64::NAN, f64::from_bits(f64::NAN.to_bits() ^ 1), 1e-320], |x| x.to_bits();
    u64 = [0, 1, 127, 128, u64::MAX], |x| *x;
    i8 = [0, -1, 1, i8::MIN], |x| *x as u64;
    bool = [false, true], |x| u64::from(*x);
    char = ['a', 'b', '\u{e4}'], |x| u64::from(*x);
    &'static str = ["", "a", "ab", "b"], |x| x.bytes().fold(1, |word, byte| 256 * word + u64::from(byte));
    () = [()], |_| 0;
}

impl<T: Field> Field for Vec<T> {
    fn words(&self, to: &mut Vec<u64>) {
        to.push(self.len() as u64);
        self.iter().for_each(|x| x.words(to));
    }
    fn draw(draws: &mut Draws) -> Self {
        (0..draws.below(3)).map(|_| T::draw(draws)).collect()
    }
}

impl<T: Field> Field for Option<T> {
    fn words(&self, to: &mut Vec<u64>) {
        to.push(u64::from(self.is_some()));
        self.iter().for_each(|x| x.words(to));
    }
    fn draw(draws: &mut Draws) -> Self {
        (draws.below(2) == 0).then(|| T::draw(draws))
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn words(&self, to: &mut Vec<u64>) {
        self.0.words(to);
        self.1.words(to);
    }
    fn draw(draws: &mut Draws) -> Self {
        (A::draw(draws), B::draw(draws))
    }
}

impl<T> Field for PhantomData<T> {
    fn words(&self, _: &mut Vec<u64>) {}
    fn draw(_: &mut Draws) -> Self {
        PhantomData
    }
}

/// A field that is one of several things.
#[derive(Clone, Debug, Serialize)]
enum Choice {
    Nothing,
    One(f32),
    Another(f32),
    Named { low: f32, high: Option<f32> },
}

impl Field for Choice {
    fn words(&self, to: &mut Vec<u64>) {
        match self {
            Self::Nothing => to.push(0),
            Self::One(x) => (1u64, *x).words(to),
            Self::Another(x) => (2u64, *x).words(to),
            Self::Named { low, high } => (3u64, (*low, *high)).words(to),
        }
    }
    fn draw(draws: &mut Draws) -> Self {
        match draws.below(4) {
            0 => Self::Nothing,
            1 => Self::One(Field::draw(draws)),
            2 => Self::Another(Field::draw(draws)),
            _ => Self::Named { low: Field::draw(draws), high: Field::draw(draws) },
        }
    }
}

/// Returns c and d of an op's words: multiples of 1/64 from -1 on.
fn constants(words: &[u64]) -> [f32; 2] {
    let mix = |hash: u64, word: &u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let hash = words.iter().fold(0x1234_5678_9abc_def1, mix);
    [hash >> 20, hash >> 40].map(|bits| (bits % 128) as f32 / 64.0 - 1.0)
}

/// Returns the op's expression for its constants.
fn expression([c, d]: [f32; 2]) -> Lowering {
    Lowering::Pointwise(Expression {
        wgsl: format!("max($0, {c:?}) + {d:?}"),
        snippets: &[],
        whole: &[],
        product: Product::Never,
        adds: true,
        halves: Halves::Never,
        canonical: false,
    })
}

/// An op of a family: it draws itself, and tells its fields.
trait Random: Op + Sized {
    fn draw(draws: &mut Draws) -> Self;
    fn fields_as_words(&self, to: &mut Vec<u64>);
}

fn make<T: Random>(number: u64, draws: &mut Draws) -> Made {
    let op = T::draw(draws);
    let mut words = vec![number];
    op.fields_as_words(&mut words);
    Made { op: Arc::new(op), words }
}

/// Makes an op of a type with fields. `number` tells types apart in what they compute.
macro_rules! op {
    ($(#[$meta:meta])* $ty:ident $(<$generic:ident>)? { $($(#[$attribute:meta])* $field:ident: $of:ty),* }, $number:expr) => {
        $(#[$meta])*
        #[derive(Debug, Serialize)]
        pub(super) struct $ty $(<$generic>)? { $($(#[$attribute])* $field: $of),* }

        impl $(<$generic: Label>)? Random for $ty $(<$generic>)? {
            fn draw(_draws: &mut Draws) -> Self {
                Self { $($field: Field::draw(_draws)),* }
            }
            fn fields_as_words(&self, _to: &mut Vec<u64>) {
                $(self.$field.words(_to);)*
            }
        }

        impl $(<$generic: Label>)? Op for $ty $(<$generic>)? {
            fn name(&self) -> &'static str {
                "op"
            }
            fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
                Ok(inputs[0].clone())
            }
            /// dx = dy where x is above c.
            fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
                let [c, _] = self.constants();
                vec![Some(x[0].greater(&dy.tape().constant(c)) * *dy)]
            }
            fn reference(&self, inputs: &[&Array], _: &Type, _: &Frame) -> Array {
                let [c, d] = self.constants().map(f64::from);
                Array::new(&inputs[0].dims, inputs[0].data.iter().map(|x| x.max(c) + d).collect())
            }
            fn lowering(&self) -> Lowering {
                expression(self.constants())
            }
        }

        impl $(<$generic: Label>)? $ty $(<$generic>)? {
            fn constants(&self) -> [f32; 2] {
                let mut words = vec![$number];
                self.fields_as_words(&mut words);
                constants(&words)
            }
        }
    };
}

/// A type parameter that says something.
pub(super) trait Label: Debug + Send + Sync + Serialize + 'static {
    const NUMBER: u64;
}

#[derive(Debug, Serialize)]
struct Left;
#[derive(Debug, Serialize)]
struct Right;
impl Label for Left {
    const NUMBER: u64 = 1;
}
impl Label for Right {
    const NUMBER: u64 = 2;
}

mod one {
    use super::*;
    op!(Step { by: f32, kind: Choice }, 10);
    op!(Empty {}, 11);
}

mod two {
    use super::*;
    op!(Step { by: f32, kind: Choice }, 20);
    op!(Empty {}, 21);
}

op!(Table { values: Vec<f32>, more: Vec<f32>, label: &'static str }, 30);
op!(Generic<T> { of: PhantomData<T>, by: f32 }, 40 + T::NUMBER);
op!(Wide { n: u64, i: i8, x: f64, flag: bool, letter: char }, 50);
op!(Captured { constants: Vec<(f32, bool)>, unit: () }, 60);
op!(
    Skipped {
        by: f32,
        #[serde(skip)]
        hidden: i8
    },
    70
);

/// All families of ops.
pub const FAMILIES: &[Family] = &[
    |draws| make::<one::Step>(0, draws),
    |draws| make::<two::Step>(1, draws),
    |draws| make::<one::Empty>(2, draws),
    |draws| make::<two::Empty>(3, draws),
    |draws| make::<Table>(4, draws),
    |draws| make::<Generic<Left>>(5, draws),
    |draws| make::<Generic<Right>>(6, draws),
    |draws| make::<Wide>(7, draws),
    |draws| make::<Captured>(8, draws),
    |draws| make::<Skipped>(9, draws),
];
