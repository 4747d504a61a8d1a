//! From logits to a token, on the host, with the same result on every machine.

use std::borrow::Cow;

use unisono::graph::elementary::Elementary;
use unisono::{OUTPUT, Predictions};
use unisono_random::Draws;

use super::Generate;

/// Returns the logits behind the newest token of each of `texts` texts.
pub(super) fn rows(outputs: &Predictions, texts: usize) -> impl Iterator<Item = &[f32]> {
    let logits = outputs.get(OUTPUT).map(|logits| &*logits.values).unwrap_or_default();
    logits.chunks((logits.len() / texts.max(1)).max(1))
}

/// Checks logits by which a token is chosen. A token whose logit is -infinity is never chosen.
///
/// # Errors
/// A logit is NaN or infinity, or all are -infinity. The text says so.
pub(super) fn check(logits: &[f32]) -> Result<(), &'static str> {
    let is_wrong = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
    if logits.iter().any(is_wrong) || has_none(logits) {
        return Err("the model's logits are not finite: its weights may be broken");
    }
    Ok(())
}

/// Returns whether no token can be chosen.
fn has_none(logits: &[f32]) -> bool {
    logits.iter().all(|logit| *logit == f32::NEG_INFINITY)
}

/// Chooses a token by logits: the likeliest one, or a random one if the settings say so. Those of `never` are
/// left out.
///
/// # Errors
/// The logits are not finite ([`check`]), or no token is left. The text says so.
pub(super) fn choose(
    logits: &[f32],
    never: &[i32],
    settings: &Generate,
    mut draws: Draws,
) -> Result<i32, &'static str> {
    check(logits)?;
    let mut logits = Cow::Borrowed(logits);
    for token in never.iter().filter_map(|token| usize::try_from(*token).ok()) {
        if token < logits.len() {
            logits.to_mut()[token] = f32::NEG_INFINITY;
        }
    }
    if has_none(&logits) {
        return Err("all tokens are suppressed");
    }
    Ok(if settings.draws() { draw(&logits, settings, draws.next_f32()) } else { greedy(&logits) } as i32)
}

/// Returns the place of the largest logit, of equal ones the first.
fn greedy(logits: &[f32]) -> usize {
    let larger = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
    (1..logits.len()).fold(0, larger)
}

/// Draws a token by a uniform number in [0, 1): by softmax(logits / temperature), of which `top_k` and then
/// `top_p` leave the likeliest.
fn draw(logits: &[f32], settings: &Generate, uniform: f32) -> usize {
    let temperature = settings.temperature.unwrap_or(1.0);
    let highest = logits[greedy(logits)];
    // Equal logits are in the order of their tokens.
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order.truncate(settings.top_k.unwrap_or(usize::MAX));
    let exp = |&at: &usize| f64::from(HOST.exp((logits[at] - highest) / temperature));
    let weights: Vec<f64> = order.iter().map(exp).collect();
    let kept = match settings.top_p {
        None => weights.len(),
        Some(p) => until(&weights, f64::from(p)) + 1,
    };
    order[until(&weights[..kept], f64::from(uniform).next_up())]
}

/// Returns the first place where the weights up to it are at least a part of all.
fn until(weights: &[f64], part: f64) -> usize {
    let wanted = part * weights.iter().sum::<f64>();
    let mut sum = 0.0;
    let reaches = |weight: &f64| {
        sum += weight;
        sum >= wanted
    };
    weights.iter().position(reaches).unwrap_or(weights.len() - 1)
}

/// The functions of Rust's standard library differ from one system to another.
const HOST: Elementary = Elementary { fused: true };

#[cfg(test)]
mod tests {
    use super::*;

    /// -infinity is a logit that a model may give to a token, and it is never drawn.
    #[test]
    fn logits_that_are_not_finite_are_refused() {
        const NONE: f32 = f32::NEG_INFINITY;
        let draws = || Draws::of(1, "test", "", 0, 0);
        for settings in [Generate::new(), Generate::new().temperature(9.0), Generate::new().top_k(3)] {
            let choose = |logits: &[f32], never: &[i32]| choose(logits, never, &settings, draws());
            for wrong in [&[0.0, f32::NAN, 1.0], &[0.0, f32::INFINITY, NONE], &[NONE; 3], &[][..]] {
                let problem = choose(wrong, &[1]).unwrap_err();
                assert!(problem.starts_with("the model's logits are not finite"), "{wrong:?}: {problem}");
            }
            assert_eq!(choose(&[NONE, -3.0, NONE], &[]), Ok(1));
            assert_eq!(choose(&[9.0, 1.0, 9.0], &[0, 2, 7, -1]), Ok(1));
            assert_eq!(choose(&[9.0, 1.0, NONE], &[0, 1]), Err("all tokens are suppressed"));
        }
        let settings = Generate::new().temperature(1.0);
        (0..1000).for_each(|i| assert_eq!(draw(&[NONE, 0.0, NONE], &settings, i as f32 / 1000.0), 1));
    }

    #[test]
    fn draws_have_the_probabilities_of_softmax() {
        // Probabilities 0.1, 0.2, 0.3 and 0.4.
        let logits = [0.1_f32, 0.2, 0.3, 0.4].map(f32::ln);
        let counts = |settings: &Generate| {
            let mut counts = [0; 4];
            (0..1000).for_each(|i| counts[draw(&logits, settings, i as f32 / 1000.0)] += 1);
            counts
        };
        let near = |counts: [i32; 4], expected: [i32; 4]| {
            let off = counts.iter().zip(expected).map(|(a, b)| (a - b).abs()).max();
            assert!(off <= Some(1), "{counts:?}, expected {expected:?}");
        };
        near(counts(&Generate::new().temperature(1.0)), [100, 200, 300, 400]);
        near(counts(&Generate::new().top_k(2)), [0, 0, 429, 571]);
        near(counts(&Generate::new().top_p(0.65)), [0, 0, 429, 571]);
        near(counts(&Generate::new().top_p(0.75)), [0, 222, 333, 444]);
        near(counts(&Generate::new().top_k(3).top_p(0.4)), [0, 0, 0, 1000]);
        // Squares: 1, 4, 9 and 16 of 30.
        near(counts(&Generate::new().temperature(0.5)), [33, 133, 300, 533]);
        assert_eq!((greedy(&[1.0, 3.0, 3.0]), greedy(&[f32::NEG_INFINITY, -1.0])), (1, 1));
    }
}
