//! What a subscriber of the crate `tracing` hears of a run.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use unisono::Saving;

use super::{build, builder, fit};

/// The name or message, the level and the fields of an event or a span.
type Kept = (String, Level, BTreeMap<String, String>);

/// A subscriber that keeps each event and each span of one thread: its name or message, its level and its
/// fields. It is the subscriber of the whole process, as a place in the code that another thread reaches
/// without one may be taken to have none.
#[derive(Clone)]
struct Heard {
    thread: ThreadId,
    all: Arc<Mutex<Vec<Kept>>>,
    targets: Arc<Mutex<Vec<String>>>,
    spans: Arc<AtomicU64>,
    /// The number of spans that are entered now.
    depth: Arc<AtomicU64>,
}

/// The fields of an event or a span.
#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().into(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }
}

impl Heard {
    fn new() -> Self {
        Self {
            thread: thread::current().id(),
            all: Arc::default(),
            targets: Arc::default(),
            spans: Arc::default(),
            depth: Arc::default(),
        }
    }

    fn is_here(&self) -> bool {
        thread::current().id() == self.thread
    }

    fn keep(&self, metadata: &Metadata<'_>, mut fields: Fields) {
        if !self.is_here() {
            return;
        }
        let name = fields.0.remove("message").unwrap_or_else(|| metadata.name().to_owned());
        self.targets.lock().unwrap().push(metadata.target().to_owned());
        self.all.lock().unwrap().push((name, *metadata.level(), fields.0));
    }

    /// Returns the fields of the spans of this name, or of the events with this message.
    fn of(&self, name: &str, level: Level) -> Vec<BTreeMap<String, String>> {
        let all = self.all.lock().unwrap();
        let of = all.iter().filter(|(found, ..)| found == name);
        of.inspect(|(_, found, _)| assert_eq!(*found, level, "{name}")).map(|(.., f)| f.clone()).collect()
    }
}

impl Subscriber for Heard {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        self.keep(span.metadata(), fields);
        Id::from_u64(self.spans.fetch_add(1, Ordering::SeqCst) + 1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.keep(event.metadata(), fields);
    }
    fn enter(&self, _: &Id) {
        self.depth.fetch_add(u64::from(self.is_here()), Ordering::SeqCst);
    }
    fn exit(&self, _: &Id) {
        self.depth.fetch_sub(u64::from(self.is_here()), Ordering::SeqCst);
    }
}

#[test]
fn a_subscriber_hears_of_steps_saves_and_lost_replicas() {
    let dir = tempfile::tempdir().unwrap();
    let heard = Heard::new();
    tracing::subscriber::set_global_default(heard.clone()).unwrap();
    fail::cfg("spans:replica-1:step-2", "return(lose)").unwrap();
    let mut trainer = build(builder().fault_scope("spans:"));
    trainer.save_to(Saving::new(dir.path())).unwrap();
    let history = fit(&mut trainer, 2);
    let steps = heard.of("step", Level::DEBUG);
    assert!(steps.len() == 10 && steps[9]["step"] == "9", "{steps:?}");
    let done = heard.of("step done", Level::DEBUG);
    assert!(done.len() == 10 && done[0]["learning_rate"] == "0.01", "{done:?}");
    let epochs = heard.of("epoch done", Level::INFO);
    let losses: Vec<&String> = epochs.iter().map(|epoch| &epoch["loss"]).collect();
    assert_eq!(
        losses,
        [0, 1].map(|i: usize| format!("{:?}", history[i].train.loss)).iter().collect::<Vec<_>>()
    );
    let left = heard.of("replica left", Level::WARN);
    assert!(left.len() == 1 && left[0]["why"].contains("replica 1"), "{left:?}");
    assert!(heard.of("save", Level::INFO).iter().any(|save| save["steps"] == "10"));
    assert!(!heard.of("checkpoint saved", Level::INFO).is_empty());
    assert!(heard.targets.lock().unwrap().iter().all(|target| target == "unisono"));
    assert_eq!(heard.depth.load(Ordering::SeqCst), 0);
}
