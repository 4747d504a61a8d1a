//! What kernels become on AMD GPUs that this machine need not have: no register is spilled, and the loops of
//! products stay as tight as they were made. Where Mesa's RADV is not installed, this is not looked at.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use unisono_graph::plan::Kernel;
use unisono_testkit::{install, left_out};
use unisono_tests::isa::reduction::reductions;
use unisono_tests::isa::slab::{Tile, executed, turn};
use unisono_tests::isa::{arithmetic, assembly, driver};

/// GPUs of three generations, as RADV names them.
const FAMILIES: [&str; 3] = ["gfx1100", "navi21", "vega10"];

/// A kernel of `isa.txt` and its text.
struct Compiled {
    what: String,
    stats: Vec<(String, u64)>,
    assembly: String,
    kernel: Kernel,
}

impl Compiled {
    fn stat(&self, name: &str) -> u64 {
        let found = self.stats.iter().find(|(own, _)| own == name);
        found.unwrap_or_else(|| panic!("{}: the driver does not tell {name}", self.what)).1
    }

    /// Returns the side of the tiles of a product in workgroup memory, or 0.
    fn tile(&self) -> u32 {
        Tile::of(&self.kernel).map_or(0, |tile| tile.side)
    }

    /// Returns whether an operand of a product is a view.
    fn is_implicit(&self) -> bool {
        ["struct ARows", "struct BColumns"].iter().any(|operand| self.kernel.wgsl.contains(operand))
    }
}

/// Runs the program `isa`, and returns the kernels that it wrote.
fn compile(model: &str, family: &str, more: &[&str]) -> Vec<Compiled> {
    let name = format!("isa-{model}-{family}{}", more.concat());
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let output = Command::new(env!("CARGO_BIN_EXE_isa"))
        .args(["--model", model, "--family", family])
        .args(more)
        .arg("--out")
        .arg(&dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{model}: {}", String::from_utf8_lossy(&output.stderr));
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("launches, ") && shown.contains("barriers"), "{shown}");
    let index = fs::read_to_string(dir.join("index.txt")).unwrap();
    assert!(index.starts_with("# model") && index.contains("\nF 0 "), "{index}");
    read(&dir, family)
}

/// Reads `isa.txt` and the kernels' texts.
fn read(dir: &Path, family: &str) -> Vec<Compiled> {
    let text = fs::read_to_string(dir.join("isa.txt")).unwrap();
    assert!(text.ends_with("@@@ end\n"));
    let kernels = text.split("@@@ ").skip(1).filter(|kernel| *kernel != "end\n");
    let one = |kernel: &str| {
        let (head, assembly) = kernel.split_once("### Assembly\n").unwrap();
        let mut lines = head.lines();
        let words: Vec<&str> = lines.next().unwrap().split(' ').collect();
        let number: usize = words[1].parse().unwrap();
        let stat = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            (words[1].to_owned(), words[2].parse().unwrap())
        };
        Compiled {
            what: format!("{} kernel {number} {} on {family}", dir.display(), words[2]),
            stats: lines.map(stat).collect(),
            assembly: assembly.to_owned(),
            kernel: Kernel {
                name: words[2].to_owned(),
                wgsl: fs::read_to_string(dir.join(format!("k{number:03}.wgsl"))).unwrap(),
                bindings: vec![],
            },
        }
    };
    kernels.map(one).collect()
}

/// Checks one kernel: its registers, and the mix of its main loop.
fn check(kernel: &Compiled, family: &str) {
    let what = &kernel.what;
    for spilled in ["Spilled_VGPRs", "Spilled_SGPRs", "Scratch_size"] {
        assert_eq!(kernel.stat(spilled), 0, "{what}: {spilled}");
    }
    let mix = turn(Tile::of(&kernel.kernel), &kernel.assembly);
    let (fma, workgroup) = (mix.fma_part(), mix.per_fma(mix.workgroup_bytes));
    let waves = kernel.stat("Subgroups_per_SIMD");
    let least = |what: &str, is: f64, least: f64| assert!(is >= least, "{}: {what} {is:.3}", kernel.what);
    match (kernel.tile(), kernel.is_implicit()) {
        (0, _) => return,
        (32, _) => assert!(workgroup <= 2.0, "{what}: {workgroup} bytes of workgroup memory"),
        (_, implicit) => {
            assert!(workgroup <= 1.0, "{what}: {workgroup} bytes of workgroup memory");
            least("part of multiply-adds", fma, if implicit { LEAST_IMPLICIT } else { LEAST_STORED });
        }
    }
    if family == "gfx1100" {
        least("waves", waves as f64, if kernel.tile() == 64 { 8.0 } else { 12.0 });
    }
    let most = 8.0 / f64::from(kernel.tile());
    assert!(mix.per_fma(mix.global_bytes) <= most, "{what}: {mix:?}");
}

/// The least part of the instructions of a slab that are multiply-adds, where operands are matrices.
const LEAST_STORED: f64 = 0.74;
/// The same where an operand is a view of what is in memory.
const LEAST_IMPLICIT: f64 = 0.68;

#[test]
fn kernels_keep_their_registers_on_gpus() {
    if driver::environment(FAMILIES[0]).is_none() {
        left_out(&format!(
            "no machine code is read: Mesa's RADV is not there{}",
            install("mesa-vulkan-drivers")
        ));
        return;
    }
    let long = std::env::var("UNISONO_LONG").is_ok_and(|long| long == "1");
    let models: &[&str] = match long {
        true => &["mlp", "wide", "cnn", "conv", "lstm", "gpt", "gpt100m", "big"],
        false => &["mlp", "cnn", "gpt", "big"],
    };
    for model in models {
        for family in FAMILIES {
            let kernels = compile(model, family, &[]);
            assert!(kernels.len() > 10, "{model}: {} kernels", kernels.len());
            assert!(
                kernels.iter().any(|kernel| kernel.kernel.name.starts_with("matmul") && kernel.tile() > 0)
            );
            kernels.iter().for_each(|kernel| check(kernel, family));
            let listed = BEFORE.iter().any(|(own, ..)| own == model);
            assert_eq!(check_code(model, family, &kernels) > 0, listed, "{model}: products with an epilogue");
        }
    }
}

/// The kernels that reduce along rows: parts of their names, and the most instructions for an element in each
/// of their reductions, with the ops that compute it.
const ROWS: [(&str, &[f64]); 4] = [
    // Layer normalization, and its gradient.
    ("rows[sum,fused[div],sum[sub,mul]", &[9.5, 19.0]),
    ("rows[sum[sub,mul,mul],fused[mul,div,neg", &[26.0, 38.0]),
    // Softmax with the logarithm, and cross-entropy's gradient.
    ("rows[max[add],", &[12.5, 54.0]),
    ("rows[sum[iota,eq,mul,neg]", &[24.0]),
];

/// The most instructions for an element beside the ops that compute it.
const MOST_OF_ROWS: f64 = 15.0;

#[test]
fn reductions_along_rows_take_few_instructions_for_an_element() {
    if driver::environment(FAMILIES[0]).is_none() {
        left_out(&format!(
            "no machine code is read: Mesa's RADV is not there{}",
            install("mesa-vulkan-drivers")
        ));
        return;
    }
    let long = std::env::var("UNISONO_LONG").is_ok_and(|long| long == "1");
    let families: &[&str] = if long { &FAMILIES } else { &FAMILIES[..1] };
    for family in families {
        let kernels = compile("gpt100m", family, &["--batch", "8", "--shards", "8"]);
        for (name, most) in ROWS {
            let found = kernels.iter().find(|own| own.kernel.name.starts_with(name));
            let kernel = found.unwrap_or_else(|| panic!("no kernel {name}"));
            let found = reductions(&kernel.kernel, &kernel.assembly).expect("a loop for each reduction");
            assert_eq!(found.len(), most.len(), "{}: {found:?}", kernel.what);
            for (own, most) in found.iter().zip(most) {
                assert!(own.instructions <= *most, "{}: {own:?}", kernel.what);
                let beside = own.instructions - own.expression;
                assert!(own.has_functions || beside <= MOST_OF_ROWS, "{}: {own:?}", kernel.what);
            }
        }
    }
}

/// Returns the instructions of a kernel without hints to the scheduler.
fn instructions(kernel: &Compiled) -> u32 {
    assembly::whole(&kernel.assembly).instructions
}

/// Compares products with what they would be if compilers might change them and nothing were flushed.
fn check_cost(model: &str, family: &str, own: &Compiled, plain: &Compiled) {
    let Some(tile) = Tile::of(&own.kernel) else { return };
    let [own_turn, plain_turn] = [own, plain].map(|kernel| turn(Some(tile), &kernel.assembly));
    let what = format!("{}: {own_turn:?} and {plain_turn:?}", own.what);
    assert_eq!(own_turn.fmas, plain_turn.fmas, "{what}");
    assert!(own_turn.instructions <= plain_turn.instructions, "{what}");
    let ratio = |own: u32, plain: u32| f64::from(own) / f64::from(plain);
    let code = ratio(instructions(own), instructions(plain));
    let [own_run, plain_run] = [own, plain].map(|kernel| executed(tile, &kernel.assembly, TURNS));
    println!("{}: {code:.4} x the code, {:.4} x the instructions", own.what, ratio(own_run, plain_run));
    let earlier = before(model, family, &own.kernel.name);
    let earlier_run = earlier.map_or(plain_run, |code| code + (TURNS - 1) * plain_turn.instructions);
    let found = ratio(own_run, earlier_run);
    let most = if own.kernel.name.contains("exp") { MOST_OF_GELU } else { MOST };
    assert!(found <= most, "{}: {found:.4} x the instructions that run", own.what);
    if earlier.is_none() {
        assert!(code <= MOST, "{}: {code:.4} x the code", own.what);
    }
}

/// The turns of the main loop that are counted: 256 steps, a quarter of a chunk of a product.
const TURNS: u32 = 16;

/// The most instructions of a product, as many times those that it has without the rules of docs/NUMERICS.md.
const MOST: f64 = 1.03;

/// The same for what runs of a product with GELU's gradient behind it, which makes eleven results canonical
/// for each element.
const MOST_OF_GELU: f64 = 1.07;

/// The products with an epilogue: the model, the kernel, and on each of [`FAMILIES`] the instructions of its
/// code where nothing is flushed and compilers may change operations. Its rows were written out one after
/// another then, so that no later text says how many these were (Mesa 22.3.6).
const BEFORE: [(&str, &str, [u32; 3]); 7] = [
    ("mlp", "matmul_nt[add,relu]", [892, 875, 901]),
    ("lstm", "matmul_nt[add,add,add]", [1012, 988, 1014]),
    ("gpt", "matmul_nt[add]", [912, 895, 937]),
    ("gpt", "matmul_it[add,add]", [873, 866, 894]),
    ("gpt", "matmul_nt[add,mul,erf,fma,mul]", [1936, 1908, 2010]),
    ("gpt", "matmul_nt[add,add]", [880, 864, 890]),
    ("gpt", "matmul_nn[add,mul,mul,mul,mul,neg,exp,mul,mul,mul,fma]", [1507, 1485, 1547]),
];

/// Returns the instructions of a product's code without the rules of docs/NUMERICS.md, if it has an epilogue
/// that is listed.
fn before(model: &str, family: &str, name: &str) -> Option<u32> {
    let at = FAMILIES.iter().position(|own| *own == family)?;
    let found = BEFORE.iter().find(|(own, kernel, _)| (*own, *kernel) == (model, name));
    found.map(|(.., code)| code[at])
}

/// Checks the code of a model's products with an epilogue. Returns how many there were.
fn check_code(model: &str, family: &str, kernels: &[Compiled]) -> usize {
    let known = |kernel: &&Compiled| before(model, family, &kernel.kernel.name).is_some();
    let check = |kernel: &Compiled| {
        let earlier = before(model, family, &kernel.kernel.name).unwrap();
        let ratio = f64::from(instructions(kernel)) / f64::from(earlier);
        assert!(ratio <= MOST, "{}: {ratio:.4} x the code", kernel.what);
    };
    kernels.iter().filter(known).map(check).count()
}

#[test]
fn nothing_is_contracted_on_gpus_and_products_do_not_pay_for_it() {
    if driver::environment(FAMILIES[0]).is_none() {
        left_out(&format!(
            "no machine code is read: Mesa's RADV is not there{}",
            install("mesa-vulkan-drivers")
        ));
        return;
    }
    let long = std::env::var("UNISONO_LONG").is_ok_and(|long| long == "1");
    let models: &[&str] = if long { &["mlp", "cnn", "lstm", "gpt"] } else { &["mlp", "cnn"] };
    let families: &[&str] = if long { &FAMILIES } else { &FAMILIES[..1] };
    for (model, family) in models.iter().flat_map(|model| families.iter().map(move |family| (model, family)))
    {
        let [own, plain] = [&[][..], &["--unprotected"]].map(|more| compile(model, family, more));
        let mut products = 0;
        for (own, plain) in own.iter().zip(&plain) {
            let [found, loose] = [own, plain].map(|kernel| arithmetic::of_machine(&kernel.assembly));
            // Without loops the text says how many there are. Compilers may find that some are not needed.
            if own.stats.iter().any(|(name, _)| name == "text_fused") {
                let text = [own.stat("text_fused"), own.stat("text_separate")];
                assert!(u64::from(found.fused) <= text[0], "{}: {found:?} of {text:?}", own.what);
                if own.kernel.name == "shapes" {
                    // Where fma rounds twice it is two operations, and a product that is also one of the
                    // text's own is computed once.
                    let expected = if *family == "vega10" { [0, text[1] + 2 * text[0] - 1] } else { text };
                    let is_text =
                        |of: arithmetic::Arithmetic| [of.fused, of.separate].map(u64::from) == expected;
                    assert!(is_text(found), "{}: {found:?} of {expected:?}", own.what);
                    assert!(!is_text(loose), "{}: the compiler changes nothing by itself", own.what);
                }
            }
            if own.tile() > 0 {
                products += 1;
                let turn = turn(Tile::of(&own.kernel), &own.assembly);
                assert!(turn.fmas >= 32, "{}: {turn:?}", own.what);
                check_cost(model, family, own, plain);
            }
        }
        assert!(products > 2, "{model}: {products} products");
        assert!(own.iter().any(|kernel| kernel.kernel.name == "shapes"));
    }
}

/// Returns what `isa` counts of a step: launches, barriers, 10 MB of scratch, and 10 MB of traffic.
fn counts(model: &[&str]) -> [u64; 4] {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("isa-counts-{}", model.concat()));
    let output = Command::new(env!("CARGO_BIN_EXE_isa"))
        .args(["--family", "none", "--model"])
        .args(model)
        .arg("--out")
        .arg(&dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{model:?}: {}", String::from_utf8_lossy(&output.stderr));
    let shown = String::from_utf8(output.stdout).unwrap();
    let numbers = |line: &str| -> Vec<u64> {
        let hundredths = |word: &str| word.replace('.', "").parse().ok();
        line.split_whitespace().filter_map(|word| hundredths(word.trim_end_matches(','))).collect()
    };
    let line = |part: &str| shown.lines().find(|line| line.contains(part)).unwrap_or_default();
    let (all, step) = (numbers(line("all  ")), numbers(line("barriers")));
    // Traffic has three places behind the point.
    [step[0], step[1], step[2], all[1] / 10]
}

#[test]
fn steps_take_few_launches_and_barriers_and_little_memory() {
    for (model, most) in [
        (&["gpt100m", "--batch", "8", "--shards", "8"][..], [352, 279, 443, 4020]),
        (&["mlp"], [14, 14, 1, 4]),
        (&["cnn"], [27, 26, 2, 5]),
        (&["lstm"], [246, 247, 2, 11]),
        (&["gpt"], [54, 55, 2, 8]),
        (&["gpt100m", "--batch", "8", "--shards", "8", "--precision", "mixed"], [473, 387, 347, 3513]),
        (&["gpt", "--precision", "mixed"], [89, 81, 2, 7]),
    ] {
        let found = counts(model);
        let fits = found.iter().zip(&most).all(|(found, most)| found <= most);
        assert!(fits, "{model:?}: {found:?} launches, barriers, 10 MB of scratch and of traffic");
    }
}

#[test]
fn without_machine_code_there_is_the_index_alone() {
    assert!(Path::new(env!("CARGO_TARGET_TMPDIR")).is_dir());
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("isa-none");
    let run = |model: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isa"));
        command
            .args(["--model", model, "--family", "none", "--replicas", "2", "--out"])
            .arg(&dir)
            .output()
            .unwrap()
    };
    let output = run("mlp");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let index = fs::read_to_string(dir.join("index.txt")).unwrap();
    let count = |letter: &str| index.lines().filter(|line| line.starts_with(letter)).count();
    assert!(count("L ") > 10 && count("L ") == count("F ") && count("L ") == count("B "), "{index}");
    assert!(!dir.join("isa.txt").exists());
    let refused = run("perceptron");
    assert_eq!(refused.status.code(), Some(2));
}

/// A plan without one would be another precision's.
#[test]
fn a_matrix_unit_is_that_of_a_chip() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("isa-units");
    let mut command = Command::new(env!("CARGO_BIN_EXE_isa"));
    command.args(["--model", "mlp", "--family", "none", "--precision", "mixed+units", "--out"]).arg(dir);
    let output = command.output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("mixed+units needs --chip NAME"), "{said}");
}
