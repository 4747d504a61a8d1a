//! The perplexity of a text that is longer than what the model reads at once.

use std::collections::BTreeMap;

use unisono::data::Sample;
use unisono::{INPUT, OUTPUT, TARGET};

use crate::architectures::decoder::Decoder;
use crate::error::Error;

use super::{Generator, Program, ids};

/// A window of the text: its first token, and the predictions in it that count.
struct Window {
    first: usize,
    counted: std::ops::Range<usize>,
}

impl<M: Decoder> Generator<M> {
    /// Returns the perplexity of tokens: e to the mean of -ln of the probability that the model gives each of
    /// them. The text is read in windows of `window` tokens that start `stride` tokens apart. A token that is
    /// in two windows counts in the first of them. The first token of a window is not predicted there. With a
    /// smaller stride, tokens have more tokens before them in their window, so the perplexity is closer to
    /// that of the whole text ("Perplexity of fixed-length models" in the documentation of transformers).
    ///
    /// The sum is in f64, in the order of the tokens. It is the same on any number of replicas and for any
    /// [`Generate::batch`](crate::Generate::batch).
    ///
    /// # Errors
    /// There are fewer than 2 tokens, or the model does not know one of them. The window has fewer than 2
    /// tokens or more than the model reads; the stride is 0 or larger than the window. The replicas fail.
    pub fn perplexity_of(&mut self, tokens: &[i32], window: usize, stride: usize) -> Result<f64, Error> {
        let context = self.architecture.sizes().context;
        let wrong = |problem: String| Err(Error::setting("perplexity", problem));
        if !(2..=context).contains(&window) {
            return wrong(format!("a window of {window} tokens, and it must have 2 to {context}"));
        }
        if !(1..=window).contains(&stride) {
            return wrong(format!("a stride of {stride} tokens for windows of {window}"));
        }
        if tokens.len() < 2 {
            return wrong(format!("a text of {} tokens: at least 2 are needed", tokens.len()));
        }
        let (length, mut sum, mut count) = (window - 1, 0.0_f64, 0);
        for windows in windows(tokens.len(), window, stride).chunks(self.settings.batch) {
            // What follows the end of the text is 0, and has no influence on what is before it.
            let part = |from: usize| {
                let own = windows.iter().flat_map(|window| {
                    (0..length).map(move |at| tokens.get(window.first + from + at).copied().unwrap_or(0))
                });
                ids(&[windows.len(), length], own.collect())
            };
            let fields = Sample::new().with(INPUT, part(0)).with(TARGET, part(1));
            let in_window = |error| match error {
                Error::Prompt { index, problem } => {
                    let first = windows.get(index).map_or(0, |window| window.first);
                    Error::setting("perplexity", format!("in the window from token {first} on: {problem}"))
                }
                other => other,
            };
            let outputs = self.run(Program::Losses(length), fields, &BTreeMap::new()).map_err(in_window)?;
            let losses = outputs.get(OUTPUT).map(|losses| &*losses.values).unwrap_or_default();
            for (window, losses) in windows.iter().zip(losses.chunks(length)) {
                let counted = losses.get(window.counted.clone()).unwrap_or_default();
                sum += counted.iter().map(|&loss| f64::from(loss)).sum::<f64>();
                count += counted.len();
            }
        }
        Ok(libm::exp(sum / count as f64))
    }
}

/// Returns the windows of a text, and which predictions count in each.
fn windows(tokens: usize, window: usize, stride: usize) -> Vec<Window> {
    let (mut all, mut done) = (Vec::new(), 1);
    for first in (0..tokens).step_by(stride) {
        let end = (first + window).min(tokens);
        // The prediction of token t is at t - 1 - first.
        let start = done.max(first + 1);
        all.push(Window { first, counted: start - 1 - first..end - 1 - first });
        done = end;
        if end == tokens {
            break;
        }
    }
    all
}
