//! The discrete Fourier transform of real values, in f64.

use std::f64::consts::TAU;

/// A transform of one length: by halves while the length is even, and directly for what is left.
pub(super) struct Fourier {
    length: usize,
    /// e^(-2 pi i k / length) for each k, as real and imaginary part.
    turns: Vec<[f64; 2]>,
}

impl Fourier {
    pub fn new(length: usize) -> Self {
        let turn = |k: usize| {
            let angle = TAU * k as f64 / length as f64;
            [libm::cos(angle), -libm::sin(angle)]
        };
        Self { length, turns: (0..length).map(turn).collect() }
    }

    /// Returns real and imaginary part of each frequency: sum over t of values\[t\] e^(-2 pi i k t / length).
    pub fn transform(&self, values: &[f64]) -> Vec<[f64; 2]> {
        self.part(values, 0, 1, self.length)
    }

    /// Transforms the `count` values from `first` on, one of `step`.
    fn part(&self, values: &[f64], first: usize, step: usize, count: usize) -> Vec<[f64; 2]> {
        let turn = |k: usize| self.turns[k * step % self.length];
        if !count.is_multiple_of(2) {
            let frequency = |k: usize| {
                (0..count).fold([0.0, 0.0], |[re, im], t| {
                    let (value, [cosine, sine]) = (values[first + t * step], turn(k * t % count));
                    [re + value * cosine, im + value * sine]
                })
            };
            return (0..count).map(frequency).collect();
        }
        let half = count / 2;
        let even = self.part(values, first, 2 * step, half);
        let odd = self.part(values, first + step, 2 * step, half);
        let mut all = vec![[0.0, 0.0]; count];
        for k in 0..half {
            let ([re, im], [cosine, sine]) = (odd[k], turn(k));
            let turned = [re * cosine - im * sine, re * sine + im * cosine];
            all[k] = [even[k][0] + turned[0], even[k][1] + turned[1]];
            all[k + half] = [even[k][0] - turned[0], even[k][1] - turned[1]];
        }
        all
    }
}
