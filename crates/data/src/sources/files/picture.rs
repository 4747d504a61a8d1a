//! Decoding JPEG and PNG files to pixels, with the crates zune-jpeg and png.

use std::any::Any;
use std::fmt::Display;
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::bytes::DEFLATE_LIMIT;
use super::segments::without_bytes_between;
use crate::DataError;
use crate::sample::check::panic_message;

/// The pixels of a picture, row by row, channels last.
pub(crate) struct Picture {
    pub height: usize,
    pub width: usize,
    pub pixels: Vec<u8>,
}

/// The most pixels that a byte of a JPEG file can hold: a block of 64 takes at least one bit, in the first
/// pass of a progressive file.
const JPEG_PIXELS_A_BYTE: u64 = 64 * 8;

/// Decodes to one channel (luminance) or three (red, green, blue). Transparency is dropped.
///
/// A picture larger than the file could hold, given its size, is refused before the pixels are allocated.
/// So is one that `allow` refuses, which is asked with the most bytes that decoding takes at once for each
/// pixel, without the file, and with height and width.
pub(crate) fn decode(
    file: &[u8],
    channels: usize,
    allow: impl Fn(u64, [usize; 2]) -> Result<(), DataError>,
) -> Result<Picture, DataError> {
    let run = AssertUnwindSafe(|| match file {
        [0xff, 0xd8, ..] => jpeg(file, channels, &allow),
        [0x89, b'P', b'N', b'G', ..] => png(file, channels, &allow),
        _ => other(file, channels, &allow),
    });
    // A panic of a decoder is one bad file, not the end of the run.
    let panicked =
        |panic: Box<dyn Any + Send>| wrong(format!("the decoder panicked: {}", panic_message(&*panic)));
    catch_unwind(run).unwrap_or_else(|panic| Err(panicked(panic)))
}

/// Decodes the formats of the feature `more-pictures`.
#[cfg(feature = "more-pictures")]
fn other(file: &[u8], channels: usize, allow: Allow<'_>) -> Result<Picture, DataError> {
    super::more_pictures::decode(file, channels, allow)
}

#[cfg(not(feature = "more-pictures"))]
fn other(file: &[u8], _: usize, _: Allow<'_>) -> Result<Picture, DataError> {
    Err(match file {
        [b'R', b'I', b'F', b'F', ..] | [b'B', b'M', ..] | [b'G', b'I', b'F', ..] => {
            wrong("WebP, BMP, GIF and TIFF files need the feature more-pictures")
        }
        [b'I', b'I', b'*', 0, ..] | [b'M', b'M', 0, b'*', ..] => {
            wrong("WebP, BMP, GIF and TIFF files need the feature more-pictures")
        }
        _ => wrong("neither a JPEG nor a PNG file"),
    })
}

/// Says whether a picture of a height and a width may take this many bytes for each pixel.
pub(super) type Allow<'a> = &'a dyn Fn(u64, [usize; 2]) -> Result<(), DataError>;

pub(super) fn wrong(what: impl Display) -> DataError {
    DataError::other(format!("decode: {what}"))
}

fn jpeg(file: &[u8], channels: usize, allow: Allow<'_>) -> Result<Picture, DataError> {
    let space = if channels == 1 { ColorSpace::Luma } else { ColorSpace::RGB };
    let most = usize::from(u16::MAX);
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(most)
        .set_max_height(most)
        .jpeg_set_out_colorspace(space);
    let file = &*without_bytes_between(file);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    let broken = |error| wrong(format!("JPEG: {error}"));
    decoder.decode_headers().map_err(broken)?;
    let (width, height) = decoder.dimensions().ok_or_else(|| wrong("JPEG: no dimensions"))?;
    holds(file, width as u64 * height as u64 / JPEG_PIXELS_A_BYTE, (height, width))?;
    // Beside the pixels there are the coefficients of a progressive file: 16 bits for each component. What
    // the header says in its tenth byte is not known here, so it is four components.
    let pixel = channels as u64 + 8;
    allow(pixel, [height, width])?;
    // The decoder allocates in ways that cannot fail, so it is asked here whether there is as much.
    let takes = usize::try_from(pixel).ok().and_then(|pixel| pixel.checked_mul(height)?.checked_mul(width));
    let no_memory = || wrong(format!("JPEG: no memory for {width} x {height} pixels"));
    Vec::<u8>::new().try_reserve_exact(takes.ok_or_else(no_memory)?).map_err(|_| no_memory())?;
    let pixels = decoder.decode().map_err(broken)?;
    if pixels.len() != width * height * channels {
        return Err(wrong(format!("JPEG: {} values for {width} x {height} pixels", pixels.len())));
    }
    Ok(Picture { height, width, pixels })
}

fn png(file: &[u8], channels: usize, allow: Allow<'_>) -> Result<Picture, DataError> {
    let broken = |error| wrong(format!("PNG: {error}"));
    // This limits the decoder's own memory. The pixels are allocated here.
    let limits = png::Limits { bytes: 64 << 20 };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(file), limits);
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(broken)?;
    let info = reader.info();
    let (height, width) = (info.height as usize, info.width as usize);
    let packed = info.raw_row_length() as u64 * u64::from(info.height);
    holds(file, packed / DEFLATE_LIMIT, (height, width))?;
    let size = reader.output_buffer_size().ok_or_else(|| wrong("PNG: too large"))?;
    // Both the stored channels and those that are asked for are held at once.
    allow(reader.output_color_type().0.samples() as u64 + channels as u64, [height, width])?;
    let mut pixels = Vec::new();
    pixels.try_reserve_exact(size).map_err(|_| wrong("PNG: no memory for the pixels"))?;
    pixels.resize(size, 0);
    let frame = reader.next_frame(&mut pixels).map_err(broken)?;
    reader.finish().map_err(broken)?;
    pixels.truncate(frame.buffer_size());
    let stored = frame.color_type.samples();
    if pixels.len() != height * width * stored {
        return Err(wrong(format!("PNG: {} values for {width} x {height} pixels", pixels.len())));
    }
    let pixels = convert(pixels, stored, channels).ok_or_else(|| wrong("PNG: no memory for the pixels"))?;
    Ok(Picture { height, width, pixels })
}

/// Checks that a file is large enough for a picture that needs at least `least` bytes, and that the picture
/// has pixels.
fn holds(file: &[u8], least: u64, (height, width): (usize, usize)) -> Result<(), DataError> {
    if least <= file.len() as u64 && height > 0 && width > 0 {
        return Ok(());
    }
    Err(wrong(format!("{} bytes cannot hold {width} x {height} pixels", file.len())))
}

/// Converts from 1 to 4 stored channels (grey, grey and alpha, RGB, RGB and alpha) to one or three. Returns
/// `None` where memory does not suffice.
pub(super) fn convert(pixels: Vec<u8>, stored: usize, channels: usize) -> Option<Vec<u8>> {
    let grey = |p: &[u8]| match *p {
        // This is the luminance of Rec. 601, rounded.
        [r, g, b, ..] => ((299 * u32::from(r) + 587 * u32::from(g) + 114 * u32::from(b) + 500) / 1000) as u8,
        [grey, ..] => grey,
        [] => 0,
    };
    if let (1, 1) | (3, 3) = (stored, channels) {
        return Some(pixels);
    }
    let mut converted = Vec::new();
    converted.try_reserve_exact(pixels.len() / stored * channels).ok()?;
    let pixels = pixels.chunks_exact(stored);
    match (stored, channels) {
        (1 | 2, 3) => converted.extend(pixels.flat_map(|p| [p[0]; 3])),
        (_, 3) => converted.extend(pixels.flat_map(|p| [p[0], p[1], p[2]])),
        _ => converted.extend(pixels.map(grey)),
    }
    Some(converted)
}
