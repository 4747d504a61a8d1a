//! The classes of layers, and what their arrays are.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::tensors::json;

/// The classes of layers by name, as the description of a model says.
#[derive(Debug, Default)]
pub(super) struct Classes(BTreeMap<String, Class>);

#[derive(Debug, Clone)]
struct Class {
    name: String,
    /// Whether a norm has a scale and a shift.
    scales: bool,
    centers: bool,
}

impl Classes {
    /// Reads the description of a model (`config.json`, or the attribute `model_config`).
    pub fn of_json(text: &[u8]) -> Result<Self, String> {
        let value = json::parse(text).map_err(|error| format!("no JSON: {error}"))?;
        let mut classes = Self::default();
        classes.add(&value);
        Ok(classes)
    }

    /// Adds all layers in a value. JSON is nested 128 times at most.
    fn add(&mut self, value: &Value) {
        match value {
            Value::Array(values) => values.iter().for_each(|value| self.add(value)),
            Value::Object(fields) => {
                let config = fields.get("config");
                let flag = |name: &str| config.and_then(|config| config.get(name)?.as_bool()).unwrap_or(true);
                let name = config.and_then(|config| config.get("name")?.as_str());
                if let (Some(class), Some(name)) = (fields.get("class_name").and_then(Value::as_str), name) {
                    let class = Class { name: plain(class), scales: flag("scale"), centers: flag("center") };
                    self.0.insert(name.to_owned(), class);
                }
                fields.values().for_each(|value| self.add(value));
            }
            _ => {}
        }
    }

    /// Returns what the arrays of a layer are, by its name, the name that Keras made of its class, and their
    /// shapes. `None`: it is a class that nothing is known of.
    ///
    /// # Errors
    /// There are not as many arrays as the class has.
    pub fn roles(
        &self,
        name: &str,
        of_class: &[&str],
        shapes: &[&[usize]],
    ) -> Result<Option<Vec<&'static str>>, String> {
        let known = self.0.get(name);
        let guesses = of_class.iter().map(|name| plain(without_number(name)));
        let names = known.map(|class| class.name.clone()).into_iter().chain(guesses);
        let Some(all) = names.into_iter().find_map(|class| arrays(&class)) else {
            return Ok(by_shape(shapes));
        };
        let is_there = |role: &&&str| match (known, **role) {
            (Some(class), "gamma") => class.scales,
            (Some(class), "beta") => class.centers,
            _ => true,
        };
        let roles: Vec<&'static str> = all.iter().filter(is_there).copied().collect();
        // A layer may have been made without a bias, which comes last.
        let least = roles.len() - usize::from(roles.last() == Some(&"bias"));
        match shapes.len() {
            2 if all.len() == 4 => Ok(Some(vec!["moving_mean", "moving_variance"])),
            count if (least..=roles.len()).contains(&count) => Ok(Some(roles[..count].to_vec())),
            count => Err(format!("the layer {name} has {count} arrays, not {}", roles.len())),
        }
    }
}

/// Returns the arrays of a class in the order in which Keras stores them.
fn arrays(class: &str) -> Option<&'static [&'static str]> {
    Some(match class {
        "embedding" => &["embeddings"],
        "batchnormalization" => &["gamma", "beta", "moving_mean", "moving_variance"],
        "layernormalization" | "groupnormalization" => &["gamma", "beta"],
        "rmsnormalization" => &["gamma"],
        "lstmcell" | "grucell" | "simplernncell" | "cell" => &["kernel", "recurrent_kernel", "bias"],
        "dense" | "einsumdense" => &["kernel", "bias"],
        _ if class.starts_with("depthwiseconv") => &["depthwise_kernel", "bias"],
        _ if class.starts_with("separableconv") => &["depthwise_kernel", "pointwise_kernel", "bias"],
        _ if class.starts_with("conv") => &["kernel", "bias"],
        _ => return None,
    })
}

/// Tells from shapes what the arrays of an unknown class are, where it can be told.
fn by_shape(shapes: &[&[usize]]) -> Option<Vec<&'static str>> {
    Some(match *shapes {
        [[.., _, units], [others]] if units == others => vec!["kernel", "bias"],
        [[a], [b]] if a == b => vec!["gamma", "beta"],
        [[a], [b], [c], [d]] if a == b && b == c && c == d => {
            vec!["gamma", "beta", "moving_mean", "moving_variance"]
        }
        _ => return None,
    })
}

/// Returns a name in lower case without underscores, so that `LayerNormalization` and `layer_normalization`
/// are the same.
fn plain(name: &str) -> String {
    name.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect()
}

/// Removes the number that Keras puts behind the names of layers of one class: `dense_1`.
pub(super) fn without_number(name: &str) -> &str {
    match name.rsplit_once('_') {
        Some((name, number)) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
            name
        }
        _ => name,
    }
}
