//! Replicas that leave: what observers are told, and the error of the last one's end.

use unisono_replica::ReplicaError;

use crate::{Error, Trainer};

impl Trainer {
    /// What the replicas answered; observers are told who left meanwhile.
    pub(crate) fn heard<T>(&mut self, answer: Result<T, ReplicaError>) -> Result<T, Error> {
        self.tell_left();
        answer.map_err(|error| match error {
            left @ ReplicaError::NoneLeft { .. } => Error::NoneLeft { left, checkpoint: self.durable() },
            error => error.into(),
        })
    }

    /// Tells observers who left since they were told last, whatever the replicas were asked to do.
    pub(crate) fn tell_left(&mut self) {
        let new: Vec<String> =
            self.replicas.left().iter().skip(self.left_told).map(ToString::to_string).collect();
        self.left_told += new.len();
        new.iter().for_each(|note| self.tell_note(note));
    }

    /// The step of the newest checkpoint, once what was handed over is written or cannot be.
    fn durable(&mut self) -> Option<u64> {
        if let Err(error) = self.finish_saves() {
            self.tell_note(&format!("warning: the last checkpoint is not saved: {error}"));
        }
        self.checkpoints.as_ref()?.durable
    }
}
