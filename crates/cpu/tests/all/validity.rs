//! What is not valid runs not at all, and is an error that says so, as wgpu's own backends have it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

use crate::common::{Machine, bytes_of_words, error, floats, words};
use wgpu::{BufferUsages, CommandEncoder, ComputePassDescriptor, MapMode, PollType};

const COPY: &str = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read> y: array<u32, 16>;
@compute @workgroup_size(1) fn main(@builtin(workgroup_id) id: vec3<u32>) { x[id.x] = y[id.x] + 1u; }";

fn buffer(machine: &Machine, size: u64, usage: BufferUsages) -> wgpu::Buffer {
    let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
    machine.device.create_buffer(&descriptor)
}

fn whole(buffer: &wgpu::Buffer) -> wgpu::BufferBinding<'_> {
    wgpu::BufferBinding { buffer, offset: 0, size: None }
}

/// Returns the error of commands that clear a buffer of sevens and do what `record` records, and checks that
/// nothing of them ran.
fn refused(machine: &Machine, record: impl FnOnce(&mut CommandEncoder, &wgpu::Buffer)) -> String {
    let sevens = machine.buffer(&bytes_of_words(&[7; 16]));
    let message = error(machine, || {
        let mut encoder = machine.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.clear_buffer(&sevens, 0, None);
        record(&mut encoder, &sevens);
        machine.queue.submit([encoder.finish()]);
    });
    assert_eq!(words(&machine.read(&sevens)), [7; 16], "{message}");
    assert!(!message.is_empty());
    message
}

#[test]
fn a_launch_that_is_not_valid_takes_all_commands_along() {
    let machine = Machine::new(2);
    let kernel = machine.pipeline(COPY, true).unwrap();
    let group = |all: &[wgpu::BufferBinding<'_>]| {
        let mut entries = Vec::new();
        for (binding, buffer) in (0..).zip(all) {
            let resource = wgpu::BindingResource::Buffer(buffer.clone());
            entries.push(wgpu::BindGroupEntry { binding, resource });
        }
        let layout = &kernel.get_bind_group_layout(0);
        machine.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout,
            entries: &entries,
        })
    };
    let launch = |encoder: &mut CommandEncoder, group: &wgpu::BindGroup| {
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        pass.set_pipeline(&kernel);
        pass.set_bind_group(0, group, &[]);
        pass.dispatch_workgroups(4, 1, 1);
    };
    let other = machine.buffer(&[0; 256]);
    let part =
        |offset, size| wgpu::BufferBinding { buffer: &other, offset, size: wgpu::BufferSize::new(size) };

    let short = refused(&machine, |encoder, x| launch(encoder, &group(&[whole(x), part(0, 32)])));
    assert!(short.contains("binding 1 has 32 bytes and needs 64"), "{short}");
    let missing = refused(&machine, |encoder, x| launch(encoder, &group(&[whole(x)])));
    assert!(missing.contains("binding 1 has 0 bytes"), "{missing}");
    let behind = refused(&machine, |encoder, x| launch(encoder, &group(&[whole(x), part(192, 128)])));
    assert!(behind.contains("cannot be bound"), "{behind}");
    // A kernel takes what it only reads as constant.
    let aliased = refused(&machine, |encoder, _| launch(encoder, &group(&[part(0, 64), part(128, 64)])));
    assert!(aliased.contains("bindings 0 and 1: one buffer"), "{aliased}");
    let unbindable = buffer(&machine, 64, BufferUsages::COPY_DST);
    let usage = refused(&machine, |encoder, x| launch(encoder, &group(&[whole(x), whole(&unbindable)])));
    assert!(usage.contains("cannot be bound"), "{usage}");
    let open = refused(&machine, |encoder, x| {
        let pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        let mut pass = pass.forget_lifetime();
        pass.set_pipeline(&kernel);
        pass.set_bind_group(0, &group(&[whole(x), whole(&other)]), &[]);
        pass.dispatch_workgroups(4, 1, 1);
        std::mem::forget(pass);
    });
    assert!(open.contains("has not ended"), "{open}");
}

/// A kernel that computes many invocations at once reads and writes different bindings in any order. Others
/// keep the order of the text, and may write one buffer by two bindings, as attention's gradients do.
#[test]
fn what_many_invocations_read_at_once_is_not_written_by_another_binding() {
    let machine = Machine::new(1);
    let head = "@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(1) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;";
    use unisono_shaders::snippets::{ELEMENTARY, FLUSH, QUOTIENT, ROOT};
    let functions = [ELEMENTARY, FLUSH, QUOTIENT, ROOT].map(|part| part.text()).concat();
    let many = format!("{functions}{head} let before = x[i]; y[i] = exp_(2.0); x[i + 1u] = before; }}");
    let both = machine.buffer(&[0; 256]);
    let launch = |encoder: &mut CommandEncoder, kernel: &wgpu::ComputePipeline, parts: [(u64, u64); 2]| {
        let entries = [0, 1].map(|at| {
            let (offset, size) = parts[at];
            let own = wgpu::BufferBinding { buffer: &both, offset, size: wgpu::BufferSize::new(size) };
            wgpu::BindGroupEntry { binding: at as u32, resource: wgpu::BindingResource::Buffer(own) }
        });
        let group = machine.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &kernel.get_bind_group_layout(0),
            entries: &entries,
        });
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        pass.set_pipeline(kernel);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(1, 1, 1);
    };
    let overlapping = [[(0, 256), (0, 256)], [(0, 128), (64, 64)], [(64, 64), (0, 68)]];
    #[cfg(target_arch = "x86_64")]
    if unisono_cpu::IS_OPTIMIZED && unisono_cpu::has_fma() && std::is_x86_feature_detected!("avx2") {
        let kernel = machine.pipeline(&many, false).unwrap();
        for parts in overlapping {
            let message = refused(&machine, |encoder, _| launch(encoder, &kernel, parts));
            assert!(message.contains("bindings 0 and 1: the kernel reads and writes the same"), "{message}");
        }
    }
    let run = |kernel: &wgpu::ComputePipeline, parts| {
        let message = error(&machine, || {
            let mut encoder =
                machine.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            launch(&mut encoder, kernel, parts);
            machine.queue.submit([encoder.finish()]);
        });
        assert_eq!(message, "");
    };
    // Parts of one buffer that do not overlap.
    for checked in [false, true] {
        run(&machine.pipeline(&many, checked).unwrap(), [(128, 64), (0, 128)]);
    }
    let one = format!("{head} x[i] = 1.0; y[i] = 2.0; x[i + 1u] = x[i] + y[i]; }}");
    for checked in [false, true] {
        let kernel = machine.pipeline(&one, checked).unwrap();
        let results = [[2.0, 4.0], [1.0, 3.0], [2.0, 3.0]];
        for (parts, expected) in overlapping.into_iter().zip(results) {
            run(&kernel, parts);
            assert_eq!(floats(&machine.read(&both))[..2], expected);
        }
    }
}

/// An invocation's number in its launch has 32 bits in each dimension.
#[test]
fn a_launch_has_no_more_invocations_than_numbers() {
    let machine = Machine::new(1);
    let one = machine.buffer(&[0; 64]);
    for (size, groups) in
        [("1024", [1 << 23, 1, 1]), ("1, 512", [1, (1 << 23) + 1, 1]), ("1, 1, 64", [1, 1, 1 << 25])]
    {
        let wgsl = format!(
            "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size({size}) fn main() {{ x[0] = 1u; }}"
        );
        let kernel = machine.pipeline(&wgsl, true).unwrap();
        let group = machine.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &kernel.get_bind_group_layout(0),
            entries: &[wgpu::BindGroupEntry { binding: 0, resource: one.as_entire_binding() }],
        });
        let message = refused(&machine, |encoder, _| {
            let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
            pass.set_pipeline(&kernel);
            pass.set_bind_group(0, &group, &[]);
            let [x, y, z] = groups;
            pass.dispatch_workgroups(x, y, z);
        });
        assert!(message.contains("in a dimension"), "{message}");
    }
}

#[test]
fn a_copy_that_is_not_valid_takes_all_commands_along() {
    let machine = Machine::new(1);
    let (from, to) = (machine.buffer(&[0; 64]), machine.buffer(&[0; 64]));
    let read = buffer(&machine, 64, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
    let copy = |encoder: &mut CommandEncoder, from: &wgpu::Buffer, at, to: &wgpu::Buffer, bytes| {
        encoder.copy_buffer_to_buffer(from, at, to, at, bytes);
    };
    let unaligned = refused(&machine, |encoder, _| copy(encoder, &from, 2, &to, 8));
    assert!(unaligned.contains("not multiples of 4"), "{unaligned}");
    let unaligned = refused(&machine, |encoder, _| copy(encoder, &from, 0, &to, 6));
    assert!(unaligned.contains("not multiples of 4"), "{unaligned}");
    let within = refused(&machine, |encoder, _| encoder.copy_buffer_to_buffer(&from, 0, &from, 32, 32));
    assert!(within.contains("within one buffer"), "{within}");
    let usage = refused(&machine, |encoder, _| copy(encoder, &read, 0, &to, 8));
    assert!(usage.contains("COPY_SRC"), "{usage}");
    let far = refused(&machine, |encoder, _| encoder.copy_buffer_to_buffer(&from, u64::MAX - 3, &to, 0, 8));
    assert!(far.contains("behind the end"), "{far}");
    let write = error(&machine, || machine.queue.write_buffer(&to, 2, &[0; 4]));
    assert!(write.contains("not multiples of 4"), "{write}");
    let map = error(&machine, || from.map_async(MapMode::Read, .., |found| assert!(found.is_err())));
    assert!(map.contains("MAP_READ"), "{map}");
}

#[test]
fn queries_that_are_not_there_are_refused() {
    let machine = Machine::new(1);
    let set = |count| {
        let (label, ty) = (None, wgpu::QueryType::Timestamp);
        machine.device.create_query_set(&wgpu::QuerySetDescriptor { label, ty, count })
    };
    let many = error(&machine, || drop(set(u32::MAX)));
    assert!(many.contains("more than 4096"), "{many}");
    let (few, to) = (set(2), buffer(&machine, 1024, BufferUsages::QUERY_RESOLVE));
    for (range, at, expected) in [(1..3, 0, "not 2 queries"), (0..2, 8, "aligned"), (0..2, 1024, "behind")] {
        let found = refused(&machine, |encoder, _| encoder.resolve_query_set(&few, range, &to, at));
        assert!(found.contains(expected), "{found}");
    }
}

/// Writes are calls of their own: what is submitted behind them does not take them along.
#[test]
fn writes_happen_though_the_commands_behind_them_are_refused() {
    let machine = Machine::new(1);
    let x = machine.buffer(&[0; 64]);
    let read = buffer(&machine, 64, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
    read.map_async(MapMode::Read, .., |_| ());
    machine.device.poll(PollType::wait_indefinitely()).unwrap();
    machine.queue.write_buffer(&x, 0, &bytes_of_words(&[5; 16]));
    machine.queue.write_buffer(&read, 0, &bytes_of_words(&[6; 16]));
    let mapped = error(&machine, || _ = machine.queue.submit([]));
    assert!(mapped.contains("mapped"), "{mapped}");
    assert_eq!(words(&machine.read(&x)), [5; 16]);
    assert_eq!(words(&read.get_mapped_range(..).unwrap()), [0; 16]);
    machine.queue.write_buffer(&x, 0, &bytes_of_words(&[8; 16]));
    let broken = error(&machine, || {
        let mut encoder = machine.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.clear_buffer(&x, 0, Some(128));
        machine.queue.submit([encoder.finish()]);
    });
    assert!(broken.contains("behind the end"), "{broken}");
    assert_eq!(words(&machine.read(&x)), [8; 16]);
}

/// A view of a buffer stays what it is when the buffer is destroyed: no command writes there any more.
#[test]
fn what_is_destroyed_nobody_uses() {
    let machine = Machine::new(1);
    let read = buffer(&machine, 64, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
    machine.queue.write_buffer(&read, 0, &bytes_of_words(&[3; 16]));
    machine.queue.submit([]);
    read.map_async(MapMode::Read, .., |_| ());
    machine.device.poll(PollType::wait_indefinitely()).unwrap();
    let view = read.get_mapped_range(..).unwrap();
    read.destroy();
    let clear = || {
        let mut encoder = machine.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.clear_buffer(&read, 0, None);
        machine.queue.submit([encoder.finish()]);
    };
    let destroyed = error(&machine, clear);
    assert!(destroyed.contains("destroyed"), "{destroyed}");
    machine.device.poll(PollType::wait_indefinitely()).unwrap();
    assert_eq!(words(&view), [3; 16]);
    drop(view);
    read.unmap();
    assert!(error(&machine, clear).contains("destroyed"));
    let (told, hears) = mpsc::channel();
    read.map_async(MapMode::Read, .., move |found| told.send(found.is_ok()).unwrap());
    machine.device.poll(PollType::wait_indefinitely()).unwrap();
    assert_eq!(hears.try_recv(), Ok(false));
}

/// Whoever waits for a callback hears of it, though the device is dropped before anybody polled it.
#[test]
fn callbacks_are_called_though_the_device_is_dropped() {
    let machine = Machine::new(2);
    let read = buffer(&machine, 64, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
    let (told, hears) = mpsc::channel();
    let tell = || {
        let told = told.clone();
        move |found: Result<(), wgpu::BufferAsyncError>| told.send(found.is_ok()).unwrap()
    };
    let done = told.clone();
    read.map_async(MapMode::Read, .., tell());
    machine.queue.on_submitted_work_done(move || done.send(true).unwrap());
    drop(machine);
    assert_eq!(hears.try_iter().collect::<Vec<_>>(), [true, true]);
    read.unmap();
    read.map_async(MapMode::Read, .., tell());
    assert_eq!(hears.try_iter().collect::<Vec<_>>(), [false]);
}

/// A handler of errors may use the device and its queue.
#[test]
fn a_handler_of_errors_uses_the_queue() {
    let machine = Machine::new(1);
    let x = machine.buffer(&[0; 64]);
    let (queue, written, count) = (machine.queue.clone(), x.clone(), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&count);
    machine.device.on_uncaptured_error(Arc::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        queue.write_buffer(&written, 0, &bytes_of_words(&[9; 16]));
    }));
    let read = buffer(&machine, 64, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
    read.map_async(MapMode::Read, .., |_| ());
    let mut encoder = machine.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.clear_buffer(&read, 0, None);
    machine.queue.submit([encoder.finish()]);
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert_eq!(words(&machine.read(&x)), [9; 16]);
    // The handler holds the queue, which holds the handler.
    machine.device.on_uncaptured_error(Arc::new(|_| ()));
}

/// A kernel declares its buffers as its layout does, and has what the device was opened with.
#[test]
fn a_kernel_that_its_layout_or_its_device_does_not_allow_is_refused() {
    let machine = Machine::new(1);
    let pipeline = |entries: &[(u32, wgpu::BufferBindingType)]| {
        let entries: Vec<_> = entries
            .iter()
            .map(|&(binding, ty)| wgpu::BindGroupLayoutEntry {
                binding,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
                count: None,
            })
            .collect();
        let device = &machine.device;
        error(&machine, || {
            let group = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
            let group = device.create_bind_group_layout(&group);
            let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &[Some(&group)],
                immediate_size: 0,
            });
            let source = wgpu::ShaderSource::Wgsl(COPY.into());
            let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
            let _refused = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: None,
                layout: Some(&layout),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                cache: None,
            });
        })
    };
    let [read, written] = [true, false].map(|read_only| wgpu::BufferBindingType::Storage { read_only });
    assert_eq!(pipeline(&[(0, written), (1, read), (2, read)]), "");
    assert!(pipeline(&[(0, written)]).contains("binding 1: not in the layout"));
    for other in [written, wgpu::BufferBindingType::Uniform] {
        assert!(pipeline(&[(0, written), (1, other)]).contains("binding 1: Read in the kernel, and "));
    }
    let plain = Machine::plain();
    for [declares, uses] in [["enable f16;", "f16"], ["", "u64"]] {
        let wgsl = format!(
            "{declares} @group(0) @binding(0) var<storage, read_write> x: array<{uses}>;
@compute @workgroup_size(1) fn main() {{ x[0] = x[1]; }}"
        );
        assert!(machine.pipeline(&wgsl, true).is_ok());
        assert!(plain.pipeline(&wgsl, true).is_err(), "{uses}");
    }
}
