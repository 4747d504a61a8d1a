#![doc = include_str!("../README.md")]

mod adapters;
mod cases;
mod device;
mod differences;
pub mod emulator;
mod needs;
pub mod own_ops;
pub mod products;
pub mod zeros;

pub use adapters::{adapters, cpu_like, install, left_out};
pub use cases::{Prepared, graph_of, prepare};
pub use device::{Ran, Tensors, load_plan, plan_for, run, run_for, run_loaded, run_plan};
pub use differences::check_gradients;
pub use needs::{Needs, needs};

use unisono_graph::Array;

/// Returns the norm of the difference relative to the norm of the expected values (to 1 where these are all
/// 0). It is infinite if any value is not finite.
pub fn relative_error(answer: &[f32], expected: &Array) -> f64 {
    if answer.len() != expected.data.len() || answer.iter().any(|x| !x.is_finite()) {
        return f64::INFINITY;
    }
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut answer.iter().zip(&expected.data).map(|(&a, &e)| f64::from(a) - e));
    let size = norm(&mut expected.data.iter().copied());
    if size == 0.0 { difference } else { difference / size }
}
