//! Tests of the augmentations that blend, erase, jitter and mask.

use std::collections::BTreeSet;

use crate::transforms::augment::*;
use crate::{Field, Loader, Memory};

type Boxed = Box<dyn Fn(&mut Sample, &mut Draws) -> Result<(), BoxError>>;

fn draws(position: u64) -> Draws {
    Draws::of(5, "map", "test", 0, position)
}

/// Returns a picture whose values all lie from 0 to 1.
fn picture(height: usize, width: usize, channels: usize) -> Sample {
    let count = height * width * channels;
    let values: Vec<f32> = (0..count).map(|i| (i * 37 % count) as f32 / count as f32).collect();
    Sample::new().with("x", Field::f32([height, width, channels], values))
}

fn values<'a>(sample: &'a Sample, name: &str) -> &'a [f32] {
    sample.field(name).unwrap().values.as_f32().unwrap()
}

/// Every sample is one number everywhere, so that a pasted rectangle tells whose it is.
#[test]
fn cutmix_blends_targets_by_the_pasted_area() {
    let (count, height, width) = (6, 7, 5);
    let batch = || {
        let each = |channels: usize| (0..count).flat_map(move |i| vec![i as f32; channels * height * width]);
        let masks: Vec<i32> = each(1).map(|value| value as i32).collect();
        let targets: Vec<f32> = (0..count * count).map(|at| f32::from(at / count == at % count)).collect();
        Sample::new()
            .with("x", Field::f32([count, 2, height, width], each(2).collect::<Vec<f32>>()))
            .with("mask", Field::i32([count, height, width], masks))
            .with("y", Field::f32([count, count], targets))
    };
    let (mut pasted, mut areas) = (0, BTreeSet::new());
    for position in 0..50 {
        let mut mixed = batch();
        cutmix(["x", "mask"], "y", 1.0)(&mut mixed, &mut draws(position)).unwrap();
        let mask = mixed.field("mask").unwrap().values.as_i32().unwrap().to_vec();
        for sample in 0..count {
            let labels = &mask[sample * height * width..][..height * width];
            for channel in 0..2 {
                let plane = &values(&mixed, "x")[(sample * 2 + channel) * height * width..][..height * width];
                assert!(plane.iter().zip(labels).all(|(x, label)| *x == *label as f32));
            }
            let of_others: Vec<i32> =
                labels.iter().copied().filter(|label| *label != sample as i32).collect();
            let area = of_others.len() as f32 / (height * width) as f32;
            let target = &values(&mixed, "y")[sample * count..][..count];
            assert!((target[sample] - (1.0 - area)).abs() < 1e-6, "{target:?} {area}");
            if let Some(&other) = of_others.first() {
                assert!(of_others.iter().all(|label| *label == other));
                assert!((target[other as usize] - area).abs() < 1e-6);
                let at: Vec<usize> = (0..labels.len()).filter(|&at| labels[at] == other).collect();
                let (rows, columns): (BTreeSet<_>, BTreeSet<_>) =
                    at.iter().map(|at| (at / width, at % width)).unzip();
                assert_eq!(rows.len() * columns.len(), at.len(), "a rectangle");
                pasted += 1;
                areas.insert(at.len());
            }
        }
    }
    assert!(pasted > 200 && areas.len() > 10, "{pasted} {areas:?}");
    let error = |run: Boxed| run(&mut batch(), &mut draws(0)).unwrap_err().to_string();
    assert_eq!(error(Box::new(cutmix("x", "y", 0.0))), "cutmix with an alpha of 0");
    assert_eq!(
        error(Box::new(cutmix("x", "mask", 1.0))),
        "field 'mask': i32, and only f32 can be blended: unisono::data::one_hot before it makes probabilities of labels"
    );
    assert!(error(Box::new(cutmix("y", "y", 1.0))).contains("not [samples, channels, height, width]"));
}

/// The bits of a batch depend on seed, epoch and position alone, whatever the threads.
#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let pictures = picture(6, 6, 3);
    let all: Vec<f32> =
        (0..24).flat_map(|i| values(&pictures, "x").iter().map(move |x| x * i as f32 / 24.0)).collect();
    let source = Memory::labelled(all, [6, 6, 3], (0..24).map(|i| i % 3).collect::<Vec<_>>()).unwrap();
    let loader = Loader::new(source)
        .shuffle(3)
        .batch(8)
        .try_map("augment", RandAugment::new().magnitude(20.0).transform("x"))
        .try_map("jitter", ColorJitter::new().brightness(0.4).hue(0.1).transform("x"))
        .try_map("erase", random_erasing("x", 0.5, [0.02, 0.3], [0.3, 3.3], 0.0))
        .try_map("channels_first", crate::channels_first("x"))
        .try_map("one_hot", crate::one_hot("y", 3))
        .map_batch("cutmix", cutmix("x", "y", 1.0));
    let of = |threads| -> Vec<crate::Batch> {
        loader
            .clone()
            .threads(threads)
            .epochs(crate::Position::default(), 2)
            .unwrap()
            .map(Result::unwrap)
            .collect()
    };
    let one = of(1);
    assert_ne!(one[0].stacked, one[3].stacked);
    for threads in [2, 5] {
        assert_eq!(of(threads), one);
    }
    let from = crate::Position { epoch: 1, sample: 8 };
    assert_eq!(loader.epochs_from(from).unwrap().next().unwrap().unwrap(), one[4]);
}

/// Bytes as numbers, which all would become white.
#[test]
fn pictures_far_beyond_white_are_refused() {
    let bytes = || Sample::new().with("x", Field::f32([1, 2, 3], [0.0, 31.0, 255.0, 9.0, 9.0, 9.0]));
    let jitter = ColorJitter::new().brightness(0.2);
    let transforms: [(&str, Boxed, Boxed); 2] = [
        ("ColorJitter", Box::new(jitter.transform("x")), Box::new(jitter.values_to(255.0).transform("x"))),
        (
            "RandAugment",
            Box::new(RandAugment::new().transform("x")),
            Box::new(RandAugment::new().values_to(255.0).transform("x")),
        ),
    ];
    for (name, of_one, of_bytes) in transforms {
        let error = of_one(&mut bytes(), &mut draws(0)).unwrap_err().to_string();
        let expected =
            format!("{name}: the picture has values from 0 to 255, but black is 0 and white is 1: set white");
        assert!(error.starts_with(&expected), "{error}");
        of_bytes(&mut bytes(), &mut draws(0)).unwrap();
        // So are those of values from -1 to 1, whose darker half would become black.
        let mut scaled = Sample::new().with("x", Field::f32([1, 1, 3], [-1.0, 0.0, 1.0]));
        let error = of_one(&mut scaled, &mut draws(0)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name}: the picture has values from -1 to 1")), "{error}");
    }
    // A jitter that changes nothing cuts nothing off.
    ColorJitter::new().transform("x")(&mut bytes(), &mut draws(0)).unwrap();
}

#[test]
fn erasing_sets_a_rectangle_within_the_bounds() {
    let (mut erased, mut places) = (0, BTreeSet::new());
    for position in 0..200 {
        let mut sample = picture(20, 30, 2).with("mask", Field::i32([20, 30], vec![3; 600]));
        random_erasing(["x", "mask"], 0.5, [0.05, 0.2], [0.5, 2.0], 9.0)(&mut sample, &mut draws(position))
            .unwrap();
        let mask = sample.field("mask").unwrap().values.as_i32().unwrap();
        let x = values(&sample, "x");
        assert!((0..600).all(|at| (mask[at] == 9) == (x[2 * at] == 9.0 && x[2 * at + 1] == 9.0)));
        let at: Vec<usize> = (0..600).filter(|&at| mask[at] == 9).collect();
        let (rows, columns): (BTreeSet<_>, BTreeSet<_>) = at.iter().map(|at| (at / 30, at % 30)).unzip();
        if at.is_empty() {
            continue;
        }
        assert_eq!(rows.len() * columns.len(), at.len());
        let (share, ratio) = (at.len() as f64 / 600.0, rows.len() as f64 / columns.len() as f64);
        assert!((0.03..0.23).contains(&share) && (0.35..2.6).contains(&ratio), "{share} {ratio}");
        erased += 1;
        places.insert(at[0]);
    }
    assert!((70..130).contains(&erased) && places.len() > 50, "{erased}");
    let error = random_erasing("x", 0.5, [0.3, 0.2], [0.5, 2.0], 0.0)(&mut picture(4, 4, 1), &mut draws(0));
    assert!(error.unwrap_err().to_string().contains("[0.3, 0.2]"));
}

/// The numbers are those of Python's colorsys for the pixel (0.8, 0.4, 0.2), turned by a share of the circle.
#[test]
fn hues_turn_as_in_colorsys() {
    for (by, expected) in [(0.5, [0.2, 0.6, 0.8]), (0.25, [0.3, 0.8, 0.2]), (-0.25, [0.7, 0.2, 0.8])] {
        let mut pixels = vec![0.8, 0.4, 0.2];
        let mut image = Image { height: 1, width: 1, channels: 3, pixels: pixels.clone(), labels: false };
        jitter::turn_hue(&mut image, by, 1.0);
        for (found, wanted) in image.pixels.iter().zip(expected) {
            assert!((found - wanted).abs() < 1e-6, "{by}: {:?}", image.pixels);
        }
        pixels.iter_mut().for_each(|value| *value *= 255.0);
        let mut image = Image { height: 1, width: 1, channels: 3, pixels, labels: false };
        jitter::turn_hue(&mut image, by, 255.0);
        assert!((image.pixels[0] / 255.0 - expected[0]).abs() < 1e-6);
    }
}

#[test]
fn jitter_stays_within_its_bounds_and_takes_seven_words() {
    let all = ColorJitter::new().brightness(0.8).contrast(0.8).saturation(0.8).hue(0.5);
    for jitter in [all, ColorJitter::new()] {
        for position in 0..30 {
            let (mut sample, mut own) = (picture(5, 6, 3), draws(position));
            jitter.transform("x")(&mut sample, &mut own).unwrap();
            assert_eq!(own.taken(), 7);
            assert!(values(&sample, "x").iter().all(|value| (0.0..=1.0).contains(value)));
            assert_eq!(sample == picture(5, 6, 3), jitter == ColorJitter::new());
        }
    }
    // A factor on brightness alone: all values of a dark picture are multiplied by one number.
    let mut dark = Sample::new().with("x", Field::f32([1, 3], [0.1, 0.2, 0.3]));
    ColorJitter::new().brightness(0.5).transform("x")(&mut dark, &mut draws(3)).unwrap();
    let factors: Vec<f32> = values(&dark, "x").iter().zip([0.1, 0.2, 0.3]).map(|(a, b)| a / b).collect();
    assert!(factors.iter().all(|factor| (factor - factors[0]).abs() < 1e-6 && (0.5..1.5).contains(factor)));
    let error = |jitter: ColorJitter, channels| {
        jitter.transform("x")(&mut picture(2, 2, channels), &mut draws(0)).unwrap_err().to_string()
    };
    assert!(error(ColorJitter::new().hue(0.6), 3).contains("is no jitter"));
    assert_eq!(error(all, 4), "colours need 1 or 3 channels, not 4");
}

/// Checks each of RandAugment's changes by what it is known to give.
#[test]
fn rand_augment_makes_every_change_and_keeps_labels() {
    let mut seen = BTreeSet::new();
    for position in 0..120 {
        let (mut sample, mut own) = (picture(12, 10, 3), draws(position));
        sample.set("mask", Field::i32([12, 10], (0..120).map(|at| 1 + at / 60).collect::<Vec<_>>()));
        RandAugment::new().layers(1).magnitude(15.0).transform(["x", "mask"])(&mut sample, &mut own).unwrap();
        assert_eq!(own.taken(), 2);
        assert!(values(&sample, "x").iter().all(|value| (0.0..=1.0).contains(value)));
        let mask = sample.field("mask").unwrap().values.as_i32().unwrap();
        assert!(mask.iter().all(|label| (0..=2).contains(label)));
        seen.insert(values(&sample, "x").iter().map(|value| value.to_bits()).collect::<Vec<_>>());
    }
    // Identity, and changes in two directions or one: 9 with a sign, of which all differ, and 4 without.
    assert!(seen.len() >= 20, "{}", seen.len());
    let nothing = RandAugment::new().layers(0).transform("x");
    let mut same = picture(3, 3, 1);
    nothing(&mut same, &mut draws(0)).unwrap();
    assert_eq!(same, picture(3, 3, 1));
    let error = RandAugment::new().magnitude(31.0).transform("x")(&mut same, &mut draws(0)).unwrap_err();
    assert!(error.to_string().contains("0..=30"), "{error}");
}

#[test]
fn sound_is_shifted_scaled_and_masked() {
    let wave = || Sample::new().with("x", Field::f32([5, 2], (0..10).map(|i| i as f32).collect::<Vec<_>>()));
    let mut shifts = BTreeSet::new();
    for position in 0..60 {
        let mut sample = wave();
        time_shift("x", 2)(&mut sample, &mut draws(position)).unwrap();
        let first = values(&sample, "x")[0] as usize / 2;
        let expected: Vec<f32> = (0..10).map(|i| ((first * 2 + i) % 10) as f32).collect();
        assert_eq!(values(&sample, "x"), expected);
        shifts.insert(first);
    }
    assert_eq!(shifts, BTreeSet::from([0, 1, 2, 3, 4]));
    let mut sample = wave();
    gain("x", 0.5, 2.0)(&mut sample, &mut draws(1)).unwrap();
    let factor = values(&sample, "x")[1];
    assert!((0.5..2.0).contains(&factor) && values(&sample, "x")[4] == 4.0 * factor);
    let mut silent = Sample::new().with("x", Field::f32([4000], vec![0.0; 4000]));
    noise("x", 0.5)(&mut silent, &mut draws(0)).unwrap();
    let square = values(&silent, "x").iter().map(|x| f64::from(x * x)).sum::<f64>() / 4000.0;
    assert!((square.sqrt() - 0.5).abs() < 0.02, "{square}");
    for position in 0..60 {
        let (mut sample, mut own) =
            (Sample::new().with("x", Field::f32([20, 8], vec![1.0; 160])), draws(position));
        spec_augment("x", [1, 6], [2, 3], 0.0)(&mut sample, &mut own).unwrap();
        assert_eq!(own.taken(), 6);
        let x = values(&sample, "x");
        let rows = (0..20).filter(|row| x[row * 8..][..8].iter().all(|value| *value == 0.0)).count();
        let columns = (0..8).filter(|column| (0..20).all(|row| x[row * 8 + column] == 0.0)).count();
        let masked = x.iter().filter(|value| **value == 0.0).count();
        assert!(rows <= 6 && columns <= 6 && masked == 160 - (20 - rows) * (8 - columns));
    }
    let mut odd = Sample::new().with("x", Field::f32([0, 3], [])).with("y", Field::i32([2], [1, 2]));
    let error = time_shift("x", 1)(&mut odd, &mut draws(0)).unwrap_err().to_string();
    assert_eq!(error, "field 'x': shape [0, 3] has no time");
    let error = spec_augment("y", [1, 1], [0, 0], 0.0)(&mut odd, &mut draws(0)).unwrap_err().to_string();
    assert_eq!(error, "field 'y': dtype i32, expected f32");
}
