//! Where elements are, as sums of digits: index arithmetic that is simplified while a kernel is written.
//!
//! Reshapes, permutations and slices put quotients and remainders into each other, such as
//! `(i * 4 + 1) % 784 / 28`. No compiler of a driver knows that `i` counts fours, and a division costs more
//! than a multiply-add. A normal form knows: here it is `i / 7 % 28`.

use std::fmt;
use std::sync::Arc;

/// A natural number that a kernel computes: a sum of digits, each times a factor, and of a number.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Affine {
    /// The digits are sorted, and each is there once.
    terms: Vec<(Digit, usize)>,
    plus: usize,
}

/// A digit of a number: `of / step % size`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Digit {
    of: Base,
    step: usize,
    /// The size of the digit. It is `None` for the leading one.
    size: Option<usize>,
}

/// What a digit is taken from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Base {
    /// A `u32` of the kernel, as text that binds more closely than any operator. It is below the number, if
    /// there is one.
    Name(Arc<str>, Option<usize>),
    /// A sum of which no digit is known.
    Sum(Arc<Affine>),
}

impl Affine {
    pub(super) fn number(plus: usize) -> Self {
        Self { terms: Vec::new(), plus }
    }

    /// Returns a `u32` of the kernel, which is less than `below` if that is known.
    pub(super) fn name(text: impl Into<Arc<str>>, below: Option<usize>) -> Self {
        if below == Some(1) {
            return Self::number(0);
        }
        Self::digit(Digit { of: Base::Name(text.into(), below), step: 1, size: None })
    }

    /// Returns the smaller one of an unsigned number, given as text, and of `most`. The text may wrap around.
    pub(super) fn at_most(text: &str, most: usize) -> Self {
        Self::name(format!("min({text}, {most}u)"), Some(most + 1))
    }

    fn digit(digit: Digit) -> Self {
        Self { terms: vec![(digit, 1)], plus: 0 }
    }

    /// Returns the number if it is the same for all invocations.
    pub(super) fn is_constant(&self) -> bool {
        self.terms.is_empty()
    }

    pub(super) fn plus(mut self, number: usize) -> Self {
        self.plus += number;
        self
    }

    pub(super) fn times(mut self, factor: usize) -> Self {
        if factor == 0 {
            return Self::default();
        }
        self.plus *= factor;
        self.terms.iter_mut().for_each(|(_, own)| *own *= factor);
        self
    }

    pub(super) fn add(mut self, other: Self) -> Self {
        self.plus += other.plus;
        self.terms.extend(other.terms);
        self.normal()
    }

    /// Returns the sum of numbers, each times its stride.
    pub(super) fn dot(numbers: &[Self], strides: &[usize]) -> Self {
        let mut sum = Self::default();
        for (number, &stride) in numbers.iter().zip(strides).filter(|(_, stride)| **stride > 0) {
            sum.plus += number.plus * stride;
            sum.terms.extend(number.terms.iter().map(|(digit, factor)| (digit.clone(), factor * stride)));
        }
        sum.normal()
    }

    /// Returns the number that this one is less than, if one is known.
    fn below(&self) -> Option<usize> {
        let most = |(digit, factor): &(Digit, usize)| Some((digit.below()? - 1) * factor);
        Some(self.terms.iter().map(most).sum::<Option<usize>>()? + self.plus + 1)
    }

    fn is_below(&self, bound: usize) -> bool {
        self.below().is_some_and(|below| below <= bound)
    }

    /// Returns `self / d`, rounded down. `d` is 0 only if there are no elements, and then
    /// nothing uses the index.
    pub(super) fn divided(&self, d: usize) -> Self {
        if d <= 1 {
            return self.clone();
        }
        let (whole, part) = self.clone().split(d);
        let whole = whole.over(d);
        if part.is_below(d) {
            return whole;
        }
        if let Some((h, high, _)) = part.parted(d) {
            return whole.add(high.divided(d / h));
        }
        let quotient = match part.only() {
            // What has digits of its own may have others with this step.
            Some(Digit { of: Base::Sum(sum), step, size: None }) if *step > 1 => sum.divided(step * d),
            Some(Digit { of, step, size: None }) => {
                Self::digit(Digit { of: of.clone(), step: step * d, size: None })
            }
            Some(Digit { of, step, size: Some(size) }) if size.is_multiple_of(d) => {
                Self::of_digit(of, step * d, size / d)
            }
            _ => Self::digit(Digit { of: Base::Sum(Arc::new(part)), step: d, size: None }),
        };
        whole.add(quotient)
    }

    /// Returns `self % d`.
    pub(super) fn remainder(&self, d: usize) -> Self {
        if d <= 1 {
            return Self::default();
        }
        let (_, part) = self.clone().split(d);
        if part.is_below(d) {
            return part;
        }
        if let Some((h, high, low)) = part.parted(d) {
            return high.remainder(d / h).times(h).add(low);
        }
        match part.only() {
            Some(Digit { of, step, size }) if size.is_none_or(|size| size.is_multiple_of(d)) => {
                Self::of_digit(of, *step, d)
            }
            _ => Self::of_digit(&Base::Sum(Arc::new(part)), 1, d),
        }
    }

    /// Returns the digit, without its size if it is the leading one.
    fn of_digit(of: &Base, step: usize, size: usize) -> Self {
        let digit = Digit { of: of.clone(), step, size: None };
        let leads = digit.below().is_some_and(|below| below <= size);
        Self::digit(Digit { size: (!leads).then_some(size), ..digit })
    }

    /// Returns the number by which a `u32` of the kernel is multiplied in this sum, or `None` if quotients or
    /// remainders of it are in it.
    pub(super) fn factor(&self, name: &str) -> Option<usize> {
        let mut factor = 0;
        for (digit, own) in &self.terms {
            match &digit.of {
                Base::Name(text, _) if **text != *name => {}
                Base::Name(..) if digit.step == 1 && digit.size.is_none() => factor += own,
                Base::Sum(sum) if sum.factor(name) == Some(0) => {}
                _ => return None,
            }
        }
        Some(factor)
    }

    /// Returns the number of the vector of `lanes` elements whose element at `lane` this is, if it always is
    /// there.
    pub(super) fn vector(&self, lanes: usize, lane: usize) -> Option<Self> {
        let (whole, part) = self.clone().split(lanes);
        (part == Self::number(lane)).then(|| whole.over(lanes))
    }

    /// Returns a multiple of `d`, and what is left.
    fn split(self, d: usize) -> (Self, Self) {
        let (whole, part) = self.terms.into_iter().partition(|(_, factor)| factor.is_multiple_of(d));
        let rest = self.plus % d;
        (Self { terms: whole, plus: self.plus - rest }, Self { terms: part, plus: rest })
    }

    /// Returns `[h, x, y]` with `self = h * x + y`, where h divides d and y is below h, if there are such.
    fn parted(&self, d: usize) -> Option<(usize, Self, Self)> {
        let mut shared: Vec<usize> = self.terms.iter().map(|(_, factor)| common(*factor, d)).collect();
        shared.sort_unstable_by(|a, b| b.cmp(a));
        shared.into_iter().filter(|&h| h > 1).find_map(|h| {
            let (high, low) = self.clone().split(h);
            low.is_below(h).then(|| (h, high.over(h), low))
        })
    }

    /// Returns the number divided by what divides all of its factors.
    fn over(mut self, d: usize) -> Self {
        self.plus /= d;
        self.terms.iter_mut().for_each(|(_, factor)| *factor /= d);
        self.normal()
    }

    /// Returns the digit that is all there is.
    fn only(&self) -> Option<&Digit> {
        match &self.terms[..] {
            [(digit, 1)] if self.plus == 0 => Some(digit),
            _ => None,
        }
    }

    /// Sorts the digits, and makes one of those that are equal or follow each other.
    fn normal(mut self) -> Self {
        self.terms.sort();
        let mut terms: Vec<(Digit, usize)> = Vec::with_capacity(self.terms.len());
        for (digit, factor) in self.terms {
            match terms.last_mut() {
                Some((known, own)) if *known == digit => *own += factor,
                _ => terms.push((digit, factor)),
            }
        }
        let follows = |(low, f): &(Digit, usize), (high, factor): &(Digit, usize)| {
            low.of == high.of && low.size.is_some_and(|n| low.step * n == high.step && f * n == *factor)
        };
        let pair = |terms: &[(Digit, usize)]| {
            let at = |a: usize| terms.iter().position(|high| follows(&terms[a], high)).map(|b| (a, b));
            (0..terms.len()).find_map(at)
        };
        while let Some((low, high)) = pair(&terms) {
            let size = terms[high].0.size.zip(terms[low].0.size).map(|(a, b)| a * b);
            terms[low].0.size = size;
            terms.remove(high);
        }
        // A sum that has all of its digits again is that sum.
        let is_whole = |(digit, _): &(Digit, usize)| {
            matches!((&digit.of, digit.step, digit.size), (Base::Sum(_), 1, None))
        };
        let Some(at) = terms.iter().position(is_whole) else { return Self { terms, plus: self.plus } };
        let (digit, factor) = terms.remove(at);
        let Base::Sum(sum) = digit.of else { return Self::default() };
        Self { terms, plus: self.plus }.add(Self::clone(&sum).times(factor))
    }

    /// Returns the number as text that binds more closely than any operator.
    pub(super) fn operand(&self) -> String {
        match &self.terms[..] {
            [] => format!("{}u", self.plus),
            [(Digit { of: Base::Name(text, _), step: 1, size: None }, 1)] if self.plus == 0 => {
                text.to_string()
            }
            _ => format!("({self})"),
        }
    }
}

impl Digit {
    fn below(&self) -> Option<usize> {
        let below = match &self.of {
            Base::Name(_, below) => *below,
            Base::Sum(sum) => sum.below(),
        };
        let leading = below.map(|below| below.saturating_sub(1) / self.step + 1);
        [leading, self.size].into_iter().flatten().min()
    }
}

/// Returns the greatest common divisor.
fn common(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common(b, a % b) }
}

impl fmt::Display for Affine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (digit, factor)) in self.terms.iter().enumerate() {
            if i > 0 {
                f.write_str(" + ")?;
            }
            write!(f, "{digit}")?;
            if *factor > 1 {
                write!(f, " * {factor}u")?;
            }
        }
        match (self.terms.is_empty(), self.plus) {
            (true, plus) => write!(f, "{plus}u"),
            (false, 0) => Ok(()),
            (false, plus) => write!(f, " + {plus}u"),
        }
    }
}

impl fmt::Display for Digit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.of {
            Base::Name(text, _) => f.write_str(text)?,
            Base::Sum(sum) => write!(f, "({sum})")?,
        }
        if self.step > 1 {
            write!(f, " / {}u", self.step)?;
        }
        self.size.map_or(Ok(()), |size| write!(f, " % {size}u"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Affine {
        /// Returns the value for the values of names.
        fn value(&self, of: &dyn Fn(&str) -> usize) -> usize {
            let digit = |(digit, factor): &(Digit, usize)| {
                let base = match &digit.of {
                    Base::Name(text, below) => {
                        let value = of(text);
                        assert!(below.is_none_or(|below| value < below));
                        value
                    }
                    Base::Sum(sum) => sum.value(of),
                };
                digit.size.map_or(base / digit.step, |size| base / digit.step % size) * factor
            };
            self.terms.iter().map(digit).sum::<usize>() + self.plus
        }
    }

    fn i() -> Affine {
        Affine::name("i", None)
    }

    #[test]
    fn quotients_and_remainders_of_quotients_and_remainders_are_one() {
        let lane = i().times(4).plus(1);
        let shown = [
            lane.remainder(784).divided(28),
            lane.remainder(16),
            lane.divided(12544),
            lane.remainder(12544).divided(16).remainder(28).divided(2),
            i().remainder(12).remainder(4).add(i().divided(4).times(4)),
            i().divided(28).remainder(2).add(i().divided(56).times(2)).times(28).add(i().remainder(28)),
            Affine::name("r", Some(4)).add(i().times(4)).divided(4),
            Affine::name("r", Some(4)).add(i().times(4)).remainder(2),
            i().plus(1).remainder(3),
        ];
        let shown: Vec<String> = shown.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "i / 7u % 28u",
                "i % 4u * 4u + 1u",
                "i / 3136u",
                "i / 8u % 14u",
                "i",
                "i",
                "i",
                "r % 2u",
                "(i + 1u) % 3u"
            ]
        );
        assert_eq!(i().operand(), "i");
        assert_eq!(lane.operand(), "(i * 4u + 1u)");
        assert_eq!(lane.remainder(16).vector(4, 1), Some(i().remainder(4)));
        assert_eq!([lane.vector(4, 0), lane.remainder(6).vector(4, 1), i().vector(4, 0)], [None, None, None]);
    }

    /// Thousands of sums, products, quotients and remainders of two names have the values of arithmetic.
    #[test]
    fn no_rule_changes_a_value() {
        let mut state = 7u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % below) as usize
        };
        let numbers = [1, 2, 3, 4, 6, 7, 8, 12, 14, 16, 28, 49];
        for _ in 0..4000 {
            let (below, at) = (1 + next(40), next(5000));
            let values = [next(below as u64), at];
            let start = [Affine::name("a", Some(below)), Affine::name("b", None)];
            let mut pool: Vec<(Affine, usize)> = start.into_iter().zip(values).collect();
            for _ in 0..10 {
                let (x, value) = pool[next(pool.len() as u64)].clone();
                let (y, other) = pool[next(pool.len() as u64)].clone();
                let number = numbers[next(12)];
                pool.push(match next(5) {
                    0 => (x.add(y), value + other),
                    1 => (x.plus(number), value + number),
                    2 if value < 100_000 => (x.times(number), value * number),
                    3 => (x.divided(number), value / number),
                    _ => (x.remainder(number), value % number),
                });
            }
            let of = |name: &str| values[usize::from(name == "b")];
            for (form, value) in &pool {
                assert_eq!(form.value(&of), *value, "{form} for {values:?}");
                assert!(form.below().is_none_or(|below| *value < below), "{form} for {values:?}");
            }
        }
    }
}
