use std::cell::Cell;

use super::*;
use crate::passes::place_parts;
use crate::trace::Window;
use crate::values::Type;
use crate::{StateKind, Tape, Var, simplify};

/// Checks the units of a traced graph, each as a text such as `fused[sigmoid, tanh]`.
fn check(build: impl Fn(&Tape), expected: &[&str]) {
    let tape = Tape::new();
    build(&tape);
    let (graph, parts) = place_parts(&simplify(&tape.finish().unwrap()));
    let fusion = fuse(&graph, parts);
    let units: Vec<String> =
        fusion.units.iter().map(|u| crate::codegen::unit_name(&graph, &fusion, u)).collect();
    assert_eq!(units, expected, "{graph}");
}

#[test]
fn a_pointwise_chain_is_one_kernel() {
    let chain = |t: &Tape| {
        let (a, b) = (t.input("a", Type::sample(&[4])), t.input("b", Type::sample(&[4])));
        t.output("y", &((&a + &b).sigmoid() * a).relu());
    };
    check(chain, &["fused[add, sigmoid, mul, relu]"]);
}

#[test]
fn a_product_reaches_an_addition_in_registers() {
    let chain = |t: &Tape| {
        let (a, b) = (t.input("a", Type::sample(&[4])), t.input("b", Type::sample(&[4])));
        t.output("y", &(&a * &b).relu().tanh());
    };
    check(chain, &["fused[mul, relu, tanh]"]);
}

#[test]
fn a_reduction_takes_the_expression_of_its_operand() {
    let softmax = |t: &Tape| t.output("y", &t.input("a", Type::sample(&[10])).softmax());
    check(softmax, &["max", "fused[sub, exp]", "sum", "fused[div]"]);
    let norm = |t: &Tape| {
        let a = t.input("a", Type::sample(&[10]));
        t.output("y", &(&a * &a).sum(&[-1]));
    };
    check(norm, &["sum[mul]"]);
}

/// The gradient of a pool compares the pixels of windows with their maximum, once to count the pixels that
/// reach it and once to share the gradient among them. That takes less time than storing all windows.
#[test]
fn the_windows_of_a_pool_are_not_stored() {
    let pool = |t: &Tape| {
        let x = t.input("x", Type::sample(&[8, 8, 8]));
        let window = Window { stride: [2, 2], padding: [1, 1], ..Window::new([3, 3]) };
        let loss = x.max_pool2d(&window).tanh().sum_all().sum_shards();
        t.output("dx", &t.gradients(&loss, std::slice::from_ref(&x))[0]);
    };
    let tape = Tape::new();
    pool(&tape);
    let (graph, parts) = place_parts(&simplify(&tape.finish().unwrap()));
    let windows = 8 * 4 * 4 * 9;
    assert!(fuse(&graph, parts).stored.iter().all(|&id| graph.nodes[id].ty.count() < windows), "{graph}");
}

/// The first of two steps is cheap to compute again, where reading what it is computed from costs as much as
/// reading its result. Functions are computed again where there are many elements, but nothing of two values
/// is.
#[test]
fn what_is_cheaper_to_compute_than_to_load_is_computed_again() {
    let shared = |t: &Tape, count: usize, f: &dyn Fn(&Var, &Var) -> Var| {
        let (a, b) = (t.input("a", Type::sample(&[count])), t.input("b", Type::global(&[count])));
        let y = f(&a, &b);
        t.output("y", &(&y.sum(&[-1]).expand(y.ty().lead, &[count]) * &y));
        t.output("max", &y.max(&[-1]));
    };
    check(|t| shared(t, 64, &|a, b| a + b), &["sum[add]", "fused[add, mul]", "max[add]"]);
    check(|t| shared(t, 64, &|a, b| (a + b).tanh()), &["fused[add, tanh]", "sum", "fused[mul]", "max"]);
    check(
        |t| shared(t, 1 << 16, &|a, b| (a + b).tanh()),
        &["sum[add, tanh]", "fused[add, tanh, mul]", "max[add, tanh]"],
    );
    check(|t| shared(t, 64, &|a, _| a + &a.sin()), &["fused[sin, add]", "sum", "fused[mul]", "max"]);
}

#[test]
fn an_optimizer_is_one_kernel() {
    let momentum = |t: &Tape| {
        let (w, m) = (t.state("w", &[4], StateKind::Parameter), t.state("m", &[4], StateKind::Optimizer));
        let (g, lr) = (t.input("g", Type::global(&[4])), t.input("lr", Type::global(&[])));
        let new = (&m * 0.9) + &g;
        t.update(&m, &new);
        t.update(&w, &(&w - &(&new * &lr)));
    };
    check(momentum, &["fused[fma, neg, fma]"]);
}

#[test]
fn a_map_behind_a_product_is_part_of_its_kernel_unless_others_need_the_product() {
    let dense = |t: &Tape| {
        let (x, w) = (t.input("x", Type::sample(&[8])), t.input("w", Type::global(&[8, 6])));
        let product = x.matmul(&w);
        t.output("y", &(&product + &t.input("b", Type::global(&[6]))).relu());
        product
    };
    check(|t| drop(dense(t)), &["matmul[add, relu]"]);
    check(|t| t.output("product", &dense(t)), &["matmul", "fused[add, relu]"]);
    check(
        |t| t.output("z", &dense(t).softmax().sum(&[-1])),
        &["matmul", "fused[add, relu]", "max", "fused[sub, exp]", "sum", "sum[div]"],
    );
    // A long product is followed by a tree, and exp takes long to compile: neither gets an epilogue.
    let long = |t: &Tape| {
        let (x, w) = (t.input("x", Type::sample(&[2000])), t.input("w", Type::global(&[2000, 6])));
        t.output("y", &x.matmul(&w).relu());
    };
    check(long, &["matmul", "fused[relu]"]);
    let exp = |t: &Tape| {
        t.output("y", &t.input("x", Type::sample(&[8])).matmul(&t.input("w", Type::global(&[8, 6]))).exp());
    };
    check(exp, &["matmul", "fused[exp]"]);
}

#[test]
fn products_read_through_views_that_nothing_else_needs() {
    let convolution = |t: &Tape, shown: bool| {
        let window = Window { padding: [1, 1], ..Window::new([3, 3]) };
        let (x, w) = (t.input("x", Type::sample(&[2, 8, 8])), t.input("w", Type::global(&[6, 2, 3, 3])));
        let bias = t.input("bias", Type::global(&[6]));
        t.output("y", &(x.conv2d(&w, &window, 1) + bias.reshape(&[6, 1, 1])).relu());
        if shown {
            t.output("windows", &x.reshape(&[1, 2, 8, 8]).windows(&window, 0.0).permute(&[0, 2, 3, 1, 4, 5]));
        }
    };
    check(|t| convolution(t, false), &["matmul[add, relu]"]);
    check(|t| convolution(t, true), &["fused[im2col]", "matmul[add, relu]"]);
    // The operand is stored if a map reads the same copy, or if it is more than a view.
    let heads = |t: &Tape| t.input("x", Type::sample(&[4, 3, 8])).permute(&[1, 0, 2]);
    let square = |x: Var| x.matmul_t(&x);
    check(|t| t.output("y", &square(heads(t))), &["matmul"]);
    let copied = |t: &Tape| {
        let x = heads(t);
        t.output("y", &(x.matmul_t(&x).sum(&[-1]).reshape(&[3, 4, 1]) + &x));
        t.output("x", &x);
    };
    check(copied, &["copy", "matmul", "sum", "fused[add]"]);
    check(|t| t.output("y", &square(heads(t).tanh())), &["fused[tanh]", "matmul"]);
}

#[test]
fn what_only_its_own_kernel_reads_stays_in_registers() {
    let tape = Tape::new();
    let (a, b) = (tape.input("a", Type::sample(&[4])), tape.input("b", Type::sample(&[4])));
    let shared = (&a + &b).tanh();
    tape.output("y", &(&shared + 1.0));
    tape.output("z", &(&shared + &a));
    let (graph, parts) = place_parts(&simplify(&tape.finish().unwrap()));
    let fusion = fuse(&graph, parts);
    let roots: Vec<usize> = fusion.units.iter().map(|unit| unit.roots.len()).collect();
    assert_eq!((roots, fusion.stored.len()), (vec![2], 2));
}

#[test]
fn sums_over_shards_cut_the_step() {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[3]));
    let centred = &x - &(x.sum_shards() / 8.0);
    tape.output("y", &(&centred * &centred).sum_shards());
    let graph = simplify(&tape.finish().unwrap());
    let segments: Vec<usize> = fuse(&graph, Parts::new()).units.iter().map(|u| u.segment).collect();
    assert_eq!(segments, [0, 1, 1]);
}

/// A running mean is known after the first of two cuts. Its new value is computed behind the last one all the
/// same, where it may take the old one's place.
#[test]
fn new_states_wait_for_the_last_segment() {
    let tape = Tape::new();
    let (w, m) = (tape.state("w", &[3], StateKind::Parameter), tape.state("m", &[3], StateKind::Statistic));
    let x = &tape.input("x", Type::sample(&[3])) * &w;
    let mean = x.sum_shards() / 8.0;
    tape.update(&m, &(&m * 0.9 + &mean * 0.1));
    let spread = (&x - &mean).square().sum_shards();
    tape.update(&w, &(&w - &(spread * 0.1)));
    let graph = simplify(&tape.finish().unwrap());
    let fusion = fuse(&graph, Parts::new());
    assert_eq!(graph.updates.len(), 2);
    assert!(graph.updates.values().all(|&value| fusion.segment[value] == 2), "{:?}", fusion.segment);
    let program = crate::Program::compile(&tape.finish().unwrap()).unwrap();
    let run = crate::Run { first: 0, sizes: vec![4, 4], shards: 2 };
    let plan = program.plan(&run, &crate::plan::Target::default()).unwrap();
    // Nothing is copied from a memory of its own to the state.
    let names: Vec<&str> = plan.kernels.iter().map(|kernel| &kernel.name[..]).collect();
    assert!(!names.contains(&"replace"), "{names:?}");
    assert!(
        !plan
            .segments
            .iter()
            .flat_map(|s| &s.commands)
            .any(|c| matches!(c, crate::plan::Command::Copy { .. }))
    );
}

thread_local! {
    /// The visits to nodes and units by fusion on this thread.
    static VISITS: Cell<usize> = const { Cell::new(0) };
}

/// Counts a visit of fusion to a node or a unit.
pub(super) fn count() {
    VISITS.set(VISITS.get() + 1);
}

/// Returns the nodes of a tower with an optimizer, and how often fusion visited one or asked a unit.
fn tower(layers: usize) -> [usize; 2] {
    let tape = Tape::new();
    let lr = tape.input("lr", Type::global(&[]));
    let weights: Vec<Var> =
        (0..layers).map(|i| tape.state(&format!("w{i}"), &[4, 4], StateKind::Parameter)).collect();
    let x = tape.input("x", Type::sample(&[4]));
    let y = weights.iter().fold(x, |x, w| x.matmul(w).tanh().dropout(0.5, "drop"));
    let gradients = tape.gradients(&y.sum(&[-1]).sum_shards(), &weights);
    let squares = gradients.iter().map(|g| g.square().sum_all());
    let norm = squares.reduce(|a, b| a + b).unwrap().sqrt();
    for (i, (w, gradient)) in weights.iter().zip(&gradients).enumerate() {
        let m = tape.state(&format!("m{i}"), &[4, 4], StateKind::Optimizer);
        let new = &m * 0.9 + gradient / &norm;
        tape.update(&m, &new);
        tape.update(w, &(w - &(&new * &lr)));
    }
    let (graph, parts) = place_parts(&simplify(&tape.finish().unwrap()));
    VISITS.set(0);
    fuse(&graph, parts);
    [graph.nodes.len(), VISITS.get()]
}

#[test]
fn fusion_visits_each_node_a_few_times_however_deep_the_model_is() {
    for layers in [50, 400] {
        let [nodes, visits] = tower(layers);
        assert!(visits < 20 * nodes, "{layers} layers: {visits} visits to {nodes} nodes");
    }
}

/// Returns how often fusion visited a node or asked a unit, for each parameter of a model that SGD updates
/// with clipped gradients.
fn visits_of_sgd(parameters: usize) -> f64 {
    let tape = Tape::new();
    let [lr, x] = [tape.input("lr", Type::global(&[])), tape.input("x", Type::sample(&[4]))];
    let weights: Vec<Var> =
        (0..parameters).map(|i| tape.state(&format!("w{i}"), &[4, 4], StateKind::Parameter)).collect();
    let y = weights.iter().fold(x, |x, w| x.matmul(w).tanh());
    let gradients = tape.gradients(&y.sum(&[-1]).sum_shards(), &weights);
    let norm = gradients.iter().map(|g| g.square().sum_all()).reduce(|a, b| a + b).unwrap().sqrt();
    for (w, gradient) in weights.iter().zip(&gradients) {
        tape.update(w, &(w - &(gradient / &norm * &lr)));
    }
    let (graph, parts) = place_parts(&simplify(&tape.finish().unwrap()));
    VISITS.set(0);
    fuse(&graph, parts);
    VISITS.get() as f64 / parameters as f64
}

/// The new states of a kernel share a buffer for their flag. A kernel of two updates has six buffers (two
/// states, two gradients, the norm and the learning rate) and that of the flag, so it takes no third one. A
/// search that does not count the flag asks every such kernel for every update.
#[test]
fn kernels_that_are_full_with_the_flag_of_new_states_are_not_asked_again() {
    let (few, many) = (visits_of_sgd(50), visits_of_sgd(800));
    assert!(many < 1.5 * few, "{few:.1} visits for each of 50 parameters, {many:.1} for each of 800");
}
