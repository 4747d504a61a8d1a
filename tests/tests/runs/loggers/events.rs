//! A reader of event files that shares nothing with their writer.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// What stands under a tag at a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// The bits of a number.
    Scalar(u32),
    /// The text of a tensor, and the plugin that shows it.
    Tensor { plugin: String, text: String },
    /// The number of values and the sum of the buckets.
    Histogram { count: f64, in_buckets: f64 },
    /// The width, the height and the encoded image.
    Image { width: u64, height: u64, png: Vec<u8> },
}

/// The values of a run by tag and step. A value that comes again for a step is kept beside the first.
pub type Run = BTreeMap<String, Vec<(u64, Value)>>;

/// Reads all event files of a directory in the order of their names. A file may end within a record.
pub fn read(dir: &Path) -> Run {
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut run = Run::new();
    for path in paths {
        assert!(path.to_str().unwrap().contains("tfevents"), "{}", path.display());
        let bytes = fs::read(&path).unwrap();
        for (i, event) in records(&bytes).into_iter().enumerate() {
            let event = fields(event);
            assert_eq!(event.text(3), (i == 0).then(|| "brain.Event:2".to_owned()));
            add(&mut run, &event);
        }
    }
    run
}

/// Returns the scalars of a tag as numbers of f32 by step.
pub fn scalars(run: &Run, tag: &str) -> Vec<(u64, u32)> {
    let values = run.get(tag).unwrap_or_else(|| panic!("{tag}: only {:?}", run.keys()));
    let scalar = |(step, value): &(u64, Value)| match value {
        Value::Scalar(bits) => (*step, *bits),
        other => panic!("{tag}: {other:?}"),
    };
    values.iter().map(scalar).collect()
}

/// Adds an event to a run. `SessionLog.START` drops what came before of later steps.
fn add(run: &mut Run, event: &Fields<'_>) {
    let step = event.integer(2).unwrap_or(0);
    assert!(event.double(1).unwrap() > 1.6e9, "a time of this century");
    if let Some(session) = event.message(7) {
        assert_eq!(session.integer(1), Some(1));
        run.values_mut().for_each(|values| values.retain(|(at, _)| *at < step));
        run.retain(|_, values| !values.is_empty());
    }
    let Some(summary) = event.message(5) else { return };
    for value in summary.all(1) {
        let value = fields(value);
        let tag = value.text(1).unwrap();
        run.entry(tag).or_default().push((step, decoded(&value)));
    }
}

fn decoded(value: &Fields<'_>) -> Value {
    if let Some(bits) = value.float(2) {
        return Value::Scalar(bits);
    }
    if let Some(histogram) = value.message(5) {
        let doubles = |field| -> Vec<f64> {
            let bytes = histogram.all(field)[0];
            bytes.chunks(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
        };
        assert_eq!(doubles(6).len(), doubles(7).len());
        return Value::Histogram { count: histogram.double(3).unwrap(), in_buckets: doubles(7).iter().sum() };
    }
    if let Some(image) = value.message(4) {
        let [height, width] = [1, 2].map(|field| image.integer(field).unwrap());
        return Value::Image { width, height, png: image.all(4)[0].to_vec() };
    }
    let plugin = value.message(9).unwrap().message(1).unwrap();
    let tensor = value.message(8).unwrap();
    let text = tensor.text(8).unwrap_or_else(|| String::from_utf8_lossy(plugin.all(2)[0]).into_owned());
    Value::Tensor { plugin: plugin.text(1).unwrap(), text }
}

/// Cuts a file into records, and compares their checks. The last record may be torn.
fn records(mut bytes: &[u8]) -> Vec<&[u8]> {
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let mut records = Vec::new();
    while bytes.len() >= 12 {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(number(&bytes[8..12]), masked(&bytes[..8]));
        let Some(record) = bytes.get(12..12 + length) else { break };
        let Some(check) = bytes.get(12 + length..16 + length) else { break };
        assert_eq!(number(check), masked(record));
        records.push(record);
        bytes = &bytes[16 + length..];
    }
    records
}

/// The masked CRC-32C of some bytes, bit by bit.
fn masked(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    let crc = !crc;
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The fields of a message: their numbers and their bytes. A varint is eight bytes here.
struct Fields<'a>(Vec<(u64, Vec<u8>, &'a [u8])>);

fn fields(mut bytes: &[u8]) -> Fields<'_> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => {
                let value = varint(&mut bytes);
                all.push((key >> 3, value.to_le_bytes().to_vec(), &bytes[..0]));
                continue;
            }
            1 => 8,
            5 => 4,
            2 => varint(&mut bytes) as usize,
            other => panic!("wire type {other}"),
        };
        let (content, rest) = bytes.split_at(length);
        all.push((key >> 3, content.to_vec(), content));
        bytes = rest;
    }
    Fields(all)
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for i in 0.. {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            break;
        }
    }
    value
}

impl<'a> Fields<'a> {
    fn first(&self, field: u64) -> Option<&[u8]> {
        self.0.iter().find(|(number, ..)| *number == field).map(|(_, content, _)| content.as_slice())
    }

    fn all(&self, field: u64) -> Vec<&'a [u8]> {
        self.0.iter().filter(|(number, ..)| *number == field).map(|(.., content)| *content).collect()
    }

    fn integer(&self, field: u64) -> Option<u64> {
        self.first(field).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
    }

    fn double(&self, field: u64) -> Option<f64> {
        self.first(field).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()))
    }

    fn float(&self, field: u64) -> Option<u32> {
        self.first(field).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()))
    }

    fn text(&self, field: u64) -> Option<String> {
        self.first(field).map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
    }

    fn message(&self, field: u64) -> Option<Fields<'a>> {
        self.all(field).first().map(|content| fields(content))
    }
}
