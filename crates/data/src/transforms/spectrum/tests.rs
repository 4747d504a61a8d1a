use super::*;

/// Returns the waveform that the numbers below are of.
fn wave(length: usize) -> Vec<f32> {
    let value = |t: usize| {
        let t = t as f64;
        libm::sin(0.3 * t) + 0.25 * libm::cos(1.1 * t) + 0.01 * t
    };
    (0..length).map(|t| value(t) as f32).collect()
}

fn run(spectrogram: Spectrogram, wave: Vec<f32>) -> Result<Field, BoxError> {
    let mut sample = Sample::new().with("x", Field::f32([wave.len()], wave));
    spectrogram.transform("x")(&mut sample, &mut Draws::of(0, "test", "", 0, 0))?;
    Ok(sample.field("x").unwrap().clone())
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 3e-6 * expected.abs().max(1.0), "{found} {expected}");
    }
}

/// The numbers are the sums of torch.stft's definition, computed in Python, for frames whose length is a
/// power of two, has another factor, and is odd.
#[test]
fn transforms_are_those_of_torch_stft() {
    for (frame, hop, frames, expected) in [
        (16, 8, 8, [6.205932, 0.0, -4.220189, 2.31912, 1.202569, -0.243379, -0.228908, -1.006531]),
        (12, 5, 13, [-3.809863, 0.0, 2.77107, -0.165988, -1.074834, -0.404266, 0.248078, 0.323245]),
        (15, 7, 9, [2.493585, 0.0, -1.452978, 3.466495, 0.23983, -1.905961, -0.062567, 0.730461]),
    ] {
        let bins = frame / 2 + 1;
        let complex = run(Spectrogram::new(frame).hop(hop).complex(), wave(60)).unwrap();
        assert_eq!(complex.shape, [frames, bins, 2]);
        let values = complex.values.as_f32().unwrap();
        assert_close(&values[3 * bins * 2..][..8], &expected);
        let power = run(Spectrogram::new(frame).hop(hop), wave(60)).unwrap();
        assert_eq!(power.shape, [frames, bins]);
        let squares: Vec<f32> = values.chunks(2).map(|part| part[0] * part[0] + part[1] * part[1]).collect();
        assert_close(power.values.as_f32().unwrap(), &squares);
    }
}

/// The numbers are those of torchaudio's formulas, computed in Python.
#[test]
fn bands_logarithms_and_coefficients_are_those_of_torchaudio() {
    let bands = || Spectrogram::new(24).hop(10).mel(8000, 5).range(100.0, 3800.0);
    let mel = run(bands(), wave(60)).unwrap();
    assert_eq!(mel.shape, [7, 5]);
    assert_close(
        &mel.values.as_f32().unwrap()[10..15],
        &[35.184_46, 11.659025, 2.115785, 1.168634, 0.001121],
    );
    let log = run(bands().log(), wave(60)).unwrap();
    assert_close(&log.values.as_f32().unwrap()[..5], &[2.244663, 1.911949, 0.561325, -0.945994, -1.959741]);
    let mfcc = run(bands().mfcc(3), wave(60)).unwrap();
    assert_eq!(mfcc.shape, [7, 3]);
    assert_close(&mfcc.values.as_f32().unwrap()[6..9], &[0.057636, 7.082856, -2.638397]);
}

/// A tone of a bin's frequency has its power there.
#[test]
fn a_tone_is_found_at_its_frequency() {
    let tone: Vec<f32> =
        (0..4000).map(|t| libm::sin(std::f64::consts::TAU * 1000.0 * f64::from(t) / 8000.0) as f32).collect();
    let power = run(Spectrogram::new(256).hop(64), tone).unwrap();
    assert_eq!(power.shape, [63, 129]);
    let middle = &power.values.as_f32().unwrap()[30 * 129..][..129];
    // 1000 hertz are bin 32 of 256 at 8000; a Hann window of height 1 halves the amplitude of 128.
    assert!((middle[32] - 64.0 * 64.0).abs() < 1.0, "{}", middle[32]);
    assert!(middle.iter().enumerate().all(|(bin, &power)| bin.abs_diff(32) < 2 || power < 1e-3));
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let message = |spectrogram: Spectrogram| run(spectrogram, wave(60)).unwrap_err().to_string();
    let new = || Spectrogram::new(16);
    assert_eq!(message(Spectrogram::new(0)), "frames of 0 values, 1 apart");
    assert_eq!(message(new().hop(0)), "frames of 16 values, 0 apart");
    assert_eq!(message(new().mel(8000, 0)), "0 bands from 0 to 4000 hertz at a rate of 8000");
    assert_eq!(
        message(new().mel(8000, 4).range(0.0, 4001.0)),
        "4 bands from 0 to 4001 hertz at a rate of 8000"
    );
    assert_eq!(message(new().mfcc(2)), "2 coefficients of 0 mel bands");
    // 128 bands of frames of 256 values at 16 kHz: those of low frequencies hold none of the bins.
    let narrow = message(Spectrogram::new(256).mel(16_000, 128));
    assert!(
        narrow.contains(" of 128 mel bands would always be 0") && narrow.contains("62.5 hertz"),
        "{narrow}"
    );
    assert_eq!(message(new().mel(8000, 4).mfcc(5)), "5 coefficients of 4 mel bands");
    assert_eq!(message(new().complex().log()), "complex values have neither bands nor logarithms");
    assert_eq!(message(new().range(0.0, 1.0)), "a range of frequencies is for mel bands");
    assert_eq!(message(Spectrogram::new(120)), "field 'x': 60 values are not more than half a frame of 120");
    let mut odd = Sample::new().with("x", Field::f32([6, 2], vec![0.0; 12]));
    let error = new().transform("x")(&mut odd, &mut Draws::of(0, "test", "", 0, 0)).unwrap_err().to_string();
    assert_eq!(error, "field 'x': shape [6, 2] is not [length]");
}
