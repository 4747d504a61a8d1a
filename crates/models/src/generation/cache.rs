//! The keys and values of the tokens so far.

use std::collections::BTreeMap;
use std::sync::Arc;

use unisono::Predictions;

use crate::architectures::decoder::DecoderSizes;

use super::names;

/// The keys and values of the beams of a batch, as the fields of the program for the next token. They are the
/// host's, because a beam may continue another one that another replica has computed.
pub(super) struct Cache {
    sizes: DecoderSizes,
    /// The tokens that there is room for.
    pub length: usize,
    /// `[B, heads, length, width]` of each layer.
    pub fields: BTreeMap<String, Arc<[u8]>>,
}

impl Cache {
    /// Makes room for `rows` sequences of up to `length` tokens.
    pub fn new(sizes: DecoderSizes, rows: usize, length: usize) -> Self {
        let bytes = 4 * rows * sizes.heads * length * sizes.width;
        let names = (0..sizes.layers).flat_map(names);
        let fields = names.map(|name| (name, vec![0; bytes].into())).collect();
        Self { sizes, length, fields }
    }

    /// Makes the rows those of other rows.
    pub fn select(&mut self, rows: &[usize]) {
        let row = 4 * self.sizes.heads * self.length * self.sizes.width;
        for field in self.fields.values_mut() {
            let parts: Vec<&[u8]> =
                rows.iter().filter_map(|at| field.get(at * row..(at + 1) * row)).collect();
            *field = parts.concat().into();
        }
    }

    /// Takes the keys and values that a program computed: in each sequence, `tokens` of them from its own
    /// position `first` on. An output may have more, which are left out.
    pub fn take(&mut self, outputs: &Predictions, first: &[usize], tokens: impl Fn(usize) -> usize) {
        let DecoderSizes { heads, width, .. } = self.sizes;
        for (name, field) in &mut self.fields {
            let Some(new) = outputs.get(name) else { continue };
            let stride = new.shape.get(2).copied().unwrap_or(0) * width;
            let own = 4 * self.length * width;
            let field = Arc::make_mut(field);
            for (row, &first) in first.iter().enumerate() {
                for head in row * heads..(row + 1) * heads {
                    let from = &new.values[head * stride..head * stride + tokens(row) * width];
                    let start = head * own + 4 * first * width;
                    let to = field[start..start + 4 * from.len()].as_chunks_mut::<4>().0;
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_le_bytes());
                }
            }
        }
    }
}
