//! Adapters that are there beside each other give the same bytes: the short form of `cargo xtask vendors`.
//! Faults that are planted into kernels are found and named.

use unisono_gpu::{Adapter, Options};
use unisono_replica::{Rounding, probe_now};
use unisono_testkit::left_out;
use unisono_tests::vendors::{Bench, Plant, compare, fuzz, models, ops};

/// Returns all adapters, SwiftShader included where `VK_ADD_DRIVER_FILES` names it.
fn adapters() -> Vec<Adapter> {
    unisono_testkit::adapters()
}

/// Returns adapters beside the first one whose `fma` rounds alike. Says so where there is none.
fn pairs() -> Vec<[Adapter; 2]> {
    let rounding = |adapter: &Adapter| probe_now(adapter).unwrap().rounding;
    let all: Vec<_> = adapters().into_iter().map(|adapter| (rounding(&adapter), adapter)).collect();
    let first = |of: Rounding| all.iter().find(|(rounding, _)| *rounding == of);
    let beside = all.iter().filter_map(|(rounding, adapter)| {
        let (_, first) = first(*rounding).filter(|(_, first)| first != adapter)?;
        Some([first.clone(), adapter.clone()])
    });
    let pairs: Vec<_> = beside.collect();
    if pairs.is_empty() {
        left_out("no adapters are compared: there are no two whose fma rounds alike");
    }
    pairs
}

fn open(pair: &[Adapter; 2]) -> [Bench; 2] {
    pair.each_ref().map(|adapter| Bench::open(adapter, Options::default()).unwrap())
}

fn long() -> bool {
    std::env::var_os("UNISONO_LONG").is_some()
}

#[test]
fn ops_and_random_graphs_have_the_same_bytes_on_all_adapters() {
    let every = if long() { 1 } else { 6 };
    for pair in pairs() {
        let mut benches = open(&pair);
        for subject in ops().unwrap().iter().step_by(every) {
            let difference = compare(subject, benches.each_mut()).unwrap();
            assert!(difference.is_none(), "{}", difference.unwrap());
        }
        for seed in 0..if long() { 300 } else { 12 } {
            let difference = compare(&fuzz(seed).unwrap(), benches.each_mut()).unwrap();
            let difference = difference.filter(|difference| !difference.follows_nan);
            assert!(difference.is_none(), "{}", difference.unwrap());
        }
    }
}

#[test]
fn models_have_the_same_bytes_on_all_adapters() {
    // Those that differed before: see docs/NUMERICS.md.
    let hard = ["batch_norm", "group_norm", "gelu", "transformer"];
    for [first, second] in pairs() {
        for model in models().iter().filter(|model| long() || hard.contains(&model.name)) {
            let [own, other] = [&first, &second].map(|adapter| model.train(adapter).unwrap());
            assert_eq!(own, other, "{}: {first} and {second}", model.name);
        }
    }
}

#[test]
fn planted_faults_are_found_and_named() {
    // On the same adapter twice, so that nothing else differs. One that rounds once contracts by itself.
    let rounds_twice = |adapter: &Adapter| probe_now(adapter).unwrap().rounding == Rounding::Split;
    let Some(adapter) = adapters().into_iter().find(rounds_twice) else {
        left_out("nothing is planted: all adapters contract by themselves");
        return;
    };
    for (plant, op) in [(Plant::Contraction, "fma"), (Plant::Reassociation, "add"), (Plant::Division, "div")]
    {
        let open = |plant| Bench::open(&adapter, Options::default()).unwrap().with(plant);
        let mut benches = [open(None), open(Some(plant))];
        let differs = (0..200).find_map(|seed| {
            let difference = compare(&fuzz(seed).unwrap(), benches.each_mut()).unwrap()?;
            (!difference.follows_nan && difference.op.is_some()).then_some(difference)
        });
        let difference = differs.unwrap_or_else(|| panic!("{plant:?} is not found"));
        let (named, kernel) = (difference.op.unwrap_or_default(), difference.kernel.unwrap_or_default());
        assert!(named.contains(op), "{plant:?}: {named}");
        assert!(kernel.0.contains(op) && kernel.1.contains("fn main"), "{plant:?}: {}", kernel.0);
    }
}

#[test]
fn adapters_of_drivers_that_share_nothing_are_of_one_class() {
    for pair in pairs() {
        let [own, other] = pair.each_ref().map(|adapter| probe_now(adapter).unwrap());
        assert!(own.is_same(&other), "{} is of class {own}, {} of {other}", own.machine, other.machine);
    }
}
