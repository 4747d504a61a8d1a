use serde::{Deserialize, Serialize};
use unisono_graph::Var;

use crate::model::description::Describe;
use crate::model::{Context, Description, Forward, Layer};

/// Layers side by side: each is applied to the same value, and the results are joined, one behind the other along
/// an axis (Keras's `Concatenate`) or as a sum (Keras's `Add`).
///
/// Shapes: all results have one shape, except along the axis that joins them. Parameters: those of the i-th layer
/// are `i.*`.
///
/// Errors: there are no layers, or the results do not fit.
///
/// ```
/// use unisono::{Branches, Conv2d, Relu, Sequential};
///
/// // Channels are axis 1 of [B, C, H, W].
/// let mixed = Branches::concat(1).add(Conv2d::new(8, 1)).add(Conv2d::new(8, 3).padding(1));
/// let model = Sequential::new().add(mixed).add(Relu);
/// ```
pub struct Branches {
    layers: Vec<Box<dyn Layer>>,
    axis: Option<isize>,
}

/// The description of [`Branches`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(deny_unknown_fields)]
pub struct BranchesDescription {
    /// The layers, first to last.
    pub layers: Vec<Description>,
    /// The axis along which results are concatenated; `None` for their sum.
    pub axis: Option<isize>,
}

impl Branches {
    /// Creates branches whose results are concatenated along an axis. Axis 0 is the batch and cannot be it;
    /// negative axes count from the last.
    pub fn concat(axis: isize) -> Self {
        Self { layers: vec![], axis: Some(axis) }
    }

    /// Creates branches whose results are added up, first to last.
    pub fn sum() -> Self {
        Self { layers: vec![], axis: None }
    }

    /// Adds a branch.
    #[expect(clippy::should_implement_trait, reason = "the same name as that of Sequential")]
    pub fn add(mut self, layer: impl Layer + 'static) -> Self {
        self.layers.push(Box::new(layer));
        self
    }
}

impl Forward for Branches {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let mut results = Vec::with_capacity(self.layers.len());
        for (i, layer) in self.layers.iter().enumerate() {
            results.push(cx.apply(&i.to_string(), layer, x));
        }
        let Some((first, others)) = results.split_first() else {
            cx.fail(self.name(), "there are no layers".into());
            return x.clone();
        };
        match self.axis {
            Some(axis) => first.concat(&others.iter().collect::<Vec<_>>(), axis),
            None => {
                if let Some(other) = others.iter().find(|other| other.ty() != first.ty()) {
                    cx.fail(self.name(), format!("{} and {} cannot be added", first.ty(), other.ty()));
                    return first.clone();
                }
                others.iter().fold(first.clone(), |sum, other| sum + other)
            }
        }
    }
}

impl Describe<BranchesDescription> for Branches {
    fn settings(&self) -> Option<BranchesDescription> {
        let layers = self.layers.iter().map(|layer| layer.description()).collect::<Option<_>>()?;
        Some(BranchesDescription { layers, axis: self.axis })
    }
}

impl From<BranchesDescription> for Branches {
    fn from(settings: BranchesDescription) -> Self {
        Self { layers: settings.layers.into_iter().map(Description::layer).collect(), axis: settings.axis }
    }
}
