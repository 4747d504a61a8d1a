//! The gradient of an embedding has the bytes of a plain loop over the places of each id, however the shards
//! are divided among replicas.

use std::collections::BTreeSet;
use std::ops::Range;

use unisono_gpu::{Backend, Device, Writer};
use unisono_graph::plan::Transfer;
use unisono_graph::target::Machine;
use unisono_graph::tree::{PRODUCT_CHUNK, add, canonical, sum, sum_blocks};
use unisono_graph::{DType, Lead, Program, Run, Slot, Tape, Target, Type};
use unisono_random::Draws;
use unisono_testkit::{adapters, products};

use super::targets;

/// Lookups of `[places]` ids a sample in a table.
#[derive(Debug)]
struct Case {
    rows: usize,
    width: usize,
    places: usize,
    shards: Vec<usize>,
    /// Ids are drawn from 0..ids. Where it is more than `rows`, some are in no row.
    ids: u32,
    lookups: usize,
}

impl Case {
    fn program(&self) -> Program {
        let tape = Tape::new();
        let table = tape.input("table", Type::global(&[self.rows, self.width]));
        let mut loss = None;
        for lookup in 0..self.lookups {
            let ids = tape.input(&format!("ids{lookup}"), Type::sample(&[self.places]).of(DType::I32));
            let dy = tape.input(&format!("dy{lookup}"), Type::sample(&[self.places, self.width]));
            let own = (table.embed(&ids) * dy).sum_all().sum_shards();
            loss = Some(loss.map_or_else(|| own.clone(), |loss| loss + &own));
        }
        tape.output("dy", &tape.gradients(&loss.unwrap(), std::slice::from_ref(&table))[0]);
        Program::compile(&tape.finish().unwrap()).unwrap()
    }

    fn samples(&self) -> usize {
        self.shards.iter().sum()
    }

    /// Returns the table, and the ids and rows of each lookup, as words.
    fn values(&self) -> Vec<Vec<u32>> {
        let mut draws = Draws::of(3, "row sums", "values", self.rows as u32, 0);
        let count = self.samples() * self.places;
        let mut values = vec![vec![0; self.rows * self.width]];
        for _ in 0..self.lookups {
            values.push((0..count).map(|_| draws.below(self.ids)).collect());
            values.push((0..count * self.width).map(|_| draws.range(-1.0, 1.0).to_bits()).collect());
        }
        values
    }

    /// Returns the same sums on the host.
    fn twin(&self) -> Vec<u32> {
        let values = self.values();
        let lookup = |lookup: usize, row: usize, column: usize| {
            let (ids, dy) = (&values[1 + 2 * lookup], &values[2 + 2 * lookup]);
            let mut first = 0;
            let shards = self.shards.iter().map(|samples| {
                let places: Vec<usize> = (first..first + samples * self.places).collect();
                first += samples * self.places;
                let chunks = places.chunks(PRODUCT_CHUNK).map(|chunk| {
                    let own = chunk.iter().filter(|&&place| ids[place] as usize == row);
                    canonical(
                        own.fold(0.0, |all, place| all + f32::from_bits(dy[place * self.width + column])),
                    )
                });
                sum(&chunks.collect::<Vec<_>>())
            });
            sum(&shards.collect::<Vec<_>>())
        };
        let mut sums = Vec::new();
        for (row, column) in (0..self.rows * self.width).map(|at| (at / self.width, at % self.width)) {
            // The last lookup's gradient arrives first.
            let all = (0..self.lookups).rev().map(|own| lookup(own, row, column)).reduce(|a, b| a + b);
            sums.push(all.unwrap_or_default().to_bits());
        }
        sums
    }

    /// Runs the shards `own` in a plan of their own. Returns each downloaded slot.
    fn run(
        &self,
        device: &mut Device,
        target: &Target,
        own: Range<usize>,
        fault: Option<[&str; 2]>,
        kernels: &mut BTreeSet<String>,
    ) -> (Run, Vec<(Slot, Vec<f32>)>) {
        let program = self.program();
        let run =
            Run { first: own.start, sizes: self.shards[own.clone()].to_vec(), shards: self.shards.len() };
        let mut plan = program.plan(&run, target).unwrap();
        if let Some([text, wrong]) = fault {
            plan.kernels.iter_mut().for_each(|kernel| kernel.wgsl = kernel.wgsl.replace(text, wrong));
        }
        let first_row: usize = self.shards[..own.start].iter().sum();
        let (values, mut found) = (self.values(), Vec::new());
        let mut executable = device.load(&plan).unwrap();
        for segment in 0..plan.segments.len().min(if run.is_whole() { usize::MAX } else { 1 }) {
            let upload = &mut |transfer: &Transfer, writer: &mut Writer<'_>| {
                let Slot::Input(index) = Slot::decode(transfer.slot) else { return };
                let ty = &program.inputs()[index].ty;
                let row = if ty.lead == Lead::Sample { ty.count() } else { 0 };
                let start = row * first_row;
                let words = &values[index][start..start + transfer.slice.bytes as usize / 4];
                words.iter().for_each(|word| writer.write(&word.to_le_bytes()));
            };
            let download = &mut |transfer: &Transfer, bytes: &[u8]| {
                let numbers = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                found.push((Slot::decode(transfer.slot), numbers.collect()));
            };
            device.run(&mut executable, segment, upload, download).unwrap();
        }
        kernels.extend(plan.kernels.into_iter().map(|kernel| kernel.wgsl));
        (run, found)
    }

    /// Returns the gradient by so many replicas, each with a run of shards.
    fn by_replicas(
        &self,
        device: &mut Device,
        target: &Target,
        replicas: usize,
        fault: Option<[&str; 2]>,
        kernels: &mut BTreeSet<String>,
    ) -> Vec<u32> {
        let all = self.shards.len();
        if replicas == 1 || all == 1 {
            let (_, found) = self.run(device, target, 0..all, fault, kernels);
            let output = found.into_iter().find(|(slot, _)| *slot == Slot::Output(0)).unwrap().1;
            return output.into_iter().map(f32::to_bits).collect();
        }
        let program = self.program();
        let mut totals: Vec<Vec<f32>> = program.buckets().iter().map(|b| vec![0.0; b.len]).collect();
        let mut held: Vec<Vec<(Range<usize>, Vec<f32>)>> = vec![vec![]; totals.len()];
        for replica in 0..replicas {
            let own = all * replica / replicas..all * (replica + 1) / replicas;
            if own.is_empty() {
                continue;
            }
            let (run, found) = self.run(device, target, own, fault, kernels);
            for (slot, numbers) in found {
                if let Slot::Blocks(bucket) = slot {
                    let len = totals[bucket].len();
                    let parts = run.blocks().into_iter().zip(numbers.chunks(len).map(<[f32]>::to_vec));
                    held[bucket].extend(parts);
                }
            }
        }
        for (total, held) in totals.iter_mut().zip(&held) {
            let find = |range: &Range<usize>| held.iter().find(|(own, _)| own == range).map(|(_, v)| &v[..]);
            sum_blocks(all, &find, total).unwrap();
        }
        let gradients = program.buckets().iter().zip(&totals).flat_map(|(bucket, total)| {
            let own = |&(_, first): &(usize, usize)| &total[first..];
            bucket.values.iter().map(own).collect::<Vec<_>>()
        });
        let count = self.rows * self.width;
        let large: Vec<&[f32]> = gradients.filter(|g| g.len() >= count && count > 1).collect();
        (0..count).map(|at| large.iter().map(|g| g[at]).reduce(add).unwrap_or_default().to_bits()).collect()
    }
}

fn cases() -> Vec<Case> {
    let case = |rows, width, places, shards: &[usize], ids| {
        let shards = shards.to_vec();
        Case { rows, width, places, shards, ids, lookups: 1 }
    };
    let mut cases = vec![
        case(7, 4, 5, &[3, 2], 7),
        case(5, 3, 1, &[2, 9, 1, 4], 6),
        case(1, 2, 30, &[4, 4, 4], 1),
        case(300, 12, 64, &[4, 4, 4, 4, 4, 4, 4, 4], 300),
        case(40, 5, 700, &[5, 3, 1], 41),
        case(3, 8, 1300, &[4, 4, 4, 4, 4, 4, 3], 3),
        // Ids of 17 bits, and more positions than a CPU sorts in one tile.
        case(66_000, 1, 8, &[3, 2], 66_001),
        case(30, 1, 9_000, &[4, 4], 30),
    ];
    let mut draws = Draws::of(5, "row sums", "cases", 0, 0);
    for _ in 0..8 {
        let mut below = |limit: u32| draws.below(limit) as usize;
        let shards = (0..1 + below(9)).map(|_| 1 + below(6)).collect();
        let rows = 1 + below(50);
        let lookups = 1;
        let (width, places, ids) = (1 + below(20), 1 + below(400), 1 + (rows + below(3)) as u32);
        cases.push(Case { rows, width, places, shards, ids, lookups });
    }
    cases
}

#[test]
fn a_row_is_the_sum_over_its_places_in_their_order_on_any_number_of_replicas() {
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        let mut kernels = BTreeSet::new();
        for case in cases() {
            let twin = case.twin();
            for target in targets(&adapter) {
                for replicas in [1, 2, 3, 7] {
                    let own = case.by_replicas(&mut device, &target, replicas, None, &mut kernels);
                    assert!(own == twin, "{case:?} with {replicas} replicas on {}", adapter.label());
                }
            }
        }
        for module in &kernels {
            products::check(module).unwrap_or_else(|found| panic!("{}\n{module}", found.join("\n")));
        }
        let sorts = |name: &str| kernels.iter().any(|module| module.contains(name));
        assert!(sorts("// sort_tiles:") && sorts("// sort_merge:"));
        assert_eq!(sorts("// sort_digits:"), adapter.backend == Backend::Cpu);
    }
}

#[test]
fn two_lookups_of_a_table_are_summed_over_the_shards_each_on_its_own() {
    let case = Case { rows: 9, width: 4, places: 50, shards: vec![3, 2, 4], ids: 9, lookups: 2 };
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        let own = case.by_replicas(&mut device, &adapter.target(), 1, None, &mut BTreeSet::new());
        assert!(own == case.twin(), "{}", adapter.label());
    }
}

/// The test above would see each of these faults.
#[test]
fn wrong_orders_of_row_sums_are_seen() {
    let faults = [
        ("equal ids in another order", ["other == own && j < i", "other == own && j > i"]),
        (
            "ids of an earlier tile behind those of a later one",
            ["0u, 1u, other < tile", "0u, 1u, other > tile"],
        ),
        ("chunks one behind the other", ["firstLeadingBit(leaf ^ following)", "0u"]),
        ("one chunk", ["if following != leaf {", "if false {"]),
        ("shards as chunks", ["<< params.chunk_bits", "<< 0u"]),
        ("a place too few", ["next.x == own.x &&", "next.x == own.x && at <= 20u &&"]),
    ];
    // Ids of 2 bits are sorted in one pass, and those of 9 bits in two.
    let on_cpu = [
        (3, "equal ids in another order", ["pair(step, at);", "pair(step, first + end - 1u - at);"]),
        (300, "a pass too few", ["const PASSES: u32 = 2u", "const PASSES: u32 = 1u"]),
        (
            300,
            "equal digits in another order in the second pass",
            ["pair(step, at);", "pair(step, select(at, first + end - 1u - at, step == 1u));"],
        ),
        (300, "pairs where another pass put them", ["return z[position]", "return y[position]"]),
    ];
    let adapters = adapters();
    let case = |rows: usize| Case {
        rows,
        width: 4,
        places: 700,
        shards: vec![4, 3, 5],
        ids: rows as u32,
        lookups: 1,
    };
    let gpu = Target { machine: Machine::Gpu, ..adapters[0].target() };
    let cpu = adapters.iter().find(|adapter| adapter.backend == Backend::Cpu);
    let cpu = cpu.expect("the CPU is an adapter");
    let gpus = faults.map(|(name, fault)| (&adapters[0], gpu.clone(), case(3), name, fault));
    let cpus = on_cpu.map(|(rows, name, fault)| (cpu, cpu.target(), case(rows), name, fault));
    for (adapter, target, case, name, fault) in gpus.into_iter().chain(cpus) {
        let mut device = Device::open(adapter).unwrap();
        let own = case.by_replicas(&mut device, &target, 1, Some(fault), &mut BTreeSet::new());
        assert!(own != case.twin(), "{name} is not seen");
    }
}
