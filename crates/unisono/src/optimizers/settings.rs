//! Checks of optimizers' settings, as [`Optimizer::check`](super::Optimizer::check) makes them.

/// Checks a number that must be finite, as an f32 too, and not negative.
pub(super) fn not_negative(setting: &str, value: f64) -> Result<(), String> {
    if (value as f32).is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(format!("{setting} is {value}, and must be finite and not negative"))
}

/// Checks a number that must be finite, as an f32 too, and above 0.
pub(super) fn above_zero(setting: &str, value: f64) -> Result<(), String> {
    if (value as f32).is_finite() && value as f32 > 0.0 {
        return Ok(());
    }
    Err(format!("{setting} is {value}, and must be finite and above 0"))
}

/// Checks the share that a running average keeps in a step, which must be in [0, 1).
pub(super) fn kept_share(setting: &str, value: f64) -> Result<(), String> {
    if (0.0..1.0).contains(&value) {
        return Ok(());
    }
    Err(format!("{setting} is {value}, and must be in [0, 1)"))
}

/// Checks the share of the last step that is added to the next one, which must be in [0, 1]: the steps would
/// grow without end.
pub(super) fn momentum(value: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    Err(format!("momentum is {value}, and must be in [0, 1]"))
}

/// Checks a limit of gradients, which must be above 0, because a limit of 0 would make all gradients 0.
/// Infinity limits nothing.
pub(super) fn limit(setting: &str, value: f32) -> Result<(), String> {
    if value > 0.0 {
        return Ok(());
    }
    Err(format!("{setting} is {value}, and must be above 0: omit it to clip nothing"))
}
