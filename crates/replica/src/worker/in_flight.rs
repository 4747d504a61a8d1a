//! Steps in flight: a worker submits a step and answers at once, and is asked for its results when the next
//! one was submitted.

use std::sync::Arc;
use std::time::Instant;

use unisono_gpu::GpuError;
use unisono_graph::Slot;

use crate::observe::timeline::Activity;
use crate::worker::fault::{self, Fault};
use crate::worker::message::{Failure, Key, Reply, SegmentResults, Work};
use crate::worker::serve::{Worker, fill_with_nan, slow_down};

impl SegmentResults {
    /// Takes a download that is not a block of sums.
    pub fn read(&mut self, slot: Slot, bytes: &[u8]) {
        let is_set = || bytes.iter().any(|&byte| byte != 0);
        match slot {
            Slot::Output(index) => self.outputs.push((index, bytemuck::pod_collect_to_vec(bytes))),
            Slot::Flag(cut) if is_set() => {
                self.bad_cut.get_or_insert(cut);
            }
            Slot::StateFlag => self.bad_state |= is_set(),
            Slot::Skipped => self.skipped |= is_set(),
            _ => {}
        }
    }
}

impl Worker {
    /// Submits all segments of a step, beside at most one that is in flight.
    pub(super) fn submit(&mut self, mut work: Work, chained: bool) -> Result<Reply, Failure> {
        self.load(work.program, Arc::clone(&work.run)).map_err(Failure::of_loading)?;
        let faults = fault::passed(&self.options.fault_scope, self.replica, work.step, &work.segments);
        faults.iter().try_for_each(|fault| self.go_wrong(*fault))?;
        if faults.contains(&Fault::NotFinite) {
            fill_with_nan(&*self.programs.get(work.program)?, &mut work);
        }
        let Work { program, run, feed, first_row, .. } = work;
        let key: Key = (program, run);
        let lane = usize::from(self.in_flight.iter().any(|(other, step)| *other == key && step.lane() == 0));
        let (_, executable) = self.loaded.back_mut().ok_or_else(|| Failure::missing("the executable"))?;
        let (program, rows) = (self.programs.get(program)?, key.1.rows());
        let began = Instant::now();
        let submitted =
            self.device.submit_all(executable, lane, &mut |transfer, to| match Slot::decode(transfer.slot) {
                Slot::Chained => to.write(&u32::from(chained).to_le_bytes()),
                slot => feed.write(&program, slot, first_row, rows, to),
            });
        let step = match submitted {
            Ok(step) => step,
            Err(GpuError::OutOfMemory { .. } | GpuError::Limit { .. }) if lane > 0 => {
                // The step in flight has lane 0 of this plan, and from now on there is one step at a time.
                self.loaded.iter_mut().for_each(|(_, executable)| executable.drop_second_lane());
                return Ok(Reply::NoRoom);
            }
            Err(error) => return Err(error.into()),
        };
        self.time.for_a_while(step.timing().upload, Activity::Upload);
        self.in_flight.push_back((key, step));
        faults.iter().for_each(|fault| slow_down(*fault, rows, began.elapsed()));
        Ok(Reply::Done)
    }

    /// Waits for the oldest step in flight, and returns its results.
    pub(super) fn collect(&mut self) -> Result<SegmentResults, Failure> {
        let (key, step) = self.in_flight.pop_front().ok_or_else(|| Failure::missing("a step in flight"))?;
        let at = self.loaded.iter().position(|(loaded, _)| *loaded == key);
        let (_, executable) =
            at.and_then(|at| self.loaded.get_mut(at)).ok_or_else(|| Failure::missing("the executable"))?;
        let mut results = SegmentResults::default();
        let timing = self.device.collect(executable, step, &mut |transfer, bytes| {
            results.read(Slot::decode(transfer.slot), bytes);
        })?;
        self.time.waited(&timing);
        Ok(results)
    }
}
