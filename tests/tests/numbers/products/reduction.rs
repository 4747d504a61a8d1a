//! Reductions along rows: the kernels that stage rows in workgroup memory and those that do not give the
//! bytes of a plain loop.

use unisono_gpu::Device;
use unisono_graph::tree::{SUM_CHUNK, add, sum};
use unisono_graph::{Program, Tape, Type};
use unisono_random::Draws;
use unisono_testkit::{adapters, products};

use super::{run, targets};

/// The sum and the maximum along the last axes of samples, and the sum of squares.
pub fn program(dims: &[usize], axes: &[isize]) -> Program {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(dims));
    tape.output("sum", &x.sum(axes));
    tape.output("max", &x.max(axes));
    tape.output("squares", &(&x * &x).sum(axes));
    Program::compile(&tape.finish().unwrap()).unwrap()
}

/// Returns numbers of all sizes, with zeros of both signs and subnormal ones among them.
pub fn values(count: usize) -> Vec<f32> {
    let mut draws = Draws::of(13, "products", "reduction", count as u32, 0);
    let mut one = || match draws.below(12) {
        0 => -0.0,
        1 => 1e-41,
        2 => draws.range(-1e6, 1e6),
        _ => draws.range(-1.0, 1.0),
    };
    (0..count).map(|_| one()).collect()
}

/// Returns the sum of a row on the host: chunks in a serial order, then the tree over them.
fn host_sum(row: &[f32]) -> u32 {
    let chunks: Vec<f32> =
        row.chunks(SUM_CHUNK).map(|chunk| chunk.iter().fold(0.0, |acc, &x| add(acc, x))).collect();
    sum(&chunks).to_bits()
}

/// Returns the sizes of a sample, the axes that are reduced, and the number of samples. Rows end around the
/// limits of a slab and of a chunk, and the workgroups are not all full.
fn cases() -> Vec<(Vec<usize>, Vec<isize>, usize)> {
    let mut cases = vec![
        (vec![3, 32], vec![-1], 5),
        (vec![64, 36], vec![-1], 2),
        (vec![2, 8, 16], vec![-2, -1], 3),
        (vec![7, 256], vec![-1], 11),
        (vec![5, 260], vec![-1], 13),
        (vec![1, 1028], vec![-1], 3),
        (vec![9, 33], vec![-1], 4),
        (vec![2, 12], vec![-1], 70),
    ];
    let mut draws = Draws::of(14, "products", "reductions", 0, 0);
    for _ in 0..4 {
        let mut below = |limit: u32| draws.below(limit) as usize;
        cases.push((vec![1 + below(9), 4 * (1 + below(200))], vec![-1], 1 + below(40)));
    }
    cases
}

#[test]
fn rows_staged_in_workgroup_memory_give_the_bytes_of_a_plain_loop() {
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        let mut staged = 0;
        for (dims, axes, samples) in cases() {
            let program = program(&dims, &axes);
            let x = values(samples * dims.iter().product::<usize>());
            let inner: usize = dims[dims.len() - axes.len()..].iter().product();
            let sums: Vec<u32> = x.chunks(inner).map(host_sum).collect();
            let mut first = None;
            for target in targets(&adapter) {
                let (outputs, modules) =
                    run(&mut device, &target, &program, std::slice::from_ref(&x), &[samples]);
                let what = format!("{dims:?} on {} with {target:?}", adapter.label());
                assert_eq!(outputs[0], sums, "{what}");
                assert_eq!(first.get_or_insert_with(|| outputs.clone()), &outputs, "{what}");
                for module in &modules {
                    staged += usize::from(module.contains("var<workgroup> staged"));
                    products::check(module)
                        .unwrap_or_else(|problems| panic!("{}\n{module}", problems.join("\n")));
                }
            }
        }
        assert!(staged > 20, "{staged} kernels stage rows on {}", adapter.label());
    }
}
