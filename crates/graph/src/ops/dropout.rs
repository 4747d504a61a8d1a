use serde::Serialize;
use unisono_random::Stream;
use unisono_shaders::snippets;

use crate::ops::registry::{Case, Entry};
use crate::trace::{Expression, Halves, Io, Lowering, Op, Product, RandomKey, Var};
use crate::values::{Array, Frame, Lead, Type};

/// y = x / (1 - rate) where the sample's own draw keeps the element, else 0 (Srivastava et al. 2014;
/// "inverted", as in Keras and PyTorch).
///
/// The draw is a function of (seed, layer, epoch, the sample's position in the epoch, element), so no result
/// depends on the replicas. The gradient draws a second time instead of storing a mask.
#[derive(Debug, Clone, Serialize)]
pub struct Dropout {
    /// The share of the elements that become 0, in [0, 1).
    pub rate: f32,
    /// The random stream of the layer: [`unisono_random::stream`] of its path.
    pub stream: u32,
}

impl Dropout {
    /// Returns the least random word with which an element is kept.
    fn threshold(&self) -> u32 {
        (f64::from(self.rate) * 4_294_967_296.0) as u32
    }

    fn scale(&self) -> f32 {
        1.0 / (1.0 - self.rate)
    }
}

impl Op for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn attrs(&self) -> String {
        format!("{} stream={}", self.rate, self.stream)
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        if !(0.0..1.0).contains(&self.rate) {
            return Err(format!("rate {} is not in [0, 1)", self.rate));
        }
        type_of_draws(inputs)
    }

    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        vec![Some(dy.tape().apply(self.clone(), &[dy, &x[1]])), None]
    }

    fn reference(&self, inputs: &[&Array], output: &Type, _: &Frame) -> Array {
        let draw = draws(self.stream, inputs[1], output);
        let scale = f64::from(self.scale());
        let kept = |(i, x): (usize, &f64)| if draw(i) >= self.threshold() { x * scale } else { 0.0 };
        Array::new(&inputs[0].dims, inputs[0].data.iter().enumerate().map(kept).collect())
    }

    fn lowering(&self) -> Lowering {
        let draw = wgsl_of_draw(self.stream);
        Lowering::Pointwise(Expression {
            wgsl: format!("select(0.0, $0 * {:?}, {draw} >= {}u)", self.scale(), self.threshold()),
            snippets: &[snippets::PHILOX, snippets::RANDOM],
            whole: &[1],
            product: Product::Makes,
            adds: false,
            halves: Halves::Never,
            canonical: false,
        })
    }
}

/// Returns the type of random draws, one for each element of the first operand. The second operand is the
/// random key.
pub(super) fn type_of_draws(inputs: &[&Type]) -> Result<Type, String> {
    match (inputs[0].lead, inputs[1] == &RandomKey::ty()) {
        (Lead::Sample, true) => Ok(inputs[0].clone()),
        (Lead::Sample, false) => Err(format!("{} is not the random key", inputs[1])),
        _ => Err(format!("{} has no samples", inputs[0])),
    }
}

/// Returns the random word of each element of `output`, by its index.
pub(super) fn draws(stream: u32, key: &Array, output: &Type) -> impl Fn(usize) -> u32 + use<> {
    let words: Vec<u64> = key.data.iter().map(|&w| w as u64).collect();
    let stream = Stream::new(words[0] | words[1] << 32, stream);
    let position = words[3] | words[4] << 32;
    let width = output.count().max(1);
    move |i| stream.word(words[2] as u32, position + (i / width) as u64, (i % width) as u64)
}

/// Returns the WGSL of an element's random word. Operand 1 is the random key.
pub(super) fn wgsl_of_draw(stream: u32) -> String {
    format!("random_draw(vec2<u32>($1[0], $1[1] ^ {stream}u), $1[2], $1[3], $1[4], $row, $element)")
}

impl Var {
    /// Returns the value with elements of each sample dropped at random. `path` names the layer, so that two
    /// layers never share draws.
    pub fn dropout(&self, rate: f32, path: &str) -> Var {
        if rate == 0.0 {
            return self.clone();
        }
        let op = Dropout { rate, stream: unisono_random::stream("dropout", path) };
        self.tape().apply(op, &[self, &self.tape().random()])
    }
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "dropout", cases }];

fn cases() -> Vec<Case> {
    let key = RandomKey { seed: 0x1234_5678_9abc_def0, epoch: 3, position: (1 << 32) - 2 };
    let words: Vec<f64> = key.words().iter().map(|&w| f64::from(w)).collect();
    let op = Dropout { rate: 0.3, stream: unisono_random::stream("dropout", "1.dropout") };
    vec![Case::random(op, &[Type::sample(&[4, 5]), RandomKey::ty()]).with(1, &words)]
}
