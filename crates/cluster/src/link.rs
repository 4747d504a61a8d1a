//! What moves messages between ranks.

use std::time::Duration;

/// What a link has received.
#[derive(Debug)]
pub enum Received {
    /// A message. Messages of one rank arrive in the order in which it sent them.
    Message {
        /// The rank that sent it.
        from: usize,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// A rank is lost for certain: it will never send again. Nothing of it is received after this.
    Lost {
        /// The rank.
        rank: usize,
        /// How that is known.
        why: String,
    },
    /// Nothing came within the time.
    Nothing,
}

/// Moves messages between the ranks of a run. It adds nothing up and decides nothing.
pub trait Link: Send {
    /// Returns the number of this rank.
    fn rank(&self) -> usize;

    /// Returns the name of each rank's machine, in the order of the ranks.
    fn hosts(&self) -> &[String];

    /// Sends a message, without waiting for its arrival. A message to a rank that is lost goes nowhere.
    fn send(&mut self, to: usize, bytes: Vec<u8>);

    /// Waits so long for a message.
    ///
    /// # Errors
    /// Nothing can be received any more, and why.
    fn receive(&mut self, wait: Duration) -> Result<Received, String>;

    /// Returns the time since some moment, by a clock that runs while [`Link::receive`] waits.
    fn now(&self) -> Duration;

    /// Returns the time that a message takes to the farthest rank, as measured at the start, or zero where it
    /// was not measured.
    fn latency(&self) -> Duration {
        Duration::ZERO
    }

    /// Ends the link. `together` says that all ranks end it now; otherwise it may end their processes.
    fn end(&mut self, together: bool);
}
