//! Numbers and times as people read them in a line of progress.

use std::time::Duration;

use crate::Evaluation;

/// Returns loss and metrics, as in `loss 0.1234  accuracy 0.9722`.
pub(crate) fn measured(evaluation: &Evaluation) -> String {
    let metrics = evaluation.metrics.iter().map(|(name, value)| format!("  {name} {}", number(*value)));
    format!("loss {}{}", number(evaluation.loss), metrics.collect::<String>())
}

/// Returns a number with four significant digits, as in `0.3127`, `12.35` and `3.127e-5`.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let (digits, exponent) = rounded(value);
    match exponent {
        -4..=3 => format!("{value:.places$}", places = (3 - exponent) as usize),
        4..=5 => format!("{value:.0}"),
        _ => format!("{digits}e{exponent}"),
    }
}

/// Returns a number with at most four significant digits, as in `0.1` and `8.1e-4`.
pub(crate) fn short(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let (digits, exponent) = rounded(value);
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    match exponent {
        -2..=3 => {
            let fixed = format!("{value:.places$}", places = (3 - exponent) as usize);
            if fixed.contains('.') {
                fixed.trim_end_matches('0').trim_end_matches('.').to_owned()
            } else {
                fixed
            }
        }
        _ => format!("{digits}e{exponent}"),
    }
}

/// Returns a whole number with commas, as in `3,412`.
pub(crate) fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut shown = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// Returns a time as in `0:41`, `12:05` and `1:12:05`.
pub(crate) fn clock(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

/// Returns the four digits of a number, as in `3.127`, and its power of ten after rounding.
fn rounded(value: f64) -> (String, i32) {
    let scientific = format!("{value:.3e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    (digits.to_owned(), exponent.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        let cases = [
            (0.312_66, "0.3127"),
            (0.999_96, "1.000"),
            (12.345_6, "12.35"),
            (1234.5, "1234"),
            (123_456.7, "123457"),
            (0.000_312_66, "0.0003127"),
            (0.000_031_266, "3.127e-5"),
            (-2.5e9, "-2.500e9"),
            (0.0, "0"),
            (f64::NAN, "NaN"),
        ];
        cases.iter().for_each(|(value, shown)| assert_eq!(number(*value), *shown));
    }

    #[test]
    fn learning_rates_are_short_and_times_are_clocks() {
        let cases = [(8.1e-4, "8.1e-4"), (1e-3, "1e-3"), (0.01, "0.01"), (1.0, "1"), (1234.0, "1234")];
        cases.iter().for_each(|(value, shown)| assert_eq!(short(*value), *shown));
        assert_eq!([3412.4, 12.0, 1_234_567.0].map(thousands), ["3,412", "12", "1,234,567"]);
        assert_eq!(
            [40.6, 725.0, 4325.0].map(|s| clock(Duration::from_secs_f64(s))),
            ["0:41", "12:05", "1:12:05"]
        );
    }
}
