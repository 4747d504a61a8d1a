//! Einstein's sums, written with other ops.

use crate::trace::{Tape, Var};
use crate::values::Lead;

/// A value with a letter for each of its axes, those of the batch excepted.
#[derive(Clone)]
struct Term {
    var: Var,
    letters: Vec<char>,
}

impl Tape {
    /// Returns the sum of products that an equation such as `"bij,bjk->bik"` names (PyTorch's and NumPy's
    /// `einsum`).
    ///
    /// Each operand has a letter for each of its axes. A value with samples has one for its batch too, the
    /// first, which is the same in all values with samples and the first of the result. Letters that are not
    /// behind the arrow are summed over. A letter that one operand has twice means its diagonal. Spaces do
    /// not count.
    ///
    /// The order of the arithmetic is fixed: operands are multiplied from left to right. A letter that
    /// neither the result nor a later operand has is summed over in the product of the first two operands
    /// that have it, which is a [`Var::matmul`], or before that in the only one that has it.
    ///
    /// Errors: the equation has no arrow, an ellipsis or anything but letters and commas; operands and
    /// letters do not fit; a letter has two lengths; the batch would be summed over.
    ///
    /// ```
    /// use unisono_graph::{Tape, Type};
    ///
    /// let tape = Tape::new();
    /// let [q, k] = ["q", "k"].map(|name| tape.input(name, Type::sample(&[2, 7, 8])));
    /// assert_eq!(tape.einsum("bhqd,bhkd->bhqk", &[&q, &k]).dims(), [2, 7, 7]);
    /// ```
    pub fn einsum(&self, equation: &str, operands: &[&Var]) -> Var {
        match parsed(equation, operands).and_then(|(terms, to)| product_of(terms, &to)) {
            Ok(y) => y,
            Err(problem) => {
                self.fail_here("einsum", format!("{equation:?}: {problem}"));
                self.constant(0.0)
            }
        }
    }
}

/// Returns the operands with their letters, without repeated ones, and the letters of the result.
fn parsed(equation: &str, operands: &[&Var]) -> Result<(Vec<Term>, Vec<char>), String> {
    let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (from, to) = equation.split_once("->").ok_or("there is no ->")?;
    if let Some(other) = from.chars().chain(to.chars()).find(|c| !c.is_ascii_alphabetic() && *c != ',') {
        return Err(format!("{other:?} is no letter"));
    }
    let parts: Vec<Vec<char>> = from.split(',').map(|part| part.chars().collect()).collect();
    if parts.len() != operands.len() {
        return Err(format!("it is of {} operands, and there are {}", parts.len(), operands.len()));
    }
    let mut to: Vec<char> = to.chars().collect();
    if let Some(letter) = to.iter().enumerate().find(|(at, letter)| to[..*at].contains(letter)) {
        return Err(format!("the result has {} twice", letter.1));
    }
    let batch = batch_letter(&parts, operands)?;
    if let Some(batch) = batch {
        if to.first() != Some(&batch) {
            return Err(format!("{batch} is the batch: it is the first of the result"));
        }
        to.remove(0);
    }
    if let Some(letter) = to.iter().find(|letter| !parts.iter().flatten().any(|other| other == *letter)) {
        return Err(format!("no operand has {letter}"));
    }
    let mut lengths: Vec<(char, usize)> = Vec::new();
    let mut terms = Vec::with_capacity(operands.len());
    for (var, mut letters) in operands.iter().zip(parts) {
        if var.ty().lead == Lead::Sample {
            letters.remove(0);
        }
        if let Some(batch) = batch.filter(|batch| letters.contains(batch)) {
            return Err(format!("{batch} is the batch, which {} has not as another axis", var.ty()));
        }
        if letters.len() != var.dims().len() {
            return Err(format!("{} axes have {} letters: {}", var.dims().len(), letters.len(), var.ty()));
        }
        for (letter, &length) in letters.iter().zip(var.dims()) {
            match lengths.iter().find(|(other, _)| other == letter) {
                Some((_, other)) if *other != length => {
                    return Err(format!("{letter} is {other} and {length}"));
                }
                Some(_) => {}
                None => lengths.push((*letter, length)),
            }
        }
        terms.push(diagonal(Term { var: (*var).clone(), letters }));
    }
    Ok((terms, to))
}

/// Returns the letter of the batch, if there are values with samples.
fn batch_letter(parts: &[Vec<char>], operands: &[&Var]) -> Result<Option<char>, String> {
    let mut batch = None;
    for (var, letters) in operands.iter().zip(parts) {
        let first = letters.first().copied();
        match var.ty().lead {
            Lead::Global => {}
            Lead::Shard => return Err(format!("{} has an entry for each shard", var.ty())),
            Lead::Sample if first.is_some() && (batch.is_none() || batch == first) => batch = first,
            Lead::Sample => return Err("the first letter of values with samples is their batch".into()),
        }
    }
    Ok(batch)
}

/// Returns the diagonal along the letters that a term has twice.
fn diagonal(mut term: Term) -> Term {
    let twice = |letters: &[char]| {
        let pairs = (0..letters.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
        pairs.into_iter().find(|&(a, b)| letters[a] == letters[b])
    };
    while let Some((a, b)) = twice(&term.letters) {
        let letter = term.letters[a];
        let others: Vec<usize> = (0..term.letters.len()).filter(|&axis| axis != a && axis != b).collect();
        let dims: Vec<usize> = others.iter().map(|&axis| term.var.dims()[axis]).collect();
        let n = term.var.dims()[a];
        let flat =
            term.var.permute(&[&others[..], &[a, b]].concat()).reshape(&[&dims[..], &[n * n]].concat());
        // Element (i, i) is the first of row i, if rows are longer by one.
        let (before, mut after) = (vec![0; dims.len() + 1], vec![0; dims.len() + 1]);
        after[dims.len()] = n;
        let rows = flat.pad(&before, &after).reshape(&[&dims[..], &[n, n + 1]].concat());
        term.var = rows.slice(-1, 0..1).reshape(&[&dims[..], &[n]].concat());
        term.letters = others.iter().map(|&axis| term.letters[axis]).chain([letter]).collect();
    }
    term
}

/// Multiplies all terms, and brings the result's axes into their order.
fn product_of(terms: Vec<Term>, to: &[char]) -> Result<Var, String> {
    let mut rest = terms.into_iter();
    let mut y = rest.next().ok_or("there are no operands")?;
    while let Some(next) = rest.next() {
        let later: Vec<char> = rest.as_slice().iter().flat_map(|term| term.letters.clone()).collect();
        let needed = |letter: &char| to.contains(letter) || later.contains(letter);
        y = product(y, next, needed);
    }
    y = summed(y, |letter| to.contains(letter));
    let place = |letter: &char| y.letters.iter().position(|other| other == letter);
    let order = to.iter().map(place).collect::<Option<Vec<usize>>>().ok_or("a letter was lost")?;
    Ok(if order.iter().copied().eq(0..order.len()) { y.var } else { y.var.permute(&order) })
}

/// Sums a term over the letters that are not needed.
fn summed(term: Term, needed: impl Fn(&char) -> bool) -> Term {
    let axes: Vec<isize> =
        (0..term.letters.len()).filter(|&at| !needed(&term.letters[at])).map(|at| at as isize).collect();
    if axes.is_empty() {
        return term;
    }
    let count = term.letters.len() as isize;
    let from_last: Vec<isize> = axes.iter().map(|at| at - count).collect();
    Term { var: term.var.sum(&from_last), letters: term.letters.into_iter().filter(&needed).collect() }
}

/// Multiplies two terms, and sums over the letters of both that are not needed.
fn product(a: Term, b: Term, needed: impl Fn(&char) -> bool) -> Term {
    let a = summed(a, |letter| needed(letter) || b.letters.contains(letter));
    let b = summed(b, |letter| needed(letter) || a.letters.contains(letter));
    // A value with samples is the left operand.
    let (a, b) =
        if a.var.ty().lead == Lead::Global && b.var.ty().lead != Lead::Global { (b, a) } else { (a, b) };
    let of = |from: &Term, which: &dyn Fn(&char) -> bool| -> Vec<char> {
        from.letters.iter().copied().filter(|letter| which(letter)).collect()
    };
    let common = of(&a, &|letter| b.letters.contains(letter) && needed(letter));
    let inner = of(&a, &|letter| b.letters.contains(letter) && !needed(letter));
    let [rows, columns] = [(&a, &b), (&b, &a)].map(|(own, other)| of(own, &|l| !other.letters.contains(l)));
    let letters = [&common[..], &rows, &columns].concat();
    let length = |term: &Term, letters: &[char]| -> Vec<usize> {
        let of = |letter| term.letters.iter().position(|other| other == letter);
        letters.iter().filter_map(of).map(|axis| term.var.dims()[axis]).collect()
    };
    let [shared, m, n, k] =
        [length(&a, &common), length(&a, &rows), length(&b, &columns), length(&a, &inner)];
    let count = |dims: &[usize]| dims.iter().product::<usize>();
    let arranged = |term: &Term, order: &[&[char]], dims: &[usize]| {
        let place = |letter: &char| term.letters.iter().position(|other| other == letter);
        let order: Vec<usize> = order.concat().iter().filter_map(place).collect();
        term.var.permute(&order).reshape(dims)
    };
    let dims = [&shared[..], &m, &n].concat();
    if inner.is_empty() {
        let ones = |dims: &[usize]| vec![1; dims.len()];
        let left = arranged(&a, &[&common, &rows], &[&shared[..], &m, &ones(&n)].concat());
        let right = arranged(&b, &[&common, &columns], &[&shared[..], &ones(&m), &n].concat());
        return Term { var: left * right, letters };
    }
    let left = arranged(&a, &[&common, &rows, &inner], &[&shared[..], &[count(&m), count(&k)]].concat());
    let right = arranged(&b, &[&common, &columns, &inner], &[&shared[..], &[count(&n), count(&k)]].concat());
    Term { var: left.matmul_t(&right).reshape(&dims), letters }
}
