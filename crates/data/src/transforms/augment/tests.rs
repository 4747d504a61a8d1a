mod blended;

use super::*;
use crate::{BoxError, Field, one_hot};

fn draws(position: u64) -> Draws {
    Draws::of(5, "map", "test", 0, position)
}

/// Returns a picture in which every value tells its place.
fn picture(height: usize, width: usize, channels: usize) -> Sample {
    let values: Vec<f32> = (0..height * width * channels).map(|i| i as f32).collect();
    Sample::new().with("x", Field::f32([height, width, channels], values))
}

fn run(transform: impl Transform, mut sample: Sample, position: u64) -> Result<Field, BoxError> {
    transform(&mut sample, &mut draws(position))?;
    Ok(sample.field("x").unwrap().clone())
}

fn values(field: &Field) -> &[f32] {
    field.values.as_f32().unwrap()
}

#[test]
fn flips_are_their_own_inverse() {
    let flipped = run(flip_horizontal("x", 1.0), picture(2, 3, 2), 0).unwrap();
    assert_eq!(values(&flipped), [4., 5., 2., 3., 0., 1., 10., 11., 8., 9., 6., 7.]);
    let flipped = run(flip_vertical("x", 1.0), picture(3, 1, 2), 0).unwrap();
    assert_eq!(values(&flipped), [4., 5., 2., 3., 0., 1.]);
    assert_eq!(
        run(flip_vertical("x", 0.0), picture(3, 1, 2), 0).unwrap(),
        *picture(3, 1, 2).field("x").unwrap()
    );
}

/// Checks that every crop is a window of the padded picture, and that all places occur.
#[test]
fn crops_cut_from_the_padded_picture() {
    let mut places = std::collections::HashSet::new();
    for position in 0..300 {
        let crop = run(random_crop("x", [3, 4], 1), picture(3, 4, 1), position).unwrap();
        let padded = |y: usize, x: usize| match (y, x) {
            (1..=3, 1..=4) => ((y - 1) * 4 + x - 1) as f32,
            _ => 0.0,
        };
        let place = (0..3)
            .flat_map(|top| (0..3).map(move |left| (top, left)))
            .find(|&(top, left)| (0..12).all(|i| values(&crop)[i] == padded(top + i / 4, left + i % 4)));
        places.insert(place.expect("a window"));
    }
    assert_eq!(places.len(), 9);
    let middle = run(center_crop("x", [1, 2]), picture(3, 4, 1), 0).unwrap();
    assert_eq!(values(&middle), [5., 6.]);
    let error = run(center_crop("x", [4, 2]), picture(3, 4, 1), 0).unwrap_err();
    assert_eq!(error.to_string(), "a crop of [4, 2] from [3, 4]");
}

#[test]
fn resizing_interpolates_between_centres() {
    let sample = || Sample::new().with("x", Field::f32([1, 2], [0.0, 4.0]));
    assert_eq!(run(resize("x", [1, 4]), sample(), 0).unwrap(), Field::f32([1, 4], [0., 1., 3., 4.]));
    assert_eq!(run(resize("x", [1, 1]), sample(), 0).unwrap(), Field::f32([1, 1], [2.]));
    let same = picture(5, 7, 3);
    assert_eq!(run(resize("x", [5, 7]), same.clone(), 0).unwrap(), *same.field("x").unwrap());
    assert!(run(resize("x", [0, 4]), sample(), 0).is_err());
    // A crop of the whole picture at its own ratio is the picture.
    let whole = run(resized_crop("x", [8, 8], [1.0, 1.0], [1.0, 1.0]), picture(8, 8, 3), 0).unwrap();
    assert_eq!(whole, *picture(8, 8, 3).field("x").unwrap());
    for position in 0..100 {
        let crop =
            run(resized_crop("x", [4, 6], [0.08, 1.0], [0.75, 1.3333]), picture(9, 5, 3), position).unwrap();
        assert_eq!(crop.shape, [4, 6, 3]);
        assert!(values(&crop).iter().all(|value| (0.0..135.0).contains(value)));
        // No ratio fits a strip, so the crop is its middle.
        assert!(
            run(resized_crop("x", [4, 6], [0.9, 1.0], [0.75, 1.3333]), picture(1, 90, 3), position).is_ok()
        );
    }
}

#[test]
fn the_plane_is_mapped_as_asked() {
    let identity = run(Affine::default().transform("x"), picture(4, 5, 3), 0).unwrap();
    assert_eq!(identity, *picture(4, 5, 3).field("x").unwrap());
    // These bounds leave one value: a quarter turn, a shift by one row, a zoom by two.
    let fixed = |affine: Affine, extents: [usize; 2]| {
        let map = affine.draw(extents, &mut draws(0));
        let at = |y: f64, x: f64| [map[0] * y + map[1] * x + map[2], map[3] * y + map[4] * x + map[5]];
        [at(0.0, 0.0), at(2.0, 0.0)]
    };
    let zoomed = fixed(Affine { zoom: [2.0, 2.0], ..Affine::default() }, [3, 3]);
    assert_eq!(zoomed, [[0.5, 0.5], [1.5, 0.5]]);
    for (affine, limit) in [
        (Affine { rotation: 30.0, ..Affine::default() }, 1.5),
        (Affine { shear: 30.0, ..Affine::default() }, 1.0),
        (Affine { shift: [0.5, 0.25], ..Affine::default() }, 2.2),
    ] {
        let moved = fixed(affine, [3, 3]);
        let distance = ((moved[0][0]).powi(2) + (moved[0][1]).powi(2)).sqrt();
        assert!(distance > 1e-6 && distance < limit, "{affine:?}: {moved:?}");
        // Neither changes the area: the first column stays as long, or only slides sideways.
        assert!((moved[1][0] - moved[0][0]).abs() <= 2.0 + 1e-12);
    }
    let sample = || Sample::new().with("x", Field::f32([2, 2], [1.0; 4]));
    let away = Affine { zoom: [0.01, 0.01], fill: Fill::Value(7.0), ..Affine::default() };
    assert_eq!(values(&run(away.transform("x"), sample(), 0).unwrap()), [7.0; 4]);
    assert_eq!(values(&run(zoom("x", 0.01, 0.01), sample(), 0).unwrap()), [1.0; 4]);
    for transform in
        [Affine { zoom: [0.0, 1.0], ..Affine::default() }, Affine { shear: 90.0, ..Affine::default() }]
    {
        assert!(run(transform.transform("x"), sample(), 0).is_err());
    }
    for position in 0..20 {
        assert!(run(rotation("x", 180.0), picture(3, 4, 2), position).is_ok());
        assert!(run(shift("x", 1.0, 1.0), picture(3, 4, 2), position).is_ok());
        assert!(run(shear("x", 80.0), picture(3, 4, 2), position).is_ok());
    }
}

/// Bits that must be the same on every platform.
#[test]
fn golden_bits() {
    let all = Affine { rotation: 40.0, shift: [0.2, 0.2], shear: 20.0, zoom: [0.7, 1.4], fill: Fill::Edge };
    let mut sample = picture(5, 6, 3);
    for (i, transform) in [
        Box::new(all.transform("x")) as Box<dyn Transform>,
        Box::new(resized_crop("x", [4, 4], [0.3, 0.9], [0.75, 1.3333])),
        Box::new(contrast("x", 0.5, 1.5)),
        Box::new(saturation("x", 0.5, 1.5)),
    ]
    .iter()
    .enumerate()
    {
        transform(&mut sample, &mut draws(i as u64)).unwrap();
    }
    let bits = values(sample.field("x").unwrap())
        .iter()
        .fold(0u64, |hash, value| (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01b3));
    assert_eq!(bits, GOLDEN, "{bits:#x}");
}

const GOLDEN: u64 = 0xec17_ae4a_ac5f_034a;

#[test]
fn colours() {
    let grey = || Sample::new().with("x", Field::f32([1, 2, 3], [2.0, 2.0, 2.0, 6.0, 6.0, 6.0]));
    let brighter = run(brightness("x", 1.0), grey(), 0).unwrap();
    let added = values(&brighter)[0] - 2.0;
    assert!(added.abs() <= 1.0 && (values(&brighter)[3] - 6.0 - added).abs() < 1e-6);
    assert_eq!(values(&run(contrast("x", 0.5, 0.5), grey(), 0).unwrap()), [3., 3., 3., 5., 5., 5.]);
    let same = run(saturation("x", 0.0, 0.0), grey(), 0).unwrap();
    assert!(
        values(&same).iter().zip([2., 2., 2., 6., 6., 6.]).all(|(a, b): (&f32, f32)| (a - b).abs() < 1e-6)
    );
    assert_eq!(values(&run(clamp("x", 3.0, 5.0), grey(), 0).unwrap()), [3., 3., 3., 5., 5., 5.]);
    assert!(run(clamp("x", f32::NAN, 5.0), grey(), 0).is_err());
    assert!(run(saturation("x", 0.0, 1.0), picture(2, 2, 1), 0).is_err());
}

#[test]
fn cutout_sets_a_square() {
    let mut areas = std::collections::HashSet::new();
    for position in 0..200 {
        let cut = run(cutout("x", 3, -1.0), picture(5, 5, 2), position).unwrap();
        areas.insert(values(&cut).iter().filter(|&&value| value == -1.0).count() / 2);
    }
    assert!(
        areas.contains(&9) && areas.contains(&4) && areas.iter().all(|&area| (4..=9).contains(&area)),
        "{areas:?}"
    );
}

#[test]
fn mixup_blends_features_and_targets_alike() {
    let mut batch = Sample::new()
        .with("x", Field::f32([4, 1], [0.0, 1.0, 2.0, 3.0]))
        .with("y", Field::i32([4], [0, 1, 2, 3]));
    one_hot("y", 4)(&mut batch, &mut draws(0)).unwrap();
    mixup(&["x", "y"], 0.4)(&mut batch, &mut draws(1)).unwrap();
    let (x, y) = (values(batch.field("x").unwrap()), values(batch.field("y").unwrap()));
    for (x, row) in x.iter().zip(y.chunks(4)) {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        let expected: f32 = row.iter().enumerate().map(|(class, share)| class as f32 * share).sum();
        assert!((x - expected).abs() < 1e-5);
    }
    assert!(y.iter().any(|share| *share > 0.0 && *share < 1.0));
    assert!(mixup(&["x"], 0.0)(&mut batch, &mut draws(1)).is_err());
    assert!(mixup(&["z"], 1.0)(&mut batch, &mut draws(1)).is_err());
}

#[test]
fn a_blend_that_leaves_the_targets_or_sees_one_sample_is_refused() {
    let pictures = || crate::Memory::labelled(vec![0.5; 4 * 192], [3, 8, 8], vec![0, 1, 2, 0]).unwrap();
    let blends: [fn() -> Box<dyn Transform>; 2] =
        [|| Box::new(mixup(&["x"], 1.0)), || Box::new(cutmix("x", "x", 1.0))];
    for (blend, name) in blends.into_iter().zip(["mixup", "cutmix"]) {
        let single = crate::Loader::new(pictures()).try_map("blend", blend());
        let error = single.fields().unwrap_err().to_string();
        let expected =
            format!("map 'blend': {name} blends the samples of a batch: give it to Loader::map_batch");
        assert!(error.ends_with(&expected), "{error}");
        let hard = crate::Loader::new(pictures()).map_batch("blend", blend());
        let error = hard.epoch(0).unwrap().next().unwrap().unwrap_err().to_string();
        assert!(error.contains(&format!("field 'y': {name} blends [\"x\"")), "{error}");
        let alone = crate::Loader::new(pictures()).map("x", |sample, _| drop(sample.remove("y")));
        alone.map_batch("blend", blend()).epoch(0).unwrap().next().unwrap().unwrap();
    }
}

#[test]
fn images_are_checked() {
    let error = |sample: Sample| run(flip_vertical("x", 1.0), sample, 0).unwrap_err().to_string();
    assert_eq!(error(Sample::new()), "field 'x': no such field");
    assert_eq!(
        error(Sample::new().with("x", Field::f32([2], [0.0; 2]))),
        "field 'x': shape [2] is not an image's"
    );
    // Labels are moved, and have no colours.
    let labels = || Sample::new().with("x", Field::i32([1, 1], [0]));
    assert!(run(flip_vertical("x", 1.0), labels(), 0).is_ok());
    let colours = run(brightness("x", 0.1), labels(), 0).unwrap_err().to_string();
    assert_eq!(colours, "field 'x': dtype i32, expected f32");
    assert_eq!(
        error(Sample::new().with("x", Field::f32([1, 2], [0.0]))),
        "field 'x': 1 values do not fill shape [1, 2]"
    );
    assert_eq!(error(Sample::new().with("x", Field::f32([0, 2], []))), "field 'x': shape [0, 2] is empty");
}

#[test]
fn pictures_with_channels_first_are_refused() {
    let first = || Sample::new().with("x", Field::f32([3, 8, 8], vec![0.5; 192]));
    let transforms: [Boxed; 4] = [
        Box::new(flip_horizontal("x", 0.5)),
        Box::new(random_crop("x", [3, 8], 0)),
        Box::new(rotation("x", 9.0)),
        Box::new(contrast("x", 0.5, 1.5)),
    ];
    for transform in transforms {
        let error = transform(&mut first(), &mut draws(0)).unwrap_err().to_string();
        assert!(error.contains("[3, 8, 8] looks like [channels, height, width]"), "{error}");
        assert!(error.contains("channels_first is the last transform"), "{error}");
    }
    // The layout does not matter to these.
    brightness("x", 0.1)(&mut first(), &mut draws(0)).unwrap();
    clamp("x", 0.0, 0.4)(&mut first(), &mut draws(0)).unwrap();
}

/// Any transform.
type Boxed = Box<dyn Fn(&mut Sample, &mut Draws) -> Result<(), BoxError>>;

/// A picture whose values tell their places, and a mask with the same ones.
fn with_mask(height: usize, width: usize) -> Sample {
    let places: Vec<i32> = (0..(height * width) as i32).collect();
    let pixels: Vec<f32> = places.iter().map(|&place| place as f32).collect();
    Sample::new()
        .with("x", Field::f32([height, width, 1], pixels))
        .with("mask", Field::i32([height, width], places))
}

/// Checks that a picture and its mask are moved alike: the labels stay labels of the picture, and where the
/// picture has whole pixels they are the mask's.
#[test]
fn a_picture_and_its_mask_get_the_same_draws() {
    let fields = ["x", "mask"];
    let moved: [Boxed; 6] = [
        Box::new(flip_horizontal(fields, 0.5)),
        Box::new(flip_vertical(vec!["x", "mask"], 0.5)),
        Box::new(random_crop(&fields[..], [3, 4], 1)),
        Box::new(center_crop(fields.map(String::from), [2, 2])),
        Box::new(cutout(fields, 2, 3.0)),
        Box::new(Affine::default().shift(0.0, 0.0).transform(fields)),
    ];
    for (at, transform) in moved.iter().enumerate() {
        let mut results = std::collections::HashSet::new();
        for position in 0..64 {
            let mut sample = with_mask(4, 5);
            transform(&mut sample, &mut draws(position)).unwrap();
            let pixels = values(sample.field("x").unwrap()).iter().map(|&x| x as i32).collect::<Vec<i32>>();
            assert_eq!(sample.field("mask").unwrap().values.as_i32(), Some(&pixels[..]), "transform {at}");
            results.insert(pixels);
        }
        assert_eq!(results.len() > 1, ![3, 5].contains(&at), "transform {at}: {}", results.len());
    }
    // Those that interpolate: a mask of two classes, half and half, follows the picture's edge.
    let halves = || {
        let half = |at: usize| at % 8 >= 4;
        let pixels: Vec<f32> = (0..64).map(|at| f32::from(u8::from(half(at)))).collect();
        let mask: Vec<i32> = (0..64).map(|at| 7 * i32::from(half(at))).collect();
        Sample::new().with("x", Field::f32([8, 8, 1], pixels)).with("mask", Field::i32([8, 8], mask))
    };
    let mixed: [Boxed; 8] = [
        Box::new(rotation(fields, 40.0)),
        Box::new(shift(fields, 0.3, 0.3)),
        Box::new(shear(fields, 20.0)),
        Box::new(zoom(fields, 0.5, 2.0)),
        Box::new(Affine::default().rotation(90.0).fill(Fill::Value(0.0)).transform(fields)),
        Box::new(resized_crop(fields, [6, 7], [0.2, 1.0], [0.7, 1.4])),
        Box::new(resize(fields, [5, 11])),
        Box::new(resize_smooth(fields, [16, 9])),
    ];
    for (at, transform) in mixed.iter().enumerate() {
        for position in 0..32 {
            let mut sample = halves();
            transform(&mut sample, &mut draws(position)).unwrap();
            let mask = sample.field("mask").unwrap().values.as_i32().unwrap().to_vec();
            for (pixel, label) in values(sample.field("x").unwrap()).iter().zip(&mask) {
                assert!([0, 7].contains(label), "transform {at}: {label}");
                let agrees = if *label == 7 { *pixel > 0.1 } else { *pixel < 0.9 };
                assert!(agrees, "transform {at}: {pixel} and {label}");
            }
        }
    }
    // The draws behind a transform of two fields are those behind one of one field.
    for position in 0..8 {
        let (mut one, mut two) = (draws(position), draws(position));
        random_crop("x", [3, 4], 1)(&mut with_mask(4, 5), &mut one).unwrap();
        random_crop(fields, [3, 4], 1)(&mut with_mask(4, 5), &mut two).unwrap();
        assert_eq!(one.next_u32(), two.next_u32());
    }
}

/// Percents in the place of probabilities, and bounds that are upside down.
#[test]
fn numbers_that_cannot_be_meant_are_refused() {
    let refused: [(Boxed, &str); 14] = [
        (Box::new(flip_horizontal("x", 50.0)), "flip_horizontal with a probability of 50"),
        (Box::new(flip_vertical("x", f32::NAN)), "flip_vertical with a probability of NaN"),
        (
            Box::new(random_erasing("x", 25.0, [0.1, 0.2], [0.5, 2.0], 0.0)),
            "random_erasing with a probability of 25",
        ),
        (Box::new(contrast("x", 1.5, 0.5)), "contrast from 1.5 to 0.5"),
        (Box::new(saturation("x", 1.5, 0.5)), "saturation from 1.5 to 0.5"),
        (Box::new(gain("x", 2.0, 0.5)), "gain from 2 to 0.5"),
        (Box::new(zoom("x", 1.2, 0.8)), "zoom from 1.2 to 0.8"),
        (Box::new(shift("x", 0.1, 4.0)), "shift by 4: it is a fraction"),
        (Box::new(shift("x", -0.1, 0.0)), "shift by -0.1: the largest change must be finite"),
        (Box::new(rotation("x", -15.0)), "rotation by -15: the largest change must be finite"),
        (Box::new(shear("x", f32::NAN)), "shear by NaN: the largest change must be finite"),
        (Box::new(brightness("x", -0.2)), "brightness by -0.2: the largest change must be finite"),
        (Box::new(brightness("x", f32::INFINITY)), "brightness by inf: the largest change must be finite"),
        (
            Box::new(resized_crop("x", [4, 4], [8.0, 100.0], [0.75, 1.3])),
            "resized_crop of areas within [8.0, 100.0]",
        ),
    ];
    for (transform, expected) in refused {
        let error = transform(&mut picture(5, 6, 3), &mut draws(0)).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn boxes_and_keypoints_are_no_pictures() {
    for (rows, width) in [(7, 4), (7, 5), (3, 2)] {
        let boxes = Field::f32([rows, width], vec![0.5; rows * width]);
        for fields in [["x", "boxes"], ["boxes", "x"]] {
            for transform in
                [Box::new(flip_horizontal(fields, 0.5)) as Boxed, Box::new(resize(fields, [3, 3]))]
            {
                let mut sample = picture(8, 6, 3).with("boxes", boxes.clone());
                let error = transform(&mut sample, &mut draws(0)).unwrap_err().to_string();
                let expected = format!("field 'boxes': shape [{rows}, {width}] is no picture like field 'x'");
                assert!(error.starts_with(&expected), "{error}");
                assert_eq!(sample.field("boxes"), Some(&boxes));
            }
        }
    }
    // A mask of another size is one, and so is a narrow picture.
    let mut sample = picture(8, 6, 3).with("mask", Field::i32([4, 3, 1], [1; 12]));
    flip_horizontal(["x", "mask"], 0.5)(&mut sample, &mut draws(0)).unwrap();
    let mut sample = picture(8, 4, 3).with("mask", Field::i32([8, 4], [1; 32]));
    flip_horizontal(["x", "mask"], 0.5)(&mut sample, &mut draws(0)).unwrap();
}

#[test]
fn labels_are_the_nearest_ones() {
    let mask = || Sample::new().with("x", Field::i32([2, 3], [1, 2, 3, i32::MIN, -1, i32::MAX]));
    let found = |transform: &dyn Fn(&mut Sample, &mut Draws) -> Result<(), BoxError>| {
        let mut sample = mask();
        transform(&mut sample, &mut draws(0)).map(|()| sample.field("x").unwrap().clone())
    };
    // The numbers are those of PyTorch's interpolate(mode="nearest-exact").
    let wanted = Field::i32([1, 5], [i32::MIN, i32::MIN, -1, i32::MAX, i32::MAX]);
    assert_eq!(found(&resize("x", [1, 5])).unwrap(), wanted);
    assert_eq!(found(&resize_smooth("x", [1, 5])).unwrap(), wanted);
    let flipped = Field::i32([2, 3], [3, 2, 1, i32::MAX, -1, i32::MIN]);
    assert_eq!(found(&flip_horizontal("x", 1.0)).unwrap(), flipped);
    // What comes in from beyond the edge is a label too.
    let far = Affine::default().zoom(0.01, 0.01).fill(Fill::Value(255.0));
    assert_eq!(found(&far.transform("x")).unwrap().values.as_i32().unwrap()[0], 255);
    let odd = Affine::default().fill(Fill::Value(0.5)).transform("x");
    assert_eq!(found(&odd).unwrap_err().to_string(), "0.5 is no label");
    let mut uneven = picture(4, 4, 1).with("mask", Field::i32([2, 2], [0; 4]));
    let error = random_crop(["x", "mask"], [2, 2], 0)(&mut uneven, &mut draws(0)).unwrap_err().to_string();
    assert_eq!(error, "field 'mask': 2 x 2 pixels, and field 'x' has 4 x 4");
    assert_eq!(uneven.field("x").unwrap().shape, [4, 4, 1]);
}
