//! A finished model as a file of weights and a small description, and back.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use unisono_checkpoint::{
    Export, Exported, TensorFile, Tensors, WeightPrecision, description_path, export_model, read_export,
};
use unisono_data::FieldDType;
use unisono_graph::{DType, Precision};

use crate::compile::parts::Parts;
use crate::compile::prediction::PredictionProgram;
use crate::compile::programs::ProgramId;
use crate::onnx;
use crate::run::scales::Scale;
use crate::saving::tensors::info;
use crate::{Description, Error, Layer, Trainer};

/// The most bytes of JSON that may be attached to a model. The file that holds them may have 16 MiB.
const MOST_ATTACHED: usize = 8 << 20;

/// The `description` in an exported model's JSON file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    unisono: String,
    input: Vec<usize>,
    /// The type of the input's elements. It is written unless it is f32.
    #[serde(default, skip_serializing_if = "is_f32")]
    dtype: InputDType,
    output: Vec<usize>,
    loss: String,
    /// How large the values of the input were in training, if they are f32 and a run has seen them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scale: Option<Scale>,
    /// What was attached to the model.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    attached: BTreeMap<String, String>,
    model: Description,
}

/// The type of the elements of an exported model's input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum InputDType {
    #[default]
    F32,
    I32,
}

fn is_f32(dtype: &InputDType) -> bool {
    *dtype == InputDType::F32
}

/// An exported model that was opened: the description of its layers, and their weights.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let data = unisono::data::Loader::new(unisono::data::Memory::labelled([0.0; 64], [64], [0])?);
/// use unisono::checkpoint::Plan;
/// use unisono::{ExportedModel, Trainer};
///
/// let model = ExportedModel::open("digits.safetensors")?;
/// let mut trainer = Trainer::builder(model.layer()).build(&data.fields()?)?;
/// trainer.load_model("digits.safetensors", &Plan::new())?;
/// let logits = trainer.predict(&data)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ExportedModel {
    /// The model's layers.
    pub model: Description,
    /// The axes of a sample.
    pub input: Vec<usize>,
    /// The type of a sample's elements. Older files do not say it, and then it is f32.
    pub dtype: FieldDType,
    /// The axes of the model's output for a sample.
    pub output: Vec<usize>,
    /// The name of the loss that the model was trained with.
    pub loss: String,
    /// How large the values of the input were in training.
    pub(crate) scale: Option<Scale>,
    /// The texts that were attached to the model ([`Builder::attach`](crate::Builder::attach)), by name.
    pub attached: BTreeMap<String, String>,
    /// The weights. Their hash is the one in the description.
    pub weights: TensorFile,
}

impl ExportedModel {
    /// Opens `NAME.safetensors` and the `NAME.json` next to it, and checks that they belong together.
    ///
    /// # Errors
    /// A file cannot be read, the two do not belong together, or they describe a model that this version does
    /// not know.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let (weights, description) = read_export(path)?;
        let Contents { input, dtype, output, loss, scale, attached, model, .. } =
            serde_json::from_value(description).map_err(|error| Error::Resume {
                path: description_path(path),
                problem: format!("no model that this version knows: {error}"),
            })?;
        let dtype = match dtype {
            InputDType::F32 => FieldDType::F32,
            InputDType::I32 => FieldDType::I32,
        };
        Ok(Self { model, input, dtype, output, loss, scale, attached, weights })
    }

    /// Returns the model for [`Trainer::builder`]. [`Trainer::load_model`] loads its weights.
    pub fn layer(&self) -> Box<dyn Layer> {
        self.model.clone().layer()
    }
}

/// Checks that what is attached to the model can be exported: before the training, not after it.
pub(super) fn check_attached(parts: &Parts) -> Result<(), Error> {
    if parts.attached.is_empty() {
        return Ok(());
    }
    // The text as it stands in the file, with what marks its quotation marks.
    let bytes = serde_json::to_string(&parts.attached).map_or(usize::MAX, |text| text.len());
    let problem = if bytes > MOST_ATTACHED {
        format!(
            "{bytes} bytes are attached, more than {MOST_ATTACHED}: write them to a file next to the model"
        )
    } else if parts.model.layer().and_then(|layer| layer.description()).is_none() {
        "the model has layers of one's own, or several fields, so no description of it is exported: write what is \
         attached to a file next to the model"
            .into()
    } else {
        return Ok(());
    };
    Err(Error::setting("attach", problem))
}

impl Trainer {
    /// Writes the weights as a plain safetensors file, and a description of the model as `NAME.json` next to
    /// it. [`ExportedModel::open`] builds the model from both. If the model has layers of your own, there is
    /// no description, and [`Exported::description`] is `None`. On several machines all ranks call this.
    ///
    /// With [`WeightPrecision::I8`] the weights are quantized after training, one scale for each output
    /// channel. This applies to the tensors that layers declare with
    /// [`Context::kernel`](crate::Context::kernel). In this library these are the weights of dense layers,
    /// convolutions, recurrent layers, attention projections and embeddings. [`Trainer::compare_precision`]
    /// shows how much accuracy this costs. A [`Predictor`](crate::Predictor) and [`Trainer::load_model`] read
    /// such a file: they compute with f32 weights, each an integer times its scale.
    ///
    /// # Errors
    /// The replicas fail, or a file cannot be written. Those of [`WeightPrecision::store`].
    #[doc(alias("save_weights", "state_dict"))]
    pub fn export(&mut self, path: impl AsRef<Path>, precision: WeightPrecision) -> Result<Exported, Error> {
        self.note_untrained();
        let (tensors, description) = self.described()?;
        let channels = self.plan.programs.channels.clone();
        let export = Export::default().precision(precision).channels(channels).description(description);
        let exported = export_model(path, &tensors, &export)?;
        if let Some((name, count)) = exported.overflowed.first() {
            self.monitor.note(&format!(
                "note: {count} values of {name} are more than the export's precision holds, and infinite in the file: \
                 it cannot be loaded"
            ));
        }
        Ok(exported)
    }

    /// Writes the model as an ONNX file (opset 17), as it predicts: inputs and outputs have their names, and
    /// the first axis of each, `N`, counts the samples. If an output has the name of an input, ` out` is
    /// added to it. Matrix products are in f32, whatever the precision of training.
    ///
    /// State that a model carries from batch to batch, as a stateful LSTM does, is an input `carry NAME` and
    /// an output `carry NAME out`: feed zeros with the first batch, and the output with the next one.
    ///
    /// Every layer of the library can be exported, and every model of its ops. Convolutions are written as
    /// gathered windows and products, which runtimes compute slower than convolutions of their own.
    ///
    /// On several machines all ranks call this.
    ///
    /// The file is replaced at one instant, and a link at its path is replaced, not followed.
    ///
    /// # Errors
    /// The model draws random numbers when it predicts, or has an op of your own; it takes more than 2 GB;
    /// the path ends in `.safetensors`, `.json` or `.keras`; the file cannot be written; the replicas fail.
    pub fn export_onnx(&mut self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.export_onnx_as(path, WeightPrecision::F32)
    }

    /// Writes the model as an ONNX file, as [`Trainer::export_onnx`] does, but stores its weights in a
    /// precision of your choice. The model in the file still computes in f32. With [`WeightPrecision::I8`],
    /// each matrix and kernel is stored as an int8 initializer and an initializer with its scales, and
    /// `DequantizeLinear` multiplies the two (the QDQ form, for weights only). With
    /// [`WeightPrecision::F16`], each weight is stored as a float16 initializer, followed by a `Cast`. The
    /// weights have the same values as those that [`Trainer::export`] writes in this precision.
    ///
    /// # Errors
    /// Those of [`Trainer::export_onnx`] and of [`WeightPrecision::store`]; a weight is larger than f16
    /// holds.
    pub fn export_onnx_as(
        &mut self,
        path: impl AsRef<Path>,
        precision: WeightPrecision,
    ) -> Result<(), Error> {
        self.note_untrained();
        self.check_before_leaving()?;
        let tensors = self.weights_in_use()?;
        let program = PredictionProgram::trace(&self.plan.parts.model, Precision::F32, &self.plan.fields)?;
        onnx::write(path.as_ref(), &program, &tensors, precision)
    }

    /// Tells observers that weights are exported which are as they start.
    fn note_untrained(&mut self) {
        if self.steps() == 0 && self.state.identity.is_from_start() {
            self.monitor.note_once(
                "note: the exported weights are those that the model starts with: no step was made, and none were loaded",
            );
        }
    }

    /// Returns how large the values of the model's only input were in training.
    fn scale_of_input(&self) -> Option<Scale> {
        let inputs = self.plan.program(ProgramId::Predict).inputs();
        let mut known = inputs.iter().filter_map(|input| self.state.scales.0.get(&input.name));
        known.next().cloned()
    }

    /// Returns the model's tensors, and the model's description where all its layers have one.
    pub(super) fn described(&mut self) -> Result<(Tensors, Option<Value>), Error> {
        self.check_before_leaving()?;
        let tensors = self.weights_in_use()?;
        let layer = self.plan.parts.model.layer();
        let output = self.plan.programs.outputs.first().map(|(_, ty)| info(ty).shape);
        let contents = layer.and_then(|layer| layer.description()).map(|model| Contents {
            unisono: env!("CARGO_PKG_VERSION").into(),
            input: self.plan.programs.input.dims.clone(),
            dtype: match self.plan.programs.input.dtype {
                DType::F32 => InputDType::F32,
                DType::I32 | DType::U32 => InputDType::I32,
            },
            output: output.unwrap_or_default(),
            loss: self.plan.parts.loss_name(),
            scale: self.scale_of_input(),
            attached: self.plan.parts.attached.clone(),
            model,
        });
        let json = |error| Error::setting("export", format!("the model cannot be written as JSON: {error}"));
        let description = contents.map(serde_json::to_value).transpose().map_err(json)?;
        Ok((tensors, description))
    }
}
