//! Where the tensors of the state lie, and how many launches update them, changes no bit: random models with
//! random rules, on every adapter and for every kind of target.

use unisono_gpu::Device;
use unisono_graph::target::Machine;
use unisono_graph::{
    Array, Feed, Frame, Graph, Layout, Program, Run, StateKind, StatePlacement, Tape, Target, Type, Var,
};
use unisono_random::Draws;
use unisono_testkit::{Ran, adapters, run, run_for};

const SHARDS: [usize; 3] = [3, 2, 1];

/// The rules by which a parameter is updated.
#[derive(Clone, Copy)]
enum Rule {
    /// The parameter stays as it is.
    Frozen,
    Sgd,
    Momentum,
    Adam,
    /// The gradient is divided by its norm, which another kernel computes.
    Normed,
    /// An average follows the new parameter, and another tensor keeps the old one.
    Averaged,
    /// Another tensor is made of the norm of the new parameter, for which a kernel of its own waits.
    Measured,
}

const RULES: [Rule; 7] =
    [Rule::Frozen, Rule::Sgd, Rule::Momentum, Rule::Adam, Rule::Normed, Rule::Averaged, Rule::Measured];

impl Rule {
    fn update(self, tape: &Tape, name: &str, p: &Var, gradient: &Var, rate: &Var) {
        let like = |suffix: &str| tape.state(&format!("{name}/{suffix}"), p.dims(), StateKind::Optimizer);
        let step = |by: &Var| p - &(by * rate);
        match self {
            Self::Frozen => {}
            Self::Sgd => tape.update(p, &step(gradient)),
            Self::Normed => tape.update(p, &step(&(gradient / &(gradient.square().sum_all() + 1.0).sqrt()))),
            Self::Momentum => {
                let m = like("m");
                let new = &m * 0.9 + gradient;
                tape.update(&m, &new);
                tape.update(p, &step(&new));
            }
            Self::Adam => {
                let (m, v) = (like("m"), like("v"));
                let (first, second) = (&m * 0.9 + gradient * 0.1, &v * 0.99 + gradient.square() * 0.01);
                tape.update(&m, &first);
                tape.update(&v, &second);
                tape.update(p, &step(&(first / (second.sqrt() + 1e-3))));
            }
            Self::Measured => {
                let (norm, new) = (like("norm"), step(gradient));
                tape.update(p, &new);
                tape.update(&norm, &(&norm * 0.5 + new.square().sum_all()));
            }
            Self::Averaged => {
                let (mean, old) = (like("mean"), like("old"));
                let new = step(gradient);
                tape.update(p, &new);
                tape.update(&mean, &(&mean * 0.5 + &new * 0.5));
                tape.update(&old, &(p * 1.0 + &old * 0.25));
            }
        }
    }
}

/// Returns a perceptron of random widths whose parameters follow random rules of `rules`.
fn model(draws: &mut Draws, rules: &[Rule]) -> Graph {
    let mut any = |from: &[usize]| from[draws.range(0.0, from.len() as f32) as usize % from.len()];
    let tape = Tape::new();
    let widths: Vec<usize> = (0..4).map(|_| any(&[1, 3, 4, 8, 10, 12, 64])).collect();
    let mut y = tape.input("x", Type::sample(&[widths[0]]));
    let rate = tape.input("rate", Type::global(&[]));
    let mut parameters = Vec::new();
    for (layer, pair) in widths.windows(2).enumerate() {
        let w = tape.state(&format!("w{layer}"), &[pair[1], pair[0]], StateKind::Parameter);
        let b = tape.state(&format!("b{layer}"), &[pair[1]], StateKind::Parameter);
        y = (y.matmul_t(&w) + &b).tanh();
        parameters.extend([w, b]);
    }
    let loss = y.square().sum(&[-1]).sum_shards();
    for (index, (p, gradient)) in parameters.iter().zip(tape.gradients(&loss, &parameters)).enumerate() {
        let rule = rules[any(&(0..rules.len()).collect::<Vec<_>>())];
        rule.update(&tape, &format!("p{index}"), p, &gradient, &rate);
    }
    tape.output("loss", &loss);
    tape.finish().unwrap()
}

fn feed(graph: &Graph, draws: &mut Draws) -> Feed {
    let mut array = |dims: Vec<usize>| Array::generate(&dims, |_| f64::from(draws.range(0.0, 0.5)));
    let samples: usize = SHARDS.iter().sum();
    let x = array([vec![samples], graph.inputs[0].ty.dims.clone()].concat());
    let rate = Array::new(&[], vec![0.125]);
    let states = graph.states.iter().map(|state| array(state.ty.dims.clone())).collect();
    Feed { frame: Frame { shards: SHARDS.to_vec() }, inputs: vec![x, rate], states }
}

fn compiled(graph: &Graph, placement: StatePlacement<'_>) -> Program {
    Program::compile_placed(graph, Layout::default(), placement).unwrap()
}

/// The targets whose kernels are looked at: the device's own, and a GPU's.
fn targets(own: &Target) -> Vec<Target> {
    let mut all = vec![own.clone(), Target { machine: Machine::Gpu, ..own.clone() }];
    all.dedup();
    all
}

fn bits(ran: &Ran) -> Vec<(&str, Vec<u32>)> {
    let all = ran.states.iter().chain(&ran.outputs);
    all.map(|(name, values)| (&**name, values.iter().map(|x| x.to_bits()).collect())).collect()
}

#[test]
fn joint_updates_change_no_bit() {
    let cases = if std::env::var_os("UNISONO_LONG").is_some() { 400 } else { 6 };
    let mut joined = 0;
    for case in 2..2 + cases {
        let mut draws = Draws::of(7, "joint", "model", case, 0);
        // One rule for all parameters joins the most.
        let one = case as usize / 2 % RULES.len();
        let graph = model(&mut draws, if case % 2 == 0 { &RULES[one..=one] } else { &RULES });
        let feed = feed(&graph, &mut draws);
        let [apart, joint] = [StatePlacement::Apart, StatePlacement::ByUpdate].map(|p| compiled(&graph, p));
        for adapter in adapters() {
            let own = Device::open(&adapter).unwrap().target();
            for target in targets(&own) {
                let launches =
                    |program: &Program| program.plan(&Run::whole(&SHARDS), &target).unwrap().launches();
                assert!(launches(&joint) <= launches(&apart), "case {case}");
                joined += launches(&apart) - launches(&joint);
                let ran =
                    |program| run_for(&mut Device::open(&adapter).unwrap(), &target, program, &feed).unwrap();
                let [first, second] = [ran(&apart), ran(&joint)];
                assert_eq!(bits(&first), bits(&second), "case {case} on {}", adapter.label());
            }
        }
    }
    assert!(joined > cases as usize, "only {joined} launches were joined");
}

/// The parameters cannot wait for the last of them, because kernels in between need them.
#[test]
fn what_other_kernels_wait_for_is_not_put_off() {
    let mut draws = Draws::of(7, "joint", "measured", 0, 0);
    let graph = model(&mut draws, &[Rule::Measured]);
    let feed = feed(&graph, &mut draws);
    let adapter = &adapters()[0];
    let [apart, joint] = [StatePlacement::Apart, StatePlacement::ByUpdate].map(|placement| {
        let program = compiled(&graph, placement);
        run(&mut Device::open(adapter).unwrap(), &program, &feed).unwrap()
    });
    assert_eq!(bits(&apart), bits(&joint));
}

/// Every parameter with one rule, all in one bucket: one launch for those whose size is a multiple of four,
/// and one for each other.
#[test]
fn parameters_with_one_rule_are_updated_by_one_launch() {
    for rule in [Rule::Sgd, Rule::Momentum, Rule::Adam] {
        let tape = Tape::new();
        let x = tape.input("x", Type::sample(&[12]));
        let rate = tape.input("rate", Type::global(&[]));
        let sizes = [[8, 12], [20, 8], [4, 20]];
        let states: Vec<Var> = (0..3)
            .flat_map(|i| {
                let w = tape.state(&format!("w{i}"), &sizes[i], StateKind::Parameter);
                [w, tape.state(&format!("b{i}"), &sizes[i][..1], StateKind::Parameter)]
            })
            .collect();
        let y = states.chunks(2).fold(x, |x, own| (x.matmul_t(&own[0]) + &own[1]).tanh());
        let loss = y.square().sum(&[-1]).sum_shards();
        for (i, (p, gradient)) in states.iter().zip(tape.gradients(&loss, &states)).enumerate() {
            rule.update(&tape, &format!("p{i}"), p, &gradient, &rate);
        }
        let program = compiled(&tape.finish().unwrap(), StatePlacement::ByUpdate);
        let plan = program.plan(&Run::whole(&SHARDS), &Target::default()).unwrap();
        let of_last = plan.segments.last().unwrap().commands.iter();
        let launches = of_last.filter(|command| matches!(command, unisono_graph::plan::Command::Launch(_)));
        assert_eq!(launches.count(), 1, "{}", program.describe());
    }
}
