//! A part of a run's identity: one hash, and entries in short, by which a difference is named.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The most entries of a part. Entries beyond it are joined, several neighbours to one.
const MOST_ENTRIES: usize = 256;
/// The most characters of an entry's text.
const MOST_TEXT: usize = 120;
/// The most differences that are named one by one.
const MOST_NAMED: usize = 4;

/// A part of a run's identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    /// The hash of the whole part, as hexadecimal digits. It is empty where the part is not known.
    pub sha256: String,
    /// What the part consists of, in order.
    pub entries: Vec<Entry>,
}

/// A piece of a part that has a name, such as a layer or a setting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// What readers call it.
    pub name: String,
    /// Its value in short.
    pub text: String,
    /// The first digits of a hash of the piece, where the text does not say everything.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
}

impl Part {
    /// Makes a part of settings, whose text says everything.
    pub fn of_settings(settings: impl IntoIterator<Item = (String, String)>) -> Self {
        let entry = |(name, text): (String, String)| Entry { name, text, hash: String::new() };
        let entries: Vec<Entry> = settings.into_iter().map(entry).collect();
        let mut hash = Sha256::new();
        entries
            .iter()
            .for_each(|entry| [&entry.name, &entry.text].iter().for_each(|text| add(&mut hash, text)));
        Self::new(&hash.finalize(), entries)
    }

    /// Makes a part of its hash and its entries, whose number is limited.
    pub fn new(sha256: &[u8], entries: Vec<Entry>) -> Self {
        let group = entries.len().div_ceil(MOST_ENTRIES).max(1);
        let entries = if group == 1 { entries } else { entries.chunks(group).map(joined).collect() };
        Self { sha256: hex(sha256), entries: entries.into_iter().map(Entry::shortened).collect() }
    }

    /// Returns what differs from a saved part, each difference as a sentence: the `kind` names the entries.
    pub fn differences(&self, saved: &Self, kind: &str) -> Vec<String> {
        if self.sha256 == saved.sha256 {
            return Vec::new();
        }
        let own: BTreeMap<&str, &Entry> = self.entries.iter().map(|entry| (&*entry.name, entry)).collect();
        let old: BTreeMap<&str, &Entry> = saved.entries.iter().map(|entry| (&*entry.name, entry)).collect();
        let is_new = |now: &Entry| !old.contains_key(&*now.name);
        let gone = saved.entries.iter().enumerate().filter_map(|(at, before)| match own.get(&*before.name) {
            Some(now) if *now == before => None,
            Some(now) => Some(changed(kind, before, now)),
            // One in the same place, such as another activation, stands for it.
            None => Some(match self.entries.get(at).filter(|now| is_new(now)) {
                Some(now) => changed(kind, before, now),
                None => format!("{kind}{} of the run is {}, and is not here", before.name, before.text),
            }),
        });
        let is_told =
            |at: usize| saved.entries.get(at).is_some_and(|before| !own.contains_key(&*before.name));
        let new = self.entries.iter().enumerate().filter(|(at, now)| is_new(now) && !is_told(*at));
        let new = new.map(|(_, now)| format!("{kind}{} is {}, and is not in the run", now.name, now.text));
        let mut all: Vec<String> = gone.chain(new).collect();
        if all.is_empty() {
            all.push(format!("{kind}order or the connections differ"));
        }
        let more = all.len().saturating_sub(MOST_NAMED);
        all.truncate(MOST_NAMED);
        if more > 0 {
            all.push(format!("{more} more differ"));
        }
        all
    }
}

impl Entry {
    fn shortened(mut self) -> Self {
        if let Some((at, _)) = self.text.char_indices().nth(MOST_TEXT) {
            let digits = hex(&Sha256::digest(self.text.as_bytes()));
            self.text.truncate(at);
            self.text.push_str(" ...");
            self.hash = format!("{}{}", self.hash, &digits[..16]);
        }
        self
    }
}

/// Says how an entry changed, or which one stands in its place.
fn changed(kind: &str, before: &Entry, now: &Entry) -> String {
    let name = &before.name;
    if before.text == now.text {
        return format!("{kind}{name} of the run is another ({}) than this one", before.text);
    }
    format!("{kind}{name} of the run is {}, not {}", before.text, now.text)
}

/// Joins neighbours to one entry.
fn joined(entries: &[Entry]) -> Entry {
    let mut hash = Sha256::new();
    for Entry { name, text, hash: own } in entries {
        [name, text, own].into_iter().for_each(|text| add(&mut hash, text));
    }
    let name = |entry: Option<&Entry>| entry.map(|entry| entry.name.clone()).unwrap_or_default();
    Entry {
        name: format!("{} to {}", name(entries.first()), name(entries.last())),
        text: format!("{} entries", entries.len()),
        hash: hex(&hash.finalize())[..16].to_owned(),
    }
}

/// Adds a text to a hash, after its length.
pub(crate) fn add(hash: &mut Sha256, text: &str) {
    hash.update((text.len() as u64).to_le_bytes());
    hash.update(text);
}

/// Whether a text is so many hexadecimal digits as [`hex`] writes them.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
