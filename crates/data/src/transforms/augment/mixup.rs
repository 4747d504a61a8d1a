//! Mixup: samples of a batch blended in pairs.

use unisono_random::Draws;

use crate::{BoxError, DataError, Sample, Transform};

/// Blends each sample of a batch with another one, features and targets alike: m a + (1 - m) b, with m from
/// the symmetric beta distribution of `alpha` (Zhang et al., 2018).
///
/// Give it to [`Loader::map_batch`](crate::Loader::map_batch). Fields must be f32, so make labels
/// [`one_hot`](crate::one_hot) first. Every sample has its own m, and its partner is the next one of a random
/// order of the batch. So a sample's bits depend on its batch, not on itself alone, and a run must resume at
/// a whole batch to repeat them. It draws as many words as it needs.
///
/// If the batch has a field "y", it has to be among the fields: otherwise its targets would stay those of one
/// sample alone. A single sample, as [`Loader::try_map`](crate::Loader::try_map) gives it, is an error.
pub fn mixup(fields: &[&str], alpha: f32) -> impl Transform {
    let names: Vec<String> = fields.iter().map(|&name| name.to_owned()).collect();
    move |batch: &mut Sample, draws: &mut Draws| {
        positive_alpha("mixup", alpha)?;
        let count = samples("mixup", batch)?;
        let partner = partners(count, draws);
        let shares: Vec<f32> = (0..count).map(|_| beta(f64::from(alpha), draws)).collect();
        names.iter().try_for_each(|name| blend(batch, name, &partner, &shares))?;
        check_targets("mixup", batch, &names)
    }
}

/// Returns the number of samples of a batch, or an error where the fields do not have equally many, as those
/// of a single sample.
pub(super) fn samples(what: &str, batch: &Sample) -> Result<usize, BoxError> {
    let rows: Vec<Option<usize>> = batch.fields().map(|(_, field)| field.shape.first().copied()).collect();
    match rows[..] {
        [Some(samples), ref others @ ..] if others.iter().all(|other| *other == Some(samples)) => Ok(samples),
        _ => Err(format!("{what} blends the samples of a batch: give it to Loader::map_batch").into()),
    }
}

/// Checks that the targets of a batch, if they have their usual name, are among the fields that are blended.
pub(super) fn check_targets(what: &str, batch: &Sample, blended: &[String]) -> Result<(), BoxError> {
    if batch.field("y").is_none() || blended.iter().any(|name| name == "y") {
        return Ok(());
    }
    let advice = "name it too, after one_hot if it has classes, or remove it if nothing is to predict it";
    let what = format!("{what} blends {blended:?} and leaves this target as it is: {advice}");
    Err(DataError::field("y", what).into())
}

/// Checks the parameter of a beta distribution.
pub(super) fn positive_alpha(what: &str, alpha: f32) -> Result<(), BoxError> {
    let sound = alpha > 0.0 && alpha.is_finite();
    if sound { Ok(()) } else { Err(format!("{what} with an alpha of {alpha}").into()) }
}

/// Draws a partner for each sample: the next one of a random order of the batch.
pub(super) fn partners(count: usize, draws: &mut Draws) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        order.swap(i, draws.below(i as u32 + 1) as usize);
    }
    let mut partner = vec![0; count];
    for (i, &at) in order.iter().enumerate() {
        partner[at] = order[(i + 1) % count];
    }
    partner
}

/// Blends each row of a field with that of its partner: its own share, and the rest of the partner's.
pub(super) fn blend(
    batch: &mut Sample,
    name: &str,
    partner: &[usize],
    shares: &[f32],
) -> Result<(), BoxError> {
    let what = match batch.field(name) {
        Some(_) => {
            "i32, and only f32 can be blended: unisono::data::one_hot before it makes probabilities of labels"
        }
        None => "no such f32 field",
    };
    let missing = || DataError::field(name, what);
    let values = batch.f32_mut(name).ok_or_else(missing)?;
    if partner.is_empty() || !values.len().is_multiple_of(partner.len()) {
        return Err(DataError::field(name, "not one row a sample").into());
    }
    let size = values.len() / partner.len();
    let before = values.to_vec();
    for (i, row) in values.chunks_exact_mut(size.max(1)).enumerate() {
        let other = &before[partner[i] * size..][..size];
        for (value, &other) in row.iter_mut().zip(other) {
            *value = *value * shares[i] + other * (1.0 - shares[i]);
        }
    }
    Ok(())
}

/// Draws a symmetric beta variate, from two gamma variates. It takes as many words as it needs.
pub(super) fn beta(alpha: f64, draws: &mut Draws) -> f32 {
    let (log_a, log_b) = (log_gamma_variate(alpha, draws), log_gamma_variate(alpha, draws));
    // This is a / (a + b), from logarithms, which do not underflow for a small alpha.
    (1.0 / (1.0 + libm::exp(log_b - log_a))) as f32
}

/// Draws the logarithm of a gamma variate (Marsaglia and Tsang, 2000). For an alpha below 1 it is made from
/// that of alpha + 1.
fn log_gamma_variate(alpha: f64, draws: &mut Draws) -> f64 {
    if alpha < 1.0 {
        return log_gamma_variate(alpha + 1.0, draws) + libm::log(open_unit(draws)) / alpha;
    }
    let d = alpha - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = f64::from(draws.normal());
        let v = 1.0 + c * x;
        let u = open_unit(draws);
        if v > 0.0 {
            let log_v = 3.0 * libm::log(v);
            if libm::log(u) < 0.5 * x * x + d - d * v * v * v + d * log_v {
                return libm::log(d) + log_v;
            }
        }
    }
}

/// Draws a uniform value between 0 and 1, neither of which it reaches.
fn open_unit(draws: &mut Draws) -> f64 {
    (f64::from(draws.next_u32()) + 0.5) / 4_294_967_296.0
}
