//! Spectrograms of waveforms: short-time Fourier transform, mel bands, cepstral coefficients.

mod fourier;
mod mel;

use unisono_random::Draws;

use self::fourier::Fourier;
use self::mel::{cosines, filters};
use crate::{BoxError, DataError, Field, Sample, Transform, Values};

/// What is added to a band's power before its logarithm, as torchaudio does.
const FLOOR: f64 = 1e-6;

/// The power of frequencies over time: a waveform `[length]` becomes `[frames, bins]`, torchaudio's
/// `Spectrogram`, `MelSpectrogram` and `MFCC`.
///
/// A frame of `frame` values, weighted by a periodic Hann window, is taken every `hop` values, the first
/// around the first value, with the waveform mirrored at its ends: 1 + length / hop frames if `frame` is
/// even. Each gives frame / 2 + 1 bins, or as many mel bands or coefficients as are asked for. It is computed
/// in f64 and rounded once, with the same bits on every platform.
///
/// ```
/// use unisono_data::{Loader, Memory, Spectrogram, Values};
///
/// let second = Memory::new("x", [16_000], Values::F32(vec![0.1; 2 * 16_000]))?;
/// // 25 ms every 10 ms, 64 bands, and the logarithm of their power.
/// let mel = Spectrogram::new(400).hop(160).mel(16_000, 64).log();
/// let loader = Loader::new(second).try_map("mel", mel.transform("x"));
/// assert_eq!(loader.fields()?[0].shape, [101, 64]);
/// # Ok::<(), unisono_data::DataError>(())
/// ```
///
/// A mel band that lies between two bins of the spectrum is always 0. If more than one band in sixteen is
/// empty, the transform returns an error.
#[doc(alias("stft", "STFT", "MelSpectrogram", "MFCC", "mfcc"))]
#[derive(Clone, Debug, PartialEq)]
pub struct Spectrogram {
    frame: usize,
    hop: usize,
    /// The sampling rate in hertz, and the number of mel bands.
    mel: Option<(u32, usize)>,
    /// The bounds of the mel bands in hertz. `None` means from 0 to half of the rate.
    range: Option<[f64; 2]>,
    log: bool,
    coefficients: Option<usize>,
    complex: bool,
}

/// Of this many mel bands, one may be empty because it lies between two bins of the spectrum.
const BANDS_FOR_ONE_EMPTY: usize = 16;

impl Spectrogram {
    /// Takes frames of this many values, half a frame apart.
    pub fn new(frame: usize) -> Self {
        let hop = (frame / 2).max(1);
        Self { frame, hop, mel: None, range: None, log: false, coefficients: None, complex: false }
    }

    /// Sets how many values lie between the starts of two frames. Default: half a frame.
    #[doc(alias = "hop_length")]
    pub fn hop(self, values: usize) -> Self {
        Self { hop: values, ..self }
    }

    /// Sums the power in `bands` triangles that are evenly spaced on the mel scale (HTK's, without
    /// normalisation) of a waveform of `rate` values a second. Default: no bands.
    pub fn mel(self, rate: u32, bands: usize) -> Self {
        Self { mel: Some((rate, bands)), ..self }
    }

    /// Sets the lowest and the highest frequency of the mel bands, in hertz. Default: 0 and half of the rate.
    pub fn range(self, low: f64, high: f64) -> Self {
        Self { range: Some([low, high]), ..self }
    }

    /// Takes ln(power + 1e-6). Default: the power itself.
    pub fn log(self) -> Self {
        Self { log: true, ..self }
    }

    /// Takes the first coefficients of the cosine transform of the logarithms of the mel bands (DCT-II,
    /// orthonormal): torchaudio's `MFCC(log_mels=True)`. Default: none.
    pub fn mfcc(self, coefficients: usize) -> Self {
        Self { coefficients: Some(coefficients), ..self }
    }

    /// Returns the Fourier transform itself instead of its power: [frames, bins, 2], real and imaginary part.
    pub fn complex(self) -> Self {
        Self { complex: true, ..self }
    }

    /// Returns the transform of a field `[length]` or `[length, 1]`.
    ///
    /// Settings that cannot work are an error of the transform: a frame or hop of 0, bands or bounds that are
    /// not within half of the rate, many bands that are narrower than a frame can tell apart, coefficients
    /// without bands or more than those, or logarithms of [`complex`](Self::complex) values. So is a waveform
    /// that is not longer than half a frame.
    pub fn transform(self, field: &str) -> impl Transform {
        let name = field.to_owned();
        let prepared = self.prepared();
        move |sample: &mut Sample, _: &mut Draws| {
            let prepared = prepared.as_ref().map_err(|what| BoxError::from(what.as_str()))?;
            let wrong = |what: String| DataError::field(&name, what);
            let field = sample.field_mut(&name).ok_or_else(|| wrong("no such field".into()))?;
            let Values::F32(wave) = &field.values else {
                return Err(wrong("dtype i32, expected f32".into()).into());
            };
            if !matches!(*field.shape.as_slice(), [_] | [_, 1]) {
                return Err(wrong(format!("shape {:?} is not [length]", field.shape)).into());
            }
            if wave.len() <= self.frame / 2 {
                let what = format!("{} values are not more than half a frame of {}", wave.len(), self.frame);
                return Err(wrong(what).into());
            }
            *field = prepared.of(wave);
            Ok(())
        }
    }

    /// Computes the tables, or says why the settings cannot work.
    fn prepared(&self) -> Result<Prepared, String> {
        if self.frame == 0 || self.hop == 0 {
            return Err(format!("frames of {} values, {} apart", self.frame, self.hop));
        }
        if self.complex && (self.mel.is_some() || self.log || self.coefficients.is_some()) {
            return Err("complex values have neither bands nor logarithms".into());
        }
        let bins = self.frame / 2 + 1;
        let bands = match self.mel {
            None if self.range.is_some() => return Err("a range of frequencies is for mel bands".into()),
            None => None,
            Some((rate, bands)) => {
                let half = f64::from(rate) / 2.0;
                let [low, high] = self.range.unwrap_or([0.0, half]);
                if bands == 0 || !(0.0 <= low && low < high && high <= half) {
                    return Err(format!("{bands} bands from {low} to {high} hertz at a rate of {rate}"));
                }
                let filters = filters(bins, half, bands, [low, high]);
                let empty = filters.iter().filter(|(_, weights)| weights.is_empty()).count();
                if empty * BANDS_FOR_ONE_EMPTY > bands {
                    let (spacing, frame) = (2.0 * half / self.frame as f64, self.frame);
                    return Err(format!(
                        "{empty} of {bands} mel bands would always be 0: frames of {frame} values tell \
                         frequencies {spacing:.1} hertz apart, and these bands lie between two of them, so \
                         take fewer bands or longer frames"
                    ));
                }
                Some(filters)
            }
        };
        let cosines = match (self.coefficients, &bands) {
            (None, _) => None,
            (Some(count), Some(bands)) if (1..=bands.len()).contains(&count) => {
                Some(cosines(count, bands.len()))
            }
            (Some(count), bands) => {
                let bands = bands.as_ref().map_or(0, Vec::len);
                return Err(format!("{count} coefficients of {bands} mel bands"));
            }
        };
        let window = |at: usize| {
            let turn = std::f64::consts::TAU * at as f64 / self.frame as f64;
            0.5 - 0.5 * libm::cos(turn)
        };
        Ok(Prepared {
            hop: self.hop,
            window: (0..self.frame).map(window).collect(),
            fourier: Fourier::new(self.frame),
            bands,
            cosines,
            log: self.log,
            complex: self.complex,
        })
    }
}

/// The tables of a spectrogram.
struct Prepared {
    hop: usize,
    window: Vec<f64>,
    fourier: Fourier,
    /// The first bin of each band, and the weights from there on.
    bands: Option<Vec<(usize, Vec<f64>)>>,
    cosines: Option<Vec<Vec<f64>>>,
    log: bool,
    complex: bool,
}

impl Prepared {
    fn of(&self, wave: &[f32]) -> Field {
        let (frame, bins) = (self.window.len(), self.window.len() / 2 + 1);
        let frames = (wave.len() + frame / 2 * 2 - frame) / self.hop + 1;
        let (mut out, mut width) = (Vec::new(), 0);
        for at in 0..frames {
            let start = (at * self.hop) as isize - (frame / 2) as isize;
            let values: Vec<f64> = (0..frame)
                .map(|place| {
                    f64::from(wave[mirrored(start + place as isize, wave.len())]) * self.window[place]
                })
                .collect();
            let spectrum = self.fourier.transform(&values);
            if self.complex {
                out.extend(spectrum[..bins].iter().flatten().map(|&part| part as f32));
                continue;
            }
            let power: Vec<f64> = spectrum[..bins].iter().map(|[re, im]| re * re + im * im).collect();
            let row = self.row(power);
            width = row.len();
            out.extend(row.into_iter().map(|value| value as f32));
        }
        let shape = if self.complex { vec![frames, bins, 2] } else { vec![frames, width] };
        Field::f32(shape, out)
    }

    /// Returns what becomes of the power of one frame's bins.
    fn row(&self, power: Vec<f64>) -> Vec<f64> {
        let mut row = match &self.bands {
            None => power,
            Some(bands) => bands
                .iter()
                .map(|(first, weights)| {
                    weights.iter().zip(&power[*first..]).map(|(weight, power)| weight * power).sum()
                })
                .collect(),
        };
        if self.log || self.cosines.is_some() {
            row.iter_mut().for_each(|power| *power = libm::log(*power + FLOOR));
        }
        match &self.cosines {
            None => row,
            Some(all) => {
                all.iter().map(|own| own.iter().zip(&row).map(|(c, value)| c * value).sum()).collect()
            }
        }
    }
}

/// Returns the place of a value in a waveform that is mirrored at its ends, without repeating these.
fn mirrored(at: isize, length: usize) -> usize {
    let last = length as isize - 1;
    let at = if at < 0 { -at } else { at };
    (if at > last { 2 * last - at } else { at }).clamp(0, last) as usize
}

#[cfg(test)]
mod tests;
