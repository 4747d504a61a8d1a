//! What a random model is made of, and its training step.

use unisono_graph::{
    Array, DType, Feed, Frame, Graph, InputKind, Lead, Precision, RandomKey, StateKind, Tape, Type, Var,
    ops::Iota,
};
use unisono_random::Draws;

use super::grow;

/// The most elements of a sample's value where there are few samples, and where there are many.
const MOST: [usize; 2] = [4096, 256];

/// The samples of each shard: a ragged batch, one sample, shards of one, many, and of several chunks.
const FRAMES: [&[usize]; 6] = [&[3, 2, 2], &[3, 2, 2], &[1], &[1; 9], &[17, 40], &[300, 1, 257]];

/// What a random model is made of so far.
pub struct Builder {
    pub tape: Tape,
    pub ids: Var,
    draws: Draws,
    precision: Precision,
    shards: &'static [usize],
    /// Values of each sample.
    values: Vec<Var>,
    inputs: usize,
    states: Vec<Var>,
}

impl Builder {
    fn new(seed: u64) -> Self {
        let mut draws = Draws::of(seed, "structures", "graph", 0, 0);
        let precision = if draws.below(5) == 0 { Precision::Mixed } else { Precision::F32 };
        let shards = FRAMES[draws.below(FRAMES.len() as u32) as usize];
        let tape = Tape::with_precision(precision);
        let values: Vec<Var> = grow::inputs().map(|(name, ty)| tape.input(name, ty)).to_vec();
        let ids = tape.input("ids", Type::sample(&[5]).of(DType::I32));
        Self { tape, ids, draws, precision, shards, inputs: values.len(), values, states: Vec::new() }
    }

    /// Returns a number below another one.
    pub fn below(&mut self, end: usize) -> usize {
        self.draws.below(end as u32) as usize
    }

    /// Returns how many values there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns how many samples the batch has.
    pub fn samples(&self) -> usize {
        self.shards.iter().sum()
    }

    /// Returns one of the values. The last ones are taken more often, so that chains are long.
    pub fn pick(&mut self) -> Var {
        let back = self.below(6).min(self.below(self.values.len()));
        self.values[self.values.len() - 1 - back].clone()
    }

    /// Returns a value of the same shape as another, or that one.
    pub fn like(&mut self, x: &Var) -> Var {
        let same: Vec<Var> = self.values.iter().filter(|y| y.dims() == x.dims()).cloned().collect();
        if same.is_empty() { x.clone() } else { same[self.below(same.len())].clone() }
    }

    /// Returns an input of the same shape as another value.
    pub fn leaf_like(&self, x: &Var) -> Option<Var> {
        self.values[..self.inputs].iter().find(|leaf| leaf.dims() == x.dims()).cloned()
    }

    /// Returns a value that can be put beside another one along an axis.
    pub fn beside(&mut self, x: &Var, axis: usize) -> Var {
        let others = |y: &Var| [&y.dims()[..axis], &y.dims()[axis + 1..]].concat();
        let fits = |y: &&Var| y.dims().len() == x.dims().len() && others(y) == others(x);
        let fits: Vec<Var> = self.values.iter().filter(fits).cloned().collect();
        if fits.is_empty() { x.clone() } else { fits[self.below(fits.len())].clone() }
    }

    /// Returns a new parameter.
    pub fn state(&mut self, dims: &[usize]) -> Var {
        let state = self.tape.state(&format!("s{}", self.states.len()), dims, StateKind::Parameter);
        self.states.push(state.clone());
        state
    }

    /// Returns a mask of the keys that a query sees.
    pub fn mask(&self, q: &Var, k: &Var) -> Var {
        let (rank, keys) = (q.dims().len(), k.dims()[k.dims().len() - 2]);
        let place = self.tape.apply(Iota { dims: vec![keys], axis: 0 }, &[]).to_f32();
        let seen = (place * 2.3).sin().greater(&self.tape.constant(-0.4));
        let dims: Vec<usize> = (0..rank - 1).map(|_| 1).chain([keys]).collect();
        seen.reshape(&dims)
    }

    /// Adds a value if it is one that a model may have.
    pub fn keep(&mut self, new: &Var) {
        let most = MOST[usize::from(self.samples() > 50)];
        if new.ty().count() <= most && new.ty().count() > 0 && new.dims().len() < 6 {
            self.values.push(new.clone());
        }
    }

    fn grow(&mut self) {
        if let Some(new) = grow::grow(self) {
            self.keep(&new);
        }
    }
}

/// Returns the training step of a random model with data for it, and whether it is one of mixed precision.
pub fn model(seed: u64) -> (Graph, Feed, bool) {
    let mut model = Builder::new(seed);
    let steps = 4 + model.below(16);
    for _ in 0..steps {
        if model.below(8) == 0 {
            let tape = model.tape.clone();
            tape.recompute(|| (0..3).for_each(|_| model.grow()));
        } else {
            model.grow();
        }
    }
    if model.states.is_empty() {
        model.state(&[20]);
    }
    let is_mixed = model.precision == Precision::Mixed;
    let Builder { tape, mut draws, shards, values, inputs, states, .. } = model;
    let last = &values[values.len() - 1];
    tape.output("last", last);
    for (at, value) in values.iter().enumerate().skip(inputs) {
        if draws.below(3) == 0 && value.id() != last.id() {
            tape.output(&format!("value {at}"), value);
        }
    }
    let ends = values.iter().rev().take(2).map(|value| value.tanh().square().sum_all());
    let mut loss = ends.reduce(|a, b| a + b).unwrap().sum_shards();
    if draws.below(2) == 0 {
        loss = loss + penalty(&tape, &states);
    }
    train(&tape, &mut draws, &loss, &states);
    let graph = tape.finish().unwrap();
    let feed = feed(&graph, &mut draws, shards);
    (graph, feed, is_mixed)
}

/// Returns a penalty that ties parameters of one shape together.
fn penalty(tape: &Tape, states: &[Var]) -> Var {
    let pair = |at: usize| states[..at].iter().rev().find(|other| other.dims() == states[at].dims());
    let pairs = (0..states.len()).filter_map(|at| Some((&states[at], pair(at)?)));
    let all = pairs.map(|(a, b)| ((a + b) * 0.5).square().sum_all() * 0.1);
    all.reduce(|a, b| a + b).unwrap_or_else(|| tape.constant(0.0))
}

/// Records the updates of the states: with momentum or without, clipped, with states that keep old ones.
fn train(tape: &Tape, draws: &mut Draws, loss: &Var, states: &[Var]) {
    let gradients = tape.gradients(loss, states);
    let (clips, rule) = (draws.below(3) == 0, draws.below(3));
    let norm = gradients.iter().map(|g| g.square().sum_all()).reduce(|a, b| a + b);
    let scale = norm.map(|norm| 1.0 / (norm.sqrt() + 1.0));
    for (at, (state, gradient)) in states.iter().zip(&gradients).enumerate() {
        let scale = scale.as_ref().filter(|_| clips).map(|scale| scale.reshape(&[]));
        let gradient = scale.map_or_else(|| gradient.clone(), |scale| gradient * &scale);
        if rule == 0 || rule == 1 && draws.below(2) == 0 {
            let moment = tape.state(&format!("s{at}/m"), state.dims(), StateKind::Optimizer);
            let new = &moment * 0.9 + &gradient;
            tape.update(&moment, &new);
            tape.update(state, &(state - &(new * 0.01)));
        } else {
            tape.update(state, &(state - &(gradient * 0.125)));
        }
        if draws.below(6) == 0 {
            let old = tape.state(&format!("s{at}/old"), state.dims(), StateKind::Optimizer);
            tape.update(&old, state);
        }
    }
}

/// Returns data for a step. Numbers are ones that f32 holds.
pub fn feed(graph: &Graph, draws: &mut Draws, shards: &[usize]) -> Feed {
    let samples: usize = shards.iter().sum();
    let key = RandomKey { seed: 7, epoch: 1, position: 100 };
    let number = |draws: &mut Draws| f64::from(draws.range(-0.7, 0.7));
    let inputs = graph.inputs.iter().map(|input| {
        let lead: &[usize] = if input.ty.lead == Lead::Sample { &[samples] } else { &[] };
        let dims = [lead, &input.ty.dims].concat();
        match input.ty.dtype {
            _ if input.kind == InputKind::Random => {
                Array::new(&input.ty.dims, key.words().iter().map(|word| f64::from(*word)).collect())
            }
            DType::I32 => Array::generate(&dims, |_| f64::from(draws.below(7))),
            _ => Array::generate(&dims, |_| number(draws)),
        }
    });
    let inputs = inputs.collect();
    let states = graph.states.iter().map(|state| Array::generate(&state.ty.dims, |_| number(draws)));
    let states = states.collect();
    Feed { frame: Frame { shards: shards.to_vec() }, inputs, states }
}
