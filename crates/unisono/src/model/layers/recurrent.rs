//! Recurrent layers.

use serde::{Deserialize, Serialize};
use unisono_graph::{DType, Lead, Type, Var};

use super::functional::{GruWeights, LstmWeights, Steps, gru_steps, join, lstm_steps, stack};
use crate::{Context, Description, Initializer, Layer};

/// Long short-term memory over `[B, T, in]`: all h of the last layer, `[B, T, H]` (PyTorch's `LSTM`, batch first), or the last
/// one, `[B, H]` (Keras's `LSTM`). It starts from zeros unless it is [`stateful`](Self::stateful);
/// [`super::functional::lstm`] starts from anything.
///
/// Parameters of layer l, uniform within 1 / sqrt(H): `weight_ih_l{l}` `[4 H, in]`, `weight_hh_l{l}` `[4 H, H]`, `bias_ih_l{l}`
/// and `bias_hh_l{l}` `[4 H]`, gates in the order i, f, g, o; those of the way back end in `_reverse`.
///
/// ```
/// use unisono::{Dense, Lstm, Sequential};
///
/// let model = Sequential::new().add(Lstm::new(128).layers(2).last()).add(Dense::new(10));
/// ```
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lstm {
    shape: Shape,
}

/// Gated recurrent units over `[B, T, in]`: all h of the last layer, `[B, T, H]` (PyTorch's `GRU`, batch first), or the last one,
/// `[B, H]` (Keras's `GRU(reset_after=True)`). It starts from zeros unless it is [`stateful`](Self::stateful);
/// [`super::functional::gru`] starts from anything.
///
/// Parameters are named as those of [`Lstm`], gates in the order r, z, n: `[3 H, in]`, `[3 H, H]`, `[3 H]` and `[3 H]`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gru {
    shape: Shape,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    units: usize,
    layers: usize,
    both_ways: bool,
    bias: bool,
    last: bool,
    stateful: bool,
    dropout: f32,
}

macro_rules! recurrent {
    ($layer:ident, $name:literal, $gates:literal, $weights:ident, $state:expr, $steps:ident) => {
        impl $layer {
            /// One layer of H = `units`, forward in time.
            pub fn new(units: usize) -> Self {
                Self {
                    shape: Shape {
                        units,
                        layers: 1,
                        both_ways: false,
                        bias: true,
                        last: false,
                        stateful: false,
                        dropout: 0.0,
                    },
                }
            }

            /// Layers on top of each other.
            pub fn layers(mut self, layers: usize) -> Self {
                self.shape.layers = layers;
                self
            }

            /// Also back in time: features of both ways one behind the other, 2 H of them.
            pub fn bidirectional(mut self) -> Self {
                self.shape.both_ways = true;
                self
            }

            /// Gives the last h only: after the last step, and on the way back after the first.
            pub fn last(mut self) -> Self {
                self.shape.last = true;
                self
            }

            /// Without biases.
            pub fn no_bias(mut self) -> Self {
                self.shape.bias = false;
                self
            }

            /// Starts each batch from the state that the batch before ended with, row by row (Keras's `stateful=True`); from
            /// zeros at the start of an epoch, of an evaluation or a prediction, and after
            /// [`Trainer::reset_carries`](crate::Trainer::reset_carries). Gradients stay within the batch.
            /// [`Loader::lanes`](unisono_data::Loader::lanes) makes such batches.
            pub fn stateful(mut self) -> Self {
                self.shape.stateful = true;
                self
            }

            /// Drops a share of what goes from one layer to the next.
            pub fn dropout(mut self, rate: f32) -> Self {
                self.shape.dropout = rate;
                self
            }

            /// The layer over sequences of which only the places whose `mask` `[B, T]` is not 0 are there, the others padding
            /// (Keras's `mask`; PyTorch's packed sequences): they leave the state as it is, and what is given for them is zeros.
            pub fn masked(&self, cx: &mut Context, x: &Var, mask: Option<&Var>) -> Var {
                self.shape.forward($name, cx, x, mask, |cx, x, suffix, reverse| {
                    let (rows, units) = ($gates * self.shape.units, self.shape.units);
                    let start = Initializer::Uniform(1.0 / (units as f32).sqrt());
                    let mut ask = |name: &str, dims: &[usize]| {
                        cx.parameter(&format!("{name}_{suffix}"), dims, start.clone())
                    };
                    let weights = $weights {
                        weight_ih: ask("weight_ih", &[rows, x.dims()[1]]),
                        weight_hh: ask("weight_hh", &[rows, units]),
                        bias_ih: self.shape.bias.then(|| ask("bias_ih", &[rows])),
                        bias_hh: self.shape.bias.then(|| ask("bias_hh", &[rows])),
                    };
                    let state = |name: &&str| cx.carry(&format!("{name}_{suffix}"), &[units]);
                    let before: Vec<Var> =
                        if self.shape.stateful { $state.iter().map(state).collect() } else { vec![] };
                    let (all, after) = $steps(x, &weights, &before, mask, reverse);
                    before.iter().zip(&after).for_each(|(carry, value)| cx.keep(carry, value));
                    (all, after)
                })
            }
        }

        impl Layer for $layer {
            fn name(&self) -> &str {
                $name
            }

            fn description(&self) -> Option<Description> {
                Some(Description::$layer(*self))
            }

            fn forward(&self, cx: &mut Context, x: &Var) -> Var {
                self.masked(cx, x, None)
            }
        }
    };
}

recurrent!(Lstm, "lstm", 4, LstmWeights, ["h", "c"], lstm_steps);
recurrent!(Gru, "gru", 3, GruWeights, ["h"], gru_steps);

impl Shape {
    fn forward(
        &self,
        layer: &str,
        cx: &mut Context,
        x: &Var,
        mask: Option<&Var>,
        direction: impl Fn(&mut Context, &Var, &str, bool) -> Steps,
    ) -> Var {
        let sequence = x.ty().lead == Lead::Sample && x.ty().dtype == DType::F32 && x.dims().len() == 2;
        if !sequence || x.ty().count() == 0 || self.layers == 0 || self.units == 0 {
            let problem = format!("{} layers of {} units for {}", self.layers, self.units, x.ty());
            cx.fail(
                layer,
                format!("needs a layer, a unit and sequences [B, steps, features], got {problem}"),
            );
            return x.clone();
        }
        if let Some(mask) = mask.filter(|mask| mask.ty() != &Type::sample(&x.dims()[..1])) {
            let problem = format!("a mask {} does not fit sequences {}", mask.ty(), x.ty());
            cx.fail(layer, problem);
            return x.clone();
        }
        if self.stateful && self.both_ways {
            cx.fail(
                layer,
                "a stateful layer cannot run back in time: what comes after a batch is not known".into(),
            );
            return x.clone();
        }
        let mut y = x.clone();
        for index in 0..self.layers {
            let top = index + 1 == self.layers;
            let mut ways = vec![direction(cx, &y, &format!("l{index}"), false)];
            if self.both_ways {
                ways.push(direction(cx, &y, &format!("l{index}_reverse"), true));
            }
            y = side_by_side(&ways, top && self.last).unwrap_or(y);
            if !top && cx.is_training() {
                y = y.dropout(self.dropout, &format!("{}.dropout_l{index}", cx.path()));
            }
        }
        y
    }
}

/// Features of all ways one behind the other: of the last step on each, or of all.
fn side_by_side(ways: &[Steps], last: bool) -> Option<Var> {
    let one = |(all, after): &Steps| if last { after.first().cloned() } else { stack(all) };
    join(&ways.iter().map(one).collect::<Option<Vec<_>>>()?, -1)
}
