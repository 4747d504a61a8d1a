//! A model's `config.json`, with the name of the setting in every error.

use serde_json::{Map, Value};

/// The most layers of a model. Those that are published have up to about 130.
pub(crate) const MOST_LAYERS: usize = 1000;

/// The settings in a `config.json`.
#[derive(Clone, Debug)]
pub struct Config(Map<String, Value>);

impl Config {
    /// Parses a `config.json`.
    ///
    /// # Errors
    /// The text is no JSON object.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(text).map(Self).map_err(|error| format!("not a JSON object: {error}"))
    }

    /// Returns a setting, unless it is absent or null.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Returns a setting of timm's: at the top, or among the arguments of the model.
    pub(crate) fn argument(&self, name: &str) -> Option<&Value> {
        let arguments = self.get("model_args").and_then(Value::as_object);
        arguments.and_then(|all| all.get(name)).filter(|value| !value.is_null()).or_else(|| self.get(name))
    }

    /// Returns a size that must be there, and at least 1.
    ///
    /// # Errors
    /// It is absent, or no positive integer.
    pub fn size(&self, name: &str) -> Result<usize, String> {
        let value = self.get(name).ok_or_else(|| format!("{name} is missing"))?;
        let size = value.as_u64().filter(|&size| size > 0 && size <= u64::from(u32::MAX));
        size.map(|size| size as usize).ok_or_else(|| format!("{name} is {value}, not a positive integer"))
    }

    /// Returns a size, or `default` if it is absent.
    ///
    /// # Errors
    /// It is not a positive integer.
    pub fn size_or(&self, name: &str, default: usize) -> Result<usize, String> {
        if self.get(name).is_none() { Ok(default) } else { self.size(name) }
    }

    /// Returns a number of layers that must be there, from 1 to 1,000. (A damaged number must not take all of
    /// the host's memory before the tensors are compared.)
    ///
    /// # Errors
    /// It is absent, no positive integer, or larger.
    pub fn layers(&self, name: &str) -> Result<usize, String> {
        let layers = self.size(name)?;
        if layers > MOST_LAYERS {
            return Err(format!("{name} is {layers}, and a model has at most {MOST_LAYERS} layers"));
        }
        Ok(layers)
    }

    /// Returns a number of layers, or `default` if it is absent.
    ///
    /// # Errors
    /// It is not a positive integer, or more than 1,000.
    pub fn layers_or(&self, name: &str, default: usize) -> Result<usize, String> {
        if self.get(name).is_none() { Ok(default) } else { self.layers(name) }
    }

    /// Returns an id, `default` if it is absent, or none if it is null or negative.
    ///
    /// # Errors
    /// It is not an integer.
    pub fn id_or(&self, name: &str, default: usize) -> Result<Option<usize>, String> {
        match self.0.get(name) {
            None => Ok(Some(default)),
            Some(Value::Null) => Ok(None),
            Some(value) => {
                let id = value.as_i64().ok_or_else(|| format!("{name} is {value}, not an integer"))?;
                Ok(usize::try_from(id).ok())
            }
        }
    }

    /// Returns sizes that must be there.
    ///
    /// # Errors
    /// They are absent, or not a list of positive integers.
    pub fn sizes(&self, name: &str) -> Result<Vec<usize>, String> {
        let list = self.get(name).and_then(Value::as_array).ok_or_else(|| format!("{name} is no list"))?;
        let size = |value: &Value| value.as_u64().filter(|&n| n > 0).and_then(|n| usize::try_from(n).ok());
        let wrong = || format!("{name} is not a list of positive integers");
        list.iter().map(|value| size(value).ok_or_else(wrong)).collect()
    }

    /// Returns a number, or `default` if it is absent.
    ///
    /// # Errors
    /// It is not a number.
    pub fn number_or(&self, name: &str, default: f32) -> Result<f32, String> {
        let Some(value) = self.get(name) else { return Ok(default) };
        value.as_f64().map(|x| x as f32).ok_or_else(|| format!("{name} is {value}, not a number"))
    }

    /// Returns a text, or `default` if it is absent.
    ///
    /// # Errors
    /// It is not a text.
    pub fn text_or<'a>(&'a self, name: &str, default: &'a str) -> Result<&'a str, String> {
        let Some(value) = self.get(name) else { return Ok(default) };
        value.as_str().ok_or_else(|| format!("{name} is {value}, not a text"))
    }

    /// Returns a switch, or `default` if it is absent.
    ///
    /// # Errors
    /// It is neither true nor false.
    pub fn flag_or(&self, name: &str, default: bool) -> Result<bool, String> {
        let Some(value) = self.get(name) else { return Ok(default) };
        value.as_bool().ok_or_else(|| format!("{name} is {value}, neither true nor false"))
    }

    /// Refuses settings that must have the value that the model is written for, if they are there.
    ///
    /// # Errors
    /// One has another value.
    pub fn expect(&self, settings: &[(&str, Value)]) -> Result<(), String> {
        for (name, expected) in settings {
            if let Some(value) = self.get(name).filter(|value| *value != expected) {
                return Err(format!("{name} is {value}, and this model has only {expected}"));
            }
        }
        Ok(())
    }

    /// Returns the number of classes: that of `id2label`, else `num_labels`, else 2.
    ///
    /// # Errors
    /// It is not a positive integer.
    pub fn labels(&self) -> Result<usize, String> {
        match self.get("id2label").and_then(Value::as_object) {
            Some(labels) if !labels.is_empty() => Ok(labels.len()),
            _ => self.size_or("num_labels", 2),
        }
    }

    /// Returns the class of transformers that the weights were saved from, such as `GPT2LMHeadModel`.
    pub fn class(&self) -> &str {
        let first = self.get("architectures").and_then(Value::as_array).and_then(|list| list.first());
        first.and_then(Value::as_str).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_setting() {
        let config = Config::parse(br#"{"a": 0, "b": "x", "c": null, "d": 1.5, "e": 7}"#).unwrap();
        assert_eq!(config.size("a").unwrap_err(), "a is 0, not a positive integer");
        assert_eq!(config.size("b").unwrap_err(), "b is \"x\", not a positive integer");
        assert_eq!(config.size("c").unwrap_err(), "c is missing");
        assert_eq!(config.layers("e"), Ok(7));
        let many = Config::parse(br#"{"e": 1001}"#).unwrap().layers("e").unwrap_err();
        assert_eq!(many, "e is 1001, and a model has at most 1000 layers");
        assert_eq!((config.size("e"), config.size_or("c", 3)), (Ok(7), Ok(3)));
        assert_eq!(config.flag_or("d", true).unwrap_err(), "d is 1.5, neither true nor false");
        assert_eq!(config.expect(&[("e", 8.into())]).unwrap_err(), "e is 7, and this model has only 8");
        assert!(Config::parse(b"[1]").is_err());
    }
}
