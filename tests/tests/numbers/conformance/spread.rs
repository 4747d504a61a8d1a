//! Every reference case with a batch gives the same bytes on any number of replicas and machines, full and
//! ragged, and so do those that compare all samples of a batch while a replica or a machine is lost.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use unisono::Cluster;
use unisono::cluster::{Fault, Script};
use unisono_gpu::{Adapter, select};
use unisono_graph::{Array, DType, Graph, InputKind, Lead, Program, RandomKey, StateDecl};
use unisono_replica::{Feed, Options, Replicas, Verdict};
use unisono_tests::conformance::{Suite, steps};
use unisono_tests::on_ranks;

/// The most shards of a step. They do not divide evenly among 2 or 3 replicas.
const SHARDS: usize = 7;

/// A case as a program with its numbers.
struct Work {
    name: String,
    program: Arc<Program>,
    /// The number of samples.
    rows: usize,
    inputs: Vec<Arc<[u8]>>,
    states: Vec<Vec<u8>>,
}

/// The bytes of all outputs and states after a step, or that it failed.
type Bytes = Result<(Vec<Option<Vec<u8>>>, Vec<Vec<u8>>), ()>;

fn bytes(array: &Array, dtype: DType) -> Vec<u8> {
    let word = |x: f64| match dtype {
        DType::F32 => (x as f32).to_le_bytes(),
        DType::I32 => (x as i32).to_le_bytes(),
        DType::U32 => (x as u32).to_le_bytes(),
    };
    array.data.iter().flat_map(|&x| word(x)).collect()
}

/// Returns the numbers of a case of this graph, or `None` if it has no batch.
fn work(name: &str, graph: &Graph, feed: &unisono_graph::Feed) -> Option<Work> {
    graph.inputs.iter().find(|input| input.kind == InputKind::Data && input.ty.lead == Lead::Sample)?;
    let program = Arc::new(Program::compile(graph).unwrap());
    let input = |decl: &unisono_graph::InputDecl| match decl.kind {
        InputKind::Random | InputKind::Resident(_) => Vec::new().into(),
        InputKind::Data | InputKind::Carry => {
            let at = graph.inputs.iter().position(|input| input.name == decl.name).unwrap();
            bytes(&feed.inputs[at], decl.ty.dtype).into()
        }
    };
    let state = |decl: &StateDecl| {
        let at = graph.states.iter().position(|state| state.name == decl.name).unwrap();
        // A state that the case does not give starts with zeros.
        let mut bytes = bytes(&feed.states[at], decl.ty.dtype);
        bytes.resize(4 * decl.ty.count(), 0);
        bytes
    };
    Some(Work {
        name: name.to_owned(),
        rows: feed.frame.samples(),
        inputs: program.inputs().iter().map(input).collect(),
        states: program.states().iter().map(state).collect(),
        program,
    })
}

impl Work {
    /// Returns whether samples depend on sums over all samples, as in batch norm and in losses that compare
    /// samples: the step then has more segments than one before and one after its sums.
    fn compares(&self) -> bool {
        self.program.segments() > 2
    }

    /// Returns the first samples of the batch.
    fn feed(&self, rows: usize) -> Feed {
        let cut = |(at, decl): (usize, &unisono_graph::InputDecl)| match decl.ty.lead {
            Lead::Sample if decl.kind != InputKind::Random => {
                self.inputs[at][..4 * rows * decl.ty.count()].into()
            }
            _ => Arc::clone(&self.inputs[at]),
        };
        let inputs = self.program.inputs().iter().enumerate().map(cut).collect();
        let random = RandomKey { seed: 7, epoch: 1, position: 0 };
        Feed { rows, inputs, random, held: None }
    }

    /// Takes a step on some samples, as program `index`.
    fn step(&self, replicas: &mut Replicas, index: usize, rows: usize) -> Bytes {
        for (at, state) in self.states.iter().enumerate() {
            replicas.write_state(at, state).map_err(drop)?;
        }
        let outcome = replicas.step(index, &self.feed(rows), &mut |_| Verdict::Commit).map_err(drop)?;
        let output = |at| outcome.outputs.bytes(at).map(<[u8]>::to_vec);
        let states = (0..self.states.len()).map(|at| replicas.read_state(at).map_err(drop));
        Ok(((0..outcome.outputs.len()).map(output).collect(), states.collect::<Result<_, ()>>()?))
    }
}

fn options(rows: usize) -> Options {
    Options::default().with(|o| (o.global_batch, o.shards) = (rows, rows.min(SHARDS)))
}

fn cpu() -> Adapter {
    select(&["cpu"]).unwrap().remove(0)
}

/// Returns what all cases of a group give on some replicas of some machines: with the whole batch and
/// without its last sample.
fn all(group: &[Work], adapters: &[Adapter], ranks: (Cluster, Vec<usize>), options: Options) -> Vec<Bytes> {
    let programs = group.iter().map(|work| Arc::clone(&work.program)).collect();
    let mut replicas = Replicas::start_in(ranks.0, ranks.1, adapters, programs, options).unwrap();
    let step = |(index, work): (usize, &Work)| {
        [work.rows, work.rows - 1].map(|rows| work.step(&mut replicas, index, rows))
    };
    group.iter().enumerate().flat_map(step).collect()
}

/// Compares two runs of a group and returns the cases that differ.
fn differ(group: &[Work], one: &[Bytes], other: &[Bytes], how: &str) -> Vec<String> {
    let pairs = one.chunks(2).zip(other.chunks(2)).zip(group);
    let other = pairs.filter(|((one, other), _)| one != other);
    other.map(|(_, work)| format!("{} {how}", work.name)).collect()
}

/// Returns the cases with a batch, those together that may share replicas: they have batches of one size
/// and the same states.
fn groups() -> Vec<Vec<Work>> {
    let suites = Suite::all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle")).unwrap();
    let mut groups: BTreeMap<(usize, String), Vec<Work>> = BTreeMap::new();
    // Whole trainings are compared where they are made.
    for case in suites.iter().flat_map(|suite| &suite.cases).filter(|case| case.op != "train") {
        let traced = steps(case).unwrap();
        for work in traced.iter().filter_map(|(graph, feed)| work(&case.name, graph, feed)) {
            let key = (work.rows, format!("{:?}", work.program.states()));
            groups.entry(key).or_default().push(work);
        }
    }
    groups.into_values().filter(|group| group[0].rows > 1).collect()
}

#[test]
fn every_case_gives_the_same_bytes_on_any_replicas_and_machines() {
    let (groups, cpu) = (groups(), cpu());
    let mut failed = Vec::new();
    for group in &groups {
        let on = |count: usize| {
            all(group, &vec![cpu.clone(); count], (Cluster::alone(), vec![]), options(group[0].rows))
        };
        let one = on(1);
        let wrong = one.chunks(2).zip(group).filter(|(bytes, _)| bytes[0].is_err());
        failed.extend(wrong.map(|(_, work)| format!("{} fails", work.name)));
        for count in [2, 3, 7] {
            failed.extend(differ(group, &one, &on(count), &format!("on {count} replicas")));
        }
        let run =
            |cluster| all(group, std::slice::from_ref(&cpu), (cluster, vec![1; 2]), options(group[0].rows));
        for (rank, other) in on_ranks(2, Script::default(), run).into_iter().enumerate() {
            failed.extend(differ(group, &one, &other, &format!("on rank {rank} of 2")));
        }
    }
    let cases = groups.iter().map(Vec::len).sum::<usize>();
    assert!(failed.is_empty(), "{} of {cases} cases:\n{}", failed.len(), failed.join("\n"));
    assert!(cases >= 200, "{cases} cases");
}

/// In any segment a replica may be lost, and a machine after any message.
#[test]
fn what_compares_all_samples_survives_a_lost_replica_and_a_lost_machine() {
    let (mut names, cpu, mut lost) = (Vec::new(), cpu(), 0);
    for work in groups().into_iter().flatten().filter(Work::compares) {
        names.push(work.name.clone());
        let (rows, segments) = (work.rows, work.program.segments());
        let group = [work];
        let one = all(&group, std::slice::from_ref(&cpu), (Cluster::alone(), vec![]), options(rows));
        assert!(one[0].is_ok(), "{}", group[0].name);
        for segment in 0..segments {
            let scope = format!("spread-{}-{segment}:", group[0].name);
            fail::cfg(format!("{scope}replica-1:step-0:segment-{segment}"), "return(lose)").unwrap();
            let losing = options(rows).with(|o| o.fault_scope = scope);
            let other = all(&group, &vec![cpu.clone(); 3], (Cluster::alone(), vec![]), losing);
            let how = format!("where a replica is lost in segment {segment}");
            assert_eq!(differ(&group, &one, &other, &how), [""; 0]);
        }
        let adapters = [cpu.clone()];
        let run = |cluster| all(&group, &adapters, (cluster, vec![1; 3]), options(rows));
        for after in [1, 3, 6, 10] {
            let script = Script { seed: after as u64, faults: vec![Fault::Lost { rank: 0, after }] };
            let ended = on_ranks(3, script, run);
            lost += usize::from(ended[0].iter().any(Result::is_err));
            for other in &ended[1..] {
                let how = format!("where rank 0 is lost after {after} messages");
                assert_eq!(differ(&group, &one, other, &how), [""; 0]);
            }
        }
    }
    for loss in ["nt_xent", "in_batch_softmax", "barlow_twins", "triplet_hard", "batch_norm"] {
        assert!(names.iter().any(|name| name.starts_with(loss)), "no case of {loss}: {names:?}");
    }
    assert!(lost > names.len(), "a rank was lost {lost} times");
}
