//! Tables with borders, as etcdctl draws them.

/// A table with titled columns.
#[derive(Debug)]
pub(crate) struct Table {
    titles: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table. Titles are converted to upper case, with spaces in place of underscores.
    pub(crate) fn new(titles: &[&str], rows: Vec<Vec<String>>) -> Self {
        let titles = titles.iter().map(|title| title.to_uppercase().replace('_', " ")).collect();
        Self { titles, rows }
    }
}

fn width(text: &str) -> usize {
    text.chars().count()
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of_column = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(at));
            cells.chain([&self.titles[at]]).map(|cell| width(cell)).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..self.titles.len()).map(of_column).collect();
        let dashes: Vec<String> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
        let line = format!("+{}+", dashes.join("+"));
        writeln!(f, "{line}")?;
        for (title, column) in self.titles.iter().zip(&widths) {
            // Titles are centered. If the space is odd, the right side is one wider.
            let space = column - width(title);
            let left = space / 2;
            write!(f, "| {}{title}{} ", " ".repeat(left), " ".repeat(space - left))?;
        }
        writeln!(f, "|\n{line}")?;
        for row in &self.rows {
            for (cell, column) in row.iter().zip(&widths) {
                write!(f, "| {}{cell} ", " ".repeat(column - width(cell)))?;
            }
            writeln!(f, "|")?;
        }
        writeln!(f, "{line}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_titles_are_centered_and_cells_right_aligned() {
        let rows =
            vec![vec!["8e9e".to_owned(), "x".to_owned()], vec![String::new(), "yy".to_owned()]];
        let table = Table::new(&["id", "a name"], rows);
        let expected = "\
+------+--------+
|  ID  | A NAME |
+------+--------+
| 8e9e |      x |
|      |     yy |
+------+--------+
";
        assert_eq!(table.to_string(), expected);
    }
}
