//! Elements of which each axis has its own stride.

/// Iterates over the places of all elements in row-major order. `axes` has the length and the stride of each
/// axis. The product of the lengths must fit a `usize`.
pub(crate) fn places(axes: Vec<(usize, usize)>) -> impl Iterator<Item = usize> {
    let count: usize = axes.iter().map(|(length, _)| length).product();
    let mut at = vec![0; axes.len()];
    (0..count).map(move |_| {
        let place = at.iter().zip(&axes).map(|(i, (_, stride))| i * stride).sum();
        for (i, (length, _)) in at.iter_mut().zip(&axes).rev() {
            *i += 1;
            if *i < *length {
                break;
            }
            *i = 0;
        }
        place
    })
}

/// Returns the axes of contiguous elements of a shape, in another order: the length and the stride of each.
pub(crate) fn ordered(shape: &[usize], order: &[usize]) -> Vec<(usize, usize)> {
    order.iter().map(|&axis| (shape[axis], shape[axis + 1..].iter().product())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_axis_changes_first() {
        let all = |axes: Vec<(usize, usize)>| places(axes).collect::<Vec<_>>();
        assert_eq!(all(ordered(&[2, 3], &[0, 1])), [0, 1, 2, 3, 4, 5]);
        assert_eq!(all(ordered(&[2, 3], &[1, 0])), [0, 3, 1, 4, 2, 5]);
        assert_eq!(all(vec![(2, 0), (2, 5)]), [0, 5, 0, 5]);
        assert_eq!((all(vec![]), all(vec![(2, 1), (0, 1)])), (vec![0], vec![]));
    }
}
