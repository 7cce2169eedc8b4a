//! The rules of the project, checked by reading the source: allowed imports, forbidden constructs, required parts of
//! each file, and references from pages to code.

mod circles;
mod forms;
mod names;
mod pages;
mod prose;
mod upstream;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of the library that each module may import. `model` and `env` are for all modules above them. Every
/// module may also import `mutant`.
const MAY_IMPORT: &[(&str, &[&str])] = &[
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
    ("lock_format", &["model"]),
    ("recipes", &["model", "lock_format", "machine", "watch", "node", "api"]),
    ("testing", &["model", "env", "transport", "node", "api"]),
    ("tower", &["model", "node", "api", "recipes"]),
    ("fuzz", &["codec", "wal", "snapshot", "transport", "consensus"]),
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
            "lock_format",
            "recipes",
        ],
    ),
];

/// Crates that only the named modules may use, so that their types do not spread.
const FOREIGN: &[(&str, &[&str])] = &[
    ("raft::", &["consensus"]),
    ("protobuf::", &["consensus"]),
    ("slog::", &["consensus"]),
    ("sled::", &["warm"]),
    ("tokio::net", &["transport"]),
    ("tokio::runtime", &["api", "transport"]),
    ("rustix::", &["env"]),
    ("serde_json::", &["api", "metrics", "recipes"]),
    ("toml::", &["api"]),
    ("clap::", &["api"]),
    ("rustls::", &["transport"]),
    ("webpki::", &["transport"]),
    // The transport uses this crate only in a test that needs an intermediate authority.
    ("rcgen::", &["testing", "transport"]),
    ("getrandom::", &["env"]),
    ("tower_layer::", &["tower"]),
    ("tower_service::", &["tower"]),
    // Only in tests.
    ("bowline_testkit::", &["fuzz"]),
];

/// The packages of this repository that each other package may depend on.
const CRATES: &[(&str, &[&str])] = &[
    ("src/crates/raft", &["bowline-raft-proto"]),
    ("src/crates/raft-proto", &[]),
    ("src/crates/check", &[]),
    ("src/crates/proto", &[]),
    ("src/crates/fleet", &["bowline"]),
    ("src/crates/demo", &["bowline", "bowline-check", "bowline-fleet"]),
    ("src/crates/testkit", &["bowline", "bowline-check", "bowline-fleet", "bowline-proto"]),
    ("src/crates/server", &["bowline", "bowline-proto"]),
    ("src/crates/client", &["bowline-proto"]),
    ("src/crates/python", &["bowline"]),
    (
        "src/crates/cli",
        &[
            "bowline",
            "bowline-check",
            "bowline-client",
            "bowline-demo",
            "bowline-fleet",
            "bowline-proto",
            "bowline-server",
        ],
    ),
    ("jepsen", &["bowline", "bowline-check", "bowline-fleet", "bowline-proto"]),
    ("docs/examples/service", &["bowline"]),
];

/// Sources of nondeterminism, which only the modules in [`DOORS`] may use. Everything else must be replayable from a
/// seed.
const NOT_DETERMINISTIC: &[&str] = &[
    "Instant::now",
    "SystemTime::now",
    "thread_rng",
    "rand::",
    "RandomState",
    "std::fs",
    "fs::File",
];

/// Modules that may use sources of nondeterminism: the environment, and the cluster for tests of
/// programs.
const DOORS: &[&str] = &["env", "testing"];

struct Source {
    path: PathBuf,
    /// The module of the library to which the file belongs.
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

    /// Returns the lines of code with their numbers, without comments and without the tests at the end.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = self.text.find("]\nmod tests {").unwrap_or(self.text.len());
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

/// Returns the files of the library, without those of the other crates.
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
            (!["crates", "lib"].contains(&module.as_str())).then_some(Source { path, module, text })
        })
        .collect()
}

/// Returns all handwritten Rust files: the library, the command line, the harness, tests, benches and examples.
fn all_sources() -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    for folder in ["src", "jepsen", "tests", "benches", "docs/examples"] {
        rust_files(&root().join(folder), &mut paths);
    }
    paths.sort();
    // The sources of the two crates are those of upstream, byte for byte.
    let upstream = upstream::FOLDERS.map(|folder| root().join(folder));
    let made = |path: &PathBuf| {
        path.iter().any(|part| part == "generated" || part == "target")
            || upstream.iter().any(|folder| path.starts_with(folder))
    };
    let read = |path: PathBuf| {
        (path.strip_prefix(root()).unwrap().to_owned(), fs::read_to_string(&path).unwrap())
    };
    paths.into_iter().filter(|path| !made(path)).map(read).collect()
}

/// Returns the pages: those in `docs`, the README and the changelog.
fn pages() -> Vec<(PathBuf, String)> {
    let mut paths = vec![root().join("README.md"), root().join("CHANGELOG.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                None if path.is_dir() => folders.push(path),
                Some(extension) if extension == "md" => paths.push(path),
                _ => {}
            }
        }
    }
    paths.sort();
    let read = |path: PathBuf| {
        (path.strip_prefix(root()).unwrap().to_owned(), fs::read_to_string(&path).unwrap())
    };
    paths.into_iter().map(read).collect()
}

/// Returns the anchors of the headings of a page, in GitHub's form: lower case, without punctuation.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter_map(|line| line.strip_prefix('#'));
    let anchor = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// Fails with all complaints at once.
fn settle(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

/// Returns the modules that a line names through `crate::`.
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
    let mut problems = Vec::new();
    for source in sources() {
        let Some(allowed) = table.get(source.module.as_str()) else {
            problems.push(format!("{}: module is not in the table", source.path.display()));
            continue;
        };
        for (number, line) in source.code() {
            for import in imports(line) {
                // The modules above the public API may use what lib.rs re-exports by name.
                let public = import.starts_with(char::is_uppercase);
                let above = ["api", "recipes", "testing", "sim"].contains(&source.module.as_str());
                let fine = import == source.module
                    || import == "mutant"
                    || allowed.contains(&import)
                    || (public && above)
                    || (source.module == "watch" && public);
                if !fine {
                    problems.push(format!(
                        "{}:{number}: {} must not import {import}",
                        source.path.display(),
                        source.module
                    ));
                }
            }
        }
    }
    settle(problems);
}

#[test]
fn import_table_has_no_cycle() {
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
fn a_crate_depends_only_on_what_the_table_allows() {
    let crates = fs::read_dir(root().join("src/crates")).unwrap();
    let others = ["jepsen", "docs/examples/service"].map(|path| root().join(path));
    let crates = crates.map(|entry| entry.unwrap().path()).chain(others);
    let mut problems = Vec::new();
    for path in crates {
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap();
        let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap();
        let Some((_, allowed)) = CRATES.iter().find(|(crate_, _)| *crate_ == name) else {
            problems.push(format!("{name}: not in the table"));
            continue;
        };
        let rest = manifest.split_once("\n[dependencies]\n").unwrap().1;
        let lines = rest.lines().take_while(|line| !line.starts_with('['));
        let names = lines.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name);
        for other in names.filter(|name| name.starts_with("bowline") && !allowed.contains(name)) {
            problems.push(format!("{name}: must not depend on {other}"));
        }
    }
    settle(problems);
}

/// A file belongs to one module of one crate.
#[test]
fn no_module_names_its_file() {
    let mut problems = Vec::new();
    for (path, text) in all_sources() {
        if text.lines().any(|line| line.trim_start().starts_with("#[path")) {
            problems.push(format!("{}: use a module or a crate", path.display()));
        }
    }
    settle(problems);
}

#[test]
fn foreign_crate_is_used_only_in_its_module() {
    let mut problems = Vec::new();
    for source in sources() {
        for (number, line) in source.code() {
            for (words, modules) in FOREIGN {
                let named = line.match_indices(words).any(|(at, _)| {
                    !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
                });
                if named && !modules.contains(&source.module.as_str()) {
                    problems.push(format!(
                        "{}:{number}: {words} belongs to {modules:?}",
                        source.path.display()
                    ));
                }
            }
        }
    }
    settle(problems);
}

#[test]
fn sled_is_named_in_one_file() {
    let named = |source: &Source| source.code().any(|(_, line)| line.contains("sled::"));
    let files: Vec<_> = sources().into_iter().filter(named).map(|source| source.path).collect();
    assert_eq!(files, [root().join("src/warm/on_disk.rs")]);
}

#[test]
fn only_environment_modules_are_nondeterministic() {
    let mut problems = Vec::new();
    for source in sources().iter().filter(|source| !DOORS.contains(&source.module.as_str())) {
        for (number, line) in source.code() {
            for words in NOT_DETERMINISTIC.iter().filter(|words| line.contains(**words)) {
                problems.push(format!("{}:{number}: {words}", source.path.display()));
            }
        }
    }
    settle(problems);
}

/// A parameter `prefix` means that the function acts on all keys with that prefix, so its name must contain `prefix`.
#[test]
fn function_with_a_prefix_parameter_is_named_after_it() {
    let mut problems = Vec::new();
    let is_public = |module: &str| matches!(module, "api" | "recipes" | "model" | "testing");
    for source in sources().iter().filter(|source| is_public(&source.module)) {
        let code: Vec<&str> = source.code().map(|(_, line)| line).collect();
        for function in code.join("\n").split("pub fn ").skip(1) {
            let (name, rest) = function.split_once('(').unwrap();
            let parameters = rest.split(['{', ';']).next().unwrap();
            if parameters.contains("prefix:") && !name.contains("prefix") {
                let path = source.path.display();
                problems.push(format!("{path}: {name} takes a prefix, and its name has none"));
            }
        }
    }
    settle(problems);
}

#[test]
fn limits_page_names_existing_limits() {
    let page = fs::read_to_string(root().join("docs/operating/limits.md")).unwrap();
    let sources = all_sources();
    let code = |text: &str, name: &str| {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.into_iter().any(|line| line.contains(name))
    };
    let mut problems = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        // The second column of the table is the bound of the limit.
        let bound = row.split('|').nth(2).unwrap_or_default();
        for name in bound.split('`').skip(1).step_by(2) {
            let last = name.rsplit("::").next().unwrap_or(name);
            if !sources.iter().any(|(path, text)| path.starts_with("src") && code(text, last)) {
                problems.push(format!("docs/operating/limits.md: there is no {name}"));
            }
        }
    }
    settle(problems);
}

#[test]
fn links_between_pages_resolve() {
    let (mut problems, mut followed) = (Vec::new(), 0);
    for (path, page) in pages() {
        let links = page.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        for (link, _) in links.filter(|(link, _)| !link.contains("://") && !link.contains(' ')) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => root().join(&path),
                file => root().join(&path).parent().unwrap().join(file),
            };
            let Ok(target) = target.canonicalize() else {
                problems.push(format!("{}: there is no {link}", path.display()));
                continue;
            };
            if !heading.is_empty()
                && !anchors(&fs::read_to_string(target).unwrap()).contains(heading)
            {
                problems.push(format!("{}: there is no heading {link}", path.display()));
            }
            followed += 1;
        }
    }
    settle(problems);
    assert!(followed > 80, "{followed} links were followed");
}

/// Each folder of pages has one page that lists the other pages.
#[test]
fn each_folder_of_pages_has_an_index() {
    let mut problems = Vec::new();
    for (path, _) in pages() {
        let (folder, name) = (path.parent().unwrap(), path.file_name().unwrap().to_str().unwrap());
        // Pages in `docs` itself are listed by the README or by the map.
        let lists: &[&str] = match folder.to_str().unwrap() {
            "" => continue,
            "docs" => &["README.md", "docs/architecture.md"],
            _ => &[],
        };
        let own = folder.join("README.md");
        let mut lists: Vec<&Path> = lists.iter().map(Path::new).collect();
        lists.extend((folder != Path::new("docs")).then_some(own.as_path()));
        let lists: Vec<String> =
            lists.iter().filter_map(|list| fs::read_to_string(root().join(list)).ok()).collect();
        if name != "README.md" && !lists.iter().any(|list| list.contains(name)) {
            problems.push(format!("{}: no page lists it", path.display()));
        }
    }
    settle(problems);
}

/// A long lower-case name with underscores must be a function that exists, and a name that ends with `.rs` a file.
#[test]
fn pages_name_tests_and_files_that_exist() {
    let sources = all_sources();
    let mut functions: BTreeSet<&str> = BTreeSet::new();
    for (_, text) in &sources {
        let names = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
        functions.extend(names);
    }
    let mut tests = 0;
    let mut problems = Vec::new();
    for (path, page) in pages() {
        let mut report_problem =
            |what: &str| problems.push(format!("{}: there is no {what}", path.display()));
        for word in page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let is_small = !word.contains(|c: char| c.is_uppercase());
            let is_metric = ["_", "bowline_", "etcd_", "grpc_", "process_"]
                .iter()
                .any(|of| word.starts_with(of));
            if word.matches('_').count() >= 4 && is_small && !is_metric {
                tests += 1;
                if !functions.contains(word) {
                    report_problem(word);
                }
            }
        }
        for named in page.split('`').skip(1).step_by(2).filter(|words| words.ends_with(".rs")) {
            let is_it = |path: &Path| path.ends_with(named);
            let is_plain = named.chars().all(|c| c.is_alphanumeric() || "/_-.".contains(c));
            if is_plain && !sources.iter().any(|(path, _)| is_it(path)) {
                report_problem(named);
            }
        }
    }
    settle(problems);
    assert!(tests > 120, "{tests} tests were named");
}

/// Returns the invariants that a text names: at most two capitals, a dash, and a word in capitals.
fn invariants(text: &str) -> BTreeSet<&str> {
    const KINDS: [&str; 11] = ["R", "S", "M", "MB", "X", "W", "L", "K", "Q", "T", "C"];
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    let is_one = |word: &&str| {
        word.split_once('-').is_some_and(|(kind, name)| {
            KINDS.contains(&kind) && name.len() > 1 && name.chars().all(|c| c.is_ascii_uppercase())
        })
    };
    words.filter(is_one).collect()
}

/// The invariants that the simulator asserts must be the ones that its page and the page of all invariants attribute to
/// it.
#[test]
fn invariant_pages_match_the_simulated_world() {
    let sources = all_sources();
    let of_the_world = |path: &Path| path.starts_with("src/sim");
    let strings = sources.iter().filter(|(path, _)| of_the_world(path));
    let strings = strings.flat_map(|(_, text)| text.split('"').skip(1));
    let asserted: BTreeSet<&str> =
        strings.filter(|text| invariants(text).len() == 1 && !text.contains(' ')).collect();
    assert!(asserted.len() > 60, "{} are asserted", asserted.len());
    let page = fs::read_to_string(root().join("docs/assurance/simulator.md")).unwrap();
    let told: BTreeSet<&str> = page
        .lines()
        .filter_map(|row| row.strip_prefix("| ")?.split(" | ").next())
        .flat_map(invariants)
        .collect();

    let page = fs::read_to_string(root().join("docs/assurance/invariants.md")).unwrap();
    let differ =
        |name: &&str| format!("docs/assurance/simulator.md and src/sim: {name} is in one of them");
    let mut problems: Vec<String> = told.symmetric_difference(&asserted).map(differ).collect();
    let (mut missing, mut number) = (asserted.clone(), 0);
    for row in page.lines() {
        let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let [place, names, _, by] = cells[..] else { continue };
        number += 1;
        assert_eq!(place, number.to_string(), "the rows are numbered: {row}");
        let names = invariants(names);
        // The entry is `simulator`, or `simulator (NAMES)` if the simulator asserts the row under other names.
        let Some((_, there)) = by.split_once("simulator") else { continue };
        let others = there.strip_prefix(" (").and_then(|rest| rest.split(')').next());
        let others = others.map(invariants).unwrap_or_default();
        for name in &others {
            if !asserted.contains(name) {
                problems.push(format!(
                    "docs/assurance/invariants.md: the simulator asserts no {name}: {row}"
                ));
            }
        }
        for name in names {
            if !missing.remove(name) && !asserted.contains(name) && others.is_empty() {
                problems
                    .push(format!("docs/assurance/invariants.md: the simulator asserts no {name}"));
            }
        }
    }
    problems.extend(
        missing.iter().map(|name| format!("docs/assurance/invariants.md: {name} is missing")),
    );
    settle(problems);
}

/// The harness page must name all workloads and faults.
#[test]
fn harness_page_lists_all_workloads_and_faults() {
    let page = fs::read_to_string(root().join("docs/assurance/harness.md")).unwrap();
    let mut names = 0;
    let mut problems = Vec::new();
    for (path, text) in all_sources() {
        let folder = path.parent().unwrap();
        if !folder.ends_with("src/workload") && !folder.ends_with("src/nemesis") {
            continue;
        }
        for rest in text.split("    name: \"").skip(1) {
            let name = rest.split('"').next().unwrap();
            names += 1;
            if !page.contains(&format!("`{name}`")) {
                problems.push(format!(
                    "docs/assurance/harness.md: {name} of {} is missing",
                    path.display()
                ));
            }
        }
    }
    settle(problems);
    assert!(names > 40, "{names} names");
}

/// The architecture page must name each test program and each folder of the source, so that a contributor who looks
/// for a test or a module finds it there.
#[test]
fn the_map_has_all_tests_and_folders() {
    let map = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let mut problems = Vec::new();
    for folder in [
        "tests",
        "tests/nodes",
        "src",
        "src/crates",
        "src/crates/cli/src",
        "src/crates/cli/tests",
        "benches",
    ] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let path = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            let name = path.rsplit('/').next().unwrap().trim_end_matches(".rs");
            let named = map.contains(&format!("`{path}`"))
                || ((folder.ends_with("src") || folder == "tests/nodes")
                    && map.contains(&format!("`{name}`")));
            let is_crate = ["main", "lib", "Cargo.toml", "crates"].contains(&name);
            if !named && !is_crate {
                problems.push(format!("docs/architecture.md: {path} is missing"));
            }
        }
    }
    settle(problems);
}

#[test]
fn incidents_page_names_existing_tests() {
    let page = fs::read_to_string(root().join("docs/assurance/incidents.md")).unwrap();
    let mut named = 0;
    for cell in page.lines().filter_map(|row| row.trim_end_matches(" |").rsplit(" | ").next()) {
        for test in cell.split(", `").filter_map(|test| test.trim_matches('`').split_once("`: ")) {
            let (file, name) = test;
            let mut files = vec![format!("src/{file}.rs")];
            for of in ["tests", "tests/nodes"] {
                files.push(format!("{of}/{file}.rs"));
                let folder = fs::read_dir(root().join(of).join(file));
                files.extend(folder.into_iter().flatten().map(|entry| {
                    format!("{of}/{file}/{}", entry.unwrap().file_name().to_string_lossy())
                }));
            }
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
fn every_file_has_a_module_doc() {
    let mut problems = Vec::new();
    for (path, text) in all_sources() {
        if !text.starts_with("//!") && path != Path::new("src/lib.rs") {
            problems.push(format!("{}: no //! page", path.display()));
        }
        let name = path.file_stem().unwrap().to_str().unwrap();
        if ["utils", "util", "common", "helpers", "misc", "manager", "handler"].contains(&name) {
            problems.push(format!("{}: a name that says nothing", path.display()));
        }
    }
    settle(problems);
}

#[test]
fn sources_have_no_placeholders_or_sleeps() {
    let mut problems = Vec::new();
    // This file contains the forbidden words.
    for (path, text) in
        all_sources().iter().filter(|(path, _)| path != Path::new("tests/tidy/main.rs"))
    {
        for (number, line) in text.lines().enumerate() {
            for words in ["todo!(", "unimplemented!(", "#[ignore", "FIXME", "XXX"] {
                if line.contains(words) {
                    problems.push(format!("{}:{}: {words}", path.display(), number + 1));
                }
            }
        }
    }
    // The pauses of the transport are timers of its own runtime and block no thread.
    for source in sources().into_iter().filter(|source| source.module != "transport") {
        for (number, line) in source.code().filter(|(_, line)| line.contains("::sleep")) {
            problems.push(format!("{}:{number}: {}", source.path.display(), line.trim()));
        }
    }
    settle(problems);
}
