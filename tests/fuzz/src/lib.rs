//! Every reader of Unisono as a function of bytes: fuzzers call them with what they make up, and tests with
//! the inputs that are kept in `corpus`.
//!
//! A reader must return for any bytes, with an error or with what it read. It must not panic, hang, or
//! allocate more than [`LIMIT`] in a way that cannot fail.

mod checkpoint;
mod data;
mod limit;
#[cfg(feature = "run")]
mod run;
mod scratch;

pub use limit::{LIMIT, Limited};
pub use scratch::Scratch;

/// A reader, under the name that `cargo xtask fuzz` and the directories of the corpus know it by.
#[derive(Debug)]
pub struct Reader {
    /// The reader's name.
    pub name: &'static str,
    /// Reads bytes as a file, or as the files of a directory.
    pub read: fn(&Scratch, &[u8]),
}

/// All readers. `cargo xtask fuzz` lists the same names.
pub const READERS: &[Reader] = &[
    Reader { name: "csv", read: data::csv },
    Reader { name: "idx", read: data::idx },
    Reader { name: "npy", read: data::npy },
    Reader { name: "npz", read: data::npz },
    Reader { name: "cifar", read: data::cifar },
    Reader { name: "png", read: data::png },
    Reader { name: "jpeg", read: data::jpeg },
    Reader { name: "tokens", read: data::tokens },
    Reader { name: "safetensors", read: data::safetensors },
    Reader { name: "statistics", read: data::statistics },
    Reader { name: "tar", read: data::tar },
    Reader { name: "lines", read: data::lines },
    Reader { name: "wav", read: data::wav },
    Reader { name: "vocabulary", read: data::vocabulary },
    Reader { name: "replay", read: data::replay },
    Reader { name: "tensors", read: checkpoint::tensors },
    Reader { name: "torch", read: checkpoint::torch },
    Reader { name: "keras", read: checkpoint::keras },
    Reader { name: "manifest", read: checkpoint::manifest },
    Reader { name: "checkpoint", read: checkpoint::checkpoint },
    Reader { name: "directory", read: checkpoint::directory },
    Reader { name: "export", read: checkpoint::export },
    Reader { name: "plan", read: checkpoint::plan },
    #[cfg(feature = "more-pictures")]
    Reader { name: "webp", read: data::webp },
    #[cfg(feature = "more-pictures")]
    Reader { name: "bmp", read: data::bmp },
    #[cfg(feature = "more-pictures")]
    Reader { name: "gif", read: data::gif },
    #[cfg(feature = "more-pictures")]
    Reader { name: "tiff", read: data::tiff },
    #[cfg(feature = "columnar")]
    Reader { name: "columnar", read: data::columnar },
    #[cfg(feature = "run")]
    Reader { name: "trainer", read: run::trainer },
    #[cfg(feature = "run")]
    Reader { name: "model", read: run::model },
];

/// Returns the reader of a name.
pub fn reader(name: &str) -> Option<&'static Reader> {
    READERS.iter().find(|reader| reader.name == name)
}
