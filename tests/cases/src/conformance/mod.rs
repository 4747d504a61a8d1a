//! Runs reference cases of another program through the public layers, losses, metrics and optimizers on a
//! device.
//!
//! The [`Suite`] reads the cases, [`recipe`] says how each is computed here, and the [`Runner`] runs and
//! compares them, with 1, 3 and 8 shards where there is a batch axis. A case without a recipe is a failure.

mod as_layer;
mod layers;
mod losses;
mod metrics;
mod ops;
mod optimizers;
mod program;
mod runner;
mod suite;
mod training;

pub use program::main;
pub use runner::{Outcome, Runner, Verdict, steps};
pub use suite::{Case, Reference, Suite};

use std::collections::BTreeMap;

use unisono_graph::{Tape, Var};

/// Values by role.
pub type Vars = BTreeMap<String, Var>;

/// A function that traces a case: it maps inputs by role to outputs by role.
type Build = Box<dyn Fn(&Tape, &Vars) -> Vars>;

/// The way in which a case is computed.
pub struct Recipe {
    /// The roles whose first axis is the batch.
    pub batched: &'static [&'static str],
    /// The roles that are parameters of a layer, with the names of these. The build returns them by name
    /// beside the outputs.
    pub parameters: Vec<(String, String)>,
    /// The function that traces the case.
    pub build: Build,
}

impl Recipe {
    /// Creates the recipe of a case with one output, `y`.
    fn one(batched: &'static [&'static str], build: impl Fn(&Vars) -> Var + 'static) -> Self {
        Self {
            batched,
            parameters: vec![],
            build: Box::new(move |_, x| BTreeMap::from([("y".into(), build(x))])),
        }
    }

    /// Creates the recipe of a case with several outputs.
    fn many(
        batched: &'static [&'static str],
        build: impl Fn(&Vars) -> Vec<(&'static str, Var)> + 'static,
    ) -> Self {
        let named = move |x: &Vars| build(x).into_iter().map(|(role, var)| (role.to_string(), var)).collect();
        Self { batched, parameters: vec![], build: Box::new(move |_, x| named(x)) }
    }
}

/// Returns the recipe for a case, or a message that says which op has none.
pub fn recipe(case: &Case) -> Result<Recipe, String> {
    ops::recipe(case).or_else(|| layers::recipe(case)).or_else(|| losses::recipe(case)).ok_or_else(|| {
        format!("no recipe for op {:?} with {}", case.op, serde_json::Value::Object(case.attrs.clone()))
    })
}
