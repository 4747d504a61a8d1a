//! What a tape refuses.

use super::*;
use crate::StateKind;

#[test]
fn integers_are_not_added_up() {
    let refused = |use_of: fn(&Var, &Var) -> Var| {
        let tape = Tape::new();
        let ids = tape.input("ids", Type::sample(&[3]).of(DType::I32));
        let w = tape.state("w", &[3, 2], StateKind::Parameter);
        tape.output("y", &tape.scope("layer", || use_of(&ids, &w)));
        tape.finish().unwrap_err().to_string()
    };
    let expected = "takes f32, and got [B, 3] i32: Var::to_f32 makes f32 of integers";
    assert_eq!(refused(|ids, w| ids.matmul(w)), format!("layer: matmul: {expected}"));
    for use_of in [|ids: &Var, _: &Var| ids.sum(&[-1]), |ids: &Var, _: &Var| ids.sum_shards()] {
        let error = refused(use_of);
        assert!(error.contains("layer: ") && error.contains(expected), "{error}");
    }
}

/// A number of another tape's value means something else here, or nothing.
#[test]
fn a_value_of_another_trace_is_an_error_wherever_it_comes_in() {
    let other = Tape::new();
    let old = (0..9).fold(other.constant(1.0), |x, _| x.exp());
    type Uses = fn(&Tape, &Var, &Var);
    let uses: [Uses; 8] = [
        |_, x, old| _ = x + old,
        |tape, x, old| tape.output("y", &(old + x)),
        |tape, _, old| tape.output("y", &old.exp()),
        |tape, w, old| tape.update(w, old),
        |tape, w, old| tape.update(old, w),
        |tape, w, old| drop(tape.gradients(old, std::slice::from_ref(w))),
        |tape, w, old| drop(tape.gradients(&w.sum_all(), std::slice::from_ref(old))),
        |tape, x, old| tape.keep(old, x),
    ];
    for precision in [crate::Precision::F32, crate::Precision::Mixed] {
        for (at, uses) in uses.iter().enumerate() {
            let tape = Tape::with_precision(precision);
            let w = tape.state("w", &[], StateKind::Parameter);
            uses(&tape, &w, &old);
            let error = tape.finish().unwrap_err().to_string();
            assert!(error.contains("is of another trace"), "{at}: {error}");
        }
    }
    assert_eq!(Tape::new().state_name(&old), None);
}

#[test]
fn values_without_elements_are_refused_by_the_op_that_makes_or_takes_them() {
    let problem = |trace: fn(&Tape) -> Var| {
        let tape = Tape::new();
        let y = tape.scope("layer", || trace(&tape));
        tape.output("y", &y);
        tape.finish().unwrap_err().to_string()
    };
    let state: fn(&Tape) -> Var = |tape| tape.state("w", &[3, 0], StateKind::Parameter);
    assert_eq!(problem(state), "layer: state: w: [3, 0] has no elements");
    let slice: fn(&Tape) -> Var = |tape| tape.input("x", Type::sample(&[4])).slice(-1, 2..2);
    assert_eq!(problem(slice), "layer: slice: [B, 0] has no elements");
    let sum: fn(&Tape) -> Var = |tape| tape.input("x", Type::sample(&[0, 4])).sum(&[-2]);
    assert_eq!(problem(sum), "layer: sum: [B, 0, 4] has no elements");
    let pad: fn(&Tape) -> Var = |tape| tape.input("x", Type::sample(&[0])).pad(&[1], &[1]);
    assert_eq!(problem(pad), "layer: pad: [B, 0] has no elements");
    let shown: fn(&Tape) -> Var = |tape| tape.input("x", Type::sample(&[0]));
    assert_eq!(problem(shown), "output: y: [B, 0] has no elements");
    // What nothing reads is no matter.
    let tape = Tape::new();
    tape.input("unused", Type::sample(&[0]));
    assert!(tape.finish().is_ok());
}
