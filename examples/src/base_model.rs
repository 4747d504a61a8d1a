//! A published model that a program fine-tunes.

use std::path::PathBuf;

use clap::Args;
use unisono::Trainer;
use unisono_models::{Architecture, Pretrained};

use crate::{Error, data, say};

/// The flags of a program that fine-tunes a model of a directory.
#[derive(Args, Clone, Debug)]
pub struct ModelFlags {
    /// Directory of the base model, which has to be of the same kind as the one in the repository [default:
    /// that one]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Write the model to DIR, as transformers does
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
}

impl ModelFlags {
    /// Returns the directory of the base model: `own` in the repository, unless another one is given.
    pub fn base(&self, own: &str) -> PathBuf {
        data(self.model.as_deref(), own)
    }

    /// Returns the files that [`ModelFlags::save`] writes weights to, for [`Run::saves`](crate::Run::saves).
    pub fn files(&self) -> Option<PathBuf> {
        self.save.as_ref().map(|dir| dir.join("model.safetensors"))
    }

    /// Writes the base with the weights of a trainer, if `--save` is given.
    ///
    /// # Errors
    /// The replicas fail. A file cannot be written.
    pub fn save<M: Architecture>(&self, base: &Pretrained<M>, trainer: &mut Trainer) -> Result<(), Error> {
        let Some(dir) = &self.save else { return Ok(()) };
        base.with_weights(trainer.weights()?)?.save_pretrained(dir)?;
        say!("the model is in {}", dir.display());
        Ok(())
    }
}
