//! Every kernel that can compute a matrix product gives the bytes of a plain loop on the host, on every
//! adapter.

mod attention;
mod convolution;
mod faults;
mod reduction;
mod row_sums;
mod shards;
mod slabs;
mod units;

use std::collections::BTreeSet;

use unisono_gpu::{Adapter, Backend, Device};
use unisono_graph::ops::{Contract, MatMul};
use unisono_graph::target::Machine;
use unisono_graph::tree::{PRODUCT_CHUNK, canonical, sum};
use unisono_graph::{Plan, Program, Run, Slot, Tape, Target, Type};
use unisono_random::Draws;
use unisono_testkit::{adapters, products};

/// A product of `[m, k] x [k, n]` in one of its forms.
#[derive(Clone, Copy, Debug)]
struct Case {
    m: usize,
    n: usize,
    k: usize,
    form: Form,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    /// A batch of pairs of matrices.
    Pairs { batch: usize, transpose_a: bool, transpose_b: bool },
    /// The rows of samples times one matrix.
    Rows { transpose_b: bool },
    /// The rows of k samples in ragged shards, contracted and summed over the shards.
    Contract { shards: usize },
}

impl Case {
    fn shards(&self) -> Vec<usize> {
        match self.form {
            Form::Pairs { .. } => vec![1],
            Form::Rows { .. } => vec![self.m],
            Form::Contract { shards } => {
                let ends = (0..=shards).map(|i| self.k * i * i / (shards * shards)).collect::<Vec<_>>();
                ends.windows(2).map(|w| w[1] - w[0]).filter(|&s| s > 0).collect()
            }
        }
    }

    fn types(&self) -> [Type; 2] {
        let Self { m, n, k, .. } = *self;
        let stored = |r, c, transposed: bool| if transposed { [c, r] } else { [r, c] };
        match self.form {
            Form::Pairs { batch, transpose_a, transpose_b } => {
                let ([a, b], [c, d]) = (stored(m, k, transpose_a), stored(k, n, transpose_b));
                [Type::global(&[batch, a, b]), Type::global(&[batch, c, d])]
            }
            Form::Rows { transpose_b } => [Type::sample(&[k]), Type::global(&stored(k, n, transpose_b))],
            Form::Contract { .. } => [Type::sample(&[m]), Type::sample(&[n])],
        }
    }

    fn program(&self) -> Program {
        let tape = Tape::new();
        let [a, b] = self.types();
        let (a, b) = (tape.input("a", a), tape.input("b", b));
        let y = match self.form {
            Form::Pairs { transpose_a, transpose_b, .. } => {
                tape.apply(MatMul { transpose_a, transpose_b }, &[&a, &b])
            }
            Form::Rows { transpose_b } => tape.apply(MatMul { transpose_a: false, transpose_b }, &[&a, &b]),
            Form::Contract { .. } => tape.apply(Contract, &[&a, &b]).sum_shards(),
        };
        tape.output("y", &y);
        Program::compile(&tape.finish().unwrap()).unwrap()
    }

    fn values(&self) -> [Vec<f32>; 2] {
        let rows: usize = self.shards().iter().sum();
        let of = |(ty, name): (&Type, &str)| {
            let lead = if ty.lead == unisono_graph::Lead::Sample { rows } else { 1 };
            let mut draws = Draws::of(3, "products", name, 0, 0);
            (0..lead * ty.count()).map(|_| draws.range(-1.0, 1.0)).collect()
        };
        let [a, b] = self.types();
        [of((&a, "a")), of((&b, "b"))]
    }

    /// Returns the same sums on the host. `step(a, b, c)` is a multiply-add.
    fn twin(&self, step: impl Fn(f32, f32, f32) -> f32) -> Vec<u32> {
        self.sums(&self.values(), |pairs| pairs.iter().fold(0.0, |c, &(a, b)| step(a, b, c)))
    }

    /// Returns the sums of these operands on the host. `chunk(pairs)` is the sum of a chunk's products.
    fn sums(&self, [a, b]: &[Vec<f32>; 2], chunk: impl Fn(&[(f32, f32)]) -> f32) -> Vec<u32> {
        let Self { m, n, k, .. } = *self;
        let (batch, ta, tb) = match self.form {
            Form::Pairs { batch, transpose_a, transpose_b } => (batch, transpose_a, transpose_b),
            Form::Rows { transpose_b } => (1, false, transpose_b),
            Form::Contract { .. } => (1, true, false),
        };
        let inner = if matches!(self.form, Form::Contract { .. }) { self.shards() } else { vec![k] };
        let mut y = Vec::with_capacity(batch * m * n);
        for (z, i, j) in (0..batch * m * n).map(|e| (e / (m * n), e / n % m, e % n)) {
            let at_a = |p| a[z * m * k + if ta { p * m + i } else { i * k + p }];
            let at_b = |p| b[z * k * n + if tb { j * k + p } else { p * n + j }];
            let pairs = |r: std::ops::Range<usize>| r.map(|p| (at_a(p), at_b(p))).collect::<Vec<_>>();
            let chain = |r: std::ops::Range<usize>| canonical(chunk(&pairs(r)));
            let mut first = 0;
            let mut parts = Vec::new();
            for &length in &inner {
                let end = first + length;
                let chunks =
                    (first..end).step_by(PRODUCT_CHUNK).map(|lo| chain(lo..end.min(lo + PRODUCT_CHUNK)));
                parts.push(sum(&chunks.collect::<Vec<_>>()));
                first = end;
            }
            y.push(sum(&parts).to_bits());
        }
        y
    }

    fn on(&self, device: &mut Device, target: &Target) -> (Vec<u32>, BTreeSet<String>) {
        let (mut outputs, modules) = run(device, target, &self.program(), &self.values(), &self.shards());
        (outputs.remove(0), modules)
    }
}

/// Runs a program. Returns the words of each output, and the modules of all kernels.
fn run(
    device: &mut Device,
    target: &Target,
    program: &Program,
    values: &[Vec<f32>],
    shards: &[usize],
) -> (Vec<Vec<u32>>, BTreeSet<String>) {
    let plan = program.plan(&Run::whole(shards), target).unwrap();
    // Memory that holds other results than these shows a kernel that leaves some of them unwritten.
    let other: Vec<Vec<f32>> = values.iter().map(|values| values.iter().map(|x| 0.5 - x).collect()).collect();
    run_plan(device, &plan, &other, program.outputs().len());
    let outputs = run_plan(device, &plan, values, program.outputs().len());
    (outputs, plan.kernels.into_iter().map(|k| k.wgsl).collect())
}

/// Runs a program as [`run`] does, with a text of its kernels replaced by another. Returns also whether a
/// kernel had it.
fn run_with(
    device: &mut Device,
    target: &Target,
    program: &Program,
    values: &[Vec<f32>],
    shards: &[usize],
    [text, other]: [&str; 2],
) -> (Vec<Vec<u32>>, bool) {
    let mut plan = program.plan(&Run::whole(shards), target).unwrap();
    let is_there = plan.kernels.iter().any(|kernel| kernel.wgsl.contains(text));
    plan.kernels.iter_mut().for_each(|kernel| kernel.wgsl = kernel.wgsl.replace(text, other));
    (run_plan(device, &plan, values, program.outputs().len()), is_there)
}

/// Runs a plan with these inputs. Returns the words of each output.
fn run_plan(device: &mut Device, plan: &Plan, values: &[Vec<f32>], outputs: usize) -> Vec<Vec<u32>> {
    let mut executable = device.load(plan).unwrap();
    let mut outputs = vec![Vec::new(); outputs];
    for segment in 0..plan.segments.len() {
        let upload = &mut |t: &unisono_graph::plan::Transfer, w: &mut unisono_gpu::Writer<'_>| {
            if let Slot::Input(i) = Slot::decode(t.slot) {
                values[i].iter().for_each(|x| w.write(&x.to_le_bytes()));
            }
        };
        let download = &mut |t: &unisono_graph::plan::Transfer, bytes: &[u8]| {
            if let Slot::Output(i) = Slot::decode(t.slot) {
                outputs[i] =
                    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            }
        };
        device.run(&mut executable, segment, upload, download).unwrap();
    }
    outputs
}

/// Returns cases with sizes around every limit: of a block, of a tile, of a chunk, and of the choice of a
/// kernel.
fn cases() -> Vec<Case> {
    let pairs = |batch, transpose_a, transpose_b| Form::Pairs { batch, transpose_a, transpose_b };
    let rows = |transpose_b| Form::Rows { transpose_b };
    let mut cases: Vec<Case> = [
        (1, 1, 1, pairs(1, false, false)),
        (5, 10, 3, rows(true)),
        (128, 64, 256, rows(true)),
        (128, 64, 260, rows(false)),
        (37, 41, 1531, rows(true)),
        (67, 130, 259, rows(false)),
        (70, 45, 1031, pairs(1, true, false)),
        (68, 36, 1032, pairs(1, true, true)),
        (130, 129, 37, pairs(2, false, false)),
        (33, 35, 700, pairs(3, false, true)),
        (8, 9, 2053, pairs(15, false, false)),
        (1, 300, 700, rows(false)),
        (520, 40, 1100, rows(true)),
        (1, 517, 300, rows(true)),
        (10, 260, 259, rows(true)),
        (16, 65, 130, pairs(3, true, false)),
        (7, 129, 200, pairs(2, false, true)),
        (12, 256, 257, pairs(1, true, true)),
        (64, 96, 1200, Form::Contract { shards: 3 }),
        (35, 33, 2111, Form::Contract { shards: 2 }),
        (10, 64, 16, Form::Contract { shards: 4 }),
        (64, 40, 300, Form::Contract { shards: 8 }),
        (68, 36, 333, Form::Contract { shards: 21 }),
        (36, 68, 60, Form::Contract { shards: 1 }),
    ]
    .map(|(m, n, k, form)| Case { m, n, k, form })
    .to_vec();
    let mut draws = Draws::of(5, "products", "cases", 0, 0);
    for _ in 0..12 {
        let mut below = |limit: u32| draws.below(limit) as usize;
        let (m, n, batch) = (1 + below(90), 1 + below(90), 1 + below(3));
        let contract = Form::Contract { shards: 1 + below(12) };
        let form = [pairs(batch, below(2) == 0, below(2) == 0), rows(below(2) == 0), contract][below(3)];
        cases.push(Case { m, n, k: 1 + below(2300), form });
    }
    cases
}

/// Returns targets that make a plan choose each of the kernels that this adapter can run.
fn targets(adapter: &Adapter) -> Vec<Target> {
    let own = adapter.target();
    let mut all = vec![own.clone()];
    // A GPU takes larger tiles the fewer workgroups keep it busy.
    for busy_workgroups in [1, 3, u32::MAX] {
        all.push(Target { machine: Machine::Gpu, busy_workgroups, ..own.clone() });
    }
    // Panels take more workgroup memory than others have. The fewer invocations keep a CPU busy, the
    // more rows each of them has.
    if adapter.backend == Backend::Cpu {
        for busy_workgroups in [1, u32::MAX] {
            all.push(Target { machine: Machine::Cpu, busy_workgroups, ..own.clone() });
        }
    }
    // Attention has no tiles where workgroups are small.
    all.push(Target { machine: Machine::Gpu, max_invocations: 64, ..own });
    all.dedup();
    all
}

#[test]
fn every_kernel_gives_the_bytes_of_a_plain_loop() {
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        let (mut rounds_twice, mut rounds_once, mut kernels) = (true, true, BTreeSet::new());
        for case in cases() {
            let twice = case.twin(|a, b, c| a * b + c);
            let once = case.twin(f32::mul_add);
            for target in targets(&adapter) {
                let (y, used) = case.on(&mut device, &target);
                kernels.extend(used);
                rounds_twice &= y == twice;
                rounds_once &= y == once;
                assert!(rounds_twice || rounds_once, "{case:?} on {} with {target:?}", adapter.label());
            }
        }
        for module in &kernels {
            products::check(module).unwrap_or_else(|problems| panic!("{}\n{module}", problems.join("\n")));
        }
        let families =
            ["// matmul:", "const TILE: u32 = 128u", "const TILE: u32 = 64u", "const TILE: u32 = 32u"];
        for family in families {
            let count = kernels.iter().filter(|kernel| kernel.contains(family)).count();
            assert!(count >= 4, "{family}: {count} kernels");
        }
        if adapter.backend == Backend::Cpu {
            for rows in ["const ROWS: u32 = 128u", "const ROWS: u32 = 8u"] {
                let is_one = |kernel: &&String| kernel.contains("// matmul_panels:") && kernel.contains(rows);
                assert!(kernels.iter().filter(is_one).count() >= 4, "{rows} on {}", adapter.label());
            }
            let is_packed = |kernel: &&String| kernel.contains("{ return b[i]; }\nfn panel_start");
            assert!(kernels.iter().filter(is_packed).count() >= 2, "packed on {}", adapter.label());
            for width in ["const WIDTH: u32 = 256u", "const WIDTH: u32 = 64u"] {
                let is_one = |kernel: &&String| kernel.contains("// matmul_few:") && kernel.contains(width);
                assert!(kernels.iter().filter(is_one).count() >= 4, "{width} on {}", adapter.label());
            }
        }
    }
}

/// A product over many samples is divided where the grid has no more room. On a CPU an invocation adds up the
/// chunks of its part, also in a last part that would have another kernel by itself.
#[test]
fn a_divided_product_of_several_chunks_has_the_bytes_of_a_whole_one() {
    let case = Case { m: 33, n: 8, k: 2 * PRODUCT_CHUNK, form: Form::Rows { transpose_b: false } };
    for adapter in adapters().into_iter().filter(|adapter| adapter.backend == Backend::Cpu) {
        let mut device = Device::open(&adapter).unwrap();
        let own = Target { busy_workgroups: 1, ..adapter.target() };
        let [whole, divided] = [own.max_workgroups, 4].map(|max_workgroups| {
            let target = Target { max_workgroups, ..own.clone() };
            let plan = case.program().plan(&Run::whole(&case.shards()), &target).unwrap();
            assert!(plan.kernels.iter().all(|kernel| kernel.wgsl.contains("const CHUNKS: bool = true")));
            (plan.launches(), case.on(&mut device, &target).0)
        });
        assert_eq!((whole.0, divided.0), (1, 2), "{}", adapter.label());
        assert!(whole.1 == divided.1, "{}", adapter.label());
    }
}

/// Returns a program of a product with an epilogue: a bias of its columns, a row of factors, an activation
/// and a residual.
fn finished(rows: usize, n: usize, k: usize, shown: bool) -> Program {
    let tape = Tape::new();
    let input = |name: &str, ty| tape.input(name, ty);
    let (x, w) = (input("x", Type::sample(&[rows, k])), input("w", Type::global(&[k, n])));
    let (bias, residual) = (input("bias", Type::global(&[n])), input("residual", Type::sample(&[rows, n])));
    let factors = input("factors", Type::global(&[rows, 1]));
    let product = x.matmul(&w);
    tape.output("y", &(((&product + &bias) * &factors).relu() * &residual).relu());
    if shown {
        tape.output("product", &product);
    }
    Program::compile(&tape.finish().unwrap()).unwrap()
}

#[test]
fn a_map_behind_a_product_gives_the_same_bytes_inside_its_kernel() {
    let shards = [3, 1, 5];
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        for (rows, n, k) in [(1, 1, 1), (1, 64, 36), (3, 10, 7), (2, 33, 300), (4, 36, 260), (1, 70, 1024)] {
            let lengths = [9 * rows * k, k * n, n, 9 * rows * n, rows];
            let values = lengths.map(|length| {
                let mut draws = Draws::of(7, "products", "finished", length as u32, 0);
                (0..length).map(|_| draws.range(-1.0, 1.0)).collect::<Vec<f32>>()
            });
            let mut first = None;
            for target in targets(&adapter) {
                let [own, apart] = [false, true]
                    .map(|shown| run(&mut device, &target, &finished(rows, n, k, shown), &values, &shards));
                assert_eq!(
                    own.0[0],
                    apart.0[0],
                    "{rows} rows, {n} columns, {k} inside on {}",
                    adapter.label()
                );
                let what =
                    format!("{rows} rows, {n} columns, {k} inside on {} with {target:?}", adapter.label());
                assert_eq!(first.get_or_insert_with(|| apart.0.clone()), &apart.0, "{what}");
                // A GPU's kernel stores the product beside the map of it, where columns come in fours.
                let stores_both = target.machine == Machine::Gpu && n % 4 == 0;
                assert_eq!(own.1.len() < apart.1.len(), !stores_both, "{what}: one kernel, not two");
                for module in &own.1 {
                    products::check(module)
                        .unwrap_or_else(|problems| panic!("{}\n{module}", problems.join("\n")));
                }
            }
        }
    }
}
