//! A numeric class depends on what an adapter computes and not on when.

mod common;

use std::collections::BTreeSet;

use common::adapter;
use unisono_gpu::{Adapter, Backend, Kind, adapters};
use unisono_replica::{Rounding, describe_classes, is_one_class, is_one_machine, machine, probe, probe_now};

#[test]
fn an_adapter_is_always_of_the_same_class() {
    let (first, second) = (probe_now(&adapter()).unwrap(), probe_now(&adapter()).unwrap());
    assert_eq!(first, second);
    assert_eq!(first.machine, machine(&adapter()));
    assert_eq!(first.to_string().len(), 16);
}

#[test]
fn software_adapters_of_all_backends_are_of_one_class() {
    let all = adapters(&[Backend::Vulkan, Backend::Gl]);
    let software: Vec<Adapter> = all.into_iter().filter(|adapter| adapter.kind == Kind::Cpu).collect();
    assert!(is_one_class(&software).unwrap(), "{:?}", describe_classes(&software));
    let machines: BTreeSet<String> = software.iter().map(machine).collect();
    assert_eq!(is_one_machine(&software), machines.len() < 2, "{machines:?}");
    for adapter in &software {
        assert_eq!(probe(adapter).unwrap().rounding, Rounding::Split, "{adapter}");
    }
}
