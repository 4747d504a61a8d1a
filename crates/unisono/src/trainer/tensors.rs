//! Parameters, statistics and what the optimizer keeps, by name.

use unisono_graph::StateKind;

use crate::{Error, Trainer};

impl Trainer {
    /// The values of a state by index.
    pub(crate) fn state(&mut self, index: usize) -> Result<Vec<f32>, Error> {
        let bytes = self.replicas.read_state(index);
        let bytes = self.heard(bytes)?;
        Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    /// The values of a parameter or statistic by name (`0.weight`), or of what the optimizer keeps for one (`0.weight/exp_avg`).
    pub fn tensor(&mut self, name: &str) -> Option<Result<Vec<f32>, Error>> {
        let index = self.programs.train.states().iter().position(|s| s.name == name)?;
        Some(self.state(index))
    }

    /// Replaces a tensor that [`Trainer::tensor`] gives on every replica, for example by another program's.
    ///
    /// # Errors
    /// No such tensor, or another number of values.
    pub fn set_tensor(&mut self, name: &str, values: &[f32]) -> Result<(), Error> {
        let states = self.programs.train.states();
        let Some(index) = states.iter().position(|s| s.name == name) else {
            return Err(Error::setting("tensor", format!("the model has no {name:?}")));
        };
        let ty = &states[index].ty;
        if ty.count() != values.len() {
            let problem = format!("{name:?} is {:?}, not {} values", ty.dims, values.len());
            return Err(Error::setting("tensor", problem));
        }
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let written = self.replicas.write_state(index, &bytes);
        self.heard(written)
    }

    /// Names and shapes of parameters and statistics, in the model's order; not of what the optimizer keeps.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let states = self.programs.train.states();
        let own = self.programs.states_of(&[StateKind::Parameter, StateKind::Statistic]);
        own.into_iter().map(|i| (states[i].name.clone(), states[i].ty.dims.clone())).collect()
    }
}
