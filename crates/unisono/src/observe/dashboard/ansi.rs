//! Pictures as text for terminals.

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};
use ratatui::text::Span;

/// Returns what moves the cursor back to the first of so many lines.
pub(super) fn back(lines: u16) -> String {
    if lines == 0 { String::new() } else { format!("\x1b[{lines}A\r") }
}

/// Returns the lines of a picture, each cleared behind its end, with colours that end with the line.
pub(super) fn coloured(picture: &Buffer) -> String {
    let mut text = String::new();
    for line in lines(picture) {
        let mut style = (39, false);
        for (symbol, own) in line {
            if own != style {
                let weight = if own.1 { "1" } else { "22" };
                text.push_str(&format!("\x1b[{};{weight}m", own.0));
                style = own;
            }
            text.push_str(symbol);
        }
        text.push_str("\x1b[0m\x1b[K\n");
    }
    text
}

/// Returns the lines of a picture without colours.
pub(super) fn plain(picture: &Buffer) -> String {
    let line = |line: Vec<(&str, (u8, bool))>| {
        let text: String = line.iter().map(|(symbol, _)| *symbol).collect();
        format!("{}\n", text.trim_end())
    };
    lines(picture).map(line).collect()
}

/// Returns the symbols of each line, each with the code of its colour and whether it is bold.
fn lines(picture: &Buffer) -> impl Iterator<Item = Vec<(&str, (u8, bool))>> {
    let width = usize::from(picture.area.width).max(1);
    let symbol = |cell: &'_ ratatui::buffer::Cell| (code(cell.fg), cell.modifier.contains(Modifier::BOLD));
    picture.content.chunks(width).map(move |line| {
        let mut covered = 0;
        // A wide symbol covers the cells behind it, which hold blanks.
        let shown = line.iter().filter(|cell| {
            let is_shown = covered == 0;
            covered = if is_shown { Span::raw(cell.symbol()).width().max(1) - 1 } else { covered - 1 };
            is_shown
        });
        shown.map(|cell| (cell.symbol(), symbol(cell))).collect()
    })
}

/// Returns the code of a colour of the foreground.
fn code(colour: Color) -> u8 {
    match colour {
        Color::Red => 31,
        Color::Green => 32,
        Color::Yellow => 33,
        Color::Blue => 34,
        Color::Magenta => 35,
        Color::Cyan => 36,
        Color::DarkGray => 90,
        _ => 39,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    #[test]
    fn colours_are_set_where_they_change_and_end_with_the_line() {
        let mut picture = Buffer::empty(Rect::new(0, 0, 4, 2));
        picture.set_string(0, 0, "ab", Style::new().fg(Color::Cyan));
        picture.set_string(2, 0, "c", Style::new());
        picture.set_string(0, 1, "d", Style::new().add_modifier(Modifier::BOLD));
        let end = "\x1b[0m\x1b[K\n";
        assert_eq!(
            coloured(&picture),
            format!("\x1b[36;22mab\x1b[39;22mc {end}\x1b[39;1md\x1b[39;22m   {end}")
        );
        assert_eq!(plain(&picture), "abc\nd\n");
        assert_eq!((back(0), back(3)), (String::new(), "\x1b[3A\r".to_owned()));
    }

    #[test]
    fn wide_symbols_take_two_columns_and_no_blank_behind_them() {
        let mut picture = Buffer::empty(Rect::new(0, 0, 7, 1));
        picture.set_string(0, 0, "\u{6f22}a\u{5b57}\u{6f22}\u{5b57}", Style::new());
        assert_eq!(plain(&picture), "\u{6f22}a\u{5b57}\u{6f22}\n");
        let widths = |line: Vec<(&str, (u8, bool))>| line.iter().map(|cell| Span::raw(cell.0).width()).sum();
        assert_eq!(lines(&picture).map(widths).collect::<Vec<usize>>(), [7]);
    }
}
