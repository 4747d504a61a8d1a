//! Runs many subjects on several adapters at once, each adapter in a thread of its own.

use unisono_gpu::{Adapter, Options};

use super::{Bench, Difference, Plant, Subject, Values, compare, first_difference, has_nan};

/// Open adapters that run the same subjects. All are compared with the first one.
pub struct Fleet {
    benches: Vec<Bench>,
}

/// What came out of running subjects.
#[derive(Debug, Default)]
pub struct Tally {
    /// The number of subjects that ran on every adapter.
    pub ran: usize,
    /// How many of those made a value that is not a number on some adapter.
    pub with_nan: usize,
    /// How many of these differ. What follows from such a value is not promised.
    pub follow_nan: usize,
    /// The differences, but for those that follow from a value that is not a number.
    pub differences: Vec<Difference>,
    /// What kept a subject from running, one message for each that did not.
    pub failures: Vec<String>,
}

impl Tally {
    /// Adds what came out of other subjects.
    pub fn add(&mut self, other: Self) {
        self.ran += other.ran;
        self.with_nan += other.with_nan;
        self.follow_nan += other.follow_nan;
        self.differences.extend(other.differences);
        self.failures.extend(other.failures);
    }

    /// Returns the number of subjects that differ or did not run.
    pub fn faults(&self) -> usize {
        self.differences.len() + self.failures.len()
    }
}

impl Fleet {
    /// Opens adapters. The second one is spoiled if something is planted.
    ///
    /// # Errors
    /// An adapter does not open.
    pub fn open(adapters: &[Adapter], options: &Options, plant: Option<Plant>) -> Result<Self, String> {
        let open =
            |(index, adapter)| Ok(Bench::open(adapter, options.clone())?.with(plant.filter(|_| index == 1)));
        let benches = adapters.iter().enumerate().map(open).collect::<Result<_, String>>()?;
        Ok(Self { benches })
    }

    /// Returns the adapters' labels.
    pub fn labels(&self) -> Vec<String> {
        self.benches.iter().map(Bench::label).collect()
    }

    /// Drops the kernels of all subjects so far.
    ///
    /// # Errors
    /// An adapter does not open again.
    pub fn forget(&mut self) -> Result<(), String> {
        self.benches.iter_mut().try_for_each(Bench::forget)
    }

    /// Runs subjects on all adapters and compares what they gave.
    pub fn run(&mut self, subjects: &[Subject]) -> Tally {
        let found: Vec<Vec<Result<Values, String>>> = std::thread::scope(|scope| {
            let all = |bench: &mut Bench| subjects.iter().map(|subject| bench.run(subject)).collect();
            let threads: Vec<_> =
                self.benches.iter_mut().map(|bench| scope.spawn(move || all(bench))).collect();
            let panicked = || vec![Err("a thread panicked".to_owned()); subjects.len()];
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
        });
        let mut tally = Tally::default();
        for (index, subject) in subjects.iter().enumerate() {
            let values = found.iter().map(|of_adapter| of_adapter[index].as_ref()).collect();
            self.judge(subject, values, &mut tally);
        }
        tally
    }

    /// Compares what adapters gave for one subject.
    fn judge(&mut self, subject: &Subject, found: Vec<Result<&Values, &String>>, tally: &mut Tally) {
        let values: Vec<&Values> = match found.into_iter().collect() {
            Ok(values) => values,
            Err(error) => return tally.failures.push(error.clone()),
        };
        let Some((own, others)) = values.split_first() else { return };
        tally.ran += 1;
        let nan = values.iter().any(|values| has_nan(values));
        let differs: Vec<usize> =
            (1..).zip(others).filter_map(|(at, other)| first_difference(own, other).map(|_| at)).collect();
        tally.with_nan += usize::from(nan);
        tally.follow_nan += usize::from(nan && !differs.is_empty());
        if nan {
            return;
        }
        for at in differs {
            let (first, others) = self.benches.split_at_mut(at);
            match compare(subject, [&mut first[0], &mut others[0]]) {
                Ok(Some(difference)) => tally.differences.push(difference),
                Ok(None) => {
                    let label = others[0].label();
                    tally.failures.push(format!("{}: {label} differs in one run of two", subject.name));
                }
                Err(error) => tally.failures.push(error),
            }
        }
    }
}
