//! Rules on the form of production code of all crates: imports name what they import, mutants are
//! marked by statements or conditions, and structs stay small.

use super::{all_sources, settle};

/// Maximum number of fields of a struct.
const FIELDS_MAX: usize = 15;

/// Structs with more fields: options and reports, which consist of independent values, and structs
/// that should be split. The numbers may only shrink.
const LARGE_STRUCTS: &[(&str, usize)] = &[
    ("CheckOptions", 20),
    ("Config", 32),
    ("Consensus", 19),
    ("DirectoryInfo", 19),
    ("Judge", 19),
    ("LogWriter", 19),
    ("NodeStatus", 16),
    ("Settings", 29),
    ("SimNode", 26),
    ("Summary", 24),
    ("Task", 16),
    ("TcpSettings", 17),
    ("World", 21),
];

/// A file of production code, without the tests at its end.
struct Production {
    path: String,
    text: String,
}

impl Production {
    /// Returns the lines without comments, with their numbers.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(at, line)| (at + 1, line));
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

fn production() -> Vec<Production> {
    let is_production = |path: &str| {
        let is_test = path.contains("/tests/")
            || path.ends_with("/tests.rs")
            || path.ends_with("/fuzz.rs")
            || path.contains("/testkit/")
            || path.contains("/benches/");
        (path.starts_with("src/") || path.starts_with("jepsen/src/")) && !is_test
    };
    let all = all_sources().into_iter().map(|(path, text)| (path.display().to_string(), text));
    let of_production = all.filter(|(path, _)| is_production(path));
    let without_tests = of_production.map(|(path, mut text)| {
        let tests = ["]\nmod tests {", "]\npub(crate) mod tests {"];
        let end = tests.iter().filter_map(|tests| text.find(tests)).min();
        text.truncate(end.unwrap_or(text.len()));
        Production { path, text }
    });
    without_tests.collect()
}

/// Complains about each line of this form.
fn forbid(is_forbidden: impl Fn(&str) -> bool) {
    let mut problems = Vec::new();
    for file in production() {
        let found = file.code().filter(|(_, line)| is_forbidden(line));
        problems
            .extend(found.map(|(number, line)| format!("{}:{number}: {}", file.path, line.trim())));
    }
    settle(problems);
}

#[test]
fn production_code_has_no_glob_imports() {
    forbid(|line| {
        let line = line.trim_start();
        let is_import =
            line.starts_with("use ") || line.starts_with("pub") && line.contains(" use ");
        is_import && line.contains('*')
    });
}

#[test]
fn no_code_matches_on_a_mutant() {
    forbid(|line| {
        line.split_once("match ")
            .is_some_and(|(_, rest)| rest.contains("mutant!(") || rest.contains("mutant::is("))
    });
}

#[test]
fn structs_have_few_fields() {
    let mut problems = Vec::new();
    for file in production() {
        let mut lines = file.code();
        while let Some((number, line)) = lines.next() {
            let Some((before, name)) = line.split_once("struct ") else { continue };
            let is_declaration = before.trim().is_empty() || before.trim_start().starts_with("pub");
            if !is_declaration || !line.ends_with('{') {
                continue;
            }
            let indent = before.len() - before.trim_start().len();
            let is_field = |line: &str| {
                let field = line.trim_start().trim_start_matches("pub(crate) ");
                let field = field.trim_start_matches("pub(super) ").trim_start_matches("pub ");
                let name = field.split(':').next().unwrap_or_default();
                line.len() - line.trim_start().len() == indent + 4
                    && field.contains(": ")
                    && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            };
            let end = format!("{}}}", " ".repeat(indent));
            let body = lines.by_ref().take_while(|(_, line)| *line != end);
            let fields = body.filter(|(_, line)| is_field(line)).count();
            let name: String = name.chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
            let max = LARGE_STRUCTS.iter().find(|(large, _)| *large == name);
            let max = max.map_or(FIELDS_MAX, |(_, max)| *max);
            if fields > max {
                let path = &file.path;
                problems
                    .push(format!("{path}:{number}: {name} has {fields} fields, at most {max}"));
            }
        }
    }
    settle(problems);
}
