//! Several clusters in one process, for tests: ranks are threads, and a script says which of them are lost,
//! slow or cut off.
//!
//! Time is virtual. As long as a rank computes, nothing happens that it could miss. Once all ranks wait, the
//! next message is delivered, chosen at random by the script's seed, or time goes on to the next moment at
//! which something happens. So a script gives the same schedule each time, and a deadline of minutes passes
//! at once.
//!
//! With hundreds of ranks, whose messages grow with the square of their number, a rank that wakes receives
//! all that has arrived for it, from the ranks in turn, beginning with a random one: otherwise waking threads
//! would take most of the time.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cluster::Cluster;
use crate::link::{Link, Received};

/// From so many ranks on, all messages that have arrived for a rank are delivered at once.
const MANY: usize = 100;

/// What happens to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The rank is lost when it has sent so many messages. Some of its last messages do not arrive.
    Lost {
        /// The rank.
        rank: usize,
        /// The number of messages.
        after: usize,
    },
    /// Once the rank has sent `after` messages, each further message takes this long.
    Slow {
        /// The rank.
        rank: usize,
        /// The number of messages.
        after: usize,
        /// The time that a message takes.
        by: Duration,
    },
    /// Once the rank has sent `after` messages, its link is slow: each further message also takes the time
    /// that its bytes need at this rate.
    Narrow {
        /// The rank.
        rank: usize,
        /// The number of messages.
        after: usize,
        /// The rate in bytes a second.
        rate: u64,
    },
    /// From so many sent messages of this rank on, nothing passes between it and the others, and nobody is
    /// told.
    CutOff {
        /// The rank.
        rank: usize,
        /// The number of messages.
        after: usize,
    },
    /// From so many sent messages of this rank on, the network is cut in two: nothing passes between the
    /// ranks below `first` and the others, and each part is told that the other one is lost, as by a
    /// heartbeat. Some of the last messages do not arrive.
    Parted {
        /// The rank whose messages count.
        rank: usize,
        /// The number of messages.
        after: usize,
        /// The first rank of the second part.
        first: usize,
    },
}

impl Fault {
    fn rank(self) -> usize {
        match self {
            Self::Lost { rank, .. }
            | Self::Slow { rank, .. }
            | Self::Narrow { rank, .. }
            | Self::CutOff { rank, .. }
            | Self::Parted { rank, .. } => rank,
        }
    }

    fn after(self) -> usize {
        match self {
            Self::Lost { after, .. }
            | Self::Slow { after, .. }
            | Self::Narrow { after, .. }
            | Self::CutOff { after, .. }
            | Self::Parted { after, .. } => after,
        }
    }
}

/// What happens between ranks that are threads: the order of messages, and faults.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// The seed of the order in which messages of different ranks arrive.
    pub seed: u64,
    /// The faults.
    pub faults: Vec<Fault>,
}

/// Returns the clusters of this many ranks, one for each thread.
pub fn threads(ranks: usize, script: Script) -> Vec<Cluster> {
    let network = Arc::new(Network {
        state: Mutex::new(State {
            now: Duration::ZERO,
            random: script.seed,
            turn: 0,
            sent: vec![0; ranks],
            slow: vec![Duration::ZERO; ranks],
            rates: vec![None; ranks],
            cut_off: vec![false; ranks],
            parted: None,
            lives: vec![true; ranks],
            waits_until: vec![None; ranks],
            inboxes: (0..ranks).map(|_| VecDeque::new()).collect(),
            lines: (0..ranks * ranks).map(|_| VecDeque::new()).collect(),
            faults: script.faults,
        }),
        woken: (0..ranks).map(|_| Condvar::new()).collect(),
    });
    let hosts: Vec<String> = (0..ranks).map(|rank| format!("thread{rank}")).collect();
    let link = |rank| Thread { rank, hosts: hosts.clone(), network: Arc::clone(&network) };
    (0..ranks).map(|rank| Cluster::new(Box::new(link(rank)))).collect()
}

struct Network {
    state: Mutex<State>,
    woken: Vec<Condvar>,
}

struct State {
    now: Duration,
    random: u64,
    /// The rank whose turn it is, where there are many.
    turn: usize,
    /// The messages that each rank has sent.
    sent: Vec<usize>,
    slow: Vec<Duration>,
    /// The rate of each rank's messages in bytes a second, if they take time by their length.
    rates: Vec<Option<u64>>,
    cut_off: Vec<bool>,
    /// The first rank of the second part of a network that is cut in two.
    parted: Option<usize>,
    lives: Vec<bool>,
    /// The moment until which each rank waits, if it waits.
    waits_until: Vec<Option<Duration>>,
    /// What has arrived.
    inboxes: Vec<VecDeque<Received>>,
    /// What is under way from each rank to each other, with the moment from which it may arrive.
    lines: Vec<VecDeque<(Duration, Received)>>,
    faults: Vec<Fault>,
}

impl State {
    fn draw(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % below.max(1) as u64) as usize
    }

    /// Sends a message, or what the script makes of it.
    fn send(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        for fault in self.faults.clone() {
            if fault.rank() == from && fault.after() == self.sent[from] {
                match fault {
                    Fault::Lost { .. } => self.lose(from, true),
                    Fault::Slow { by, .. } => self.slow[from] = by,
                    Fault::Narrow { rate, .. } => self.rates[from] = Some(rate.max(1)),
                    Fault::CutOff { .. } => self.cut_off[from] = true,
                    Fault::Parted { first, .. } => self.part(first),
                }
            }
        }
        self.sent[from] += 1;
        let is_parted = self.parted.is_some_and(|first| (from < first) != (to < first));
        if !self.lives[from] || !self.lives[to] || self.cut_off[from] || self.cut_off[to] || is_parted {
            return;
        }
        let ranks = self.lives.len();
        let length = |rate: u64| Duration::from_secs_f64(bytes.len() as f64 / rate as f64);
        let at = self.now + self.slow[from] + self.rates[from].map_or(Duration::ZERO, length);
        self.lines[from * ranks + to].push_back((at, Received::Message { from, bytes }));
    }

    /// Ends a rank. If it is `lost`, some of its last messages do not arrive.
    fn lose(&mut self, rank: usize, lost: bool) {
        if !std::mem::replace(&mut self.lives[rank], false) {
            return;
        }
        let ranks = self.lives.len();
        for to in 0..ranks {
            if lost {
                let keep = self.lines[rank * ranks + to].len();
                let keep = self.draw(keep + 1);
                self.lines[rank * ranks + to].truncate(keep);
            }
            if !self.cut_off[rank] && !self.cut_off[to] {
                let at = self.now + self.slow[rank];
                let why = "its thread has ended".to_owned();
                self.lines[rank * ranks + to].push_back((at, Received::Lost { rank, why }));
            }
        }
    }

    /// Cuts the network in two. Some of the last messages between the parts do not arrive.
    fn part(&mut self, first: usize) {
        self.parted = Some(first);
        let ranks = self.lives.len();
        for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
            if (from < first) != (to < first) {
                let keep = self.lines[from * ranks + to].len();
                let keep = self.draw(keep + 1);
                self.lines[from * ranks + to].truncate(keep);
                let why = "it does not answer a heartbeat".to_owned();
                let lost = (self.now + self.slow[from], Received::Lost { rank: from, why });
                self.lines[from * ranks + to].push_back(lost);
            }
        }
    }

    /// Returns whether a message has arrived at the end of a line.
    fn has_arrived(&self, line: usize) -> bool {
        let to = line % self.lives.len();
        self.lives[to] && self.lines[line].front().is_some_and(|(at, _)| *at <= self.now)
    }

    /// Delivers one of the messages that have arrived. Returns the rank that receives it.
    fn deliver_one(&mut self) -> Option<usize> {
        let ranks = self.lives.len();
        let lines: Vec<usize> = (0..ranks * ranks).filter(|&line| self.has_arrived(line)).collect();
        if lines.is_empty() {
            return None;
        }
        let line = lines[self.draw(lines.len())];
        let message = self.lines[line].pop_front().map(|(_, message)| message);
        self.inboxes[line % ranks].extend(message);
        Some(line % ranks)
    }

    /// Delivers all messages that have arrived for one of the ranks. Returns that rank. Ranks have turns, so
    /// that each receives what all others have sent, and not each message as it is sent.
    fn deliver_many(&mut self) -> Option<usize> {
        let ranks = self.lives.len();
        let first = self.turn;
        let turned = move |first: usize| (first..ranks).chain(0..first);
        for to in turned(first) {
            let start = self.draw(ranks);
            for from in turned(start) {
                let line = from * ranks + to;
                while self.has_arrived(line) {
                    let message = self.lines[line].pop_front().map(|(_, message)| message);
                    self.inboxes[to].extend(message);
                }
            }
            if !self.inboxes[to].is_empty() {
                self.turn = (to + 1) % ranks;
                return Some(to);
            }
        }
        None
    }

    /// Does the next thing if all ranks wait. Returns the rank that can go on now.
    fn advance(&mut self) -> Option<usize> {
        let ranks = self.lives.len();
        loop {
            let waits = |rank: usize| self.waits_until[rank].is_some() && self.inboxes[rank].is_empty();
            if !(0..ranks).all(|rank| !self.lives[rank] || waits(rank)) {
                return None;
            }
            if let Some(due) = (0..ranks).find(|&rank| {
                self.lives[rank] && self.waits_until[rank].is_some_and(|until| until <= self.now)
            }) {
                self.inboxes[due].push_back(Received::Nothing);
                return Some(due);
            }
            let delivered = if ranks < MANY { self.deliver_one() } else { self.deliver_many() };
            if delivered.is_some() {
                return delivered;
            }
            let coming = (0..ranks * ranks).filter(|line| self.lives[line % ranks]);
            let coming = coming.filter_map(|line| Some(self.lines[line].front()?.0));
            let ends = (0..ranks).filter(|&rank| self.lives[rank]).filter_map(|rank| self.waits_until[rank]);
            self.now = coming.chain(ends).min()?;
        }
    }
}

/// The link of one rank.
struct Thread {
    rank: usize,
    hosts: Vec<String>,
    network: Arc<Network>,
}

impl Thread {
    fn state(&self) -> MutexGuard<'_, State> {
        self.network.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(&self, state: &mut State) {
        if let Some(rank) = state.advance() {
            self.network.woken[rank].notify_all();
        }
    }
}

impl Link for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn hosts(&self) -> &[String] {
        &self.hosts
    }

    fn send(&mut self, to: usize, bytes: Vec<u8>) {
        self.state().send(self.rank, to, bytes);
    }

    fn receive(&mut self, wait: Duration) -> Result<Received, String> {
        let mut state = self.state();
        // Messages of others arrive only when all wait, so that the schedule does not depend on the system's.
        if wait.is_zero() && state.inboxes[self.rank].is_empty() {
            return if state.lives[self.rank] {
                Ok(Received::Nothing)
            } else {
                Err("this rank was lost".into())
            };
        }
        state.waits_until[self.rank] = Some(state.now + wait);
        loop {
            if !state.lives[self.rank] {
                self.advance(&mut state);
                return Err("this rank was lost".into());
            }
            if let Some(received) = state.inboxes[self.rank].pop_front() {
                state.waits_until[self.rank] = None;
                return Ok(received);
            }
            self.advance(&mut state);
            if state.inboxes[self.rank].is_empty() {
                state = self.network.woken[self.rank].wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn now(&self) -> Duration {
        self.state().now
    }

    /// What a measurement at the start finds: the time of messages that are slow from the first one on.
    fn latency(&self) -> Duration {
        let slow = |fault: &Fault| match fault {
            Fault::Slow { after: 0, by, .. } => Some(*by),
            _ => None,
        };
        self.state().faults.iter().filter_map(slow).max().unwrap_or_default()
    }

    fn end(&mut self, _: bool) {}
}

impl Drop for Thread {
    fn drop(&mut self) {
        let mut state = self.state();
        let lost = std::thread::panicking();
        state.lose(self.rank, lost);
        self.advance(&mut state);
    }
}
