//! Pictures that are made: a folder of small PNG files, in a folder for each class.

use std::fs;
use std::path::{Path, PathBuf};

use unisono::data::Draws;

use crate::Error;

/// The rows and columns of a picture.
const SIDE: usize = 16;
/// The classes with their numbers of pictures.
const CLASSES: [(&str, usize); 3] = [("cross", 30), ("disc", 200), ("ring", 200)];

/// Makes a folder of pictures in the system's directory for temporary files, unless it is there: crosses,
/// which are rare, discs and rings, at any place, on noise. They are the same each time.
///
/// # Errors
/// A file cannot be written.
pub fn pictures() -> Result<PathBuf, Error> {
    let root = std::env::temp_dir().join("unisono-pictures-1");
    if root.is_dir() {
        return Ok(root);
    }
    // A folder that is there is complete.
    let half = std::env::temp_dir().join(format!("unisono-pictures-1-{}", std::process::id()));
    // Others may write to that directory: a folder or a link that somebody else made is not used.
    fs::create_dir(&half).map_err(|error| format!("{}: {error}", half.display()))?;
    for (class, (name, count)) in CLASSES.iter().enumerate() {
        fs::create_dir_all(half.join(name))?;
        for number in 0..*count {
            let file = half.join(name).join(format!("{number:03}.png"));
            write(&file, &picture(class, number))?;
        }
    }
    if fs::rename(&half, &root).is_err() && !root.is_dir() {
        return Err(format!("{} cannot be made", root.display()).into());
    }
    // Another program was faster.
    fs::remove_dir_all(&half).ok();
    Ok(root)
}

/// Returns the grey values of a picture.
fn picture(class: usize, number: usize) -> Vec<u8> {
    let mut draws = Draws::of(7, "example", "pictures", class as u32, number as u64);
    let middle = [0, 1].map(|_| draws.range(5.0, 11.0));
    let size = draws.range(3.0, 4.5);
    let mut pixels = Vec::with_capacity(SIDE * SIDE);
    for at in 0..SIDE * SIDE {
        let [y, x] = [(at / SIDE) as f32 - middle[0], (at % SIDE) as f32 - middle[1]];
        let far = (x * x + y * y).sqrt();
        let inside = match class {
            0 => far < size && x.abs().min(y.abs()) < 0.8,
            1 => far < size,
            _ => (far - size).abs() < 0.9,
        };
        let value = if inside { 190.0 } else { 40.0 } + 25.0 * draws.normal();
        pixels.push(value.clamp(0.0, 255.0) as u8);
    }
    pixels
}

fn write(path: &Path, pixels: &[u8]) -> Result<(), Error> {
    let mut encoder = png::Encoder::new(fs::File::create_new(path)?, SIDE as u32, SIDE as u32);
    encoder.set_color(png::ColorType::Grayscale);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    // Dropped, the writer would keep the error of the file's end to itself.
    Ok(writer.finish()?)
}
