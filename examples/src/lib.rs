//! What the example programs share, so that each of them is about its model and its data:
//!
//! | what | where |
//! |---|---|
//! | the first lines of every `main`: flags in, exit code out | [`program`], [`Defaults::program`], [`Defaults::program_with`] |
//! | the flags of every program that trains | [`RunFlags`], settled with [`Defaults`] into a [`Run`] |
//! | trainer, checkpoints and output of such a run | [`Run::train`], [`Run::train_by`] |
//! | a predictor on the adapters of such a run | [`Run::predictor`] |
//! | tables | [`table`] |
//! | the models of benchmarks, and noise to train them on | [`Model`] |
//! | a text for models of characters | [`Text`], [`TextFlags`] |
//! | the data that several programs train on | [`pictures`], [`Run::digit_pictures`], [`Reviews`], [`MnistFlags`] |
//! | digits of some classes | [`digits_of`] |
//! | pictures of an object at a known place | [`objects`] |
//! | a game to play | [`CartPole`] |
//! | the parameters of a paper's network | [`published`] |
//! | a model that is fine-tuned | [`ModelFlags`] |
//! | the network of several programs | [`resnet18`], [`normed`] |
//! | a directory for files that nobody needs after the run | [`Scratch`] |

mod base_model;
mod cart_pole;
mod digits;
mod flags;
mod interrupt;
mod machines;
mod mnist;
mod model;
mod objects;
mod onnx;
mod own_data;
mod pictures;
mod published;
mod resnet;
mod reviews;
mod run;
mod scratch;
mod table;
mod text;

use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, FromArgMatches, Parser};
use unisono::{Epoch, Trainer};

pub use base_model::ModelFlags;
pub use cart_pole::CartPole;
pub use digits::digits_of;
pub use flags::{Defaults, RunFlags};
pub use interrupt::{Interrupted, signals};
pub use machines::{ClusterFlag, print_line};
pub use mnist::{MnistFlags, mnist, part};
pub use model::Model;
pub use objects::{OBJECTS_REACH, OBJECTS_SIDE, objects};
pub use pictures::pictures;
pub use published::{ids, numbers, published};
pub use resnet::{normed, resnet18};
pub use reviews::Reviews;
pub use run::Run;
pub use scratch::Scratch;
pub use table::{bytes, table};
pub use text::{Text, TextFlags};

/// Any error, with a message that fits on a line.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Reads the command line and runs a program, after [`unisono::gpu::prepare_environment`]. An error prints
/// one line on standard error and exits with 1. Wrong flags and settings, and data or checkpoints that do not
/// fit them, exit with 2: the same run fails again. A run that a signal interrupted exits with 128 and the
/// signal's number: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP; with 1 if it could not save its last
/// step.
pub fn program<F: Parser>(run: impl FnOnce(F) -> Result<(), Error>) -> ExitCode {
    run_to_its_end(|| run(F::parse()))
}

/// Runs a program and returns its exit code.
fn run_to_its_end(run: impl FnOnce() -> Result<(), Error>) -> ExitCode {
    unisono::gpu::prepare_environment();
    // The faults that the variable FAILPOINTS names are active until this is dropped.
    #[cfg(feature = "faults")]
    let _faults = fail::FailScenario::setup();
    #[cfg(unix)]
    interrupt::survive_full_files();
    let result = run();
    let is_refused = result.as_ref().is_err_and(|error| is_refusal(&**error));
    machines::leave(result.as_ref().err().filter(|_| is_refused).map(ToString::to_string));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let stopped = matches!(error.downcast_ref(), Some(unisono::Error::Stopped));
            let is_saved = |interrupted: &Interrupted| interrupted.unsaved.is_none();
            let interrupted = stopped || error.downcast_ref().is_some_and(is_saved);
            // The terminal may be gone. That is no reason for another exit code. A line is written in one
            // piece, so that mpirun does not mix those of two ranks.
            match interrupted {
                true => say!("{error}"),
                false => {
                    drop(stderr().write_all(format!("{}error: {error}\n", machines::label()).as_bytes()))
                }
            }
            match interrupted {
                true => ExitCode::from(interrupt::exit_code()),
                false if is_refused => ExitCode::from(REFUSED),
                false => ExitCode::FAILURE,
            }
        }
    }
}

/// The exit code of a program whose flags are wrong, or which refuses to run as it was started.
const REFUSED: u8 = 2;

/// The error of flags that do not fit each other, the data or a checkpoint. The program exits with 2.
#[derive(Debug)]
pub struct Refused(pub String);

impl Defaults {
    /// Runs a program whose flags are [`RunFlags`], with the settings that they make, as [`program`] does.
    pub fn program(self, about: &'static str, train: impl FnOnce(Run) -> Result<(), Error>) -> ExitCode {
        self.program_with(about, |run, ()| train(run))
    }

    /// Runs a program that has flags besides [`RunFlags`], as [`program`] does.
    pub fn program_with<F: Args>(
        self,
        about: &'static str,
        train: impl FnOnce(Run, F) -> Result<(), Error>,
    ) -> ExitCode {
        run_to_its_end(|| {
            let command = RunFlags::augment_args(clap::Command::new(env!("CARGO_PKG_NAME")));
            // The comments of the flags' types would be the program's own.
            let command = F::augment_args(command).about(about).long_about(None).after_help(self.help());
            let flags = command.get_matches();
            train(RunFlags::from_arg_matches(&flags)?.settle(self)?, F::from_arg_matches(&flags)?)
        })
    }
}

impl std::error::Error for Refused {}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns whether the same run would fail again with an error: nothing was lost, it is refused.
fn is_refusal(error: &(dyn std::error::Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<unisono::Error>() {
        return error.is_refusal();
    }
    match error.downcast_ref::<unisono_models::Error>() {
        Some(unisono_models::Error::Unisono(error)) => error.is_refusal(),
        Some(unisono_models::Error::Io { reason, .. }) => reason.kind() == std::io::ErrorKind::NotFound,
        Some(error) => !matches!(error, unisono_models::Error::Weights(_)),
        // Data that cannot be opened; what is wrong with a batch of a run is an error of the run.
        None => error.is::<Refused>() || error.is::<unisono::data::DataError>(),
    }
}

/// Prints a line on standard error, on the first machine of a run alone unless all are asked for. Unlike
/// `eprintln!` it does not panic where standard error is full or closed.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::print_line(format_args!($($text)*)) };
}

/// Returns the file that `--data` names, or else the one in the folder `data` beside the program, or else the
/// one in the directory `data` of the examples where this program was compiled.
pub fn data(flag: Option<&Path>, own: &str) -> PathBuf {
    if let Some(path) = flag {
        return path.to_owned();
    }
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(own);
    let program = std::env::current_exe().ok();
    let beside = program.as_deref().and_then(Path::parent).map(|dir| dir.join("data").join(own));
    // Where neither is, the error names the place beside the program.
    match beside {
        Some(beside) if beside.exists() || !compiled.exists() => beside,
        _ => compiled,
    }
}

/// Returns the epoch whose weights a trainer has: the last one, or the best one if early stopping has
/// restored its weights.
pub(crate) fn kept_epoch(trainer: &Trainer) -> Option<&Epoch> {
    kept_of(trainer.history(), trainer.stopped().is_some())
}

/// Returns the first epoch with the lowest loss, as `--early-stopping` finds it, or the last epoch if it did
/// not stop the run.
fn kept_of(history: &[Epoch], is_stopped: bool) -> Option<&Epoch> {
    let loss = |epoch: &Epoch| epoch.validation.as_ref().map_or(f64::NAN, |measured| measured.loss);
    let measured = history.iter().filter(|epoch| is_stopped && !loss(epoch).is_nan());
    let best = measured.reduce(|best, epoch| if loss(epoch) < loss(best) { epoch } else { best });
    best.or(history.last())
}

/// Returns the share of the held-out samples that a model classifies correctly, as [`held_out_metric`] does.
pub fn accuracy(trainer: &Trainer) -> f64 {
    held_out_metric(trainer, "accuracy")
}

/// Returns a metric of the held-out samples after the epoch whose weights the trainer has: the last one, or
/// the one that early stopping restored. It is NaN, and a line on standard error names the metrics there are,
/// if none has this name or nothing was measured.
pub fn held_out_metric(trainer: &Trainer, name: &str) -> f64 {
    metric_of(kept_epoch(trainer), name).unwrap_or_else(|problem| {
        say!("{problem}");
        f64::NAN
    })
}

/// Returns a metric of the held-out samples of an epoch.
///
/// # Errors
/// It was not measured; the error is the message.
fn metric_of(last: Option<&Epoch>, name: &str) -> Result<f64, String> {
    let Some(measured) = last.and_then(|epoch| epoch.validation.as_ref()) else {
        return Err(format!("no metric {name:?}: nothing was measured on a validation set"));
    };
    measured.metric(name).ok_or_else(|| {
        let there: Vec<&str> = measured.metrics.iter().map(|(name, _)| &**name).collect();
        format!("no metric {name:?} was measured, only: {}", there.join(", "))
    })
}

/// Returns the loss on the held-out samples after the same epoch as [`held_out_metric`].
pub fn held_out_loss(trainer: &Trainer) -> f64 {
    let measured = kept_epoch(trainer).and_then(|epoch| epoch.validation.as_ref());
    measured.map_or(f64::NAN, |measured| measured.loss)
}

/// Returns an error if a program did not reach what it claims.
pub fn claim(what: &str, got: f64, least: f64) -> Result<(), Error> {
    if got >= least { Ok(()) } else { Err(format!("{what} is {got:.4}, less than {least}").into()) }
}

#[cfg(test)]
mod tests {
    use unisono::Evaluation;

    use super::*;

    #[test]
    fn what_is_not_reached_is_an_error() {
        assert!(claim("accuracy", 0.9, 0.9).is_ok());
        let error = |got: f64| claim("accuracy", got, 0.9).unwrap_err().to_string();
        assert_eq!(error(0.89), "accuracy is 0.8900, less than 0.9");
        assert_eq!(error(f64::NAN), "accuracy is NaN, less than 0.9");
    }

    #[test]
    fn the_weights_of_a_run_that_was_stopped_are_those_of_its_best_epoch() {
        let epoch = |(number, loss): (u32, f64)| {
            let (mut epoch, mut measured) = (Epoch::default(), Evaluation::default());
            measured.loss = loss;
            (epoch.epoch, epoch.validation) = (number, Some(measured));
            epoch
        };
        let history: Vec<Epoch> =
            (0..).zip([f64::NAN, 0.5, 0.3, 0.3, 0.4]).map(epoch).chain([Epoch::default()]).collect();
        let kept =
            |epochs: usize, is_stopped| kept_of(&history[..epochs], is_stopped).map(|epoch| epoch.epoch);
        assert_eq!([kept(5, true), kept(5, false), kept(6, true), kept(1, true)], [2, 4, 2, 0].map(Some));
        assert_eq!(kept(0, true), None);
    }

    #[test]
    fn errors_of_models_are_refusals() {
        let refused = |error: unisono_models::Error| is_refusal(&error);
        let problem = String::new;
        assert!(refused(unisono_models::Error::Setting { name: "most", problem: problem() }));
        assert!(refused(unisono_models::Error::Broken { path: "m".into(), problem: problem() }));
        assert!(refused(unisono_models::Error::Prompt { index: 0, problem: problem() }));
        let io =
            |kind: std::io::ErrorKind| unisono_models::Error::Io { path: "m".into(), reason: kind.into() };
        assert!(refused(io(std::io::ErrorKind::NotFound)));
        assert!(!refused(io(std::io::ErrorKind::StorageFull)));
        assert!(!refused(unisono_models::Error::Unisono(unisono::Error::Stopped)));
    }

    #[test]
    fn a_metric_that_is_not_there_is_no_number() {
        let mut epoch = Epoch::default();
        assert_eq!(
            metric_of(Some(&epoch), "accuracy").unwrap_err(),
            "no metric \"accuracy\": nothing was measured on a validation set"
        );
        let mut measured = Evaluation::default();
        measured.metrics.push(("same accuracy".into(), 0.75));
        epoch.validation = Some(measured);
        assert_eq!(metric_of(Some(&epoch), "same accuracy"), Ok(0.75));
        assert_eq!(
            metric_of(Some(&epoch), "accuracy").unwrap_err(),
            "no metric \"accuracy\" was measured, only: same accuracy"
        );
        assert!(metric_of(None, "accuracy").is_err());
    }
}
