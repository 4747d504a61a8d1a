//! Values from words, and the reader that draws words in sequence.

use crate::{Stream, normal, stream};

/// Returns a uniform value in [0, 1): the word's high 24 bits over 2^24, so that every value is exact.
pub const fn unit_f32(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Returns a uniform value in [lo, hi), computed in f64 and rounded once. Where rounding would give `hi`, it
/// is the value below `hi`.
///
/// With `lo >= hi` (or a bound that is not a number) it is `lo`.
pub fn uniform(word: u32, lo: f32, hi: f32) -> f32 {
    if !matches!(lo.partial_cmp(&hi), Some(std::cmp::Ordering::Less)) {
        return lo;
    }
    let (low, high) = (f64::from(lo), f64::from(hi));
    let value = (low + (high - low) * (f64::from(word) / 4_294_967_296.0)) as f32;
    if value < hi { value } else { hi.next_down() }
}

/// Returns a uniform integer in [0, n): the high half of `word * n`. For n = 0 it is 0.
///
/// It is not exactly uniform: the probabilities of two results differ by at most 2^-32, which is n / 2^32 in
/// relation to 1 / n. For the small n of sample transforms no run could observe that, and it always takes
/// exactly one word.
pub const fn below(word: u32, n: u32) -> u32 {
    ((word as u64 * n as u64) >> 32) as u32
}

/// Reads the elements of one position one after another. Each method takes exactly one word.
///
/// This is what a sample's transform draws from: the same sample at the same position of the same epoch
/// always sees the same sequence, whichever thread runs it.
///
/// ```
/// use unisono_random::{Draws, Stream, stream};
///
/// let crop = Stream::new(42, stream("map", "crop"));
/// let mut draws = Draws::new(crop, 0, 17);
/// let (left, flip) = (draws.below(8), draws.chance(0.5));
/// let mut again = Draws::new(crop, 0, 17);
/// assert_eq!((left, flip), (again.below(8), again.chance(0.5)));
/// ```
#[derive(Clone, Debug)]
pub struct Draws {
    stream: Stream,
    epoch: u32,
    position: u64,
    /// The element that the next draw takes.
    element: u64,
    /// The block that `element` lies in, once it has been entered.
    block: [u32; 4],
}

impl Draws {
    /// Returns the draws of a stream at an epoch and a position, from element 0.
    pub const fn new(stream: Stream, epoch: u32, position: u64) -> Self {
        Self { stream, epoch, position, element: 0, block: [0; 4] }
    }

    /// Returns the draws of a purpose and a path: `Draws::new(Stream::new(seed, stream(purpose, path)),
    /// ...)`.
    pub const fn of(seed: u64, purpose: &str, path: &str, epoch: u32, position: u64) -> Self {
        Self::new(Stream::new(seed, stream(purpose, path)), epoch, position)
    }

    /// Returns the number of words drawn, which is the element that the next draw takes.
    pub const fn taken(&self) -> u64 {
        self.element
    }

    /// Returns the next word.
    pub const fn next_u32(&mut self) -> u32 {
        let lane = (self.element % 4) as usize;
        if lane == 0 {
            self.block = self.stream.block(self.epoch, self.position, (self.element / 4) as u32);
        }
        self.element += 1;
        self.block[lane]
    }

    /// Returns a uniform value in [0, 1), see [`unit_f32`].
    pub const fn next_f32(&mut self) -> f32 {
        unit_f32(self.next_u32())
    }

    /// Returns a uniform value in [lo, hi), see [`uniform`].
    pub fn range(&mut self, lo: f32, hi: f32) -> f32 {
        uniform(self.next_u32(), lo, hi)
    }

    /// Returns a uniform integer in [0, n), see [`below`].
    pub const fn below(&mut self, n: u32) -> u32 {
        below(self.next_u32(), n)
    }

    /// Returns true with probability `p`, to 24 bits.
    pub const fn chance(&mut self, p: f32) -> bool {
        self.next_f32() < p
    }

    /// Returns a standard normal value, see [`normal`](crate::normal()).
    pub fn normal(&mut self) -> f32 {
        normal(self.next_u32())
    }
}

/// Gives the words one after another, without end.
impl Iterator for Draws {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        Some(self.next_u32())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_is_below_one_and_exact() {
        assert_eq!(unit_f32(0), 0.0);
        assert_eq!(unit_f32(u32::MAX), 1.0 - 1.0 / 16_777_216.0);
        assert_eq!(unit_f32(1 << 31), 0.5);
    }

    #[test]
    fn uniform_stays_in_its_half_open_range() {
        for (lo, hi) in
            [(-1.0, 1.0), (1.0, 1.0f32.next_up()), (-f32::MAX, f32::MAX), (0.0, f32::MIN_POSITIVE)]
        {
            for word in [0, 1, 1 << 31, u32::MAX - 1, u32::MAX] {
                let value = uniform(word, lo, hi);
                assert!(lo <= value && value < hi, "{value} in [{lo}, {hi})");
            }
        }
        assert_eq!(uniform(5, 2.0, 2.0), 2.0);
        assert_eq!(uniform(5, 2.0, f32::NAN), 2.0);
    }

    #[test]
    fn below_covers_its_range() {
        assert_eq!(below(u32::MAX, 0), 0);
        assert_eq!(below(u32::MAX, 10), 9);
        assert_eq!(below(0, 10), 0);
        let mut counts = [0u32; 10];
        Draws::of(1, "test", "below", 0, 0)
            .take(100_000)
            .for_each(|word| counts[below(word, 10) as usize] += 1);
        assert!(counts.iter().all(|&count| count.abs_diff(10_000) < 400), "{counts:?}");
    }

    #[test]
    fn the_reader_follows_the_layout() {
        let stream = Stream::new(9, stream("map", "jitter"));
        let mut draws = Draws::new(stream, 2, 5);
        for element in 0..23 {
            assert_eq!(draws.taken(), element);
            assert_eq!(draws.next_u32(), stream.word(2, 5, element));
        }
    }

    #[test]
    fn neighbours_share_nothing() {
        let words = |epoch, position| Draws::of(1, "map", "a", epoch, position).take(8).collect::<Vec<_>>();
        assert_ne!(words(0, 0), words(0, 1));
        assert_ne!(words(0, 1), words(1, 0));
        assert_ne!(words(0, 0), words(0, 1 << 32));
    }
}
