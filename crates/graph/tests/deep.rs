//! Deep models: the stack is not used up by them, and what a step takes grows with their layers.

use std::thread;

use unisono_graph::{Precision, Program, Run, StateKind, Tape, Target, Type, Var};

/// Runs `f` on a thread with a small stack.
fn on_a_small_stack<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    thread::Builder::new().stack_size(512 << 10).spawn(f).unwrap().join().unwrap()
}

/// Returns the number of launches and the longest kernel of a step that computes `f` of a sample.
fn launches(precision: Precision, f: impl FnOnce(&Var) -> Var) -> (usize, usize) {
    let tape = Tape::with_precision(precision);
    tape.output("y", &f(&tape.input("x", Type::sample(&[6]))));
    let plan = Program::compile(&tape.finish().unwrap())
        .unwrap()
        .plan(&Run::whole(&[2]), &Target::default())
        .unwrap();
    (plan.launches(), plan.kernels.iter().map(|kernel| kernel.wgsl.len()).max().unwrap_or(0))
}

/// Returns the launches of a training step of so many layers.
fn tower(layers: usize) -> usize {
    let tape = Tape::new();
    let weights: Vec<Var> =
        (0..layers).map(|i| tape.state(&format!("w{i}"), &[4, 4], StateKind::Parameter)).collect();
    let y = weights.iter().fold(tape.input("x", Type::sample(&[4])), |x, w| x.matmul(w).tanh());
    for (w, gradient) in weights.iter().zip(tape.gradients(&y.sum(&[-1]).sum_shards(), &weights)) {
        tape.update(w, &(w - &(gradient * 0.1)));
    }
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    program.plan(&Run { first: 0, sizes: vec![2, 2], shards: 4 }, &Target::default()).unwrap().launches()
}

#[test]
fn launches_grow_with_the_layers() {
    let most = if std::env::var_os("UNISONO_LONG").is_some() { 20_000 } else { 2_000 };
    let [few, some, many] =
        [most / 4, most / 2, most].map(|layers| on_a_small_stack(move || tower(layers)) as isize);
    let off = (many - some) - 2 * (some - few);
    assert!(off.abs() <= 4, "{few}, {some} and {many} launches");
    assert!(many < 6 * most as isize, "{many} launches of {most} layers");
}

#[test]
fn a_long_chain_is_several_kernels() {
    let chain = |x: &Var| (0..20_000).fold(x.clone(), |x, _| x.tanh());
    let (launches, longest) = on_a_small_stack(move || launches(Precision::F32, chain));
    assert!((100..400).contains(&launches), "{launches} launches");
    assert!(longest < 100_000, "a kernel of {longest} bytes");
}

/// Each value is used twice by the next one, so there are 2^64 ways from the last one to the first.
#[test]
fn values_that_are_used_twice_are_visited_once() {
    let doubled = |x: &Var| (0..64).fold(x.clone(), |x, _| &x + &x);
    assert_eq!(launches(Precision::F32, doubled).0, 1);
}

#[test]
fn chains_of_views_need_no_stack() {
    for precision in [Precision::F32, Precision::Mixed] {
        let turned = |x: &Var| x.reshape(&[2, 3]).transpose(1, 2).reshape(&[6]);
        let chain = move |x: &Var| (0..5_000).fold(x.clone(), |x, _| turned(&x)).round_half().tanh();
        let (launches, _) = on_a_small_stack(move || launches(precision, chain));
        assert!((500..700).contains(&launches), "{precision}: {launches} launches");
    }
}

#[test]
fn parts_of_parts_need_no_stack() {
    let nested = |x: &Var| (0..600).fold(x.clone(), |y, _| y.tanh().concat(&[x], 1));
    let (launches, _) = on_a_small_stack(move || launches(Precision::F32, nested));
    assert!(launches >= 600, "{launches} launches");
}
