//! The same bytes whoever computes: any number of replicas, replicas that are lost, late or wrong, steps in
//! flight, and parts of the optimizer that replicas share out.

mod carries;
mod failed_fit;
mod in_flight;
mod lbfgs;
mod lost;
mod one_big_gpu;
mod one_class;
mod precision;
mod same_bits;
mod sets;
mod several;
mod sharded_updates;
mod spoiled;
mod trust;
mod whole;
