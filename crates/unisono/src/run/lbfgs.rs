//! The section `lbfgs`: what L-BFGS remembers from step to step.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unisono_checkpoint::{Tensor, TensorDType, Tensors};

use crate::Error;
use crate::objective::tensors;
use crate::optimizers::lbfgs::curvature::{Curvature, Pair};
use crate::run::position::RunPosition;
use crate::run::section::Section;

/// The name of the tensor with the length of the last step, the scale, and 1 / y.s of each pair.
const NUMBERS: &str = "lbfgs/numbers";
/// The name of the tensor with the last direction and the gradient that it was made of, `[2, values]`.
const LAST: &str = "lbfgs/last";
/// The name of the tensor with the steps s of all pairs, `[pairs, values]`.
const STEPS: &str = "lbfgs/steps";
/// The name of the tensor with the changes y of the gradient of all pairs, `[pairs, values]`.
const CHANGES: &str = "lbfgs/changes";

/// What L-BFGS remembers, if the run uses it. Audits and saves share it with the run until it changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeptLbfgs {
    iterations: u64,
    evaluations: u64,
    #[serde(skip)]
    known: Arc<Curvature>,
    /// Where the step began that is not done yet. A run that has to go back goes back to there.
    #[serde(skip)]
    pub began: Option<Arc<Began>>,
}

/// Where a step of L-BFGS began.
#[derive(Debug, PartialEq)]
pub(crate) struct Began {
    pub position: RunPosition,
    /// The trained parameters, in the order of the program's states.
    pub weights: Vec<f32>,
}

impl KeptLbfgs {
    /// Keeps what is known after a step.
    pub fn new(known: Curvature) -> Self {
        let (iterations, evaluations) = (known.iterations, known.evaluations);
        Self { iterations, evaluations, known: Arc::new(known), began: None }
    }

    pub fn known(&self) -> &Curvature {
        &self.known
    }
}

impl Section for KeptLbfgs {
    /// Runs with other optimizers are saved as before there was L-BFGS.
    fn is_written(&self) -> bool {
        self.evaluations > 0
    }

    fn absent() -> Option<Self> {
        Some(Self::default())
    }

    fn tensors(&self) -> Result<Tensors, Error> {
        let mut tensors = Tensors::new();
        if self.evaluations == 0 {
            return Ok(tensors);
        }
        let Curvature { direction, length, gradient, scale, pairs, .. } = &*self.known;
        let values = direction.len();
        let numbers = [&[*length, *scale][..], &pairs.iter().map(|pair| pair.inverse).collect::<Vec<_>>()];
        let mut put = |name: &str, shape: Vec<usize>, parts: &[&[f64]]| {
            let bytes = parts.iter().flat_map(|part| part.iter()).flat_map(|x| x.to_le_bytes()).collect();
            Tensor::new(TensorDType::F64, shape, bytes).map(|tensor| tensors.insert(name.to_owned(), tensor))
        };
        put(NUMBERS, vec![2 + pairs.len()], &numbers)?;
        put(LAST, vec![2, values], &[direction, gradient])?;
        let [steps, changes]: [Vec<&[f64]>; 2] = [
            pairs.iter().map(|pair| &*pair.step).collect(),
            pairs.iter().map(|pair| &*pair.change).collect(),
        ];
        put(STEPS, vec![pairs.len(), values], &steps)?;
        put(CHANGES, vec![pairs.len(), values], &changes)?;
        Ok(tensors)
    }

    fn take_tensors(&mut self, _: u32, tensors: &mut Tensors) -> Result<(), String> {
        let numbers = take(tensors, NUMBERS, 1)?;
        let last = take(tensors, LAST, 2)?;
        let (steps, changes) = (take(tensors, STEPS, 2)?, take(tensors, CHANGES, 2)?);
        let [length, scale, inverses @ ..] = &*numbers.values else {
            return Err(format!("{NUMBERS} has {} numbers, fewer than 2", numbers.values.len()));
        };
        let [2, values] = last.shape[..] else {
            return Err(format!("{LAST} is {:?}, not [2, values]", last.shape));
        };
        let expected = [inverses.len(), values];
        for (name, shape) in [(STEPS, &steps.shape), (CHANGES, &changes.shape)] {
            if shape[..] != expected {
                return Err(format!("{name} is {shape:?}, not {expected:?}"));
            }
        }
        let (direction, gradient) = last.values.split_at(values);
        let rows = |rows: &Doubles, at: usize| rows.values[at * values..(at + 1) * values].to_vec();
        let pair = |(at, &inverse): (usize, &f64)| Pair {
            step: rows(&steps, at),
            change: rows(&changes, at),
            inverse,
        };
        self.known = Arc::new(Curvature {
            iterations: self.iterations,
            evaluations: self.evaluations,
            direction: direction.to_vec(),
            length: *length,
            gradient: gradient.to_vec(),
            scale: *scale,
            pairs: inverses.iter().enumerate().map(pair).collect(),
        });
        Ok(())
    }

    fn digest(&self, bytes: &mut Vec<u8>) {
        if self.evaluations > 0 {
            bytes.extend(b"lbfgs");
            bytes.extend(self.iterations.to_le_bytes());
            bytes.extend(self.evaluations.to_le_bytes());
        }
    }
}

/// A tensor of f64.
struct Doubles {
    shape: Vec<usize>,
    values: Vec<f64>,
}

/// Takes a tensor out of a checkpoint's tensors. It must be f64, have this number of axes, and be finite.
fn take(tensors: &mut Tensors, name: &str, axes: usize) -> Result<Doubles, String> {
    let tensor = tensors::take(tensors, name)?;
    let shape = tensor.shape().to_vec();
    if tensor.dtype() != TensorDType::F64 || shape.len() != axes {
        return Err(format!("{name} is {} {shape:?}, not F64 with {axes} axes", tensor.dtype().name()));
    }
    let words = tensor.bytes().as_chunks().0.iter();
    let values: Vec<f64> = words.map(|word| f64::from_le_bytes(*word)).collect();
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(format!("{name} has {value}")),
        None => Ok(Doubles { shape, values }),
    }
}
