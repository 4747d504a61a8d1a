//! Recurrent networks, unrolled over time.

use unisono_graph::{Lead, Var};

use super::sequence::{stack_steps, unstack_steps};

/// The weights of one direction of one LSTM layer, gates in the order i, f, g, o.
#[derive(Clone, Debug)]
pub struct LstmWeights {
    /// The weight of the input, `[4 H, in]`.
    pub weight_ih: Var,
    /// The weight of the hidden state, `[4 H, H]`.
    pub weight_hh: Var,
    /// The bias beside the input, if there is one, `[4 H]`.
    pub bias_ih: Option<Var>,
    /// The bias beside the hidden state, if there is one, `[4 H]`.
    pub bias_hh: Option<Var>,
}

/// The weights of one direction of one GRU layer, gates in the order r, z, n.
#[derive(Clone, Debug)]
pub struct GruWeights {
    /// The weight of the input, `[3 H, in]`.
    pub weight_ih: Var,
    /// The weight of the hidden state, `[3 H, H]`.
    pub weight_hh: Var,
    /// The bias beside the input, if there is one, `[3 H]`.
    pub bias_ih: Option<Var>,
    /// The bias beside the hidden state, if there is one, `[3 H]`.
    pub bias_hh: Option<Var>,
}

/// The weights of one direction of one simple recurrent layer.
#[derive(Clone, Debug)]
pub struct RnnWeights {
    /// The weight of the input, `[H, in]`.
    pub weight_ih: Var,
    /// The weight of the hidden state, `[H, H]`.
    pub weight_hh: Var,
    /// The bias beside the input, if there is one, `[H]`.
    pub bias_ih: Option<Var>,
    /// The bias beside the hidden state, if there is one, `[H]`.
    pub bias_hh: Option<Var>,
}

/// Computes an LSTM from a start state (Hochreiter and Schmidhuber 1997; PyTorch's `LSTM` with
/// `batch_first=True`). Returns all h, the last h and the last c.
///
/// Each step is i, f, o = sigmoid(W x + b + U h + d) and g = tanh(W x + b + U h + d), each with its own rows
/// of the weights W and U and of the biases b and d; then c = f c + i g and h = o tanh(c).
///
/// Shapes: x `[B, T, in]`, `h0` and `c0` `[B, H]` to `[B, T, H]`, `[B, H]` and `[B, H]`.
pub fn lstm(x: &Var, weights: &LstmWeights, h0: &Var, c0: &Var) -> (Var, Var, Var) {
    let (all, after) = lstm_steps(x, weights, &[h0.clone(), c0.clone()], None, false);
    let last = |i: usize| after.get(i).unwrap_or(x).clone();
    (stack_steps(&all).unwrap_or_else(|| x.clone()), last(0), last(1))
}

/// Computes a GRU from a start state (Cho et al. 2014; PyTorch's `GRU` with `batch_first=True`). Returns all
/// h and the last h.
///
/// Each step is r, z = sigmoid(W x + b + U h + d), each with its own rows of the weights W and U and of the
/// biases b and d; then n = tanh(W x + b + r (U h + d)) and h = (1 - z) n + z h.
///
/// Shapes: x `[B, T, in]` and `h0` `[B, H]` to `[B, T, H]` and `[B, H]`.
pub fn gru(x: &Var, weights: &GruWeights, h0: &Var) -> (Var, Var) {
    let (all, after) = gru_steps(x, weights, std::slice::from_ref(h0), None, false);
    (stack_steps(&all).unwrap_or_else(|| x.clone()), after.first().unwrap_or(x).clone())
}

/// Computes a simple recurrent network from a start state (Elman 1990; PyTorch's `RNN` with
/// `batch_first=True`). Returns all h and the last h.
///
/// Each step is h = tanh(W x + b + U h + d).
///
/// Shapes: x `[B, T, in]` and `h0` `[B, H]` to `[B, T, H]` and `[B, H]`.
pub fn rnn(x: &Var, weights: &RnnWeights, h0: &Var) -> (Var, Var) {
    let (all, after) = rnn_steps(x, weights, std::slice::from_ref(h0), None, false);
    (stack_steps(&all).unwrap_or_else(|| x.clone()), after.first().unwrap_or(x).clone())
}

/// The h of each step in the order of the sequence, and the state after the step that was run last (step 0 in
/// reverse), h first.
pub(in crate::model::layers) type Steps = (Vec<Var>, Vec<Var>);

/// Computes [`lstm`] from `[h0, c0]` or, if that is empty, from zeros. Steps whose `mask` `[B, T]` is 0 leave
/// the state as it is, and their h is zeros.
pub(in crate::model::layers) fn lstm_steps(
    x: &Var,
    weights: &LstmWeights,
    start: &[Var],
    mask: Option<&Var>,
    reverse: bool,
) -> Steps {
    let units = hidden(&weights.weight_hh);
    // Both biases are added to one sum, before the steps.
    let gates = biased(&biased(&x.matmul_t(&weights.weight_ih), &weights.bias_ih), &weights.bias_hh);
    run(&gates, start, mask, reverse, |step, before| {
        let sum = before.first().map_or_else(|| step.clone(), |h| step + h.matmul_t(&weights.weight_hh));
        let gates = parts::<4>(&sum, units);
        lstm_cell(gates, before.get(1)).to_vec()
    })
}

/// Returns h and c after a step of an LSTM, from the sums of its gates i, f, g and o, and from c before it.
pub(in crate::model::layers) fn lstm_cell([i, f, g, o]: [Var; 4], before: Option<&Var>) -> [Var; 2] {
    let (i, f, g, o) = (i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid());
    let new = &i * &g;
    let c = before.map_or_else(|| new.clone(), |c| &f * c + &new);
    let squashed = c.tanh();
    let h = &o * &squashed;
    // One kernel then computes the gradients of all gates.
    h.tape().save_together(&[i, f, g, o, squashed]);
    [h, c]
}

/// Computes [`gru`] from `[h0]` or, if that is empty, from zeros. Steps whose `mask` `[B, T]` is 0 leave the
/// state as it is, and their h is zeros.
pub(in crate::model::layers) fn gru_steps(
    x: &Var,
    weights: &GruWeights,
    start: &[Var],
    mask: Option<&Var>,
    reverse: bool,
) -> Steps {
    let units = hidden(&weights.weight_hh);
    let gates = biased(&x.matmul_t(&weights.weight_ih), &weights.bias_ih);
    run(&gates, start, mask, reverse, |step, before| {
        let before = before.first();
        let own = before.map(|h| biased(&h.matmul_t(&weights.weight_hh), &weights.bias_hh));
        let own = own.or_else(|| Some(weights.bias_hh.as_ref()?.expand(Lead::Sample, step.dims())));
        let [r, z, n] = parts::<3>(step, units);
        let Some([hr, hz, hn]) = own.map(|own| parts::<3>(&own, units)) else {
            return vec![n.tanh() * (1.0 - z.sigmoid())];
        };
        let (r, z) = ((r + hr).sigmoid(), (z + hz).sigmoid());
        let n = (n + &r * hn).tanh();
        let towards = before.map_or_else(|| -&n, |h| h - &n);
        let h = &z * towards + &n;
        h.tape().save_together(&[r, z, n]);
        vec![h]
    })
}

/// Computes [`rnn`] from `[h0]` or, if that is empty, from zeros. Steps whose `mask` `[B, T]` is 0 leave the
/// state as it is, and their h is zeros.
pub(in crate::model::layers) fn rnn_steps(
    x: &Var,
    weights: &RnnWeights,
    start: &[Var],
    mask: Option<&Var>,
    reverse: bool,
) -> Steps {
    // Both biases are added to one sum, before the steps.
    let sums = biased(&biased(&x.matmul_t(&weights.weight_ih), &weights.bias_ih), &weights.bias_hh);
    run(&sums, start, mask, reverse, |step, before| {
        let sum = before.first().map_or_else(|| step.clone(), |h| step + h.matmul_t(&weights.weight_hh));
        vec![sum.tanh()]
    })
}

/// Runs a cell over the steps of `gates`. The cell takes a step and the state before it (h first, empty for
/// zeros), and returns the state after it.
fn run(
    gates: &Var,
    start: &[Var],
    mask: Option<&Var>,
    reverse: bool,
    cell: impl Fn(&Var, &[Var]) -> Vec<Var>,
) -> Steps {
    let as_feature = |there: &Var| there.reshape(&[there.dims(), &[1]].concat());
    let there = mask.map(|mask| unstack_steps(mask, 0).iter().map(as_feature).collect::<Vec<_>>());
    let mut steps: Vec<(usize, Var)> = unstack_steps(gates, 1).into_iter().enumerate().collect();
    if reverse {
        steps.reverse();
    }
    let zero = gates.tape().constant(0.0);
    let mut state = start.to_vec();
    let mut all = Vec::with_capacity(steps.len());
    gates.tape().unrolled(|| {
        for (place, step) in &steps {
            let new = cell(step, &state);
            let Some(there) = there.as_ref().and_then(|there| there.get(*place)) else {
                all.extend(new.first().cloned());
                state = new;
                continue;
            };
            all.extend(new.first().map(|h| there.select(h, &zero)));
            let keep = |(i, new): (usize, &Var)| there.select(new, state.get(i).unwrap_or(&zero));
            state = new.iter().enumerate().map(keep).collect();
        }
    });
    if reverse {
        all.reverse();
    }
    (all, state)
}

/// Returns H, the last axis of `[gates H, H]`.
fn hidden(weight_hh: &Var) -> usize {
    weight_hh.dims().last().copied().unwrap_or(0)
}

/// Returns x + bias, or x without one.
fn biased(x: &Var, bias: &Option<Var>) -> Var {
    bias.as_ref().map_or_else(|| x.clone(), |b| x + b)
}

/// Cuts `[B, N H]` into N gates `[B, H]`.
fn parts<const N: usize>(x: &Var, units: usize) -> [Var; N] {
    std::array::from_fn(|i| x.slice(-1, i * units..(i + 1) * units))
}
