//! The house's own rules, checked by reading the source: who may import whom, what no file may do, and
//! what every file must have.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Which modules of the library each one may name. `model`, the nouns, and `env`, the doors to the
/// world, are for everybody above them; nobody else is for everybody, but `mutant`, which is nothing.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("check", &[]),
    ("model", &[]),
    ("mutant", &[]),
    ("env", &["model"]),
    ("metrics", &["model"]),
    ("codec", &["model"]),
    ("wal", &["model", "codec", "env"]),
    ("snapshot", &["model", "codec", "env"]),
    ("transport", &["model", "codec", "env"]),
    ("consensus", &["model", "codec", "env", "wal"]),
    ("machine", &["model"]),
    ("warm", &["model", "codec", "env", "machine"]),
    ("watch", &["model", "machine"]),
    (
        "node",
        &[
            "model",
            "codec",
            "env",
            "metrics",
            "wal",
            "snapshot",
            "warm",
            "transport",
            "consensus",
            "machine",
            "watch",
        ],
    ),
    ("api", &["model", "env", "metrics", "transport", "machine", "watch", "node"]),
    ("backup", &["model", "env", "wal", "snapshot", "machine", "node", "api"]),
    ("recipes", &["model", "machine", "watch", "node", "api"]),
    ("testing", &["model", "env", "transport", "node", "api"]),
    ("fuzz", &["check", "codec", "wal", "snapshot", "transport", "consensus"]),
    (
        "sim",
        &[
            "model",
            "codec",
            "env",
            "wal",
            "snapshot",
            "warm",
            "transport",
            "consensus",
            "machine",
            "watch",
            "node",
            "api",
            "recipes",
        ],
    ),
];

/// Crates that belong to one module, since their types would otherwise be everywhere.
const FOREIGN: &[(&str, &[&str])] = &[
    ("raft::", &["consensus"]),
    ("protobuf::", &["consensus"]),
    ("slog::", &["consensus"]),
    ("sled::", &["warm"]),
    ("tokio::net", &["transport"]),
    ("tokio::runtime", &["transport"]),
    ("rustix::", &["env"]),
    ("rustls::", &["transport"]),
    ("webpki::", &["transport"]),
    ("rcgen::", &["testing"]),
    ("getrandom::", &["env"]),
    ("serde_json::", &["check"]),
];

/// Words that only the doors to the world may say: everything else must be replayable from a seed.
const NOT_DETERMINISTIC: &[&str] = &[
    "Instant::now",
    "SystemTime::now",
    "thread_rng",
    "rand::",
    "RandomState",
    "std::fs",
    "fs::File",
];

/// Modules that may say them: the doors, and those that run for real.
const DOORS: &[&str] = &["env", "testing"];

struct Source {
    path: PathBuf,
    /// The module of the library that the file belongs to.
    module: String,
    text: String,
}

impl Source {
    fn is_test(&self) -> bool {
        let stem = |part: std::path::Component<'_>| part.as_os_str() == "tests";
        self.path.ends_with("tests.rs")
            || self.path.ends_with("fuzz.rs")
            || self.path.strip_prefix(root()).unwrap().components().any(stem)
    }

    /// The lines that are code, with their numbers, without the tests at the end.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = self.text.find("#[cfg(test)]\nmod tests {").unwrap_or(self.text.len());
        let body = if self.is_test() { "" } else { &self.text[..tests] };
        body.lines()
            .enumerate()
            .map(|(i, line)| (i + 1, line))
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The files of the library: the command line is a crate of its own.
fn sources() -> Vec<Source> {
    let src = root().join("src");
    let mut paths = Vec::new();
    rust_files(&src, &mut paths);
    paths.sort();
    paths
        .into_iter()
        .filter_map(|path| {
            let inside = path.strip_prefix(&src).unwrap();
            let first = inside.components().next()?.as_os_str().to_str()?;
            let module = first.trim_end_matches(".rs").to_owned();
            let text = fs::read_to_string(&path).unwrap();
            (!["cli", "lib"].contains(&module.as_str())).then_some(Source { path, module, text })
        })
        .collect()
}

/// Fails with all complaints at once.
fn settle(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// The modules that a line names through `crate::`.
fn imports(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("crate::").filter_map(|(at, _)| {
        let rest = &line[at + "crate::".len()..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        (end > 0).then(|| &rest[..end])
    })
}

#[test]
fn a_module_imports_only_what_the_table_allows() {
    let table: BTreeMap<&str, &[&str]> = MAY_IMPORT.iter().copied().collect();
    let mut complaints = Vec::new();
    for source in sources() {
        let Some(allowed) = table.get(source.module.as_str()) else {
            complaints.push(format!("{}: module is not in the table", source.path.display()));
            continue;
        };
        for (number, line) in source.code() {
            for import in imports(line) {
                // What lib.rs re-exports by name is the public API: for what stands above it.
                let public = import.starts_with(char::is_uppercase);
                let above = ["api", "recipes", "testing", "sim"].contains(&source.module.as_str());
                let fine = import == source.module
                    || import == "mutant"
                    || allowed.contains(&import)
                    || (public && above)
                    || (source.module == "watch" && public);
                if !fine {
                    complaints.push(format!(
                        "{}:{number}: {} must not import {import}",
                        source.path.display(),
                        source.module
                    ));
                }
            }
        }
    }
    settle(complaints);
}

#[test]
fn the_table_has_no_cycle() {
    let table: BTreeMap<&str, &[&str]> = MAY_IMPORT.iter().copied().collect();
    let mut done: BTreeSet<&str> = BTreeSet::new();
    while done.len() < table.len() {
        let next: Vec<&str> = table
            .iter()
            .filter(|(module, needs)| {
                !done.contains(*module) && needs.iter().all(|need| done.contains(need))
            })
            .map(|(module, _)| *module)
            .collect();
        assert!(!next.is_empty(), "a cycle among {:?}", table.keys().collect::<Vec<_>>());
        done.extend(next);
    }
}

#[test]
fn a_foreign_crate_stays_in_its_module() {
    let mut complaints = Vec::new();
    for source in sources() {
        for (number, line) in source.code() {
            for (words, modules) in FOREIGN {
                let named = line.match_indices(words).any(|(at, _)| {
                    !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
                });
                if named && !modules.contains(&source.module.as_str()) {
                    complaints.push(format!(
                        "{}:{number}: {words} belongs to {modules:?}",
                        source.path.display()
                    ));
                }
            }
        }
    }
    settle(complaints);
}

#[test]
fn sled_is_named_in_one_file() {
    let named = |source: &Source| source.code().any(|(_, line)| line.contains("sled::"));
    let files: Vec<_> = sources().into_iter().filter(named).map(|source| source.path).collect();
    assert_eq!(files, [root().join("src/warm/on_disk.rs")]);
}

#[test]
fn only_the_doors_to_the_world_are_not_deterministic() {
    let mut complaints = Vec::new();
    for source in sources().iter().filter(|source| !DOORS.contains(&source.module.as_str())) {
        for (number, line) in source.code() {
            for words in NOT_DETERMINISTIC.iter().filter(|words| line.contains(**words)) {
                complaints.push(format!("{}:{number}: {words}", source.path.display()));
            }
        }
    }
    settle(complaints);
}

/// A limit that was renamed must be renamed in the operators' page.
#[test]
fn the_page_of_limits_names_limits_that_exist() {
    let page = fs::read_to_string(root().join("docs/operating/limits.md")).unwrap();
    let sources = sources();
    let mut complaints = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        // What, then the bound.
        let bound = row.split('|').nth(2).unwrap_or_default();
        for name in bound.split('`').skip(1).step_by(2) {
            let last = name.rsplit("::").next().unwrap_or(name);
            if !sources.iter().any(|source| source.code().any(|(_, line)| line.contains(last))) {
                complaints.push(format!("docs/operating/limits.md: there is no {name}"));
            }
        }
    }
    settle(complaints);
}

#[test]
fn the_page_of_what_happened_to_others_names_tests_that_exist() {
    let page = fs::read_to_string(root().join("docs/history.md")).unwrap();
    let mut named = 0;
    for cell in page.lines().filter_map(|row| row.trim_end_matches(" |").rsplit(" | ").next()) {
        for test in cell.split(", `").filter_map(|test| test.trim_matches('`').split_once("`: ")) {
            let (file, name) = test;
            let mut files = vec![format!("src/{file}.rs"), format!("tests/{file}.rs")];
            let folder = fs::read_dir(root().join("tests").join(file));
            files.extend(folder.into_iter().flatten().map(|entry| {
                format!("tests/{file}/{}", entry.unwrap().file_name().to_string_lossy())
            }));
            let says = |file: &String| {
                let text = fs::read_to_string(root().join(file)).unwrap_or_default();
                text.contains(&format!("fn {name}("))
            };
            assert!(files.iter().any(says), "{file} has no test {name}");
            named += 1;
        }
    }
    assert!(named > 80, "{named} tests were named");
}

#[test]
fn every_file_says_what_it_is() {
    let mut complaints = Vec::new();
    for source in sources() {
        if !source.text.starts_with("//!") {
            complaints.push(format!("{}: no //! page", source.path.display()));
        }
        let name = source.path.file_stem().unwrap().to_str().unwrap();
        if ["utils", "util", "common", "helpers", "misc", "manager", "handler"].contains(&name) {
            complaints.push(format!("{}: a name that says nothing", source.path.display()));
        }
    }
    settle(complaints);
}

#[test]
fn nothing_pretends() {
    let mut complaints = Vec::new();
    for source in sources() {
        for (number, line) in source.text.lines().enumerate() {
            for words in ["todo!(", "unimplemented!(", "#[ignore", "FIXME", "XXX"] {
                if line.contains(words) {
                    complaints.push(format!("{}:{}: {words}", source.path.display(), number + 1));
                }
            }
        }
    }
    // The pauses of the transport are timers of its own runtime: no thread and no turn waits in them.
    for source in sources().into_iter().filter(|source| source.module != "transport") {
        for (number, line) in source.code().filter(|(_, line)| line.contains("::sleep")) {
            complaints.push(format!("{}:{number}: {}", source.path.display(), line.trim()));
        }
    }
    settle(complaints);
}
