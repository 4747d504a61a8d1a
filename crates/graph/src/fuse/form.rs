//! Addresses as sums of digits: where an element of a matrix is in what the matrix is a view of, given its
//! row and column.

use super::regroup;
use crate::values::strides;

/// The variable that a digit of an address is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Variable {
    /// The variable counts the products of a batch.
    Layer,
    /// The variable counts the rows of a, or the columns of b.
    Outer,
    /// The variable counts the steps of the sum.
    Inner,
}

/// A digit of a variable: `variable / step % size`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Digit {
    pub(crate) variable: Variable,
    pub(crate) step: usize,
    /// The size of the digit. It is `None` where there are as many values as samples.
    pub(crate) size: Option<usize>,
    /// Whether the digit is the leading one, which is never larger than its size.
    pub(crate) leads: bool,
}

/// A sum of digits, each times a factor, and of a number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) terms: Vec<(Digit, usize)>,
    pub(crate) plus: i64,
}

/// Returns the coordinates of a variable that goes over all elements of these axes. A coordinate of any
/// number of samples comes first where `samples` is set.
pub(crate) fn axes(variable: Variable, samples: bool, dims: &[usize]) -> Vec<Form> {
    let mut step = 1;
    let mut forms: Vec<Form> = Vec::new();
    for size in dims.iter().rev().copied().map(Some).chain(samples.then_some(None)) {
        let digit = Digit { variable, step, size, leads: false };
        step *= size.unwrap_or(1);
        forms.push(if size == Some(1) { Form::default() } else { Form { terms: vec![(digit, 1)], plus: 0 } });
    }
    // The first digit that is there leads.
    if let Some((digit, _)) = forms.iter_mut().rev().find_map(|form| form.terms.first_mut()) {
        digit.leads = true;
    }
    forms.reverse();
    forms
}

impl Form {
    pub(crate) fn scaled(&self, factor: usize) -> Self {
        let terms = self.terms.iter().map(|(digit, f)| (digit.clone(), f * factor)).collect();
        Self { terms, plus: self.plus * factor as i64 }
    }

    pub(crate) fn add(mut self, other: Self) -> Self {
        self.terms.extend(other.terms);
        self.plus += other.plus;
        self
    }

    pub(crate) fn shifted(mut self, plus: i64) -> Self {
        self.plus += plus;
        self
    }

    /// Returns coordinates as one, each times its stride.
    pub(crate) fn dot(coords: &[Self], strides: &[usize]) -> Self {
        coords.iter().zip(strides).fold(Self::default(), |sum, (c, &s)| sum.add(c.scaled(s)))
    }

    /// Returns `[self / d, self % d]`, if each is a sum of digits.
    fn divided(self, d: usize) -> Option<[Self; 2]> {
        let mut parts = [Self::default(), Self::default()];
        let plus = usize::try_from(self.plus).ok()?;
        (parts[0].plus, parts[1].plus) = ((plus / d) as i64, (plus % d) as i64);
        let mut largest = plus % d;
        for (digit, factor) in self.terms {
            let size = digit.size?;
            if factor.is_multiple_of(d) {
                parts[0].terms.push((digit, factor / d));
                continue;
            }
            let below = d.is_multiple_of(factor).then_some(d / factor)?;
            if size > below {
                if !digit.leads && !size.is_multiple_of(below) {
                    return None;
                }
                let high =
                    Digit { step: digit.step * below, size: Some(size.div_ceil(below)), ..digit.clone() };
                parts[0].terms.push((high, 1));
            }
            let low = Digit { size: Some(size.min(below)), leads: digit.leads && size <= below, ..digit };
            largest += (size.min(below) - 1) * factor;
            parts[1].terms.push((low, factor));
        }
        (largest < d).then_some(parts)
    }

    /// Returns the form with digits that follow each other in the variable as one digit.
    pub(crate) fn merged(mut self) -> Self {
        self.terms.sort_by_key(|(digit, factor)| (digit.variable, digit.step, *factor));
        let mut terms: Vec<(Digit, usize)> = Vec::new();
        for (digit, factor) in self.terms {
            match terms.last_mut() {
                Some((low, f))
                    if low.variable == digit.variable
                        && low
                            .size
                            .is_some_and(|size| low.step * size == digit.step && *f * size == factor) =>
                {
                    low.size = low.size.zip(digit.size).map(|(a, b)| a * b);
                    low.leads = digit.leads;
                }
                _ => terms.push((digit, factor)),
            }
        }
        Self { terms, plus: self.plus }
    }

    /// Returns the part with the digits of some variables, without the number.
    pub(crate) fn of(&self, variables: &[Variable]) -> Self {
        let own = |(digit, _): &&(Digit, usize)| variables.contains(&digit.variable);
        Self { terms: self.terms.iter().filter(own).cloned().collect(), plus: 0 }
    }

    /// Returns whether four elements from a multiple of four on, counted by `variable`, lie side by side at a
    /// multiple of four.
    pub(crate) fn comes_in_fours(&self, variable: Variable) -> bool {
        let unit = |(digit, factor): &(Digit, usize)| {
            digit.variable == variable
                && (digit.step, *factor) == (1, 1)
                && digit.size.is_some_and(|size| size.is_multiple_of(4))
        };
        let apart = |(digit, factor): &(Digit, usize)| {
            factor.is_multiple_of(4) && (digit.variable != variable || digit.step.is_multiple_of(4))
        };
        self.plus % 4 == 0
            && self.terms.iter().filter(|term| unit(term)).count() == 1
            && self.terms.iter().all(|term| unit(term) || apart(term))
    }
}

/// Returns the coordinates of the same element under other axes, if they are sums of digits.
pub(crate) fn regrouped(coords: &[Form], to: &[usize], from: &[usize]) -> Option<Vec<Form>> {
    regroup::regrouped(coords, to, from, &Form::default(), |group| {
        let mut high = Form::dot(group.coords, &strides(group.to)).merged();
        let mut found = Vec::new();
        for &d in group.from[1..].iter().rev() {
            let [rest, low] = high.divided(d)?;
            found.push(low);
            high = rest;
        }
        found.push(high);
        found.reverse();
        Some(found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a form for one of its variable.
    fn value(form: &Form, at: usize) -> usize {
        let digit = |(d, factor): &(Digit, usize)| {
            let digit = at / d.step;
            factor * if d.leads { digit } else { d.size.map_or(digit, |size| digit % size) }
        };
        form.plus as usize + form.terms.iter().map(digit).sum::<usize>()
    }

    fn linear(form: &[Form], dims: &[usize], at: usize) -> usize {
        form.iter().zip(strides(dims)).map(|(form, step)| value(form, at) * step).sum()
    }

    #[test]
    fn other_axes_have_the_same_elements_in_the_same_order() {
        for (to, from) in [
            (&[6, 4][..], &[6, 2, 2][..]),
            (&[24], &[3, 1, 8]),
            (&[4, 6], &[8, 3]),
            (&[2, 3, 4], &[24, 1]),
            (&[5, 1, 9, 2], &[15, 6]),
        ] {
            let own = regrouped(&axes(Variable::Inner, false, to), to, from).unwrap();
            let count: usize = to.iter().product();
            assert!((0..count).all(|at| linear(&own, from, at) == at), "{to:?} to {from:?}: {own:?}");
            let below = |(form, d): (&Form, &usize)| (0..count).all(|at| value(form, at) < *d);
            assert!(own.iter().zip(from).all(below), "{to:?} to {from:?}: {own:?}");
        }
    }

    #[test]
    fn what_is_no_sum_of_digits_is_refused() {
        let moved: Vec<Form> = axes(Variable::Inner, false, &[4, 6]).into_iter().rev().collect();
        assert!(regrouped(&moved, &[6, 4], &[24]).is_some());
        assert!(regrouped(&moved, &[6, 4], &[3, 8]).is_some());
        assert_eq!(regrouped(&moved, &[6, 4], &[8, 3]), None, "thirds of four");
    }

    #[test]
    fn digits_are_one_again_and_come_in_fours() {
        let pixels = axes(Variable::Outer, true, &[8, 4]);
        let address = Form::dot(&pixels, &[96, 4, 1]).merged();
        let digit = |step, size, leads| Digit { variable: Variable::Outer, step, size, leads };
        assert_eq!(address.terms, [(digit(1, Some(32), false), 1), (digit(32, None, true), 96)]);
        assert!(address.comes_in_fours(Variable::Outer));
        assert!(!address.comes_in_fours(Variable::Inner));
        assert!(!address.shifted(1).comes_in_fours(Variable::Outer));
        assert!(!Form::dot(&axes(Variable::Outer, true, &[7]), &[7, 1]).comes_in_fours(Variable::Outer));
    }
}
