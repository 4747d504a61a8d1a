//! Where a worker's time goes: one stretch after the other, without gaps.

use std::time::{Duration, Instant};

/// What a replica does with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// It has nothing to do between two steps: most often, it waits for input.
    Input,
    /// Its part of the batch, or sums, are on their way to the device.
    Upload,
    /// The device works, or its driver does.
    Compute,
    /// Sums of its shards are on their way to the host, or the host adds those of all.
    Exchange,
    /// It waits for others that have not finished their part, or for the verdict.
    Peers,
    /// Plans and pipelines are made, the state is written or read.
    Loading,
}

impl Activity {
    /// All of them, in the order in which a step has them.
    pub const ALL: [Self; 6] =
        [Self::Input, Self::Loading, Self::Upload, Self::Compute, Self::Exchange, Self::Peers];

    /// Its name in traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Upload => "upload",
            Self::Compute => "compute",
            Self::Exchange => "exchange",
            Self::Peers => "peers",
            Self::Loading => "loading",
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
}

impl Timeline {
    pub fn new() -> Self {
        Self { mark: Instant::now(), spans: Vec::new() }
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

    pub fn take(&mut self) -> Vec<Span> {
        std::mem::take(&mut self.spans)
    }
}

/// All time that went into these.
pub(crate) fn total(spans: &[Span], of: &[Activity]) -> Duration {
    spans.iter().filter(|span| of.contains(&span.activity)).map(Span::length).sum()
}
