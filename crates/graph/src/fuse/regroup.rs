//! Coordinates of the same elements under other axes, such as before and after a reshape.

/// Some axes, and other axes that hold as many elements.
pub(crate) struct Group<'a, C> {
    /// A coordinate for each axis.
    pub(crate) coords: &'a [C],
    /// The lengths of the axes.
    pub(crate) to: &'a [usize],
    /// The lengths of the other axes.
    pub(crate) from: &'a [usize],
}

/// Returns the coordinates of an element under other axes. It goes from the last axes to the first, and
/// passes one group at a time to `split`: the fewest axes of both kinds that hold equally many elements. Axes
/// of one element are in no group; their coordinate is `zero`. Returns `None` if `split` does, and if there
/// are no such groups, as among axes without elements.
pub(crate) fn regrouped<C: Clone>(
    coords: &[C],
    to: &[usize],
    from: &[usize],
    zero: &C,
    mut split: impl FnMut(Group<'_, C>) -> Option<Vec<C>>,
) -> Option<Vec<C>> {
    if to.contains(&0) {
        return None;
    }
    let (sizes, coords): (Vec<usize>, Vec<C>) =
        to.iter().copied().zip(coords.iter().cloned()).filter(|(d, _)| *d != 1).unzip();
    let own: Vec<usize> = from.iter().copied().filter(|&d| d != 1).collect();
    let (mut rest, mut end) = (sizes.len(), own.len());
    let mut found: Vec<C> = Vec::new();
    while (rest, end) != (0, 0) {
        let (last, those) = (rest, end);
        (rest, end) = (rest.checked_sub(1)?, end.checked_sub(1)?);
        let (mut d, mut e) = (sizes[rest], own[end]);
        while d != e {
            if d < e {
                rest = rest.checked_sub(1)?;
                d *= sizes[rest];
            } else {
                end = end.checked_sub(1)?;
                e *= own[end];
            }
        }
        let group = Group { coords: &coords[rest..last], to: &sizes[rest..last], from: &own[end..those] };
        found.extend(split(group)?.into_iter().rev());
    }
    from.iter().map(|&d| if d == 1 { Some(zero.clone()) } else { found.pop() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_the_fewest_axes_that_hold_equally_many_elements() {
        let groups = |to: &[usize], from: &[usize]| {
            let mut found = vec![];
            let split = |group: Group<'_, ()>| {
                found.push((group.to.to_vec(), group.from.to_vec()));
                Some(vec![(); group.from.len()])
            };
            regrouped(&vec![(); to.len()], to, from, &(), split).map(|_| found)
        };
        let pair = |to: &[usize], from: &[usize]| (to.to_vec(), from.to_vec());
        assert_eq!(
            groups(&[6, 1, 5, 4, 3], &[2, 3, 5, 12, 1]),
            Some(vec![pair(&[4, 3], &[12]), pair(&[5], &[5]), pair(&[6], &[2, 3])])
        );
        assert_eq!(groups(&[4, 6], &[8, 3]), Some(vec![pair(&[4, 6], &[8, 3])]));
        assert_eq!(groups(&[1], &[]), Some(vec![]));
        assert_eq!(groups(&[4, 6], &[6]), None, "other elements");
        assert_eq!(groups(&[6], &[5]), None, "other elements");
        assert_eq!(groups(&[0, 4], &[0, 4]), None, "no elements");
    }
}
