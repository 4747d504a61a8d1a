use serde::Serialize;

use crate::ops::registry::{Case, Entry};
use crate::trace::{Io, Lowering, Op, ReduceKind, Reduction, Var};
use crate::values::{Array, Frame, Lead, Type};
use super::Eq;

/// y is a sum or maximum over axes, and over the samples of each shard where that is asked for. Sums have the
/// order of [`crate::tree`] over the row-major index of what is reduced, samples first.
#[derive(Debug, Clone, Serialize)]
pub struct Reduce(pub Reduction);

impl Op for Reduce {
    fn name(&self) -> &'static str {
        match self.0.kind {
            ReduceKind::Sum => "sum",
            ReduceKind::Max => "max",
        }
    }

    fn attrs(&self) -> String {
        format!("{:?}{}", self.0.axes, if self.0.samples { " samples" } else { "" })
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Type, String> {
        let x = inputs[0];
        if self.0.samples && x.lead != Lead::Sample {
            return Err(format!("{x} has no samples to sum over"));
        }
        if let Some(axis) = self.0.axes.iter().find(|&&a| a >= x.dims.len() || x.dims[a] == 0) {
            return Err(format!("{x} has no axis {axis} with elements"));
        }
        let kept: Vec<usize> =
            (0..x.dims.len()).filter(|a| !self.0.axes.contains(a)).map(|a| x.dims[a]).collect();
        let lead = if self.0.samples { Lead::Shard } else { x.lead };
        Ok(x.with_dims(&kept).with_lead(lead))
    }

    /// For a sum, dy is repeated. For a maximum, dy is shared by the elements that reach it (as in PyTorch's
    /// `amax`).
    fn gradient(&self, Io { x, y, dy }: &Io<'_>) -> Vec<Option<Var>> {
        let x = &x[0];
        let mut kept = x.dims().to_vec();
        self.0.axes.iter().for_each(|&a| kept[a] = 1);
        let spread = |v: &Var| v.with_axes(&kept).expand(x.ty().lead, x.dims());
        let dx = match self.0.kind {
            ReduceKind::Sum => spread(dy),
            ReduceKind::Max => {
                let reached = x.zip(Eq, &[&spread(y)]);
                let count = reached.reduce_sum(self.0.axes.clone(), false);
                &reached * &spread(&(*dy / &count))
            }
        };
        vec![Some(dx)]
    }

    fn reference(&self, inputs: &[&Array], output: &Type, frame: &Frame) -> Array {
        let x = inputs[0];
        let dims = frame.dims(output);
        let (start, combine): (f64, fn(f64, f64) -> f64) = match self.0.kind {
            ReduceKind::Sum => (0.0, |a, b| a + b),
            ReduceKind::Max => (f64::NEG_INFINITY, f64::max),
        };
        let mut y = Array::generate(&dims, |_| start);
        let out_strides = crate::values::strides(&dims);
        let lead = x.dims.len() - (output.dims.len() + self.0.axes.len());
        let shard_of: Vec<usize> =
            frame.shards.iter().enumerate().flat_map(|(s, &n)| std::iter::repeat_n(s, n)).collect();
        let mut element = 0;
        Array::generate(&x.dims, |at| {
            let own_axes = (0..output.dims.len() + self.0.axes.len()).filter(|a| !self.0.axes.contains(a));
            let mut to: Vec<usize> = at[..lead].to_vec();
            if self.0.samples {
                to[0] = shard_of[at[0]];
            }
            to.extend(own_axes.map(|a| at[lead + a]));
            let slot = to.iter().zip(&out_strides).map(|(i, s)| i * s).sum::<usize>();
            y.data[slot] = combine(y.data[slot], x.data[element]);
            element += 1;
            0.0
        });
        y
    }

    fn lowering(&self) -> Lowering {
        Lowering::Reduce(self.0.clone())
    }
}

impl Var {
    pub(crate) fn reduce_sum(&self, axes: Vec<usize>, samples: bool) -> Var {
        self.apply(Reduce(Reduction { kind: ReduceKind::Sum, axes, samples }))
    }

    fn reduce(&self, kind: ReduceKind, axes: &[isize], keep_dims: bool) -> Var {
        let name = Reduce(Reduction { kind, axes: vec![], samples: false }).name();
        let Some(mut own) = axes.iter().map(|&a| self.axis(name, a)).collect::<Option<Vec<_>>>() else {
            return self.clone();
        };
        own.sort_unstable();
        own.dedup();
        let mut kept = self.dims().to_vec();
        own.iter().for_each(|&a| kept[a] = 1);
        let y = self.apply(Reduce(Reduction { kind, axes: own, samples: false }));
        if keep_dims { y.with_axes(&kept) } else { y }
    }

    /// Returns the sum over axes, which disappear. The batch is not one of them: [`Var::sum_shards`] sums
    /// over it.
    pub fn sum(&self, axes: &[isize]) -> Var {
        self.reduce(ReduceKind::Sum, axes, false)
    }

    /// Returns the sum over axes, which stay with length 1.
    pub fn sum_keep(&self, axes: &[isize]) -> Var {
        self.reduce(ReduceKind::Sum, axes, true)
    }

    /// Returns the maximum over axes, which disappear.
    pub fn max(&self, axes: &[isize]) -> Var {
        self.reduce(ReduceKind::Max, axes, false)
    }

    /// Returns the maximum over axes, which stay with length 1.
    pub fn max_keep(&self, axes: &[isize]) -> Var {
        self.reduce(ReduceKind::Max, axes, true)
    }

    /// Returns the minimum over axes, which disappear.
    pub fn min(&self, axes: &[isize]) -> Var {
        -(-self).max(axes)
    }

    /// Returns the minimum over axes, which stay with length 1.
    pub fn min_keep(&self, axes: &[isize]) -> Var {
        -(-self).max_keep(axes)
    }

    /// Returns the mean over axes, which disappear: the sum divided by the number of elements.
    pub fn mean(&self, axes: &[isize]) -> Var {
        let sum = self.sum(axes);
        let n = self.ty().count() / sum.ty().count().max(1);
        sum / n as f32
    }

    /// Returns the sum over all axes of a sample, or of a global value.
    pub fn sum_all(&self) -> Var {
        if self.dims().is_empty() {
            self.clone()
        } else {
            self.reduce_sum((0..self.dims().len()).collect(), false)
        }
    }
}

pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: "max", cases: || cases(ReduceKind::Max) },
    Entry { name: "sum", cases: || cases(ReduceKind::Sum) },
];

fn cases(kind: ReduceKind) -> Vec<Case> {
    let case = |ty: Type, axes: &[usize], samples| {
        Case::random(Reduce(Reduction { kind, axes: axes.to_vec(), samples }), &[ty])
    };
    let mut cases = vec![
        case(Type::sample(&[10]), &[0], false),
        case(Type::sample(&[3, 4, 5]), &[1], false),
        case(Type::sample(&[3, 4, 5]), &[0, 2], false),
        case(Type::global(&[4, 300]), &[1], false),
        case(Type::global(&[300, 4]), &[0], false),
        case(Type::global(&[70_001]), &[0], false),
        case(Type::global(&[270_000, 2]), &[0], false),
    ];
    if kind == ReduceKind::Sum {
        cases.push(case(Type::sample(&[7]), &[], true));
        cases.push(case(Type::sample(&[3, 200]), &[1], true));
        cases.push(case(Type::sample(&[3, 4]), &[0, 1], true));
        cases.push(case(Type::sample(&[30_000]), &[0], true));
    }
    cases
}
