//! What is written, and how.

use crate::error::Error;

/// The settings of a [`Generator`](crate::Generator), with the names and the meaning of transformers'
/// `GenerationConfig`.
///
/// By default, each token is the most likely one (greedy search). With
/// [`temperature`](Generate::temperature), [`top_k`](Generate::top_k) or [`top_p`](Generate::top_p), tokens
/// are sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct Generate {
    pub(super) most: usize,
    pub(super) temperature: Option<f32>,
    pub(super) top_k: Option<usize>,
    pub(super) top_p: Option<f32>,
    pub(super) stop: Option<Vec<i32>>,
    pub(super) seed: u64,
    pub(super) cached: bool,
    pub(super) batch: usize,
    pub(super) beams: usize,
}

impl Default for Generate {
    fn default() -> Self {
        Self {
            most: 20,
            temperature: None,
            top_k: None,
            top_p: None,
            stop: None,
            seed: 0,
            cached: true,
            batch: 32,
            beams: 1,
        }
    }
}

impl Generate {
    /// Returns settings for greedy search with 20 tokens.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the maximum number of tokens that are generated after a prompt (`max_new_tokens`). Default: 20.
    pub fn most(self, tokens: usize) -> Self {
        Self { most: tokens, ..self }
    }

    /// Samples from softmax(logits / temperature). Default: 1, if tokens are sampled.
    pub fn temperature(self, temperature: f32) -> Self {
        Self { temperature: Some(temperature), ..self }
    }

    /// Samples only from the `k` most likely tokens.
    pub fn top_k(self, k: usize) -> Self {
        Self { top_k: Some(k), ..self }
    }

    /// Samples from the smallest set of most likely tokens that together have the probability `p` (Holtzman
    /// et al. 2020), after `top_k`.
    pub fn top_p(self, p: f32) -> Self {
        Self { top_p: Some(p), ..self }
    }

    /// Ends a text after one of these tokens (`eos_token_id`). Default: those of the model's directory.
    /// Without any, each text gets the maximum number of tokens.
    pub fn stop(self, tokens: impl IntoIterator<Item = i32>) -> Self {
        Self { stop: Some(tokens.into_iter().collect()), ..self }
    }

    /// Sets the seed of the random draws. With the same seed, the same prompt gets the same tokens, whatever
    /// the other prompts are. If a prompt occurs several times, each occurrence has draws of its own.
    /// Default: 0.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Sets whether the keys and values of earlier tokens are cached (`use_cache`). Without a cache, each
    /// token reads the whole text again, with the same result. Default: true.
    pub fn cached(self, cached: bool) -> Self {
        Self { cached, ..self }
    }

    /// Searches with this many beams (`num_beams`): the likeliest beginnings are continued side by side, and
    /// the text with the highest mean of ln of its tokens' probabilities is returned. Default: 1, which is
    /// greedy search. It cannot be combined with draws or streams.
    pub fn beams(self, beams: usize) -> Self {
        Self { beams, ..self }
    }

    /// Sets the maximum number of prompts that are computed together, over all replicas. With
    /// [`beams`](Generate::beams), each beam of a prompt counts as one. Default: 32.
    pub fn batch(self, prompts: usize) -> Self {
        Self { batch: prompts, ..self }
    }

    /// Returns whether tokens are drawn.
    pub(super) fn draws(&self) -> bool {
        self.temperature.is_some() || self.top_k.is_some() || self.top_p.is_some()
    }

    /// Returns whether a text ends with this token.
    pub(super) fn ends_at(&self, token: i32) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.contains(&token))
    }

    /// # Errors
    /// The first setting that is out of range.
    pub(super) fn check(&self) -> Result<(), Error> {
        let wrong = |name, problem: String| Err(Error::setting(name, problem));
        match self {
            Self { most: 0, .. } => wrong("most", "a text has at least one token".into()),
            Self { batch: 0, .. } => wrong("batch", "a batch has at least one prompt".into()),
            Self { beams: 0, .. } => wrong("beams", "it is 0, and must be at least 1".into()),
            Self { beams, batch, .. } if beams > batch => wrong(
                "beams",
                format!("{beams} beams in batches of {batch}: set `batch` to {beams} at least"),
            ),
            Self { beams, .. } if *beams > 1 && self.draws() => {
                wrong("beams", "several beams cannot be combined with temperature, top_k or top_p".into())
            }
            Self { top_k: Some(0), .. } => wrong("top_k", "it is 0, and must be at least 1".into()),
            Self { temperature: Some(t), .. } if !(*t > 0.0 && t.is_finite()) => wrong(
                "temperature",
                format!(
                    "it is {t}, and must be above 0 (without it, and without top_k and top_p, the likeliest token is taken)"
                ),
            ),
            Self { top_p: Some(p), .. } if !(*p > 0.0 && *p <= 1.0) => {
                wrong("top_p", format!("it is {p}, and must be above 0 and at most 1"))
            }
            _ => Ok(()),
        }
    }
}
