use unisono_data::{Field, Values};
use unisono_graph::ops::Iota;
use unisono_graph::{DType, Type, Var};

use super::Loss;

/// The logarithm of a probability of 0. Its exponential is 0 in f32, and no gradient is NaN, which
/// infinity would make.
const NEVER: f32 = -1e30;

/// Connectionist temporal classification (Graves et al. 2006; Keras's `CTC`; PyTorch's `CTCLoss` with
/// `reduction="none"`, `blank=0`): -ln of the probability that a sequence of outputs spells the labels,
/// whatever the steps at which it does. A spelling is a class for each step; equal neighbours count once,
/// and blanks, which are class 0, are left out.
///
/// The loss of a batch is the mean over its samples. PyTorch's default divides each by its number of
/// labels first.
///
/// Shapes: logits `[B, T, classes]` and labels `[B, L]` of i32 in 1..classes to `[B]`. Rows with fewer than L
/// labels end in 0 or in negative numbers. All T steps of a sample count.
///
/// Errors: outputs of another shape, more than 4,096 steps, a label that is no class, a label behind the
/// end of a row, or more labels than T steps can spell.
#[doc(alias = "CTCLoss")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Ctc;

/// The most steps. Each is traced on its own, so that many more would not end.
const MOST_STEPS: usize = 4096;

impl Loss for Ctc {
    fn name(&self) -> &str {
        "ctc"
    }

    fn activation(&self) -> Option<&'static str> {
        Some("softmax")
    }

    /// Returns the type of rows of as many labels as T steps can spell at most, T. Fewer are accepted too.
    fn target(&self, output: &Type) -> Result<Type, String> {
        match output.dims[..] {
            [steps, classes] if (1..=MOST_STEPS).contains(&steps) && classes > 1 => {
                Ok(output.with_dims(&[steps]).of(DType::I32))
            }
            _ => Err(format!(
                "needs logits [B, steps, classes] of at most {MOST_STEPS} steps, the model gives {output}"
            )),
        }
    }

    fn accepts(&self, output: &Type, target: &Type) -> Result<(), String> {
        let most = self.target(output)?;
        let rows = target.dtype == DType::I32 && target.lead == output.lead && target.dims.len() == 1;
        if rows && (1..=most.dims[0]).contains(&target.dims[0]) {
            return Ok(());
        }
        Err(format!(
            "the model gives {output}, which needs labels [B, L] i32 with L up to {}; got {target}",
            most.dims[0]
        ))
    }

    fn per_sample(&self, output: &Var, target: &Var) -> Var {
        let (&[steps, classes], &[labels]) = (output.dims(), target.dims()) else { return output.clone() };
        let tape = output.tape();
        let place = |dims: &[usize], axis| tape.apply(Iota { dims: dims.to_vec(), axis }, &[]).to_f32();
        let [zero, never] = [0.0, NEVER].map(|x| tape.constant(x));
        let labels_of_rows = target.to_f32().maximum(&zero);
        let count = labels_of_rows.greater(&zero).sum_keep(&[-1]);
        // Blanks around and between the labels: [B, 2 L + 1].
        let places = 2 * labels + 1;
        let spaced = labels_of_rows.add_axis().pad(&[0, 1], &[0, 0]).reshape(&[2 * labels]).pad(&[0], &[1]);
        let shifted = |x: &Var, by: usize| x.slice(-1, 0..places - by).pad(&[by], &[0]);
        // A label may follow the one before without a blank in between, unless the two are equal.
        let skips = spaced.greater(&zero) * (1.0 - spaced.eq_mask(&shifted(&spaced, 2)));
        let index = place(&[places], 0);
        let [first, second] = [0.5, 1.5].map(|end| tape.constant(end).greater(&index));
        let may_skip = (1.0 - &second) * skips;
        // The logarithms of the outputs at these places. Each is a sum of one number and zeros.
        let one_hot = spaced.add_axis().eq_mask(&place(&[1, classes], 1));
        let logs = tape.in_f32(|| output.log_softmax().matmul_t(&one_hot));
        let at = |step: usize| logs.slice(-2, step..step + 1).reshape(&[places]);
        let mut state = second.select(&at(0), &never);
        tape.unrolled(|| {
            for step in 1..steps {
                let before = first.select(&never, &shifted(&state, 1));
                let skipped = may_skip.select(&shifted(&state, 2), &never);
                let most = state.maximum(&before).maximum(&skipped).detach();
                let sum = (&state - &most).exp() + (before - &most).exp() + (skipped - &most).exp();
                state = most + sum.log() + at(step);
            }
        });
        // It ends at the last label or at the blank behind it.
        let end = count * 2.0;
        let ends = (&end + 0.5).greater(&index) * index.greater(&(&end - 1.5));
        let last = ends.select(&state, &never);
        let most = last.max_keep(&[-1]).detach();
        let sum = (&last - &most).exp().sum_keep(&[-1]);
        -(most + sum.log()).reshape(&[])
    }

    fn check(&self, output: &Type, targets: &Field) -> Result<(), (usize, String)> {
        let (&[steps, classes], Values::I32(labels)) = (&output.dims[..], &targets.values) else {
            return Ok(());
        };
        let length = targets.shape.last().copied().unwrap_or(1).max(1);
        for (row, labels) in labels.chunks(length).enumerate() {
            spelled(labels, steps, classes).map_err(|problem| (row, problem))?;
        }
        Ok(())
    }
}

/// Checks that a row of labels is one that so many steps can spell.
fn spelled(labels: &[i32], steps: usize, classes: usize) -> Result<(), String> {
    let count = labels.iter().position(|&label| label <= 0).unwrap_or(labels.len());
    let (own, rest) = labels.split_at(count);
    if let Some(label) = rest.iter().find(|&&label| label > 0) {
        return Err(format!(
            "label {label} comes after the end of the labels: 0 is the blank, which ends them, so classes count from 1"
        ));
    }
    if let Some(label) = own.iter().find(|&&label| label as usize >= classes) {
        return Err(format!("label {label} is not in 1..{classes}"));
    }
    // A blank must stand between equal neighbours.
    let needed = count + own.windows(2).filter(|pair| pair[0] == pair[1]).count();
    if needed > steps {
        return Err(format!("{count} labels need {needed} steps, and there are {steps}"));
    }
    Ok(())
}
