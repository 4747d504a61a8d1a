//! The memory of a step is known before it is allocated. If it does not fit, the error says what would fit.
//!
//! Alone in its process, because its allocator counts what the whole process allocates. It does not see large
//! buffers of the CPU, which are pages of the system.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use unisono::checkpoint::WeightPrecision;
use unisono::data::{Loader, Memory as Samples};
use unisono::graph::Run;
use unisono::{AdamW, BatchNorm, Builder, Dense, Error, Sequential, Trainer};
use unisono_replica::shards;
use unisono_tests::{CLASSES, FEATURES, loader, perceptron};

/// Set in a process that trains and prints the most bytes that it had at once: the steps, and those from one
/// audit to the next.
const CHILD: &str = "UNISONO_MEMORY_CHILD";

/// Counts what is allocated.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
/// Pieces of this many bytes or more are refused, as by a system without memory.
static REFUSED: AtomicUsize = AtomicUsize::new(usize::MAX);

#[expect(unsafe_code, reason = "an allocator is unsafe; this one passes everything on to the system's")]
// SAFETY: all calls go to the system's allocator as they are, or return null, which means no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= REFUSED.load(Ordering::Relaxed) {
            return std::ptr::null_mut();
        }
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn train(model: Sequential, every: u64) -> Trainer {
    let builder = Trainer::builder(model).optimizer(AdamW::new(0.001)).global_batch(8).replicas(1);
    let builder = builder.adapter("cpu").audit_every(every);
    builder.build(&loader(8, 1).unwrap().fields().unwrap()).unwrap()
}

/// A model with a weight of 4 MB.
fn wide(every: u64) -> Trainer {
    train(Sequential::new().add(Dense::new(1024)).add(Dense::new(1024)).add(Dense::new(CLASSES)), every)
}

/// A model of many small layers. With Adam's moments its state takes 35 MB. Everything else is small beside
/// that, also the copy of a tensor that is made while it is read.
fn deep(every: u64) -> Trainer {
    let model = (0..12).fold(Sequential::new(), |model, _| model.add(Dense::new(512)));
    train(model.add(Dense::new(CLASSES)), every)
}

/// Trains in a process of its own, and returns the most bytes that were allocated at once.
fn most_bytes(steps: u64, every: u64) -> f64 {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["audits_take_what_the_estimate_says", "--exact", "--nocapture"]);
    let output = child.env(CHILD, format!("{steps} {every}")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let most = text.lines().find_map(|line| line.split_once("most ")?.1.parse::<f64>().ok());
    most.unwrap_or_else(|| panic!("{text} {}", String::from_utf8_lossy(&output.stderr)))
}

/// The copies of the state that audits keep: one from the first audit on, and a second one while a step is
/// audited after that. An audit at the end of a short run is the first one.
#[test]
fn audits_take_what_the_estimate_says() {
    if let Ok(child) = std::env::var(CHILD) {
        let numbers: Vec<u64> = child.split(' ').map(|number| number.parse().unwrap()).collect();
        let mut trainer = deep(numbers[1]);
        trainer.fit(&loader(8, 1).unwrap(), None, numbers[0] as u32).unwrap();
        println!("most {}", MOST.load(Ordering::Relaxed));
        return;
    }
    let estimate = deep(1_000).summary().memory.unwrap().audits as f64;
    assert_eq!(deep(0).summary().memory.unwrap().audits, 0);
    let parameters = (FEATURES + 1) * 512 + 11 * 513 * 512 + 513 * CLASSES;
    assert_eq!(estimate, 3.0 * 4.0 * parameters as f64);
    for (steps, every, copies) in [(2, 1_000, 1.0), (12, 2, 2.0)] {
        let taken = most_bytes(steps, every) - most_bytes(steps, 0);
        let off = (taken - copies * estimate).abs() / (copies * estimate);
        assert!(
            off < 0.1,
            "{steps} steps, an audit every {every}: {taken} bytes, and not {copies} times {estimate}"
        );
    }
}

/// A host without memory for a copy of a tensor gets an error from each way to read or write one. No replica
/// leaves, and the run goes on afterwards.
#[test]
fn a_host_without_memory_for_a_copy_of_a_tensor_gets_errors() {
    // The allocator refuses for the whole process.
    if std::env::var(CHILD).is_err() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["a_host_without_memory_for_a_copy_of_a_tensor_gets_errors", "--exact", "--nocapture"]);
        let output = child.env(CHILD, "refuse").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let problem = format!("{text} {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && text.contains("as before"), "{problem}");
        return;
    }
    const LARGEST: usize = 4 << 20;
    let dir = std::env::temp_dir().join(format!("unisono-no-memory-{}", std::process::id()));
    let without = |what: &str, call: &mut dyn FnMut() -> Result<(), Error>| {
        REFUSED.store(LARGEST, Ordering::Relaxed);
        let error = call();
        REFUSED.store(usize::MAX, Ordering::Relaxed);
        let error = error.expect_err(what).to_string();
        assert!(error.contains("the host has no memory for 4194304 bytes"), "{what}: {error}");
        assert!(error.contains("1.weight"), "{what}: {error}");
    };
    let data = loader(8, 1).unwrap();
    let mut trainer = wide(1_000);
    trainer.fit(&data, None, 1).unwrap();
    let state = trainer.state_sha256().unwrap();
    let values = trainer.tensor("1.weight").unwrap().unwrap();
    assert_eq!(4 * values.len(), LARGEST);
    without("read", &mut || trainer.tensor("1.weight").unwrap().map(drop));
    without("write", &mut || trainer.set_tensor("1.weight", &values));
    without("export", &mut || trainer.export(dir.join("model.safetensors"), WeightPrecision::F32).map(drop));
    without("digest", &mut || trainer.state_sha256().map(drop));
    assert!(!dir.exists());
    assert_eq!(trainer.state_sha256().unwrap(), state);
    assert!(trainer.reports().iter().all(|report| report.left.is_none()));
    trainer.fit(&data, None, 2).unwrap();
    println!("as before");
}

fn builder() -> Builder {
    perceptron(32).replicas(2).shards(4)
}

#[test]
fn the_plan_says_what_a_step_takes() {
    let data = loader(10, 1).unwrap();
    let fields = data.fields().unwrap();
    let memory = builder().memory(&fields, &[64, 4096, 65_536]).unwrap();
    let parameters = FEATURES * 32 + 32 + 32 * CLASSES + CLASSES;
    // AdamW keeps two more numbers for each parameter. Tensors lie in three buffers, as their gradients do in
    // a bucket, where there are a few sums more.
    let least = 3 * 4 * parameters as u64;
    assert!(memory.iter().all(|m| (least..=least + 3 * 4 * 16).contains(&m.state)), "{memory:?}");
    assert_eq!(
        memory.iter().map(|m| (m.global_batch, m.samples)).collect::<Vec<_>>(),
        [(64, 32), (4096, 2048), (65_536, 32_768)]
    );
    assert!(memory[0].scratch < memory[1].scratch && memory[1].scratch < memory[2].scratch);
    // For large batches the samples' values take most of the memory: 16 times the samples take about 16 times
    // the memory.
    let ratio = memory[2].scratch as f64 / memory[1].scratch as f64;
    assert!((15.0..17.0).contains(&ratio), "{memory:?}");
    let (name, bytes) = &memory[2].largest[0];
    assert!(*bytes == 4 * 32 * 32_768 && name.contains("[B, 32]"), "{memory:?}");

    let trainer = builder().global_batch(64).build(&fields).unwrap();
    let shown = trainer.summary();
    assert_eq!(shown.memory.as_ref(), Some(&memory[0]));
    assert!(shown.to_string().ends_with(&format!("memory: {}", memory[0])), "{shown}");
    let program = trainer.program(unisono::ProgramId::Train);
    let sizes = shards::sizes(64, 4, 64);
    let run = Run { first: 0, sizes: sizes[..2].to_vec(), shards: 4 };
    let plan = program.plan(&run, &unisono::gpu::select::<&str>(&[]).unwrap()[0].target()).unwrap();
    assert!(memory[0].scratch >= plan.scratch_bytes());
}

/// A layer of 4,000 units needs more than any binding for that many samples. The batch that the error
/// proposes fits.
#[test]
fn what_does_not_fit_names_what_would() {
    let wide = || {
        let model = Sequential::new().add(Dense::new(4_000)).add(Dense::new(2));
        Trainer::builder(model).optimizer(AdamW::new(0.1)).shards(1).replicas(1)
    };
    let source = Samples::labelled(vec![0.5; 8], [1], vec![0; 8]).unwrap();
    let fields = Loader::new(source).fields().unwrap();
    let error = wide().global_batch(1 << 30).build(&fields).err().unwrap();
    let Error::TooLarge { global_batch, largest, advice, .. } = &error else { panic!("{error}") };
    assert_eq!(*global_batch, 1 << 30);
    assert!(largest.contains("0.dense") && largest.contains("[B, 4000] (15.6 TiB)"), "{largest}");
    let fits: usize = advice.split(' ').find_map(|word| word.parse().ok()).unwrap();
    assert!((1..1 << 30).contains(&fits), "{advice}");
    assert!(wide().memory(&fields, &[fits]).is_ok());
    assert!(matches!(wide().memory(&fields, &[fits + 1]), Err(Error::TooLarge { .. })));
    assert!(error.to_string().contains("a step of 1073741824 samples does not fit: "), "{error}");
    assert!(wide().memory(&fields, &[0]).unwrap_err().to_string().starts_with("global batch"));
}

/// A replica with less memory than its shards need together runs fewer shards at once, says so, and computes
/// the same bits.
#[test]
fn with_little_memory_shards_run_in_pieces_and_nothing_shows() {
    let data = loader(300, 5).unwrap();
    let fields = data.fields().unwrap();
    let builder = |replicas: usize| perceptron(256).replicas(replicas).shards(8).global_batch(256);
    let memory = |builder: Builder| builder.memory(&fields, &[256]).unwrap().remove(0);
    let run = |builder: Builder| {
        let mut trainer = builder.build(&fields).unwrap();
        trainer.fit(&data, Some(&data), 2).unwrap();
        (trainer.state_sha256().unwrap(), trainer.history().clone(), trainer.report().to_string())
    };
    let together = memory(builder(1));
    assert_eq!((together.shards, together.shards_at_once, together.limited_by.as_ref()), (8, 8, None));
    let (state, history, report) = run(builder(1));
    assert!(!report.contains("memory:"), "{report}");
    let mut seen = Vec::new();
    for at_once in [4, 2, 1] {
        // The limit is what this many shards take, to the byte.
        let limit = memory(builder(1).shards_at_once(at_once)).total();
        let limited = memory(builder(1).memory_limit(limit));
        assert_eq!((limited.shards_at_once, limited.total()), (at_once, limit));
        assert!(
            limited
                .how()
                .starts_with(&format!("{at_once} of a replica's 8 shards at once: together they need "))
        );
        assert!(limited.to_string().ends_with(&limited.how()), "{limited}");
        for replicas in [1, 3] {
            let (same, also, report) = run(builder(replicas).memory_limit(limit));
            assert!(same == state && also == history, "{at_once} shards at once on {replicas} replicas");
            assert_eq!(
                report.contains("shards at once: together they need"),
                replicas == 1 || at_once < 3,
                "{report}"
            );
        }
        seen.push(limited.scratch);
    }
    assert!(
        seen.is_sorted_by(|a, b| a > b) && seen[0] < together.scratch,
        "{seen:?} of {}",
        together.scratch
    );
    let least = memory(builder(1).shards_at_once(1)).total();
    let error = builder(1).memory_limit(least - 1).build(&fields).err().unwrap();
    let Error::TooLarge { problem, advice, .. } = &error else { panic!("{error}") };
    assert!(problem.contains("the limit is"), "{error}");
    let fits: usize = advice.split(' ').find_map(|word| word.parse().ok()).unwrap();
    assert!((1..256).contains(&fits), "{advice}");
    assert!(builder(1).memory_limit(least - 1).memory(&fields, &[fits]).is_ok());
}

/// With batch norm a replica runs all of its shards at once. The faster of two replicas is given more of them
/// only if they fit.
#[test]
fn a_quick_replica_gets_no_more_shards_than_fit() {
    let data = loader(3000, 5).unwrap();
    let fields = data.fields().unwrap();
    fail::cfg("room:replica-0", "return(sample:500)").unwrap();
    fail::cfg("room:replica-1", "return(sample:1500)").unwrap();
    let builder = || {
        let model = Sequential::new().add(Dense::new(64)).add(BatchNorm::new()).add(Dense::new(CLASSES));
        let builder = Trainer::builder(model).optimizer(AdamW::new(0.01)).fault_scope("room:");
        builder.replicas(2).shards(8).global_batch(256)
    };
    let run = |builder: Builder| {
        let mut trainer = builder.build(&fields).unwrap();
        trainer.fit(&data, None, 2).unwrap();
        let shards: Vec<u64> = trainer.reports().iter().map(|report| report.shards).collect();
        (trainer.state_sha256().unwrap(), shards)
    };
    let (state, free) = run(builder());
    assert!(free[0] > free[1] + free[1] / 2, "{free:?}");
    let even = builder().memory(&fields, &[256]).unwrap()[0].total();
    let (same, limited) = run(builder().memory_limit(even));
    assert!(same == state);
    assert_eq!(limited[0], limited[1], "an even share fits, and no more");
}

/// The driver refuses memory twice. Then a quarter of the shards at once is tried, which fits.
#[test]
fn where_a_driver_has_no_memory_smaller_pieces_are_tried() {
    let data = loader(300, 5).unwrap();
    let fields = data.fields().unwrap();
    let run = |builder: Builder| {
        let mut trainer = builder.shards(8).global_batch(256).build(&fields).unwrap();
        trainer.fit(&data, None, 1).unwrap();
        (trainer.state_sha256().unwrap(), trainer.summary().memory.unwrap())
    };
    let (state, memory) = run(perceptron(16).replicas(1));
    assert_eq!(memory.shards_at_once, 8);
    fail::cfg("driver:replica-0:load", "2*return(out-of-memory)->off").unwrap();
    let (same, memory) = run(perceptron(16).replicas(1).fault_scope("driver:"));
    assert!(same == state);
    assert_eq!(memory.how(), "2 of a replica's 8 shards at once: the driver has no memory for more");
    fail::cfg("no-memory:replica-0:load", "return(out-of-memory)").unwrap();
    let none = perceptron(16).replicas(1).fault_scope("no-memory:").build(&fields).err().unwrap().to_string();
    assert!(none.contains("out of memory (1099511627776 bytes requested)"), "{none}");
}
