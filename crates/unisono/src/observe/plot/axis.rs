//! Axes: which numbers stand at them, and where a value is in pixels.

/// About how many ticks an axis has.
const TICKS: f64 = 5.0;

/// An axis from a smallest to a largest value.
pub(super) struct Axis {
    low: f64,
    high: f64,
    /// The distance of two ticks: 1, 2 or 5 times a power of ten.
    step: f64,
    /// The pixel of the smallest value.
    from: f64,
    /// The pixel of the largest value.
    to: f64,
}

impl Axis {
    /// Creates an axis that has all finite values, between two ticks.
    pub fn of_values(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        // No larger number has room for the ticks around it.
        let shown = values.filter(|value| value.is_finite()).map(|value| value.clamp(-1e300, 1e300));
        let bounds = shown.fold(None, |bounds, value| {
            let (low, high): (f64, f64) = bounds.unwrap_or((value, value));
            Some((low.min(value), high.max(value)))
        });
        let (mut low, mut high) = bounds.unwrap_or((0.0, 1.0));
        // A difference that the ticks' labels would not show is none.
        if high - low <= 1e-9 * low.abs().max(high.abs()) {
            let around = if low == 0.0 { 1.0 } else { 0.1 * low.abs() };
            (low, high) = (low - around, high + around);
        }
        let step = nice((high - low) / TICKS);
        Self { low: (low / step).floor() * step, high: (high / step).ceil() * step, step, from, to }
    }

    /// Creates an axis of epochs, from 1 on.
    pub fn of_epochs(epochs: usize, from: f64, to: f64) -> Self {
        let high = epochs.max(2) as f64;
        Self { low: 1.0, high, step: nice(high / (2.0 * TICKS)).max(1.0), from, to }
    }

    /// Returns where a value is.
    pub fn pixel(&self, value: f64) -> f64 {
        let share = (value - self.low) / (self.high - self.low);
        self.from + share * (self.to - self.from)
    }

    /// Returns the values of the ticks, each with its label.
    pub fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        let first = (self.low / self.step).ceil();
        let count = ((self.high / self.step).floor() - first) as usize;
        (0..=count).map(move |i| (first + i as f64) * self.step).map(|value| (value, self.label(value)))
    }

    /// Returns the label of a tick, with as many places as the ticks' distance has.
    fn label(&self, value: f64) -> String {
        let largest = self.low.abs().max(self.high.abs());
        if largest >= 1e6 || self.step < 1e-5 {
            // Digits up to those of the ticks' distance.
            let digits = (largest.log10().floor() - self.step.log10().floor()).clamp(0.0, 15.0) as usize;
            return format!("{value:.digits$e}");
        }
        let places = (-self.step.log10().floor()).max(0.0) as usize;
        format!("{value:.places$}")
    }
}

/// Returns the smallest of 1, 2 and 5 times powers of ten that is not smaller than `least`.
fn nice(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= least * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: &[f64]) -> Vec<String> {
        Axis::of_values(values.iter().copied(), 200.0, 0.0).ticks().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_numbers_around_all_values() {
        assert_eq!(labels(&[0.03, 0.97]), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&[-3.0, 12.0, f64::NAN]), ["-5", "0", "5", "10", "15"]);
        assert_eq!(labels(&[0.971, 0.979]), ["0.970", "0.972", "0.974", "0.976", "0.978", "0.980"]);
        assert_eq!(labels(&[2e7, 3e7]), ["2.0e7", "2.2e7", "2.4e7", "2.6e7", "2.8e7", "3.0e7"]);
        assert_eq!(labels(&[2.0]), ["1.8", "1.9", "2.0", "2.1", "2.2"]);
        assert!(labels(&[]).len() > 4 && labels(&[0.0]).len() > 4);
    }

    #[test]
    fn epochs_are_whole_numbers() {
        let ticks = |epochs| Axis::of_epochs(epochs, 0.0, 100.0).ticks().map(|(_, l)| l).collect::<Vec<_>>();
        assert_eq!(ticks(3), ["1", "2", "3"]);
        assert_eq!(ticks(20), ["2", "4", "6", "8", "10", "12", "14", "16", "18", "20"]);
        assert_eq!(ticks(1000).last().map(String::as_str), Some("1000"));
        assert_eq!(Axis::of_epochs(11, 0.0, 100.0).pixel(6.0), 50.0);
    }
}
