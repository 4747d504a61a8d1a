//! Compares every op and every kernel with the f64 reference, on every adapter and on the emulator.

mod elementary;
mod emulated;
mod half;
mod heads;
mod joint;
mod ops;
mod outputs;
mod own_ops;
mod places;
mod quotients;
mod row_sums;
mod small_workgroups;
mod structures;
mod together;
mod views;
