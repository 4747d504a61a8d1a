//! Models whose decoder reads what an encoder made of another text, or of sound.

use unisono::{Context, Var};

use super::Architecture;
use super::decoder::{DecoderSizes, Reader};

/// A model with an encoder and a decoder, which [`Writer`](crate::Writer) writes with.
pub trait EncoderDecoder: Architecture {
    /// Returns the sizes of the keys and values that the decoder computes for each of its own tokens. Its
    /// keys and values of the encoder's result have as many layers, heads and features.
    fn sizes(&self) -> DecoderSizes;

    /// Returns the token that each text begins with (`decoder_start_token_id`).
    fn start(&self) -> usize;

    /// Returns the number of positions of the encoder's result, for a model that reads sound. A text has as
    /// many as it has tokens.
    fn positions(&self) -> usize {
        0
    }

    /// Returns the logits of the tokens `ids`, `[B, T]`, that the reader reads behind `source`.
    fn write(
        &self,
        cx: &mut Context,
        source: Source<'_>,
        ids: &Var,
        reader: &mut Reader,
        cross: &mut Cross,
    ) -> Var;
}

/// What an encoder reads.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Ids `[B, S]`, or a spectrum `[B, bins, frames]`.
    pub x: &'a Var,
    /// The positions that are not padding, `[B, S]`.
    pub mask: Option<&'a Var>,
}

/// The keys and values of an encoder's result, for each layer of a decoder: those that it computes, or those
/// that were computed before.
#[derive(Debug, Default)]
pub struct Cross {
    /// The keys and values that were computed before, `[B, heads, S, width]`.
    known: Vec<[Var; 2]>,
    kept: Vec<[Var; 2]>,
}

impl Cross {
    /// Returns what has the keys and values of each layer. The encoder's result then does not count.
    pub fn known(known: Vec<[Var; 2]>) -> Self {
        Self { known, kept: Vec::new() }
    }

    /// Returns the keys and values of each layer.
    pub fn kept(&self) -> &[[Var; 2]] {
        &self.kept
    }

    /// Takes the keys and values that a layer computed, and returns those that count. The layers call it in
    /// their order.
    pub(super) fn take(&mut self, computed: [Var; 2]) -> [Var; 2] {
        let counted = self.known.get(self.kept.len()).cloned().unwrap_or(computed);
        self.kept.push(counted.clone());
        counted
    }
}
