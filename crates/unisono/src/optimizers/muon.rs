use unisono_graph::Var;

use super::settings::{kept_share, not_negative};
use super::update::norm;
use super::{AdamW, Optimizer, OptimizerSettings, Scalar, Schedule, Update};
use crate::objective::Epoch;

/// The coefficients of Newton and Schulz's iteration, chosen for the steepest slope at 0 (Jordan et al.
/// 2024).
const COEFFICIENTS: [f32; 3] = [3.4445, -4.775, 2.0315];
/// The least norm by which a step is divided.
const LEAST_NORM: f32 = 1e-7;
/// How the names of the scalars of the optimizer for other parameters start.
const OTHERS: &str = "others/";

/// Muon (Jordan et al. 2024; PyTorch's `Muon`): the momentum of a matrix, made nearly orthogonal by Newton
/// and Schulz's iteration. Parameters with fewer than two axes are for AdamW: see [`Muon::others`].
///
/// ```text
/// m += (1 - momentum) (g - m)
/// u  = g + momentum (m - g)                    (m itself without Nesterov momentum)
/// x  = u / max(|u|, 1e-7), transposed if it has more rows than columns
/// five times:  a = x x^T,   x = 3.4445 x + (-4.775 a + 2.0315 a a) x
/// w  = (1 - lr decay) w - lr sqrt(max(1, rows / columns)) x
/// ```
///
/// A parameter with more than two axes, such as the weight of a convolution, is a matrix of as many rows
/// as its first axis has. PyTorch's program rounds x to bf16, which this one does not.
///
/// The authors leave embeddings and the last layer to AdamW too. [`Groups`](super::Groups) do that:
///
/// ```
/// use unisono::{AdamW, Groups, Muon};
///
/// let muon = Muon::new(0.02).others(AdamW::new(3e-4));
/// let groups = Groups::new(muon).group(|name| name.starts_with("head."), AdamW::new(3e-4));
/// ```
///
/// Callbacks such as [`ReduceOnPlateau`](crate::ReduceOnPlateau) change only the learning rate of the
/// matrices.
///
/// States of a matrix: `momentum_buffer` (m), with its shape. Scalars: `lr`, `kept` (1 - lr decay), and
/// those of the other optimizer, whose names start with `others/`.
#[derive(Clone, Debug)]
pub struct Muon {
    lr: Schedule,
    momentum: f64,
    nesterov: bool,
    weight_decay: f64,
    iterations: usize,
    others: AdamW,
}

impl Muon {
    /// Creates an optimizer with a learning rate for matrices (PyTorch's is 1e-3, the authors' 0.02) and
    /// PyTorch's defaults: Nesterov momentum 0.95, weight decay 0.1, five iterations. Other parameters have
    /// AdamW with the authors' settings: learning rate 3e-4, betas 0.9 and 0.95, epsilon 1e-10, no decay.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        let others = AdamW::new(3e-4).betas(0.9, 0.95).epsilon(1e-10).weight_decay(0.0);
        Self { lr: lr.into(), momentum: 0.95, nesterov: true, weight_decay: 0.1, iterations: 5, others }
    }

    /// Sets the momentum: the decay rate of the running average of the gradient. Default: 0.95.
    pub fn momentum(self, momentum: impl Into<f64>) -> Self {
        Self { momentum: momentum.into(), ..self }
    }

    /// Takes the momentum itself as the step. Default: Nesterov momentum.
    pub fn no_nesterov(self) -> Self {
        Self { nesterov: false, ..self }
    }

    /// Sets the decoupled weight decay of matrices: each step multiplies the weight by 1 - lr decay. Default:
    /// 0.1.
    pub fn weight_decay(self, decay: impl Into<f64>) -> Self {
        Self { weight_decay: decay.into(), ..self }
    }

    /// Sets the number of iterations, 1 to 99. Default: 5.
    pub fn iterations(self, iterations: usize) -> Self {
        Self { iterations, ..self }
    }

    /// Sets the optimizer of parameters with fewer than two axes, such as biases. Its learning rate is its
    /// own, which callbacks do not change: they change that of matrices. Default: AdamW with learning rate
    /// 3e-4, betas 0.9 and 0.95, epsilon 1e-10 and no weight decay.
    pub fn others(self, others: AdamW) -> Self {
        Self { others, ..self }
    }

    /// Traces Newton and Schulz's iteration. Returns a matrix `[r, c]` whose singular values are near 1.
    fn orthogonal(&self, matrix: &Var) -> Var {
        let tall = matrix.dims()[0] > matrix.dims()[1];
        let x = if tall { matrix.transpose(0, 1) } else { matrix.clone() };
        let mut x = &x / norm(&x).maximum(&x.tape().constant(LEAST_NORM));
        let [first, third, fifth] = COEFFICIENTS;
        for _ in 0..self.iterations {
            let gram = x.matmul_t(&x);
            let polynomial = &gram * third + gram.matmul(&gram) * fifth;
            x = &x * first + polynomial.matmul(&x);
        }
        if tall { x.transpose(0, 1) } else { x }
    }
}

impl Optimizer for Muon {
    fn name(&self) -> &str {
        "muon"
    }

    fn scalars(&self, step: u64) -> Vec<Scalar> {
        let lr = self.lr.at(step);
        let own = [Scalar::new("lr", lr as f32), Scalar::new("kept", (1.0 - lr * self.weight_decay) as f32)];
        let others = self.others.scalars(step).into_iter();
        let others = others.map(|scalar| Scalar::new(&format!("{OTHERS}{}", scalar.name), scalar.value));
        own.into_iter().chain(others).collect()
    }

    fn observe(&mut self, history: &[Epoch]) -> Result<(), String> {
        self.lr.observe(history)?;
        self.others.observe(history)
    }

    fn schedule(&self) -> Option<&Schedule> {
        Some(&self.lr)
    }

    fn check_at(&self, step: u64) -> Result<(), String> {
        self.lr.check_at(step)?;
        self.others.check_at(step).map_err(|problem| format!("others: {problem}"))
    }

    fn schedule_mut(&mut self) -> Option<&mut Schedule> {
        Some(&mut self.lr)
    }

    fn check(&self) -> Result<(), String> {
        self.lr.check()?;
        kept_share("momentum", self.momentum)?;
        not_negative("weight_decay", self.weight_decay)?;
        if !(1..100).contains(&self.iterations) {
            return Err(format!("iterations is {}, and must be in 1..100", self.iterations));
        }
        self.others.check().map_err(|problem| format!("others: {problem}"))
    }

    fn settings(&self) -> Option<OptimizerSettings> {
        let settings = OptimizerSettings::new()
            .schedule("lr", &self.lr)
            .with("momentum", self.momentum)
            .with("nesterov", self.nesterov)
            .with("weight_decay", self.weight_decay)
            .with("iterations", self.iterations);
        Some(settings.group(OTHERS, self.others.settings()?))
    }

    fn update(&self, cx: &mut Update, weight: &Var, gradient: &Var) -> Var {
        let [rows, rest @ ..] = weight.dims() else {
            return cx.in_group(OTHERS, |cx| self.others.update(cx, weight, gradient));
        };
        if rest.is_empty() {
            return cx.in_group(OTHERS, |cx| self.others.update(cx, weight, gradient));
        }
        let (rows, columns) = (*rows, rest.iter().product::<usize>());
        let m = cx.state("momentum_buffer", weight);
        let new_m = (gradient - &m) * (1.0 - self.momentum) as f32 + &m;
        cx.set(&m, &new_m);
        let step = if self.nesterov { (&new_m - gradient) * self.momentum as f32 + gradient } else { new_m };
        let matrix = if rest.len() == 1 { step } else { step.reshape(&[rows, columns]) };
        let direction = self.orthogonal(&matrix);
        let direction = if rest.len() == 1 { direction } else { direction.reshape(weight.dims()) };
        let stretch = (rows as f64 / columns.max(1) as f64).max(1.0).sqrt() as f32;
        let step = direction * (cx.scalar("lr") * stretch);
        if cx.decays() { weight * cx.scalar("kept") - step } else { weight - step }
    }
}
