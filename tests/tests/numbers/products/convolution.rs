//! The products of convolutions read the image itself (implicit GEMM). They give the same bytes as a plain
//! loop over its windows.

use std::collections::BTreeSet;
use std::ops::Range;

use unisono_gpu::{Backend, Device};
use unisono_graph::ops::Window;
use unisono_graph::plan::Command;
use unisono_graph::target::Machine;
use unisono_graph::tree::{PRODUCT_CHUNK, canonical, sum};
use unisono_graph::{Program, Run, Tape, Target, Type};
use unisono_random::Draws;
use unisono_testkit::{adapters, products};

use super::{run, targets};

/// A convolution from `[B, channels, height, width]` to `[B, outputs, ...]`.
struct Case {
    channels: usize,
    outputs: usize,
    image: [usize; 2],
    window: Window,
    groups: usize,
}

fn case(channels: usize, outputs: usize, image: [usize; 2], kernel: [usize; 2]) -> Case {
    Case { channels, outputs, image, window: Window::new(kernel), groups: 1 }
}

impl Case {
    fn padding(mut self, padding: [usize; 2]) -> Self {
        self.window.padding = padding;
        self
    }

    fn stride(mut self, stride: [usize; 2]) -> Self {
        self.window.stride = stride;
        self
    }

    fn dilation(mut self, dilation: [usize; 2]) -> Self {
        self.window.dilation = dilation;
        self
    }

    fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    /// Returns the inner size of the product: the elements of a window in all channels of a group.
    fn inner(&self) -> usize {
        self.channels / self.groups * self.window.kernel.iter().product::<usize>()
    }

    fn counts(&self) -> [usize; 2] {
        self.window.count(self.image).unwrap()
    }

    fn types(&self) -> [Type; 3] {
        let ([h, w], [down, across], [kh, kw]) = (self.image, self.counts(), self.window.kernel);
        [
            Type::sample(&[self.channels, h, w]),
            Type::global(&[self.outputs, self.channels / self.groups, kh, kw]),
            Type::sample(&[self.outputs, down, across]),
        ]
    }

    /// Returns a program of the convolution and the gradients of its sum, weighted by `dy`. If `shown`, the
    /// windows are an output, so that they are in memory.
    fn program(&self, shown: bool) -> Program {
        let tape = Tape::new();
        let [x, w, dy] = self.types();
        let (x, w, dy) = (tape.input("x", x), tape.input("w", w), tape.input("dy", dy));
        let y = x.conv2d(&w, &self.window, self.groups);
        let loss = (&y * &dy).sum_all().sum_shards();
        let [dx, dw] = <[_; 2]>::try_from(tape.gradients(&loss, &[x.clone(), w])).unwrap();
        [("y", &y), ("dx", &dx), ("dw", &dw)].into_iter().for_each(|(name, v)| tape.output(name, v));
        if shown {
            let [h, w] = self.image;
            let grouped = x.reshape(&[self.groups, self.channels / self.groups, h, w]);
            let rows = grouped.windows(&self.window, 0.0).permute(&[0, 2, 3, 1, 4, 5]);
            tape.output("windows", &rows);
        }
        Program::compile(&tape.finish().unwrap()).unwrap()
    }

    /// Returns a program of the convolution with an epilogue: a bias of each channel, an activation and a
    /// residual. If `shown`, the convolution itself is an output, so that no epilogue is possible.
    fn with_epilogue(&self, shown: bool) -> Program {
        let tape = Tape::new();
        let [x, w, residual] = self.types();
        let (x, w, residual) = (tape.input("x", x), tape.input("w", w), tape.input("residual", residual));
        let bias = tape.input("bias", Type::global(&[self.outputs]));
        let product = x.conv2d(&w, &self.window, self.groups);
        let y = ((&product + &bias.reshape(&[self.outputs, 1, 1])).relu() * &residual).relu();
        tape.output("y", &y);
        if shown {
            tape.output("product", &product);
        }
        Program::compile(&tape.finish().unwrap()).unwrap()
    }

    fn values(&self, samples: usize) -> [Vec<f32>; 3] {
        let lead = [samples, 1, samples];
        let of = |i: usize, ty: &Type| {
            let mut draws = Draws::of(11, "products", "convolution", i as u32, 0);
            (0..lead[i] * ty.count()).map(|_| draws.range(-1.0, 1.0)).collect()
        };
        let [x, w, dy] = self.types();
        [of(0, &x), of(1, &w), of(2, &dy)]
    }

    /// Returns the element of the image at place `inner` of window `row` of a group, or `None` in the
    /// padding.
    fn pixel(&self, group: usize, row: usize, inner: usize) -> Option<usize> {
        let ([h, w], [kh, kw]) = (self.image, self.window.kernel);
        let at = |axis: usize, window: usize, place: usize, length: usize| {
            let Window { stride, dilation, padding, .. } = &self.window;
            let at = window * stride[axis] + place * dilation[axis];
            at.checked_sub(padding[axis]).filter(|&at| at < length)
        };
        let across = self.counts()[1];
        let y = at(0, row / across, inner / kw % kh, h)?;
        let x = at(1, row % across, inner % kw, w)?;
        let channel = group * (self.channels / self.groups) + inner / (kh * kw);
        Some((channel * h + y) * w + x)
    }

    /// Computes y, dx and dw on the host. `step(a, b, c)` is a multiply-add.
    fn on_host(&self, shards: &[usize], step: impl Fn(f32, f32, f32) -> f32) -> [Vec<f32>; 3] {
        let samples = shards.iter().sum();
        let [x, w, dy] = self.values(samples);
        let (inner, pixels) = (self.inner(), self.counts().iter().product::<usize>());
        let (per_group, image) = (self.outputs / self.groups, self.channels * self.image[0] * self.image[1]);
        let chunked = |range: Range<usize>, factors: &dyn Fn(usize) -> (f32, f32)| {
            let chunk = |lo: usize| {
                let end = range.end.min(lo + PRODUCT_CHUNK);
                canonical((lo..end).fold(0.0, |c, p| {
                    let (a, b) = factors(p);
                    step(a, b, c)
                }))
            };
            sum(&range.clone().step_by(PRODUCT_CHUNK).map(chunk).collect::<Vec<_>>())
        };
        let window = |sample: usize, group: usize, row: usize, i: usize| {
            self.pixel(group, row, i).map_or(0.0, |at| x[sample * image + at])
        };
        let dy_at = |sample: usize, o: usize, row: usize| dy[(sample * self.outputs + o) * pixels + row];
        let mut y = Vec::new();
        let mut dx = vec![0.0; samples * image];
        for sample in 0..samples {
            for (o, row) in (0..self.outputs * pixels).map(|e| (e / pixels, e % pixels)) {
                let factors = |p: usize| (w[o * inner + p], window(sample, o / per_group, row, p));
                y.push(chunked(0..inner, &factors));
            }
            // The gradient of a pixel is a sum over the places of a window. Each place adds the one window
            // that has the pixel there.
            for (group, i, row) in (0..self.groups * inner * pixels)
                .map(|e| (e / pixels / inner, e / pixels % inner, e % pixels))
            {
                let Some(at) = self.pixel(group, row, i) else { continue };
                let first = group * per_group;
                let factors = |o: usize| (dy_at(sample, first + o, row), w[(first + o) * inner + i]);
                let pixel = &mut dx[sample * image + at];
                *pixel = sum(&[*pixel, chunked(0..per_group, &factors)]);
            }
        }
        let ends: Vec<usize> = shards
            .iter()
            .scan(0, |end, size| {
                *end += size;
                Some(*end)
            })
            .collect();
        let ranges: Vec<Range<usize>> = ends.iter().zip(shards).map(|(&end, size)| end - size..end).collect();
        let weights = (0..self.outputs * inner).map(|e| (e / inner, e % inner));
        let of_shard = |o: usize, i: usize, range: &Range<usize>| {
            let group = o / per_group;
            if self.groups == 1 {
                let factors =
                    |p: usize| (dy_at(p / pixels, o, p % pixels), window(p / pixels, group, p % pixels, i));
                return chunked(range.start * pixels..range.end * pixels, &factors);
            }
            let of_sample = |sample: usize| {
                chunked(0..pixels, &|row| (dy_at(sample, o, row), window(sample, group, row, i)))
            };
            range.clone().fold(0.0, |all, sample| sum(&[all, of_sample(sample)]))
        };
        let dw = weights.map(|(o, i)| sum(&ranges.iter().map(|r| of_shard(o, i, r)).collect::<Vec<_>>()));
        [y, dx, dw.collect()]
    }
}

fn cases() -> Vec<Case> {
    vec![
        case(1, 16, [8, 8], [3, 3]).padding([1, 1]),
        case(3, 8, [9, 7], [3, 3]).padding([1, 1]),
        case(16, 32, [14, 14], [3, 3]).padding([1, 1]),
        case(33, 36, [8, 8], [3, 3]).padding([1, 1]),
        case(5, 34, [13, 13], [3, 3]).dilation([2, 2]).padding([2, 2]),
        case(4, 6, [11, 10], [2, 3]).stride([2, 1]).dilation([1, 2]).padding([1, 0]),
        case(48, 9, [6, 6], [5, 5]).padding([1, 2]),
        case(8, 16, [8, 8], [1, 1]),
        case(8, 12, [9, 9], [1, 1]).stride([2, 2]),
        case(6, 12, [12, 12], [2, 2]).stride([2, 2]),
        case(6, 9, [10, 9], [3, 3]).stride([2, 3]).padding([2, 1]),
        case(4, 6, [8, 8], [3, 2]).padding([1, 1]).groups(2),
        case(8, 8, [12, 12], [3, 3]).padding([1, 1]).groups(8),
        case(66, 68, [8, 8], [3, 3]).padding([1, 1]).groups(2),
        case(9, 12, [10, 10], [3, 2]).dilation([2, 2]).padding([2, 1]),
        case(40, 8, [10, 12], [3, 5]),
        case(8, 8, [10, 12], [1, 3]).padding([1, 1]),
        case(16, 12, [1, 64], [1, 5]).padding([0, 2]),
        // Several samples within 32 columns.
        case(16, 16, [2, 2], [3, 3]).padding([1, 1]),
        case(16, 12, [2, 4], [1, 1]),
        case(8, 16, [4, 3], [3, 3]).padding([1, 1]),
    ]
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_convolution_reads_its_image_and_gives_the_bytes_of_a_plain_loop() {
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        let (mut rounds_twice, mut rounds_once, mut folded) = (true, true, BTreeSet::new());
        for (index, case) in cases().iter().enumerate() {
            let shards = [&[4][..], &[2, 1, 1], &[1, 1, 2, 1, 1, 1, 1, 1]][index % 3];
            let values = case.values(shards.iter().sum());
            let twice = rounds_twice.then(|| case.on_host(shards, |a, b, c| a * b + c).map(|v| bits(&v)));
            let mut once = None;
            let programs = [false, true].map(|shown| case.program(shown));
            for target in targets(&adapter) {
                let found = programs.each_ref().map(|p| run(&mut device, &target, p, &values, shards));
                let [own, apart] = &found;
                assert!(own.0[..] == apart.0[..3], "{:?} on {}", case.window, adapter.label());
                rounds_twice &= twice.as_ref().is_some_and(|twice| own.0 == twice);
                if !rounds_twice {
                    let once =
                        once.get_or_insert_with(|| case.on_host(shards, f32::mul_add).map(|v| bits(&v)));
                    rounds_once &= own.0 == once.as_slice();
                }
                assert!(rounds_twice || rounds_once, "case {index} on {} with {target:?}", adapter.label());
                for module in &own.1 {
                    products::check(module)
                        .unwrap_or_else(|problems| panic!("{}\n{module}", problems.join("\n")));
                }
                let is_folded = |module: &&String| {
                    module.contains("const SEGMENT") && !module.contains("const SEGMENT: u32 = 0u")
                };
                folded.extend(own.1.iter().find(is_folded).map(|_| index));
            }
        }
        // A CPU computes the gradients of these images in one kernel each.
        let is_cpu = adapter.backend == Backend::Cpu;
        assert_eq!(folded, if is_cpu { BTreeSet::from([2, 3, 14, 15, 17, 20]) } else { BTreeSet::new() });
    }
}

#[test]
fn the_epilogue_of_a_convolution_gives_the_bytes_of_separate_kernels() {
    let shards = [2, 1];
    for adapter in adapters() {
        let mut device = Device::open(&adapter).unwrap();
        for case in cases() {
            let mut values = case.values(3).to_vec();
            values.push((0..case.outputs).map(|o| o as f32 / 8.0 - 1.0).collect());
            let is_short = case.inner() <= PRODUCT_CHUNK;
            for target in targets(&adapter) {
                let [own, apart] = [false, true]
                    .map(|shown| run(&mut device, &target, &case.with_epilogue(shown), &values, &shards));
                assert!(own.0[0] == apart.0[0], "{:?} on {}", case.window, adapter.label());
                assert_eq!(
                    own.1.len() == 1,
                    is_short,
                    "one kernel, unless a tree adds the chunks of the product"
                );
            }
        }
    }
}

/// Returns the names of the kernels, and the bytes of scratch memory. On a GPU small launches stand beside
/// each other and hold their operands until then, which would hide the windows of images as small as these.
fn planned(case: &Case, shown: bool) -> (Vec<String>, u64) {
    let target = Target { machine: Machine::Cpu, max_workgroup_bytes: 1 << 20, ..Target::default() };
    let plan = case.program(shown).plan(&Run::whole(&[16, 15]), &target).unwrap();
    let bytes = plan.scratch_bytes();
    (plan.kernels.into_iter().map(|kernel| kernel.name).collect(), bytes)
}

/// A product over many samples is divided where the grid has no more room. The last part may be so small that
/// it would have another kernel by itself.
#[test]
fn a_divided_fold_has_the_bytes_of_a_whole_one() {
    for adapter in adapters().into_iter().filter(|adapter| adapter.backend == Backend::Cpu) {
        let mut device = Device::open(&adapter).unwrap();
        let case = case(8, 4, [4, 4], [3, 3]).padding([1, 1]);
        let (program, values) = (case.program(false), case.values(33));
        let [whole, divided] = [adapter.target().max_workgroups, 16].map(|max_workgroups| {
            let target = Target { max_workgroups, ..adapter.target() };
            let plan = program.plan(&Run::whole(&[33]), &target).unwrap();
            let launches = plan.segments.iter().flat_map(|segment| &segment.commands).filter(|command| {
                let Command::Launch(launch) = command else { return false };
                plan.kernels[launch.kernel].name == "matmul_ni_folded"
            });
            (launches.count(), run(&mut device, &target, &program, &values, &[33]).0)
        });
        assert_eq!((whole.0, divided.0), (1, 2), "{}", adapter.label());
        assert!(whole.1 == divided.1, "{}", adapter.label());
    }
}

#[test]
fn what_is_folded_is_not_in_memory() {
    let plain = case(32, 32, [16, 16], [3, 3]).padding([1, 1]);
    let strided = case(32, 32, [16, 16], [3, 3]).padding([1, 1]).stride([1, 2]);
    let [folded, stored] = [plain, strided].map(|case| {
        let (names, bytes) = planned(&case, false);
        let columns = 4 * 31 * case.counts().iter().product::<usize>() * case.inner();
        (names.iter().any(|name| name == "matmul_ni_folded"), bytes >= columns as u64)
    });
    assert_eq!((folded, stored), ((true, false), (false, true)));
}

#[test]
fn windows_are_not_in_memory() {
    for case in cases() {
        let (names, bytes) = planned(&case, false);
        let moves = names.iter().filter(|name| name.contains("im2col") || *name == "copy").count();
        // If windows do not overlap, the gradient of the image is the windows in another order, so it is
        // copied.
        let output = usize::from(case.window.stride == case.window.kernel);
        assert_eq!(moves, output, "{names:?}");
        let (others, more) = planned(&case, true);
        let elements = 31 * case.counts().iter().product::<usize>() * case.inner() * case.groups;
        assert!(others.len() > names.len(), "{others:?}");
        assert!(
            more >= bytes + 3 * elements as u64,
            "{bytes} and {more} with {elements} elements of windows"
        );
    }
}
