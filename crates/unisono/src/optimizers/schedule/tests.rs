//! Schedules: their formulas, and what is said of them.

use super::*;

fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-12 * b.abs(), "{a} is not {b}");
}

#[test]
fn schedules_follow_their_formulas() {
    assert_eq!(Schedule::from(0.5f32).at(99), 0.5);
    close(Schedule::step(0.1, 3, 0.1).at(6), 0.001);
    let cosine = Schedule::cosine(1.0, 10).end(0.1);
    close(cosine.at(0), 1.0);
    close(cosine.at(5), 0.55);
    close(cosine.at(10), 0.1);
    close(cosine.at(99), 0.1);
    close(Schedule::polynomial(1.0, 4, 2.0).at(1), 0.5625);
    assert_eq!(Schedule::polynomial(1.0, 4, 2.0).at(4), 0.0);
    close(Schedule::function(|step| step as f64).at(7), 7.0);
}

/// PyTorch's CosineAnnealingWarmRestarts(T_0=3, T_mult=2, eta_min=0.1) from 1, and (T_0=4).
#[test]
fn cosines_restart() {
    let growing = Schedule::cosine_restarts(1.0, 3, 2).end(0.1);
    let expected = [
        1.0,
        0.775,
        0.325,
        1.0,
        0.9397114317029974,
        0.775,
        0.55,
        0.325,
        0.16028856829700258,
        1.0,
        0.9846666218300807,
        0.9397114317029974,
    ];
    expected.iter().zip(0..).for_each(|(b, step)| close(growing.at(step), *b));
    let equal = Schedule::cosine_restarts(1.0, 4, 1);
    [1.0, 0.8535533905932737, 0.5, 0.14644660940672627, 1.0, 0.8535533905932737]
        .iter()
        .zip(0..)
        .for_each(|(b, step)| close(equal.at(step), *b));
    // Far away it is as quick, and numbers that cannot work are errors.
    assert!(growing.at(u64::MAX).is_finite() && equal.at(u64::MAX).is_finite());
    for none in [Schedule::cosine_restarts(1.0, 0, 2), Schedule::cosine_restarts(1.0, 2, 0)] {
        assert!(none.check().is_err() && none.at(9).is_finite());
    }
}

#[test]
fn warm_up_comes_first() {
    let schedule = Schedule::polynomial(0.8, 10, 1.0).warm_up(4);
    let first: Vec<f64> = (0..6).map(|step| schedule.at(step)).collect();
    [0.2, 0.4, 0.6, 0.8, 0.8, 0.72].iter().zip(first).for_each(|(b, a)| close(a, *b));
}

/// PyTorch's OneCycleLR(max_lr=1, total_steps=10): start, peak at step 2, end at step 9.
#[test]
fn one_cycle_rises_and_falls() {
    let schedule = Schedule::one_cycle(1.0, 10);
    close(schedule.at(0), 0.04);
    close(schedule.at(1), 0.52);
    close(schedule.at(2), 1.0);
    close(schedule.at(9), 0.04 / 1e4);
    close(schedule.at(50), 0.04 / 1e4);
    assert!((3..9).all(|step| schedule.at(step + 1) < schedule.at(step)));
    assert!((0..5).all(|steps| Schedule::one_cycle(1.0, steps).at(0).is_finite()));
}

#[test]
fn schedules_without_steps_are_refused() {
    for (schedule, problem) in [
        (Schedule::step(0.1, 0, 0.5), "0 steps"),
        (Schedule::step(0.1, 3, -0.5), "factor is -0.5"),
        (Schedule::cosine(0.1, 0), "a cosine over 0 steps"),
        (Schedule::polynomial(0.1, 0, 1.0), "a polynomial over 0 steps"),
        (Schedule::one_cycle(0.1, 0), "a cycle over 0 steps"),
    ] {
        let error = schedule.check().unwrap_err();
        assert!(error.contains(problem), "{problem}: {error}");
    }
}

#[test]
fn schedules_that_do_not_fit_the_run_are_noted() {
    let note = |schedule: Schedule, steps| schedule.note_on_steps(steps).unwrap_or_default();
    assert!(note(Schedule::constant(0.1).warm_up(500), 320).contains("the warm-up lasts 500 steps"));
    assert!(note(Schedule::cosine(0.1, 500).warm_up(400), 320).contains("the run has 320 steps"));
    let early = note(Schedule::cosine(0.1, 90).warm_up(10), 320);
    assert!(early.contains("0 from step 100 on") && early.contains("the last 220 steps"), "{early}");
    let late = note(Schedule::one_cycle(0.1, 1_000), 320);
    assert!(late.contains("is made for 1000 steps") && late.contains("the run has 320"), "{late}");
    let never = note(Schedule::step(0.1, 320, 0.1), 320);
    assert!(never.contains("after each 320 steps") && never.contains("it never does"), "{never}");
    let cycle = note(Schedule::one_cycle(0.1, 100), 320);
    assert!(cycle.contains("the last 220 steps change almost nothing"), "{cycle}");
    for fits in [
        Schedule::cosine(0.1, 310).warm_up(10),
        Schedule::cosine(0.1, 100).end(0.01),
        Schedule::polynomial(0.1, 600, 1.0),
        Schedule::step(0.1, 319, 0.1),
        Schedule::constant(0.0),
    ] {
        assert_eq!(note(fits, 320), "");
    }
}
