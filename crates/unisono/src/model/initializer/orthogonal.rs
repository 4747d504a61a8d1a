//! Orthogonal initial values.

/// Makes the rows of a matrix with `rows` rows, or its columns where they are fewer, orthogonal vectors of
/// length `gain`.
///
/// It is modified Gram-Schmidt in f64, in the order of the vectors, each pass done twice. From independent
/// normal values the result is uniform over all such matrices. It computes with `+ - * / sqrt` only, so the
/// bits are the same everywhere.
pub(super) fn orthogonalize(matrix: &mut [f32], rows: usize, gain: f32) {
    let columns = matrix.len() / rows.max(1);
    let wide = rows <= columns;
    let (vectors, length) = if wide { (rows, columns) } else { (columns, rows) };
    let at = |vector: usize, i: usize| if wide { vector * columns + i } else { i * columns + vector };
    let mut done: Vec<Vec<f64>> = Vec::with_capacity(vectors);
    for vector in 0..vectors {
        let mut own: Vec<f64> = (0..length).map(|i| f64::from(matrix[at(vector, i)])).collect();
        for other in done.iter().chain(&done) {
            let along = dot(&own, other);
            own.iter_mut().zip(other).for_each(|(x, o)| *x -= along * o);
        }
        let norm = dot(&own, &own).sqrt();
        // Independent draws are linearly independent. Should they not be, zeros are better than NaN.
        let scale = if norm > 0.0 { 1.0 / norm } else { 0.0 };
        own.iter_mut().for_each(|x| *x *= scale);
        (0..length).for_each(|i| matrix[at(vector, i)] = (own[i] * f64::from(gain)) as f32);
        done.push(own);
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use crate::Initializer;

    #[test]
    fn rows_or_columns_are_at_right_angles() {
        for dims in [[6, 6], [4, 9], [9, 4]] {
            let w = Initializer::Orthogonal(2.0).values(7, "w", &dims).unwrap();
            let [rows, columns] = dims;
            let row = |i: usize| (0..columns).map(|j| w[i * columns + j]).collect::<Vec<_>>();
            let column = |j: usize| (0..rows).map(|i| w[i * columns + j]).collect::<Vec<_>>();
            let vectors: Vec<Vec<f32>> = if rows <= columns {
                (0..rows).map(row).collect()
            } else {
                (0..columns).map(column).collect()
            };
            for (i, a) in vectors.iter().enumerate() {
                for (j, b) in vectors.iter().enumerate() {
                    let dot: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                    let expected = if i == j { 4.0 } else { 0.0 };
                    assert!((dot - expected).abs() < 1e-5, "{dims:?} {i} {j}: {dot}");
                }
            }
        }
    }
}
