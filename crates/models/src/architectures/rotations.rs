//! Rotations of queries and keys by their positions, as `config.json` describes them.

use serde_json::{Map, Value};
use unisono::Var;
use unisono::functional::rotary_rates;

use crate::config::Config;

/// The settings of rotary positions (transformers' `rope_parameters`, in older configs `rope_theta` and
/// `rope_scaling`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rotations {
    base: f32,
    scaling: Scaling,
}

/// How the angles differ from those of the paper, for texts that are longer than those of the first training.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scaling {
    None,
    /// All angles are divided.
    Linear(f32),
    /// Slow rotations are divided by `factor` and fast ones are not; in between, both are mixed. `low` and
    /// `high` are rotations in a text of `context` tokens (Llama 3.1).
    Llama3 {
        factor: f32,
        low: f32,
        high: f32,
        context: f32,
    },
}

impl Rotations {
    /// Reads the settings.
    ///
    /// # Errors
    /// A setting is missing, out of range, or of a kind that this crate does not have.
    pub fn new(config: &Config) -> Result<Self, String> {
        let mut found = Self { base: config.number_or("rope_theta", 10_000.0)?, scaling: Scaling::None };
        let part = config.number_or("partial_rotary_factor", 1.0)?;
        let parts = ["rope_parameters", "rope_scaling"];
        for (name, settings) in parts.into_iter().filter_map(|name| Some((name, config.get(name)?))) {
            let settings =
                settings.as_object().ok_or_else(|| format!("{name} is {settings}, not an object"))?;
            let setting = |key: &str| settings.get(key).filter(|value| !value.is_null());
            let number = |key: &str| match setting(key) {
                None => Ok(None),
                Some(value) => {
                    let number = value.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
                    number.map(Some).ok_or_else(|| format!("{name}.{key} is {value}, not a number"))
                }
            };
            let needed = |key: &str| number(key)?.ok_or_else(|| format!("{name}.{key} is missing"));
            found.base = number("rope_theta")?.unwrap_or(found.base);
            if number("partial_rotary_factor")?.unwrap_or(part) != 1.0 {
                return Err(format!("{name}.partial_rotary_factor is not 1: this model rotates whole heads"));
            }
            found.scaling = match kind(name, settings)? {
                "default" => found.scaling,
                "linear" => Scaling::Linear(needed("factor")?),
                "llama3" => Scaling::Llama3 {
                    factor: needed("factor")?,
                    low: needed("low_freq_factor")?,
                    high: needed("high_freq_factor")?,
                    context: match number("original_max_position_embeddings")? {
                        Some(context) => context,
                        None => config.size("max_position_embeddings")? as f32,
                    },
                },
                kind => {
                    return Err(format!(
                        "{name}: rotations scaled by {kind:?} are unknown; known are default, linear, llama3"
                    ));
                }
            };
        }
        if part != 1.0 {
            return Err(format!("partial_rotary_factor is {part}, and this model rotates whole heads"));
        }
        found.check()?;
        Ok(found)
    }

    fn check(self) -> Result<(), String> {
        if !(self.base > 1.0 && self.base.is_finite()) {
            return Err(format!("rope_theta is {}, and must be finite and above 1", self.base));
        }
        match self.scaling {
            Scaling::Linear(factor) | Scaling::Llama3 { factor, .. } if factor < 1.0 => {
                Err(format!("factor of the rotations is {factor}, and must be at least 1"))
            }
            Scaling::Llama3 { low, high, .. } if !(low > 0.0 && high > low) => Err(format!(
                "low_freq_factor is {low} and high_freq_factor {high}: the first must be above 0 and below the second"
            )),
            Scaling::Llama3 { context, .. } if context < 1.0 => {
                Err(format!("original_max_position_embeddings is {context}, and must be at least 1"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the angle by which each pair of features turns from one position to the next, as
    /// `[1, width / 2]`. `x` is any value of the model.
    pub fn rates(self, x: &Var, width: usize) -> Var {
        let rates = rotary_rates(x.tape(), width, self.base);
        match self.scaling {
            Scaling::None => rates,
            Scaling::Linear(factor) => rates * (1.0 / factor),
            Scaling::Llama3 { factor, low, high, context } => {
                // How often each pair turns around in the texts of the first training, from `low` at 0 to
                // `high` at 1.
                let turns = &rates * (context / std::f32::consts::TAU);
                let fast = ((turns - low) * (1.0 / (high - low))).clamp(0.0, 1.0);
                (1.0 - &fast) * (&rates * (1.0 / factor)) + fast * rates
            }
        }
    }
}

/// Returns the kind of scaling that the settings `name` describe (`rope_type`, in older configs `type`).
///
/// # Errors
/// It is not a text, or settings of a kind are there without it, such as those of several kinds of layers.
fn kind<'a>(name: &str, settings: &'a Map<String, Value>) -> Result<&'a str, String> {
    const OF_ALL: [&str; 2] = ["rope_theta", "partial_rotary_factor"];
    let mut there = settings.iter().filter(|(_, value)| !value.is_null());
    let typed = ["rope_type", "type"].into_iter().find_map(|key| there.clone().find(|(own, _)| *own == key));
    match (typed, there.find(|(key, _)| !OF_ALL.contains(&key.as_str()))) {
        (Some((_, Value::String(kind))), _) => Ok(kind),
        (Some((key, value)), _) => Err(format!("{name}.{key} is {value}, not a text")),
        (None, Some((key, _))) => {
            Err(format!("{name}.{key} is unknown without {name}.rope_type, which says how angles are scaled"))
        }
        (None, None) => Ok("default"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Rotations, String> {
        Rotations::new(&Config::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn all_forms_of_configs_are_read() {
        let linear = Rotations { base: 500.0, scaling: Scaling::Linear(4.0) };
        let old = r#"{"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}}"#;
        let new = r#"{"rope_parameters": {"rope_theta": 500, "rope_type": "linear", "factor": 4}}"#;
        assert_eq!((read(old), read(new)), (Ok(linear), Ok(linear)));
        let both =
            r#"{"rope_theta": 500, "rope_scaling": {"rope_type": null, "type": "linear", "factor": 4}}"#;
        assert_eq!(read(both), Ok(linear));
        let plain = Rotations { base: 10_000.0, scaling: Scaling::None };
        assert_eq!(read("{}"), Ok(plain));
        let untyped =
            r#"{"rope_parameters": {"rope_theta": 500, "partial_rotary_factor": 1, "factor": null}}"#;
        assert_eq!(read(untyped), Ok(Rotations { base: 500.0, ..plain }));
        assert_eq!(read(r#"{"rope_scaling": null, "rope_parameters": {"rope_type": "default"}}"#), Ok(plain));
        let llama = r#"{"max_position_embeddings": 64, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0}}"#;
        let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, context: 64.0 };
        assert_eq!(read(llama), Ok(Rotations { scaling, ..plain }));
    }

    #[test]
    fn what_cannot_be_rotated_is_named() {
        for kind in ["dynamic", "yarn", "longrope", "su", "mrope"] {
            let error = read(&format!(r#"{{"rope_scaling": {{"rope_type": "{kind}", "factor": 2.0}}}}"#));
            let error = error.unwrap_err();
            assert!(error.starts_with(&format!("rope_scaling: rotations scaled by {kind:?}")), "{error}");
        }
        let cases = [
            (r#"{"rope_theta": 0.5}"#, "rope_theta is 0.5, and must be finite and above 1"),
            (r#"{"rope_theta": "x"}"#, "rope_theta is \"x\", not a number"),
            (r#"{"partial_rotary_factor": 0.5}"#, "partial_rotary_factor is 0.5"),
            (
                r#"{"rope_parameters": {"partial_rotary_factor": 0.5}}"#,
                "rope_parameters.partial_rotary_factor",
            ),
            (r#"{"rope_theta": 1e40}"#, "rope_theta is inf, and must be finite and above 1"),
            (r#"{"rope_scaling": "linear"}"#, "rope_scaling is \"linear\", not an object"),
            (
                r#"{"rope_scaling": {"factor": 4.0}}"#,
                "rope_scaling.factor is unknown without rope_scaling.rope_type",
            ),
            (
                r#"{"rope_scaling": {"rope_type": null, "factor": 4.0}}"#,
                "rope_scaling.factor is unknown without rope_scaling.rope_type",
            ),
            (r#"{"rope_scaling": {"rope_type": 3, "factor": 4}}"#, "rope_scaling.rope_type is 3, not a text"),
            (r#"{"rope_scaling": {"type": ["linear"]}}"#, "rope_scaling.type is [\"linear\"], not a text"),
            (
                r#"{"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}}}"#,
                "rope_parameters.full_attention is unknown without rope_parameters.rope_type",
            ),
            (r#"{"rope_scaling": {"type": "linear"}}"#, "rope_scaling.factor is missing"),
            (
                r#"{"rope_scaling": {"type": "linear", "factor": "4"}}"#,
                "rope_scaling.factor is \"4\", not a number",
            ),
            (r#"{"rope_scaling": {"type": "linear", "factor": 0.5}}"#, "factor of the rotations is 0.5"),
            (
                r#"{"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
                "original_max_position_embeddings": 64}}"#,
                "low_freq_factor is 4 and high_freq_factor 4",
            ),
            (
                r#"{"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}}"#,
                "max_position_embeddings is missing",
            ),
        ];
        for (text, expected) in cases {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
