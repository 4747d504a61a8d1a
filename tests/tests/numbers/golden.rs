//! The bits themselves. Other tests compare runs of one source with each other; these compare them with
//! numbers that were written down.
//!
//! If a value here changes, so does every run that is resumed. So it may change with the version of the
//! arithmetic alone: raise `unisono_replica::ARITHMETIC`, say in CHANGELOG.md under "Bits" what changed,
//! replace the hashes of docs/STATES.md and the class in it, and put the new values here. A kernel that the
//! probe gets changes the class alone: raise `PROBE` in `class/mod.rs` and say so in the changelog.

use unisono::data::{Loader, Memory, Values};
use unisono::{
    AdamW, BatchNorm, Branches, Builder, Context, Conv2d, Dense, Dropout, Embedding, Flatten, FromFn, Gelu,
    GlobalAvgPool2d, LayerNorm, Lstm, MaxPool2d, Optimizer, Precision, Sequential, Sgd, Trainer,
    TransformerBlock, Var,
};
use unisono_gpu::{Adapter, Kind};
use unisono_graph::elementary::Elementary;
use unisono_random::Draws;
use unisono_replica::{ARITHMETIC, Class, Rounding, probe_now};
use unisono_tests::CLASSES;
use unisono_tests::vendors::models;

/// What adapters give whose `fma` rounds alike.
struct Bits {
    rounding: Rounding,
    /// Their class by this version of the probe. AArch64 tells otherwise whether a product is subnormal, so
    /// it has other ones, which this version has not yet taken.
    class: Option<&'static str>,
    /// The states that short runs end in.
    runs: [(&'static str, &'static str); 4],
    /// The tensors of a small model after four steps of each optimizer.
    optimizers: [(&'static str, &'static str); 14],
}

/// The CPU by default, and the H100 of docs/GPUS.md.
const FUSED: Bits = Bits {
    rounding: Rounding::Fused,
    class: if cfg!(target_arch = "x86_64") { Some("ede236572f39391a") } else { None },
    runs: [
        ("wide", "1b95f87a1a4e2ef264b0feb21ee8755184cd9d32f613b2ac5ae2b42299263e39"),
        ("images", "d9e673ad6bc7c2a2063ccc3dab15451e7d961efc27ec412038ffbf942a9b24b4"),
        ("mixed", "91940e707f2b74ae9ba4457b3b0d515016e50948b3f657d52fa3060b2e73253a"),
        ("tokens", "eee0e7c9c07639745eccaebab08e22070fdf385b316fc91e339d6011c8fe510b"),
    ],
    optimizers: [
        ("sgd", "6cfca91956028409"),
        ("adam", "6f1ea8cf45767045"),
        ("adamw", "2a6575d978475ff6"),
        ("rmsprop", "b8ab783d1c3496be"),
        ("adagrad", "c749c8e3cb519be3"),
        ("adadelta", "864a1c9a43557e5d"),
        ("adamax", "2291076cb3c86cf9"),
        ("nadam", "25e07a6e61d8f5cf"),
        ("adafactor", "c06668f04b39417e"),
        ("lamb", "2099ec31ba9c1286"),
        ("lars", "eeef875fdf1afc2b"),
        ("lion", "114db37d5a74cb3a"),
        ("muon", "75a63a5278dc655a"),
        ("clipped", "3452803c780767de"),
    ],
};

/// Software drivers, and the CPU when it is asked to compute as they do.
const SPLIT: Bits = Bits {
    rounding: Rounding::Split,
    class: if cfg!(target_arch = "x86_64") { Some("4b1a55a1fecc925d") } else { None },
    runs: [
        ("wide", "b4bbafe90a8e816711ef88cf3ba6e2f4e098d586ee8171d2e5dcb50877b98a54"),
        ("images", "84e9db31494b7c9eba89a9474db53c6573fbc16a46492eaa08da2463b9a882e5"),
        ("mixed", "c17edb363c317ff7ba12e7e84284ff46291535223266556aa8bb8f3b0d75fd2c"),
        ("tokens", "fdf74f104c9d7943a9bbcf2fe0e748b63e809bc0330fe387fa60f0d7667b5775"),
    ],
    optimizers: [
        ("sgd", "09cd9aa8a8d7ad94"),
        ("adam", "43a114227edd9e60"),
        ("adamw", "5c0012a393914858"),
        ("rmsprop", "fe2a915a78ea3cb9"),
        ("adagrad", "4bdfc177e3e5ad91"),
        ("adadelta", "d3e478343f152863"),
        ("adamax", "069427d90caa644f"),
        ("nadam", "7a09d4f567cf8103"),
        ("adafactor", "8f660e46125d8573"),
        ("lamb", "88bc414977d0af8a"),
        ("lars", "a668b491088949d8"),
        ("lion", "114db37d5a74cb3a"),
        ("muon", "409e30724d01612a"),
        ("clipped", "8a02578c24af4df7"),
    ],
};

/// What the host's twins of our functions give: of numbers of all sizes, with two roundings of `fma` and
/// with one. Devices are compared with these twins elsewhere.
const FUNCTIONS: [(&str, &str); 10] = [
    ("exp", "2f03da6322326b84"),
    ("fused exp", "d068b2f88ddd9d11"),
    ("log", "9b125be985488df7"),
    ("fused log", "492fcbc250613d6f"),
    ("tanh", "a88d241acc8dc54f"),
    ("fused tanh", "57638a5657429896"),
    ("erf", "116ac2bdac599097"),
    ("fused erf", "3a95c18afb07483c"),
    ("sigmoid", "d97bb08b4a9995a9"),
    ("fused sigmoid", "fd609a1de3f12db2"),
];

/// The environment variable that says on vectors of how many bits Mesa's software drivers compute.
const WIDTH: &str = "LP_NATIVE_VECTOR_WIDTH";

/// Returns the CPU and software drivers whose `fma` rounds as these bits say and whose class may be that of
/// other machines.
fn software(bits: &Bits) -> Vec<(Adapter, Class)> {
    let all = unisono_testkit::adapters().into_iter().filter(|adapter| adapter.kind == Kind::Cpu);
    let probed = all.map(|adapter| (adapter.clone(), probe_now(&adapter).unwrap()));
    let found: Vec<_> =
        probed.filter(|(_, class)| class.rounding == bits.rounding && class.is_portable).collect();
    let has_width = |name: &str, width| !name.contains("llvmpipe") || name.contains(&format!("{width} bits"));
    if let Ok(width) = std::env::var(WIDTH) {
        assert!(found.iter().all(|(adapter, _)| has_width(&adapter.name, &width)), "the width has no effect");
    }
    if found.is_empty() {
        let name = bits.rounding.name();
        unisono_testkit::left_out(&format!(
            "no golden bits are compared: no {name} software adapter is here"
        ));
    }
    found
}

/// Compares hashes with those that were written down, all at once.
fn check(found: &[(&str, String)], expected: &[(&str, &str)]) {
    let found: Vec<(&str, &str)> = found.iter().map(|(name, hash)| (*name, &**hash)).collect();
    assert_eq!(found, expected, "bits of arithmetic {ARITHMETIC} changed: see the head of this file");
}

/// Returns a hash of words (FNV-1a).
fn hash(words: impl Iterator<Item = u32>) -> String {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    format!("{:016x}", words.flat_map(u32::to_le_bytes).fold(0xcbf2_9ce4_8422_2325, mix))
}

#[test]
fn the_class_of_software_adapters_is_that_of_this_version() {
    for bits in [FUSED, SPLIT] {
        for (adapter, class) in software(&bits) {
            let found = class.to_string();
            assert_eq!(found, bits.class.unwrap_or(&found), "{adapter}: see the head of this file");
        }
    }
}

/// A reshape of a sample as a layer.
fn shaped(dims: &'static [usize]) -> FromFn<impl Fn(&mut Context, &Var) -> Var> {
    FromFn::new("shaped", move |_, x| x.reshape(dims))
}

/// Samples of 2500 numbers: sums and products of several chunks, along rows, over pixels and over samples.
fn wide() -> Builder {
    let row = Sequential::new().add(LayerNorm::new()).add(Dense::new(CLASSES));
    let image = Sequential::new()
        .add(shaped(&[1, 50, 50]))
        .add(Conv2d::new(2, 3).padding(1))
        .add(Gelu)
        .add(GlobalAvgPool2d)
        .add(Dense::new(CLASSES));
    let optimizer = AdamW::new(0.01).clip_norm(0.5).average_weights(0.9);
    Trainer::builder(Branches::sum().add(row).add(image)).optimizer(optimizer)
}

fn images() -> Builder {
    let model = Sequential::new()
        .add(shaped(&[1, 50, 50]))
        .add(MaxPool2d::new(5))
        .add(Conv2d::new(4, 3).padding(1))
        .add(BatchNorm::new())
        .add(Gelu)
        .add(Dropout::new(0.2))
        .add(Flatten)
        .add(Dense::new(CLASSES));
    Trainer::builder(model).optimizer(Sgd::new(0.1).momentum(0.9).weight_decay(0.01))
}

/// Two lookups in one table, attention and a recurrent layer.
fn tokens() -> Builder {
    let table = FromFn::new("table", |cx: &mut Context, ids: &Var| {
        let [first, second] = [0..6, 6..12].map(|half| ids.slice(-1, half));
        let [first, second] =
            [first, second].map(|ids| cx.apply("table", &Embedding::new(WORDS as usize, 8), &ids));
        first + second * 0.5
    });
    let model = Sequential::new()
        .add(table)
        .add(TransformerBlock::new(2).causal().dropout(0.1))
        .add(Lstm::new(5).last())
        .add(Dense::new(CLASSES));
    Trainer::builder(model).optimizer(AdamW::new(0.01))
}

const WORDS: i32 = 11;
const SAMPLES: usize = 16;

fn labels() -> Values {
    Values::I32((0..SAMPLES).map(|i| (i % CLASSES) as i32).collect())
}

fn numbers() -> Memory {
    let mut draws = Draws::of(7, "golden", "numbers", 0, 0);
    let x = (0..SAMPLES * 2500).map(|_| draws.normal()).collect();
    Memory::new("x", [2500], Values::F32(x)).unwrap().with("y", [0usize; 0], labels()).unwrap()
}

fn ids() -> Memory {
    let mut draws = Draws::of(7, "golden", "ids", 0, 0);
    let ids = (0..SAMPLES * 12).map(|_| draws.below(WORDS as u32) as i32).collect();
    Memory::new("x", [12], Values::I32(ids)).unwrap().with("y", [0usize; 0], labels()).unwrap()
}

/// Trains for three steps, the last of which is ragged, and returns the state's hash.
fn run(adapter: &Adapter, builder: Builder, data: Memory) -> String {
    let data = Loader::new(data).threads(1).shuffle(5);
    let builder = builder.adapter(&format!("{}:{}", adapter.backend, adapter.label()));
    let builder = builder.replicas(1).global_batch(6).shards(4).seed(3);
    let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
    trainer.fit(&data, None, 1).unwrap();
    assert_eq!(trainer.steps(), 3);
    trainer.state_sha256().unwrap()
}

#[test]
fn runs_end_in_the_states_of_this_version() {
    for bits in [FUSED, SPLIT] {
        let all = software(&bits);
        let Some((adapter, _)) = all.first() else { continue };
        let mut found =
            vec![("wide", run(adapter, wide(), numbers())), ("images", run(adapter, images(), numbers()))];
        let mut expected = bits.runs.to_vec();
        if adapter.features.f16 {
            found.push(("mixed", run(adapter, images().precision(Precision::Mixed), numbers())));
        } else {
            unisono_testkit::left_out(&format!("mixed precision is not compared: {adapter} has no f16"));
            expected.retain(|(name, _)| *name != "mixed");
        }
        found.push(("tokens", run(adapter, tokens(), ids())));
        check(&found, &expected);
    }
}

/// The driver writes other machine code for vectors of 128, 256 and 512 bits.
#[test]
fn bits_do_not_depend_on_the_width_of_the_drivers_vectors() {
    for width in
        ["128", "256", "512"].into_iter().filter(|&width| Ok(width) != std::env::var(WIDTH).as_deref())
    {
        let mut tests = std::process::Command::new(std::env::current_exe().unwrap());
        tests.args(["the_class_of_software_adapters", "runs_end_in_the_states"]).env(WIDTH, width);
        let found = tests.output().unwrap();
        let said = String::from_utf8_lossy(&found.stdout);
        assert!(found.status.success() && said.contains("2 passed"), "{width} bits: {said}");
    }
}

#[test]
fn optimizers_give_the_bits_of_this_version() {
    for bits in [FUSED, SPLIT] {
        let all = software(&bits);
        let Some((adapter, _)) = all.first() else { continue };
        let models = models();
        let of = |name: &str| models.iter().find(|model| model.name == name).unwrap();
        let values = |name| of(name).train(adapter).unwrap().into_iter().flat_map(|(_, values)| values);
        let found: Vec<_> = bits.optimizers.iter().map(|&(name, _)| (name, hash(values(name)))).collect();
        check(&found, &bits.optimizers);
    }
}

#[test]
fn functions_give_the_bits_of_this_version() {
    type Function = fn(Elementary, f32) -> f32;
    let functions: [Function; 5] =
        [Elementary::exp, Elementary::log, Elementary::tanh, Elementary::erf, Elementary::sigmoid];
    let of = |function: Function, fused| {
        // Numbers of all sizes, and numbers from -16 to 16.
        let all = (0..u32::MAX).step_by(9973).map(f32::from_bits);
        let near = (-80_000..80_000).map(|i| i as f32 * 0.0002);
        let inputs = all.filter(|x| x.is_finite()).chain(near);
        hash(inputs.map(|x| function(Elementary { fused }, x).to_bits()))
    };
    let each = functions.into_iter().flat_map(|function| [of(function, false), of(function, true)]);
    let found: Vec<_> = FUNCTIONS.iter().map(|(name, _)| *name).zip(each).collect();
    check(&found, &FUNCTIONS);
}
