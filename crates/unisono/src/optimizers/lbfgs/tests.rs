//! L-BFGS beside PyTorch's: `tests/oracle/lbfgs.py` prints these numbers, in f64.

use super::Lbfgs;
use super::curvature::Curvature;
use crate::LbfgsEnd;

/// The sum over neighbours of 100 (b - a^2)^2 + (1 - a)^2 (Rosenbrock's function), and its gradient.
#[expect(clippy::unnecessary_wraps, reason = "evaluations may fail")]
fn rosenbrock(x: &[f64]) -> Result<(f64, Vec<f64>), String> {
    let (mut loss, mut gradient) = (0.0, vec![0.0; x.len()]);
    for (at, pair) in x.windows(2).enumerate() {
        let (bend, rest) = (pair[1] - pair[0] * pair[0], 1.0 - pair[0]);
        loss += 100.0 * bend * bend + rest * rest;
        gradient[at] += -400.0 * pair[0] * bend - 2.0 * rest;
        gradient[at + 1] += 200.0 * bend;
    }
    Ok((loss, gradient))
}

/// What PyTorch has after a step: the parameters, and all iterations and evaluations so far.
type After<'a> = (&'a [f64], u64, u64);

/// Compares steps from (-1.2, 1, -1.2, 1, ..) with PyTorch's.
fn compare(rule: &Lbfgs, expected: &[After<'_>]) {
    let mut x: Vec<f64> = [-1.2, 1.0].into_iter().cycle().take(expected[0].0.len()).collect();
    let mut known = Curvature::default();
    for (at, (end, iterations, evaluations)) in expected.iter().enumerate() {
        rule.descend(&mut known, &mut x, &mut rosenbrock).unwrap();
        assert_eq!((known.iterations, known.evaluations), (*iterations, *evaluations), "step {at}");
        for (own, torch) in x.iter().zip(*end) {
            assert!((own - torch).abs() < 1e-6, "step {at}: {x:?}, not {end:?}");
        }
    }
}

#[test]
fn two_parameters_go_where_pytorchs_go() {
    let short: [After<'_>; 4] = [
        (&[-0.8802131649658734, 0.7274772060719978], 8, 10),
        (&[-0.04619019171258308, -0.01801156636469505], 15, 20),
        (&[0.6803460312870351, 0.46120580018830387], 22, 30),
        (&[0.9768773674819872, 0.9525832436377473], 29, 41),
    ];
    compare(&Lbfgs::new().max_iter(8), &short);
    let default: [After<'_>; 2] = [
        (&[0.38062264334648777, 0.12491013187293636], 19, 25),
        (&[0.9999814210791366, 0.9999619651810989], 35, 44),
    ];
    compare(&Lbfgs::new(), &default);
}

#[test]
fn a_short_history_a_rate_and_a_limit_of_evaluations_are_pytorchs() {
    let short: [After<'_>; 3] = [
        (
            &[
                -0.5556995194937238,
                0.3255999384110175,
                0.11934788543069079,
                0.020695779947580865,
                -0.0007895032300947683,
                0.0038119815206475024,
            ],
            10,
            11,
        ),
        (
            &[
                -0.5575606616021483,
                0.3248579389630703,
                0.11672977976611235,
                0.023874261360390336,
                0.010514914692925858,
                9.398704700196527e-05,
            ],
            20,
            22,
        ),
        (
            &[
                -0.6791444089412367,
                0.46537384780130436,
                0.2114475896122156,
                0.05206754288392366,
                0.02319056261049819,
                -0.0029456343073143883,
            ],
            27,
            35,
        ),
    ];
    compare(&Lbfgs::new().history_size(3).max_iter(10).lr(0.5), &short);
    let few: [After<'_>; 3] = [
        (
            &[
                -0.7136264417335236,
                0.35157791329363164,
                -0.3702231122817039,
                0.19724361049317282,
                -0.7151437651141301,
                0.8308236055354621,
            ],
            3,
            4,
        ),
        (
            &[
                -0.358845620737426,
                0.20544880371635357,
                0.11353772672188425,
                -0.008005962104071323,
                0.08225461698982645,
                -0.0675335200641892,
            ],
            6,
            8,
        ),
        (
            &[
                -0.399689859688854,
                0.1752566999803733,
                0.0418506454412205,
                0.01145934475738279,
                0.010918975722683227,
                -0.0011994210129736898,
            ],
            9,
            12,
        ),
    ];
    compare(&Lbfgs::new().history_size(5).max_eval(4), &few);
}

#[test]
fn a_step_says_why_it_ended() {
    let at = |x: &mut Vec<f64>, rule: &Lbfgs| {
        let mut known = Curvature::default();
        rule.descend(&mut known, x, &mut rosenbrock).unwrap()
    };
    let start = || vec![-1.2, 1.0];
    let step = at(&mut start(), &Lbfgs::new().max_iter(3).max_eval(50));
    assert_eq!((step.end, step.iterations), (LbfgsEnd::Iterations, 3));
    let step = at(&mut start(), &Lbfgs::new().max_eval(5));
    assert_eq!(step.end, LbfgsEnd::Evaluations);
    assert!(step.evaluations >= 5 && step.loss < step.loss_before, "{step:?}");
    let step = at(&mut vec![1.0, 1.0], &Lbfgs::new());
    assert_eq!((step.end, step.evaluations, step.iterations), (LbfgsEnd::Gradient, 1, 0));
    let step = at(&mut start(), &Lbfgs::new().max_iter(1000));
    assert!(step.end.is_converged() && step.loss < 1e-8, "{step:?}");
}

/// The error of an evaluation comes out, wherever the step was.
#[test]
fn errors_of_evaluations_end_a_step() {
    for fatal in 0..6 {
        let (mut known, mut count) = (Curvature::default(), 0);
        let mut evaluate = |x: &[f64]| {
            count += 1;
            if count > fatal { Err(format!("evaluation {count}")) } else { rosenbrock(x) }
        };
        let ended = Lbfgs::new().descend(&mut known, &mut vec![-1.2, 1.0], &mut evaluate);
        assert_eq!(ended.unwrap_err(), format!("evaluation {}", fatal + 1));
    }
}
