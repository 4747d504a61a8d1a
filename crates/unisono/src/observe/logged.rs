//! Values that a program logs, for observers to keep.

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
    pub(crate) pixels: Vec<u8>,
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
        if !fits || channels > 4 {
            let problem = format!(
                "an image of {height} rows, {width} columns and {channels} channels cannot have {} bytes",
                pixels.len()
            );
            return Err(Error::setting("logged image", problem));
        }
        Ok(Self { width, height, channels, pixels })
    }
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
