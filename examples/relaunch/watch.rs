//! Hosts are asked while a run goes on: those that are not in it, whether they answer again, and those that
//! are, where no rank on this machine shows whether the run still does.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::hosts::Question;
use crate::plan::{Plan, plan};

/// The longest sleep before a thread sees that it is to end.
const POLL: Duration = Duration::from_millis(200);

/// What is known of the hosts while a run goes on. The thread that asks ends soon after this is dropped.
pub struct Watch(Arc<Seen>);

#[derive(Default)]
struct Seen {
    over: AtomicBool,
    more: AtomicBool,
    lost: AtomicBool,
}

impl Watch {
    /// Begins to ask. `times` has the time between two questions, and how long a host of the run may be
    /// silent before the run counts as lost; `None` where this machine's ranks show that. `of` has the
    /// hostfile and the arguments of mpirun.
    pub fn begin(
        question: Option<Question>,
        of: (PathBuf, Vec<String>),
        used: &Plan,
        times: (Duration, Option<Duration>),
    ) -> Self {
        let seen = Arc::new(Seen::default());
        let (every, silent) = times;
        let Some(question) = question.filter(|_| !used.left_out.is_empty() || silent.is_some()) else {
            return Self(seen);
        };
        let (own, names) = (Arc::clone(&seen), used.hosts.iter().map(|host| host.name.clone()).collect());
        std::thread::spawn(move || ask(&own, &question, of, &(names, every, silent)));
        Self(seen)
    }

    /// Returns whether hosts that are not in the run can be used again, with all that are.
    pub fn has_more(&self) -> bool {
        self.0.more.load(Ordering::SeqCst)
    }

    /// Returns whether a host of the run has been silent for too long.
    pub fn is_lost(&self) -> bool {
        self.0.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::SeqCst);
    }
}

/// Asks the hosts until the run is over.
fn ask(
    seen: &Seen,
    question: &Question,
    of: (PathBuf, Vec<String>),
    (used, every, silent): &(Vec<String>, Duration, Option<Duration>),
) {
    let mut silent_since = None;
    loop {
        let since = Instant::now();
        while since.elapsed() < *every {
            if seen.over.load(Ordering::SeqCst) {
                return;
            }
            std::thread::sleep(POLL);
        }
        // A hostfile that cannot be read is reported before the next start.
        let Ok(now) = plan(&of.0, Some(question), &of.1) else { continue };
        let answers = |name: &String| now.hosts.iter().any(|host| host.name == *name);
        if used.iter().all(answers) {
            silent_since = None;
            if now.hosts.len() > used.len() {
                seen.more.store(true, Ordering::SeqCst);
            }
        } else {
            let since = *silent_since.get_or_insert(since);
            if silent.is_some_and(|silent| since.elapsed() > silent) {
                seen.lost.store(true, Ordering::SeqCst);
            }
        }
    }
}
