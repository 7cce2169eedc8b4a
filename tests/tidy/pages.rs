//! Checks that the pages name types, errors and label values that exist.

use std::collections::BTreeSet;
use std::fs;

use super::{all_sources, pages, root, settle};

/// Items in the examples of pages that are not in the sources.
const EXAMPLES: &[&str] = &["Yawn"];

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// Returns the texts in backquotes outside of code blocks.
fn inline_code(page: &str) -> Vec<&str> {
    let outside = page.split("```").step_by(2);
    outside.flat_map(|text| text.split('`').skip(1).step_by(2)).collect()
}

/// Returns the pairs of a type and its item in a text, such as `Config` and `new` in `Config::new`.
fn items(code: &str) -> impl Iterator<Item = (&str, &str)> {
    code.match_indices("::").filter_map(|(at, _)| {
        let of = code[..at].rsplit(|c: char| !is_word(c)).next()?;
        let item = code[at + 2..].split(|c: char| !is_word(c)).next()?;
        (of.starts_with(char::is_uppercase) && !item.is_empty()).then_some((of, item))
    })
}

#[test]
fn pages_name_items_that_exist() {
    let sources = all_sources();
    let words: Vec<BTreeSet<&str>> =
        sources.iter().map(|(_, text)| text.split(|c: char| !is_word(c)).collect()).collect();
    let (mut named, mut problems) = (0, Vec::new());
    for (path, page) in pages() {
        for (of, item) in inline_code(&page).into_iter().flat_map(items) {
            named += 1;
            let exists = words.iter().any(|words| words.contains(of) && words.contains(item));
            if !exists && !EXAMPLES.contains(&item) {
                problems.push(format!("{}: there is no `{of}::{item}`", path.display()));
            }
        }
    }
    assert!(named > 200, "{named} items");
    settle(problems);
}

#[test]
fn errors_page_lists_every_error() {
    let (source, page) = (read("src/api/error.rs"), read("docs/errors.md"));
    let body = source.split("pub enum Error {").nth(1).and_then(|rest| rest.split("\n}").next());
    let variants: Vec<&str> = body
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with(char::is_uppercase))
        .filter_map(|line| line.split(|c: char| !is_word(c)).next())
        .collect();
    assert!(variants.len() > 15, "{variants:?}");
    let table = page.split("## Errors of calls").nth(1).unwrap().split("## ").next().unwrap();
    let listed = inline_code(table);
    settle(
        variants
            .iter()
            .filter(|variant| !listed.contains(variant))
            .map(|variant| format!("docs/errors.md: the table has no `{variant}`"))
            .collect(),
    );
}

#[test]
fn metrics_page_lists_exactly_the_label_values() {
    let (source, page) = (read("src/metrics/words.rs"), read("docs/operating/metrics.md"));
    let labels = [
        ("RequestKind", "kind"),
        ("Ending", "outcome"),
        ("Stage", "stage"),
        ("Refused", "reason"),
        ("NodeThread", "thread"),
    ];
    for (of, label) in labels {
        let body = source.split(&format!("\n    {of} {{\n")).nth(1).unwrap();
        let values: BTreeSet<&str> = body
            .lines()
            .take_while(|line| *line != "    }")
            .filter_map(|line| line.split('"').nth(1))
            .collect();
        assert!(!values.is_empty(), "{of}");
        let row = page.split(&format!("\n| `{label}` |")).nth(1).and_then(|row| row.lines().next());
        let listed: BTreeSet<&str> = inline_code(row.expect(label)).into_iter().collect();
        assert_eq!(listed, values, "docs/operating/metrics.md: the label `{label}`");
    }
}
