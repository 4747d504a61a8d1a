//! What L-BFGS remembers from step to step.

/// The last pairs of a step s and the change y of the gradient along it, with the last direction. Vectors
/// have the values of all trained parameters, one parameter after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Curvature {
    /// The number of directions so far.
    pub iterations: u64,
    /// The number of evaluations of all samples so far.
    pub evaluations: u64,
    /// The last direction d, or nothing before the first one.
    pub direction: Vec<f64>,
    /// The length t of the last step: it was t d.
    pub length: f64,
    /// The gradient that the last direction was made of.
    pub gradient: Vec<f64>,
    /// The factor of the first approximation of the inverse Hessian, which is a multiple of 1.
    pub scale: f64,
    /// The pairs, the oldest first.
    pub pairs: Vec<Pair>,
}

/// A step and what it told about the curvature.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pair {
    /// The step s.
    pub step: Vec<f64>,
    /// The change y of the gradient.
    pub change: Vec<f64>,
    /// 1 / y.s
    pub inverse: f64,
}

impl Curvature {
    /// Takes in the last step, after which the gradient is `gradient`, and keeps `most` pairs. A step along
    /// which the gradient hardly grew is left out, as PyTorch does: the Hessian would not stay positive.
    pub fn learn(&mut self, gradient: &[f64], most: usize) {
        let change: Vec<f64> = gradient.iter().zip(&self.gradient).map(|(new, old)| new - old).collect();
        let step: Vec<f64> = self.direction.iter().map(|d| d * self.length).collect();
        let product = dot(&change, &step);
        if product <= 1e-10 {
            return;
        }
        self.scale = product / dot(&change, &change);
        self.pairs.push(Pair { step, change, inverse: 1.0 / product });
        let surplus = self.pairs.len().saturating_sub(most);
        self.pairs.drain(..surplus);
    }

    /// Returns the direction -H g by the two-loop recursion (Nocedal and Wright 2006, algorithm 7.4).
    pub fn newton_direction(&self, gradient: &[f64]) -> Vec<f64> {
        let mut q: Vec<f64> = gradient.iter().map(|g| -g).collect();
        let mut factors = Vec::with_capacity(self.pairs.len());
        for pair in self.pairs.iter().rev() {
            let factor = dot(&pair.step, &q) * pair.inverse;
            add(&mut q, -factor, &pair.change);
            factors.push(factor);
        }
        q.iter_mut().for_each(|q| *q *= self.scale);
        for (pair, factor) in self.pairs.iter().zip(factors.into_iter().rev()) {
            let back = dot(&pair.change, &q) * pair.inverse;
            add(&mut q, factor - back, &pair.step);
        }
        q
    }
}

/// Returns the dot product, added up from the first element to the last.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b)
}

/// Returns the largest absolute value, or 0 of nothing.
pub(super) fn largest(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |most: f64, x| most.max(x.abs()))
}

/// Adds a multiple of `y` to `x`.
fn add(x: &mut [f64], factor: f64, y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += factor * y);
}
