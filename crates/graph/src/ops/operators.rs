//! Arithmetic on traced values, so that a model reads like its formula.

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::ops;
use crate::trace::Var;

macro_rules! operator {
    ($trait:ident, $method:ident) => {
        impl $trait<&Var> for &Var {
            type Output = Var;
            fn $method(self, b: &Var) -> Var {
                self.zip(ops::$trait, &[b])
            }
        }
        impl $trait<Var> for Var {
            type Output = Var;
            fn $method(self, b: Var) -> Var {
                $trait::$method(&self, &b)
            }
        }
        impl $trait<&Var> for Var {
            type Output = Var;
            fn $method(self, b: &Var) -> Var {
                $trait::$method(&self, b)
            }
        }
        impl $trait<Var> for &Var {
            type Output = Var;
            fn $method(self, b: Var) -> Var {
                $trait::$method(self, &b)
            }
        }
        impl $trait<f32> for &Var {
            type Output = Var;
            fn $method(self, b: f32) -> Var {
                $trait::$method(self, &self.tape().constant(b))
            }
        }
        impl $trait<f32> for Var {
            type Output = Var;
            fn $method(self, b: f32) -> Var {
                $trait::$method(&self, b)
            }
        }
        impl $trait<&Var> for f32 {
            type Output = Var;
            fn $method(self, b: &Var) -> Var {
                $trait::$method(&b.tape().constant(self), b)
            }
        }
        impl $trait<Var> for f32 {
            type Output = Var;
            fn $method(self, b: Var) -> Var {
                $trait::$method(self, &b)
            }
        }
    };
}

operator!(Add, add);
operator!(Sub, sub);
operator!(Mul, mul);
operator!(Div, div);

impl Neg for &Var {
    type Output = Var;
    fn neg(self) -> Var {
        self.apply(ops::Neg)
    }
}

impl Neg for Var {
    type Output = Var;
    fn neg(self) -> Var {
        -&self
    }
}
