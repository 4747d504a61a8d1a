//! Random models: products, parts put together and taken apart, rows, columns, statistics of a batch and
//! maps, in any order, with their gradients and updates. A GPU's launches, their order and what they share
//! give the bits of the kernels that a software adapter runs one by one, and these what the f64 reference
//! gives.

use unisono_gpu::Device;
use unisono_graph::ops::{Attention, Window};
use unisono_graph::target::Machine;
use unisono_graph::{
    Array, Feed, Frame, Graph, Layout, Plan, Precision, Program, Run, Slot, StateKind, StatePlacement, Tape,
    Target, Type, Var, interpret,
};
use unisono_random::Draws;
use unisono_testkit::{adapters, relative_error, run_plan};

/// The samples of each shard.
const SHARDS: [usize; 3] = [3, 2, 2];

/// The lengths of rows: multiples of four and others, of one chunk of a sum and of several.
const WIDTHS: [usize; 8] = [4, 5, 8, 12, 20, 33, 64, 300];

/// The most elements of a sample's value.
const MOST: usize = 4096;

/// What a random model is made of so far.
struct Builder {
    tape: Tape,
    draws: Draws,
    /// Values of each sample, `[W]` or `[P, W]`.
    values: Vec<Var>,
    states: Vec<Var>,
}

impl Builder {
    /// Returns one of the values. The last ones are taken more often, so that chains are long.
    fn pick(&mut self) -> Var {
        let all = self.values.len() as u32;
        let back = self.draws.below(4).min(self.draws.below(all));
        self.values[(all - 1 - back) as usize].clone()
    }

    /// Returns a value of the same shape as another, or that one.
    fn like(&mut self, x: &Var) -> Var {
        let same: Vec<Var> = self.values.iter().filter(|y| y.dims() == x.dims()).cloned().collect();
        same[self.draws.below(same.len() as u32) as usize].clone()
    }

    fn state(&mut self, dims: &[usize]) -> Var {
        let state = self.tape.state(&format!("s{}", self.states.len()), dims, StateKind::Parameter);
        self.states.push(state.clone());
        state
    }

    /// Returns a value of all samples, for each sample.
    fn everywhere(x: &Var, like: &Var) -> Var {
        x.expand(like.ty().lead, like.dims())
    }

    /// Adds a value that is made of earlier ones.
    fn grow(&mut self) {
        let x = self.pick();
        let (dims, width) = (x.dims().to_vec(), *x.dims().last().unwrap());
        let new = match self.draws.below(30) {
            0..=3 | 24 => {
                let menu = WIDTHS[self.draws.below(WIDTHS.len() as u32) as usize];
                let out = if self.draws.below(2) == 0 { width } else { menu };
                let w = self.state(&[out, width]);
                let product = x.matmul_t(&w);
                match self.draws.below(4) {
                    0 | 3 => product,
                    1 => (product + self.state(&[out])).gelu(),
                    _ => product.tanh(),
                }
            }
            4 => x.gelu(),
            5 => x.tanh(),
            6 => x.relu(),
            7 => x.sigmoid() * &self.like(&x),
            8 => &x + &self.like(&x),
            9 => &x * &self.like(&x).tanh(),
            10 => &x - &(self.like(&x) * 0.3),
            11 => self.like(&x) / &(x.abs() + 1.0),
            12 => &x + self.state(&[width]),
            13 | 14 => {
                let others: Vec<Var> = (0..1 + self.draws.below(2)).map(|_| self.beside(&x)).collect();
                x.concat(&others.iter().collect::<Vec<_>>(), -1)
            }
            15 | 16 if width > 4 => {
                let first = self.draws.below(width as u32 - 3) as usize;
                let end = first + 1 + self.draws.below((width - first) as u32) as usize;
                x.slice(-1, first..end)
            }
            17 => x.softmax(),
            18 => {
                let mean = |x: &Var| x.sum_keep(&[-1]) / width as f32;
                let centred = &x - mean(&x);
                &centred * (mean(&centred.square()) + 1e-3).rsqrt()
            }
            19 => &x * &x.square().sum_keep(&[-1]).tanh(),
            20 => {
                let mean = x.sum_samples().sum_shards() * (1.0 / 7.0);
                &x - Self::everywhere(&mean, &x)
            }
            21 if dims.len() == 2 => x.permute(&[1, 0]),
            21 if width % 4 == 0 => x.reshape(&[4, width / 4]),
            22 if dims.len() == 2 => x.reshape(&[dims[0] * dims[1]]),
            22 => x.reshape(&[1, width]),
            25 | 26 if width > 1 => self.put_together(&x),
            27..=29 if width > 1 => {
                // A product, and a way round it that is computed later.
                let w = self.state(&[width, width]);
                let product = x.matmul_t(&w);
                let shortcut = match self.draws.below(4) {
                    0 | 1 => self.put_together(&x),
                    2 => &x * &self.like(&x).square().sum_keep(&[-1]).tanh(),
                    _ => self.like(&x).softmax(),
                };
                self.values.push(product.clone());
                match self.draws.below(3) {
                    0 => (&product + &shortcut).gelu(),
                    1 => &product * &shortcut,
                    _ => product.sigmoid() * &shortcut,
                }
            }
            23 if dims.len() == 2 && self.draws.below(2) == 0 => {
                let y = self.like(&x);
                x.matmul_t(&y).softmax().matmul(&y)
            }
            23 if dims.len() == 2 && width <= 64 => {
                let w = self.state(&[width, width]);
                let (q, k, v) = (x.matmul_t(&w), self.like(&x), self.like(&x));
                let heads = if width % 4 == 0 { 2 } else { 1 };
                let [q, k, v] =
                    [q, k, v].map(|x| x.reshape(&[dims[0], heads, width / heads]).permute(&[1, 0, 2]));
                let causal = self.draws.below(2) == 0;
                let y = self.tape.apply(Attention { causal, scale: 0.5 }, &[&q, &k, &v]);
                y.permute(&[1, 0, 2]).reshape(&dims)
            }
            _ => x.tanh() * 0.5,
        };
        if new.ty().count() <= MOST && new.dims().iter().all(|n| *n > 0) {
            self.values.push(new);
        }
    }

    /// Returns a value of this shape of two parts.
    fn put_together(&mut self, x: &Var) -> Var {
        let width = *x.dims().last().unwrap();
        let cut = 1 + self.draws.below(width as u32 - 1) as usize;
        let (y, z) = (self.like(x), self.like(x));
        let parts = [y.slice(-1, 0..cut), z.slice(-1, cut..width)];
        let [first, second] = parts.map(|part| match self.draws.below(4) {
            0 => part.tanh(),
            1 => part.relu(),
            2 => part.sigmoid() * 0.5,
            _ => -part,
        });
        first.concat(&[&second], -1)
    }

    /// Returns a value that can be put beside another one, along the last axis.
    fn beside(&mut self, x: &Var) -> Var {
        let rows = |y: &Var| y.dims()[..y.dims().len() - 1].to_vec();
        let fits: Vec<Var> = self.values.iter().filter(|y| rows(y) == rows(x)).cloned().collect();
        fits[self.draws.below(fits.len() as u32) as usize].clone()
    }
}

/// Returns the training step of a random model.
fn model(seed: u64) -> (Graph, Feed, bool) {
    let mut draws = Draws::of(seed, "structures", "graph", 0, 0);
    let mixed = draws.below(5) == 0;
    let tape = Tape::with_precision(if mixed { Precision::Mixed } else { Precision::F32 });
    let values = [("x", vec![20]), ("y", vec![5, 12]), ("z", vec![64])];
    let values = values.map(|(name, dims)| tape.input(name, Type::sample(&dims))).to_vec();
    let steps = 4 + draws.below(14);
    let mut model = Builder { tape, draws, values, states: Vec::new() };
    (0..steps).for_each(|_| model.grow());
    let Builder { tape, mut draws, values, mut states } = model;
    if states.is_empty() {
        states.push(tape.state("s0", &[20], StateKind::Parameter));
    }
    let last = &values[values.len() - 1];
    tape.output("last", last);
    for (at, value) in values.iter().enumerate().skip(3) {
        if draws.below(3) == 0 && value.id() != last.id() {
            tape.output(&format!("value {at}"), value);
        }
    }
    let ends = values.iter().rev().take(2).map(|value| value.tanh().square().sum_all());
    let loss = ends.reduce(|a, b| a + b).unwrap().sum_shards();
    let gradients = tape.gradients(&loss, &states);
    let clips = draws.below(3) == 0;
    let norm = gradients.iter().map(|g| g.square().sum_all()).reduce(|a, b| a + b);
    let scale = norm.map(|norm| 1.0 / (norm.sqrt() + 1.0));
    for (at, (state, gradient)) in states.iter().zip(&gradients).enumerate() {
        let scale = scale.as_ref().filter(|_| clips).map(|scale| scale.reshape(&[]));
        let gradient = scale.map_or_else(|| gradient.clone(), |scale| gradient * &scale);
        if draws.below(2) == 0 {
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
    let graph = tape.finish().unwrap();
    let samples: usize = SHARDS.iter().sum();
    let mut array = |dims: &[usize]| Array::generate(dims, |_| f64::from(draws.range(-0.7, 0.7)));
    let inputs = graph.inputs.iter().map(|i| array(&[&[samples], &i.ty.dims[..]].concat())).collect();
    let states = graph.states.iter().map(|state| array(&state.ty.dims)).collect();
    let feed = Feed { frame: Frame { shards: SHARDS.to_vec() }, inputs, states };
    (graph, feed, mixed)
}

/// Returns the bits of a step's outputs and new states, on a device that has done nothing before.
fn bits(adapter: &unisono_gpu::Adapter, program: &Program, plan: &Plan, feed: &Feed) -> Vec<Vec<u32>> {
    let mut device = Device::open(adapter).unwrap();
    let mut found = vec![vec![]; program.outputs().len()];
    run_plan(&mut device, program, plan, feed, &mut |transfer, data| {
        if let Slot::Output(index) = Slot::decode(transfer.slot) {
            found[index] = bytemuck::pod_collect_to_vec(data);
        }
    })
    .unwrap();
    let states = 0..program.states().len();
    found.extend(states.map(|index| bytemuck::pod_collect_to_vec(&device.read_state(index).unwrap())));
    found
}

#[test]
fn launches_of_a_gpu_have_the_bits_of_kernels_one_by_one() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("UNISONO_SEED").unwrap_or(0);
    let cases = match std::env::var_os("UNISONO_LONG") {
        Some(_) => number("UNISONO_CASES").unwrap_or(150),
        None => 4,
    };
    for seed in first..first + cases {
        let (graph, feed, is_mixed) = model(seed);
        let placement = if seed % 2 == 0 { StatePlacement::ByUpdate } else { StatePlacement::Apart };
        let program = Program::compile_placed(&graph, Layout::default(), placement).unwrap();
        let adapter = adapters().remove(0);
        let own = Device::open(&adapter).unwrap().target();
        let gpu = |busy_workgroups| Target {
            machine: Machine::Gpu,
            subgroup: 0,
            pairs: false,
            busy_workgroups,
            ..own.clone()
        };
        let whole = Run::whole(&SHARDS);
        let alone = Target { machine: Machine::Cpu, ..own.clone() };
        let expected = bits(&adapter, &program, &program.plan(&whole, &alone).unwrap(), &feed);
        assert!(expected.iter().flatten().any(|bits| f32::from_bits(*bits) != 0.0));
        if !is_mixed {
            let reference = interpret(&graph, &feed);
            let outputs = program.outputs().iter().map(|output| &reference.outputs[&output.name]);
            let new = (0..program.states().len()).map(|state| &reference.updates[&state]);
            for (at, (found, array)) in expected.iter().zip(outputs.chain(new)).enumerate() {
                let found: Vec<f32> = found.iter().map(|bits| f32::from_bits(*bits)).collect();
                // What is 0 but for roundings differs by nothing else.
                let is_some = array.data.iter().any(|x| x.abs() > 1e-5);
                let error = if is_some { relative_error(&found, array) } else { 0.0 };
                assert!(error < 1e-3, "seed {seed}, result {at} beside the reference: {error:e}");
            }
        }
        for target in [gpu(1), gpu(64)] {
            let found = bits(&adapter, &program, &program.plan(&whole, &target).unwrap(), &feed);
            let names = program.outputs().iter().map(|output| &output.name);
            let names = names.chain(program.states().iter().map(|state| &state.name));
            let wrong: Vec<&String> =
                names.zip(found.iter().zip(&expected)).filter(|(_, (a, b))| a != b).map(|(n, _)| n).collect();
            assert!(wrong.is_empty(), "seed {seed}, {} workgroups: {wrong:?}", target.busy_workgroups);
        }
    }
}

/// All samples of a product are one matrix, which may have more tiles than a grid has workgroups.
#[test]
fn a_product_with_more_tiles_than_a_grid_has_workgroups_is_several_launches() {
    let tape = Tape::new();
    let image = tape.input("image", Type::sample(&[2, 12, 12]));
    let rows = tape.input("rows", Type::sample(&[128, 8]));
    let filters = tape.state("filters", &[3, 2, 3, 3], StateKind::Parameter);
    let weight = tape.state("weight", &[20, 8], StateKind::Parameter);
    let window = Window { padding: [1, 1], ..Window::new([3, 3]) };
    let pixels = image.conv2d(&filters, &window, 1);
    let product = rows.matmul_t(&weight).tanh();
    let loss = (pixels.square().sum_all() + product.square().sum_all()).sum_shards();
    for (name, gradient) in ["df", "dw"].iter().zip(tape.gradients(&loss, &[filters, weight])) {
        tape.output(name, &gradient);
    }
    tape.output("pixels", &pixels);
    tape.output("product", &product);
    let graph = tape.finish().unwrap();
    let mut draws = Draws::of(0, "structures", "tiles", 0, 0);
    let samples: usize = SHARDS.iter().sum();
    let mut array = |dims: &[usize]| Array::generate(dims, |_| f64::from(draws.range(-0.7, 0.7)));
    let inputs = graph.inputs.iter().map(|i| array(&[&[samples], &i.ty.dims[..]].concat())).collect();
    let states = graph.states.iter().map(|state| array(&state.ty.dims)).collect();
    let feed = Feed { frame: Frame { shards: SHARDS.to_vec() }, inputs, states };
    let program = Program::compile(&graph).unwrap();
    let adapter = adapters().remove(0);
    let own = Device::open(&adapter).unwrap().target();
    let whole = Run::whole(&SHARDS);
    for machine in [Machine::Cpu, Machine::Gpu] {
        let subgroup = if machine == Machine::Cpu { own.subgroup } else { 0 };
        let plan = |max_workgroups| {
            let target = Target { machine, subgroup, max_workgroups, ..own.clone() };
            program.plan(&whole, &target).unwrap()
        };
        let (one, several) = (plan(own.max_workgroups), plan(20));
        assert!(several.launches() > one.launches());
        assert!(bits(&adapter, &program, &several, &feed) == bits(&adapter, &program, &one, &feed));
    }
}
