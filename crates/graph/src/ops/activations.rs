use crate::trace::Var;

/// Activations that are written with other ops.
impl Var {
    /// Returns the value cut to [low, high]. The gradient passes where low <= x <= high (PyTorch's `clamp`).
    /// NaN stays NaN.
    pub fn clamp(&self, low: f32, high: f32) -> Var {
        let [low, high] = [low, high].map(|x| self.tape().constant(x));
        low.greater(self).select(&low, &self.greater(&high).select(&high, self))
    }

    /// Returns the value cut to [low, high]. The gradient passes where low < x < high (PyTorch's `hardtanh`).
    /// NaN stays NaN.
    pub fn hard_tanh(&self, low: f32, high: f32) -> Var {
        let [low, high] = [low, high].map(|x| self.tape().constant(x));
        let is_low = low.greater(self) + low.eq_mask(self);
        let is_high = self.greater(&high) + high.eq_mask(self);
        is_low.select(&low, &is_high.select(&high, self))
    }

    /// Returns min(max(x, 0), 6), whose gradient at 0 and 6 is 0 (PyTorch's `ReLU6`).
    pub fn relu6(&self) -> Var {
        self.hard_tanh(0.0, 6.0)
    }

    /// Returns min(max(x / 6 + 1/2, 0), 1), whose gradient at -3 and 3 is 0 (PyTorch's `Hardsigmoid`).
    pub fn hard_sigmoid(&self) -> Var {
        (self + 3.0).relu6() * (1.0 / 6.0)
    }

    /// Returns x min(max(x / 6 + 1/2, 0), 1) (Howard et al. 2019; PyTorch's `Hardswish`).
    pub fn hard_swish(&self) -> Var {
        self * self.hard_sigmoid()
    }

    /// Returns x tanh(ln(1 + e^x)) (Misra 2019; PyTorch's `Mish`).
    pub fn mish(&self) -> Var {
        // The softplus need not be as exact as one alone where it is small: x times it is 0 nearly.
        let softplus = self.positive_part() + ((-self.abs()).exp() + 1.0).log();
        self * softplus.tanh()
    }

    /// Returns 1.0507 x where x > 0, else 1.7581 (e^x - 1) (Klambauer et al. 2017; PyTorch's `SELU`).
    pub fn selu(&self) -> Var {
        self.elu(1.673_263_2) * 1.050_701
    }
}
