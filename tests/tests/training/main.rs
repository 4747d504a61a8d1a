//! What people who come from Keras, Lightning and PyTorch expect of training, with the same bits on any
//! number of replicas.

mod added;
mod advice;
mod averages;
mod best;
mod breadth;
mod built;
mod callbacks;
mod counted;
mod errors;
mod evaluation;
mod finder;
mod held_out;
mod input;
mod lengths;
mod metrics;
mod own_loop;
mod own_optimizers;
mod phases;
mod plateau;
mod predictor;
mod rates;
mod recipe;
mod silent;
mod situations;
mod trace;
mod unmeasured;
mod watched;

use unisono::{Logged, Observer, Trainer};

/// Keeps what observers are told.
#[derive(Clone, Default)]
struct Notes(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl Notes {
    fn has(&self, text: &str) -> bool {
        self.0.lock().unwrap().iter().any(|note| note.contains(text))
    }

    fn all(&self, text: &str) -> Vec<String> {
        self.0.lock().unwrap().iter().filter(|note| note.contains(text)).cloned().collect()
    }
}

impl Observer for Notes {
    fn note(&mut self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }

    fn logged(&mut self, _: u64, tag: &str, value: &Logged) {
        if let Logged::Text(text) = value {
            self.0.lock().unwrap().push(format!("{tag}: {text}"));
        }
    }
}

/// Returns the numbers of replicas that a single one is compared with. Runs that are resumed have two.
fn others() -> &'static [usize] {
    if std::env::var_os("UNISONO_LONG").is_some() { &[2, 3, 7] } else { &[3] }
}

/// Returns the bytes of the run's state as hexadecimal digits.
fn sha256(trainer: &mut Trainer) -> String {
    trainer.state_sha256().unwrap()
}
