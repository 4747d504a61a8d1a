//! A worker: a thread with one device, which carries out orders and answers each of them once.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender};
use unisono_gpu::{Adapter, Counters, Device, Executable, GpuError, InFlight, Kernels, MappedDownload};
use unisono_graph::plan::Transfer;
use unisono_graph::{DType, InputDecl, Lead, Program, Run, Slot};

use crate::observe::timeline::{Activity, Timeline};
use crate::options::Options;
use crate::owners::Holding;
use crate::sums::places::Places;
use crate::sums::values::Values;
use crate::worker::closing::close;
use crate::worker::digest::Digest;
use crate::worker::fault::{self, Fault};
use crate::worker::message::{Answer, Context, Failure, Key, Order, Reply, Request, SegmentResults, Work};
use crate::worker::programs::Programs;

/// The number of plans that a worker keeps loaded, those that it used last. Each has staging memory of its
/// own.
const KEPT: usize = 16;

/// The arguments of a worker thread.
pub(crate) struct Start {
    pub replica: usize,
    /// How it opens its device.
    pub how: unisono_gpu::Options,
    /// The ticket under which it answers once its device is open.
    pub ticket: u64,
    pub adapter: Adapter,
    pub programs: Programs,
    pub options: Options,
    pub holding: Holding,
    pub orders: Receiver<Order>,
    pub answers: Sender<Answer>,
}

pub(super) struct Worker {
    pub(super) replica: usize,
    pub(super) device: Device,
    pub(super) programs: Programs,
    pub(super) options: Options,
    pub(super) holding: Holding,
    /// The loaded plans; the one that was used last is at the end.
    pub(super) loaded: VecDeque<(Key, Executable)>,
    /// The kernels of every plan that was loaded of the programs that are there: a plan that is loaded again
    /// compiles nothing.
    kernels: BTreeMap<Key, Kernels>,
    /// The plans that were dropped since the last answer, to make room for others.
    unloaded: Vec<Key>,
    /// The steps that were submitted and not collected, the oldest first, each with its plan's key.
    pub(super) in_flight: VecDeque<(Key, InFlight)>,
    pub(super) time: Timeline,
    answers: Sender<Answer>,
}

/// Runs the thread: opens the device, answers whether that succeeded, and then serves orders until the
/// coordinator closes the queue.
pub(crate) fn serve(start: Start) {
    let Start { replica, how, ticket, adapter, programs, options, holding, orders, answers } = start;
    let opened =
        guarded(|| Worker::open(replica, how, &adapter, programs, options, holding, answers.clone()));
    let (mut worker, result, spans) = match opened {
        Ok(mut worker) => {
            worker.time.until_now(Activity::Loading);
            let spans = worker.time.take();
            let opened = Reply::Opened { state_bytes: worker.device.memory().state };
            (Some(worker), Ok(opened), spans)
        }
        Err(failure) => (None, Err(failure), Vec::new()),
    };
    let (counters, unloaded) = (Counters::default(), Vec::new());
    if answers.send(Answer { replica, ticket, result, spans, counters, unloaded }).is_err() {
        return;
    }
    while let (Some(serving), Ok(order)) = (worker.as_mut(), orders.recv()) {
        serving.waited(order.context);
        let ticket = order.ticket;
        let otherwise = match &order.request {
            Request::Run(_) | Request::Submit { .. } | Request::Collect => Activity::Compute,
            _ => Activity::Loading,
        };
        let result = guarded(|| serving.answer(ticket, order.request));
        serving.time.until_now(otherwise);
        let (spans, unloaded) = (serving.time.take(), std::mem::take(&mut serving.unloaded));
        let counters = serving.device.counters();
        if answers.send(Answer { replica, ticket, result, spans, counters, unloaded }).is_err() {
            break;
        }
    }
    // Closing the device of a lost replica may panic as well; that can no longer be reported.
    let _ = guarded(|| {
        close(worker);
        Ok(())
    });
}

/// Runs `f` and turns a panic into a failure.
fn guarded<T>(f: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Err(Failure::Panic(text.unwrap_or_else(|| "no message".to_owned())))
    })
}

impl Worker {
    fn open(
        replica: usize,
        how: unisono_gpu::Options,
        adapter: &Adapter,
        programs: Programs,
        options: Options,
        holding: Holding,
        answers: Sender<Answer>,
    ) -> Result<Self, Failure> {
        let time = Timeline::new();
        let mut device = Device::open_with(adapter, how)?;
        device
            .create_some_state(programs.get(0)?.state_layout(), &|buffer| holding.absent.contains(&buffer))?;
        Ok(Self {
            replica,
            device,
            programs,
            options,
            holding,
            loaded: VecDeque::new(),
            kernels: BTreeMap::new(),
            unloaded: Vec::new(),
            in_flight: VecDeque::new(),
            time,
            answers,
        })
    }

    /// Assigns the time since the last answer: within a step it was spent waiting for others, except while
    /// the host added. The device has worked if a step is in flight.
    fn waited(&mut self, Context { began, added }: Context) {
        if !self.in_flight.is_empty() {
            return self.time.until_now(Activity::Compute);
        }
        match began {
            Some(began) => self.time.until(began, Activity::Input),
            None => self.time.until_now(Activity::Input),
        }
        if let Some((from, to)) = added {
            self.time.until(from, Activity::Peers);
            self.time.until(to, Activity::Exchange);
        }
        self.time.until_now(Activity::Peers);
    }

    fn answer(&mut self, ticket: u64, request: Request) -> Result<Reply, Failure> {
        match request {
            Request::Load { program, run } => {
                self.load(program, run).map_err(Failure::of_loading)?;
                Ok(Reply::Done)
            }
            Request::Run(mut work) => {
                self.load(work.program, Arc::clone(&work.run)).map_err(Failure::of_loading)?;
                let faults =
                    fault::passed(&self.options.fault_scope, self.replica, work.step, &work.segments);
                faults.iter().try_for_each(|fault| self.go_wrong(*fault))?;
                // A replica is slowed in proportion to its samples, not in the update, which all run alike.
                let last = self.programs.get(work.program)?.segments() - 1;
                let samples = if work.segments.start < last || last == 0 { work.run.rows() } else { 0 };
                if faults.contains(&Fault::Exchange) {
                    flip_first(&mut work);
                }
                if faults.contains(&Fault::NotFinite) {
                    fill_with_nan(&*self.programs.get(work.program)?, &mut work);
                }
                let began = Instant::now();
                let results = self.run(ticket, work, faults.contains(&Fault::Gradient))?;
                let took = began.elapsed();
                if !faults.is_empty() {
                    faults.iter().for_each(|fault| slow_down(*fault, samples, took));
                    self.time.device_since(began + took);
                }
                Ok(Reply::Results(results))
            }
            Request::WriteState { index, .. } if self.holding.absent.contains(&index) => Ok(Reply::Done),
            Request::Submit { work, chained } => self.submit(work, chained),
            Request::Collect => Ok(Reply::Results(self.collect()?)),
            Request::DropResidents => {
                self.device.drop_residents();
                self.loaded.iter_mut().for_each(|(_, executable)| self.device.unbind(executable));
                Ok(Reply::Done)
            }
            Request::PoisonScratch => {
                self.device.poison_scratch()?;
                Ok(Reply::Done)
            }
            Request::WriteState { index, bytes } => {
                self.device.write_state(index, &bytes)?;
                Ok(Reply::Done)
            }
            Request::WriteStates(all) => {
                let own = all.iter().enumerate().filter(|(index, _)| !self.holding.absent.contains(index));
                for (index, bytes) in own {
                    self.device.write_state(index, bytes)?;
                }
                Ok(Reply::Done)
            }
            Request::TakeStates(all) => {
                let foreign = all.iter().filter(|(index, _)| self.holding.foreign.contains(index));
                for (index, bytes) in foreign {
                    self.device.write_state(*index, bytes)?;
                }
                Ok(Reply::Done)
            }
            Request::ReadStates { indices, into } => {
                let memory = into.into_iter().chain(std::iter::repeat_with(Vec::new));
                let read = |(index, memory)| self.device.read_state_into(index, memory);
                Ok(Reply::States(indices.into_iter().zip(memory).map(read).collect::<Result<_, _>>()?))
            }
            Request::Digest => {
                let mut digest = Digest::default();
                let mut bytes = Vec::new();
                // What replicas have a part of cannot be compared.
                let all = 0..self.programs.get(0)?.states().len();
                for index in all.filter(|index| !self.holding.kept.contains(index)) {
                    bytes = self.device.read_state_into(index, bytes)?;
                    digest.update(&bytes);
                }
                Ok(Reply::Digest(digest))
            }
        }
    }

    /// Makes a plan ready if it is not, and marks it as the one that was used last.
    pub(super) fn load(&mut self, program: usize, run: Arc<Run>) -> Result<(), Failure> {
        let key = (program, run);
        match self.loaded.iter().position(|(loaded, _)| *loaded == key) {
            Some(at) => {
                let entry = self.loaded.remove(at);
                self.loaded.extend(entry);
                let newest = self.loaded.back();
                newest.map_or(Ok(()), |(_, executable)| self.device.hold_residents(executable))?;
            }
            None => {
                self.drop_forgotten();
                if self.loaded.len() == KEPT {
                    self.unloaded.extend(self.loaded.pop_front().map(|(oldest, _)| oldest));
                }
                fault::at_load(&self.options.fault_scope, self.replica)
                    .map_or(Ok(()), |fault| self.go_wrong(fault))?;
                let program = self.programs.get(program)?;
                let mut plan = program.plan(&key.1, &self.device.target())?;
                if !program.graph().updates.is_empty() && !self.holding.foreign.is_empty() {
                    let held = plan.hold_some(&self.holding.foreign, &self.holding.absent);
                    held.map_err(Failure::Plan)?;
                }
                let executable = self.device.load(&plan)?;
                // Those that run no more hold scratch that is no longer used.
                self.loaded.iter_mut().for_each(|(_, other)| self.device.unbind(other));
                self.time.until_now(Activity::Loading);
                self.kernels.insert(key.clone(), executable.kernels());
                self.loaded.push_back((key, executable));
            }
        }
        Ok(())
    }

    /// Drops the plans and the kernels of programs that were forgotten.
    fn drop_forgotten(&mut self) {
        let Self { loaded, kernels, programs, device, .. } = self;
        let before = kernels.len();
        loaded.retain(|((program, _), _)| programs.has(*program));
        kernels.retain(|(program, _), _| programs.has(*program));
        if kernels.len() < before {
            device.drop_unused_kernels();
        }
    }

    /// Submits all segments, then waits for them in order. Buckets that are ready before the last part are
    /// sent to the coordinator at once.
    ///
    /// `flips` injects a fault: a bit of the first block flips.
    fn run(&mut self, ticket: u64, work: Work, mut flips: bool) -> Result<SegmentResults, Failure> {
        let Work { program, run, segments, feed, first_row, sums, in_place, .. } = work;
        let next = segments.end;
        let (_, executable) = self.loaded.back_mut().ok_or_else(|| Failure::missing("the executable"))?;
        let (program, rows) = (self.programs.get(program)?, run.rows());
        let mut pending = Vec::with_capacity(segments.len());
        for segment in segments {
            pending.push(self.device.submit(executable, segment, &mut |transfer, to| match Slot::decode(
                transfer.slot,
            ) {
                slot @ (Slot::Scalars | Slot::Input(_)) => {
                    feed.write(&program, slot, first_row, rows, to);
                }
                Slot::Sums(bucket) if in_place.contains(&bucket) => to.keep(),
                Slot::Sums(bucket) => {
                    if let Some((_, sums)) = sums.iter().find(|(b, _)| *b == bucket) {
                        to.write(bytemuck::cast_slice(sums.as_slice()));
                    }
                }
                Slot::Chained => to.write(&[0; 4]),
                Slot::Output(_) | Slot::Blocks(_) | Slot::Flag(_) | Slot::StateFlag | Slot::Skipped => {}
            })?);
            let uploaded = pending.last().map_or(Duration::ZERO, |pending| pending.timing().upload);
            self.time.for_a_while(uploaded, Activity::Upload);
            self.time.until_now(Activity::Compute);
        }
        let (mut results, mut lends) = (SegmentResults::default(), next < program.segments());
        for mut pending in pending {
            while pending.is_pending() {
                let read =
                    &mut |transfer: &Transfer, mapped: MappedDownload| match Slot::decode(transfer.slot) {
                        Slot::Blocks(i) if flips => {
                            results.blocks.push((i, Arc::new(flipped(&mapped.into()))));
                            flips = false;
                        }
                        Slot::Blocks(i) => results.blocks.push((i, Arc::new(mapped.into()))),
                        slot => results.read(slot, &mapped),
                    };
                let timing = self.device.wait_part(executable, &mut pending, read)?;
                self.time.waited(&timing);
                if self.options.overlap && pending.is_pending() && !results.blocks.is_empty() {
                    let places = if std::mem::take(&mut lends) {
                        Some(lend(&self.device, executable, &run, next)?)
                    } else {
                        None
                    };
                    let early = Reply::Early { blocks: std::mem::take(&mut results.blocks), places };
                    let spans = self.time.take();
                    // If the coordinator is gone, it does not receive the answer either.
                    let (replica, counters) = (self.replica, self.device.counters());
                    let unloaded = std::mem::take(&mut self.unloaded);
                    let early = Answer { replica, ticket, result: Ok(early), spans, counters, unloaded };
                    let _ = self.answers.send(early);
                }
            }
        }
        Ok(results)
    }

    /// Injects a fault before segments run.
    pub(super) fn go_wrong(&mut self, fault: Fault) -> Result<(), Failure> {
        match fault {
            // This panics without the hook's message on standard error.
            Fault::Panic => resume_unwind(Box::new("on purpose")),
            Fault::Abort => std::process::abort(),
            Fault::Lose => self.device.lose(),
            Fault::Drop(run) => self.device.leave_out(run),
            Fault::Skip(launch) => self.device.skip(launch),
            Fault::Lie(lie) => self.device.lie(lie),
            Fault::OutOfMemory => {
                return Err(GpuError::OutOfMemory { what: "on purpose".into(), bytes: 1 << 40 }.into());
            }
            Fault::Transfer => {
                let message = "the transfer failed on purpose".into();
                return Err(GpuError::Validation { what: "staging".into(), message }.into());
            }
            Fault::State(index) => {
                let mut bytes = self.device.read_state(index)?;
                bytes.iter_mut().skip(2).take(1).for_each(|byte| *byte ^= 1);
                self.device.write_state(index, &bytes)?;
            }
            Fault::Slow(_) | Fault::Sample(_) => {}
            Fault::Gradient | Fault::Exchange | Fault::NotFinite => {}
        }
        Ok(())
    }
}

/// The bit that faults flip. The last one could be lost when the number is added to others.
const BIT: u32 = 1 << 10;

/// Returns values with a bit of the first of them flipped.
fn flipped(values: &Values) -> Values {
    let mut wrong = values.to_vec();
    wrong.iter_mut().take(1).for_each(|value| *value = f32::from_bits(value.to_bits() ^ BIT));
    Values::Own(wrong)
}

/// Flips a bit of the first sum that a worker is given.
fn flip_first(work: &mut Work) {
    work.in_place.clear();
    let sums = work.sums.iter_mut().find(|(_, sums)| !sums.is_empty());
    if let Some((_, sums)) = sums {
        let flipped = sums.iter().enumerate();
        let flipped =
            flipped.map(|(at, value)| f32::from_bits(value.to_bits() ^ if at == 0 { BIT } else { 0 }));
        *sums = Arc::new(flipped.collect());
    }
}

/// Injects a fault: all numbers of the first input of samples become NaN.
pub(super) fn fill_with_nan(program: &Program, work: &mut Work) {
    let is_it = |input: &InputDecl| input.ty.lead == Lead::Sample && input.ty.dtype == DType::F32;
    if let Some(at) = program.inputs().iter().position(is_it) {
        let mut feed = (*work.feed).clone();
        let numbers = feed.inputs[at].len() / 4;
        feed.inputs[at] = f32::NAN.to_le_bytes().repeat(numbers).into();
        work.feed = Arc::new(feed);
    }
}

/// Lends the memory in which a segment awaits its sums.
fn lend(
    device: &Device,
    executable: &mut Executable,
    run: &Arc<Run>,
    segment: usize,
) -> Result<Places, GpuError> {
    let is_sum = |transfer: &Transfer| matches!(Slot::decode(transfer.slot), Slot::Sums(_));
    let lent = device.lend_uploads(executable, segment, &is_sum)?.into_iter();
    let empty = lent.filter_map(|(slot, memory)| match Slot::decode(slot) {
        Slot::Sums(bucket) => Some((bucket, memory)),
        _ => None,
    });
    Ok(Places { run: Arc::clone(run), segment, empty: empty.collect() })
}

/// Injects a delay after segments that ran.
pub(super) fn slow_down(fault: Fault, samples: usize, took: Duration) {
    match fault {
        Fault::Slow(times) if samples > 0 => std::thread::sleep(took.mul_f64((times - 1.0).max(0.0))),
        Fault::Sample(micros) => {
            let wanted = Duration::from_secs_f64(1e-6 * micros.max(0.0) * samples as f64);
            std::thread::sleep(wanted.saturating_sub(took));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
