//! Pictures of one object each, in memory.

use unisono::data::{DataError, Draws, Memory};

/// The rows and columns of a picture of [`objects`].
pub const OBJECTS_SIDE: usize = 32;
/// The most pixels from the middle of an object to its edge.
pub const OBJECTS_REACH: f32 = 6.0;

/// Draws pictures of one object in noise, a disc, a cross or a ring, `x` `[1, 32, 32]` with the class `y`.
/// Returns the places of their middles, too.
///
/// # Errors
/// There are too many pictures for the memory.
pub fn objects(count: usize, seed: u64) -> Result<(Memory, Vec<[f32; 2]>), DataError> {
    let mut draws = Draws::of(seed, "example", "objects", 0, 0);
    let (mut x, mut y, mut places) = (vec![], vec![], vec![]);
    for _ in 0..count {
        let (class, place) = (
            draws.below(3) as i32,
            [0, 1].map(|_| draws.range(OBJECTS_REACH, OBJECTS_SIDE as f32 - OBJECTS_REACH)),
        );
        for at in 0..OBJECTS_SIDE * OBJECTS_SIDE {
            let [down, right] =
                [(at / OBJECTS_SIDE) as f32 - place[0], (at % OBJECTS_SIDE) as f32 - place[1]].map(f32::abs);
            let far = (down * down + right * right).sqrt();
            let bright = match class {
                0 => far < 4.0,
                1 => far < 5.0 && down.min(right) < 1.2,
                _ => (far - 4.5).abs() < 1.0,
            };
            x.push(f32::from(u8::from(bright)) + 0.3 * draws.normal());
        }
        y.push(class);
        places.push(place);
    }
    Ok((Memory::labelled(x, [1, OBJECTS_SIDE, OBJECTS_SIDE], y)?, places))
}
