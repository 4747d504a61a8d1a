//! Reading WAV files: numbers of 8 to 32 bits, and floats.

/// A waveform, its channels interleaved.
#[derive(Debug, PartialEq)]
pub(super) struct Wave {
    pub rate: u32,
    pub channels: usize,
    pub values: Vec<f32>,
}

/// How a value is stored.
#[derive(Clone, Copy, Debug)]
enum Coding {
    U8,
    I16,
    I24,
    I32,
    F32,
    F64,
}

/// Reads a file. Whole numbers become -1 to 1. The error says what is wrong.
pub(super) fn decode(file: &[u8]) -> Result<Wave, String> {
    match (file.get(..4), file.get(8..12)) {
        (Some(b"RIFF"), Some(b"WAVE")) => {}
        (Some(b"fLaC"), _) => return Err("a FLAC file, not WAV".into()),
        (Some(b"OggS"), _) => return Err("an Ogg file, not WAV".into()),
        (Some(b"RF64"), _) => return Err("an RF64 file of more than 4 GiB".into()),
        _ => return Err("not a WAV file".into()),
    }
    let (mut at, mut format) = (12, None);
    while let Some(head) = file.get(at..at + 8) {
        let declared = u32_at(head, 4).unwrap_or(0) as usize;
        let rest = &file[at + 8..];
        // A program that wrote to a pipe could not go back to set the size.
        let is_open = head.starts_with(b"data") && declared == u32::MAX as usize;
        let size = if is_open { rest.len() } else { declared };
        let name = String::from_utf8_lossy(&head[..4]).into_owned();
        let chunk = rest.get(..size).ok_or_else(|| {
            format!("cut off: the chunk {name:?} has {size} bytes, and {} are there", rest.len())
        })?;
        match &head[..4] {
            b"fmt " => format = Some(format_of(chunk)?),
            b"data" => {
                let (coding, rate, channels) = format.ok_or("no format stands before the data")?;
                return wave(chunk, coding, rate, channels);
            }
            _ => {}
        }
        // Chunks start at even places.
        at += 8 + size + size % 2;
    }
    Err("no data".into())
}

/// Returns the coding, the rate and the number of channels that a format chunk declares.
fn format_of(chunk: &[u8]) -> Result<(Coding, u32, usize), String> {
    let short = || format!("a format of {} bytes", chunk.len());
    let tag = u16_at(chunk, 0).ok_or_else(short)?;
    let channels = usize::from(u16_at(chunk, 2).ok_or_else(short)?);
    let rate = u32_at(chunk, 4).ok_or_else(short)?;
    let align = usize::from(u16_at(chunk, 12).ok_or_else(short)?);
    let bits = u16_at(chunk, 14).ok_or_else(short)?;
    // The extensible format has the tag proper at the start of a longer name.
    let tag = if tag == 0xfffe { u16_at(chunk, 24).ok_or_else(short)? } else { tag };
    let (coding, bytes) = match (tag, bits) {
        (1, 8) => (Coding::U8, 1),
        (1, 16) => (Coding::I16, 2),
        (1, 24) => (Coding::I24, 3),
        (1, 32) => (Coding::I32, 4),
        (3, 32) => (Coding::F32, 4),
        (3, 64) => (Coding::F64, 8),
        _ => return Err(format!("coding {tag} of {bits} bits: convert it to PCM or floats")),
    };
    if channels == 0 || rate == 0 || align != bytes * channels {
        return Err(format!("{channels} channels of {bits} bits in {align} bytes, {rate} a second"));
    }
    Ok((coding, rate, channels))
}

fn wave(data: &[u8], coding: Coding, rate: u32, channels: usize) -> Result<Wave, String> {
    let values = match coding {
        Coding::U8 => collected(data.iter().map(|&x| (f32::from(x) - 128.0) / 128.0)),
        Coding::I16 => {
            let value = |&x: &[u8; 2]| f32::from(i16::from_le_bytes(x)) / 32_768.0;
            collected(data.as_chunks::<2>().0.iter().map(value))
        }
        Coding::I24 => {
            let value = |&[a, b, c]: &[u8; 3]| i32::from_le_bytes([0, a, b, c]) as f32 / 2_147_483_648.0;
            collected(data.as_chunks::<3>().0.iter().map(value))
        }
        Coding::I32 => {
            let value = |&x: &[u8; 4]| (f64::from(i32::from_le_bytes(x)) / 2_147_483_648.0) as f32;
            collected(data.as_chunks::<4>().0.iter().map(value))
        }
        Coding::F32 => collected(data.as_chunks::<4>().0.iter().map(|&x| f32::from_le_bytes(x))),
        Coding::F64 => collected(data.as_chunks::<8>().0.iter().map(|&x| f64::from_le_bytes(x) as f32)),
    }?;
    let width = match coding {
        Coding::U8 => 1,
        Coding::I16 => 2,
        Coding::I24 => 3,
        Coding::I32 | Coding::F32 => 4,
        Coding::F64 => 8,
    };
    if !data.len().is_multiple_of(width * channels) {
        return Err(format!("{} bytes are not a whole number of values of {channels} channels", data.len()));
    }
    if values.is_empty() {
        return Err("no values".into());
    }
    Ok(Wave { rate, channels, values })
}

/// Collects values. That memory does not suffice is an error.
pub(super) fn collected(values: impl ExactSizeIterator<Item = f32>) -> Result<Vec<f32>, String> {
    let mut all = Vec::new();
    all.try_reserve_exact(values.len()).map_err(|_| format!("no memory for {} values", values.len()))?;
    all.extend(values);
    Ok(all)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
