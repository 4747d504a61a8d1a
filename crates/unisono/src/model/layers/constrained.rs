//! Layers whose weights are computed from what is trained: weight and spectral normalization.

use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use super::settings::valid;
use crate::model::description::Describe;
use crate::model::{Context, Description, Forward, Initializer, Layer};

/// Weight normalization of the layers inside (Salimans and Kingma 2016; PyTorch's
/// `parametrizations.weight_norm`): each weight w is g v / |v|, with a length g for each of its first axis's
/// entries and the norm of each entry of v.
///
/// Weights are parameters with two axes or more whose names contain `weight`. Shapes: those of the inner
/// layer. Parameters: those of the inner layer, where each weight NAME is v, and NAME`_g` `[out]` (default:
/// ones, so that rows start with length 1). PyTorch starts with the lengths of v. A row of zeros, such as
/// that of an embedding's padding, stays zeros: no gradient reaches it.
///
/// ```
/// use unisono::{Dense, Relu, Sequential, WeightNorm};
///
/// let model = Sequential::new().add(WeightNorm::new(Dense::new(32))).add(Relu).add(Dense::new(3));
/// ```
#[doc(alias("weight_norm", "WeightNormalization"))]
pub struct WeightNorm {
    inner: Box<dyn Layer>,
}

/// The description of a [`WeightNorm`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(deny_unknown_fields)]
pub struct WeightNormDescription {
    /// The inner layer.
    pub inner: Box<Description>,
}

/// Spectral normalization of the layers inside (Miyato et al. 2018; Keras's `SpectralNormalization`,
/// PyTorch's `parametrizations.spectral_norm`): each weight is divided by its largest singular value, as a
/// matrix whose rows are the entries of its first axis.
///
/// A training step finds the singular value by [`iterations`](Self::iterations) of the power method from the
/// vector of the step before, which is the statistic `weight_u`. Evaluation uses that vector as it is.
/// PyTorch keeps the right singular vector as well, instead of computing it from `weight_u`.
///
/// Weights are those of [`WeightNorm`]. Shapes and parameters: those of the inner layer. Statistics: NAME`_u`
/// `[out]` for each weight NAME, such as `weight_u`.
///
/// Errors: no iterations, or more than 100.
///
/// ```
/// use unisono::{Conv2d, LeakyRelu, Sequential, SpectralNorm};
///
/// let critic = Sequential::new().add(SpectralNorm::new(Conv2d::new(32, 3))).add(LeakyRelu::new(0.2));
/// ```
#[doc(alias("spectral_norm", "SpectralNormalization"))]
pub struct SpectralNorm {
    inner: Box<dyn Layer>,
    iterations: usize,
}

/// The description of a [`SpectralNorm`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(deny_unknown_fields)]
pub struct SpectralNormDescription {
    /// The inner layer.
    pub inner: Box<Description>,
    /// The iterations of the power method in a step.
    pub iterations: usize,
}

/// The most iterations. Each is traced on its own.
const MOST: usize = 100;

/// The least length of a vector that is divided by its length.
const LEAST: f32 = 1e-12;

impl WeightNorm {
    /// Normalizes the weights of `inner`.
    pub fn new(inner: impl Layer + 'static) -> Self {
        Self { inner: Box::new(inner) }
    }
}

impl SpectralNorm {
    /// Normalizes the weights of `inner`, with one iteration a step.
    pub fn new(inner: impl Layer + 'static) -> Self {
        Self { inner: Box::new(inner), iterations: 1 }
    }

    /// Sets the iterations of the power method in a training step. Default: 1.
    #[doc(alias = "power_iterations")]
    pub fn iterations(self, iterations: usize) -> Self {
        Self { iterations, ..self }
    }
}

impl Forward for WeightNorm {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        with_weights(cx, &*self.inner, x, |cx, name, v| {
            let out = v.dims()[0];
            let axes: Vec<isize> = (1..v.dims().len() as isize).map(|axis| -axis).collect();
            let g = cx.parameter(&format!("{name}_g"), &[out], Initializer::Ones);
            let mut dims = vec![1; v.dims().len()];
            dims[0] = out;
            let (square, least) = (v.square().sum_keep(&axes), v.tape().constant(LEAST * LEAST));
            // A row without a length gets no gradient, which would be that of a division by 0.
            let has_length = square.greater(&least);
            v * (g.reshape(&dims) / square.maximum(&least).sqrt() * has_length)
        })
    }
}

impl Forward for SpectralNorm {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let problem = (!(1..=MOST).contains(&self.iterations))
            .then(|| format!("iterations is {}, and must be in 1..={MOST}", self.iterations));
        if !valid(self.name(), cx, [problem]) {
            return x.clone();
        }
        let iterations = self.iterations;
        with_weights(cx, &*self.inner, x, move |cx, name, weight| {
            let (rows, columns) = (weight.dims()[0], weight.dims()[1..].iter().product());
            let matrix = weight.reshape(&[rows, columns]);
            let seen = matrix.detach();
            let stored = cx.statistic(&format!("{name}_u"), &[rows], Initializer::Normal(1.0));
            let mut u = stored.detach().reshape(&[1, rows]);
            let right = |u: &Var| unit(&u.matmul(&seen));
            let mut v = right(&u);
            if cx.is_training() && !cx.is_statistic_frozen(&format!("{name}_u")) {
                for iteration in 0..iterations {
                    if iteration > 0 {
                        v = right(&u);
                    }
                    u = unit(&v.matmul_t(&seen));
                }
                cx.replace(&stored, &u.reshape(&[rows]));
            } else {
                u = unit(&u);
            }
            let largest = (v.detach().matmul_t(&matrix) * u.detach()).sum_all();
            weight / largest
        })
    }
}

/// Returns a vector divided by its length.
fn unit(x: &Var) -> Var {
    let length = x.square().sum_all().sqrt();
    x / length.maximum(&x.tape().constant(LEAST))
}

/// Applies a layer with what `with` computes in place of each of its weights, from the weight's own name and
/// value.
fn with_weights(
    cx: &mut Context,
    inner: &dyn Layer,
    x: &Var,
    with: impl Fn(&mut Context, &str, &Var) -> Var + Send + Sync + 'static,
) -> Var {
    let around = cx.reparametrize.clone();
    let outer = around.clone();
    cx.reparametrize(move |cx, full, value| {
        // What is around this layer comes first.
        let value = outer.as_ref().map_or_else(|| value.clone(), |outer| outer(cx, full, value));
        // The name relative to this layer, which may own nested weights such as "out_proj.weight".
        let path = cx.path();
        let own = full.strip_prefix(&*path).map_or(full, |own| own.trim_start_matches('.'));
        let last = own.rsplit('.').next().unwrap_or(own);
        let is_weight = value.dims().len() >= 2 && last.contains("weight");
        if is_weight { with(cx, own, &value) } else { value }
    });
    let y = inner.forward(cx, x);
    cx.reparametrize = around;
    y
}

impl Describe<WeightNormDescription> for WeightNorm {
    fn settings(&self) -> Option<WeightNormDescription> {
        Some(WeightNormDescription { inner: Box::new(self.inner.description()?) })
    }
}

impl From<WeightNormDescription> for WeightNorm {
    fn from(settings: WeightNormDescription) -> Self {
        Self { inner: settings.inner.layer() }
    }
}

impl Describe<SpectralNormDescription> for SpectralNorm {
    fn settings(&self) -> Option<SpectralNormDescription> {
        let inner = Box::new(self.inner.description()?);
        Some(SpectralNormDescription { inner, iterations: self.iterations })
    }
}

impl From<SpectralNormDescription> for SpectralNorm {
    fn from(settings: SpectralNormDescription) -> Self {
        Self { inner: settings.inner.layer(), iterations: settings.iterations }
    }
}
