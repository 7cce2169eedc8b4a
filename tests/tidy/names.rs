//! Checks that a type's name means one thing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::sources;

/// Part of the library's types that may share their name with a type in another file, in percent.
const SHARED_PERCENT_MAX: usize = 5;

/// Returns the name of the type that a line of code defines.
fn defined_type(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    if !["struct", "enum", "trait"].contains(&words.next()?) {
        return None;
    }
    let rest = words.next()?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(&rest[..end])
}

#[test]
fn types_do_not_share_names() {
    let mut files: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    let mut types = 0;
    for source in sources() {
        for name in source.code().filter_map(|(_, line)| defined_type(line)) {
            types += 1;
            files.entry(name.to_owned()).or_default().insert(source.path.clone());
        }
    }
    assert!(types > 900, "{types} types");
    files.retain(|_, files| files.len() > 1);
    let shared: usize = files.values().map(BTreeSet::len).sum();
    let names: Vec<&String> = files.keys().collect();
    assert!(
        shared * 100 <= types * SHARED_PERCENT_MAX,
        "{shared} of {types} types share a name with a type in another file: {names:?}"
    );
}
