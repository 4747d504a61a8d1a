//! A numeric class depends on what an adapter computes and not on when.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::common::adapter;
use unisono_gpu::{Adapter, Arithmetic, Backend, Kind, adapters};
use unisono_graph::target::UnitSums;
use unisono_replica::{
    Rounding, cpus_of, describe_classes, is_one_class, is_one_machine, machine, probe, probe_now,
};

#[test]
fn an_adapter_is_always_of_the_same_class() {
    let (first, second) = (probe_now(&adapter()).unwrap(), probe_now(&adapter()).unwrap());
    assert_eq!(first, second);
    assert_eq!(first.machine, machine(&adapter()));
    assert_eq!(first.to_string().len(), 16);
}

/// An update of the system changes the compiler of an adapter that does not tell its version.
#[test]
fn adapters_that_do_not_tell_their_version_are_no_one_machine() {
    let silent = Adapter { driver: String::new(), driver_info: String::new(), ..adapter() };
    assert!(is_one_machine(&[adapter(), adapter()]) && is_one_machine(std::slice::from_ref(&silent)));
    assert!(!is_one_machine(&[silent.clone(), silent]));
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

/// Held by tests that probe a matrix unit: one of them plants a fault in every unit of the process.
static UNITS: Mutex<()> = Mutex::new(());

/// Whoever asks for matrix units gets a class of its own, which products of halves show.
#[test]
fn a_matrix_unit_is_a_class_of_its_own() {
    let _alone = UNITS.lock().unwrap_or_else(PoisonError::into_inner);
    let plain = probe_now(&adapter()).unwrap();
    let adapter = adapter().with_matrix_units().unwrap();
    let class = probe_now(&adapter).unwrap();
    assert!(class.to_string().starts_with("matrix:") && class.by_unit && !plain.by_unit, "{class}");
    assert!(class.machine != plain.machine && !class.is_same(&plain));
    assert_eq!(probe_now(&adapter).unwrap(), class);
    assert!(!is_one_class(&[crate::common::adapter(), adapter.clone()]).unwrap());
    // A unit whose first product has a wrong bit is refused by name, with the product and the element.
    fail::cfg("probe-unit", "return(state:0)").unwrap();
    let error = probe_now(&adapter).unwrap_err().to_string();
    fail::remove("probe-unit");
    let named = error.contains(&adapter.label()) && error.contains("its matrix unit is wrong: element 0 of");
    assert!(named, "{error}");
    assert_eq!(probe_now(&adapter).unwrap(), class);
}

/// The digest of an NVIDIA H200 (driver 580.159.04, Vulkan, 2026-11-28), whose probe ran products,
/// convolutions, attention and their gradients by its tensor cores. The CPU computes the same bits. (AArch64
/// rounds other products to the smallest normal number.)
#[test]
fn the_cpu_is_of_the_class_of_an_h200_with_its_tensor_cores() {
    let _alone = UNITS.lock().unwrap_or_else(PoisonError::into_inner);
    let hopper = Arithmetic { unit_sums: UnitSums::Aligned, ..Arithmetic::default() };
    let cpu = Adapter::cpu(hopper).unwrap();
    let class = probe_now(&cpu.with_matrix_units().unwrap()).unwrap().to_string();
    assert!(class == "matrix:1b11ca4aabd4c1ed" || cfg!(target_arch = "aarch64"), "{class}");
    assert_eq!(cpus_of(&class), [hopper]);
    // Without its unit it is the CPU of its arithmetic.
    assert!(is_one_class(&[adapter(), cpu]).unwrap());
}
