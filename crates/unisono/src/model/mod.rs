//! What a model is made of: layers, the context they ask for parameters, start values, and a model as data.

pub(crate) mod context;
pub(crate) mod description;
pub(crate) mod ids;
pub(crate) mod initializer;
pub(crate) mod layer;
pub mod layers;
