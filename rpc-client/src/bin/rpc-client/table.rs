//! Tables of plain text.

/// The cells below `header`, each column as wide as its widest cell. Columns from `right` on are
/// numbers and end at the same place.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: &[[String; N]], right: usize) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or_default()
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |cells: [&str; N]| {
        let padded = cells.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column < right {
            true => format!("{cell:width$}"),
            false => format!("{cell:>width$}"),
        });
        // A column without anything in it takes no room.
        let shown = padded.filter(|cell| !cell.is_empty());
        shown.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let lines = rows.iter().map(|row| line(std::array::from_fn(|column| row[column].as_str())));
    std::iter::once(line(header)).chain(lines).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["a".into(), "µs".into(), "5".into()], ["long".into(), String::new(), "12345".into()]];
        assert_eq!(table(["NODE", "X", "CALLS"], &rows, 2), "NODE  X   CALLS\na     µs      5\nlong      12345");
    }
}
