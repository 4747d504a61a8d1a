//! Decoders: models of texts whose tokens each see those before them.

use unisono::functional::{
    repeat_heads, rotary_by, scaled_dot_product_attention_biased, scaled_dot_product_attention_masked,
};
use unisono::graph::ops::Iota;
use unisono::{Context, Var};

use super::Architecture;

/// A decoder, which [`Generator`](crate::Generator) writes with.
pub trait Decoder: Architecture {
    /// Returns the sizes of the keys and values that the model computes for each token.
    fn sizes(&self) -> DecoderSizes;

    /// Returns the logits of the tokens `x`: of the last token of each prompt if the reader was made by
    /// [`Reader::prompt`], otherwise of all tokens that it reads.
    fn decode(&self, cx: &mut Context, x: &Var, reader: &mut Reader) -> Var;
}

/// The sizes of a decoder's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderSizes {
    /// The most tokens of a sequence.
    pub context: usize,
    /// The number of layers with attention.
    pub layers: usize,
    /// The heads of keys and values in each.
    pub heads: usize,
    /// The features of a head.
    pub width: usize,
}

/// What a decoder's trace reads: a whole sequence, or one token behind those whose keys and values are
/// there. Both give the same bits.
#[derive(Debug)]
pub struct Reader {
    read: Read,
    /// The keys and values of each layer so far, `[B, heads, T, width]`.
    kept: Vec<[Var; 2]>,
    /// Those of all tokens, with the new token's at its position, if one token is read.
    whole: Vec<[Var; 2]>,
}

#[derive(Debug)]
enum Read {
    /// All tokens. Those whose mask is 0 are padding. With a length, only its last token's logits are
    /// wanted.
    Whole { mask: Option<Var>, length: Option<Var> },
    /// One token at a position, with the keys and values of each layer. Only those before the position count.
    Next { position: Var, before: Vec<[Var; 2]> },
}

impl Reader {
    /// Reads whole sequences, `[B, T]`. Positions whose `mask` is 0 are padding.
    pub fn whole(mask: Option<&Var>) -> Self {
        Self::new(Read::Whole { mask: mask.cloned(), length: None })
    }

    /// Reads prompts of different lengths, `[B, T]`, whose ends are filled up. Of each only the logits of its
    /// last token are wanted; `length` is `[B]` of i32.
    pub fn prompt(length: &Var) -> Self {
        Self::new(Read::Whole { mask: None, length: Some(length.clone()) })
    }

    /// Reads one token of each sequence, `[B, 1]`, at its `position`, `[B]` of i32. `before` holds each
    /// layer's keys and values, `[B, heads, T, width]`. Only those before `position` are used.
    pub fn next(position: &Var, before: Vec<[Var; 2]>) -> Self {
        Self::new(Read::Next { position: position.clone(), before })
    }

    fn new(read: Read) -> Self {
        Self { read, kept: Vec::new(), whole: Vec::new() }
    }

    /// Returns the keys and values that each layer computed of the tokens that were read.
    pub fn kept(&self) -> &[[Var; 2]] {
        &self.kept
    }

    /// Returns each layer's keys and values of all tokens, `[B, heads, T, width]`, if one token is read.
    pub fn whole_kept(&self) -> &[[Var; 2]] {
        &self.whole
    }

    /// Returns the vectors of the tokens' positions: rows of a table `[context, E]`.
    pub(super) fn positions(&self, table: &Var, x: &Var) -> Var {
        match &self.read {
            Read::Whole { .. } => table.slice(0, 0..x.dims().first().copied().unwrap_or(1)),
            Read::Next { position, .. } => table.embed(&position.reshape(&[1])),
        }
    }

    /// Rotates queries or keys `[B, heads, T, width]` by their positions, and pair i by `rates[i]` for each.
    pub(super) fn rotate(&self, x: &Var, rates: &Var) -> Var {
        let positions = match &self.read {
            Read::Whole { .. } => {
                let steps = x.dims().iter().rev().nth(1).copied().unwrap_or(1);
                x.tape().apply(Iota { dims: vec![steps, 1], axis: 0 }, &[]).to_f32()
            }
            Read::Next { position, .. } => position.to_f32().reshape(&[1, 1, 1]),
        };
        rotary_by(x, &positions, rates)
    }

    /// Computes causal attention, `[B, heads, T, width]`. Each head of keys and values is for `times` heads
    /// of queries. The layers call it in their order.
    pub(super) fn attend(&mut self, [q, k, v]: [&Var; 3], times: usize) -> Var {
        let found = match &self.read {
            Read::Whole { mask, .. } => {
                let mask = mask.as_ref().map(|m| m.to_f32().reshape(&[1, 1, m.ty().count()]));
                let [k, v] = [k, v].map(|x| repeat_heads(x, times));
                scaled_dot_product_attention_masked(q, &k, &v, true, mask.as_ref())
            }
            Read::Next { position, before } => {
                let Some([keys, values]) = before.get(self.kept.len()) else {
                    q.tape().fail_here("attend", format!("no keys for layer {}", self.kept.len()));
                    return q.clone();
                };
                let (all, seen) = with_own([k, v], [keys, values], position);
                self.whole.push(all.clone());
                let [keys, values] = all.map(|x| repeat_heads(&x, times));
                scaled_dot_product_attention_masked(q, &keys, &values, false, Some(&seen))
            }
        };
        self.kept.push([k.clone(), v.clone()]);
        found
    }

    /// Computes causal attention as [`Reader::attend`] does, with scores that are not scaled, and a bias for
    /// each head and distance, `[heads, length, length]`.
    pub(super) fn attend_biased(&mut self, [q, k, v]: [&Var; 3], bias: &Var) -> Var {
        let found = match &self.read {
            Read::Whole { mask, .. } => {
                let mask = mask.as_ref().map(|m| m.to_f32().reshape(&[1, 1, m.ty().count()]));
                scaled_dot_product_attention_biased([q, k, v], bias, 1.0, true, mask.as_ref())
            }
            Read::Next { position, before } => {
                let (Some([keys, values]), &[heads, length, _]) = (before.get(self.kept.len()), bias.dims())
                else {
                    q.tape().fail_here("attend", format!("no keys for layer {}", self.kept.len()));
                    return q.clone();
                };
                let ([keys, values], seen) = with_own([k, v], [keys, values], position);
                self.whole.push([keys.clone(), values.clone()]);
                let rows = bias.permute(&[1, 0, 2]).reshape(&[length, heads * length]);
                let bias = rows.embed(&position.reshape(&[1])).reshape(&[heads, 1, length]);
                scaled_dot_product_attention_biased([q, &keys, &values], &bias, 1.0, false, Some(&seen))
            }
        };
        self.kept.push([k.clone(), v.clone()]);
        found
    }

    /// Returns the number of tokens that the keys have room for, when `x` is read, `[B, T, E]`.
    pub(super) fn length(&self, x: &Var) -> usize {
        let keys = match &self.read {
            Read::Whole { .. } => None,
            Read::Next { before, .. } => before.first().and_then(|[keys, _]| keys.dims().get(1)),
        };
        keys.or(x.dims().first()).copied().unwrap_or(1)
    }

    /// Returns the rows of `[B, T, E]` whose logits are wanted.
    pub(super) fn wanted(&self, h: &Var) -> Var {
        let Read::Whole { length: Some(length), .. } = &self.read else { return h.clone() };
        let &[steps, width] = h.dims() else { return h.clone() };
        let place = h.tape().apply(Iota { dims: vec![steps, 1], axis: 0 }, &[]).to_f32();
        let last = (length.to_f32() - 1.0).reshape(&[1, 1]);
        // All other terms are zeros: the sum is the row.
        let row = place.eq_mask(&last).select(h, &h.tape().constant(0.0)).sum(&[-2]);
        row.reshape(&[1, width])
    }
}

/// Puts a token's own key and value among those before it, `[B, heads, T, width]`. Returns them all, and
/// which places the token sees, `[B, 1, 1, T]`.
fn with_own([k, v]: [&Var; 2], [keys, values]: [&Var; 2], position: &Var) -> ([Var; 2], Var) {
    let (tape, length) = (k.tape(), keys.dims().get(1).copied().unwrap_or(1));
    let place = tape.apply(Iota { dims: vec![1, length, 1], axis: 1 }, &[]).to_f32();
    let own = position.to_f32().reshape(&[1, 1, 1]);
    // The token's own key and value stand where they will be: the order of the sums is that of the whole
    // sequence.
    let here = place.eq_mask(&own);
    let all = [(k, keys), (v, values)].map(|(new, old)| here.select(new, old));
    let (zero, one) = (tape.constant(0.0), tape.constant(1.0));
    let seen = place.greater(&own).select(&zero, &one).reshape(&[1, 1, length]);
    (all, seen)
}

/// Returns the logits of all tokens.
pub(super) fn logits(model: &impl Decoder, cx: &mut Context, x: &Var, mask: Option<&Var>) -> Var {
    model.decode(cx, x, &mut Reader::whole(mask))
}
