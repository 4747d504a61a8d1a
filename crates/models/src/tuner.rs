//! Fine-tuning: a trainer that knows which pretrained model it trains.

use std::ops::{Deref, DerefMut};

use unisono::checkpoint::Tensors;
use unisono::data::FieldSpec;
use unisono::{Builder, Chain, Loss, Metric, Predictor, PredictorBuilder, Sgd, Trainer};

use crate::architectures::Architecture;
use crate::architectures::decoder::Decoder;
use crate::error::Error;
use crate::generation::{Generate, Generator};
use crate::lora::{Adapted, Lora};
use crate::pretrained::Pretrained;

/// Settings of a trainer that starts from a pretrained model. The most used settings have methods here;
/// [`settings`](Self::settings) sets any other of a [`Builder`]. [`Pretrained::trainer`] and
/// [`Adapted::trainer`] return one.
#[must_use]
pub struct TunerBuilder<M> {
    start: Start<M>,
    builder: Builder,
    optimizer: Chain,
}

/// A [`Trainer`] that started from a pretrained model. It has all methods of a trainer. It also returns the
/// trained model, and generates with it.
///
/// ```
/// use unisono::data::Loader;
/// use unisono::{AdamW, Perplexity};
/// use unisono_models::{Generate, Gpt2, Lora, Pretrained};
///
/// # let dir = tempfile::tempdir()?;
/// # std::fs::create_dir(dir.path().join("gpt2"))?;
/// # for name in ["config.json", "model.safetensors", "tokenizer.json"] {
/// #     std::fs::copy(format!("tests/cases/gpt2_text/{name}"), dir.path().join("gpt2").join(name))?;
/// # }
/// # std::fs::copy("tests/cases/gpt2_text/text.txt", dir.path().join("text.txt"))?;
/// # std::env::set_current_dir(dir.path())?;
/// let base = Pretrained::<Gpt2>::open("gpt2/")?;
/// let text = base.tokenizer()?.windows("text.txt", 256)?;
/// let (train, held) = Loader::new(text).shuffle(1).validation_split(0.1)?;
/// let mut trainer = base.with(Lora::rank(8).scale(16.0).on("*.c_attn")).trainer()
///     .optimizer(AdamW::new(2e-4)).metric(Perplexity).build(&train.fields()?)?;
/// trainer.fit(&train, Some(&held), 3)?;
/// trainer.merged()?.save_pretrained("mine/")?;
/// println!("{}", trainer.generator(Generate::new().most(64).top_p(0.9).seed(1))?.text(["To be, or"])?[0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Tuner<M> {
    start: Start<M>,
    trainer: Trainer,
}

/// What is trained.
enum Start<M> {
    Whole(Pretrained<M>),
    Adapted(Adapted<M>),
}

impl<M: Architecture> Pretrained<M> {
    /// Returns the settings of a trainer of all weights, which starts from these.
    pub fn trainer(self) -> TunerBuilder<M> {
        TunerBuilder::new(Trainer::builder(self.model()), Start::Whole(self))
    }
}

impl<M: Architecture> Adapted<M> {
    /// Returns the settings of a trainer of the matrices alone.
    pub fn trainer(self) -> TunerBuilder<M> {
        TunerBuilder::new(Trainer::builder(self.model()), Start::Adapted(self))
    }
}

impl<M: Architecture> TunerBuilder<M> {
    fn new(builder: Builder, start: Start<M>) -> Self {
        Self { start, builder, optimizer: Sgd::new(0.01).into() }
    }

    /// Sets the optimizer. Of an adapted model it trains only the matrices. Default: [`Sgd`] with a learning
    /// rate of 0.01.
    pub fn optimizer(self, optimizer: impl Into<Chain>) -> Self {
        Self { optimizer: optimizer.into(), ..self }
    }

    /// Sets the loss, as [`Builder::loss`].
    pub fn loss(self, loss: impl Loss + 'static) -> Self {
        self.settings(|builder| builder.loss(loss))
    }

    /// Adds a metric, as [`Builder::metric`].
    pub fn metric(self, metric: impl Metric + 'static) -> Self {
        self.settings(|builder| builder.metric(metric))
    }

    /// Sets the number of samples in a step, as [`Builder::global_batch`].
    pub fn global_batch(self, samples: usize) -> Self {
        self.settings(|builder| builder.global_batch(samples))
    }

    /// Sets the number of replicas, as [`Builder::replicas`].
    pub fn replicas(self, replicas: usize) -> Self {
        self.settings(|builder| builder.replicas(replicas))
    }

    /// Sets the seed of the matrices' initial values, as [`Builder::seed`].
    pub fn seed(self, seed: u64) -> Self {
        self.settings(|builder| builder.seed(seed))
    }

    /// Changes any other setting of the trainer: `settings(|builder| builder.shards(4).mixed(true))`. An
    /// optimizer that is set here has no effect, because [`optimizer`](Self::optimizer) replaces it. Phases
    /// that are set here are used instead of that optimizer. In an adapted model, nothing then freezes the
    /// base unless the phases do ([`Lora::freezes`]).
    pub fn settings(self, set: impl FnOnce(Builder) -> Builder) -> Self {
        Self { builder: set(self.builder), ..self }
    }

    /// Compiles the model, opens the devices, and loads the weights.
    ///
    /// # Errors
    /// Those of [`Adapted::check`] and of [`Builder::build`].
    pub fn build(self, fields: &[FieldSpec]) -> Result<Tuner<M>, Error> {
        let Self { start, builder, optimizer } = self;
        let optimizer = match &start {
            Start::Whole(_) => optimizer,
            Start::Adapted(adapted) => {
                adapted.check()?;
                optimizer.freeze(Lora::freezes)
            }
        };
        let mut trainer = builder.optimizer(optimizer).build(fields)?;
        match &start {
            Start::Whole(base) => base.load(&mut trainer)?,
            Start::Adapted(adapted) => adapted.load(&mut trainer)?,
        }
        Ok(Tuner { start, trainer })
    }
}

impl<M: Architecture> Tuner<M> {
    /// Returns the trained model: all weights, with the matrices of an adapted model added.
    ///
    /// # Errors
    /// The replicas fail, or the state is not finite.
    pub fn merged(&mut self) -> Result<Pretrained<M>, Error> {
        let weights = self.merged_weights()?;
        self.base().with_weights(weights)
    }

    /// Returns the model that the training started from.
    pub fn base(&self) -> &Pretrained<M> {
        match &self.start {
            Start::Whole(base) => base,
            Start::Adapted(adapted) => adapted.base(),
        }
    }

    /// Returns the adapted model, for [`Adapted::save_adapter`] with the trainer's weights. `None`: all
    /// weights are trained.
    pub fn adapted(&self) -> Option<&Adapted<M>> {
        match &self.start {
            Start::Whole(_) => None,
            Start::Adapted(adapted) => Some(adapted),
        }
    }

    fn merged_weights(&mut self) -> Result<Tensors, Error> {
        let weights = self.trainer.weights()?;
        match &self.start {
            Start::Whole(_) => Ok(weights),
            Start::Adapted(adapted) => adapted.merged(&weights),
        }
    }
}

impl<M: Decoder> Tuner<M> {
    /// Returns a generator with the weights as they are now. Training further does not change it.
    ///
    /// # Errors
    /// Those of [`Tuner::merged`] and [`Pretrained::generator`].
    pub fn generator(&mut self, settings: Generate) -> Result<Generator<M>, Error> {
        self.generator_with(Predictor::builder(), settings)
    }

    /// Returns a generator as [`Tuner::generator`] does, with settings of its predictor.
    ///
    /// # Errors
    /// Those of [`Tuner::generator`].
    pub fn generator_with(
        &mut self,
        builder: PredictorBuilder,
        settings: Generate,
    ) -> Result<Generator<M>, Error> {
        let weights = self.merged_weights()?;
        self.base().generator_with(builder, &weights, settings)
    }
}

impl<M> Deref for Tuner<M> {
    type Target = Trainer;

    fn deref(&self) -> &Trainer {
        &self.trainer
    }
}

impl<M> DerefMut for Tuner<M> {
    fn deref_mut(&mut self) -> &mut Trainer {
        &mut self.trainer
    }
}
