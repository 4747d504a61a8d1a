//! Faults that are written into small kernels, and kernels that have none.

use unisono_graph::plan::{Access, Buffer, Command, Kernel, Launch, Role, Segment, Slice, Work};

use super::*;

/// Runs a kernel of 8 invocations in two workgroups over a buffer of 16 words, which it can read and write,
/// and returns the words and the faults.
fn run(text: &str, choices: Choices) -> (Vec<u32>, Vec<String>) {
    let enabled = if text.contains("f16") { "enable f16;\n" } else { "" };
    let wgsl = format!(
        "{enabled}struct Params {{ n: u32, zero: u32 }}\n@group(0) @binding(0) var<uniform> params: Params;\n\
         @group(0) @binding(1) var<storage, read_write> x: array<u32>;\nvar<workgroup> w: array<u32, 8>;\n{text}"
    );
    let slice = Slice { buffer: 0, offset: 0, bytes: 64 };
    let launch = Launch {
        kernel: 0,
        bindings: vec![slice],
        params: vec![16, 0],
        grid: [2, 1, 1],
        work: Work::default(),
    };
    let commands = vec![Command::Launch(launch.clone())];
    let plan = Plan {
        kernels: vec![Kernel { name: "small".into(), wgsl, bindings: vec![Access::ReadWrite] }],
        buffers: vec![Buffer { bytes: 64, role: Role::Table((0..16).collect()) }],
        segments: vec![Segment { commands, ..Segment::default() }],
    };
    let mut emulator = Emulator::new(&plan, choices);
    let mut buffers = buffers(&plan, choices.unwritten());
    emulator.launch(&launch, &mut buffers);
    let words = bytemuck::pod_collect_to_vec(&buffers[0]);
    (words, emulator.faults.into_iter().collect())
}

/// Runs the body of a kernel; `i` is the invocation's number in the grid, `t` in its workgroup.
fn run_body(body: &str) -> (Vec<u32>, Vec<String>) {
    run(&main_of(body), Choices::default())
}

fn main_of(body: &str) -> String {
    format!(
        "@compute @workgroup_size(8)\nfn main(@builtin(global_invocation_id) id: vec3<u32>, \
         @builtin(local_invocation_index) t: u32, @builtin(workgroup_id) group: vec3<u32>) {{\n\
         let i = id.x;\n{body}\n}}"
    )
}

/// Returns whether a body has this fault, and no other.
fn has_only(body: &str, fault: &str) {
    let (_, faults) = run_body(body);
    assert!(!faults.is_empty() && faults.iter().all(|found| found.contains(fault)), "{body}: {faults:#?}");
}

#[test]
fn invocations_go_their_ways_and_meet_again() {
    let (words, faults) = run_body(
        "var sum = 0u;
         for (var k = 0u; k < 20u; k++) {
             if k == 3u { continue; }
             if k > i { break; }
             switch k % 3u { case 0u: { sum += 1u; } case 1u, 2u: { sum += 100u; } default: { sum = 0u; } }
         }
         var all = array<vec2<u32>, 3>(vec2<u32>(sum), vec2<u32>(i, 7u), vec2<u32>());
         all[i % 2u].y += 10000u;
         x[i] = all[0].x + all[0].y + all[1].y;",
    );
    assert!(faults.is_empty(), "{faults:?}");
    let expected = |i: u32| {
        let turns = (0..20).filter(|&k| k != 3 && k <= i);
        let sum: u32 = turns.map(|k| if k % 3 == 0 { 1 } else { 100 }).sum();
        2 * sum + 7 + 10_000
    };
    assert_eq!(words, (0..16).map(expected).collect::<Vec<_>>());
}

#[test]
fn functions_return_from_where_they_are() {
    let (words, faults) = run(
        &format!(
            "fn half(a: u32) -> u32 {{ if a % 2u == 0u {{ return a / 2u; }} return 1000u + a; }}\n{}",
            main_of("if i < 12u { x[i] = half(x[i]); }")
        ),
        Choices::default(),
    );
    assert!(faults.is_empty(), "{faults:?}");
    let expected = |i| match i {
        12.. => i,
        _ if i % 2 == 0 => i / 2,
        _ => 1000 + i,
    };
    assert_eq!(words, (0..16).map(expected).collect::<Vec<_>>());
}

#[test]
fn a_barrier_orders_what_a_workgroup_does() {
    let turned = |barrier: &str| format!("w[t] = x[i]; {barrier} x[i] = w[7u - t];");
    let (words, faults) = run_body(&turned("workgroupBarrier();"));
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(words, (0..8).rev().chain((8..16).rev()).collect::<Vec<_>>());
    has_only(&turned(""), "no barrier is between");
    // The next turn of a loop overwrites what others still read.
    let loops = |barrier: &str| {
        format!(
            "for (var k = 0u; k < 2u; k++) {{ w[t] = k; workgroupBarrier(); x[i] = w[7u - t]; {barrier} }}"
        )
    };
    has_only(&loops(""), "no barrier is between");
    assert!(run_body(&loops("workgroupBarrier();")).1.is_empty());
}

#[test]
fn workgroups_have_no_order() {
    has_only("if t == 0u { x[group.x] = x[1u - group.x]; }", "no barrier is between");
    has_only("x[0] = 3u;", "no barrier is between");
    has_only("if i == 9u { x[0] = 1u; } if i == 0u { x[1] = x[0]; }", "no barrier is between");
    // A barrier for the workgroup's memory is none for storage.
    let passes = |barrier: &str| format!("x[i] = t; {barrier} if x[i ^ 1u] == 99u {{ w[t] = 0u; }}");
    has_only(&passes("workgroupBarrier();"), "no barrier is between");
    assert!(run_body(&passes("storageBarrier();")).1.is_empty());
}

#[test]
fn all_invocations_must_come_to_a_barrier() {
    has_only("if t < 4u { workgroupBarrier(); }", "not every invocation");
    has_only("if i > 12u { return; } workgroupBarrier();", "not every invocation");
    has_only("for (var k = 0u; k < t; k++) { workgroupBarrier(); }", "not every invocation");
    assert!(run_body("if params.n == 16u { workgroupBarrier(); }").1.is_empty());
}

#[test]
fn places_behind_the_end_are_faults() {
    has_only("x[i + 1u] = 0u;", "writes behind the end");
    has_only("w[t] = x[i + 8u];", "reads behind the end");
    has_only("w[t + 1u + params.zero] = 0u;", "the index is behind the end");
    has_only("var a = array<u32, 4>(); a[t] = 1u; x[i] = a[t % 4u];", "the index is behind the end");
    assert!(run_body("x[i] = arrayLength(&x);").0.iter().all(|&length| length == 16));
}

#[test]
fn loops_that_do_not_end_are_faults() {
    has_only("while params.n > 0u { w[t] += 1u; }", "does not end");
}

#[test]
fn what_is_not_emulated_is_a_fault() {
    has_only("x[i] = bitcast<u32>(sin(f32(i)));", "not emulated");
    has_only("x[i] = bitcast<u32>(f32(f16(f32(i) + 0.1)));", "rounds to f16");
}

/// What a kernel does with a choice of the device shows.
#[test]
fn another_device_shows_in_what_wgsl_leaves_open() {
    let bodies = [
        "x[i] = bitcast<u32>(bitcast<f32>(i + 1u) * 1.0);",
        "x[i] = bitcast<u32>(f32(i + 3u) / 7.0);",
        "x[i] = bitcast<u32>(sqrt(f32(i + 2u)));",
        "x[i] = bitcast<u32>(f32(16777217u + i));",
        "x[i] = 5u / params.zero;",
        "x[i] = 5u << (32u + params.zero);",
        "x[i] = bitcast<u32>(min(bitcast<f32>(0x7fc00000u + params.zero), 1.0));",
        "x[i] = u32(-1.0 - f32(i) + f32(params.zero));",
        "x[i] = w[t];",
    ];
    for body in bodies {
        let [one, other] = [false, true].map(|otherwise| {
            let (words, faults) = run(&main_of(body), Choices { fused: false, otherwise });
            assert!(faults.is_empty(), "{body}: {faults:?}");
            words
        });
        assert_ne!(one, other, "{body}");
    }
    let tie = main_of(
        "x[i] = bitcast<u32>(fma(1.000244140625, 1.000244140625, -1.00048828125 + f32(params.zero)));",
    );
    let [apart, fused] = [false, true].map(|fused| run(&tie, Choices { fused, otherwise: false }).0[0]);
    assert_eq!([apart, fused], [0, (1.0f32 / (1 << 24) as f32).to_bits()]);
}

#[test]
fn functions_change_what_they_are_given_pointers_to() {
    let (words, faults) = run(
        &format!(
            "var<private> own: array<u32, 3>;
             fn twice(pair: ptr<function, array<u32, 2>>, by: u32) {{ for (var k = 0u; k < 2u; k++) {{ add(pair, k, by); }} }}
             fn add(to: ptr<function, array<u32, 2>>, k: u32, by: u32) {{ if by > 2u {{ (*to)[k] += by * 10u; }} }}
             fn keep(to: ptr<private, array<u32, 3>>, by: u32) {{ (*to)[by % 3u] = by; }}
             {}",
            main_of("var both = array<u32, 2>(1u, 2u); twice(&both, i); keep(&own, i); x[i] = both[0] + both[1] + own[i % 3u];")
        ),
        Choices::default(),
    );
    assert_eq!(faults, [""; 0]);
    let expected: Vec<u32> = (0..16).map(|i| 3 + i + if i > 2 { 20 * i } else { 0 }).collect();
    assert_eq!(words, expected);
}
