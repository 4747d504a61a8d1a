use std::f32::consts::TAU;

use serde::Serialize;
use unisono_shaders::snippets;

use super::dropout::{draws, type_of_draws, wgsl_of_draw};
use crate::ops::registry::{Case, Entry};
use crate::trace::{Expression, Halves, Io, Lowering, Op, Product, RandomKey, Var};
use crate::values::{Array, Frame, Type};

/// y is a number for each element of x, drawn uniformly from (0, 1): one of (k + 1/2) / 2^23 with a whole k.
///
/// The draw is that of [`super::Dropout`]: a function of (seed, layer, epoch, the sample's position in the
/// epoch, element), so no result depends on the replicas. Of x only the shape counts.
#[derive(Debug, Clone, Serialize)]
pub struct Uniform {
    /// The random stream of the layer: [`unisono_random::stream`] of its path.
    pub stream: u32,
}

impl Op for Uniform {
    fn name(&self) -> &'static str {
        "uniform"
    }

    fn attrs(&self) -> String {
        format!("stream={}", self.stream)
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        type_of_draws(inputs)
    }

    /// There is none: the draws do not depend on x.
    fn gradient(&self, _: &Io<'_>) -> Vec<Option<Var>> {
        vec![None, None]
    }

    fn reference(&self, inputs: &[&Array], output: &Type, _: &Frame) -> Array {
        let draw = draws(self.stream, inputs[1], output);
        let number = |i: usize| (f64::from(draw(i) >> 9) + 0.5) / 8_388_608.0;
        Array::new(&inputs[0].dims, (0..inputs[0].data.len()).map(number).collect())
    }

    fn lowering(&self) -> Lowering {
        let draw = wgsl_of_draw(self.stream);
        // No rounding: 24 bits hold k + 1/2, and the factor is a power of 2.
        Lowering::Pointwise(Expression {
            wgsl: format!("((f32({draw} >> 9u) + 0.5) * {:?})", 1.0f32 / 8_388_608.0),
            snippets: &[snippets::PHILOX, snippets::RANDOM],
            whole: &[1],
            product: Product::Makes,
            adds: false,
            halves: Halves::Never,
            canonical: true,
        })
    }
}

impl Var {
    /// Returns numbers of this value's shape that are drawn uniformly from (0, 1). `path` names the layer, so
    /// that two layers never share draws. No gradient flows through it.
    pub fn uniform_noise(&self, path: &str) -> Var {
        let op = Uniform { stream: unisono_random::stream("uniform", path) };
        self.tape().apply(op, &[self, &self.tape().random()])
    }

    /// Returns normal noise of this value's shape with mean 0 and deviation 1, by Box and Muller's method
    /// (1958). `path` names the layer, so that two layers never share draws. Its magnitude is at most 5.8. No
    /// gradient flows through it.
    pub fn normal_noise(&self, path: &str) -> Var {
        let draw = |what: &str| {
            let op = Uniform { stream: unisono_random::stream(what, path) };
            self.tape().apply(op, &[self, &self.tape().random()])
        };
        let radius = (draw("noise radius").log() * -2.0).sqrt();
        radius * (draw("noise angle") * TAU).cos()
    }
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "uniform", cases }];

fn cases() -> Vec<Case> {
    let key = RandomKey { seed: 0x1234_5678_9abc_def0, epoch: 3, position: (1 << 32) - 2 };
    let words: Vec<f64> = key.words().iter().map(|&w| f64::from(w)).collect();
    let op = Uniform { stream: unisono_random::stream("noise radius", "1.gaussian_noise") };
    vec![Case::random(op, &[Type::sample(&[4, 5]), RandomKey::ty()]).with(1, &words)]
}
