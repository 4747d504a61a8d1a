//! Values that a program logs, for observers to keep.

use png::{ColorType, Encoder, EncodingError};

use crate::Error;

/// A value that a program logs with [`Trainer::log`](crate::Trainer::log).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Logged {
    /// A number.
    Scalar(f64),
    /// A text. TensorBoard shows it as Markdown.
    Text(String),
    /// Values whose distribution is kept.
    Histogram(Vec<f32>),
    /// An image.
    Image(LoggedImage),
}

/// An image that a program logs, with 8 bits for each channel.
///
/// ```
/// use unisono::LoggedImage;
///
/// let white = LoggedImage::new(4, 2, 1, vec![255; 8])?;
/// assert!(LoggedImage::new(4, 2, 3, vec![255; 8]).is_err());
/// # Ok::<(), unisono::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedImage {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) channels: u32,
    /// The image as a PNG file.
    pub(crate) png: Vec<u8>,
}

impl LoggedImage {
    /// Creates an image of `height` rows of `width` pixels: `[height, width, channels]`. One channel is grey,
    /// two are grey and alpha, three are RGB, four are RGBA.
    ///
    /// # Errors
    /// There are no pixels, or not as many bytes as width, height and channels say, or more than four
    /// channels.
    pub fn new(width: u32, height: u32, channels: u32, pixels: Vec<u8>) -> Result<Self, Error> {
        let bytes = u128::from(width) * u128::from(height) * u128::from(channels);
        let fits = bytes > 0 && bytes < 1 << 31 && bytes == pixels.len() as u128;
        let color = [ColorType::Grayscale, ColorType::GrayscaleAlpha, ColorType::Rgb, ColorType::Rgba];
        let Some(color) = (channels as usize).checked_sub(1).and_then(|i| color.get(i)).filter(|_| fits)
        else {
            let problem = format!(
                "an image of {height} rows, {width} columns and {channels} channels cannot have {} bytes",
                pixels.len()
            );
            return Err(Error::setting("logged image", problem));
        };
        let png = encode(width, height, *color, &pixels);
        let png = png.map_err(|error| Error::setting("logged image", error.to_string()))?;
        Ok(Self { width, height, channels, png })
    }
}

/// Returns a PNG file.
fn encode(width: u32, height: u32, color: ColorType, pixels: &[u8]) -> Result<Vec<u8>, EncodingError> {
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, width, height);
    encoder.set_color(color);
    encoder.write_header()?.write_image_data(pixels)?;
    Ok(file)
}

impl From<f64> for Logged {
    fn from(value: f64) -> Self {
        Self::Scalar(value)
    }
}

impl From<f32> for Logged {
    fn from(value: f32) -> Self {
        Self::Scalar(f64::from(value))
    }
}

impl From<&str> for Logged {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Logged {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&String> for Logged {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<LoggedImage> for Logged {
    fn from(image: LoggedImage) -> Self {
        Self::Image(image)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the pixels of an image, out of its file.
    pub(crate) fn pixels_of(image: &LoggedImage) -> Vec<u8> {
        let mut reader = png::Decoder::new(std::io::Cursor::new(&image.png)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        pixels
    }

    #[test]
    fn a_picture_keeps_its_pixels() {
        for channels in 1..=4 {
            let pixels: Vec<u8> = (0..7 * 5 * channels).map(|i| (i * 37) as u8).collect();
            let image = LoggedImage::new(7, 5, channels, pixels.clone()).unwrap();
            assert_eq!(pixels_of(&image), pixels, "{channels} channels");
        }
        assert!(LoggedImage::new(7, 5, 0, vec![]).is_err());
        assert!(LoggedImage::new(1, 1, 5, vec![0; 5]).is_err());
    }
}
