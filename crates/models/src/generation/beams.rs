//! Beam search: the most likely of several texts that are continued side by side.

use unisono_random::Stream as Draws;

use crate::architectures::decoder::Decoder;
use crate::error::Error;

use super::stream::{Stream, streams};
use super::{Generate, Generator};

/// The score of what does not count, as in transformers.
const OUT: f64 = -1e9;

/// The beams of a prompt.
struct Beams {
    running: Vec<Beam>,
    /// The best finished texts.
    finished: Vec<Finished>,
    /// Whether a running beam may still become better than the finished ones.
    is_open: bool,
}

/// A text that is continued, and ln of its probability.
struct Beam {
    tokens: Vec<i32>,
    score: f64,
    /// The row of the last step that it continues.
    row: usize,
}

/// A text that has ended, or the place for one, and its score for each token.
#[derive(Clone)]
struct Finished {
    tokens: Vec<i32>,
    score: f64,
    has_ended: bool,
}

/// Writes behind prompts, the best text of each.
pub(super) fn search<M: Decoder>(
    generator: &mut Generator<M>,
    prompts: &[Vec<i32>],
) -> Result<Vec<Vec<i32>>, Error> {
    let settings = generator.settings.clone();
    let mut all = Vec::with_capacity(prompts.len());
    for part in prompts.chunks(settings.batch / settings.beams) {
        let draws: Vec<Draws> = streams(part, &settings);
        let mut steps = Stream::new(generator, part, &draws);
        let mut beams: Vec<Beams> = (0..part.len()).map(|row| Beams::new(row, &settings)).collect();
        let mut written = 0;
        while beams.iter().any(Beams::goes_on) {
            let of = |row| {
                let has = |beams: &Beams| beams.running.iter().any(|beam| beam.row == row);
                all.len() + beams.iter().position(has).unwrap_or(row)
            };
            let logits = steps.logits().map_err(|error| error.of_prompt(of))?;
            for beams in beams.iter_mut().filter(|beams| beams.goes_on()) {
                beams.step(&logits, written, &settings);
            }
            written += 1;
            // The rows that the next step continues, in the order of the prompts and their beams.
            let mut rows = Vec::new();
            for beam in beams.iter_mut().filter(|beams| beams.goes_on()).flat_map(|beams| &mut beams.running)
            {
                rows.push((beam.row, beam.tokens.last().copied().unwrap_or(0)));
                beam.row = rows.len() - 1;
            }
            steps.go_on(&rows);
        }
        all.extend(beams.into_iter().map(Beams::best));
    }
    Ok(all)
}

impl Beams {
    fn new(row: usize, settings: &Generate) -> Self {
        let none = Finished { tokens: Vec::new(), score: OUT, has_ended: false };
        Self {
            running: vec![Beam { tokens: Vec::new(), score: 0.0, row }],
            finished: vec![none; settings.beams],
            is_open: true,
        }
    }

    fn goes_on(&self) -> bool {
        self.is_open && !self.running.is_empty()
    }

    /// Takes the likeliest tokens behind all running beams. `written` tokens were written before.
    fn step(&mut self, logits: &[Vec<f32>], written: usize, settings: &Generate) {
        let stop = settings.stop.as_deref().unwrap_or_default();
        // So many that enough are left which do not end.
        let most = settings.beams * (1 + stop.len()).max(2);
        let found = self.likeliest(logits, most);
        let length = written + 1;
        let ends = |token: i32| stop.contains(&token) || length == settings.most;
        for (place, (beam, token, score)) in found.iter().enumerate() {
            if ends(*token) && place < settings.beams {
                let tokens = [&*self.running[*beam].tokens, &[*token]].concat();
                self.finished.push(Finished { tokens, score: score / length as f64, has_ended: true });
            }
        }
        // Of equal ones the first stays in front.
        self.finished.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.finished.truncate(settings.beams);
        let on = found.into_iter().filter(|(_, token, _)| !ends(*token)).take(settings.beams);
        let next = |(beam, token, score): (usize, i32, f64)| {
            let before = &self.running[beam];
            Beam { tokens: [&*before.tokens, &[token]].concat(), score, row: before.row }
        };
        self.running = on.map(next).collect();
        let worst = self.finished.last().map_or(OUT, |last| last.score);
        let limit = |finished: &Finished| if finished.has_ended { worst } else { OUT };
        let best = self.running.first().map_or(OUT, |beam| beam.score / length as f64);
        self.is_open = self.finished.iter().any(|finished| best > limit(finished));
    }

    /// Returns the likeliest continuations: their beams, tokens and scores, the likeliest first. Of equal
    /// ones the first beam and the smaller token come first.
    fn likeliest(&self, logits: &[Vec<f32>], most: usize) -> Vec<(usize, i32, f64)> {
        let mut all = Vec::new();
        for (at, beam) in self.running.iter().enumerate() {
            let logits = logits.get(beam.row).map(Vec::as_slice).unwrap_or_default();
            let logs = log_softmax(logits);
            all.extend(logs.iter().enumerate().map(|(token, log)| (at, token as i32, beam.score + log)));
        }
        let order = |a: &(usize, i32, f64), b: &(usize, i32, f64)| {
            b.2.total_cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1)))
        };
        if most < all.len() {
            all.select_nth_unstable_by(most, order);
            all.truncate(most);
        }
        all.sort_by(order);
        all
    }

    /// Returns the best text.
    fn best(self) -> Vec<i32> {
        let ended = self.finished.into_iter().find(|finished| finished.has_ended);
        let tokens = ended.map(|finished| finished.tokens);
        tokens.unwrap_or_else(|| self.running.into_iter().next().map(|beam| beam.tokens).unwrap_or_default())
    }
}

/// Returns ln of the probabilities, computed in f64.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let highest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| libm::exp(f64::from(logit) - highest)).sum();
    let shift = highest + libm::log(sum);
    logits.iter().map(|&logit| f64::from(logit) - shift).collect()
}
