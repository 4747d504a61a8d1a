//! Plain tables.

/// Returns rows as a table: each column as wide as its longest cell, two spaces between columns, none at the
/// end of a line.
pub fn table<R: AsRef<[String]>>(rows: &[R]) -> String {
    let columns = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let wide = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.as_ref().get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(wide).collect();
    let line = |row: &R| {
        let cells = row.as_ref().iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns a number of bytes as a text such as `1.5 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (count.max(1).ilog2() as usize / 10).min(UNITS.len() - 1);
    let value = count as f64 / (1u64 << (10 * unit)) as f64;
    let digits = usize::from(unit > 0 && value.fract() != 0.0);
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["a", "bcd", ""], ["ab", "c", "d"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows), "a   bcd\nab  c    d");
    }

    #[test]
    fn bytes_in_the_largest_unit_that_fits() {
        let shown = [0, 1023, 1024, 1536, 128 << 20, 3 << 39].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1 KiB", "1.5 KiB", "128 MiB", "1.5 TiB"]);
    }
}
