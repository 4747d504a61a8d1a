//! Recurrent layers: LSTM, GRU and the simple one.

use serde::{Deserialize, Serialize};
use unisono_graph::{DType, Lead, Type, Var};

use super::functional::{
    GruWeights, LstmWeights, RnnWeights, Steps, gru_steps, join, lstm_steps, rnn_steps, stack_steps,
};
use super::settings::{MASK, positive, rate, valid};
use crate::model::{Context, Forward, Initializer, Layer};

/// Long short-term memory (Hochreiter and Schmidhuber 1997; PyTorch's `LSTM` with `batch_first=True`, Keras's
/// `LSTM`).
///
/// The formulas are those of [`functional::lstm`](super::functional::lstm), which also takes a start state.
/// This layer starts from zeros, or from where the previous batch ended if it is
/// [`stateful`](Self::stateful).
/// [`with_state`](Self::with_state) starts from a state and returns the one after the last step.
///
/// Shapes: `[B, T, in]` to `[B, T, H]`, all hidden states of the uppermost layer, or to `[B, H]`, its
/// [`last`](Self::last) one. [`bidirectional`](Self::bidirectional) makes 2 H of H. Axes between B and T stay
/// as they are: each of their entries is a sequence of its own, such as each row of a picture.
///
/// Parameters of layer l: `weight_ih_l{l}` `[4 H, in]`, `weight_hh_l{l}` `[4 H, H]`, `bias_ih_l{l}` `[4 H]`
/// and `bias_hh_l{l}` `[4 H]`, with gates in the order i, f, g, o. Default: uniform in +-1 / sqrt(H). The
/// names of the backward direction end in `_reverse`. A model whose sequences all have one step does not use
/// `weight_hh_l{l}`, which then gets no update, not even weight decay (in PyTorch its gradient is 0).
///
/// Errors: the input is not a batch of sequences of f32 with a step and a feature at least, there are no
/// units or layers, more than 2^24 units or 1,024 layers, the dropout rate is not in [0, 1), or the layer is
/// both stateful and bidirectional.
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

/// Gated recurrent unit (Cho et al. 2014; PyTorch's `GRU` with `batch_first=True`, Keras's
/// `GRU(reset_after=True)`).
///
/// The formulas are those of [`functional::gru`](super::functional::gru), which also takes a start state.
/// This layer starts from zeros, or from where the previous batch ended if it is
/// [`stateful`](Self::stateful).
/// [`with_state`](Self::with_state) starts from a state and returns the one after the last step.
///
/// Shapes: `[B, T, in]` to `[B, T, H]`, all hidden states of the uppermost layer, or to `[B, H]`, its
/// [`last`](Self::last) one. [`bidirectional`](Self::bidirectional) makes 2 H of H. Axes between B and T stay
/// as they are: each of their entries is a sequence of its own, such as each row of a picture.
///
/// Parameters of layer l: `weight_ih_l{l}` `[3 H, in]`, `weight_hh_l{l}` `[3 H, H]`, `bias_ih_l{l}` `[3 H]`
/// and `bias_hh_l{l}` `[3 H]`, with gates in the order r, z, n. Default: uniform in +-1 / sqrt(H). The names
/// of the backward direction end in `_reverse`.
///
/// Errors: those of [`Lstm`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gru {
    shape: Shape,
}

/// Simple recurrent layer (Elman 1990; PyTorch's `RNN` with `batch_first=True`, Keras's `SimpleRNN`): h =
/// tanh(W x + b + U h + d).
///
/// The formula is that of [`functional::rnn`](super::functional::rnn), which also takes a start state. This
/// layer starts from zeros, or from where the previous batch ended if it is [`stateful`](Self::stateful).
///
/// Shapes: `[B, T, in]` to `[B, T, H]`, all hidden states of the uppermost layer, or to `[B, H]`, its
/// [`last`](Self::last) one. [`bidirectional`](Self::bidirectional) makes 2 H of H. Axes between B and T stay
/// as they are: each of their entries is a sequence of its own, such as each row of a picture.
///
/// Parameters of layer l: `weight_ih_l{l}` `[H, in]`, `weight_hh_l{l}` `[H, H]`, `bias_ih_l{l}` `[H]` and
/// `bias_hh_l{l}` `[H]`. Default: uniform in +-1 / sqrt(H). The names of the backward direction end in
/// `_reverse`.
///
/// Errors: those of [`Lstm`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimpleRnn {
    shape: Shape,
}

/// The most hidden features. The square of more, times the gates, is more than a weight can have.
const MOST_UNITS: usize = 1 << 24;
/// The most layers on top of each other. Each is traced step by step, so that many more would not end.
const MOST_LAYERS: usize = 1024;

/// The settings that all three layers have. Its field names are part of the format of exported models.
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
    #[serde(skip)]
    keras_initializers: bool,
}

macro_rules! recurrent {
    ($layer:ident, $gates:literal, $weights:ident, $state:expr, $steps:ident) => {
        impl $layer {
            /// Creates a single forward layer with H = `units` hidden features. By default it has biases,
            /// returns all hidden states and starts each batch from zeros.
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
                        keras_initializers: false,
                    },
                }
            }

            /// Sets the number of layers on top of each other. Default: 1.
            pub fn layers(mut self, layers: usize) -> Self {
                self.shape.layers = layers;
                self
            }

            /// Adds the backward direction: the output has the H features of the forward direction, then the
            /// H features of the backward one. Default: forward only.
            pub fn bidirectional(mut self) -> Self {
                self.shape.both_ways = true;
                self
            }

            /// Starts with the values that Keras's layer of the same name starts with: Glorot uniform
            /// `weight_ih`, orthogonal `weight_hh`, and biases of 0, except that an LSTM's forget gate has a
            /// `bias_ih` of 1 (Jozefowicz et al. 2015; Keras's `unit_forget_bias`). Default: as PyTorch's.
            pub fn keras_initializers(mut self) -> Self {
                self.shape.keras_initializers = true;
                self
            }

            /// Returns only the last hidden state: that after the last step and, backward, that after the
            /// first. Default: all of them.
            pub fn last(mut self) -> Self {
                self.shape.last = true;
                self
            }

            /// Omits all biases. Default: the layer has them.
            pub fn no_bias(mut self) -> Self {
                self.shape.bias = false;
                self
            }

            /// Starts each batch from the final state of the previous batch, row by row (Keras's
            /// `stateful=True`). Default: from zeros.
            ///
            /// The state is zeros at the start of an epoch, of an evaluation or a prediction, and after
            /// [`Trainer::reset_carries`](crate::Trainer::reset_carries). Gradients stay within the batch.
            /// [`Loader::lanes`](unisono_data::Loader::lanes) makes batches whose rows continue those of the
            /// previous batch.
            pub fn stateful(mut self) -> Self {
                self.shape.stateful = true;
                self
            }

            /// Returns whether a batch starts where the previous one ended.
            pub(super) fn is_stateful(&self) -> bool {
                self.shape.stateful
            }

            /// Sets the dropout rate between two layers, in training. Default: 0.
            pub fn dropout(mut self, rate: f32) -> Self {
                self.shape.dropout = rate;
                self
            }

            /// Computes the layer over padded sequences (Keras's `mask`; PyTorch's packed sequences): steps
            /// whose `mask` `[B, T]` is 0 leave the state as it is, and their output is zeros. `None` masks
            /// nothing.
            pub fn masked(&self, cx: &mut Context, x: &Var, mask: Option<&Var>) -> Var {
                self.run(cx, x, mask, &[]).0
            }

            /// Computes the layer from a start state, such as a decoder's from its encoder's final one
            /// (Keras's `initial_state` and `return_state=True`; PyTorch's `h_0` and `c_0`). Returns its
            /// output and its final state.
            ///
            /// A state is a list of values `[B, H]`. It goes through the layers from the lowest on, and in a
            /// bidirectional layer first through the forward direction, then the backward one. Each of these
            /// has its h, followed by its c if it is an LSTM. An empty list stands for zeros.
            ///
            /// Errors: those of the layer; the state has other values, or the layer is stateful.
            ///
            /// ```
            /// use unisono::{Dense, Gru, Model, Outputs};
            ///
            /// let (encoder, decoder) = (Gru::new(32), Gru::new(32));
            /// let translate = Model::new(move |cx, x| {
            ///     let mut state = Vec::new();
            ///     cx.within("encoder", "gru", |cx| {
            ///         let (all, last) = encoder.with_state(cx, &x["source"], None, &[]);
            ///         state = last;
            ///         all
            ///     });
            ///     let y = cx.within("decoder", "gru", |cx| {
            ///         decoder.with_state(cx, &x["target"], None, &state).0
            ///     });
            ///     Outputs::new().with("words", &cx.apply("words", &Dense::new(100), &y))
            /// });
            /// ```
            pub fn with_state(
                &self,
                cx: &mut Context,
                x: &Var,
                mask: Option<&Var>,
                start: &[Var],
            ) -> (Var, Vec<Var>) {
                let each = $state.len() * if self.shape.both_ways { 2 } else { 1 };
                let expected = self.shape.state(x);
                let fits = start.len() == each.saturating_mul(self.shape.layers)
                    && start.iter().all(|value| value.ty() == &expected);
                if self.shape.stateful || !(start.is_empty() || fits) {
                    let got: Vec<String> = start.iter().map(|value| value.ty().to_string()).collect();
                    let problem = format!(
                        "a layer that is not stateful starts from {each} x {} values {expected}, got {}",
                        self.shape.layers,
                        if self.shape.stateful { "a stateful one".to_owned() } else { got.join(", ") }
                    );
                    cx.fail(self.name(), problem);
                    return (x.clone(), vec![]);
                }
                self.run(cx, x, mask, start)
            }

            fn run(&self, cx: &mut Context, x: &Var, mask: Option<&Var>, start: &[Var]) -> (Var, Vec<Var>) {
                let (mut starts, mut last) = (start.chunks($state.len()), Vec::new());
                let y = self.shape.forward(self.name(), cx, x, mask, |cx, x, suffix, reverse| {
                    let (rows, units) = ($gates * self.shape.units, self.shape.units);
                    let mut ask = |name: &str, dims: &[usize]| {
                        let start = self.shape.initializer(name, $gates);
                        let name = format!("{name}_{suffix}");
                        match dims {
                            [_] => cx.parameter(&name, dims, start),
                            _ => cx.kernel(&name, dims, 0, start),
                        }
                    };
                    let weights = $weights {
                        weight_ih: ask("weight_ih", &[rows, x.dims().last().copied().unwrap_or_default()]),
                        weight_hh: ask("weight_hh", &[rows, units]),
                        bias_ih: self.shape.bias.then(|| ask("bias_ih", &[rows])),
                        bias_hh: self.shape.bias.then(|| ask("bias_hh", &[rows])),
                    };
                    let of_state = self.shape.state(x);
                    let state = |name: &&str| cx.carry(&format!("{name}_{suffix}"), &of_state.dims);
                    let before: Vec<Var> = match self.shape.stateful {
                        true => $state.iter().map(state).collect(),
                        false => starts.next().unwrap_or_default().to_vec(),
                    };
                    let (all, after) = $steps(x, &weights, &before, mask, reverse);
                    if self.shape.stateful {
                        before.iter().zip(&after).for_each(|(carry, value)| cx.keep(carry, value));
                    }
                    last.extend(after.iter().cloned());
                    (all, after)
                });
                (y, last)
            }
        }

        impl Forward for $layer {
            fn forward(&self, cx: &mut Context, x: &Var) -> Var {
                self.masked(cx, x, None)
            }
        }
    };
}

recurrent!(Lstm, 4, LstmWeights, ["h", "c"], lstm_steps);
recurrent!(Gru, 3, GruWeights, ["h"], gru_steps);
recurrent!(SimpleRnn, 1, RnnWeights, ["h"], rnn_steps);

impl Shape {
    /// Returns the initializer of the parameter called `name`. `gates` is the layer's number of gates.
    fn initializer(&self, name: &str, gates: usize) -> Initializer {
        let units = self.units;
        match name {
            _ if !self.keras_initializers => Initializer::Uniform(1.0 / (units as f32).sqrt()),
            "weight_ih" => Initializer::GlorotUniform,
            "weight_hh" => Initializer::Orthogonal(1.0),
            // Only an LSTM has four gates: i, f, g, o.
            "bias_ih" if gates == 4 => {
                let forget = |row| if (units..2 * units).contains(&row) { 1.0 } else { 0.0 };
                Initializer::Values((0..gates * units).map(forget).collect())
            }
            _ => Initializer::Zeros,
        }
    }

    /// Returns the type of a state of a layer for sequences `[B, ..., T, in]`: `[B, ..., H]`.
    fn state(&self, x: &Var) -> Type {
        let others = x.dims().len().saturating_sub(2);
        Type::sample(&[&x.dims()[..others], &[self.units]].concat())
    }

    /// Runs all layers, each in one direction or both; `direction` runs one layer in one direction.
    fn forward(
        &self,
        layer: &str,
        cx: &mut Context,
        x: &Var,
        mask: Option<&Var>,
        mut direction: impl FnMut(&mut Context, &Var, &str, bool) -> Steps,
    ) -> Var {
        let sequence = x.ty().lead == Lead::Sample && x.ty().dtype == DType::F32 && x.dims().len() >= 2;
        if !sequence || x.ty().count() == 0 {
            let hint = match x.dims().len() {
                1 => " (if the layer before is recurrent, leave out its `last`)",
                _ => "",
            };
            cx.fail(layer, format!("needs sequences [B, steps, features] of f32, got {}{hint}", x.ty()));
            return x.clone();
        }
        let most = |setting: &str, value: usize, most: usize| {
            (value > most).then(|| format!("{setting} is {value}, and must be at most {most}"))
        };
        let settings = [
            positive("units", self.units),
            positive("layers", self.layers),
            most("units", self.units, MOST_UNITS),
            most("layers", self.layers, MOST_LAYERS),
            rate("dropout", self.dropout),
            (self.dropout > 0.0 && self.layers == 1).then(|| {
                "dropout is between layers, and there is one: add the layer Dropout before or behind it"
                    .into()
            }),
        ];
        if !valid(layer, cx, settings) {
            return x.clone();
        }
        let steps = &x.dims()[..x.dims().len() - 1];
        if let Some(mask) = mask.filter(|mask| mask.ty() != &Type::sample(steps)) {
            let problem = match mask.ty().dtype {
                DType::F32 => format!("a mask {} does not fit sequences {}", mask.ty(), x.ty()),
                _ => format!("a mask {}: {MASK}", mask.ty()),
            };
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
        if self.both_ways && !self.last {
            cx.looks_ahead();
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
                y = y.dropout(self.dropout, &format!("{}.dropout_l{index}", cx.stream()));
            }
        }
        y
    }
}

/// Joins the features of all directions: of all steps, or of the last one of each.
fn side_by_side(ways: &[Steps], last: bool) -> Option<Var> {
    let one = |(all, after): &Steps| if last { after.first().cloned() } else { stack_steps(all) };
    join(&ways.iter().map(one).collect::<Option<Vec<_>>>()?, -1)
}
