//! Finds files that import each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::{Source, root, rust_files, settle};

/// The folders in which there must be no circle, each with the folder of its crate.
const FOLDERS: &[(&str, &str)] = &[
    ("src", "src/node"),
    ("src", "src/recipes/lock"),
    ("src/crates/server/src", "src/crates/server/src"),
];

/// A path of names from the root of a crate.
type Names = Vec<String>;

/// A `use` declaration of one name.
struct Import {
    /// The path, from the root of the crate.
    path: Names,
    /// The name in the importing file.
    alias: String,
    is_public: bool,
}

/// The files of a crate by their module, without tests.
struct Modules(BTreeMap<Names, String>);

impl Modules {
    fn of(crate_root: &Path) -> Self {
        let mut paths = Vec::new();
        rust_files(crate_root, &mut paths);
        let files = paths.into_iter().filter_map(|path| {
            let inside = path.strip_prefix(crate_root).unwrap();
            let source = Source {
                module: String::new(),
                text: fs::read_to_string(&path).unwrap(),
                path: path.clone(),
            };
            let code: Vec<&str> = source.code().map(|(_, line)| line).collect();
            let is_code = !source.is_test() && !inside.starts_with("crates");
            is_code.then(|| (module(inside), code.join("\n")))
        });
        Self(files.collect())
    }

    /// Returns the path from the root of the crate. Returns `None` for a path into another crate.
    fn absolute(&self, module: &Names, path: &[&str]) -> Option<Names> {
        let mut base = module.clone();
        let mut rest = path;
        match rest.first()? {
            &"crate" => (base, rest) = (Vec::new(), &rest[1..]),
            &"self" => rest = &rest[1..],
            &"super" => {
                while let Some((&"super", after)) = rest.split_first() {
                    base.pop();
                    rest = after;
                }
            }
            child => {
                let inner = [module.clone(), vec![(*child).to_owned()]].concat();
                self.0.contains_key(&inner).then_some(())?;
            }
        }
        base.extend(rest.iter().map(|name| (*name).to_owned()));
        Some(base)
    }

    /// Returns the imports of a module.
    fn imports(&self, module: &Names) -> Vec<Import> {
        let mut imports = Vec::new();
        for (is_public, tree) in declarations(&self.0[module]) {
            for (path, alias) in leaves(tree) {
                let path: Vec<&str> = path.iter().map(String::as_str).collect();
                if let Some(path) = self.absolute(module, &path) {
                    imports.push(Import { path, alias, is_public });
                }
            }
        }
        imports
    }

    /// Returns the module that defines the end of a path, by following imports of that name.
    fn target(
        &self,
        all: &BTreeMap<&Names, Vec<Import>>,
        path: &Names,
        depth: usize,
    ) -> Option<Names> {
        let at = (0..=path.len()).rev().find(|at| self.0.contains_key(&path[..*at]))?;
        let (module, rest) = path.split_at(at);
        let import = rest
            .first()
            .and_then(|name| all[&module.to_vec()].iter().find(|import| import.alias == *name));
        match import {
            Some(import) if depth > 0 && import.path != *path => {
                let further = [import.path.clone(), rest[1..].to_vec()].concat();
                self.target(all, &further, depth - 1)
            }
            _ => Some(module.to_vec()),
        }
    }
}

/// Returns the module of a file.
fn module(inside: &Path) -> Names {
    let mut names: Names =
        inside.with_extension("").iter().map(|name| name.to_str().unwrap().to_owned()).collect();
    if names.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        names.pop();
    }
    names
}

/// Returns the trees of all `use` declarations, and whether they are public.
fn declarations(code: &str) -> impl Iterator<Item = (bool, &str)> {
    code.match_indices("use ").filter_map(|(at, word)| {
        let line = code[..at].rsplit('\n').next().unwrap().trim_start();
        let is_use = line.is_empty() || (line.starts_with("pub") && !line.contains("fn"));
        let tree = code[at + word.len()..].split(';').next()?;
        is_use.then_some((!line.is_empty(), tree))
    })
}

/// Returns the paths in a tree of a `use` declaration, each with its name in the importing file.
fn leaves(tree: &str) -> Vec<(Names, String)> {
    let mut found = Vec::new();
    let (mut depth, mut begin) = (0, 0);
    let ends = tree.char_indices().chain([(tree.len(), ',')]);
    for (at, char) in ends {
        match char {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = tree[begin..at].trim();
                begin = at + 1;
                let (stem, inner) = match part.split_once('{') {
                    Some((stem, inner)) => (stem, Some(inner.trim_end().trim_end_matches('}'))),
                    None => (part, None),
                };
                let (stem, renamed) =
                    stem.split_once(" as ").map_or((stem, None), |(a, b)| (a, Some(b)));
                let stem: Names = stem
                    .split("::")
                    .map(|name| name.trim().to_owned())
                    .filter(|name| !name.is_empty())
                    .collect();
                match inner {
                    Some(inner) => found.extend(leaves(inner).into_iter().map(|(path, alias)| {
                        let path = path.into_iter().filter(|name| name != "self");
                        (stem.iter().cloned().chain(path).collect(), alias)
                    })),
                    None => {
                        let alias = renamed.or(stem.last().map(String::as_str)).unwrap_or_default();
                        found.push((stem.clone(), alias.trim().to_owned()));
                    }
                }
            }
            _ => {}
        }
    }
    found.retain(|(path, _)| !path.is_empty());
    found
}

/// Returns the arrows between modules: which imports which.
fn arrows(modules: &Modules) -> BTreeMap<Names, BTreeSet<Names>> {
    let imports: BTreeMap<_, _> =
        modules.0.keys().map(|module| (module, modules.imports(module))).collect();
    let arrows = modules.0.keys().map(|module| {
        // A folder that re-exports names of its files does not depend on the files.
        let own = imports[module]
            .iter()
            .filter(|import| !(import.is_public && import.path.starts_with(module)));
        let targets = own.filter_map(|import| modules.target(&imports, &import.path, 8));
        (module.clone(), targets.filter(|target| target != module).collect())
    });
    arrows.collect()
}

/// Returns the arrows of the circles below `folder`, and those between circles.
fn circles(arrows: &BTreeMap<Names, BTreeSet<Names>>, folder: &Names) -> Vec<String> {
    let mut left: BTreeSet<&Names> =
        arrows.keys().filter(|module| module.starts_with(folder)).collect();
    loop {
        let before = left.len();
        let now = left.clone();
        left.retain(|module| {
            let is_imported = now.iter().any(|other| arrows[*other].contains(*module));
            is_imported && arrows[*module].iter().any(|to| now.contains(to))
        });
        if left.len() == before {
            break;
        }
    }
    let arrows = left.iter().flat_map(|from| {
        let inside = arrows[*from].iter().filter(|to| left.contains(to));
        inside.map(|to| format!("circle: {} imports {}", from.join("/"), to.join("/")))
    });
    arrows.collect()
}

#[test]
fn files_do_not_import_each_other_in_a_circle() {
    let mut problems = Vec::new();
    for (crate_root, folder) in FOLDERS {
        let crate_root: PathBuf = root().join(crate_root);
        let folder = module(root().join(folder).strip_prefix(&crate_root).unwrap());
        let arrows = arrows(&Modules::of(&crate_root));
        let inside = arrows.iter().filter(|(module, _)| module.starts_with(&folder));
        assert!(
            inside.map(|(_, to)| to.len()).sum::<usize>() > 20,
            "no imports found in {folder:?}"
        );
        problems.extend(circles(&arrows, &folder));
    }
    settle(problems);
}
