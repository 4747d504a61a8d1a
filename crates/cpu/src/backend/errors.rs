//! Error scopes, each of which belongs to the thread that opened it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use wgpu::{Error, ErrorFilter, UncapturedErrorHandler};

/// Where the errors of a device go.
#[derive(Default)]
pub(super) struct Errors {
    scopes: Mutex<HashMap<ThreadId, Vec<Scope>>>,
    handler: Mutex<Option<Arc<dyn UncapturedErrorHandler>>>,
    /// The first error that came before there was a handler.
    unheard: Mutex<Option<Error>>,
}

struct Scope {
    filter: ErrorFilter,
    error: Option<Error>,
}

/// A message as the source of an error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Message(String);

impl std::fmt::Debug for Errors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Errors")
    }
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Errors {
    /// Reports that something was asked for that is not valid, or not supported.
    pub fn invalid(&self, what: impl Into<String>) {
        let description = what.into();
        let source = Box::new(Message(description.clone()));
        self.report(ErrorFilter::Validation, Error::Validation { source, description });
    }

    /// Reports that there is no memory.
    pub fn out_of_memory(&self, what: impl Into<String>) {
        let source = Box::new(Message(what.into()));
        self.report(ErrorFilter::OutOfMemory, Error::OutOfMemory { source });
    }

    fn report(&self, kind: ErrorFilter, error: Error) {
        let mut scopes = hold(&self.scopes);
        let own = scopes.get_mut(&std::thread::current().id());
        if let Some(scope) = own.and_then(|own| own.iter_mut().rev().find(|scope| scope.filter == kind)) {
            scope.error.get_or_insert(error);
            return;
        }
        drop(scopes);
        let handler = hold(&self.handler).clone();
        match handler {
            Some(handler) => handler(error),
            None => {
                hold(&self.unheard).get_or_insert(error);
            }
        }
    }

    pub fn handle(&self, handler: Arc<dyn UncapturedErrorHandler>) {
        *hold(&self.handler) = Some(Arc::clone(&handler));
        let unheard = hold(&self.unheard).take();
        if let Some(error) = unheard {
            handler(error);
        }
    }

    /// Opens a scope. Returns its number.
    pub fn push(&self, filter: ErrorFilter) -> u32 {
        let mut scopes = hold(&self.scopes);
        let own = scopes.entry(std::thread::current().id()).or_default();
        own.push(Scope { filter, error: None });
        own.len() as u32 - 1
    }

    /// Closes a scope and those inside of it. Returns its error.
    pub fn pop(&self, index: u32) -> Option<Error> {
        let mut scopes = hold(&self.scopes);
        let thread = std::thread::current().id();
        let own = scopes.get_mut(&thread)?;
        let closed = own.split_off((index as usize).min(own.len()));
        if own.is_empty() {
            scopes.remove(&thread);
        }
        closed.into_iter().next()?.error
    }
}
