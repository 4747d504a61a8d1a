//! Discrete Fourier transforms in a model, as products with matrices of cosines and sines. Their gradients
//! are products too.

use std::f32::consts::TAU;

use unisono_graph::Var;
use unisono_graph::ops::{Iota, Window};

/// The longest transform: whole numbers up to its square are exact in f32.
const MOST: usize = 4096;

/// Computes the Fourier transform of real numbers along the last axis (PyTorch's `fft.rfft`): `[..., n]` to
/// the real and the imaginary part of the frequencies 0 to n / 2, `[..., n / 2 + 1]` each.
///
/// It is a product with a matrix, so it takes n (n / 2 + 1) multiplications for each part, for any n. Errors:
/// n is 0 or above 4,096, or x is not of f32.
///
/// ```
/// use unisono::functional::rfft;
/// use unisono::{Dense, FromFn, Sequential, Var};
///
/// let loudness = FromFn::new("loudness", |_, x: &Var| {
///     let (real, imaginary) = rfft(x);
///     (real.square() + imaginary.square() + 1e-6).log()
/// });
/// let model = Sequential::new().add(loudness).add(Dense::new(10));
/// ```
#[doc(alias("fft", "dft"))]
pub fn rfft(x: &Var) -> (Var, Var) {
    let Some(n) = length("rfft", x) else { return (x.clone(), x.clone()) };
    let [cos, sin] = waves(x, n, n / 2 + 1);
    (product(x, &cos), -product(x, &sin))
}

/// Computes the Fourier transform of complex numbers along the last axis (PyTorch's `fft.fft`), from real and
/// imaginary parts to real and imaginary parts, `[..., n]` each. Errors: those of [`rfft`], or the two parts
/// have not one shape.
pub fn fft(real: &Var, imaginary: &Var) -> (Var, Var) {
    let Some(n) = same("fft", real, imaginary) else { return (real.clone(), imaginary.clone()) };
    let [cos, sin] = waves(real, n, n);
    let re = product(real, &cos) + product(imaginary, &sin);
    (re, product(imaginary, &cos) - product(real, &sin))
}

/// Computes the inverse of [`fft`] (PyTorch's `fft.ifft`). Errors: those of [`fft`].
pub fn ifft(real: &Var, imaginary: &Var) -> (Var, Var) {
    let Some(n) = same("ifft", real, imaginary) else { return (real.clone(), imaginary.clone()) };
    let [cos, sin] = waves(real, n, n);
    let re = product(real, &cos) - product(imaginary, &sin);
    let im = product(imaginary, &cos) + product(real, &sin);
    (re * (1.0 / n as f32), im * (1.0 / n as f32))
}

/// Computes the inverse of [`rfft`] (PyTorch's `fft.irfft`): the n real numbers with these frequencies 0 to
/// n / 2, `[..., n / 2 + 1]` to `[..., n]`. Errors: those of [`fft`], or there are not n / 2 + 1 frequencies.
pub fn irfft(real: &Var, imaginary: &Var, n: usize) -> Var {
    let Some(frequencies) = same("irfft", real, imaginary) else { return real.clone() };
    if !(1..=MOST).contains(&n) || frequencies != n / 2 + 1 {
        let problem = format!("{} frequencies are not those of {n} numbers, up to {MOST}", real.ty());
        real.tape().fail_here("irfft", problem);
        return real.clone();
    }
    // Each frequency but the first, and the last of an even number, stands for two.
    let [cos, sin] = waves(real, n, frequencies);
    let number = |x: f32| real.tape().constant(x);
    let at = count(real, &[frequencies], 0);
    let once = at.eq_mask(&number(0.0)).maximum(&at.eq_mask(&number(n as f32 / 2.0)));
    let times = (2.0 - once) * (1.0 / n as f32);
    // [n, frequencies], whose rows are the numbers.
    let back = |wave: &Var| wave.permute(&[1, 0]);
    product(&(real * &times), &back(&cos)) - product(&(imaginary * &times), &back(&sin))
}

/// Computes the short-time Fourier transform along the last axis (PyTorch's `stft` with `center=False` and
/// `onesided=True`, whose last two axes are exchanged): `[..., time]` to the real and the imaginary part,
/// `[..., frames, length / 2 + 1]` each. Frames have the length of `window`, `[length]`, by which they are
/// multiplied, and begin `hop` numbers apart.
///
/// Errors: those of [`rfft`], the window is no vector, no frame fits, or `hop` is 0.
pub fn stft(x: &Var, window: &Var, hop: usize) -> (Var, Var) {
    let fail = |problem: String| {
        x.tape().fail_here("stft", problem);
        (x.clone(), x.clone())
    };
    let (Some((&time, rest)), &[length]) = (x.dims().split_last(), window.dims()) else {
        return fail(format!("frames of {} for a window {}", x.ty(), window.ty()));
    };
    let along = Window { stride: [1, hop], ..Window::new([1, length]) };
    let frames = match along.count([1, time]) {
        Ok([_, frames]) => frames,
        Err(_) => return fail(format!("no frames of {length} numbers, {hop} apart, in {}", x.ty())),
    };
    let row = x.reshape(&[rest, &[1, time]].concat());
    let each = row.windows(&along, 0.0).reshape(&[rest, &[frames, length]].concat());
    rfft(&(each * window))
}

/// Returns the length of the last axis, or reports that it cannot be transformed.
fn length(op: &str, x: &Var) -> Option<usize> {
    let n = x.dims().last().copied().unwrap_or_default();
    let fits = (1..=MOST).contains(&n);
    if !fits {
        x.tape().fail_here(op, format!("the last axis of {} is not from 1 to {MOST}", x.ty()));
    }
    fits.then_some(n)
}

/// Returns the length of the last axis of two parts, or reports that they do not fit.
fn same(op: &str, real: &Var, imaginary: &Var) -> Option<usize> {
    if real.ty() != imaginary.ty() {
        let problem = format!("the real part is {}, the imaginary part {}", real.ty(), imaginary.ty());
        real.tape().fail_here(op, problem);
        return None;
    }
    length(op, real)
}

/// Returns the places along an axis of an array of this shape.
fn count(x: &Var, dims: &[usize], axis: usize) -> Var {
    x.tape().apply(Iota { dims: dims.to_vec(), axis }, &[]).to_f32()
}

/// Returns cos and sin of 2 pi j k / n for the frequencies k and the places j, `[frequencies, n]`.
fn waves(x: &Var, n: usize, frequencies: usize) -> [Var; 2] {
    let dims = [frequencies, n];
    let turns = count(x, &dims, 0) * count(x, &dims, 1);
    // The part of a turn, exactly: whole turns are taken off before anything is rounded.
    let whole = ((&turns + 0.5) * (1.0 / n as f32)).floor();
    let rest = turns - whole * n as f32;
    let angle = rest * (TAU / n as f32);
    [angle.cos(), angle.sin()]
}

/// Returns the products of rows `[..., n]` with waves `[frequencies, n]`: `[..., frequencies]`.
fn product(x: &Var, waves: &Var) -> Var {
    let (rows, n) = (x.ty().count() / x.dims().last().copied().unwrap_or(1).max(1), waves.dims()[1]);
    let rest = &x.dims()[..x.dims().len().saturating_sub(1)];
    let y = x.reshape(&[rows, n]).matmul_t(waves);
    y.reshape(&[rest, &waves.dims()[..1]].concat())
}
