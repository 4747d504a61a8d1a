//! The rules of a plan: what each makes of the tensors that the one before it left.

use std::collections::BTreeMap;
use std::path::Path;

use crate::model::arranged::Arranged;
use crate::model::pattern::Pattern;
use crate::tensors::error::{Error, Result, broken};

/// A tensor on its way from the file to the model.
#[derive(Debug)]
pub(crate) struct Item {
    pub name: String,
    pub tensor: Arranged,
}

/// A rule for names or for the arrangement of elements.
#[derive(Debug, Clone)]
pub(crate) enum Rule {
    Rename(Pattern, Pattern),
    Replace(String, String),
    Transpose(Pattern),
    Permute(Pattern, Vec<usize>),
    Reshape(Pattern, Vec<usize>),
    /// Cuts an axis into parts, which are equal unless they have lengths.
    Split {
        from: Pattern,
        axis: usize,
        into: Vec<(Pattern, Option<usize>)>,
    },
    /// Joins tensors along an axis, in this order.
    Merge {
        from: Vec<Pattern>,
        axis: usize,
        into: Pattern,
    },
}

impl Rule {
    /// Returns what the rule would do, if it is for tensors of certain names and there is none of them.
    pub fn unused(&self, items: &[Item]) -> Option<String> {
        let (pattern, what) = match self {
            // Such a name is renamed where it occurs, as a prefix is taken off where there is one.
            Self::Rename(from, to) if to.is_star() || from.starts_with_star() => return None,
            Self::Replace(..) => return None,
            Self::Rename(from, to) => (from, format!("rename {from} to {to}")),
            Self::Transpose(of) => (of, format!("transpose {of}")),
            Self::Permute(of, _) => (of, format!("permute {of}")),
            Self::Reshape(of, _) => (of, format!("reshape {of}")),
            Self::Split { from, .. } => (from, format!("split {from}")),
            Self::Merge { from, .. } => {
                let first = from.first()?;
                (first, format!("merge {first}"))
            }
        };
        (!items.iter().any(|item| pattern.matches(&item.name))).then_some(what)
    }

    /// Applies the rule to all tensors. `path` is the file, for errors.
    pub fn apply(&self, path: &Path, items: Vec<Item>) -> Result<Vec<Item>> {
        match self {
            Self::Rename(from, to) => {
                has_stars(from, to)?;
                let rename = |item: Item| {
                    let name = from.captures(&item.name).map(|captures| to.fill(&captures));
                    Item { name: name.unwrap_or(item.name), tensor: item.tensor }
                };
                Ok(items.into_iter().map(rename).collect())
            }
            Self::Replace(from, to) => {
                let rename = |item: Item| Item { name: item.name.replace(from, to), ..item };
                Ok(items.into_iter().map(rename).collect())
            }
            Self::Transpose(of) => each(path, "transpose", of, items, Arranged::transposed),
            Self::Permute(of, order) => each(path, "permute", of, items, |tensor| tensor.permuted(order)),
            Self::Reshape(of, shape) => each(path, "reshape", of, items, |tensor| tensor.reshaped(shape)),
            Self::Split { from, axis, into } => split(path, from, *axis, into, items),
            Self::Merge { from, axis, into } => merge(path, from, *axis, into, items),
        }
    }
}

fn has_stars(from: &Pattern, to: &Pattern) -> Result<()> {
    if to.stars() > from.stars() {
        return Err(Error::Rule { from: from.to_string(), to: to.to_string() });
    }
    Ok(())
}

/// Changes each tensor whose name matches.
fn each(
    path: &Path,
    rule: &str,
    of: &Pattern,
    items: Vec<Item>,
    change: impl Fn(Arranged) -> std::result::Result<Arranged, String>,
) -> Result<Vec<Item>> {
    let change = |item: Item| {
        if !of.matches(&item.name) {
            return Ok(item);
        }
        let tensor = change(item.tensor).map_err(|problem| wrong(path, rule, &item.name, &problem))?;
        Ok(Item { name: item.name, tensor })
    };
    items.into_iter().map(change).collect()
}

fn wrong(path: &Path, rule: &str, name: &str, problem: &str) -> Error {
    broken(path, format!("the plan cannot {rule} {name}: {problem}"))
}

fn split(
    path: &Path,
    from: &Pattern,
    axis: usize,
    into: &[(Pattern, Option<usize>)],
    items: Vec<Item>,
) -> Result<Vec<Item>> {
    into.iter().try_for_each(|(to, _)| has_stars(from, to))?;
    let lengths: Vec<Option<usize>> = into.iter().map(|(_, length)| *length).collect();
    let mut all = Vec::with_capacity(items.len());
    for item in items {
        let Some(captures) = from.captures(&item.name) else {
            all.push(item);
            continue;
        };
        let parts = item.tensor.split(axis, &lengths);
        let parts = parts.map_err(|problem| wrong(path, "split", &item.name, &problem))?;
        let parts = into.iter().zip(parts);
        all.extend(parts.map(|((to, _), tensor)| Item { name: to.fill(&captures), tensor }));
    }
    Ok(all)
}

/// Joins the tensors that are all there. Others stay as they are.
fn merge(path: &Path, from: &[Pattern], axis: usize, into: &Pattern, items: Vec<Item>) -> Result<Vec<Item>> {
    let Some((first, rest)) = from.split_first() else { return Ok(items) };
    rest.iter().chain([into]).try_for_each(|to| has_stars(first, to))?;
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, item) in items.iter().enumerate() {
        numbers.entry(&item.name).or_insert(at);
    }
    // The whole that each tensor is a part of, by the number of its first part.
    let mut wholes: BTreeMap<usize, (String, Vec<usize>)> = BTreeMap::new();
    let mut taken = vec![false; items.len()];
    for (at, item) in items.iter().enumerate() {
        let Some(captures) = first.captures(&item.name) else { continue };
        let parts = rest.iter().map(|part| numbers.get(part.fill(&captures).as_str()).copied());
        let Some(parts) = [Some(at)].into_iter().chain(parts).collect::<Option<Vec<usize>>>() else {
            continue;
        };
        if parts.iter().any(|&part| std::mem::replace(&mut taken[part], true)) {
            return Err(wrong(path, "merge", &item.name, "a part belongs to several tensors"));
        }
        wholes.insert(at, (into.fill(&captures), parts));
    }
    let mut items: Vec<Option<Item>> = items.into_iter().map(Some).collect();
    let mut all = Vec::with_capacity(items.len());
    for at in 0..items.len() {
        match wholes.remove(&at) {
            Some((name, parts)) => {
                let parts = parts.into_iter().filter_map(|part| items[part].take());
                let joined = Arranged::joined(parts.map(|part| part.tensor).collect(), axis);
                let tensor = joined.map_err(|problem| wrong(path, "merge", &name, &problem))?;
                all.push(Item { name, tensor });
            }
            None if taken[at] => {}
            None => all.extend(items[at].take()),
        }
    }
    Ok(all)
}
