//! A worker: a thread with one device, which does what it is asked to and answers each request once.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Instant;

use crossbeam::channel::{Receiver, Sender};
use unisono_gpu::{Adapter, Device, Executable, GpuError, Timing};
use unisono_graph::{Program, Run, Slot};

use crate::digest::Digest;
use crate::message::{Answer, Failure, Harvest, Reply, Request, Spent, Work};
use crate::options::{FaultKind, Options};

/// What a thread starts with.
pub(crate) struct Start {
    pub replica: usize,
    pub adapter: Adapter,
    pub programs: Arc<[Arc<Program>]>,
    pub options: Options,
    pub requests: Receiver<Request>,
    pub answers: Sender<Answer>,
}

struct Worker {
    replica: usize,
    device: Device,
    programs: Arc<[Arc<Program>]>,
    options: Options,
    loaded: HashMap<(usize, Arc<Run>), Executable>,
    spent: Spent,
}

/// The thread: opens its device, answers whether it could, then serves until the coordinator hangs up.
pub(crate) fn serve(start: Start) {
    let Start { replica, adapter, programs, options, requests, answers } = start;
    let opened = guarded(|| Worker::open(replica, &adapter, programs, options));
    let (mut worker, result) = match opened {
        Ok(worker) => (Some(worker), Ok(Reply::Done)),
        Err(failure) => (None, Err(failure)),
    };
    if answers.send(Answer { replica, result, spent: Spent::default() }).is_err() {
        return;
    }
    let mut free_since = Instant::now();
    while let (Some(serving), Ok(request)) = (worker.as_mut(), requests.recv()) {
        let waited = free_since.elapsed();
        match &request {
            Request::Run(work) if work.segments.start > 0 => serving.spent.peers += waited,
            _ => serving.spent.idle += waited,
        }
        let result = guarded(|| serving.answer(request));
        let spent = std::mem::take(&mut serving.spent);
        free_since = Instant::now();
        if answers.send(Answer { replica, result, spent }).is_err() {
            break;
        }
    }
    // Closing the device of a lost replica may panic as well; nobody is there to hear of it.
    let _ = guarded(|| {
        drop(worker);
        Ok(())
    });
}

/// Turns a panic into a failure.
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
        adapter: &Adapter,
        programs: Arc<[Arc<Program>]>,
        options: Options,
    ) -> Result<Self, Failure> {
        let how = unisono_gpu::Options {
            checked: options.checked,
            deadline: options.deadline,
            ..unisono_gpu::Options::default()
        };
        let mut device = Device::open_with(adapter, how)?;
        let bytes: Vec<u64> = programs[0].states().iter().map(|s| 4 * s.ty.count().max(1) as u64).collect();
        device.create_state(&bytes)?;
        Ok(Self { replica, device, programs, options, loaded: HashMap::new(), spent: Spent::default() })
    }

    fn answer(&mut self, request: Request) -> Result<Reply, Failure> {
        match request {
            Request::Load { program, runs } => {
                for run in runs {
                    self.load(program, run)?;
                }
                Ok(Reply::Done)
            }
            Request::Run(work) => {
                self.load(work.program, Arc::clone(&work.run))?;
                work.segments.clone().try_for_each(|segment| self.go_wrong(work.step, segment))?;
                self.run(work).map(Reply::Harvest)
            }
            Request::WriteState { index, bytes } => {
                self.device.write_state(index, &bytes)?;
                Ok(Reply::Done)
            }
            Request::ReadState(index) => Ok(Reply::State(self.device.read_state(index)?)),
            Request::Digest => {
                let mut digest = Digest::default();
                for index in 0..self.programs[0].states().len() {
                    digest.update(&self.device.read_state(index)?);
                }
                Ok(Reply::Digest(digest))
            }
        }
    }

    fn load(&mut self, program: usize, run: Arc<Run>) -> Result<(), Failure> {
        let key = (program, run);
        if !self.loaded.contains_key(&key) {
            let plan = self.programs[program].plan(&key.1, &self.device.target())?;
            let executable = self.device.load(&plan)?;
            self.loaded.insert(key, executable);
        }
        Ok(())
    }

    /// Sends all segments to the device, then waits for them in order.
    fn run(&mut self, work: Work) -> Result<Harvest, Failure> {
        let Work { program, run, segments, feed, first_row, sums, mut spare, .. } = work;
        let key = (program, run);
        let missing = || GpuError::Plan { what: "executable".into(), message: "not loaded".into() };
        let executable = self.loaded.get_mut(&key).ok_or_else(missing)?;
        let (program, rows) = (&self.programs[program], key.1.rows());
        let mut pending = Vec::with_capacity(segments.len());
        for segment in segments {
            pending.push(self.device.submit(executable, segment, &mut |transfer, to| {
                let mut input = |i: usize| feed.write(&program.inputs()[i], i, first_row, rows, to);
                match Slot::decode(transfer.slot) {
                    Slot::Scalars => program.scalars().iter().for_each(|&i| input(i)),
                    Slot::Input(i) => input(i),
                    Slot::Sums(bucket) => {
                        if let Some((_, sums)) = sums.iter().find(|(b, _)| *b == bucket) {
                            to.write(bytemuck::cast_slice(sums.as_slice()));
                        }
                    }
                    Slot::Output(_) | Slot::Blocks(_) | Slot::Flag(_) => {}
                }
            })?);
        }
        let mut harvest = Harvest::default();
        for pending in pending {
            let timing = self.device.wait(executable, pending, &mut |transfer, bytes| match Slot::decode(
                transfer.slot,
            ) {
                Slot::Output(i) => harvest.outputs.push((i, copied(Vec::new(), bytes))),
                Slot::Blocks(i) => harvest.blocks.push((i, copied(spare.pop().unwrap_or_default(), bytes))),
                Slot::Flag(cut) if bytes.iter().any(|&b| b != 0) => {
                    harvest.bad_cut.get_or_insert(cut);
                }
                _ => {}
            })?;
            self.spent.add(timing);
        }
        Ok(harvest)
    }

    /// Drills.
    fn go_wrong(&mut self, step: u64, segment: usize) -> Result<(), Failure> {
        let now = (self.replica, step, segment);
        let due = self.options.faults.iter().filter(|f| (f.replica, f.step, f.segment) == now);
        for kind in due.map(|f| f.kind).collect::<Vec<_>>() {
            match kind {
                // Without the hook's message on standard error.
                FaultKind::Panic => resume_unwind(Box::new("on purpose")),
                FaultKind::Lose => self.device.lose(),
                FaultKind::OutOfMemory => {
                    return Err(GpuError::OutOfMemory { what: "on purpose".into(), bytes: 0 }.into());
                }
                FaultKind::Stall(time) => std::thread::sleep(time),
                FaultKind::Corrupt(index) => {
                    let mut bytes = self.device.read_state(index)?;
                    bytes.iter_mut().skip(2).take(1).for_each(|byte| *byte ^= 1);
                    self.device.write_state(index, &bytes)?;
                }
            }
        }
        Ok(())
    }
}

impl Spent {
    fn add(&mut self, timing: Timing) {
        self.compute += timing.submit + timing.wait;
        self.moving += timing.upload + timing.download;
    }
}

/// The bytes as words, in memory that is used again where it has their size.
fn copied<T: bytemuck::Pod>(mut into: Vec<T>, bytes: &[u8]) -> Vec<T> {
    into.resize(bytes.len() / size_of::<T>(), T::zeroed());
    bytemuck::cast_slice_mut(&mut into).copy_from_slice(bytes);
    into
}
