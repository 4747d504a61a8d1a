//! JSON for measured numbers: finite ones as numbers, the others, which JSON has no number for, by name.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An f64 for serde. Signs and payloads of NaNs are lost.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
pub(crate) struct Number(pub f64);

/// What stands in JSON for an f64.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Number(f64),
    Name(String),
    /// Old files have null for every number that is not finite. It is read as NaN.
    Null(()),
}

impl From<Number> for Written {
    fn from(Number(x): Number) -> Self {
        match x {
            _ if x.is_finite() => Self::Number(x),
            _ if x.is_nan() => Self::Name("NaN".into()),
            _ if x > 0.0 => Self::Name("inf".into()),
            _ => Self::Name("-inf".into()),
        }
    }
}

impl TryFrom<Written> for Number {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Number(x) => Ok(Self(x)),
            Written::Null(()) => Ok(Self(f64::NAN)),
            Written::Name(name) => match &*name {
                "NaN" => Ok(Self(f64::NAN)),
                "inf" => Ok(Self(f64::INFINITY)),
                "-inf" => Ok(Self(f64::NEG_INFINITY)),
                _ => Err(format!("{name:?} is no number; those with names are NaN, inf and -inf")),
            },
        }
    }
}

/// Serializes a number, for `#[serde(with = "number")]`.
pub(crate) fn serialize<S: Serializer>(x: &f64, to: S) -> Result<S::Ok, S::Error> {
    Number(*x).serialize(to)
}

/// Deserializes a number.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Number::deserialize(from)?.0)
}

/// Serializes lists of numbers, for `#[serde(with = "number::list")]`.
pub(crate) mod list {
    use super::{Deserialize, Deserializer, Number, Serializer};

    pub(crate) fn serialize<S: Serializer>(list: &[f64], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(list.iter().map(|&x| Number(x)))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
        Ok(Vec::<Number>::deserialize(from)?.into_iter().map(|Number(x)| x).collect())
    }
}

/// Serializes lists of named numbers, for `#[serde(with = "number::named")]`.
pub(crate) mod named {
    use super::{Deserialize, Deserializer, Number, Serializer};

    pub(crate) fn serialize<S: Serializer>(list: &[(String, f64)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(list.iter().map(|(name, x)| (name, Number(*x))))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(String, f64)>, D::Error> {
        let list = Vec::<(String, Number)>::deserialize(from)?;
        Ok(list.into_iter().map(|(name, Number(x))| (name, x)).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use crate::Evaluation;

    #[test]
    fn all_numbers_come_back_and_finite_ones_are_written_as_ever() {
        let losses =
            [0.1, -0.0, 3.0, f64::MIN_POSITIVE, f64::MAX, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
        for loss in losses {
            let metrics = vec![("f1".to_owned(), loss), ("other".to_owned(), 0.5)];
            let evaluation = Evaluation { loss, metrics, samples: 3, ..Evaluation::default() };
            let json = to_value(&evaluation).unwrap();
            if loss.is_finite() {
                assert_eq!(
                    json,
                    json!({"loss": loss, "metrics": [["f1", loss], ["other", 0.5]], "samples": 3})
                );
            }
            let back: Evaluation = serde_json::from_str(&json.to_string()).unwrap();
            assert_eq!(back.loss.to_bits(), loss.to_bits());
            assert_eq!(back.metric("f1").unwrap().to_bits(), loss.to_bits());
        }
    }

    #[test]
    fn null_and_whole_numbers_are_read_and_other_words_are_not() {
        let parse = |loss| from_value::<Evaluation>(json!({"loss": loss, "metrics": [], "samples": 1}));
        assert!(parse(json!(null)).unwrap().loss.is_nan());
        assert_eq!(parse(json!(7)).unwrap().loss, 7.0);
        let error = parse(json!("many")).unwrap_err().to_string();
        assert_eq!(error, "\"many\" is no number; those with names are NaN, inf and -inf");
        assert!(parse(json!([1])).is_err());
    }
}
