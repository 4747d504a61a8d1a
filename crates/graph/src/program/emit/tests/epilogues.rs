//! Maps that the kernel of a product computes.

use super::*;
use crate::trace::Var;

/// What an epilogue adds to all rows alike it finds by the column, also under axes that the product lacks.
#[test]
fn an_epilogue_finds_a_row_by_its_column() {
    let tape = Tape::new();
    let (x, parts) = (tape.input("x", Type::sample(&[64])), tape.input("parts", Type::sample(&[3, 32])));
    let w = tape.state("w", &[64, 32], StateKind::Parameter);
    let [near, far] = ["near", "far"].map(|name| tape.state(name, &[32], StateKind::Parameter));
    let part = (parts.slice(1, 1..2) + &far).reshape(&[32]);
    tape.output("y", &((x.matmul(&w) + &near).relu() * &part));
    let program = Program::compile(&tape.finish().unwrap()).unwrap();
    let plan = program.plan(&Run::whole(&[128]), &Target::default()).unwrap();
    let kernels: Vec<_> = plan.kernels.iter().filter(|kernel| kernel.name.starts_with("matmul")).collect();
    assert_eq!(kernels.len(), 1, "{:?}", plan.kernels.iter().map(|k| &k.name).collect::<Vec<_>>());
    let (_, finish) = kernels[0].wgsl.split_once("fn finish(").unwrap();
    let (finish, _) = finish.split_once("\n}\n").unwrap();
    // Both rows and the part have the column as it is, and are loaded in fours. No remainder is taken.
    assert_eq!(finish.matches("[j + ").count(), 3, "{finish}");
    assert!(!finish.contains("[i") && !finish.contains('%'), "{finish}");
}

/// On a CPU, an epilogue that only adds works on whole rows of a product.
#[test]
fn what_is_only_added_to_a_product_is_added_row_by_row() {
    let wgsl = |map: fn(&Tape, Var) -> Var| {
        let tape = Tape::new();
        let (x, w) = (tape.input("x", Type::sample(&[64])), tape.state("w", &[32, 64], StateKind::Parameter));
        tape.output("y", &map(&tape, x.matmul_t(&w)));
        let program = Program::compile(&tape.finish().unwrap()).unwrap();
        let target = Target { machine: Machine::Cpu, max_workgroup_bytes: 1 << 20, ..Target::default() };
        let plan = program.plan(&Run::whole(&[64]), &target).unwrap();
        plan.kernels.iter().map(|kernel| kernel.wgsl.to_string()).collect::<String>()
    };
    let added = wgsl(|tape, y| {
        let [b, c] = ["b", "c"].map(|name| tape.state(name, &[32], StateKind::Parameter));
        c + (&b + y)
    });
    assert!(added.contains("ADDS_PRODUCT: u32 = 1u") && added.contains("fn unisono_panel_add"), "{added}");
    // What does more is finished four by four.
    let finished = wgsl(|tape, y| (y + tape.state("b", &[32], StateKind::Parameter)).relu());
    assert!(!finished.contains("fn unisono_panel_add"), "{finished}");
}
