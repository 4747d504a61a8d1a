//! What parameters start with.

use unisono_random::{fill_normal, fill_uniform};

/// What a parameter starts with: drawn by the counter-based generator from (seed, the parameter's name, element), so that
/// one layer's start does not depend on the others.
///
/// Fans are those of a weight stored `[out, in]`.
#[derive(Clone, Debug, PartialEq)]
pub enum Initializer {
    /// 0.
    Zeros,
    /// 1.
    Ones,
    /// A number.
    Constant(f32),
    /// Uniform in [-bound, bound).
    Uniform(f32),
    /// Normal with a deviation.
    Normal(f32),
    /// Uniform with bound sqrt(6 / (in + out)) (Glorot and Bengio 2010; Keras's default).
    GlorotUniform,
    /// Normal with deviation sqrt(2 / in) (He et al. 2015).
    HeNormal,
    /// Uniform with bound 1 / sqrt(in): what PyTorch's `Linear` starts with (LeCun et al. 1998, up to a constant).
    LecunUniform,
    /// These values, for example another program's.
    Values(Vec<f32>),
}

impl Initializer {
    /// The values of a parameter. `Values` of another length give an error message.
    pub fn values(&self, seed: u64, name: &str, dims: &[usize]) -> Result<Vec<f32>, String> {
        let count = dims.iter().product();
        let mut out = vec![0.0; count];
        let fan_out = dims.first().copied().unwrap_or(1);
        let fan_in = count / fan_out.max(1);
        match self {
            Self::Zeros => {}
            Self::Ones => out.fill(1.0),
            Self::Constant(x) => out.fill(*x),
            Self::Uniform(bound) => fill_uniform(seed, name, -bound, *bound, &mut out),
            Self::Normal(deviation) => fill_normal(seed, name, 0.0, *deviation, &mut out),
            Self::GlorotUniform => {
                let bound = (6.0 / (fan_in + fan_out) as f32).sqrt();
                fill_uniform(seed, name, -bound, bound, &mut out);
            }
            Self::HeNormal => fill_normal(seed, name, 0.0, (2.0 / fan_in as f32).sqrt(), &mut out),
            Self::LecunUniform => {
                let bound = 1.0 / (fan_in as f32).sqrt();
                fill_uniform(seed, name, -bound, bound, &mut out);
            }
            Self::Values(values) if values.len() == count => out.copy_from_slice(values),
            Self::Values(values) => return Err(format!("{name} {dims:?} cannot start with {} values", values.len())),
        }
        Ok(out)
    }
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
}
