//! Initializers: what parameters start with.

mod orthogonal;

use unisono_random::{fill_normal, fill_truncated_normal, fill_uniform};

/// How a parameter is initialized (PyTorch's `nn.init`, Keras's initializers). Default:
/// [`Initializer::GlorotUniform`].
///
/// Random values depend on (seed, the parameter's name, element). The initial values of one layer therefore
/// do not depend on the other layers.
///
/// `in` and `out` are the fans of a weight `[out, in, ...]`: its first two lengths, each times the number of
/// elements of the other axes (a convolution's window). PyTorch counts those of `ConvTranspose2d`, stored
/// `[in, out, ...]`, in the same way.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Initializer {
    /// All values are 0.
    Zeros,
    /// All values are 1.
    Ones,
    /// All values are this number.
    Constant(f32),
    /// Values are uniform in [-bound, bound).
    Uniform(f32),
    /// Values are normal with mean 0 and this standard deviation.
    Normal(f32),
    /// Values are normal with mean 0 and this standard deviation, cut off at two deviations.
    TruncatedNormal(f32),
    /// Values are uniform with bound sqrt(6 / (in + out)) (Glorot and Bengio 2010; Keras's default, PyTorch's
    /// `xavier_uniform_`).
    #[default]
    GlorotUniform,
    /// Values are normal with deviation sqrt(2 / (in + out)) (Glorot and Bengio 2010; PyTorch's
    /// `xavier_normal_`).
    GlorotNormal,
    /// Values are uniform with bound sqrt(6 / in) (He et al. 2015; PyTorch's `kaiming_uniform_` for relu).
    HeUniform,
    /// Values are normal with deviation sqrt(2 / in) (He et al. 2015; PyTorch's `kaiming_normal_` for relu).
    HeNormal,
    /// Values are uniform with bound sqrt(3 / in) (LeCun et al. 1998).
    LecunUniform,
    /// Values are normal with deviation sqrt(1 / in) (LeCun et al. 1998).
    LecunNormal,
    /// Values are uniform with bound sqrt(1 / in), as those of PyTorch's `Linear` and `Conv2d`.
    FanInUniform,
    /// The rows, or the columns where they are fewer, are orthogonal vectors of this length (Saxe et al.
    /// 2014; PyTorch's `orthogonal_`). All axes after the first count as columns.
    Orthogonal(f32),
    /// The values are given in row-major order, for example those of another program.
    Values(Vec<f32>),
    /// The values are those of another initializer, without a row, which is 0: that of padding in
    /// [`Embedding::padding_idx`](crate::Embedding::padding_idx).
    ZeroRow {
        /// The number of the row along the first axis.
        row: usize,
        /// The initializer of all other rows.
        others: Box<Initializer>,
    },
    /// The values are those that another tensor starts with: what this initializer draws under that name.
    Of {
        /// The full name of the other tensor.
        name: String,
        /// The initializer of the other tensor.
        initializer: Box<Initializer>,
    },
}

impl Initializer {
    /// Returns the values of the parameter called `name`.
    ///
    /// # Errors
    /// [`Initializer::Values`] of another length, a bound that is negative or not finite, a deviation or a
    /// length that is not finite, or a tensor for which there is no memory; the error is the message.
    pub fn values(&self, seed: u64, name: &str, dims: &[usize]) -> Result<Vec<f32>, String> {
        match self {
            Self::Uniform(bound) if !bound.is_finite() || *bound < 0.0 => {
                return Err(format!("{name} cannot start with {self:?}: a bound is finite and not negative"));
            }
            Self::Normal(scale) | Self::TruncatedNormal(scale) | Self::Orthogonal(scale)
                if !scale.is_finite() || *scale < 0.0 =>
            {
                return Err(format!(
                    "{name} cannot start with {self:?}: its number is finite and not negative"
                ));
            }
            _ => {}
        }
        let no_memory = || format!("no memory for {name} {dims:?}");
        let count = dims.iter().try_fold(1usize, |count, &length| count.checked_mul(length));
        let count = count.ok_or_else(no_memory)?;
        let mut out = Vec::new();
        out.try_reserve_exact(count).map_err(|_| no_memory())?;
        out.resize(count, 0.0);
        let [fan_in, fan_out] = fans(dims);
        let mut uniform = |square: f32| fill_uniform(seed, name, -square.sqrt(), square.sqrt(), &mut out);
        match self {
            Self::Zeros => {}
            Self::Ones => out.fill(1.0),
            Self::Constant(x) => out.fill(*x),
            Self::Uniform(bound) => fill_uniform(seed, name, -bound, *bound, &mut out),
            Self::Normal(deviation) => fill_normal(seed, name, 0.0, *deviation, &mut out),
            Self::TruncatedNormal(deviation) => fill_truncated_normal(seed, name, 0.0, *deviation, &mut out),
            Self::GlorotUniform => uniform(6.0 / (fan_in + fan_out)),
            Self::GlorotNormal => fill_normal(seed, name, 0.0, (2.0 / (fan_in + fan_out)).sqrt(), &mut out),
            Self::HeUniform => uniform(6.0 / fan_in),
            Self::HeNormal => fill_normal(seed, name, 0.0, (2.0 / fan_in).sqrt(), &mut out),
            Self::LecunUniform => uniform(3.0 / fan_in),
            Self::LecunNormal => fill_normal(seed, name, 0.0, (1.0 / fan_in).sqrt(), &mut out),
            Self::FanInUniform => uniform(1.0 / fan_in),
            Self::Orthogonal(gain) => {
                fill_normal(seed, name, 0.0, 1.0, &mut out);
                orthogonal::orthogonalize(&mut out, dims.first().copied().unwrap_or(1), *gain);
            }
            Self::Values(values) if values.len() == count => out.copy_from_slice(values),
            Self::Values(values) => {
                return Err(format!("{name} {dims:?} cannot start with {} values", values.len()));
            }
            Self::ZeroRow { row, others } => {
                out = others.values(seed, name, dims)?;
                let width: usize = dims.iter().skip(1).product();
                out.iter_mut().skip(row.saturating_mul(width)).take(width).for_each(|x| *x = 0.0);
            }
            Self::Of { name, initializer } => out = initializer.values(seed, name, dims)?,
        }
        Ok(out)
    }
}

/// Returns how many inputs an output depends on and how many outputs depend on an input; at least 1 each.
fn fans(dims: &[usize]) -> [f32; 2] {
    let fan_out = dims.first().copied().unwrap_or(1);
    let fan_in = dims.get(1).copied().unwrap_or(1);
    let window: usize = dims.iter().skip(2).product();
    [fan_in, fan_out].map(|fan| (fan * window).max(1) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_depend_on_the_name_and_not_on_others() {
        let draw = |name| Initializer::GlorotUniform.values(1, name, &[4, 3]).unwrap();
        assert_eq!(draw("0.weight"), draw("0.weight"));
        assert_ne!(draw("0.weight"), draw("1.weight"));
        let bound = (6.0f32 / 7.0).sqrt();
        assert!(draw("a").iter().all(|x| x.abs() <= bound));
    }

    #[test]
    fn numbers_that_cannot_be_bounds_or_deviations_are_named() {
        let problem = |own: Initializer| own.values(1, "0.weight", &[4, 3]).unwrap_err();
        let expected = "0.weight cannot start with Uniform(-0.1): a bound is finite and not negative";
        assert_eq!(problem(Initializer::Uniform(-0.1)), expected);
        let expected = "0.weight cannot start with Normal(inf): its number is finite and not negative";
        assert_eq!(problem(Initializer::Normal(f32::INFINITY)), expected);
        for own in [Initializer::Uniform, Initializer::TruncatedNormal, Initializer::Orthogonal] {
            assert!(problem(own(f32::NAN)).contains("(NaN)"));
        }
        assert_eq!(Initializer::Uniform(0.0).values(1, "0.weight", &[2]), Ok(vec![0.0; 2]));
    }

    #[test]
    fn fans_count_the_window() {
        assert_eq!(fans(&[8, 4, 3, 5]), [60.0, 120.0]);
        assert_eq!(fans(&[8, 4]), [4.0, 8.0]);
        assert_eq!(fans(&[8]), [1.0, 8.0]);
        assert_eq!(fans(&[]), [1.0, 1.0]);
    }

    #[test]
    fn deviations_are_what_the_formulas_say() {
        let dims = [50, 40, 3, 3];
        let deviation = |i: Initializer| {
            let x = i.values(3, "w", &dims).unwrap();
            (x.iter().map(|x| f64::from(x * x)).sum::<f64>() / x.len() as f64).sqrt()
        };
        for (initializer, expected) in [
            (Initializer::GlorotUniform, 2.0 / 810.0),
            (Initializer::GlorotNormal, 2.0 / 810.0),
            (Initializer::HeUniform, 2.0 / 360.0),
            (Initializer::HeNormal, 2.0 / 360.0),
            (Initializer::LecunUniform, 1.0 / 360.0),
            (Initializer::LecunNormal, 1.0 / 360.0),
            (Initializer::FanInUniform, 1.0 / 1080.0),
            (Initializer::TruncatedNormal(0.5), 0.25 * 0.8796 * 0.8796),
        ] {
            let found = deviation(initializer.clone());
            assert!((found / f64::sqrt(expected) - 1.0).abs() < 0.02, "{initializer:?}: {found}");
        }
    }
}
