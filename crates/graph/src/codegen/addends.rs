//! Epilogues that only add, which a CPU computes row by row.

use std::collections::BTreeMap;

use super::epilogue::{Addend, GIVEN};
use super::writer::Writer;

/// The most values in memory that are added to a product.
const MOST: usize = 4;

/// Returns what an epilogue adds, if it is one sum after the other: each of a product's elements and of
/// numbers in memory that lie side by side along its rows. The writer has written the first of four elements,
/// whose name is `result`.
pub(super) fn addends(writer: &Writer<'_>, result: &str) -> Option<Vec<Addend>> {
    let lines = writer.body.lines().filter_map(|line| line.trim().strip_prefix("let ")?.strip_suffix(';'));
    let values: BTreeMap<&str, &str> = lines.filter_map(|line| line.split_once(" = ")).collect();
    let sum = |name: &str| values.get(name)?.strip_prefix("flush(")?.strip_suffix(')')?.split_once(" + ");
    let mut names = Vec::new();
    let (mut first, mut second) = sum(result)?;
    loop {
        match (sum(first), sum(second)) {
            (Some(_), Some(_)) => return None,
            (Some(inner), None) => {
                names.push(second);
                (first, second) = inner;
            }
            (None, Some(inner)) => {
                names.push(first);
                (first, second) = inner;
            }
            (None, None) => break,
        }
    }
    names.extend([second, first]);
    let addend = |name: &str| {
        if name == GIVEN[0] {
            return Some(Addend::Product);
        }
        let (vector, binding) = writer.vector_of(values.get(name)?.strip_suffix(".x")?)?;
        Some(Addend::Stored { binding, vector })
    };
    let all = names.into_iter().rev().map(addend).collect::<Option<Vec<_>>>()?;
    let products = all.iter().filter(|addend| matches!(addend, Addend::Product)).count();
    (products == 1 && all.len() <= MOST + 1).then_some(all)
}
