//! Programs: graphs compiled as far as it goes without sizes, and the plans made from them for runs of
//! shards.

mod emit;
mod groups;
mod kernels;
#[expect(clippy::module_inception, reason = "the module is named for its main thing")]
mod program;
mod run;
mod work;

pub use groups::UpdateGroup;
pub(crate) use kernels::{FinishKernel, FoldedKernel, UnitKernels};
pub use program::{Layout, Program};
pub use run::{BUCKET_BYTES, Conditions, MAX_SHARDS, OutputDecl, Run, Slot};
