//! The first messages: each rank says hello to each other one, and then says from whom it has heard. Until
//! then nothing shows that two machines reach one another: MPI connects them when one first sends something,
//! and a call that all ranks make would wait for ever.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::error::MpiError;

/// The sleep between two looks.
const SLEEP: Duration = Duration::from_micros(200);
/// How much longer a rank waits for what the others have heard.
const ASKING: Duration = Duration::from_secs(3);

/// What moves the first messages.
pub trait Carrier {
    /// Begins to send a message.
    fn send(&mut self, to: usize, bytes: Vec<u8>) -> Result<(), MpiError>;

    /// Returns the messages that have come, each with its rank, and goes on with what is on its way.
    fn receive(&mut self) -> Result<Vec<(usize, Vec<u8>)>, MpiError>;

    /// Gives the launcher the machine of this rank, and asks it for those of ranks that are not reached.
    fn ask_launcher(&mut self, own: (usize, &str), ranks: &[usize]) -> Vec<(usize, String)>;
}

/// How often each rank asks each other one for an answer, to measure how far it is.
const PINGS: usize = 3;
/// What a rank asks, and what it is answered.
const PING: [u8; 1] = [0];
const PONG: [u8; 1] = [1];
/// The sleep between two looks for an answer.
const SHORT: Duration = Duration::from_micros(20);

/// What the other ranks have said so far.
#[derive(Default)]
struct Handshake {
    /// How often each of them has asked for an answer.
    pings: BTreeMap<usize, usize>,
    /// How often each of them has answered.
    pongs: BTreeMap<usize, usize>,
    /// The names of their machines.
    hosts: BTreeMap<usize, String>,
    /// The ranks from which each of them has heard nothing.
    missing: BTreeMap<usize, Vec<usize>>,
}

impl Handshake {
    /// Receives what has come: of each rank first the name of its machine, then whom it misses, then what
    /// measures the way to it, which is answered.
    fn receive(&mut self, carrier: &mut impl Carrier) -> Result<(), MpiError> {
        for (from, bytes) in carrier.receive()? {
            if let std::collections::btree_map::Entry::Vacant(vacant) = self.hosts.entry(from) {
                vacant.insert(String::from_utf8_lossy(&bytes).into_owned());
            } else if bytes == PING && self.missing.contains_key(&from) {
                *self.pings.entry(from).or_default() += 1;
                carrier.send(from, PONG.to_vec())?;
            } else if bytes == PONG && self.missing.contains_key(&from) {
                *self.pongs.entry(from).or_default() += 1;
            } else {
                let words = bytes.as_chunks::<8>().0.iter();
                self.missing.insert(from, words.map(|word| u64::from_le_bytes(*word) as usize).collect());
            }
        }
        Ok(())
    }

    fn name(&self, rank: usize) -> String {
        self.hosts.get(&rank).map_or(format!("rank {rank}"), |host| format!("rank {rank} ({host})"))
    }

    fn names(&self, ranks: &[usize]) -> String {
        const MOST: usize = 8;
        let mut names: Vec<String> = ranks.iter().take(MOST).map(|rank| self.name(*rank)).collect();
        if ranks.len() > MOST {
            names.push(format!("{} others", ranks.len() - MOST));
        }
        names.join(", ")
    }

    /// Says who has heard nothing from whom: this rank, or else the first one that misses somebody.
    fn problem(&self, me: usize, missing: &[usize], silent: &[usize]) -> Option<String> {
        if !missing.is_empty() {
            return Some(format!("it has heard nothing from {}", self.names(missing)));
        }
        match self.missing.iter().find(|(_, missing)| !missing.is_empty()) {
            Some((rank, missing)) => {
                let missing = if missing.contains(&me) { "this rank".into() } else { self.names(missing) };
                Some(format!("{} has heard nothing from {missing}", self.name(*rank)))
            }
            None if silent.is_empty() => None,
            None => Some(format!("{} has not said from whom it has heard", self.names(silent))),
        }
    }
}

/// Measures the time that a message takes to the farthest rank: half of the shortest time to an answer. All
/// ranks do so at once, and none goes on before it has answered all others.
fn measure(
    handshake: &mut Handshake,
    carrier: &mut impl Carrier,
    others: &[usize],
) -> Result<Duration, MpiError> {
    let mut shortest: BTreeMap<usize, Duration> = BTreeMap::new();
    let begun = Instant::now();
    for round in 1..=PINGS {
        let since = Instant::now();
        for &rank in others {
            carrier.send(rank, PING.to_vec())?;
        }
        let mut waits: Vec<usize> = others.to_vec();
        while !waits.is_empty() && begun.elapsed() < ASKING {
            handshake.receive(carrier)?;
            waits.retain(|rank| {
                let answered = handshake.pongs.get(rank).is_some_and(|pongs| *pongs >= round);
                if answered {
                    let best = shortest.entry(*rank).or_insert(Duration::MAX);
                    *best = since.elapsed().min(*best);
                }
                !answered
            });
            std::thread::sleep(SHORT);
        }
    }
    let asked =
        |handshake: &Handshake, rank: &usize| handshake.pings.get(rank).is_some_and(|pings| *pings >= PINGS);
    while !others.iter().all(|rank| asked(handshake, rank)) && begun.elapsed() < 2 * ASKING {
        handshake.receive(carrier)?;
        std::thread::sleep(SHORT);
    }
    Ok(shortest.into_values().max().unwrap_or_default() / 2)
}

/// Meets all other ranks: `me` is this rank and the number of ranks, `host` the name of this machine. Returns
/// the name of each rank's machine, and the time that a message takes to the farthest one.
///
/// # Errors
/// [`MpiError::Apart`] if some ranks have no connection after `patience`. Ranks that reach this one hear of
/// it.
pub fn meet(
    carrier: &mut impl Carrier,
    (me, size): (usize, usize),
    host: String,
    patience: Duration,
) -> Result<(Vec<String>, Duration), MpiError> {
    let others: Vec<usize> = (0..size).filter(|rank| *rank != me).collect();
    let mut handshake = Handshake::default();
    for &rank in &others {
        carrier.send(rank, host.as_bytes().to_vec())?;
    }
    let since = Instant::now();
    let missing_of = |handshake: &Handshake| -> Vec<usize> {
        others.iter().copied().filter(|rank| !handshake.hosts.contains_key(rank)).collect()
    };
    while !missing_of(&handshake).is_empty() && since.elapsed() < patience {
        handshake.receive(carrier)?;
        std::thread::sleep(SLEEP);
    }
    let missing = missing_of(&handshake);
    let said: Vec<u8> = missing.iter().flat_map(|&rank| (rank as u64).to_le_bytes()).collect();
    for &rank in &others {
        carrier.send(rank, said.clone())?;
    }
    let silent_of = |handshake: &Handshake| -> Vec<usize> {
        others.iter().copied().filter(|rank| !handshake.missing.contains_key(rank)).collect()
    };
    // The others wait for a rank that misses somebody as long as this one does.
    let asking = Instant::now();
    let patience = if missing.is_empty() { patience.saturating_sub(since.elapsed()) } else { Duration::ZERO };
    while !silent_of(&handshake).is_empty() && asking.elapsed() < patience + ASKING {
        handshake.receive(carrier)?;
        std::thread::sleep(SLEEP);
    }
    if !missing.is_empty() {
        handshake.hosts.extend(carrier.ask_launcher((me, &host), &missing));
    }
    handshake.hosts.insert(me, host);
    let silent = silent_of(&handshake);
    match handshake.problem(me, &missing, &silent) {
        None => {
            let latency = measure(&mut handshake, carrier, &others)?;
            Ok((handshake.hosts.into_values().collect(), latency))
        }
        Some(problem) => {
            let seconds = since.elapsed().as_secs();
            Err(MpiError::Apart { rank: handshake.name(me), problem, seconds })
        }
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, Sender, unbounded};

    use super::*;

    type Message = (usize, Vec<u8>);

    /// A rank that is a thread. It does not reach the ranks of `apart`.
    struct Thread {
        me: usize,
        others: Vec<Sender<Message>>,
        inbox: Receiver<Message>,
        apart: Vec<(usize, usize)>,
    }

    impl Carrier for Thread {
        fn send(&mut self, to: usize, bytes: Vec<u8>) -> Result<(), MpiError> {
            if !self.apart.contains(&(self.me, to)) {
                let _ = self.others[to].send((self.me, bytes));
            }
            Ok(())
        }

        fn receive(&mut self) -> Result<Vec<Message>, MpiError> {
            Ok(self.inbox.try_iter().collect())
        }

        fn ask_launcher(&mut self, _: (usize, &str), ranks: &[usize]) -> Vec<(usize, String)> {
            ranks.iter().filter(|rank| **rank == 2).map(|rank| (*rank, "host2".into())).collect()
        }
    }

    /// Lets ranks meet. Nothing passes from the first to the second rank of each pair.
    fn play(size: usize, apart: &[(usize, usize)]) -> Vec<Result<Vec<String>, String>> {
        let (senders, inboxes): (Vec<_>, Vec<_>) = (0..size).map(|_| unbounded()).unzip();
        let patience = if apart.is_empty() { Duration::from_secs(60) } else { Duration::from_millis(500) };
        let one = |(me, inbox)| {
            let mut carrier = Thread { me, others: senders.clone(), inbox, apart: apart.to_vec() };
            move || {
                let met = meet(&mut carrier, (me, size), format!("host{me}"), patience);
                met.map(|(hosts, _)| hosts).map_err(|error| error.to_string())
            }
        };
        let running: Vec<_> = inboxes.into_iter().enumerate().map(|it| std::thread::spawn(one(it))).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    }

    #[test]
    fn all_ranks_know_the_hosts_of_all() {
        for size in [1, 2, 5] {
            let hosts: Vec<String> = (0..size).map(|rank| format!("host{rank}")).collect();
            assert!(play(size, &[]).into_iter().all(|met| met.as_ref() == Ok(&hosts)));
        }
    }

    /// A rank whose messages are on their way for some time.
    struct Far {
        thread: Thread,
        coming: Vec<(Instant, Message)>,
    }

    impl Carrier for Far {
        fn send(&mut self, to: usize, bytes: Vec<u8>) -> Result<(), MpiError> {
            self.thread.send(to, bytes)
        }

        fn receive(&mut self) -> Result<Vec<Message>, MpiError> {
            let at = Instant::now();
            self.coming.extend(self.thread.receive()?.into_iter().map(|message| (at, message)));
            let late = self.coming.iter().take_while(|(at, _)| at.elapsed() >= LATENCY).count();
            Ok(self.coming.drain(..late).map(|(_, message)| message).collect())
        }

        fn ask_launcher(&mut self, _: (usize, &str), _: &[usize]) -> Vec<(usize, String)> {
            Vec::new()
        }
    }

    const LATENCY: Duration = Duration::from_millis(100);

    #[test]
    fn the_way_to_the_farthest_rank_is_measured() {
        let (senders, inboxes): (Vec<_>, Vec<_>) = (0..3).map(|_| unbounded()).unzip();
        let one = |(me, inbox)| {
            let thread = Thread { me, others: senders.clone(), inbox, apart: Vec::new() };
            let mut carrier = Far { thread, coming: Vec::new() };
            move || meet(&mut carrier, (me, 3), "host".into(), Duration::from_secs(60)).unwrap().1
        };
        let running: Vec<_> = inboxes.into_iter().enumerate().map(|it| std::thread::spawn(one(it))).collect();
        for rank in running {
            let latency = rank.join().unwrap();
            assert!(latency >= LATENCY && latency < 3 * LATENCY, "{latency:?}");
        }
    }

    #[test]
    fn ranks_without_a_connection_are_named_with_what_to_set() {
        let both = [(1, 2), (2, 1)];
        let ended = play(3, &both);
        let wanted = [
            "rank 0 (host0): rank 1 (host1) has heard nothing from rank 2 (host2) within ",
            "rank 1 (host1): it has heard nothing from rank 2 (host2) within ",
            "rank 2 (host2): it has heard nothing from rank 1 within ",
        ];
        for (error, wanted) in ended.iter().map(|end| end.as_ref().unwrap_err()).zip(wanted) {
            assert!(error.starts_with(wanted) && error.contains("--mca btl_tcp_if_include"), "{error}");
        }
        // One direction alone.
        let ended = play(2, &both.map(|(a, b)| (a - 1, b - 1))[..1]);
        let error = |rank: usize| ended[rank].as_ref().unwrap_err();
        assert!(error(0).contains("rank 1 (host1) has heard nothing from this rank within "), "{}", error(0));
        assert!(error(1).contains("it has heard nothing from rank 0 within "), "{}", error(1));
    }
}
