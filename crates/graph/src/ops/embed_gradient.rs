use serde::Serialize;

use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, Var};
use crate::values::{Array, DType, Frame, Lead, Type};

/// ids `[B, ...]` and rows `[B, ..., width]` give `[S; rows, width]`: for each id the sum of the rows at the
/// places that name it. It is the gradient of an embedding's table. A row that no id names is 0, and so is
/// one that would be outside of the table: ids that are not below `rows` count nowhere.
///
/// The sum over a shard's places has the order of [`crate::tree`] with [`crate::tree::PRODUCT_CHUNK`], in the
/// order of (sample, place). Values without samples give `[rows, width]`, summed in the same order.
#[derive(Debug, Clone, Serialize)]
pub struct EmbedGradient {
    /// The number of rows of the table.
    pub rows: usize,
}

impl Op for EmbedGradient {
    fn name(&self) -> &'static str {
        "embed_gradient"
    }

    fn attrs(&self) -> String {
        format!("rows={}", self.rows)
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let (ids, dy) = (inputs[0], inputs[1]);
        let is_fit = |own: &[usize]| {
            ids.dtype == DType::I32
                && dy.dtype == DType::F32
                && ids.lead == dy.lead
                && ids.lead != Lead::Shard
                && own == ids.dims
        };
        match dy.dims.split_last() {
            Some((&width, own)) if is_fit(own) => {
                let lead = if ids.lead == Lead::Sample { Lead::Shard } else { Lead::Global };
                Ok(dy.with_dims(&[self.rows, width]).with_lead(lead))
            }
            _ => Err(format!("needs i32 ids and a row for each, got {ids} and {dy}")),
        }
    }

    /// A row's gradient is that of the table's row that its id names, or 0 where it names none.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        let ids = &x[0];
        let mut dims = ids.dims().to_vec();
        dims.push(1);
        let is_row = names_a_row(&ids.to_f32().reshape(&dims), self.rows);
        vec![None, Some(is_row.select(&dy.embed(ids), &dy.tape().constant(0.0)))]
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let (ids, dy) = (inputs[0], inputs[1]);
        let mut y = Array::generate(&frame.dims(output), |_| 0.0);
        let width = output.dims[1];
        let places = ids.data.len() / if output.lead == Lead::Shard { frame.samples().max(1) } else { 1 };
        let samples: Vec<usize> = match output.lead {
            Lead::Shard => frame.shards.clone(),
            _ => vec![1],
        };
        let mut place = 0;
        for (shard, samples) in samples.into_iter().enumerate() {
            for _ in 0..samples * places {
                let id = ids.data[place];
                if id >= 0.0 && (id as usize) < self.rows {
                    for column in 0..width {
                        let at = (shard * self.rows + id as usize) * width + column;
                        y.data[at] += dy.data[place * width + column];
                    }
                }
                place += 1;
            }
        }
        y
    }

    fn lowering(&self) -> Lowering {
        Lowering::RowSums { rows: self.rows }
    }
}

/// Returns 1 where an id, as f32, names one of so many rows, and 0 elsewhere. Above 2^24 rows, where f32 has
/// not all whole numbers, an id just behind the last one may name it.
fn names_a_row(id: &Var, rows: usize) -> Var {
    let (zero, one) = (id.tape().constant(0.0), id.tape().constant(1.0));
    let last = id.tape().constant(rows.saturating_sub(1) as f32);
    id.greater(&id.tape().constant(-0.5)).select(&id.greater(&last).select(&zero, &one), &zero)
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "embed_gradient", cases }];

fn cases() -> Vec<Case> {
    let case = |rows, ids: Type, width: usize| {
        let dims: Vec<usize> = ids.dims.iter().copied().chain([width]).collect();
        Case::random(EmbedGradient { rows }, &[ids.clone().of(DType::I32), ids.with_dims(&dims)])
    };
    let (g, s) = (Type::global, Type::sample);
    vec![
        case(4, s(&[]), 5),
        case(5, s(&[7]), 4),
        case(3, s(&[70]), 8),
        case(4, s(&[2, 3]), 1),
        case(9, s(&[1500]), 2).with(0, &[1.0, 8.0, 3.0, -1.0, 8.0, 9.0, 3.0]),
        case(4, g(&[6]), 5),
        case(4, g(&[3, 900]), 8),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::interpret;
    use crate::{Feed, StateKind, Tape};

    #[test]
    fn the_last_row_of_a_large_table_is_one() {
        for rows in [3, (1 << 23) + 1, 20_000_001] {
            let tape = Tape::new();
            let ids = tape.state("ids", &[4], StateKind::Parameter);
            tape.output("is_row", &names_a_row(&ids, rows));
            let (after, last) = (rows as f64 + 1.0, rows as f64 - 1.0);
            let states = vec![Array::new(&[4], vec![-1.0, 0.0, last, after])];
            let feed = Feed { frame: Frame { shards: vec![1] }, inputs: vec![], states };
            let outcome = interpret(&tape.finish().unwrap(), &feed);
            let behind = if rows < 1 << 24 { 0.0 } else { outcome.outputs["is_row"].data[3] };
            assert_eq!(outcome.outputs["is_row"].data, [0.0, 1.0, 1.0, behind], "{rows}");
        }
    }
}
