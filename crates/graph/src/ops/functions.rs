use crate::trace::Var;

/// Functions that are written with other ops, so that they are no ops of their own.
impl Var {
    /// Returns x^2.
    pub fn square(&self) -> Var {
        self * self
    }

    /// Returns 1 / x.
    pub fn recip(&self) -> Var {
        1.0 / self
    }

    /// Returns 1 / sqrt(x).
    pub fn rsqrt(&self) -> Var {
        1.0 / self.sqrt()
    }

    /// Returns x^n. For a whole number n it is computed by repeated squaring, for others as e^(n ln x), which
    /// is NaN where x < 0. The gradient at 0 of an n above 1 is 0.
    pub fn pow(&self, exponent: f32) -> Var {
        // Infinity has no fraction.
        if exponent.fract() != 0.0 {
            let power = |base: &Var| (base.log() * exponent).exp();
            if exponent < 1.0 {
                return power(self);
            }
            // The gradient of ln at 0 is infinite, and that of e^x there is 0.
            let [zero, one] = [0.0, 1.0].map(|x| self.tape().constant(x));
            let is_zero = self.eq_mask(&zero);
            return is_zero.select(&zero, &power(&is_zero.select(&one, self)));
        }
        let (mut result, mut square) = (None::<Var>, self.clone());
        let mut rest = exponent.abs() as u128;
        while rest > 0 {
            if rest & 1 == 1 {
                result = Some(result.map_or_else(|| square.clone(), |r| &r * &square));
            }
            rest >>= 1;
            if rest > 0 {
                square = square.square();
            }
        }
        let power = result.unwrap_or_else(|| self.tape().constant(1.0).expand(self.ty().lead, self.dims()));
        if exponent < 0.0 { power.recip() } else { power }
    }

    /// Returns x / (1 + e^-x) (Elfwing et al. 2017; PyTorch's `SiLU`).
    pub fn silu(&self) -> Var {
        self * self.sigmoid()
    }

    /// Returns ln(1 + e^x) without overflow, and above 0 for all x from -87 on (PyTorch's `Softplus`).
    pub fn softplus(&self) -> Var {
        let small = (-self.abs()).exp();
        let sum = &small + 1.0;
        // What the sum is rounded by: all of e^x from -16.7 downwards. Without it the gradient is right.
        let lost = (small - (&sum - 1.0)).detach();
        self.positive_part() + (sum.log() + lost)
    }

    /// Returns max(x, 0). It is not relu, so that the gradient of softplus at 0 is 1/2: that of its other
    /// term is 0 there.
    pub(super) fn positive_part(&self) -> Var {
        self.maximum(&self.tape().constant(0.0))
    }

    /// Returns x where x > 0, else alpha (e^x - 1) (Clevert et al. 2015; PyTorch's `ELU`). The gradient at 0
    /// is alpha.
    pub fn elu(&self, alpha: f32) -> Var {
        let zero = self.tape().constant(0.0);
        let is_above = self.greater(&zero);
        // The branch that is not taken must stay finite, or its gradient would be 0 times infinity.
        let below = (is_above.select(&zero, self).exp() - 1.0) * alpha;
        is_above.select(self, &below)
    }

    /// Returns x where x > 0, else slope x (PyTorch's `LeakyReLU`).
    pub fn leaky_relu(&self, slope: f32) -> Var {
        let zero = self.tape().constant(0.0);
        self.greater(&zero).select(self, &(self * slope))
    }

    /// Returns the approximation of [`Var::gelu`] by tanh (PyTorch's `gelu(approximate="tanh")`).
    pub fn gelu_tanh(&self) -> Var {
        let inner = (self.pow(3.0) * 0.044_715 + self) * 0.797_884_6;
        self * ((inner.tanh() + 1.0) * 0.5)
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::interpret;
    use crate::{Array, Feed, Frame, StateKind, Tape, Var};

    /// Returns a function and its gradient at some places.
    fn at(places: &[f64], f: impl Fn(&Var) -> Var) -> [Vec<f64>; 2] {
        let tape = Tape::new();
        let x = tape.state("x", &[places.len()], StateKind::Parameter);
        let y = f(&x);
        let gradient = tape.gradients(&y.sum(&[0]), std::slice::from_ref(&x)).remove(0);
        tape.output("y", &y);
        tape.output("dx", &gradient);
        let states = vec![Array::new(&[places.len()], places.to_vec())];
        let feed = Feed { frame: Frame { shards: vec![1] }, inputs: vec![], states };
        let outputs = interpret(&tape.finish().unwrap(), &feed).outputs;
        ["y", "dx"].map(|name| outputs[name].data.clone())
    }

    fn gradient(places: &[f64], f: impl Fn(&Var) -> Var) -> Vec<f64> {
        let [_, dx] = at(places, f);
        // The numbers of a function are f32.
        dx.iter().map(|dx| (dx * 1e4).round() / 1e4).collect()
    }

    /// The gradients of PyTorch 2.5 where its functions have a corner or two branches meet.
    #[test]
    fn gradients_where_branches_meet_are_those_of_pytorch() {
        assert_eq!(gradient(&[0.0], Var::softplus), [0.5]);
        assert_eq!(gradient(&[0.0], Var::mish), [0.6]);
        assert_eq!(gradient(&[-1.0, 0.0, 1.0], |x| x.elu(1.0)), [0.3679, 1.0, 1.0]);
        assert_eq!(gradient(&[0.0], Var::selu), [1.7581]);
        assert_eq!(gradient(&[-1.0, 0.0, 3.0, 6.0, 7.0], Var::relu6), [0.0, 0.0, 1.0, 0.0, 0.0]);
        assert_eq!(gradient(&[-3.0, 0.0, 3.0], Var::hard_sigmoid), [0.0, 0.1667, 0.0]);
        assert_eq!(gradient(&[-1.0, 0.0, 1.0], |x| x.clamp(-1.0, 1.0)), [1.0, 1.0, 1.0]);
        assert_eq!(gradient(&[0.0, 4.0], |x| x.pow(1.5)), [0.0, 3.0]);
    }

    #[test]
    fn whole_powers_of_negative_numbers_are_numbers() {
        let powers = |x: f64, n: f32| at(&[x], |x| x.pow(n))[0][0];
        for (n, expected) in [(65.0, -1.0), (100.0, 1.0), (-65.0, -1.0), (0.0, 1.0), (1e9, 1.0)] {
            assert_eq!(powers(-1.0, n), expected, "n = {n}");
        }
        assert_eq!((powers(0.0, 1.5), powers(4.0, 0.5), powers(4.0, 2.5)), (0.0, 2.0, 32.0));
    }

    #[test]
    fn cutting_keeps_what_is_no_number() {
        let [y, _] = at(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY], |x| x.hard_tanh(-2.0, 1.0));
        assert!(y[0].is_nan());
        assert_eq!(y[1..], [1.0, -2.0]);
    }
}
