#![doc = include_str!("../README.md")]

mod architectures;
mod config;
mod error;
mod files;
mod generation;
mod lora;
mod pretrained;
mod tuner;

pub use architectures::Architecture;
pub use architectures::bert::Bert;
pub use architectures::decoder::{Decoder, DecoderSizes, Reader};
pub use architectures::distilbert::DistilBert;
pub use architectures::encoder_decoder::{Cross, EncoderDecoder, Source};
pub use architectures::gpt2::Gpt2;
pub use architectures::llama::Llama;
pub use architectures::mobilenet::MobileNetV2;
pub use architectures::resnet::ResNet;
pub use architectures::t5::T5;
pub use architectures::unet::UNet;
pub use architectures::vit::Vit;
pub use architectures::whisper::Whisper;
pub use config::Config;
pub use error::Error;
#[cfg(feature = "tokenizers")]
pub use generation::TextStream;
pub use generation::{Generate, Generator, Stream, Writer};
pub use lora::{Adapted, Lora};
pub use pretrained::{Pretrained, model_type};
pub use tuner::{Tuner, TunerBuilder};
