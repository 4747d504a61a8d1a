//! Affine maps: rotation, shift, shear and zoom, in one resampling for all of them.

use unisono_random::Draws;

use super::resample::mix;
use super::{Fields, Image, check_bounds, check_most, moved_aligned};
use crate::{BoxError, Transform};

/// The values that lie beyond an image's edge.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Fill {
    /// The nearest pixel of the edge.
    Edge,
    /// The given value.
    Value(f32),
}

/// A random affine transform around the middle of an image (torchvision's `RandomAffine`): zoom, shear,
/// rotation, then shift. It draws five random words.
///
/// Settings that keep their defaults have no effect. One transform with several settings is faster, and blurs
/// less, than several transforms after one another.
#[doc(alias = "RandomAffine")]
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Affine {
    /// The largest rotation either way, in degrees. Default: 0.
    pub rotation: f32,
    /// The largest shift either way, as a fraction of the height and of the width. Default: 0.
    pub shift: [f32; 2],
    /// The largest shear either way, in degrees: rows slide sideways in proportion to their height. Default:
    /// 0.
    pub shear: f32,
    /// The bounds of the magnification. Default: 1 and 1.
    pub zoom: [f32; 2],
    /// The values beyond the edge. Default: the pixels of the edge.
    pub fill: Fill,
}

impl Default for Affine {
    /// Returns the map by which nothing moves, with edges extended.
    fn default() -> Self {
        Self { rotation: 0.0, shift: [0.0; 2], shear: 0.0, zoom: [1.0; 2], fill: Fill::Edge }
    }
}

impl Affine {
    /// Sets the largest rotation either way, in degrees.
    pub fn rotation(self, degrees: f32) -> Self {
        Self { rotation: degrees, ..self }
    }

    /// Sets the largest shift either way, as a fraction of the height and of the width.
    pub fn shift(self, down: f32, right: f32) -> Self {
        Self { shift: [down, right], ..self }
    }

    /// Sets the largest shear either way, in degrees.
    pub fn shear(self, degrees: f32) -> Self {
        Self { shear: degrees, ..self }
    }

    /// Sets the bounds of the magnification.
    pub fn zoom(self, low: f32, high: f32) -> Self {
        Self { zoom: [low, high], ..self }
    }

    /// Sets the values beyond the edge.
    pub fn fill(self, fill: Fill) -> Self {
        Self { fill, ..self }
    }

    /// Returns the transform of a field, or of several alike. The pixels of i32 fields, such as masks, are
    /// those next to the places that they come from.
    pub fn transform(self, fields: impl Into<Fields>) -> impl Transform {
        moved_aligned(fields, move |image, draws| {
            self.check()?;
            let map = self.draw([image.height, image.width], draws);
            let fill = match self.fill {
                Fill::Value(value) => Fill::Value(image.value(value)?),
                Fill::Edge => Fill::Edge,
            };
            image.pixels = if image.labels { nearest(image, map, fill) } else { resample(image, map, fill) };
            Ok(())
        })
    }

    fn check(&self) -> Result<(), BoxError> {
        let [low, high] = self.zoom;
        check_bounds("zoom", low, high)?;
        for (name, most) in [("rotation", self.rotation), ("shear", self.shear)] {
            check_most(name, most)?;
        }
        self.shift.iter().try_for_each(|&most| check_most("shift", most))?;
        if let Some(most) = self.shift.iter().find(|most| **most > 1.0) {
            let what = "it is a fraction of the height or the width, so at most 1";
            return Err(format!("shift by {most}: {what}").into());
        }
        if !(self.shear < 90.0 && 0.0 < low) {
            return Err(format!("{self:?} is no map of the plane").into());
        }
        Ok(())
    }

    /// Draws a map from a place of the result to the place of the image that it shows: a row-major 2 x 3
    /// matrix over (y, x, 1).
    pub(super) fn draw(&self, extents: [usize; 2], draws: &mut Draws) -> [f64; 6] {
        let mut either_way = |most: f32| f64::from(draws.range(-most, most));
        let turn = either_way(self.rotation).to_radians();
        let slide = libm::tan(either_way(self.shear).to_radians());
        let down = either_way(self.shift[0]) * extents[0] as f64;
        let right = either_way(self.shift[1]) * extents[1] as f64;
        let zoom = f64::from(draws.range(self.zoom[0], self.zoom[1]));
        let (sine, cosine) = (libm::sin(turn), libm::cos(turn));
        // The steps are undone in reverse: the shift, the rotation, the shear (x' = x + slide y), the zoom.
        let (yy, yx, xy, xx) = (cosine, sine, -sine, cosine);
        let (xy, xx) = (xy - slide * yy, xx - slide * yx);
        let [yy, yx, xy, xx] = [yy, yx, xy, xx].map(|entry| entry / zoom);
        let [cy, cx] = extents.map(|extent| (extent as f64 - 1.0) / 2.0);
        let (oy, ox) = (cy + down, cx + right);
        [yy, yx, cy - yy * oy - yx * ox, xy, xx, cx - xy * oy - xx * ox]
    }
}

fn resample(image: &Image, map: [f64; 6], fill: Fill) -> Vec<f32> {
    let mut out = Vec::with_capacity(image.pixels.len());
    let edge = |place: f64, extent: usize| place.clamp(0.0, (extent - 1) as f64) as usize;
    for y in 0..image.height {
        for x in 0..image.width {
            let (fy, fx) = (y as f64, x as f64);
            let from_y = map[0] * fy + map[1] * fx + map[2];
            let from_x = map[3] * fy + map[4] * fx + map[5];
            let (low_y, low_x) = (from_y.floor(), from_x.floor());
            let (v, u) = ((from_y - low_y) as f32, (from_x - low_x) as f32);
            let within = |place: f64, extent: usize| place >= 0.0 && place <= (extent - 1) as f64;
            for c in 0..image.channels {
                let value = |dy: f64, dx: f64| {
                    let (y, x) = (low_y + dy, low_x + dx);
                    match fill {
                        Fill::Value(value) if !within(y, image.height) || !within(x, image.width) => value,
                        _ => image.at(edge(y, image.height), edge(x, image.width))[c],
                    }
                };
                let top = mix(value(0.0, 0.0), value(0.0, 1.0), u);
                out.push(mix(top, mix(value(1.0, 0.0), value(1.0, 1.0), u), v));
            }
        }
    }
    out
}

/// Returns for each pixel the one that is next to the place that it comes from.
pub(super) fn nearest(image: &Image, map: [f64; 6], fill: Fill) -> Vec<f32> {
    let mut out = Vec::with_capacity(image.pixels.len());
    let at = |place: f64, extent: usize| (place + 0.5).floor().clamp(0.0, (extent - 1) as f64) as usize;
    let within = |place: f64, extent: usize| place >= -0.5 && place < extent as f64 - 0.5;
    for y in 0..image.height {
        for x in 0..image.width {
            let (fy, fx) = (y as f64, x as f64);
            let from_y = map[0] * fy + map[1] * fx + map[2];
            let from_x = map[3] * fy + map[4] * fx + map[5];
            match fill {
                Fill::Value(value) if !within(from_y, image.height) || !within(from_x, image.width) => {
                    out.extend(std::iter::repeat_n(value, image.channels));
                }
                _ => out.extend(image.at(at(from_y, image.height), at(from_x, image.width))),
            }
        }
    }
    out
}

/// Rotates by up to this many degrees either way. The edges are extended. See [`Affine`].
#[doc(alias = "RandomRotation")]
pub fn rotation(fields: impl Into<Fields>, degrees: f32) -> impl Transform {
    Affine::default().rotation(degrees).transform(fields)
}

/// Shifts by up to a fraction of the height and of the width either way. The edges are extended. See
/// [`Affine`].
#[doc(alias = "RandomTranslation")]
pub fn shift(fields: impl Into<Fields>, down: f32, right: f32) -> impl Transform {
    Affine::default().shift(down, right).transform(fields)
}

/// Shears by up to this many degrees either way. The edges are extended. See [`Affine`].
pub fn shear(fields: impl Into<Fields>, degrees: f32) -> impl Transform {
    Affine::default().shear(degrees).transform(fields)
}

/// Magnifies by a factor from `low` to `high`. The edges are extended. See [`Affine`].
#[doc(alias = "RandomZoom")]
pub fn zoom(fields: impl Into<Fields>, low: f32, high: f32) -> impl Transform {
    Affine::default().zoom(low, high).transform(fields)
}
