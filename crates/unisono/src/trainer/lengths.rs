//! Samples of several lengths: a program for each length, compiled when the first batch of it comes.

use unisono_data::{Batch, Loader, Position};
use unisono_graph::{InputKind, Program, Type};
use unisono_replica::AuditReport;

use crate::compile::fields::{Fields, in_batch, in_specs};
use crate::compile::plan::OfLength;
use crate::compile::programs::{ProgramId, Programs};
use crate::error::caught;
use crate::objective::metrics::reduction;
use crate::{Error, Trainer};

impl Trainer {
    /// Checks that an evaluation of a loader could only fail at its samples.
    pub(super) fn can_evaluate(&mut self, loader: &Loader) -> Result<(), Error> {
        // No sample is read up to the start of the first epoch.
        let reader = self.reader(loader);
        drop(reader.epochs(Position::default(), 0)?);
        let specs = reader.fields()?;
        let first = self.compile_for_types(&in_specs(&specs))?;
        let of_length = self.plan.lengths.iter().find(|length| length.first == first);
        of_length.map_or(&self.plan.fields, |length| &length.fields).check_specs(&specs)?;
        self.prepare_number(first + ProgramId::Evaluate.index(), reader.samples_per_epoch())
    }

    /// Compiles the programs for samples such as those of a batch: [`Trainer::compile_for_types`].
    pub(super) fn compile_for(&mut self, batch: &Batch) -> Result<(), Error> {
        self.compile_for_types(&in_batch(batch)).map(drop)
    }

    /// Compiles the programs for samples whose fields have these types, if they are shorter than those that
    /// the trainer was built for and not compiled yet. Returns the number by which replicas know the first of
    /// the programs. Samples that fit no such program are left to the checks that every batch goes through.
    /// Where there are then more lengths than are kept, drops the one that was not used for the longest time.
    ///
    /// # Errors
    /// A model of this length cannot be traced, or has other parameters, other carries, or metrics that keep
    /// other sums.
    pub(super) fn compile_for_types(
        &mut self,
        samples: &dyn Fn(&str) -> Option<Type>,
    ) -> Result<usize, Error> {
        if self.plan.fields.fit_types(samples) {
            return Ok(0);
        }
        let lengths = &mut self.plan.lengths;
        if let Some(at) = lengths.iter().position(|length| length.fields.fit_types(samples)) {
            lengths[at..].rotate_left(1);
            return Ok(lengths.last().map_or(0, |length| length.first));
        }
        let Some((fields, other)) = self.plan.fields.of_length(samples) else { return Ok(0) };
        let (mut fields, programs) = self.trace_length(fields).or_else(|error| {
            let traced = other.map(|fields| self.trace_length(fields));
            traced.and_then(Result::ok).ok_or(error)
        })?;
        fields.ids.clone_from(&programs.ids);
        let first = self.replica_set.replicas.add_programs(programs.all())?;
        self.monitor.note(&format!("note: compiled for {}", differing(&self.plan.fields, &fields)));
        self.plan.lengths.push(OfLength { programs, fields, first });
        if self.plan.lengths.len() > self.plan.most_lengths {
            self.drop_a_length()?;
        }
        Ok(first)
    }

    /// Traces the programs for samples with these fields.
    fn trace_length(&self, fields: Fields) -> Result<(Fields, Programs), Error> {
        let longest = Some(&self.plan.programs);
        let traced = Programs::trace_like(&self.plan.parts, &fields, self.plan.layout, longest);
        let cannot = |problem: String| self.plan.fields.cannot_be(&fields, &problem);
        let programs = traced.map_err(|error| cannot(error.to_string()))?;
        match self.unlike(&programs) {
            Some(problem) => Err(cannot(problem)),
            None => Ok((fields, programs)),
        }
    }

    /// Drops the programs for the length that was not used for the longest time. What is known of their
    /// audits is kept.
    fn drop_a_length(&mut self) -> Result<(), Error> {
        let oldest = &self.plan.lengths[0];
        let (first, count) = (oldest.first, oldest.programs.all().len());
        let what = differing(&self.plan.fields, &oldest.fields);
        let phases = self.plan.parts.phases.len().max(1);
        let steps = (0..phases).map(|phase| first + Programs::number_in(phase));
        let reports: Vec<AuditReport> =
            steps.map(|number| self.replica_set.replicas.audits(number)).collect();
        self.replica_set.replicas.forget_programs(first..first + count)?;
        let dropped = &mut self.plan.dropped;
        for report in reports {
            (dropped.steps, dropped.passed) = (dropped.steps + report.steps, dropped.passed + report.passed);
            dropped.stepping += report.stepping;
            dropped.auditing += report.auditing;
        }
        self.plan.lengths.remove(0);
        self.monitor.note(&format!(
            "note: programs for {} lengths are kept, and those for {what} were dropped: pad to fewer lengths, or raise \
             Builder::lengths",
            self.plan.most_lengths
        ));
        Ok(())
    }

    /// Says in what the programs for another length differ from the trainer's own where they must not.
    fn unlike(&self, programs: &Programs) -> Option<String> {
        let (own, other) = (self.plan.programs.train().states(), programs.train().states());
        for (own, other) in own.iter().zip(other) {
            if (&own.name, &own.ty) != (&other.name, &other.ty) {
                return Some(format!(
                    "the model has {} {} for samples of this length, and {} {} for the longest",
                    other.name, other.ty, own.name, own.ty
                ));
            }
        }
        if own.len() != other.len() {
            return Some(format!("the model has {} tensors, and {} for the longest", other.len(), own.len()));
        }
        let carries = |program: &Program| {
            let inputs = program.inputs().iter().filter(|input| input.kind == InputKind::Carry);
            inputs.map(|input| (input.name.clone(), input.ty.clone())).collect::<Vec<_>>()
        };
        if carries(self.plan.programs.train()) != carries(programs.train()) {
            return Some("the model carries other values to its next batch".into());
        }
        // What a metric keeps of samples of all lengths is one state.
        let widths = self.plan.metric_widths_of(programs).into_iter().zip(self.plan.metric_widths());
        self.plan.parts.objective().metrics.iter().zip(widths).find_map(|(metric, widths)| {
            let name = metric.name();
            let sums = |width: usize| caught(|| reduction(&**metric).start(width).sums.len());
            let (short, long) = match (sums(widths.0), sums(widths.1)) {
                (Ok(short), Ok(long)) => (short, long),
                (Err(text), _) | (_, Err(text)) => {
                    return Some(format!("the metric {name:?} panicked: {text}"));
                }
            };
            let problem = || format!("the metric {name:?} keeps {short} sums, and {long} of the longest");
            (short != long).then(problem)
        })
    }
}

/// Names the fields that differ, with their types.
fn differing(own: &Fields, other: &Fields) -> String {
    let both = own.iter().zip(other.iter()).filter(|(own, other)| own.1 != other.1);
    both.map(|(_, (name, ty))| format!("{name} {ty}")).collect::<Vec<_>>().join(", ")
}
