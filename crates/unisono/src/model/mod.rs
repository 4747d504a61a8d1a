//! What a model is made of: layers, the context that they ask for parameters, initializers, and a model as
//! data.

pub(crate) mod context;
pub(crate) mod description;
pub(crate) mod functional;
pub(crate) mod ids;
pub(crate) mod initializer;
pub(crate) mod layer;
pub(crate) mod layers;
mod reparametrize;

pub use context::{Context, Mode, Parameter, SummaryLine};
pub use functional::{Inputs, Model, Outputs};
pub use initializer::Initializer;
pub use layer::{FromFn, Layer};
pub use layers::Description;

pub(crate) use layer::Forward;
