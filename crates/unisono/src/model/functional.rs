//! Models of several inputs and outputs: functions from the fields of a sample to named values.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ops::Index;

use unisono_graph::{GraphError, Tape, Type, Var};

use crate::error::caught;
use crate::model::{Context, Layer};

/// The name of the field that a [`Layer`] gets as its input, if it is the whole model.
pub const INPUT: &str = "x";
/// The name of the output, if the whole model is a [`Layer`].
pub const OUTPUT: &str = "output";

/// What a trainer trains: a [`Layer`], which makes one value of the field `x`, or a function from the fields
/// of a sample to named values (Keras's functional API).
///
/// ```
/// use unisono::{Dense, Embedding, Model, Outputs, Relu, Sequential};
///
/// let trunk = Sequential::new().add(Dense::new(32)).add(Relu);
/// let houses = Model::new(move |cx, x| {
///     let city = cx.apply("city", &Embedding::new(100, 8), &x["city"]).flatten();
///     let all = cx.apply("trunk", &trunk, &x["numbers"]) + cx.apply("of_city", &Dense::new(32), &city);
///     Outputs::new()
///         .with("price", &cx.apply("price", &Dense::new(1), &all))
///         .with("sold", &cx.apply("sold", &Dense::new(1), &all))
/// });
/// ```
pub struct Model(Kind);

type Function = dyn Fn(&mut Context, &Inputs) -> Outputs + Send + Sync;

enum Kind {
    Layer(Box<dyn Layer>),
    Function(Box<Function>),
}

impl Model {
    /// Creates a model from a function. It runs when the trainer is built, not at every step, and takes the
    /// fields that it asks for: `x["name"]` is a value `[B, ...]`.
    pub fn new(forward: impl Fn(&mut Context, &Inputs) -> Outputs + Send + Sync + 'static) -> Self {
        Self(Kind::Function(Box::new(forward)))
    }

    /// Returns the layer, for a model that is one.
    pub(crate) fn layer(&self) -> Option<&dyn Layer> {
        match &self.0 {
            Kind::Layer(layer) => Some(&**layer),
            Kind::Function(_) => None,
        }
    }

    /// Traces the model. A panic in it becomes an error of the tape, which names the layer: a model of one's
    /// own is also traced long after it was built, when samples of another length come.
    pub(crate) fn forward(&self, cx: &mut Context, x: &Inputs) -> Outputs {
        let tape = cx.tape().clone();
        let traced = caught(|| match &self.0 {
            Kind::Layer(layer) => Outputs::new().with(OUTPUT, &layer.forward(cx, &x[INPUT])),
            Kind::Function(forward) => forward(cx, x),
        });
        traced.unwrap_or_else(|text| {
            tape.fail_here("model", format!("panicked: {text}"));
            Outputs::new()
        })
    }
}

impl<L: Layer + 'static> From<L> for Model {
    fn from(layer: L) -> Self {
        Self(Kind::Layer(Box::new(layer)))
    }
}

/// The fields of a sample as values `[B, ...]`, by name.
pub struct Inputs {
    tape: Tape,
    fields: BTreeMap<String, (Type, OnceCell<Var>)>,
    /// The fields that were asked for, in the order in which they were.
    used: RefCell<Vec<String>>,
    /// What stands for a field that is not there.
    missing: OnceCell<Var>,
}

impl Inputs {
    /// Makes inputs of a graph of those fields that are asked for. A trainer does this for you. Call it to
    /// trace a model for a purpose of your own, such as listing its parameters.
    pub fn new<'a>(tape: &Tape, fields: impl Iterator<Item = (&'a str, &'a Type)>) -> Self {
        let fields = fields.map(|(name, ty)| (name.to_owned(), (ty.clone(), OnceCell::new()))).collect();
        Self { tape: tape.clone(), fields, used: RefCell::default(), missing: OnceCell::new() }
    }

    /// Returns a field, if the data have it.
    pub fn get(&self, name: &str) -> Option<&Var> {
        let (ty, var) = self.fields.get(name)?;
        Some(var.get_or_init(|| {
            self.used.borrow_mut().push(name.to_owned());
            self.tape.input(name, ty.clone())
        }))
    }

    /// Returns the names of the fields that the data have, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.keys().map(String::as_str)
    }

    /// Returns the fields that were asked for, in the order in which they were.
    pub(crate) fn used(&self) -> Vec<String> {
        self.used.borrow().clone()
    }
}

/// A field that the data do not have is an error of the model, which building the trainer returns.
impl Index<&str> for Inputs {
    type Output = Var;

    fn index(&self, name: &str) -> &Var {
        self.get(name).unwrap_or_else(|| {
            self.missing.get_or_init(|| {
                let there: Vec<&str> = self.names().collect();
                let problem = format!("the data have no field {name:?}, only {}", there.join(", "));
                let scope = self.tape.path();
                self.tape.fail(GraphError::Op { scope, op: "model".into(), problem });
                self.tape.constant(0.0)
            })
        })
    }
}

/// The values of a model by name, in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub struct Outputs(Vec<(String, Var)>);

impl Outputs {
    /// Creates a list of no outputs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an output, `[B, ...]`, of f32 or i32. In predictions, a value that is the same for all samples,
    /// such as a parameter, is repeated for each of them. Predictions are f32, so an i32 that f32 cannot
    /// store is an error there. Building the trainer is an error if the name is taken, or if the output
    /// depends on several samples of a batch.
    pub fn with(mut self, name: &str, value: &Var) -> Self {
        self.0.push((name.to_owned(), value.clone()));
        self
    }

    /// Adds the losses and metrics that the model added by itself.
    pub(crate) fn with_added(self, cx: &Context) -> Self {
        cx.added().values().fold(self, |outputs, (name, value)| outputs.with(name, value))
    }

    /// Returns an output by its name.
    pub(crate) fn get(&self, name: &str) -> Option<&Var> {
        self.iter().find(|(own, _)| *own == name).map(|(_, value)| value)
    }

    /// Returns names and values in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}
