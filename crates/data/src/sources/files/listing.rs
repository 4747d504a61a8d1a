//! Finds the pictures of each class in a folder, and records the files that it skips.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::DataError;
use crate::sources::directories::{empty_classes, is_hidden, is_of_the_system, names};

/// The pictures of a folder with one directory a class, before they are decoded.
#[derive(Clone, Debug, Default)]
pub(super) struct Listing {
    /// The names of the classes, in the order of their numbers.
    pub classes: Vec<String>,
    /// Each file's path under the root, and its class.
    pub files: Vec<(PathBuf, i32)>,
    /// What was passed over, in words, and how many there are of it.
    pub passed_over: BTreeMap<String, u64>,
    /// How many pictures lie deeper than directly in the directory of their class, and the first one.
    deeper: (u64, PathBuf),
}

/// The usual names of the parts of a data set.
const PARTS: [&str; 8] = ["train", "training", "val", "valid", "validation", "dev", "test", "testing"];
/// How many directories may lie within each other. More are taken for a mistake.
const MOST_DEPTH: usize = 64;
/// Whether files of more formats than JPEG and PNG are decoded.
const MORE: bool = cfg!(feature = "more-pictures");
/// How the names of files of these formats end.
const MORE_EXTENSIONS: [&str; 5] = ["webp", "bmp", "gif", "tif", "tiff"];
/// How the names of JPEG and PNG files end.
const EXTENSIONS: [&str; 9] = ["jpg", "jpeg", "jpe", "jfif", "jif", "pjpeg", "pjp", "png", "apng"];

impl Listing {
    /// Lists a directory and the directories in it. No picture is opened.
    pub fn of(root: &Path) -> Result<Self, DataError> {
        let mut listing = Self::default();
        for name in names(root)? {
            let path = root.join(&name);
            if !path.is_dir() {
                if is_picture(&name) && !is_hidden(&name) {
                    listing.pass_over("pictures outside of the classes' directories");
                }
                continue;
            }
            if is_hidden(&name) || is_of_the_system(&name) {
                listing.pass_over_directory(&name);
                continue;
            }
            let class = name.to_str().ok_or_else(|| DataError::format(&path, "the name is not UTF-8"))?;
            let number = i32::try_from(listing.classes.len()).map_err(DataError::other)?;
            listing.classes.push(class.to_owned());
            let first = listing.files.len();
            listing.enter(root, &name, number, &mut vec![])?;
            // Files of directories within come between those of the directory itself.
            listing.files[first..].sort_by_cached_key(|(file, _)| portable(file));
        }
        Ok(listing)
    }

    /// Lists the directory of a class, or one in it. `above` has the directories that hold it.
    fn enter(
        &mut self,
        root: &Path,
        under: &Path,
        class: i32,
        above: &mut Vec<PathBuf>,
    ) -> Result<(), DataError> {
        let directory = root.join(under);
        let real =
            directory.canonicalize().map_err(|cause| DataError::Io { path: directory.clone(), cause })?;
        if above.contains(&real) || above.len() >= MOST_DEPTH {
            return Err(DataError::format(&directory, "the directory lies within itself, by a link"));
        }
        above.push(real);
        for name in names(&directory)? {
            let file = under.join(&name);
            if root.join(&file).is_dir() {
                if is_hidden(&name) || is_of_the_system(&name) {
                    self.pass_over_directory(&name);
                } else {
                    self.enter(root, &file, class, above)?;
                }
            } else if is_hidden(&name) {
                if is_picture(&name) {
                    self.pass_over("pictures whose names start with a dot");
                }
            } else if is_picture(&name) {
                if above.len() > 1 {
                    if self.deeper.0 == 0 {
                        self.deeper.1.clone_from(&file);
                    }
                    self.deeper.0 += 1;
                }
                self.files.push((file, class));
            } else if !MORE && has_extension(&name, &MORE_EXTENSIONS) {
                let what = "WebP, BMP, GIF and TIFF files need the feature more-pictures";
                return Err(DataError::format(&root.join(file), what));
            } else if !is_file_of_the_system(&name) {
                let ending = name.extension().map(|ending| ending.to_string_lossy().to_lowercase());
                match ending {
                    Some(ending) => self.pass_over(&format!("files that end in .{ending}")),
                    None => self.pass_over("files without an ending"),
                }
            }
        }
        above.pop();
        Ok(())
    }

    /// Whether the directories in the place of classes are called as the parts of a data set are, and hold
    /// the directories of the classes.
    pub fn has_parts(&self) -> bool {
        let is_part = |name: &String| PARTS.iter().any(|part| name.eq_ignore_ascii_case(part));
        self.deeper.0 > 0 && self.deeper.0 == self.files.len() as u64 && self.classes.iter().all(is_part)
    }

    fn pass_over(&mut self, what: &str) {
        *self.passed_over.entry(what.to_owned()).or_default() += 1;
    }

    fn pass_over_directory(&mut self, name: &Path) {
        self.pass_over(&format!("directories called {}", name.display()));
    }

    /// Numbers the classes in another order, and passes pictures of other classes over.
    ///
    /// # Errors
    /// A class comes twice; with `only`, there are pictures of a class that is not among them; there are no
    /// pictures of these classes. The error is the message.
    pub fn number(&mut self, classes: Vec<String>, only: bool) -> Result<(), String> {
        let mut numbers = BTreeMap::new();
        for (name, number) in classes.iter().zip(0..) {
            if numbers.insert(name.as_str(), number).is_some() {
                return Err(format!("the class {name:?} is given twice"));
            }
        }
        let number_of: Vec<Option<i32>> =
            self.classes.iter().map(|name| numbers.get(name.as_str()).copied()).collect();
        let mut files = Vec::with_capacity(self.files.len());
        for (file, class) in std::mem::take(&mut self.files) {
            let number =
                usize::try_from(class).ok().and_then(|class| number_of.get(class).copied().flatten());
            match number {
                Some(number) => files.push((file, number)),
                None if only => {
                    let class = file.iter().next().unwrap_or_default().to_string_lossy();
                    return Err(format!("the class {class:?} is none of {classes:?}"));
                }
                None => {
                    let class = file.iter().next().unwrap_or_default().to_string_lossy().into_owned();
                    self.pass_over(&format!("pictures of the class {class:?}, which was not asked for"));
                }
            }
        }
        if files.is_empty() {
            return Err(format!("no pictures of the classes {classes:?}: there are {:?}", self.classes));
        }
        files.sort_by_key(|(_, class)| *class);
        (self.files, self.classes) = (files, classes);
        Ok(())
    }

    /// Returns in sentences what was passed over, and which classes have no pictures.
    pub fn notes(&self, root: &Path) -> Vec<String> {
        let root = root.display();
        let mut notes = Vec::new();
        if !self.passed_over.is_empty() {
            let all: Vec<String> =
                self.passed_over.iter().map(|(what, count)| format!("{what}: {count}")).collect();
            notes.push(format!("{root}: passed over {}", all.join(", ")));
        }
        let classes = self.files.iter().map(|(_, class)| *class);
        notes.extend(
            empty_classes(&self.classes, classes).map(|empty| format!("{root}: no pictures of {empty}")),
        );
        if let (count @ 1.., first) = &self.deeper {
            let first = first.display();
            notes.push(format!(
                "{root}: pictures in directories within those of the classes: {count}, such as {first}"
            ));
        }
        notes
    }
}

/// Returns the bytes of a path with `/` between names, as on Unix, whatever stands there on this system.
pub(super) fn portable(path: &Path) -> Vec<u8> {
    let names: Vec<&[u8]> = path.iter().map(OsStr::as_encoded_bytes).collect();
    names.join(&b'/')
}

fn is_file_of_the_system(name: &Path) -> bool {
    ["Thumbs.db", "desktop.ini"].iter().any(|own| name.as_os_str().eq_ignore_ascii_case(own))
}

fn is_picture(file: &Path) -> bool {
    has_extension(file, &EXTENSIONS) || MORE && has_extension(file, &MORE_EXTENSIONS)
}

fn has_extension(file: &Path, extensions: &[&str]) -> bool {
    let known = |extension: &OsStr| extensions.iter().any(|known| extension.eq_ignore_ascii_case(known));
    file.extension().is_some_and(known)
}
