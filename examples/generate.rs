//! Continues prompts with a GPT-2 or Llama from its directory, in the form of Hugging Face's hub.
//!
//!     cargo run --release -p unisono-examples --bin generate -- --model gpt2/ --prompts prompts.txt
//!
//! Each line of the prompts is a text, or the ids of its tokens: `[464, 3290]`. Texts need a `tokenizer.json`
//! in the directory.

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use unisono::data::Tokenizer;
use unisono::gpu::Arithmetic;
use unisono::{Predictor, PredictorBuilder};
use unisono_examples::{Error, Refused, program, say};
use unisono_models::{Decoder, Generate, Gpt2, Llama, Pretrained, model_type};

#[derive(Parser)]
#[command(about = "Continues prompts with a GPT-2 or Llama")]
struct Flags {
    /// Directory of the model: config.json, and model.safetensors or its shards
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// File with one prompt on each line: a text, or ids such as [464, 3290]
    #[arg(long, value_name = "FILE")]
    prompts: PathBuf,
    /// Maximum number of tokens to generate for each prompt
    #[arg(long, value_name = "N", default_value_t = 64)]
    most: usize,
    /// Sample tokens from softmax(logits / T) instead of taking the most likely one
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Sample from the K most likely tokens
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Sample from the most likely tokens whose probabilities add up to P
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Seed for sampling
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Number of prompts that are computed together
    #[arg(long, value_name = "N", default_value_t = 32)]
    batch: usize,
    /// Do not cache keys and values: read the whole text again for each token. The tokens are the same
    #[arg(long)]
    no_cache: bool,
    /// Use the adapters whose label contains NAME. Repeat the flag for several adapters [default: all GPUs,
    /// or the CPU if there is none]
    #[arg(long, value_name = "NAME")]
    adapter: Vec<String>,
    /// How the CPU rounds: fused, split, fused-subnormals, split-subnormals or hopper [default: fused]
    #[arg(long, value_name = "ARITHMETIC")]
    arithmetic: Option<Arithmetic>,
    /// Number of replicas
    #[arg(long, value_name = "N")]
    replicas: Option<usize>,
    /// Print one JSON object for each prompt: {"tokens": [...]}, the ids that were generated
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    program(generate)
}

fn generate(flags: Flags) -> Result<(), Error> {
    match &*model_type(&flags.model)? {
        "gpt2" => write_with::<Gpt2>(&flags),
        "llama" => write_with::<Llama>(&flags),
        other => {
            let model = flags.model.display();
            Err(Refused(format!("{model}: {other:?} is not a decoder of this program: gpt2, llama")).into())
        }
    }
}

fn write_with<M: Decoder>(flags: &Flags) -> Result<(), Error> {
    let words = Words::open(&flags.model)?;
    let prompts = words.read(&flags.prompts)?;
    let base = Pretrained::<M>::open(&flags.model)?;
    let mut generator = base.generator_with(flags.predictor(), base.weights(), flags.settings())?;
    let began = Instant::now();
    let written = generator.tokens(&prompts)?;
    let took = began.elapsed();
    for (prompt, tokens) in prompts.iter().zip(&written) {
        let text = words.text(prompt, tokens)?;
        let line = match (flags.json, text) {
            (true, Some(text)) => serde_json::json!({ "tokens": tokens, "text": text }).to_string(),
            (true, None) => serde_json::json!({ "tokens": tokens }).to_string(),
            (false, Some(text)) => text,
            (false, None) => format!("{tokens:?}"),
        };
        writeln!(stdout(), "{line}")?;
    }
    let count: usize = written.iter().map(Vec::len).sum();
    let rate = count as f64 / took.as_secs_f64();
    say!(
        "{count} tokens behind {} prompts in {:.2} s, {rate:.1} a second; {} programs",
        prompts.len(),
        took.as_secs_f64(),
        generator.programs()
    );
    Ok(())
}

impl Flags {
    fn settings(&self) -> Generate {
        let mut settings = Generate::new().most(self.most).seed(self.seed).batch(self.batch);
        settings = self.temperature.into_iter().fold(settings, Generate::temperature);
        settings = self.top_k.into_iter().fold(settings, Generate::top_k);
        settings = self.top_p.into_iter().fold(settings, Generate::top_p);
        settings.cached(!self.no_cache)
    }

    fn predictor(&self) -> PredictorBuilder {
        let builder = self.adapter.iter().fold(Predictor::builder(), |builder, name| builder.adapter(name));
        let builder = self.arithmetic.into_iter().fold(builder, PredictorBuilder::arithmetic);
        self.replicas.into_iter().fold(builder, PredictorBuilder::replicas)
    }
}

/// The model's tokenizer, where it has one.
struct Words {
    tokenizer: Option<Tokenizer>,
}

impl Words {
    fn open(model: &Path) -> Result<Self, Error> {
        let path = model.join("tokenizer.json");
        Ok(Self { tokenizer: path.exists().then(|| Tokenizer::open(path)).transpose()? })
    }

    /// Reads a prompt from each line that is not blank.
    fn read(&self, path: &Path) -> Result<Vec<Vec<i32>>, Error> {
        let named = |error: &dyn std::fmt::Display| Refused(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let prompt = |(at, line): (usize, &str)| match serde_json::from_str(line) {
            Ok(ids) => Ok(ids),
            Err(_) => self.ids(line).map_err(|error| named(&format!("line {}: {error}", at + 1)).into()),
        };
        let prompts = lines.map(prompt).collect::<Result<Vec<_>, Error>>()?;
        if prompts.is_empty() { Err(named(&"it has no prompts").into()) } else { Ok(prompts) }
    }

    fn ids(&self, text: &str) -> Result<Vec<i32>, Error> {
        let tokenizer = self.tokenizer.as_ref();
        let none = "the model's directory has no tokenizer.json: give ids, such as [464, 3290]";
        Ok(tokenizer.ok_or(none)?.encode(text)?)
    }

    /// Returns what some tokens add to the text of a prompt, where there is a tokenizer. Some tokenizers drop
    /// a space at the start of a text, so the tokens are not decoded alone.
    fn text(&self, prompt: &[i32], tokens: &[i32]) -> Result<Option<String>, Error> {
        let Some(tokenizer) = &self.tokenizer else { return Ok(None) };
        let (before, all) = (tokenizer.decode(prompt)?, tokenizer.decode(&[prompt, tokens].concat())?);
        Ok(Some(all.strip_prefix(&before).map_or(tokenizer.decode(tokens)?, str::to_owned)))
    }
}
