//! Decoding WebP, BMP, GIF and TIFF files to pixels, with the crate image.

use std::io::Cursor;

use image::{ColorType, DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};

use super::picture::{Allow, Picture, convert, wrong};
use crate::DataError;

/// The most bytes of a decoder's own memory, beside the pixels.
const OWN: u64 = 64 << 20;

/// Decodes to one channel (luminance) or three (red, green, blue). Transparency is dropped, and of an
/// animation the first picture is taken. Numbers of 16 bits or more become bytes.
pub(super) fn decode(file: &[u8], channels: usize, allow: Allow<'_>) -> Result<Picture, DataError> {
    let known = [ImageFormat::WebP, ImageFormat::Bmp, ImageFormat::Gif, ImageFormat::Tiff];
    let format = image::guess_format(file).ok().filter(|format| known.contains(format));
    let format = format.ok_or_else(|| wrong("none of JPEG, PNG, WebP, BMP, GIF and TIFF"))?;
    let name = format!("{format:?}");
    let broken = |error: image::ImageError| wrong(format!("{name}: {error}"));
    let reader = ImageReader::with_format(Cursor::new(file), format);
    let mut decoder = reader.into_decoder().map_err(broken)?;
    let (width, height) = decoder.dimensions();
    let (height, width) = (height as usize, width as usize);
    if height == 0 || width == 0 {
        return Err(wrong(format!("{name}: {width} x {height} pixels")));
    }
    let stored = decoder.color_type();
    // The pixels as they are stored, as bytes with all channels, and those that are asked for.
    let pixel = u64::from(stored.bytes_per_pixel()) + 4 + channels as u64;
    allow(pixel, [height, width])?;
    let mut limits = Limits::no_limits();
    let most = (height as u64 * width as u64).saturating_mul(pixel).saturating_add(OWN);
    limits.max_alloc = Some(most);
    if !can_allocate(most) {
        return Err(wrong(format!("{name}: no memory for {width} x {height} pixels")));
    }
    decoder.set_limits(limits).map_err(broken)?;
    let picture = DynamicImage::from_decoder(decoder).map_err(broken)?;
    let (pixels, stored) = match stored {
        ColorType::L8 | ColorType::L16 => (picture.into_luma8().into_raw(), 1),
        ColorType::La8 | ColorType::La16 => (picture.into_luma_alpha8().into_raw(), 2),
        ColorType::Rgb8 | ColorType::Rgb16 | ColorType::Rgb32F => (picture.into_rgb8().into_raw(), 3),
        _ => (picture.into_rgba8().into_raw(), 4),
    };
    let pixels = convert(pixels, stored, channels).ok_or_else(|| wrong(format!("{name}: no memory")))?;
    Ok(Picture { height, width, pixels })
}

/// Whether so much memory can be had. The decoders end the process where they get none, so it is asked for
/// before, and given back.
fn can_allocate(bytes: u64) -> bool {
    let mut memory = Vec::<u8>::new();
    let had = usize::try_from(bytes).is_ok_and(|bytes| memory.try_reserve_exact(bytes).is_ok());
    // What nobody looks at, the compiler leaves out.
    std::hint::black_box(&memory);
    had
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(picture: &DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        picture.write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    }

    #[test]
    fn every_format_gives_the_pixels_back() {
        let pixels: Vec<u8> = (0..4 * 3 * 3).map(|at| at * 7).collect();
        let picture = DynamicImage::from(image::RgbImage::from_raw(4, 3, pixels.clone()).unwrap());
        for format in [ImageFormat::WebP, ImageFormat::Bmp, ImageFormat::Tiff] {
            let decoded = decode(&written(&picture, format), 3, &|_, _| Ok(())).unwrap();
            assert_eq!((decoded.height, decoded.width, &decoded.pixels), (3, 4, &pixels), "{format:?}");
            let refused = decode(&written(&picture, format), 3, &|_, _| Err(wrong("too large")));
            assert!(refused.is_err_and(|error| error.to_string().contains("too large")));
            let cut = written(&picture, format);
            assert!(decode(&cut[..cut.len() / 2], 3, &|_, _| Ok(())).is_err(), "{format:?}");
        }
        // GIF has a palette, which holds the twelve colours.
        let gif = written(&picture.to_rgba8().into(), ImageFormat::Gif);
        let decoded = decode(&gif, 3, &|_, _| Ok(())).unwrap();
        assert_eq!((decoded.height, decoded.width), (3, 4));
        let far = decoded.pixels.iter().zip(&pixels).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(far <= Some(8), "{far:?}");
        let grey = decode(&written(&picture, ImageFormat::Bmp), 1, &|_, _| Ok(())).unwrap();
        assert_eq!(grey.pixels[0], ((587 * 7 + 114 * 14 + 500) / 1000) as u8);
        assert!(decode(b"RIFFxxxxWEBPVP8 ", 3, &|_, _| Ok(())).is_err());
        assert!(decode(b"text", 3, &|_, _| Ok(())).is_err());
        assert!(can_allocate(OWN) && !can_allocate(u64::MAX) && !can_allocate(1 << 62));
    }
}
