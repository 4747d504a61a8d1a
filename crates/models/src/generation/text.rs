//! Texts in and out, by the model's tokenizer.

use std::sync::Arc;

use unisono::data::Tokenizer;

use crate::architectures::decoder::Decoder;
use crate::error::Error;
use crate::files;

use super::{Generator, Stream};

/// What a tokenizer writes for bytes that are not yet a character.
const INCOMPLETE: char = '\u{fffd}';

impl<M: Decoder> Generator<M> {
    /// Returns what the model writes after each prompt, as text: [`Generator::tokens`] with the
    /// `tokenizer.json` of the model's directory. Special tokens are left out. Needs the feature
    /// `tokenizers`, which is on by default.
    ///
    /// # Errors
    /// The directory has no tokenizer. Those of [`Generator::tokens`].
    pub fn text<T: AsRef<str>>(
        &mut self,
        prompts: impl IntoIterator<Item = T>,
    ) -> Result<Vec<String>, Error> {
        let (tokenizer, prompts) = self.encode(prompts)?;
        let written = self.tokens(&prompts)?;
        let text = |(prompt, tokens): (Vec<i32>, Vec<i32>)| {
            let mut pieces = Pieces::new(Arc::clone(&tokenizer), prompt);
            pieces.tokens.extend(tokens);
            pieces.rest()
        };
        prompts.into_iter().zip(written).map(text).collect()
    }

    /// Returns an iterator over the steps for up to [`Generate::batch`](crate::Generate::batch) prompts. Each
    /// step has, for each prompt, the piece of text that its next token adds. A piece is empty if the text
    /// has ended, or if the token ends within a character, whose bytes then come with a later piece. The
    /// pieces of a prompt make what [`Generator::text`] returns.
    ///
    /// # Errors
    /// Those of [`Generator::stream`] and [`Generator::text`] that are known before the first step.
    pub fn stream_text<T: AsRef<str>>(
        &mut self,
        prompts: impl IntoIterator<Item = T>,
    ) -> Result<TextStream<'_, M>, Error> {
        let (tokenizer, prompts) = self.encode(prompts)?;
        let pieces = prompts.iter().map(|prompt| Pieces::new(Arc::clone(&tokenizer), prompt.clone()));
        let pieces = pieces.collect();
        Ok(TextStream { steps: self.stream(&prompts)?, pieces, has_ended: false })
    }

    /// Returns the perplexity of a text, as [`Generator::perplexity_of`] does of tokens.
    ///
    /// # Errors
    /// The directory has no tokenizer. Those of [`Generator::perplexity_of`].
    pub fn perplexity(&mut self, text: &str, window: usize, stride: usize) -> Result<f64, Error> {
        let (_, tokens) = self.encode([text])?;
        self.perplexity_of(tokens.first().map(Vec::as_slice).unwrap_or_default(), window, stride)
    }

    /// Returns the tokenizer, and the tokens of texts.
    fn encode<T: AsRef<str>>(
        &mut self,
        texts: impl IntoIterator<Item = T>,
    ) -> Result<(Arc<Tokenizer>, Vec<Vec<i32>>), Error> {
        let tokenizer = match &self.tokenizer {
            Some(tokenizer) => Arc::clone(tokenizer),
            None => Arc::clone(self.tokenizer.insert(Arc::new(files::tokenizer(&self.dir)?))),
        };
        let ids = texts.into_iter().map(|text| tokenizer.encode(text.as_ref()));
        let ids = ids.collect::<Result<_, _>>().map_err(unisono::Error::from)?;
        Ok((tokenizer, ids))
    }
}

/// The pieces of texts, made by [`Generator::stream_text`]. An error ends it.
pub struct TextStream<'a, M> {
    steps: Stream<'a, M>,
    pieces: Vec<Pieces>,
    has_ended: bool,
}

impl<M: Decoder> Iterator for TextStream<'_, M> {
    type Item = Result<Vec<String>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        match self.steps.next() {
            Some(Ok(tokens)) => {
                Some(self.pieces.iter_mut().zip(tokens).map(|(pieces, token)| pieces.next(token)).collect())
            }
            Some(Err(error)) => {
                self.has_ended = true;
                Some(Err(error))
            }
            None => {
                self.has_ended = true;
                let rest: Result<Vec<String>, Error> = self.pieces.iter_mut().map(Pieces::rest).collect();
                let is_over = rest.as_ref().is_ok_and(|rest| rest.iter().all(String::is_empty));
                (!is_over).then_some(rest)
            }
        }
    }
}

/// A text in pieces. The text of a token may depend on the one before it, such as the space between two
/// words. So a piece is what the tokens since the piece before last say, less what that piece said.
struct Pieces {
    tokenizer: Arc<Tokenizer>,
    tokens: Vec<i32>,
    /// The first token of the last piece, and the first one after it.
    last: [usize; 2],
}

impl Pieces {
    fn new(tokenizer: Arc<Tokenizer>, prompt: Vec<i32>) -> Self {
        let end = prompt.len();
        Self { tokenizer, tokens: prompt, last: [0, end] }
    }

    /// Returns what a token adds.
    fn next(&mut self, token: Option<i32>) -> Result<String, Error> {
        self.tokens.extend(token);
        let (before, all) = self.decode()?;
        if token.is_none() || all.ends_with(INCOMPLETE) {
            return Ok(String::new());
        }
        let piece = added(&before, &all);
        // Behind a special token, which has no text, the next one would be decoded as the first of a text.
        if !piece.is_empty() {
            self.last = [self.last[1], self.tokens.len()];
        }
        Ok(piece)
    }

    /// Returns what is left, even if it ends within a character.
    fn rest(&mut self) -> Result<String, Error> {
        let (before, all) = self.decode()?;
        self.last = [self.last[1], self.tokens.len()];
        Ok(added(&before, &all))
    }

    /// Returns the text of the last piece, and that of it with all tokens after it.
    fn decode(&self) -> Result<(String, String), Error> {
        let [start, end] = self.last;
        let text = |part: &[i32]| self.tokenizer.decode(part).map_err(unisono::Error::from);
        Ok((text(&self.tokens[start..end])?, text(&self.tokens[start..])?))
    }
}

/// Returns what `all` has after its start `before`, whose last character may have been incomplete.
fn added(before: &str, all: &str) -> String {
    let same = before.chars().zip(all.chars()).take_while(|(a, b)| a == b);
    let shared: usize = same.map(|(character, _)| character.len_utf8()).sum();
    all[shared..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A decoder of words whose first space is dropped, as Llama's. The token 0 is a special one.
    const WORDS: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{"id": 0,
        "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true}], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "model": {"type": "WordLevel", "vocab": {"<s>": 0, "▁a": 1, "▁good": 2, "▁film": 3,
        "s": 4}, "unk_token": "<s>"}}"#;

    #[test]
    fn the_pieces_make_the_text_with_special_tokens_anywhere() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        std::fs::write(&path, WORDS).unwrap();
        let tokenizer = Arc::new(Tokenizer::open(&path).unwrap());
        let text = |prompt: &[i32], written: &[i32]| {
            let mut pieces = Pieces::new(Arc::clone(&tokenizer), prompt.to_vec());
            pieces.tokens.extend(written);
            pieces.rest().unwrap()
        };
        assert_eq!(text(&[1], &[2, 0, 3]), " good film");
        // Every text of four tokens behind every prompt of two.
        let digits = |number: i32, count: u32| (0..count).map(|at| number / 5_i32.pow(at) % 5).collect();
        for number in 0..5_i32.pow(6) {
            let (prompt, written): (Vec<i32>, Vec<i32>) = (digits(number % 25, 2), digits(number / 25, 4));
            let mut pieces = Pieces::new(Arc::clone(&tokenizer), prompt.clone());
            let mut streamed: String =
                written.iter().map(|&token| pieces.next(Some(token)).unwrap()).collect();
            streamed += &pieces.rest().unwrap();
            assert_eq!(streamed, text(&prompt, &written), "{prompt:?}, {written:?}");
        }
    }
}
