//! Recurrent networks, unrolled over time.

use unisono_graph::{Lead, Var};

use super::sequence::{stack, unstack};

/// The weights of one direction of one LSTM layer, gates in the order i, f, g, o.
#[derive(Clone, Debug)]
pub struct LstmWeights {
    /// `[4 H, in]`.
    pub weight_ih: Var,
    /// `[4 H, H]`.
    pub weight_hh: Var,
    /// `[4 H]`.
    pub bias_ih: Option<Var>,
    /// `[4 H]`.
    pub bias_hh: Option<Var>,
}

/// The weights of one direction of one GRU layer, gates in the order r, z, n.
#[derive(Clone, Debug)]
pub struct GruWeights {
    /// `[3 H, in]`.
    pub weight_ih: Var,
    /// `[3 H, H]`.
    pub weight_hh: Var,
    /// `[3 H]`.
    pub bias_ih: Option<Var>,
    /// `[3 H]`.
    pub bias_hh: Option<Var>,
}

/// An LSTM over `[B, T, in]` from `h0` and `c0`, `[B, H]` each: all h `[B, T, H]`, the last h and the last c (Hochreiter and
/// Schmidhuber 1997; PyTorch's `LSTM`, batch first).
///
/// i, f, o = sigmoid, g = tanh of W x + b + U h + d; c = f c + i g; h = o tanh(c).
pub fn lstm(x: &Var, weights: &LstmWeights, h0: &Var, c0: &Var) -> (Var, Var, Var) {
    let (all, h, c) = lstm_steps(x, weights, Some((h0.clone(), c0.clone())), false);
    (stack(&all).unwrap_or_else(|| x.clone()), h, c)
}

/// A GRU over `[B, T, in]` from `h0` `[B, H]`: all h `[B, T, H]` and the last one (Cho et al. 2014; PyTorch's `GRU`, batch
/// first).
///
/// r, z = sigmoid of W x + b + U h + d; n = tanh(W x + b + r (U h + d)); h = (1 - z) n + z h.
pub fn gru(x: &Var, weights: &GruWeights, h0: &Var) -> (Var, Var) {
    let (all, h) = gru_steps(x, weights, Some(h0.clone()), false);
    (stack(&all).unwrap_or_else(|| x.clone()), h)
}

/// As [`lstm`]: each h by its place in the sequence; the last ones are those of place 0 when it runs in `reverse`. Without a
/// start, h and c are zeros.
pub(in crate::layers) fn lstm_steps(
    x: &Var,
    weights: &LstmWeights,
    start: Option<(Var, Var)>,
    reverse: bool,
) -> (Vec<Var>, Var, Var) {
    let units = hidden(&weights.weight_hh);
    // Both biases are added to the same sum.
    let gates = biased(&biased(&x.matmul_t(&weights.weight_ih), &weights.bias_ih), &weights.bias_hh);
    let cell = |step: &Var, before: Option<&(Var, Var)>| {
        let sum = before.map_or_else(|| step.clone(), |(h, _)| step + h.matmul_t(&weights.weight_hh));
        let [i, f, g, o] = parts::<4>(&sum, units);
        let new = i.sigmoid() * g.tanh();
        let c = before.map_or_else(|| new.clone(), |(_, c)| f.sigmoid() * c + &new);
        (o.sigmoid() * c.tanh(), c)
    };
    let states = run(&gates, reverse, start, cell);
    let last = if reverse { states.first() } else { states.last() };
    let (h, c) = last.cloned().unwrap_or_else(|| (x.clone(), x.clone()));
    (states.into_iter().map(|(h, _)| h).collect(), h, c)
}

/// As [`gru`]: each h by its place in the sequence; the last one is that of place 0 when it runs in `reverse`. Without a start,
/// h is zeros.
pub(in crate::layers) fn gru_steps(
    x: &Var,
    weights: &GruWeights,
    start: Option<Var>,
    reverse: bool,
) -> (Vec<Var>, Var) {
    let units = hidden(&weights.weight_hh);
    let gates = biased(&x.matmul_t(&weights.weight_ih), &weights.bias_ih);
    let cell = |step: &Var, before: Option<&Var>| {
        let own = before.map(|h| biased(&h.matmul_t(&weights.weight_hh), &weights.bias_hh));
        let own = own.or_else(|| Some(weights.bias_hh.as_ref()?.expand(Lead::Sample, step.dims())));
        let [r, z, n] = parts::<3>(step, units);
        let Some([hr, hz, hn]) = own.map(|own| parts::<3>(&own, units)) else {
            return n.tanh() * (1.0 - z.sigmoid());
        };
        let (r, z) = ((r + hr).sigmoid(), (z + hz).sigmoid());
        let n = (n + r * hn).tanh();
        let towards = before.map_or_else(|| -&n, |h| h - &n);
        z * towards + n
    };
    let states = run(&gates, reverse, start, cell);
    let last = if reverse { states.first() } else { states.last() };
    let h = last.cloned().unwrap_or_else(|| x.clone());
    (states, h)
}

/// Runs a cell over the steps of `gates`: the state after each, by its place in the sequence.
fn run<S: Clone>(
    gates: &Var,
    reverse: bool,
    mut state: Option<S>,
    cell: impl Fn(&Var, Option<&S>) -> S,
) -> Vec<S> {
    let mut steps = unstack(gates);
    if reverse {
        steps.reverse();
    }
    let mut after = |step: &Var| state.insert(cell(step, state.as_ref())).clone();
    let mut all: Vec<S> = steps.iter().map(&mut after).collect();
    if reverse {
        all.reverse();
    }
    all
}

/// H of `[gates H, H]`.
fn hidden(weight_hh: &Var) -> usize {
    weight_hh.dims().last().copied().unwrap_or(0)
}

fn biased(x: &Var, bias: &Option<Var>) -> Var {
    bias.as_ref().map_or_else(|| x.clone(), |b| x + b)
}

/// The gates of `[B, N H]`.
fn parts<const N: usize>(x: &Var, units: usize) -> [Var; N] {
    std::array::from_fn(|i| x.slice(-1, i * units..(i + 1) * units))
}
