//! Replicas from outside: the same bytes whichever replicas computed them, and whichever were lost. Fault
//! points belong to the process, so each run has a scope of its own (`common::with_points`).

mod audit;
mod class;
mod common;
mod diagnosis;
mod errors;
mod faults;
mod in_flight;
mod new_states;
mod overlap;
mod pace;
mod programs;
mod residents;
mod same_bits;
