//! Tables of metrics, such as confusion matrices, as loggers write them.

use crate::objective::metrics::Table;
use crate::{Epoch, LoggedImage};

/// The most rows and columns that are shown as a text.
const MOST_SHOWN: usize = 64;
/// The side of an image of a table in pixels, as far as a cell has at least one and at most `MOST_CELL`.
const IMAGE: usize = 256;
const MOST_CELL: usize = 32;

/// Returns the tables of an epoch, with `train` or `val` before each.
pub(crate) fn of_epoch(epoch: &Epoch) -> impl Iterator<Item = (&'static str, &str, &Table)> {
    let train = epoch.train.tables.iter().map(|(name, table)| ("train", &**name, table));
    let validation = epoch.validation.iter().flat_map(|validation| &validation.tables);
    train.chain(validation.map(|(name, table)| ("val", &**name, table)))
}

/// Returns a number of a table: whole numbers without a point.
pub(crate) fn cell(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 { format!("{value:.0}") } else { format!("{value:?}") }
}

/// Returns the lines of a table as CSV.
pub(crate) fn csv(table: &Table) -> String {
    let line = |row: &[f64]| {
        let cells: Vec<String> = row.iter().map(|value| cell(*value)).collect();
        format!("{}\n", cells.join(","))
    };
    table.rows().map(line).collect()
}

/// Returns a table in Markdown, with the numbers of its columns and rows. A very large one is cut off.
pub(crate) fn markdown(table: &Table) -> String {
    let [rows, columns] = table.shape();
    let shown = columns.min(MOST_SHOWN);
    let heads: String = (0..shown).map(|column| format!(" {column} |")).collect();
    let mut text = format!("| |{heads}\n|---|{}\n", "---|".repeat(shown));
    for (number, row) in table.rows().take(MOST_SHOWN).enumerate() {
        let cells: String = row.iter().take(shown).map(|value| format!(" {} |", cell(*value))).collect();
        text.push_str(&format!("| **{number}** |{cells}\n"));
    }
    if rows > MOST_SHOWN || columns > MOST_SHOWN {
        text.push_str(&format!("\n(the first of {rows} rows and {columns} columns)\n"));
    }
    text
}

/// Returns an image of a table: the darker a cell, the larger its share of the row's sum. `None` where there
/// are no cells, or too many.
pub(crate) fn image(table: &Table) -> Option<LoggedImage> {
    let [rows, columns] = table.shape();
    let side = (IMAGE / rows.max(columns).max(1)).clamp(1, MOST_CELL);
    let mut pixels = Vec::with_capacity(rows * columns * side * side);
    for row in table.rows() {
        let sum: f64 = row.iter().sum();
        let grey = |value: &f64| {
            let share = if sum > 0.0 { (value / sum).clamp(0.0, 1.0) } else { 0.0 };
            // NaN becomes 0, which is black.
            (255.0 * (1.0 - share)).round() as u8
        };
        let line: Vec<u8> = row.iter().flat_map(|value| std::iter::repeat_n(grey(value), side)).collect();
        (0..side).for_each(|_| pixels.extend(&line));
    }
    LoggedImage::new(u32::try_from(columns * side).ok()?, u32::try_from(rows * side).ok()?, 1, pixels).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::logged::tests::pixels_of;

    fn table() -> Table {
        Table::new(2, vec![3.0, 1.0, 0.0, 2.5])
    }

    #[test]
    fn texts_have_whole_numbers_and_others() {
        assert_eq!(csv(&table()), "3,1\n0,2.5\n");
        assert_eq!(
            markdown(&table()),
            "| | 0 | 1 |\n|---|---|---|\n| **0** | 3 | 1 |\n| **1** | 0 | 2.5 |\n"
        );
        let large = markdown(&Table::new(70, vec![1.0; 70 * 70]));
        assert!(large.ends_with("(the first of 70 rows and 70 columns)\n"), "{large}");
        assert_eq!(large.lines().count(), 2 + 64 + 2);
    }

    #[test]
    fn images_are_dark_where_the_share_is_large() {
        let image = image(&table()).unwrap();
        assert_eq!((image.width, image.height, image.channels), (64, 64, 1));
        let pixels = pixels_of(&image);
        let at = |row: usize, column: usize| pixels[row * 32 * 64 + column * 32];
        assert_eq!([at(0, 0), at(0, 1), at(1, 0), at(1, 1)], [64, 191, 255, 0]);
        assert!(super::image(&Table::default()).is_none());
    }
}
