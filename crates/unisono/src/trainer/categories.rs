//! What data say of themselves: what they pass over, and what their whole numbers stand for.

use unisono_data::{Categories, Loader, differing_category};

use crate::{Error, Trainer};

impl Trainer {
    /// Tells observers what the data of a fit pass over, once, and keeps what their categories are called.
    ///
    /// # Errors
    /// The validation data number the same categories differently.
    pub(super) fn note_data(&mut self, train: &Loader, validation: Option<&Loader>) -> Result<(), Error> {
        for note in [Some(train), validation].into_iter().flatten().flat_map(|loader| loader.source().notes())
        {
            if self.watch.told_of_data.insert(note.clone()) {
                self.watch.note(&format!("note: {note}"));
            }
        }
        self.categories = train.source().categories();
        validation
            .map_or(Ok(()), |loader| self.check_categories(loader))
            .map_err(|error| Error::Validation(Box::new(error)))
    }

    /// Checks that data number categories as the training data do, where both say.
    ///
    /// # Errors
    /// They do not; the first number that stands for something else is named.
    pub(super) fn check_categories(&self, loader: &Loader) -> Result<(), Error> {
        self.check_names(&loader.source().categories())
    }

    fn check_names(&self, other: &Categories) -> Result<(), Error> {
        let Some(differing) = differing_category(&self.categories, other) else { return Ok(()) };
        let what = format!(
            "their numbers stand for something else than in the training data: {differing} (ImageFolder::like, \
             ImageFolder::classes and Csv::like number alike)"
        );
        Err(Error::setting("categories", what))
    }
}
