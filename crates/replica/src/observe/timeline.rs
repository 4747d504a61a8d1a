//! A worker's timeline: stretches of time without gaps, each with an activity.

use std::time::{Duration, Instant};

use unisono_gpu::{Stretch, Timing};

/// What a replica does with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// The replica has nothing to do between two steps: most often it waits for input.
    Input,
    /// The host copies the replica's part of the batch, or sums, to the device.
    Upload,
    /// The device works, by its own clock; where it has none, this includes the driver's time.
    Compute,
    /// The driver records and submits, and work is on its way to the device and back. It occurs only where
    /// the device has a clock.
    Driver,
    /// The host copies the sums of the replica's shards, or adds the sums of all.
    Exchange,
    /// The replica waits for others that have not finished their part, or for the caller's verdict.
    Peers,
    /// The replica makes plans and pipelines, or writes or reads the state.
    Loading,
    /// The device works, by its own clock, from the first launch of a submission to the end of its last one.
    /// These stretches lie beside the others.
    Device,
    /// A bucket of sums is on its way between machines. These stretches lie beside the others, and are of the
    /// machine and not of a replica.
    Machines,
}

impl Activity {
    /// The activities into which a replica's time is divided, in the order of a step: all but
    /// [`Activity::Device`] and [`Activity::Machines`].
    pub const ALL: [Self; 7] =
        [Self::Input, Self::Loading, Self::Upload, Self::Driver, Self::Compute, Self::Exchange, Self::Peers];

    /// Returns the name in traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Upload => "upload",
            Self::Compute => "compute",
            Self::Driver => "driver",
            Self::Exchange => "exchange",
            Self::Peers => "peers",
            Self::Loading => "loading",
            Self::Device => "device",
            Self::Machines => "machines",
        }
    }
}

/// A stretch of a replica's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What the replica did.
    pub activity: Activity,
    /// The time at which the stretch began.
    pub from: Instant,
    /// The time at which the stretch ended.
    pub to: Instant,
}

impl Span {
    /// Returns the length of the stretch.
    pub fn length(&self) -> Duration {
        self.to.saturating_duration_since(self.from)
    }
}

/// A stretch of a replica's time, counted from the start of [`crate::Replicas`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The number of the replica, or of the bucket where the activity is [`Activity::Machines`].
    pub replica: usize,
    /// The call of [`crate::Replicas::step`], from 0, in which or after which it was, or the first of those
    /// that are summed up.
    pub step: u64,
    /// The number of steps that are summed up in it: 1 except among the oldest of many, see
    /// [`crate::Replicas::timeline`].
    pub steps: u64,
    /// What the replica did.
    pub activity: Activity,
    /// The time at which the stretch began.
    pub from: Duration,
    /// The time at which the stretch ended.
    pub to: Duration,
}

/// Records a worker's time: each stretch begins where the one before ended.
#[derive(Debug)]
pub(crate) struct Timeline {
    mark: Instant,
    spans: Vec<Span>,
    /// The stretches in which the device worked, in order.
    device: Vec<Stretch>,
}

impl Timeline {
    pub fn new() -> Self {
        Self { mark: Instant::now(), spans: Vec::new(), device: Vec::new() }
    }

    /// Assigns the time from the last call up to `to` to an activity.
    pub fn until(&mut self, to: Instant, activity: Activity) {
        let to = to.max(self.mark);
        if to > self.mark {
            self.spans.push(Span { activity, from: self.mark, to });
        }
        self.mark = to;
    }

    /// Assigns the time from the last call up to now to an activity.
    pub fn until_now(&mut self, activity: Activity) {
        self.until(Instant::now(), activity);
    }

    /// Assigns the first part, so long, of the time since the last call to an activity.
    pub fn for_a_while(&mut self, time: Duration, activity: Activity) {
        self.until((self.mark + time).min(Instant::now()), activity);
    }

    /// Assigns the time since the last call, in which the host waited for the device and then read downloads.
    pub fn waited(&mut self, timing: &Timing) {
        timing.device.into_iter().for_each(|stretch| self.device(stretch));
        self.for_a_while(timing.wait, Activity::Compute);
        self.until_now(Activity::Exchange);
    }

    /// Records a stretch in which the device worked.
    pub fn device(&mut self, stretch: Stretch) {
        self.device.push(stretch);
    }

    /// Records that the device has worked since `from`, if it has a clock. Faults that slow a replica down
    /// use it.
    pub fn device_since(&mut self, from: Instant) {
        if !self.device.is_empty() {
            self.device(Stretch { from, to: Instant::now() });
        }
    }

    /// Takes the stretches recorded so far.
    pub fn take(&mut self) -> Vec<Span> {
        let device = std::mem::take(&mut self.device);
        let spans = std::mem::take(&mut self.spans);
        if device.is_empty() { spans } else { divide(spans, &device) }
    }
}

/// Divides the stretches of [`Activity::Compute`], which the host's clock gave: where the device did not work
/// by its own clock, the time is the driver's.
fn divide(spans: Vec<Span>, device: &[Stretch]) -> Vec<Span> {
    let mut divided = Vec::with_capacity(spans.len() + 3 * device.len());
    for span in spans {
        if span.activity != Activity::Compute {
            divided.push(span);
            continue;
        }
        let mut mark = span.from;
        let mut until = |to: Instant, activity: Activity| {
            let to = to.clamp(mark, span.to);
            if to > mark {
                divided.push(Span { activity, from: mark, to });
            }
            mark = to;
        };
        for stretch in device {
            until(stretch.from, Activity::Driver);
            until(stretch.to, Activity::Compute);
        }
        until(span.to, Activity::Driver);
    }
    let own = device.iter().map(|&Stretch { from, to }| Span { activity: Activity::Device, from, to });
    divided.extend(own);
    divided
}

/// Returns the total time of these activities.
pub(crate) fn total(spans: &[Span], of: &[Activity]) -> Duration {
    spans.iter().filter(|span| of.contains(&span.activity)).map(Span::length).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_clock_divides_what_the_host_saw_as_work_and_nothing_else() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut timeline = Timeline { mark: begin, spans: vec![], device: vec![] };
        for (to, activity) in [
            (10, Activity::Upload),
            (30, Activity::Compute),
            (35, Activity::Exchange),
            (50, Activity::Compute),
        ] {
            timeline.until(at(to), activity);
        }
        timeline.device(Stretch { from: at(8), to: at(28) });
        timeline.device(Stretch { from: at(32), to: at(45) });
        let spans = timeline.take();
        let read: Vec<_> = spans
            .iter()
            .map(|s| (s.activity.name(), (s.from - begin).as_millis(), (s.to - begin).as_millis()))
            .collect();
        let wanted = [
            ("upload", 0, 10),
            ("compute", 10, 28),
            ("driver", 28, 30),
            ("exchange", 30, 35),
            ("compute", 35, 45),
            ("driver", 45, 50),
            ("device", 8, 28),
            ("device", 32, 45),
        ];
        assert_eq!(read, wanted);
        timeline.until(at(60), Activity::Compute);
        assert_eq!(timeline.take(), [Span { activity: Activity::Compute, from: at(50), to: at(60) }]);
    }
}
