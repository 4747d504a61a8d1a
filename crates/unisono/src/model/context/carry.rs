//! Carries: state that each row of a batch passes to the same row of the next batch.

use unisono_graph::{Type, Var};

use super::Context;

/// A carry that a layer asked for.
#[derive(Clone, Debug)]
pub(crate) struct Carry {
    /// Its value before the step.
    pub var: Var,
    /// Its value after it.
    pub kept: Option<Var>,
}

impl Context {
    /// Declares a carry of this layer: state that each row of a batch passes to the same row of the next
    /// batch, such as the state of a recurrent layer (Keras's `stateful=True`). Returns its value,
    /// `[B, dims]`: what the previous batch gave to [`Context::keep`].
    ///
    /// It starts with zeros, also after [`crate::Trainer::reset_carries`]. No gradient flows back through it.
    /// It follows its row, whichever replica computes the row. [`unisono_data::Loader::lanes`] makes loaders
    /// in which each row continues its own part of the data. Declare a carry in both modes.
    ///
    /// ```
    /// use unisono::{Context, FromFn, Var};
    ///
    /// /// [B, features]: a running mean over the samples of the row, in which the newest weighs a tenth.
    /// let smooth = FromFn::new("smooth", |cx: &mut Context, x: &Var| {
    ///     let before = cx.carry("mean", x.dims());
    ///     let mean = &before * 0.9 + x * 0.1;
    ///     cx.keep(&before, &mean);
    ///     mean
    /// });
    /// ```
    pub fn carry(&mut self, name: &str, dims: &[usize]) -> Var {
        let var = self.tape.carry(&self.full(name), Type::sample(dims));
        self.carry_at.insert(var.id(), self.carries.len());
        self.carries.push(Carry { var: var.clone(), kept: None });
        var
    }

    /// Sets the value of a carry for the next batch. In training it takes effect when the step commits.
    ///
    /// Errors: `carry` is not a carry of this model, or the two types differ.
    pub fn keep(&mut self, carry: &Var, value: &Var) {
        let own = self.carry_at.get(&carry.id()).map(|&at| &mut self.carries[at]);
        let problem = match own {
            Some(own) if own.var.ty() == value.ty() => {
                own.kept = Some(value.clone());
                return;
            }
            Some(own) => format!("a carry {} cannot become {}", own.var.ty(), value.ty()),
            None => "the first value is not a carry of this model".into(),
        };
        self.fail("keep", problem);
    }

    /// Returns the carries that layers declared so far.
    pub(crate) fn carries(&self) -> &[Carry] {
        &self.carries
    }
}
