//! What is computed: the values of PyTorch and Keras, the golden bits, the same bits on every adapter, and
//! kernels within the limits and the machine code of GPUs.

mod conformance;
mod golden;
mod isa;
mod limits;
mod modules;
mod products;
mod pytorch;
mod rdna;
#[cfg(feature = "targets")]
mod targets;
mod validation;
mod vendors;
