use serde::Serialize;

use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, Var, View, join_leads};
use crate::values::{Array, Frame, Lead, Type};

/// y is x repeated over a larger shape. Axes align at the last one; an axis of length 1, a missing axis and a
/// missing lead are repeated (NumPy's broadcasting; PyTorch's `expand`). A global value then has one entry
/// for each sample. A value with samples must already have all axes of the result, so that no axis is aligned
/// with the batch.
#[derive(Debug, Clone, Serialize)]
pub struct Broadcast {
    /// The lead of the result.
    pub lead: Lead,
    /// The axes of the result.
    pub dims: Vec<usize>,
}

impl Broadcast {
    fn fits(&self, x: &Type) -> bool {
        let skip = self.dims.len().checked_sub(x.dims.len());
        let skip = skip.filter(|&skip| skip == 0 || x.lead == Lead::Global);
        let axes_fit =
            skip.is_some_and(|s| x.dims.iter().zip(&self.dims[s..]).all(|(a, b)| a == b || *a == 1));
        axes_fit && (x.lead == self.lead || x.lead == Lead::Global)
    }
}

impl Op for Broadcast {
    fn name(&self) -> &'static str {
        "broadcast"
    }

    fn attrs(&self) -> String {
        format!("{:?} {:?}", self.lead, self.dims)
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let to = inputs[0].with_lead(self.lead).with_dims(&self.dims);
        self.fits(inputs[0])
            .then(|| to.clone())
            .ok_or_else(|| format!("{} does not broadcast to {to}", inputs[0]))
    }

    /// dx = dy summed over what was repeated. A sum over samples is one for each shard; where gradients are
    /// accumulated, they are summed over the shards.
    fn gradient(&self, Io { x, dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
        let from = x[0].ty();
        let skip = self.dims.len() - from.dims.len();
        let repeated = |axis: &usize| *axis < skip || (from.dims[axis - skip] == 1 && self.dims[*axis] != 1);
        let axes: Vec<usize> = (0..self.dims.len()).filter(repeated).collect();
        let samples = from.lead == Lead::Global && dy.ty().lead == Lead::Sample;
        let sum = if axes.is_empty() && !samples { (*dy).clone() } else { dy.reduce_sum(axes, samples) };
        vec![Some(sum.with_axes(&from.dims))]
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let (x, dims) = (inputs[0], frame.dims(output));
        // Axes align at the end, and so does a lead: a value with one has all axes.
        let skip = dims.len() - x.dims.len();
        Array::generate(&dims, |at| {
            let own = at[skip..].iter().zip(&x.dims);
            x.at(&own.map(|(&i, &d)| if d == 1 { 0 } else { i }).collect::<Vec<_>>())
        })
    }

    fn lowering(&self) -> Lowering {
        Lowering::View(View::Broadcast)
    }
}

impl Var {
    /// Returns the value repeated over a larger shape. A value that has this shape already is returned as it
    /// is. New axes of a value with samples are inserted right after the batch axis.
    pub fn expand(&self, lead: Lead, dims: &[usize]) -> Var {
        if self.ty().lead == lead && self.dims() == dims {
            return self.clone();
        }
        let missing = dims.len().saturating_sub(self.dims().len());
        let own = if self.ty().lead == Lead::Global {
            self.clone()
        } else {
            self.with_axes(&[&vec![1; missing], self.dims()].concat())
        };
        own.apply(Broadcast { lead, dims: dims.to_vec() })
    }

    /// Applies a pointwise op of several operands after broadcasting them to one shape.
    ///
    /// Global operands repeat over samples. Operands with samples must agree in the number of axes, so that a
    /// sample's axis never meets the batch.
    pub fn zip(&self, op: impl Op, others: &[&Var]) -> Var {
        let all: Vec<&Var> = std::iter::once(self).chain(others.iter().copied()).collect();
        match common_shape(&all) {
            Ok((lead, dims)) => {
                let wide: Vec<Var> = all.iter().map(|v| v.expand(lead, &dims)).collect();
                self.tape().apply(op, &wide.iter().collect::<Vec<_>>())
            }
            Err(problem) => {
                self.tape().fail_here(op.name(), problem);
                self.clone()
            }
        }
    }
}

fn common_shape(all: &[&Var]) -> Result<(Lead, Vec<usize>), String> {
    let types: Vec<&Type> = all.iter().map(|v| v.ty()).collect();
    let lead = join_leads(&types);
    let rank = types.iter().filter(|t| t.lead == lead).map(|t| t.dims.len()).max().unwrap_or(0);
    let shapes = || types.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(" and ");
    let mut dims = vec![1; rank];
    for t in &types {
        let whole = t.lead == lead && lead != Lead::Global && t.dims.len() != rank;
        if t.dims.len() > rank || whole {
            return Err(format!("{} do not broadcast: keep reduced axes at length 1 (keep_dims)", shapes()));
        }
        let skip = rank - t.dims.len();
        for (d, &axis) in dims[skip..].iter_mut().zip(&t.dims) {
            match (*d, axis) {
                (a, b) if a == b || b == 1 => {}
                (1, b) => *d = b,
                _ => return Err(format!("{} do not broadcast", shapes())),
            }
        }
    }
    Ok((lead, dims))
}

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "broadcast", cases }];

fn cases() -> Vec<Case> {
    let case =
        |from: Type, lead, dims: &[usize]| Case::random(Broadcast { lead, dims: dims.to_vec() }, &[from]);
    vec![
        case(Type::global(&[3]), Lead::Sample, &[3]),
        case(Type::global(&[]), Lead::Sample, &[2, 3]),
        case(Type::global(&[2, 1]), Lead::Global, &[4, 2, 3]),
        case(Type::sample(&[2, 1]), Lead::Sample, &[2, 5]),
        case(Type::sample(&[1, 4]), Lead::Sample, &[3, 4]),
    ]
}

#[cfg(test)]
mod tests {
    use crate::reference::interpret;
    use crate::{Array, Feed, Frame, Lead, Tape, Type};

    /// New axes of samples are behind the batch, also where the batch is as long as one of them.
    #[test]
    fn samples_gain_axes_behind_the_batch() {
        let tape = Tape::new();
        let x = tape.input("x", Type::sample(&[3]));
        tape.output("y", &x.expand(Lead::Sample, &[2, 3]));
        let graph = tape.finish().unwrap();
        for samples in [1, 2, 5] {
            let x: Vec<f64> = (0..3 * samples).map(|i| i as f64).collect();
            let y: Vec<f64> = x.chunks(3).flat_map(|row| [row, row].concat()).collect();
            let feed = Feed {
                frame: Frame { shards: vec![samples] },
                inputs: vec![Array::new(&[samples, 3], x)],
                states: vec![],
            };
            assert_eq!(interpret(&graph, &feed).outputs["y"], Array::new(&[samples, 2, 3], y));
        }
    }
}
