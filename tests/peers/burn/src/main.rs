//! Trains one of the benchmark's models with Burn on its wgpu backend, over Vulkan, and prints a line of
//! JSON: the adapter, the seconds from the start of the process to the end of the first step, and the median
//! of the steps after it in milliseconds.
//!
//! A step is what Unisono's `bench` times: a batch in host memory is copied to the device, forward, backward
//! and AdamW run, and the loss is copied back. The device is synchronised before the clock stops. The first
//! step tunes Burn's kernels, and so may the steps of the warm-up.

use std::error::Error;
use std::time::{Duration, Instant};

use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::prelude::*;
use burn::tensor::activation::relu;
use burn::tensor::wgpu::WgpuBackend;
use burn::tensor::{DeviceKind, TensorData};
use clap::{Parser, ValueEnum};

const CLASSES: usize = 10;
const LEARNING_RATE: f64 = 1e-3;

#[derive(Parser)]
#[command(about = "Times training with Burn")]
struct Flags {
    /// What to train, on noise
    #[arg(long, value_enum)]
    model: Kind,
    /// Steps to take the median of; 0 for the first step alone
    #[arg(long, default_value_t = 50)]
    steps: u32,
    /// Steps between the first and those
    #[arg(long, default_value_t = 10)]
    warmup: u32,
    /// On an adapter that is the host's own CPUs, not on the fastest one
    #[arg(long)]
    cpu: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// A 784-512-512-10 perceptron at batch 128
    Mlp,
    /// Two convolutions of 16 and 32 channels, each with a pool, and two dense layers over 28 x 28, batch 32
    Cnn,
}

impl Kind {
    fn batch(self) -> usize {
        match self {
            Self::Mlp => 128,
            Self::Cnn => 32,
        }
    }
}

/// A model of convolutions, each with a pool behind it, and then dense layers. There is a rectifier between
/// any two layers.
#[derive(Module, Debug)]
struct Model {
    convolutions: Vec<Conv2d>,
    dense: Vec<Linear>,
}

impl Model {
    fn new(kind: Kind, device: &Device) -> Self {
        let conv = |channels| {
            let config =
                Conv2dConfig::new(channels, [3, 3]).with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1));
            config.init(device)
        };
        let dense = |sizes: &[usize]| {
            sizes.windows(2).map(|pair| LinearConfig::new(pair[0], pair[1]).init(device)).collect()
        };
        match kind {
            Kind::Mlp => Self { convolutions: vec![], dense: dense(&[784, 512, 512, CLASSES]) },
            Kind::Cnn => Self {
                convolutions: vec![conv([1, 16]), conv([16, 32])],
                dense: dense(&[32 * 7 * 7, 128, CLASSES]),
            },
        }
    }

    /// Maps images `[B, 784]` to logits `[B, 10]`.
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let [batch, _] = x.dims();
        let mut x = x;
        if !self.convolutions.is_empty() {
            let pool = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
            let images = x.reshape([batch, 1, 28, 28]);
            let features = self.convolutions.iter().fold(images, |x, c| pool.forward(relu(c.forward(x))));
            x = features.flatten(1, 3);
        }
        for (i, layer) in self.dense.iter().enumerate() {
            x = layer.forward(x);
            if i + 1 < self.dense.len() {
                x = relu(x);
            }
        }
        x
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let flags = Flags::parse();
    let kind = if flags.cpu { DeviceKind::Cpu } else { DeviceKind::DefaultDevice };
    let options = Device::wgpu_options().device_kind(kind).graphics_api(WgpuBackend::Vulkan);
    let (plain, setup) = options.init_with_setup()?;
    let device = plain.clone().autodiff();

    let batch = flags.model.batch();
    let pixels = noise(batch * 784);
    let labels: Vec<i32> = (0..batch).map(|sample| (sample % CLASSES) as i32).collect();
    let mut model = Model::new(flags.model, &device);
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.01).with_epsilon(1e-8).init();
    let loss = CrossEntropyLossConfig::new().init(&device);

    let mut step = || -> Result<f32, Box<dyn Error>> {
        let x = Tensor::<2>::from_data(TensorData::new(pixels.clone(), [batch, 784]), &device);
        let y = Tensor::<1, Int>::from_data(TensorData::new(labels.clone(), [batch]), &device);
        let value = loss.forward(model.forward(x), y);
        let gradients = GradientsParams::from_grads(value.backward(), &model);
        model = optimizer.step(LEARNING_RATE, model.clone(), gradients);
        let value = value.try_into_scalar::<f32>()?;
        plain.sync()?;
        Ok(value)
    };

    let mut losses = vec![step()?];
    let first = started.elapsed();
    for _ in 0..flags.warmup.min(flags.steps) {
        losses.push(step()?);
    }
    let mut times = Vec::new();
    for _ in 0..flags.steps {
        let started = Instant::now();
        losses.push(step()?);
        times.push(started.elapsed());
    }
    times.sort();
    let median = times.get(times.len() / 2).map_or(Duration::ZERO, |time| *time);
    let (from, to) = (losses[0], losses[losses.len() - 1]);
    // The time of a step that does not train would mean nothing.
    if !(to.is_finite() && (losses.len() < 20 || to < from)) {
        return Err(format!("the loss went from {from} to {to}").into());
    }
    println!(
        "{{\"adapter\":{:?},\"first_step_s\":{},\"step_ms\":{},\"loss\":[{from},{to}]}}",
        setup.adapter.get_info().name,
        first.as_secs_f64(),
        1e3 * median.as_secs_f64()
    );
    Ok(())
}

/// Returns numbers from -1 to 1 of a multiplicative random number generator.
fn noise(count: usize) -> Vec<f32> {
    let next = |state: &mut u32| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some((*state >> 8) as f32 / (1 << 23) as f32 - 1.0)
    };
    std::iter::repeat_n((), count).scan(0, |state, ()| next(state)).collect()
}
