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
    /// is NaN where x < 0.
    pub fn pow(&self, exponent: f32) -> Var {
        let whole = exponent.abs() as u32;
        if exponent.fract() != 0.0 || whole > 64 {
            return (self.log() * exponent).exp();
        }
        let (mut result, mut square, mut rest) = (None::<Var>, self.clone(), whole);
        while rest > 0 {
            if rest & 1 == 1 {
                result = Some(result.map_or_else(|| square.clone(), |r| &r * &square));
            }
            square = square.square();
            rest >>= 1;
        }
        let power = result.unwrap_or_else(|| self.tape().constant(1.0).expand(self.ty().lead, self.dims()));
        if exponent < 0.0 { power.recip() } else { power }
    }

    /// Returns x / (1 + e^-x) (Elfwing et al. 2017; PyTorch's `SiLU`).
    pub fn silu(&self) -> Var {
        self * self.sigmoid()
    }

    /// Returns ln(1 + e^x) without overflow (PyTorch's `Softplus`).
    pub fn softplus(&self) -> Var {
        let small = (-self.abs()).exp();
        self.relu() + (small + 1.0).log()
    }

    /// Returns x where x > 0, else alpha (e^x - 1) (Clevert et al. 2015; PyTorch's `ELU`).
    pub fn elu(&self, alpha: f32) -> Var {
        let zero = self.tape().constant(0.0);
        // The branch that is not taken must stay finite, or its gradient would be 0 times infinity.
        let below = (self.minimum(&zero).exp() - 1.0) * alpha;
        self.greater(&zero).select(self, &below)
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
