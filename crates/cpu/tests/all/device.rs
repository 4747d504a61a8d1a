//! The device: errors that name what is wrong, order, threads, times.

mod native;

use crate::common::{Machine, bytes_of_words, error, words};

const DOUBLE: &str = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(32) fn main(@builtin(global_invocation_id) id: vec3<u32>) { x[id.x] = x[id.x] * 2u + 1u; }";

#[test]
fn what_is_wrong_with_a_kernel_is_said() {
    let machine = Machine::new(1);
    let refused = |wgsl: &str| machine.pipeline(wgsl, true).err().unwrap_or_default();
    assert!(refused("fn main( {").contains("expected"), "{}", refused("fn main( {"));
    assert!(refused("@compute @workgroup_size(1) fn other() {}").contains("no entry point main"));
    let texture = "@group(0) @binding(0) var t: texture_2d<f32>;
@compute @workgroup_size(1) fn main() { let x = textureLoad(t, vec2<u32>(), 0); }";
    assert!(refused(texture).contains("not supported"), "{}", refused(texture));
    let noise = "@group(0) @binding(0) var<storage, read_write> x: array<vec2<f32>>;
@compute @workgroup_size(1) fn main() { x[0] = refract(x[0], x[1], 0.5); }";
    assert!(refused(noise).contains("Refract: not supported"), "{}", refused(noise));
    let subgroup = "@compute @workgroup_size(1) fn main(@builtin(subgroup_invocation_id) lane: u32) {}";
    assert!(!refused(subgroup).is_empty());
    for overridden in [
        "override n: u32 = 64; @compute @workgroup_size(n) fn main() {}",
        "override n: u32 = 4; var<workgroup> w: array<u32, n>;
@compute @workgroup_size(1) fn main() { w[0] = 1u; }",
    ] {
        assert!(refused(overridden).contains("overridden"), "{}", refused(overridden));
    }
    let fours = "@group(0) @binding(0) var<storage, read_write> x: array<vec4<u64>>;
@compute @workgroup_size(1) fn main() { x[0] = x[1] + x[2]; }";
    assert!(refused(fours).contains("not supported"), "{}", refused(fours));
    let skipping = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(1) fn main() {
    var sum = 0u;
    loop { if x[sum] == 0u { sum += 1u; if sum > 5u { break; } continue; } let y = x[sum]; continuing { sum += y; } }
    x[0] = sum;
}";
    assert!(refused(skipping).contains("`continue` may leave out"), "{}", refused(skipping));
    let chain = (0..3000).map(|n| format!("fn f{}(x: u32) -> u32 {{ return f{n}(x); }}\n", n + 1));
    let chain: String =
        std::iter::once("fn f0(x: u32) -> u32 { return x; }\n".to_owned()).chain(chain).collect();
    let calls = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(1) fn main() { x[0] = f3000(x[0]); }";
    assert!(refused(&(chain + calls)).contains("so deep within one another"));
    let deep = (0..70).map(|n| format!("fn f{}(x: u32) -> u32 {{ return f{n}(x) + f{n}(x); }}\n", n + 1));
    let deep: String =
        std::iter::once("fn f0(x: u32) -> u32 { return x; }\n".to_owned()).chain(deep).collect();
    let calls = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(1) fn main() { x[0] = f70(x[0]); }";
    assert!(refused(&(deep + calls)).contains("so many calls"));
}

#[test]
fn what_is_wrong_with_a_launch_or_a_copy_is_said() {
    let machine = Machine::new(1);
    let pipeline = machine.pipeline(
        "@group(0) @binding(0) var<storage, read_write> x: array<vec4<u32>, 4>;
@compute @workgroup_size(1) fn main() { x[3].y = 5u; }",
        false,
    );
    let (pipeline, small) = (pipeline.unwrap(), machine.buffer(&[0; 32]));
    let short = error(&machine, || machine.launch(&pipeline, &[&small], [1, 1, 1]));
    assert!(short.contains("binding 0 has 32 bytes and needs 64"), "{short}");
    assert!(error(&machine, || machine.launch(&pipeline, &[], [1, 1, 1])).contains("binding 0"));
    let copies = machine.pipeline(
        "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read> y: array<u32>;
@compute @workgroup_size(1) fn main() { x[0] = y[0] + 1u; }",
        false,
    );
    let copies = copies.unwrap();
    let both = error(&machine, || machine.launch(&copies, &[&small, &small], [1, 1, 1]));
    assert!(both.contains("bindings 0 and 1: one buffer for writing and for reading"), "{both}");
    let write = error(&machine, || machine.queue.write_buffer(&small, 16, &[0; 32]));
    assert!(write.contains("behind the end"), "{write}");
    let copy = error(&machine, || {
        let mut encoder = machine.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(&small, 0, &machine.buffer(&[0; 64]), 48, 32);
        encoder.clear_buffer(&small, 16, Some(64));
        machine.queue.submit([encoder.finish()]);
    });
    assert!(copy.contains("behind the end"), "{copy}");
    assert_eq!(machine.read(&small), [0; 32]);
    let huge = wgpu::BufferDescriptor {
        label: None,
        size: 1 << 41,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    };
    assert!(error(&machine, || drop(machine.device.create_buffer(&huge))).contains("2199023255552"));
    let texture =
        error(&machine, || drop(machine.device.create_sampler(&wgpu::SamplerDescriptor::default())));
    assert!(texture.contains("samplers: not supported"), "{texture}");
}

#[test]
fn commands_run_in_order_on_any_number_of_threads() {
    for threads in [1, 2, 5] {
        let machine = Machine::new(threads);
        let pipeline = machine.pipeline(DOUBLE, false).unwrap();
        let x = machine.buffer(&bytes_of_words(&(0..4096).collect::<Vec<u32>>()));
        for turn in 0..20 {
            machine.launch(&pipeline, &[&x], [128, 1, 1]);
            if turn == 9 {
                machine.queue.write_buffer(&x, 0, &bytes_of_words(&[1000]));
            }
        }
        let doubled = |x: u32, turns: u32| (0..turns).fold(x, |x, _| x.wrapping_mul(2).wrapping_add(1));
        let mut expected: Vec<u32> = (0..4096).map(|x| doubled(x, 20)).collect();
        expected[0] = doubled(1000, 10);
        assert_eq!(words(&machine.read(&x)), expected, "{threads} threads");
    }
}

#[test]
fn devices_that_are_dropped_at_work_end_it() {
    for _ in 0..20 {
        let machine = Machine::new(2);
        let pipeline = machine.pipeline(DOUBLE, false).unwrap();
        let x = machine.buffer(&[0; 1 << 16]);
        for _ in 0..10 {
            machine.launch(&pipeline, &[&x], [512, 1, 1]);
        }
        drop(machine);
    }
}

#[test]
fn the_times_of_a_pass_grow() {
    let machine = Machine::new(2);
    let pipeline = machine.pipeline(DOUBLE, false).unwrap();
    let x = machine.buffer(&[0; 1 << 20]);
    let queries = machine.device.create_query_set(&wgpu::QuerySetDescriptor {
        label: None,
        ty: wgpu::QueryType::Timestamp,
        count: 2,
    });
    let group = machine.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[wgpu::BindGroupEntry { binding: 0, resource: x.as_entire_binding() }],
    });
    let times = machine.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 16,
        usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
        mapped_at_creation: false,
    });
    let mut encoder = machine.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let timestamp_writes = Some(wgpu::ComputePassTimestampWrites {
        query_set: &queries,
        beginning_of_pass_write_index: Some(0),
        end_of_pass_write_index: Some(1),
    });
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
    pass.set_pipeline(&pipeline);
    pass.set_bind_group(0, &group, &[]);
    pass.dispatch_workgroups(8192, 1, 1);
    drop(pass);
    encoder.resolve_query_set(&queries, 0..2, &times, 0);
    machine.queue.submit([encoder.finish()]);
    let ticks = machine.read(&times);
    let [begin, end] = [0, 8].map(|at| u64::from_le_bytes(ticks[at..at + 8].try_into().unwrap()));
    assert!(0 < begin && begin < end, "{begin} {end}");
}

/// A command that is not valid takes all that was recorded with it along, as the promise of a step needs.
#[test]
fn nothing_runs_of_commands_of_which_one_is_not_valid() {
    let machine = Machine::new(2);
    let pipeline = machine.pipeline(DOUBLE, false).unwrap();
    let x = machine.buffer(&bytes_of_words(&[3; 32]));
    machine.launch(&pipeline, &[&x], [1, 1, 1]);
    for wrong in 0..3 {
        let found = error(&machine, || {
            let mut encoder =
                machine.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.clear_buffer(&x, 0, None);
            match wrong {
                0 => encoder.clear_buffer(&x, 64, Some(128)),
                1 => encoder.copy_buffer_to_buffer(&x, 0, &x, 96, 64),
                _ => {
                    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
                    pass.set_pipeline(&pipeline);
                    pass.dispatch_workgroups(1, 1, 1);
                }
            }
            machine.queue.submit([encoder.finish()]);
        });
        assert!(!found.is_empty());
        assert_eq!(words(&machine.read(&x)), [7; 32], "{found}");
    }
    let many = error(&machine, || machine.launch(&pipeline, &[&x], [u32::MAX, u32::MAX, 4]));
    assert!(many.contains("more than 16777216 in a dimension"), "{many}");
}

/// What the host has mapped no command reads or writes, and what commands still write the host does not see.
#[test]
fn a_buffer_is_the_hosts_or_the_devices() {
    let machine = Machine::new(1);
    let buffer = machine.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 64,
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let clear = || {
        let mut encoder = machine.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.clear_buffer(&buffer, 0, None);
        machine.queue.submit([encoder.finish()]);
    };
    let (told, hears) = std::sync::mpsc::channel();
    let tell = told.clone();
    buffer.map_async(wgpu::MapMode::Read, .., move |found| tell.send(found.is_ok()).unwrap());
    assert!(error(&machine, clear).contains("mapped"), "the map was asked for");
    let early = error(&machine, || assert!(buffer.get_mapped_range(..).is_ok_and(|view| view.is_empty())));
    assert!(early.contains("not mapped yet"), "{early}");
    machine.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
    assert_eq!(hears.try_recv(), Ok(true));
    assert_eq!(buffer.get_mapped_range(..).unwrap().len(), 64);
    assert!(error(&machine, clear).contains("mapped"));
    buffer.unmap();
    assert_eq!(error(&machine, clear), "");
    // A map that is given up before it is done is an error, and the next one is not taken for it.
    let tell = told.clone();
    buffer.map_async(wgpu::MapMode::Read, .., move |found| tell.send(found.is_ok()).unwrap());
    buffer.unmap();
    buffer.map_async(wgpu::MapMode::Read, .., move |found| told.send(found.is_ok()).unwrap());
    machine.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
    assert_eq!(hears.try_iter().collect::<Vec<_>>(), [false, true]);
}

#[test]
fn kernels_that_need_too_much_are_refused() {
    let machine = Machine::new(1);
    let refused = |wgsl: &str| machine.pipeline(wgsl, true).err().unwrap_or_default();
    let lanes = refused("@compute @workgroup_size(1024, 1024) fn main() {}");
    assert!(lanes.contains("more than 1024"), "{lanes}");
    let variables = |count: u32| {
        format!(
            "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(local_invocation_index) lane: u32) {{
    var own: array<u32, {count}>;
    own[x[lane] % {count}u] = lane;
    workgroupBarrier();
    x[lane] = own[(x[lane] + 1u) % {count}u] + own[x[lane] % {count}u];
}}"
        )
    };
    let large = refused(&variables(1 << 16));
    assert!(large.contains("a variable of 262144 bytes"), "{large}");
    // Just below, on stacks of 64 invocations.
    let pipeline = machine.pipeline(&variables(40_000), true).unwrap();
    let x = machine.buffer(&bytes_of_words(&(0..64).map(|lane| lane * 625).collect::<Vec<u32>>()));
    machine.launch(&pipeline, &[&x], [1, 1, 1]);
    assert_eq!(words(&machine.read(&x)), (0..64).collect::<Vec<u32>>());
}

#[test]
fn more_than_the_adapter_has_is_refused() {
    let adapter = unisono_cpu::adapter(unisono_cpu::Options::default());
    let request = |change: &dyn Fn(&mut wgpu::DeviceDescriptor<'_>)| {
        let mut descriptor =
            wgpu::DeviceDescriptor { required_limits: adapter.limits(), ..wgpu::DeviceDescriptor::default() };
        change(&mut descriptor);
        pollster::block_on(adapter.request_device(&descriptor)).err().map(|error| error.to_string())
    };
    assert_eq!(request(&|_| ()), None);
    let limits =
        request(&|descriptor| descriptor.required_limits.max_compute_invocations_per_workgroup = 2048);
    assert!(limits.is_some_and(|error| error.contains("limits")));
    let features = request(&|descriptor| descriptor.required_features = wgpu::Features::SUBGROUP);
    assert!(features.is_some_and(|error| error.contains("SUBGROUP")));
}
