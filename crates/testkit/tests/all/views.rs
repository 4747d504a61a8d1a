//! Random chains of views, pads, joins and functions. Every adapter's results agree with the f64 reference,
//! and the kernels of GPUs and of the CPU give the same bits.

use unisono_graph::{Graph, Program, StateKind, Tape, Type, Var};
use unisono_random::Draws;

use crate::heads::is_right_everywhere;

/// The most elements of a sample.
const MOST: usize = 400;

/// Returns a number from `least` to `most`.
fn within(draws: &mut Draws, least: usize, most: usize) -> usize {
    least + draws.below((most - least + 1) as u32) as usize
}

/// Returns random lengths of axes whose product is `count`.
fn axes(draws: &mut Draws, mut count: usize) -> Vec<usize> {
    let mut dims = Vec::new();
    while count > 1 && dims.len() < 3 {
        let divisors: Vec<usize> = (2..=count).filter(|d| count.is_multiple_of(*d)).collect();
        let axis = divisors[draws.below(divisors.len() as u32) as usize];
        dims.push(axis);
        count /= axis;
    }
    dims.insert(within(draws, 0, dims.len()), count);
    dims
}

/// Returns another view of a value, or a function of it.
fn step(draws: &mut Draws, x: &Var) -> Var {
    let (dims, count) = (x.dims().to_vec(), x.ty().count());
    let axis = within(draws, 0, dims.len() - 1);
    let last = axis as isize - dims.len() as isize;
    match draws.below(14) {
        0..=2 => x.reshape(&axes(draws, count)),
        3..=5 => {
            let mut order: Vec<usize> = (0..dims.len()).collect();
            (1..order.len()).for_each(|at| order.swap(at, within(draws, 0, at)));
            x.permute(&order)
        }
        6 if dims[axis] > 1 => {
            let first = within(draws, 0, dims[axis] - 1);
            let end = within(draws, first + 1, dims[axis]);
            x.slice(last, first..end)
        }
        7 if 2 * count <= MOST => {
            let mut around = [vec![0; dims.len()], vec![0; dims.len()]];
            around.iter_mut().for_each(|side| side[axis] = within(draws, 0, 2));
            let [before, after] = around;
            x.pad(&before, &after)
        }
        8 if 2 * count <= MOST => x.concat(&[&x.tanh()], last),
        9 => x.sigmoid(),
        10 => x.tanh() * 0.75,
        11 => {
            let all = (x.sum_keep(&[last]) / dims[axis] as f32).tanh() * 0.5;
            x + all.expand(x.ty().lead, &dims)
        }
        12 => (x * x.tanh() - 0.25).relu() + x * 0.5,
        _ => (x.tanh() - 0.5).exp() * 0.75,
    }
}

/// Returns a random chain, with the gradient of its input's offset.
fn chain(seed: u64) -> Graph {
    let mut draws = Draws::of(seed, "testkit", "views", 0, 0);
    let tape = Tape::new();
    let count = within(&mut draws, 6, 120);
    let dims = axes(&mut draws, count);
    let offset = tape.state("offset", &dims, StateKind::Parameter);
    let mut y = tape.input("x", Type::sample(&dims)) + &offset;
    for _ in 0..within(&mut draws, 3, 9) {
        y = step(&mut draws, &y);
    }
    tape.output("y", &(&y * 0.5).tanh());
    let loss = (y.square() * 0.125).tanh().sum_all().sum_shards();
    tape.gradients(&loss, &[offset]).iter().for_each(|gradient| tape.output("gradient", gradient));
    tape.finish().unwrap()
}

#[test]
fn chains_of_views_are_right_on_every_adapter() {
    let chains = if std::env::var_os("UNISONO_LONG").is_some() { 1_000 } else { 20 };
    for seed in 0..chains {
        let graph = chain(seed);
        is_right_everywhere(&format!("chain {seed}"), &graph, &Program::compile(&graph).unwrap());
    }
}
