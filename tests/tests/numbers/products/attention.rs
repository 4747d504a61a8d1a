//! Attention has the bytes of a plain loop on every machine's kernels, forward and backward.

use std::collections::BTreeSet;

use unisono_gpu::Device;
use unisono_graph::elementary::Elementary;
use unisono_graph::ops::{ATTENTION_BLOCK, Attention};
use unisono_graph::target::Machine;
use unisono_graph::tree::{add, canonical};
use unisono_graph::{Program, Tape, Target, Type};
use unisono_random::Draws;
use unisono_testkit::{adapters, products};

use super::{run, targets};

/// Attention of a sample's heads over T queries and S keys of `d` features, with values of `e`.
#[derive(Clone, Copy, Debug)]
struct Case {
    samples: usize,
    heads: usize,
    sizes: [usize; 4],
    causal: bool,
    mask: Mask,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mask {
    None,
    /// The padding of each sample.
    Keys,
    /// A mask of its own for each head, query and key.
    Pairs,
}

impl Case {
    fn mask_dims(&self) -> Option<Vec<usize>> {
        let [t, s, ..] = self.sizes;
        match self.mask {
            Mask::None => None,
            Mask::Keys => Some(vec![1, 1, s]),
            Mask::Pairs => Some(vec![self.heads, t, s]),
        }
    }

    /// Returns the axes of q, k, v and what the result is weighted with.
    fn dims(&self) -> [Vec<usize>; 4] {
        let [t, s, d, e] = self.sizes;
        [[t, d], [s, d], [s, e], [t, e]].map(|last| vec![self.heads, last[0], last[1]])
    }

    fn scale(&self) -> f32 {
        (1.0 / self.sizes[2] as f32).sqrt()
    }

    fn program(&self) -> Program {
        let tape = Tape::new();
        let names = ["q", "k", "v", "weight"];
        let inputs: Vec<_> =
            names.iter().zip(self.dims()).map(|(name, dims)| tape.input(name, Type::sample(&dims))).collect();
        let mask = self.mask_dims().map(|dims| {
            let ty = if self.mask == Mask::Keys { Type::sample(&dims) } else { Type::global(&dims) };
            tape.input("mask", ty)
        });
        let operands: Vec<_> = inputs[..3].iter().chain(&mask).collect();
        let y = tape.apply(Attention { causal: self.causal, scale: self.scale() }, &operands);
        tape.output("y", &y);
        let loss = (&y * &inputs[3]).sum_all().sum_shards();
        for (name, gradient) in ["dq", "dk", "dv"].iter().zip(tape.gradients(&loss, &inputs[..3])) {
            tape.output(name, &gradient);
        }
        Program::compile(&tape.finish().unwrap()).unwrap()
    }

    fn values(&self) -> Vec<Vec<f32>> {
        let mut draws = Draws::of(9, "attention", "values", 0, 0);
        let mut all: Vec<Vec<f32>> = Vec::new();
        for dims in self.dims() {
            let count = self.samples * dims.iter().product::<usize>();
            all.push((0..count).map(|_| draws.range(-1.5, 1.5)).collect());
        }
        if let Some(dims) = self.mask_dims() {
            let samples = if self.mask == Mask::Keys { self.samples } else { 1 };
            let count = samples * dims.iter().product::<usize>();
            all.push((0..count).map(|_| if draws.below(4) == 0 { 0.0 } else { 1.0 }).collect());
        }
        all
    }

    fn sees(&self, values: &[Vec<f32>], z: usize, i: usize, j: usize) -> bool {
        let [t, s, ..] = self.sizes;
        let is_shown = match self.mask {
            Mask::None => true,
            Mask::Keys => values[4][z / self.heads * s + j] != 0.0,
            Mask::Pairs => values[4][(z % self.heads * t + i) * s + j] != 0.0,
        };
        is_shown && (!self.causal || j <= i)
    }

    /// Returns the result and the three gradients by loops on the host. A device rounds as `f` says.
    fn twin(&self, f: Elementary) -> Vec<Vec<u32>> {
        let [t, s, d, e] = self.sizes;
        let values = self.values();
        let layers = self.samples * self.heads;
        let at = |operand: usize, z: usize, row: usize, c: usize| {
            let [rows, width] = [[t, d], [s, d], [s, e], [t, e]][operand];
            values[operand][(z * rows + row) * width + c]
        };
        let q = |z, i, c| at(0, z, i, c) * self.scale();
        let chain = |count: usize, a: &dyn Fn(usize) -> f32, b: &dyn Fn(usize) -> f32, from: f32| {
            (0..count).fold(from, |sum, at| step(f, a(at), b(at), sum))
        };
        let mut all = vec![vec![]; 4];
        for z in 0..layers {
            let score = |i: usize, j: usize| chain(d, &|c| at(1, z, j, c), &|c| q(z, i, c), 0.0);
            let (mut p, mut ds) = (vec![0.0; t * s], vec![0.0; t * s]);
            for i in 0..t {
                let row: Vec<Option<f32>> =
                    (0..s).map(|j| self.sees(&values, z, i, j).then(|| score(i, j))).collect();
                let (mut top, mut total, mut sums) = (f32::MIN, 0.0, vec![0.0; e]);
                for (block, scores) in row.chunks(ATTENTION_BLOCK).enumerate() {
                    let highest = scores.iter().flatten().copied().fold(top, f32::max);
                    let fade = f.exp(top - highest);
                    let weights: Vec<f32> =
                        scores.iter().map(|s| s.map_or(0.0, |s| f.exp(s - highest))).collect();
                    let fours = weights.chunks(4).map(|four| four.iter().fold(0.0, |a, b| a + b));
                    total = step(f, total, fade, fours.fold(0.0, |a, b| a + b));
                    for (c, sum) in sums.iter_mut().enumerate() {
                        let from = if block == 0 { 0.0 } else { canonical(*sum * fade) };
                        let value = |j: usize| at(2, z, block * ATTENTION_BLOCK + j, c);
                        *sum = chain(weights.len(), &|j| weights[j], &value, from);
                    }
                    top = highest;
                }
                let share = if total == 0.0 { 0.0 } else { 1.0 / total };
                let y: Vec<f32> = sums.iter().map(|sum| canonical(sum * share)).collect();
                let lse = top + f.log(total);
                let delta = (0..e).fold(0.0, |sum, c| add(sum, y[c] * at(3, z, i, c)));
                for (j, score) in row.iter().enumerate() {
                    let Some(score) = score else { continue };
                    let slope = chain(e, &|c| at(2, z, j, c), &|c| at(3, z, i, c), 0.0);
                    p[i * s + j] = f.exp(score - lse);
                    ds[i * s + j] = p[i * s + j] * (slope - delta);
                }
                all[0].extend(y.iter().map(|y| y.to_bits()));
                for c in 0..d {
                    let sum = chain(s, &|j| ds[i * s + j], &|j| at(1, z, j, c), 0.0);
                    all[1].push(canonical(sum * self.scale()).to_bits());
                }
            }
            for j in 0..s {
                let of = |weights: &[f32], row: &dyn Fn(usize) -> f32| {
                    canonical(chain(t, &|i| weights[i * s + j], row, 0.0)).to_bits()
                };
                all[2].extend((0..d).map(|c| of(&ds, &|i| q(z, i, c))));
                all[3].extend((0..e).map(|c| of(&p, &|i| at(3, z, i, c))));
            }
        }
        all
    }

    fn on(&self, device: &mut Device, target: &Target, kernels: &mut BTreeSet<String>) -> Vec<Vec<u32>> {
        let shards = if self.samples > 1 { vec![self.samples - 1, 1] } else { vec![1] };
        let (found, used) = run(device, target, &self.program(), &self.values(), &shards);
        kernels.extend(used);
        found
    }
}

fn cases() -> Vec<Case> {
    let case = |samples, heads, sizes, causal, mask| Case { samples, heads, sizes, causal, mask };
    let mut cases = vec![
        case(1, 1, [1, 1, 1, 1], false, Mask::None),
        case(2, 1, [70, 70, 20, 12], true, Mask::Keys),
        case(1, 1, [34, 40, 130, 68], false, Mask::Pairs),
        // What native code of the CPU computes: more queries than keys, and fewer; long rows.
        case(1, 2, [100, 40, 8, 16], true, Mask::None),
        case(1, 1, [5, 67, 4, 128], false, Mask::Pairs),
    ];
    let mut draws = Draws::of(5, "attention", "cases", 0, 0);
    // Each case has twelve kernels to compile.
    let random = if std::env::var_os("UNISONO_LONG").is_some() { 20 } else { 0 };
    for _ in 0..random {
        let mut below = |limit: u32| draws.below(limit) as usize;
        let sizes = [1 + below(80), 1 + below(80), 1 + below(20), 1 + below(20)];
        let mask = [Mask::None, Mask::Keys, Mask::Pairs][below(3)];
        cases.push(case(1 + below(2), 1 + below(2), sizes, below(2) == 0, mask));
    }
    cases
}

/// Returns a b + c as a device computes it.
fn step(f: Elementary, a: f32, b: f32, c: f32) -> f32 {
    if f.fused { a.mul_add(b, c) } else { a * b + c }
}

/// Returns the first result, by name, that differs.
fn difference(own: &[Vec<u32>], twin: &[Vec<u32>]) -> Option<String> {
    ["y", "dq", "dk", "dv"].iter().zip(own.iter().zip(twin)).find_map(|(name, (own, twin))| {
        let at = own.iter().zip(twin).position(|(a, b)| a != b)?;
        Some(format!("{name}[{at}] is {} and not {}", f32::from_bits(own[at]), f32::from_bits(twin[at])))
    })
}

#[test]
fn attention_has_the_bytes_of_a_plain_loop_on_every_machine() {
    let twins: Vec<[Vec<Vec<u32>>; 2]> = cases()
        .iter()
        .map(|case| [Elementary { fused: false }, Elementary { fused: true }].map(|f| case.twin(f)))
        .collect();
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        let (mut rounds, mut kernels) = ([true, true], BTreeSet::new());
        for (case, twins) in cases().iter().zip(&twins) {
            for target in targets(&adapter) {
                let own = case.on(&mut device, &target, &mut kernels);
                let found = twins.each_ref().map(|twin| difference(&own, twin));
                (0..2).for_each(|kind| rounds[kind] &= found[kind].is_none());
                let label = adapter.label();
                assert!(rounds[0] || rounds[1], "{case:?} on {label} with {:?}: {found:?}", target.machine);
            }
        }
        for module in &kernels {
            products::check(module).unwrap_or_else(|found| panic!("{}\n{module}", found.join("\n")));
        }
        let count = |text: &str| kernels.iter().filter(|module| module.contains(text)).count();
        assert!(count("// attention, tiles:") >= 3 * cases().len());
        assert!(count("// attention, alone:") >= 3 * cases().len());
    }
}

/// The test above would see each of these faults, in the kernels of either machine.
#[test]
fn wrong_attention_is_seen() {
    let faults = [
        ("a query does not see itself", "key <= query", "key < query"),
        ("results do not fade", "exp4(top - highest)", "exp4(top - top)"),
        ("sums in another order", "kept(sum) + four[r];", "four[r] + sum * 1.0000001;"),
        ("sums of four in another order", "kept(four_sum) + four[r];", "four[r] + four_sum * 1.0000001;"),
        ("fours in another order", "four_sum = kept(four_sum) + four[r];", "sum += four[r];"),
        ("a block is left out", "first += BLOCK", "first += BLOCK + BLOCK"),
        ("no sum of weights", "top[r] + log_(total[r])", "top[r]"),
        ("no slope of the sum", "[r] - delta)", "[r])"),
        ("no factor", "canonical(sums[i] * SCALE)", "canonical(sums[i])"),
        ("no factor on tiles", "vec4<f32>(SCALE)", "vec4<f32>(1.0)"),
    ];
    let case = Case { samples: 2, heads: 2, sizes: [70, 70, 12, 8], causal: true, mask: Mask::Keys };
    let adapter = &adapters()[0];
    let mut device = Device::open(adapter).unwrap();
    let program = case.program();
    for (name, text, wrong) in faults {
        let mut found = false;
        // The CPU takes native code for a function that it knows, whatever its text says.
        for target in targets(adapter).into_iter().filter(|target| target.machine != Machine::Cpu) {
            let sound = run(&mut device, &target, &program, &case.values(), &[1, 1]).0;
            let (own, changed) =
                super::run_with(&mut device, &target, &program, &case.values(), &[1, 1], [text, wrong]);
            found |= changed;
            assert!(
                !changed || difference(&own, &sound).is_some(),
                "{name} is not seen by {:?}",
                target.machine
            );
        }
        assert!(found, "{name}: no kernel has {text}");
    }
}
