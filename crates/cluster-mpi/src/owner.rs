//! The thread that owns MPI: it sends what it is told to and receives what comes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use unisono_cluster::Received;

use crate::error::MpiError;
use crate::library::{Mpi, Request};
use crate::meeting::{Carrier, meet};
use crate::parts::{Joining, PART, cut};

/// The shortest and the longest sleep between two looks.
const SLEEPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(200));
/// How often the library is asked for losses.
const LOOK: Duration = Duration::from_millis(50);
/// How many calls may fail after a loss was reported, before that counts as an error.
const MOST_FAILED: u32 = 10_000;
/// How long the other ranks may take to publish their names.
const PUBLISHING: Duration = Duration::from_secs(1);
/// How long the last messages may take.
const LAST: Duration = Duration::from_secs(5);

/// What the thread is told.
#[derive(Debug)]
pub enum Command {
    /// Send these bytes to a rank.
    Send(usize, Vec<u8>),
    /// End; `true`: together with all other ranks.
    End(bool),
}

/// What the thread knows once it has met the other ranks.
pub struct Met {
    /// This rank.
    pub rank: usize,
    /// The name of each rank's machine.
    pub hosts: Vec<String>,
    /// The time that a message takes to the farthest rank.
    pub latency: Duration,
}

/// What the thread says at its start.
pub type Opened = Result<Met, MpiError>;

/// Initialises MPI, meets the other ranks within `patience`, and serves until it is told to end.
pub fn serve(
    opened: &Sender<Opened>,
    commands: &Receiver<Command>,
    received: &Sender<Result<Received, String>>,
    patience: Duration,
) {
    let mut owner = match start(patience) {
        Ok((owner, met)) => {
            let _ = opened.send(Ok(met));
            owner
        }
        Err(error) => return drop(opened.send(Err(error))),
    };
    match owner.run(commands, received) {
        Ok(true) => owner.finish(),
        // Without MPI_Finalize the launcher ends the other processes with this one. The library stays open.
        Ok(false) => std::mem::forget(owner),
        Err(error) => {
            let _ = received.send(Err(error.to_string()));
            std::mem::forget(owner);
        }
    }
}

/// Initialises MPI and meets the other ranks.
fn start(patience: Duration) -> Result<(Owner, Met), MpiError> {
    let mpi = Mpi::init()?;
    let (rank, size) = mpi.rank_and_size()?;
    let host = mpi.host()?;
    let mut owner = Owner {
        mpi,
        sending: Vec::new(),
        receiving: Vec::new(),
        joining: Joining::default(),
        lost: BTreeSet::new(),
        failed: 0,
    };
    let met = meet(&mut owner, (rank, size), host, patience).and_then(|met| {
        owner.mpi.own_communicator()?;
        Ok(met)
    });
    match met {
        Ok((hosts, latency)) => Ok((owner, Met { rank, hosts, latency })),
        Err(error) => {
            // The library may still use the memory of what is on its way.
            std::mem::forget(owner);
            Err(error)
        }
    }
}

/// A message that is being received.
struct Coming {
    from: usize,
    request: Request,
    bytes: Vec<u8>,
    done: bool,
}

/// A message that is being sent.
struct Going {
    to: usize,
    request: Request,
    /// The library reads these until the request is done.
    _bytes: Vec<u8>,
}

/// What the thread has of the library, and what is on its way.
pub struct Owner {
    mpi: Mpi,
    sending: Vec<Going>,
    /// In the order in which they arrived.
    receiving: Vec<Coming>,
    /// What has come of messages in several parts.
    joining: Joining,
    /// The ranks that are lost.
    lost: BTreeSet<usize>,
    /// The calls that failed since one of them told of a loss.
    failed: u32,
}

impl Carrier for Owner {
    fn send(&mut self, to: usize, bytes: Vec<u8>) -> Result<(), MpiError> {
        self.send(to, bytes)
    }

    fn receive(&mut self) -> Result<Vec<(usize, Vec<u8>)>, MpiError> {
        let (sender, receiver) = crossbeam_channel::unbounded();
        self.receive(&sender)?;
        self.test_sends()?;
        let message = |received| match received {
            Ok(Received::Message { from, bytes }) => Some((from, bytes)),
            _ => None,
        };
        Ok(receiver.try_iter().filter_map(message).collect())
    }

    fn ask_launcher(&mut self, (me, host): (usize, &str), ranks: &[usize]) -> Vec<(usize, String)> {
        let Some(names) = self.mpi.names() else { return Vec::new() };
        names.publish(me, host);
        std::thread::sleep(PUBLISHING);
        ranks.iter().filter_map(|&rank| Some((rank, names.look_up(rank)?))).collect()
    }
}

impl Owner {
    /// Serves until told to end. Returns whether all ranks end together.
    fn run(
        &mut self,
        commands: &Receiver<Command>,
        received: &Sender<Result<Received, String>>,
    ) -> Result<bool, MpiError> {
        let mut sleep = SLEEPS.0;
        let mut looked = Instant::now();
        loop {
            // Calls fail only if they are for a rank that is lost.
            if looked.elapsed() >= LOOK {
                self.report_losses(received);
                looked = Instant::now();
            }
            let mut is_busy = false;
            loop {
                match commands.try_recv() {
                    Ok(Command::Send(to, bytes)) => self.send_if_there(to, bytes, received)?,
                    Ok(Command::End(together)) => return Ok(together),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Ok(false),
                }
                is_busy = true;
            }
            match self.receive(received) {
                Ok(busy) => is_busy |= busy,
                Err(error) => self.check_losses(error, received)?,
            }
            match self.test_sends() {
                Ok(busy) => is_busy |= busy,
                Err(error) => self.check_losses(error, received)?,
            }
            if is_busy {
                sleep = SLEEPS.0;
                continue;
            }
            // A command ends the sleep.
            match commands.recv_timeout(sleep) {
                Ok(Command::Send(to, bytes)) => self.send_if_there(to, bytes, received)?,
                Ok(Command::End(together)) => return Ok(together),
                Err(_) => sleep = (2 * sleep).min(SLEEPS.1),
            }
        }
    }

    /// Sends a message, unless the rank is lost.
    fn send_if_there(
        &mut self,
        to: usize,
        bytes: Vec<u8>,
        received: &Sender<Result<Received, String>>,
    ) -> Result<(), MpiError> {
        for part in cut(bytes, PART) {
            if self.lost.contains(&to) {
                break;
            }
            self.send(to, part).or_else(|error| self.check_losses(error, received))?;
        }
        Ok(())
    }

    /// A call has failed: tells of ranks that are lost, if the library knows of any.
    ///
    /// # Errors
    /// The call's error, if no rank is lost, or if calls go on failing.
    fn check_losses(
        &mut self,
        error: MpiError,
        received: &Sender<Result<Received, String>>,
    ) -> Result<(), MpiError> {
        let new = self.report_losses(received);
        self.failed = if new == 0 { self.failed + 1 } else { 0 };
        if self.lost.is_empty() || self.failed > MOST_FAILED {
            return Err(error);
        }
        Ok(())
    }

    /// Tells of ranks that the library knows to be lost. Returns how many there are that were not known.
    fn report_losses(&mut self, received: &Sender<Result<Received, String>>) -> usize {
        let lost = self.mpi.lost();
        let new: Vec<usize> = lost.into_iter().filter(|&rank| self.lost.insert(rank)).collect();
        if new.is_empty() {
            return 0;
        }
        // The library may still use the memory of what was on its way.
        let sending = std::mem::take(&mut self.sending).into_iter();
        let (gone, left) = sending.partition(|going| self.lost.contains(&going.to));
        std::mem::forget::<Vec<Going>>(gone);
        self.sending = left;
        let coming = std::mem::take(&mut self.receiving).into_iter();
        let (gone, left) = coming.partition(|coming| !coming.done && self.lost.contains(&coming.from));
        std::mem::forget::<Vec<Coming>>(gone);
        self.receiving = left;
        for &rank in &new {
            self.joining.forget(rank);
            let _ = received.send(Ok(Received::Lost { rank, why: "its process is gone".into() }));
        }
        new.len()
    }

    #[expect(unsafe_code, reason = "MPI sends the bytes while this goes on")]
    fn send(&mut self, to: usize, bytes: Vec<u8>) -> Result<(), MpiError> {
        // SAFETY: the bytes lie in `sending`, where nobody touches them, until the request is done; a
        // vector's bytes stay where they are when the vector is moved. If this panics, the process ends.
        let request = unsafe { self.mpi.send(to, &bytes)? };
        self.sending.push(Going { to, request, _bytes: bytes });
        Ok(())
    }

    /// Drops what is sent. Returns whether there was anything.
    fn test_sends(&mut self) -> Result<bool, MpiError> {
        let mut at = 0;
        let before = self.sending.len();
        while at < self.sending.len() {
            if self.mpi.test(&mut self.sending[at].request)? {
                self.sending.swap_remove(at);
            } else {
                at += 1;
            }
        }
        Ok(self.sending.len() < before)
    }

    /// Begins to receive what has arrived, and hands over what is received. Returns whether there was
    /// anything.
    #[expect(unsafe_code, reason = "MPI writes the bytes while this goes on")]
    fn receive(&mut self, received: &Sender<Result<Received, String>>) -> Result<bool, MpiError> {
        let mut is_busy = false;
        while let Some(arrived) = self.mpi.probe()? {
            let mut bytes = vec![0; arrived.bytes];
            // SAFETY: as for sending; the vector has the message's size.
            let request = unsafe { self.mpi.receive(arrived, &mut bytes)? };
            self.receiving.push(Coming { from: arrived.from, request, bytes, done: false });
            is_busy = true;
        }
        for coming in self.receiving.iter_mut().filter(|coming| !coming.done) {
            coming.done = self.mpi.test(&mut coming.request)?;
        }
        // A long message may be done after a short one that the same rank sent later.
        let mut at = 0;
        while at < self.receiving.len() {
            let from = self.receiving[at].from;
            let waits = self.receiving[..at].iter().any(|earlier| earlier.from == from);
            if waits || !self.receiving[at].done {
                at += 1;
                continue;
            }
            let Coming { from, bytes, .. } = self.receiving.remove(at);
            if let Some(bytes) = self.joining.add(from, bytes, PART) {
                let _ = received.send(Ok(Received::Message { from, bytes }));
            }
            is_busy = true;
        }
        Ok(is_busy)
    }

    /// Waits until what was sent has gone, and finalises.
    fn finish(mut self) {
        let since = Instant::now();
        while !self.sending.is_empty() && since.elapsed() < LAST {
            if self.test_sends().is_err() {
                break;
            }
            std::thread::sleep(SLEEPS.1);
        }
        if self.sending.is_empty() && self.receiving.is_empty() {
            // The run is over: an error here changes nothing of it.
            let _ = self.mpi.finalize();
        } else {
            std::mem::forget(self);
        }
    }
}
