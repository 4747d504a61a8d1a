//! The tensors on the devices by name: parameters, statistics and what the optimizer keeps.

use unisono_checkpoint::{Info, Tensor, Tensors};
use unisono_graph::StateKind;
use unisono_replica::ReplicaError;

use crate::saving::tensors::info;
use crate::{Error, Trainer};

impl Trainer {
    /// Returns the index of a state by its name.
    pub(super) fn state_index(&self, name: &str) -> Option<usize> {
        self.plan.programs.train().states().iter().position(|state| state.name == name)
    }

    /// Returns the values of a state by its index.
    pub(super) fn values(&mut self, index: usize) -> Result<Vec<f32>, Error> {
        self.check_before_leaving()?;
        let bytes = self.replica_set.replicas.read_state(index);
        let bytes = self.check_result(bytes)?;
        let mut values = Vec::new();
        let name = || self.plan.programs.train().states()[index].name.clone();
        values.try_reserve_exact(bytes.len() / 4).map_err(|_| no_host_memory(&name(), bytes.len()))?;
        values.extend(bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)));
        Ok(values)
    }

    /// Returns the values of a parameter or statistic by name (`0.weight`), or of its optimizer state
    /// (`0.weight/exp_avg`). `None`: there is no such tensor. The replicas are compared first, and a wrong
    /// one leaves the run; this is why it takes `&mut self`.
    #[doc(alias = "get_weights")]
    pub fn tensor(&mut self, name: &str) -> Option<Result<Vec<f32>, Error>> {
        self.state_index(name).map(|index| self.values(index))
    }

    /// Replaces a tensor of [`Trainer::tensor`] on every replica, for example with values from another
    /// program. With `use_average_weights`, its moving average is replaced too. The values become part of the
    /// run's identity.
    ///
    /// # Errors
    /// No such tensor, another number of values, or one that is NaN or infinite; the host has no memory for a
    /// copy.
    #[doc(alias = "set_weights")]
    pub fn set_tensor(&mut self, name: &str, values: &[f32]) -> Result<(), Error> {
        self.check_trust()?;
        let Some(index) = self.state_index(name) else {
            return Err(Error::setting("tensor", format!("the model has no {name:?}")));
        };
        let ty = &self.plan.programs.train().states()[index].ty;
        if ty.count() != values.len() {
            let problem = format!("{name:?} is {:?}, not {} values", ty.dims, values.len());
            return Err(Error::setting("tensor", problem));
        }
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(Error::setting("tensor", format!("value {at} for {name:?} is {}", values[at])));
        }
        let mut bytes: Vec<u8> = Vec::new();
        let reserved = bytes.try_reserve_exact(4 * values.len());
        reserved.map_err(|_| no_host_memory(name, 4 * values.len()))?;
        bytes.extend_from_slice(bytemuck::cast_slice(values));
        let written = self.replica_set.replicas.write_state(index, &bytes);
        self.check_result(written)?;
        let Info { dtype, shape } = info(&self.plan.programs.train().states()[index].ty);
        let set = Tensors::from([(name.to_owned(), Tensor::new(dtype, shape, bytes)?)]);
        self.set_averages(&set)?;
        self.state.identity.load(self.steps(), unisono_checkpoint::state_sha256(&[("tensor", &set)], &[]));
        self.state_was_set();
        Ok(())
    }

    /// Returns names and shapes of parameters and statistics, in the model's order. Optimizer state is not
    /// among them.
    #[doc(alias = "named_parameters")]
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let states = self.plan.programs.train().states();
        let own = self.plan.programs.states_of(&[StateKind::Parameter, StateKind::Statistic]);
        own.into_iter().map(|i| (states[i].name.clone(), states[i].ty.dims.clone())).collect()
    }

    /// Reads the tensors of certain kinds off the devices.
    pub(super) fn tensors_of(&mut self, kinds: &[StateKind]) -> Result<Tensors, Error> {
        self.tensors_into(kinds, Tensors::new())
    }

    /// Does [`Trainer::tensors_of`] in the memory of tensors that were read before.
    pub(super) fn tensors_into(&mut self, kinds: &[StateKind], mut spare: Tensors) -> Result<Tensors, Error> {
        self.replica_set.check_state()?;
        let indices = self.plan.programs.states_of(kinds);
        let states = self.plan.programs.train().states();
        let memory = |&index: &usize| spare.remove(&states[index].name).map(Tensor::into_bytes);
        let memory = indices.iter().map(memory).map(Option::unwrap_or_default).collect();
        // Training waits for this, so the bytes are kept as they come off the devices, without another copy.
        let all = self.replica_set.replicas.read_states(&indices, memory);
        let all = self.check_result(all)?;
        let states = self.plan.programs.train().states();
        let named = indices.iter().zip(all).map(|(&index, bytes)| {
            let Info { dtype, shape } = info(&states[index].ty);
            Ok((states[index].name.clone(), Tensor::new(dtype, shape, bytes)?))
        });
        named.collect()
    }
}

/// Returns the error that the host has no memory for a copy of a tensor.
fn no_host_memory(name: &str, bytes: usize) -> Error {
    ReplicaError::NoHostMemory { what: format!("the tensor {name}"), bytes }.into()
}
