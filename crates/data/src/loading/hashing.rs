//! The content of a data set, hashed on a thread of its own beside the training.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use crate::{Content, DataError, Source};

/// How many times as long as it works the thread rests, while nobody waits for it.
const REST: u32 = 3;

/// A data set that is being hashed, or was.
///
/// While nobody waits and [`Hashing::hurry`] was not called, the thread works a quarter of the time, so that
/// what the training needs of the CPU and the disk is left to it. Dropping this ends the thread after
/// the block it is at.
#[derive(Debug)]
pub struct Hashing {
    source: Weak<dyn Source>,
    asked: Arc<Asked>,
    answer: Receiver<Result<Hashed, DataError>>,
    thread: Option<JoinHandle<()>>,
}

/// The hashes of the blocks that were to be hashed, and the content where these are all blocks.
type Hashed = (Vec<Option<[u8; 32]>>, Option<Content>);

/// What the thread is asked to do.
#[derive(Debug, Default)]
struct Asked {
    /// Whether it should not rest.
    hurry: AtomicBool,
    /// Whether it should end.
    stop: AtomicBool,
}

impl Hashing {
    /// Starts to hash all samples of a source.
    ///
    /// # Errors
    /// There is no thread.
    pub fn start(source: Arc<dyn Source>) -> Result<Self, DataError> {
        Self::start_some(source, |_, _| true)
    }

    /// Starts to hash the blocks of a source for which `which` is true, see [`Content::some_blocks`].
    ///
    /// # Errors
    /// There is no thread.
    pub fn start_some(
        source: Arc<dyn Source>,
        which: impl Fn(u64, u64) -> bool + Send + 'static,
    ) -> Result<Self, DataError> {
        let asked = Arc::new(Asked::default());
        let (give, answer) = bounded(1);
        let weak = Arc::downgrade(&source);
        let own = asked.clone();
        let work = move || {
            let result = hash(&*source, &which, &own);
            // The source, which may be large, goes before the answer comes.
            drop(source);
            if let Some(result) = result.transpose() {
                let _ = give.send(result);
            }
        };
        let spawned = thread::Builder::new().name("hash of the data".into()).spawn(work);
        Ok(Self { source: weak, asked, answer, thread: Some(spawned.map_err(DataError::other)?) })
    }

    /// Returns whether this is the hashing of a source, and not of another with the same samples.
    pub fn is_of(&self, source: &Arc<dyn Source>) -> bool {
        std::ptr::addr_eq(self.source.as_ptr(), Arc::as_ptr(source))
    }

    /// Returns the source, if anybody else still has it.
    pub fn source(&self) -> Option<Arc<dyn Source>> {
        self.source.upgrade()
    }

    /// Has the thread not rest any more, because something waits for its answer.
    pub fn hurry(&self) {
        self.asked.hurry.store(true, Ordering::Relaxed);
        self.thread.iter().for_each(|thread| thread.thread().unpark());
    }

    /// Waits at most the time `most` for the content, and returns it once. Returns `None` if it is not known
    /// by then, and always if only some blocks are hashed. While this waits, the thread does not rest.
    ///
    /// # Errors
    /// The content could not be read.
    pub fn wait(&self, most: Duration) -> Result<Option<Content>, DataError> {
        Ok(self.hashed(most)?.and_then(|(_, content)| content))
    }

    /// Returns the hashes of all blocks, once, if they are known within a time: `None` for a block that was
    /// not to be hashed. While this waits, the thread does not rest.
    ///
    /// # Errors
    /// The content could not be read.
    pub fn wait_blocks(&self, most: Duration) -> Result<Option<Vec<Option<[u8; 32]>>>, DataError> {
        Ok(self.hashed(most)?.map(|(blocks, _)| blocks))
    }

    fn hashed(&self, most: Duration) -> Result<Option<Hashed>, DataError> {
        let hurries = self.asked.hurry.swap(!most.is_zero(), Ordering::Relaxed);
        if let Some(thread) = self.thread.as_ref().filter(|_| !most.is_zero()) {
            thread.thread().unpark();
        }
        let answer = self.answer.recv_timeout(most);
        self.asked.hurry.store(hurries, Ordering::Relaxed);
        match answer {
            Ok(result) => result.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(DataError::other("the data are hashed no more")),
        }
    }
}

/// Hashes a source until it is done or asked to stop.
fn hash(
    source: &dyn Source,
    which: &dyn Fn(u64, u64) -> bool,
    asked: &Asked,
) -> Result<Option<Hashed>, DataError> {
    let mut since = Instant::now();
    let blocks = Content::some_blocks(source, which, || {
        let until = Instant::now() + since.elapsed() * REST;
        while !asked.hurry.load(Ordering::Relaxed) && !asked.stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now >= until {
                break;
            }
            // Whoever waits, or wants this to end, unparks the thread.
            thread::park_timeout(until - now);
        }
        since = Instant::now();
        !asked.stop.load(Ordering::Relaxed)
    })?;
    let content = |blocks: &Vec<_>| Content::of_blocks(source, blocks.clone());
    Ok(blocks.map(|blocks| {
        let content = content(&blocks);
        (blocks, content)
    }))
}

impl Drop for Hashing {
    fn drop(&mut self) {
        self.asked.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that is within a block of a slow source ends by itself.
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}
