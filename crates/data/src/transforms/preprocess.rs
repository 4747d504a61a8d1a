//! What networks that were trained elsewhere expect of pictures.

use unisono_random::Draws;

use crate::sample::effects::say;
use crate::transforms::standard::scales;
use crate::{DataError, Sample, Transform};

/// The range and the normalisation of pictures that a network was trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pretrained {
    /// 0 to 1: torchvision's `ToTensor`.
    Unit,
    /// torchvision's weights: 0 to 1, and then (x - mean) / deviation with the mean 0.485, 0.456, 0.406 and
    /// the deviation 0.229, 0.224, 0.225 of red, green and blue.
    Torchvision,
    /// -1 to 1: Keras's `preprocess_input(mode="tf")`, for MobileNet, Inception and Xception.
    KerasScaled,
    /// Blue, green and red, less 103.939, 116.779 and 123.68: Keras's `preprocess_input(mode="caffe")`, for
    /// ResNet and VGG.
    KerasCaffe,
}

/// Normalises pictures [height, width, channels] of values 0 to 255, as sources of pictures give them, the
/// way a network expects them. It comes before [`channels_first`](crate::channels_first).
///
/// All but [`Pretrained::Unit`] and [`Pretrained::KerasScaled`] need three channels. It is computed in f64
/// and rounded once.
#[doc(alias = "preprocess_input")]
pub fn preprocess(field: &str, pretrained: Pretrained) -> impl Transform {
    let name = field.to_owned();
    move |sample: &mut Sample, _: &mut Draws| {
        let wrong = |what: String| DataError::field(&name, what);
        let field = sample.field_mut(&name).ok_or_else(|| wrong("no such field".into()))?;
        let (shape, is_rgb) = (field.shape.clone(), field.shape.last() == Some(&3));
        let values = field.values.as_f32_mut().ok_or_else(|| wrong("dtype i32, expected f32".into()))?;
        if !is_rgb && matches!(pretrained, Pretrained::Torchvision | Pretrained::KerasCaffe) {
            return Err(wrong(format!("shape {shape:?} has not three channels at its end")).into());
        }
        match pretrained {
            Pretrained::Unit => each(values, |x| x / 255.0),
            Pretrained::KerasScaled => each(values, |x| x / 127.5 - 1.0),
            Pretrained::Torchvision => {
                let (mean, deviation) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
                for pixel in values.as_chunks_mut::<3>().0 {
                    for (c, x) in pixel.iter_mut().enumerate() {
                        *x = ((f64::from(*x) / 255.0 - mean[c]) / deviation[c]) as f32;
                    }
                }
            }
            Pretrained::KerasCaffe => {
                for pixel in values.as_chunks_mut::<3>().0 {
                    let [red, green, blue] = pixel.map(f64::from);
                    *pixel = [blue - 103.939, green - 116.779, red - 123.68].map(|x| x as f32);
                }
            }
        }
        say(|| scales(&name, &format!("{pretrained:?}"), []));
        Ok(())
    }
}

fn each(values: &mut [f32], to: impl Fn(f64) -> f64) {
    values.iter_mut().for_each(|x| *x = to(f64::from(*x)) as f32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Field;

    /// The numbers are torchvision's and Keras's for the pixel (255, 128, 0).
    #[test]
    fn a_pixel_becomes_what_the_network_was_trained_with() {
        let preprocessed = |pretrained, shape: &[usize]| {
            let values: Vec<f32> = [255.0, 128.0, 0.0][..shape.iter().product()].to_vec();
            let mut sample = Sample::new().with("x", Field::f32(shape, values));
            preprocess("x", pretrained)(&mut sample, &mut Draws::of(0, "t", "", 0, 0))?;
            Ok::<_, crate::BoxError>(sample.field("x").unwrap().values.as_f32().unwrap().to_vec())
        };
        for (pretrained, expected) in [
            (Pretrained::Unit, [1.0, 0.501_960_8, 0.0]),
            (Pretrained::Torchvision, [2.248_908_3, 0.205_182_21, -1.804_444_4]),
            (Pretrained::KerasScaled, [1.0, 0.003_921_628, -1.0]),
            (Pretrained::KerasCaffe, [-103.939, 11.221, 131.32]),
        ] {
            let found = preprocessed(pretrained, &[1, 1, 3]).unwrap();
            let far = found.iter().zip(expected).map(|(a, b): (&f32, f32)| (a - b).abs()).fold(0.0, f32::max);
            assert!(far < 1e-5, "{pretrained:?} {found:?}");
        }
        assert!(preprocessed(Pretrained::Unit, &[2, 1, 1]).is_ok());
        let error = preprocessed(Pretrained::Torchvision, &[2, 1, 1]).unwrap_err().to_string();
        assert!(error.contains("three channels"), "{error}");
    }
}
