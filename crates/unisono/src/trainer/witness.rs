//! A witness: an adapter beside the run that makes some of its steps again and compares bytes.
//!
//! ```text
//! audited step --> handed to the witness --> the run goes on --> the same bytes: the step is trusted
//!                                                            --> others: back to the trusted state
//! ```

use unisono_gpu::{Adapter, Arithmetic, Kind};
use unisono_replica::{Audited, WitnessReport, describe_classes, is_one_class};

use crate::run::state::RunState;
use crate::trainer::builder::Builder;
use crate::trainer::replica_set::ReplicaSet;
use crate::{Error, Trainer};

/// The share of the machine's cores that a witness takes beside GPUs, which do not need them.
const BESIDE_GPUS: f64 = 0.25;
/// Its share where the run computes on the cores as well.
const ON_THE_SAME_CORES: f64 = 0.01;

/// An adapter, usually the CPU, that checks the run: it recomputes audited steps next to the run, and
/// compares outputs and states byte by byte. Set it with [`Builder::witness`].
///
/// A run on one GPU can only audit itself: the GPU computes the step twice. If it makes the same mistake both
/// times, nobody notices. A witness does.
///
/// ```no_run
/// # fn run(data: &unisono::data::Loader) -> Result<(), unisono::Error> {
/// use unisono::{Dense, Trainer, Witness};
///
/// let mut trainer = Trainer::builder(Dense::new(10)).witness(Witness::cpu()).build(&data.fields()?)?;
/// trainer.fit(data, None, 3)?;
/// println!("{} steps were confirmed", trainer.witness().map_or(0, |witness| witness.agreed));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Witness {
    /// Part of the adapter's label; none for the CPU.
    name: Option<String>,
    share: Option<f64>,
}

/// A step that the witness makes, and what is trusted once it agrees.
pub(super) struct Pending {
    number: u64,
    state: RunState,
    audit: Audited,
}

impl Witness {
    /// The CPU, in the arithmetic of the run's adapters ([`Arithmetic`]).
    pub fn cpu() -> Self {
        Self { name: None, share: None }
    }

    /// The first adapter that `name` selects ([`unisono_gpu::select`]). It must give the same bits as the
    /// adapters of the run.
    pub fn on(name: &str) -> Self {
        Self { name: Some(name.into()), share: None }
    }

    /// Sets the mean share of the machine's cores that the witness uses, above 0 and at most 1. It computes
    /// on a quarter of the cores and rests between steps. Default: 0.25 if the run is on GPUs. If the run
    /// itself is on the CPU, 0.01, so that the witness slows it down by about 1 %.
    pub fn share(mut self, share: f64) -> Self {
        self.share = Some(share);
        self
    }

    /// Returns its adapter for a run on some others.
    ///
    /// # Errors
    /// There is none that gives the same bits.
    fn adapter(&self, chosen: &[Adapter]) -> Result<Adapter, Error> {
        let with = |adapter: &Adapter| [chosen, std::slice::from_ref(adapter)].concat();
        let has_unit = chosen.iter().any(|adapter| adapter.unit.is_some());
        let used = |adapter: Adapter| if has_unit { adapter.with_matrix_units() } else { Ok(adapter) };
        if let Some(name) = &self.name {
            let found = unisono_gpu::select(&[name])?.into_iter().next();
            let found = used(found.ok_or_else(|| Error::setting("witness", "there is no such adapter"))?)?;
            return match is_one_class(&with(&found))? {
                true => Ok(found),
                false => Err(other_class(&with(&found))),
            };
        }
        for cpu in Arithmetic::distinct(has_unit).filter_map(Adapter::cpu) {
            let cpu = used(cpu)?;
            if is_one_class(&with(&cpu))? {
                return Ok(cpu);
            }
        }
        match Adapter::cpu(Arithmetic::default()) {
            Some(cpu) => Err(other_class(&with(&used(cpu)?))),
            None => Err(Error::setting("witness", "this build has no CPU adapter: turn on its feature cpu")),
        }
    }
}

fn other_class(adapters: &[Adapter]) -> Error {
    let classes = describe_classes(adapters).join(", ");
    Error::setting("witness", format!("it would give other bits than the run: {classes}"))
}

impl Builder {
    /// Adds a witness: another adapter that recomputes audited steps next to the run. [`Builder::audits`]
    /// says how often steps are audited. The witness takes such a step if it is idle. While it is busy, the
    /// run's own replicas audit instead. Only what a witness has confirmed is trusted. At its end, a fit
    /// waits until the witness has recomputed the last step. The witness needs host memory for the model and
    /// one step.
    ///
    /// If the witness gets another result, and gets it twice, the run's devices recompute the step. Then a
    /// device that is known to be wrong leaves, or the run goes back to the last trusted state, or it is
    /// refused. A witness that does not repeat its own result, or that fails, leaves. The run tells the
    /// observers and continues.
    ///
    /// A witness cannot be combined with several machines, [`Builder::mixed`] or
    /// [`Builder::shard_optimizer`]. Default: none.
    pub fn witness(mut self, witness: Witness) -> Self {
        self.witness = Some(witness);
        self
    }

    /// Starts the witness of a run on these adapters, if it has one.
    ///
    /// # Errors
    /// It makes no sense, is of another numeric class, or does not open.
    pub(super) fn start_witness(
        &self,
        replica_set: &mut ReplicaSet,
        chosen: &[Adapter],
    ) -> Result<(), Error> {
        let Some(witness) = &self.witness else { return Ok(()) };
        let refused = |problem: &str| Err(Error::setting("witness", problem));
        if !self.cluster.is_alone() {
            return refused("a run on several machines takes none");
        }
        if replica_set.mixed {
            return refused("a run on several numeric classes takes none: its bits are those of the mixture");
        }
        if self.options.owners.is_some() {
            return refused("it compares whole states: leave shard_optimizer out");
        }
        if !replica_set.is_audited {
            return refused("it makes audited steps again, and the run audits none: see Builder::audits");
        }
        let takes_cores = chosen.iter().any(|adapter| adapter.kind == Kind::Cpu);
        let share = witness.share.unwrap_or(if takes_cores { ON_THE_SAME_CORES } else { BESIDE_GPUS });
        if !(share > 0.0 && share <= 1.0) {
            return refused("its share of the cores is above 0 and at most 1");
        }
        Ok(replica_set.replicas.start_witness(&witness.adapter(chosen)?, share)?)
    }
}

impl Trainer {
    /// Returns what is known about the run's witness, if it has one.
    pub fn witness(&self) -> Option<&WitnessReport> {
        self.replica_set.replicas.witness()
    }

    /// Takes the result of an audit that was passed, of the step that began with `state`: with a witness it
    /// is trusted when the witness agrees.
    pub(super) fn passed(&mut self, state: RunState, audit: Audited) {
        match audit.witnessed {
            Some(number) => self.replica_set.pending = Some(Pending { number, state, audit }),
            None if self.replica_set.replicas.has_witness() => {}
            None => self.confirm(state, audit),
        }
    }

    /// Hears whether the witness agrees on the step that it was given. `wait`: for its answer.
    ///
    /// # Errors
    /// It does not: [`Error::RolledBack`], [`Error::Refused`] and what else [`Trainer::heard`] returns.
    pub(super) fn hear_witness(&mut self, wait: bool) -> Result<bool, Error> {
        if !self.replica_set.replicas.has_witness() {
            return Ok(false);
        }
        let heard = self.replica_set.replicas.hear_witness(wait);
        let agreed = self.check_result(heard)?;
        if let Some(why) = self.witness().and_then(|witness| witness.left.clone()) {
            self.replica_set.pending = None;
            self.monitor.note(&format!("warning: the witness left; the run continues without it: {why}"));
        }
        let is_agreed = |pending: &mut Pending| agreed == Some(pending.number);
        if let Some(Pending { state, audit, .. }) = self.replica_set.pending.take_if(is_agreed) {
            self.confirm(state, audit);
        }
        Ok(agreed.is_some())
    }

    /// Forgets the step that the witness makes: the run has another state.
    pub(super) fn forget_witnessed(&mut self) {
        self.replica_set.pending = None;
        self.replica_set.replicas.forget_witnessed();
    }
}
