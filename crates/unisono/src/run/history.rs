//! The section `history`: the epochs done. Where they are many they are tensors, because what
//! `trainer.json` may take is bounded, and a run of short epochs would reach the bound.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use unisono_checkpoint::{Tensor, TensorDType, Tensors};

use crate::objective::tensors::take_of;
use crate::run::section::Section;
use crate::{Epoch, Error, Evaluation, History};

/// The most measured numbers of a history that `trainer.json` has: those of 1,000 epochs with a metric and
/// samples held out, in some 300 KB. Longer histories are tensors, of 8 bytes a number and 40 an epoch.
const MOST_IN_JSON: usize = 1 << 12;
/// The longest name of a metric, in bytes, of a history that is tensors. Each epoch has the names in memory,
/// which a file must not blow up.
const LONGEST_NAME: usize = 256;
/// The tensor `[epochs, 5]` of each epoch's form, number, steps and samples in training and held out.
const COUNTS: &str = "history/counts";
/// The tensor of each epoch's loss and metrics in training, then those of the samples held out.
const NUMBERS: &str = "history/numbers";

/// The names of the metrics of an epoch. Epochs with the same names are of one form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    train: Vec<String>,
    /// The names of those of the samples held out, if there were such samples.
    validation: Option<Vec<String>>,
}

impl Form {
    fn of(epoch: &Epoch) -> Self {
        let names = |e: &Evaluation| e.metrics.iter().map(|(name, _)| name.clone()).collect();
        Self { train: names(&epoch.train), validation: epoch.validation.as_ref().map(names) }
    }

    fn is_of(&self, epoch: &Epoch) -> bool {
        let same = |names: &[String], evaluation: &Evaluation| {
            names.iter().eq(evaluation.metrics.iter().map(|(name, _)| name))
        };
        let validation = match (&self.validation, &epoch.validation) {
            (Some(names), Some(evaluation)) => same(names, evaluation),
            (names, evaluation) => names.is_none() && evaluation.is_none(),
        };
        validation && same(&self.train, &epoch.train)
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        self.train.iter().chain(self.validation.iter().flatten())
    }

    /// Returns an epoch of this form without its numbers.
    fn epoch(self) -> Epoch {
        let evaluation = |names: Vec<String>| {
            let metrics = names.into_iter().map(|name| (name, 0.0)).collect();
            Evaluation { metrics, ..Evaluation::default() }
        };
        let (train, validation) = (evaluation(self.train), self.validation.map(evaluation));
        Epoch { train, validation, ..Epoch::default() }
    }
}

/// Returns the evaluations of an epoch: in training, and of the samples held out if there were such.
fn evaluations(epoch: &Epoch) -> impl Iterator<Item = &Evaluation> {
    std::iter::once(&epoch.train).chain(&epoch.validation)
}

/// Returns whether a history is tensors in a checkpoint.
fn is_long(history: &History) -> bool {
    let count = |epoch| evaluations(epoch).map(|e| 1 + e.metrics.len()).sum::<usize>();
    history.iter().map(count).sum::<usize>() > MOST_IN_JSON
        && forms(history).0.iter().flat_map(Form::names).all(|name| name.len() <= LONGEST_NAME)
}

/// Returns the forms of a history in the order in which they come, and the form of each epoch.
fn forms(history: &History) -> (Vec<Form>, Vec<u64>) {
    let (mut forms, mut last): (Vec<Form>, usize) = (Vec::new(), 0);
    let mut of_each = Vec::with_capacity(history.len());
    for epoch in history {
        if !forms.get(last).is_some_and(|form| form.is_of(epoch)) {
            last = forms.iter().position(|form| form.is_of(epoch)).unwrap_or(forms.len());
        }
        if last == forms.len() {
            forms.push(Form::of(epoch));
        }
        of_each.push(last as u64);
    }
    (forms, of_each)
}

impl Section for History {
    /// Version 1 is the list of epochs. Version 2 is the list of forms of a history that is tensors.
    const VERSION: u32 = 2;
    /// What was measured is no part of the state that training goes on from.
    const TENSORS_ARE_DIGESTED: bool = false;

    fn written_version(&self) -> u32 {
        if is_long(self) { 2 } else { 1 }
    }

    fn read(version: u32, value: Value) -> Result<Self, String> {
        if version == 1 {
            return serde_json::from_value(value).map_err(|error| error.to_string());
        }
        let forms: Vec<Form> = serde_json::from_value(value).map_err(|error| error.to_string())?;
        if let Some(name) = forms.iter().flat_map(Form::names).find(|name| name.len() > LONGEST_NAME) {
            return Err(format!("the name of a metric has {} bytes, more than {LONGEST_NAME}", name.len()));
        }
        Ok(forms.into_iter().map(Form::epoch).collect())
    }

    fn value(&self) -> serde_json::Result<Value> {
        if is_long(self) { serde_json::to_value(forms(self).0) } else { serde_json::to_value(self) }
    }

    fn tensors(&self) -> Result<Tensors, Error> {
        if !is_long(self) {
            return Ok(Tensors::new());
        }
        let (mut counts, mut numbers) = (Vec::new(), Vec::new());
        for (epoch, form) in self.iter().zip(forms(self).1) {
            let held_out = epoch.validation.as_ref().map_or(0, |validation| validation.samples);
            let all = [form, epoch.epoch.into(), epoch.steps, epoch.train.samples, held_out];
            counts.extend(all.into_iter().flat_map(u64::to_le_bytes));
            for evaluation in evaluations(epoch) {
                numbers.extend(evaluation.loss.to_le_bytes());
                numbers.extend(evaluation.metrics.iter().flat_map(|(_, number)| number.to_le_bytes()));
            }
        }
        let numbers = Tensor::new(TensorDType::F64, vec![numbers.len() / 8], numbers)?;
        let counts = Tensor::new(TensorDType::U64, vec![self.len(), 5], counts)?;
        Ok([(COUNTS.to_owned(), counts), (NUMBERS.to_owned(), numbers)].into())
    }

    /// Makes the epochs of the forms that were read as version 2.
    fn take_tensors(&mut self, version: u32, tensors: &mut Tensors) -> Result<(), String> {
        if version == 1 {
            return Ok(());
        }
        let forms = std::mem::take(self);
        let counts = words(tensors, COUNTS, TensorDType::U64)?;
        let mut numbers = words(tensors, NUMBERS, TensorDType::F64)?.into_iter().map(f64::from_le_bytes);
        for (index, counts) in counts.as_chunks::<5>().0.iter().enumerate() {
            let [form, number, steps, train, held_out] = counts.map(u64::from_le_bytes);
            let form = usize::try_from(form).ok().and_then(|form| forms.get(form));
            let number = u32::try_from(number).ok();
            let (Some(form), Some(number)) = (form, number) else {
                return Err(format!("the tensor {COUNTS:?} says of the epoch {index} what cannot be"));
            };
            let mut epoch = form.clone();
            (epoch.epoch, epoch.steps, epoch.train.samples) = (number, steps, train);
            if let Some(validation) = &mut epoch.validation {
                validation.samples = held_out;
            }
            for evaluation in std::iter::once(&mut epoch.train).chain(&mut epoch.validation) {
                let metrics = evaluation.metrics.iter_mut().map(|(_, number)| number);
                for place in std::iter::once(&mut evaluation.loss).chain(metrics) {
                    *place = numbers.next().ok_or_else(|| format!("the tensor {NUMBERS:?} is too short"))?;
                }
            }
            self.push(epoch);
        }
        match numbers.next() {
            Some(_) => Err(format!("the tensor {NUMBERS:?} is too long")),
            None => Ok(()),
        }
    }
}

/// Takes a tensor of 64-bit words out of those of a checkpoint.
fn words(tensors: &mut Tensors, name: &str, dtype: TensorDType) -> Result<Vec<[u8; 8]>, String> {
    Ok(take_of(tensors, name, dtype)?.bytes().as_chunks::<8>().0.to_vec())
}

#[cfg(test)]
mod tests {
    use unisono_checkpoint::Store;
    use unisono_data::{LoaderState, Position};

    use super::*;
    use crate::run::state::RunState;

    fn evaluation(names: &[&str], seed: u64) -> Evaluation {
        let number = |at: usize| f64::from_bits(0x3ff0_0000_0000_0000 | (seed * 31 + at as u64));
        let metrics = names.iter().enumerate().map(|(at, name)| ((*name).to_owned(), number(at))).collect();
        Evaluation { loss: number(99), metrics, samples: seed, ..Evaluation::default() }
    }

    /// A run of `epochs` epochs, every third of them without samples held out, and one that has no number.
    fn run(epochs: u32) -> RunState {
        let names = ["accuracy", "top five", "f1", "recall", "precision"];
        let epoch = |epoch: u32| Epoch {
            epoch,
            steps: u64::from(epoch) + 1,
            train: evaluation(&names, epoch.into()),
            validation: (!epoch.is_multiple_of(3)).then(|| evaluation(&names[..2], 7)),
        };
        let mut state = RunState { history: (0..epochs).map(epoch).collect(), ..RunState::default() };
        state.settings.global_batch = 1;
        state.settings.shards = 1;
        state.position.step = epochs.into();
        state.position.data =
            LoaderState { position: Position { epoch: epochs, sample: 0 }, ..LoaderState::default() };
        if let Some(epoch) = state.history.last_mut() {
            epoch.train.loss = f64::NEG_INFINITY;
        }
        state
    }

    #[test]
    fn a_long_history_is_saved_and_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path()).unwrap();
        let state = run(120_000);
        let mut contents = unisono_checkpoint::Contents::default();
        state.save(&mut contents).unwrap();
        store.save(state.position.step, &contents).unwrap();
        let loaded = store.newest().unwrap().unwrap();
        let read = RunState::load(&loaded.contents).unwrap();
        assert!(*read.history() == state.history, "other epochs came back");
        assert_eq!(state.digested_tensors().unwrap(), Tensors::new());
    }

    /// What earlier versions read is what they wrote.
    #[test]
    fn a_short_history_is_a_list_of_epochs_and_a_long_list_is_read() {
        let history = run(500).history;
        assert_eq!((history.written_version(), history.tensors().unwrap()), (1, Tensors::new()));
        assert_eq!(Section::value(&history).unwrap(), serde_json::to_value(&history).unwrap());
        // What an epoch adds to a checkpoint is bounded, and so is what trainer.json takes.
        for epochs in [500, 600, 2_000, 20_000] {
            let history = run(epochs).history;
            let json = Section::value(&history).unwrap().to_string().len();
            let tensors: usize = history.tensors().unwrap().values().map(|tensor| tensor.bytes().len()).sum();
            assert!(json < 500_000 && tensors <= 104 * epochs as usize, "{epochs}: {json}, {tensors}");
        }
        let long = run(20_000).history;
        assert_eq!(long.written_version(), 2);
        assert_eq!(History::read(1, serde_json::to_value(&long).unwrap()).unwrap(), long);
    }

    #[test]
    fn tensors_that_do_not_fit_are_named() {
        let history = run(20_000).history;
        let forms = Section::value(&history).unwrap();
        assert_eq!(forms.as_array().unwrap().len(), 2);
        let problem = |change: &dyn Fn(&mut Tensors)| {
            let mut read = History::read(2, forms.clone()).unwrap();
            let mut tensors = history.tensors().unwrap();
            change(&mut tensors);
            read.take_tensors(2, &mut tensors).unwrap_err()
        };
        let put = |name: &'static str, dtype: TensorDType, words: Vec<u64>| {
            move |tensors: &mut Tensors| {
                let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                let tensor = Tensor::new(dtype, vec![words.len()], bytes).unwrap();
                tensors.insert(name.to_owned(), tensor);
            }
        };
        let lacking = problem(&|tensors| drop(tensors.remove(NUMBERS)));
        assert_eq!(lacking, "carries.safetensors has no tensor \"history/numbers\"");
        let other = problem(&put(COUNTS, TensorDType::F64, vec![0; 5]));
        assert_eq!(other, "the tensor \"history/counts\" is not of type U64");
        let short = problem(&put(NUMBERS, TensorDType::F64, vec![0; 5]));
        assert_eq!(short, "the tensor \"history/numbers\" is too short");
        let long = problem(&put(COUNTS, TensorDType::U64, vec![0; 5]));
        assert_eq!(long, "the tensor \"history/numbers\" is too long");
        let form = problem(&put(COUNTS, TensorDType::U64, vec![2, 0, 0, 0, 0]));
        assert_eq!(form, "the tensor \"history/counts\" says of the epoch 0 what cannot be");
        let name = serde_json::json!([{"train": ["a".repeat(257)], "validation": null}]);
        let name = History::read(2, name).unwrap_err();
        assert_eq!(name, "the name of a metric has 257 bytes, more than 256");
    }
}
