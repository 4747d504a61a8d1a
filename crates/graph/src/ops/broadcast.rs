use serde::Serialize;

use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, Var, View, join_leads};
use crate::values::{Array, Frame, Lead, Type};

/// y is x repeated over a larger shape. Axes align at the last one; an axis of length 1, a missing axis and a
/// missing lead are repeated (NumPy's broadcasting; PyTorch's `expand`). A global value then has one entry
/// for each sample.
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
        // Axes align at the end, the lead included where the operand has it.
        let own_lead = x.dims.len() > self.dims.len() || x.dims.len() == dims.len();
        let lead = dims.len() - self.dims.len();
        let x_axes = x.dims.len() - usize::from(own_lead && lead == 1);
        Array::generate(&dims, |at| {
            let mut from = Vec::with_capacity(x.dims.len());
            if x.dims.len() > x_axes {
                from.push(at[0]);
            }
            let tail = &at[dims.len() - x_axes..];
            let axes = &x.dims[x.dims.len() - x_axes..];
            from.extend(tail.iter().zip(axes).map(|(&i, &d)| if d == 1 { 0 } else { i }));
            x.at(&from)
        })
    }

    fn lowering(&self) -> Lowering {
        Lowering::View(View::Broadcast)
    }
}

impl Var {
    /// Returns the value repeated over a larger shape. A value that has this shape already is returned as it
    /// is.
    pub fn expand(&self, lead: Lead, dims: &[usize]) -> Var {
        if self.ty().lead == lead && self.dims() == dims {
            return self.clone();
        }
        self.apply(Broadcast { lead, dims: dims.to_vec() })
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
