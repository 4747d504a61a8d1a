//! Histograms of values, in buckets of equal width.

/// A histogram, as TensorBoard keeps it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    /// The smallest finite value.
    pub min: f64,
    /// The largest finite value.
    pub max: f64,
    /// The number of finite values.
    pub count: f64,
    /// The sum of the finite values.
    pub sum: f64,
    /// The sum of their squares.
    pub squares: f64,
    /// The upper end of each bucket.
    pub limits: Vec<f64>,
    /// The number of values in each bucket.
    pub counts: Vec<f64>,
}

/// The number of buckets.
const BUCKETS: usize = 64;

impl Histogram {
    /// Counts values in buckets of equal width between the smallest and the largest. Values that are not
    /// finite are left out.
    pub fn of(values: &[f32]) -> Self {
        let finite = || values.iter().filter(|value| value.is_finite()).map(|&value| f64::from(value));
        let count = finite().count();
        if count == 0 {
            return Self { limits: vec![0.0], counts: vec![0.0], ..Self::default() };
        }
        let (min, max) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
        let buckets = if min < max { BUCKETS } else { 1 };
        let width = (max - min) / buckets as f64;
        let mut limits: Vec<f64> = (1..=buckets).map(|i| min + width * i as f64).collect();
        // A reader takes the last bucket to end with the largest value.
        limits[buckets - 1] = max;
        let mut counts = vec![0.0; buckets];
        for value in finite() {
            // Of a division by 0 there is only one bucket.
            counts[(((value - min) / width) as usize).min(buckets - 1)] += 1.0;
        }
        let (sum, squares) = (finite().sum(), finite().map(|value| value * value).sum());
        Self { min, max, count: count as f64, sum, squares, limits, counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_value_is_in_one_bucket() {
        let mut values: Vec<f32> = (0..640).map(|i| i as f32 - 320.0).collect();
        values.extend([f32::NAN, f32::INFINITY]);
        let histogram = Histogram::of(&values);
        assert_eq!((histogram.min, histogram.max, histogram.count), (-320.0, 319.0, 640.0));
        assert_eq!((histogram.sum, histogram.counts.iter().sum::<f64>()), (-320.0, 640.0));
        assert_eq!(histogram.limits.last(), Some(&319.0));
        assert!(histogram.limits.is_sorted() && histogram.counts.iter().all(|&count| count > 8.0));
        assert_eq!(Histogram::of(&[2.0; 3]).counts, [3.0]);
        assert_eq!(Histogram::of(&[f32::NAN]).count, 0.0);
    }
}
