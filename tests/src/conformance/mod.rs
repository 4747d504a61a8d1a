//! Reference cases of another program, run through the public layers, losses and optimizers on a device.
//!
//! [`Suite`] reads them, [`recipe`] knows how each is computed here, [`Runner`] runs them with 1, 3 and 8 shards where a batch
//! axis exists and compares. A case without a recipe is a failure.

mod layers;
mod losses;
mod ops;
mod optimizers;
mod runner;
mod suite;
mod training;

pub use runner::{Outcome, Runner, Verdict};
pub use suite::{Case, Reference, Suite};

use std::collections::BTreeMap;

use unisono_graph::{Tape, Var};

/// Values by role.
pub type Vars = BTreeMap<String, Var>;

/// Traces a case: from inputs by role to outputs by role.
type Build = Box<dyn Fn(&Tape, &Vars) -> Vars>;

/// How a case is computed.
pub struct Recipe {
    /// Roles whose first axis is the batch.
    pub batched: &'static [&'static str],
    /// Traces it.
    pub build: Build,
}

impl Recipe {
    /// A case with one output, `y`.
    fn one(batched: &'static [&'static str], build: impl Fn(&Vars) -> Var + 'static) -> Self {
        Self { batched, build: Box::new(move |_, x| BTreeMap::from([("y".into(), build(x))])) }
    }

    /// A case with several outputs.
    fn many(
        batched: &'static [&'static str],
        build: impl Fn(&Vars) -> Vec<(&'static str, Var)> + 'static,
    ) -> Self {
        let named = move |x: &Vars| build(x).into_iter().map(|(role, var)| (role.to_string(), var)).collect();
        Self { batched, build: Box::new(move |_, x| named(x)) }
    }
}

/// The recipe for a case, or what is not known about it.
pub fn recipe(case: &Case) -> Result<Recipe, String> {
    ops::recipe(case).or_else(|| layers::recipe(case)).or_else(|| losses::recipe(case)).ok_or_else(|| {
        format!("no recipe for op {:?} with {}", case.op, serde_json::Value::Object(case.attrs.clone()))
    })
}
