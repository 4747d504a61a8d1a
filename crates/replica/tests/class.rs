//! The numeric class depends on what an adapter computes and not on when.

mod common;

use common::adapter;
use unisono_gpu::{Backend, adapters};
use unisono_replica::{machine, probe};

#[test]
fn an_adapter_is_always_of_the_same_class() {
    let (first, second) = (probe(&adapter()).unwrap(), probe(&adapter()).unwrap());
    assert_eq!(first, second);
    assert_eq!(first.machine, machine(&adapter()));
    assert_eq!(first.to_string().len(), 16);
}

#[test]
fn backends_are_never_of_one_class() {
    let machines: Vec<String> = adapters(&[Backend::Vulkan, Backend::Gl]).iter().map(machine).collect();
    let backends = |name: &str| machines.iter().filter(|machine| machine.starts_with(name)).count();
    assert_eq!(backends("vulkan") + backends("gl"), machines.len(), "{machines:?}");
}
