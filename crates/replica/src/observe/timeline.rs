//! Where a worker's time goes: one stretch after the other, without gaps.

use std::time::{Duration, Instant};

use unisono_gpu::Stretch;

/// What a replica does with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// It has nothing to do between two steps: most often, it waits for input.
    Input,
    /// Its part of the batch, or sums, are on their way to the device.
    Upload,
    /// The device works, as its own clock tells; where it has none, its driver's time is in this too.
    Compute,
    /// The driver records and submits, and work is on the way to the device and back; where the device has a clock.
    Driver,
    /// Sums of its shards are on their way to the host, or the host adds those of all.
    Exchange,
    /// It waits for others that have not finished their part, or for the verdict.
    Peers,
    /// Plans and pipelines are made, the state is written or read.
    Loading,
    /// Beside all of these, what the device did by its own clock: from the first launch of a submission to the end of its last.
    Device,
}

impl Activity {
    /// What a replica's time is divided into, in the order in which a step has them: all but [`Activity::Device`].
    pub const ALL: [Self; 7] =
        [Self::Input, Self::Loading, Self::Upload, Self::Driver, Self::Compute, Self::Exchange, Self::Peers];

    /// Its name in traces.
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
        }
    }
}

/// A stretch of a replica's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What it did.
    pub activity: Activity,
    /// From when
    pub from: Instant,
    /// until when.
    pub to: Instant,
}

impl Span {
    /// How long it took.
    pub fn length(&self) -> Duration {
        self.to.saturating_duration_since(self.from)
    }
}

/// A stretch of some replica's time, counted from the start of [`crate::Replicas`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The replica.
    pub replica: usize,
    /// The call of [`crate::Replicas::step`] that it was in or after, from 0.
    pub step: u64,
    /// What it did.
    pub activity: Activity,
    /// From when
    pub from: Duration,
    /// until when.
    pub to: Duration,
}

/// A worker's clock: whatever it does next begins where it stopped before.
#[derive(Debug)]
pub(crate) struct Timeline {
    mark: Instant,
    spans: Vec<Span>,
    /// When the device worked, in order.
    device: Vec<Stretch>,
}

impl Timeline {
    pub fn new() -> Self {
        Self { mark: Instant::now(), spans: Vec::new(), device: Vec::new() }
    }

    /// All time since the last call went into this, up to `to`.
    pub fn until(&mut self, to: Instant, activity: Activity) {
        let to = to.max(self.mark);
        if to > self.mark {
            self.spans.push(Span { activity, from: self.mark, to });
        }
        self.mark = to;
    }

    pub fn until_now(&mut self, activity: Activity) {
        self.until(Instant::now(), activity);
    }

    /// So much of the time since the last call went into this, the first part of it.
    pub fn for_a_while(&mut self, time: Duration, activity: Activity) {
        self.until((self.mark + time).min(Instant::now()), activity);
    }

    /// The device worked.
    pub fn device(&mut self, stretch: Stretch) {
        self.device.push(stretch);
    }

    /// The device worked since then, as far as anybody can tell who trusts its clock.
    pub fn device_since(&mut self, from: Instant) {
        if !self.device.is_empty() {
            self.device(Stretch { from, to: Instant::now() });
        }
    }

    pub fn take(&mut self) -> Vec<Span> {
        let device = std::mem::take(&mut self.device);
        let spans = std::mem::take(&mut self.spans);
        if device.is_empty() { spans } else { divide(spans, &device) }
    }
}

/// What went into [`Activity::Compute`] by the host's clock is the driver's, except where the device worked by its own.
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

/// All time that went into these.
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
