//! JSON of untrusted files as [`Value`], within a budget of bytes: parsed, a text may take a hundred times
//! its length.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The most bytes that a parsed text may take, as this module counts them. What grows with a run's length,
/// such as a history, belongs in tensors.
pub(crate) const PARSED_BYTES: u64 = 384 << 20;

/// What an element of a list counts for. Lists grow by doubling.
const ELEMENT: u64 = 2 * size_of::<Value>() as u64;
/// What an entry of a map counts for, without its key's text. Nodes of the tree are half full at least.
const ENTRY: u64 = 2 * (size_of::<String>() + size_of::<Value>()) as u64;
/// What a map that is not empty counts for beside its entries: its first node has room for eleven.
const MAP: u64 = 11 * ENTRY / 2;

/// Parses a text. Errors are too large a value, a key that occurs twice in a map, and those of `serde_json`.
pub(crate) fn parse(text: &[u8]) -> serde_json::Result<Value> {
    parse_within(text, PARSED_BYTES)
}

fn parse_within(text: &[u8], most: u64) -> serde_json::Result<Value> {
    let left = Cell::new(most);
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = Within { left: &left, most }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Returns the bytes that a value counts for when it is parsed, so that what could not be read is not
/// written.
pub(crate) fn cost(value: &Value) -> u64 {
    match value {
        Value::Array(list) => list.iter().map(|value| ELEMENT.saturating_add(cost(value))).sum(),
        Value::Object(map) if map.is_empty() => 0,
        Value::Object(map) => {
            MAP + map.iter().map(|(key, value)| ENTRY + key.len() as u64 + cost(value)).sum::<u64>()
        }
        Value::String(text) => text.len() as u64,
        _ => 0,
    }
}

/// The deepest nesting of lists and maps that is read, which is that of `serde_json`.
pub(crate) const DEEPEST: usize = 127;

/// Whether lists and maps are nested at most so deep.
pub(crate) fn is_at_most(value: &Value, deep: usize) -> bool {
    match value {
        Value::Array(list) => deep > 0 && list.iter().all(|value| is_at_most(value, deep - 1)),
        Value::Object(map) => deep > 0 && map.values().all(|value| is_at_most(value, deep - 1)),
        _ => true,
    }
}

/// Names the part of a value that counts for most of it: "in sections.history.value".
pub(crate) fn heaviest(value: &Value) -> String {
    let (mut part, mut path) = (value, Vec::new());
    while let Value::Object(map) = part {
        let Some((key, heaviest)) = map.iter().max_by_key(|(_, value)| cost(value)) else { break };
        if 2 * cost(heaviest) < cost(part) {
            break;
        }
        path.push(key.as_str());
        part = heaviest;
    }
    format!("in {}", if path.is_empty() { "several parts".into() } else { path.join(".") })
}

/// Deserializes a value, and takes what it counts for from what is left.
#[derive(Clone, Copy)]
struct Within<'a> {
    left: &'a Cell<u64>,
    most: u64,
}

impl Within<'_> {
    fn take<E: serde::de::Error>(self, bytes: u64) -> Result<(), E> {
        let left = self.left.get().checked_sub(bytes);
        let too_large =
            || E::custom(format_args!("it takes more than {} bytes when it is parsed", self.most));
        self.left.set(left.ok_or_else(too_large)?);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Within<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Within<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        self.take(text.len() as u64)?;
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(self)? {
            self.take(ELEMENT)?;
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if entries.is_empty() {
                self.take(MAP)?;
            }
            self.take(ENTRY + key.len() as u64)?;
            let value = map.next_value_seed(self)?;
            if entries.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the name {key:?} occurs twice")));
            }
            entries.insert(key, value);
        }
        Ok(Value::Object(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_parsed_is_what_serde_json_parses() {
        for text in
            ["null", r#"{"a": [1, -2, 0.30000000000000004, true, "x\u00e9", {}], "b": {"c": []}}"#, "[]"]
        {
            assert_eq!(parse(text.as_bytes()).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        }
        for text in ["", "[1,]", "{} {}", "nul", &"[".repeat(200)] {
            let expected = serde_json::from_str::<Value>(text).unwrap_err().to_string();
            assert_eq!(parse(text.as_bytes()).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn what_is_deep_enough_to_be_read_is_known() {
        for deep in [DEEPEST, DEEPEST + 1] {
            for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
                let text = format!("{}0{}", open.repeat(deep), close.repeat(deep));
                let mut value = Value::from(0);
                for _ in 0..deep {
                    value = if open == "[" { vec![value].into() } else { serde_json::json!({ "a": value }) };
                }
                assert_eq!(is_at_most(&value, DEEPEST), parse(text.as_bytes()).is_ok(), "{deep} {open}");
                assert_eq!(is_at_most(&value, DEEPEST), deep == DEEPEST);
            }
        }
    }

    #[test]
    fn a_text_keeps_to_its_budget() {
        let text = br#"{"a": [1, 2, {"b": "four"}], "c": {"d": {}}}"#;
        let needs = cost(&parse(text).unwrap());
        assert_eq!(needs, 3 * MAP + 4 * ENTRY + 3 * ELEMENT + 4 + 4);
        assert!(parse_within(text, needs).is_ok());
        let error = parse_within(text, needs - 1).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("it takes more than {} bytes when it is parsed", needs - 1)),
            "{error}"
        );
    }

    #[test]
    fn the_heaviest_part_is_named() {
        let text = format!(r#"{{"a": {{"b": {{"c": 1, "d": "{}"}}}}, "e": "short"}}"#, "x".repeat(10_000));
        assert_eq!(heaviest(&parse(text.as_bytes()).unwrap()), "in a.b.d");
        assert_eq!(heaviest(&Value::Null), "in several parts");
    }

    #[test]
    fn a_name_that_occurs_twice_is_an_error() {
        let error = parse(br#"{"step": 1, "st\u0065p": 2}"#).unwrap_err().to_string();
        assert!(error.starts_with(r#"the name "step" occurs twice"#), "{error}");
    }
}
