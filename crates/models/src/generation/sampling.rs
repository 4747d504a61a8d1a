//! From logits to a token, on the host, with the same result on every machine.

use unisono::graph::elementary::Elementary;

use super::Generate;

/// Returns the place of the largest logit, of equal ones the first.
pub(super) fn greedy(logits: &[f32]) -> usize {
    let larger = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
    (1..logits.len()).fold(0, larger)
}

/// Draws a token by a uniform number in [0, 1): by softmax(logits / temperature), of which `top_k` and then
/// `top_p` leave the likeliest.
pub(super) fn draw(logits: &[f32], settings: &Generate, uniform: f32) -> usize {
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
