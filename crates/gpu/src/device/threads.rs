//! Work that several threads share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, Builder};

/// Runs `work` on the calling thread and on more threads, `threads` in all. If the system refuses to start
/// some of them, fewer run. Therefore `work` must take its parts from a list that all threads share.
///
/// `builder` configures each new thread. Returns the result of each thread, or `None` for one that panicked.
pub fn on_threads<T: Send>(
    threads: usize,
    builder: &dyn Fn() -> Builder,
    work: &(dyn Fn() -> T + Sync),
) -> Vec<Option<T>> {
    thread::scope(|scope| {
        let more = (1..threads).map_while(|_| builder().spawn_scoped(scope, work).ok());
        let running: Vec<_> = more.collect();
        let own = catch_unwind(AssertUnwindSafe(work)).ok();
        std::iter::once(own).chain(running.into_iter().map(|thread| thread.join().ok())).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// No system has memory for such a stack.
    fn refused() -> Builder {
        Builder::new().stack_size(usize::MAX / 2)
    }

    #[test]
    fn parts_that_no_thread_takes_are_done_by_the_caller() {
        for (builder, threads) in [(&Builder::new as &dyn Fn() -> Builder, 4), (&refused, 1)] {
            let parts = Mutex::new(0..100);
            let work = || {
                let next = || parts.lock().unwrap().next();
                std::iter::from_fn(next).collect::<Vec<i32>>()
            };
            let done = on_threads(4, builder, &work);
            assert_eq!(done.len(), threads);
            let mut all: Vec<i32> = done.into_iter().flat_map(Option::unwrap).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..100));
        }
    }

    #[test]
    fn a_thread_that_panics_has_no_result() {
        for threads in [1, 3] {
            let done = on_threads(threads, &Builder::new, &|| std::panic::resume_unwind(Box::new(())));
            assert_eq!(done, vec![None::<()>; threads]);
        }
    }
}
