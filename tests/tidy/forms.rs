//! Rules on the form of production code: imports name what they import, and mutants are marked by
//! statements or conditions.

use super::{Source, settle, sources};

/// Modules with glob imports, and how many. The numbers may only shrink.
const GLOBS_MAX: &[(&str, usize)] = &[("node", 12)];

/// Modules with matches on a mutant, and how many. The numbers may only shrink.
const MUTANT_MATCHES_MAX: &[(&str, usize)] = &[("node", 2), ("recipes", 8)];

/// Complains about each module with more lines of a form than the table allows.
fn limit(table: &[(&str, usize)], is_forbidden: impl Fn(&str) -> bool) {
    let all = sources();
    let mut modules: Vec<&str> = all.iter().map(|source| source.module.as_str()).collect();
    modules.dedup();
    let mut complaints = Vec::new();
    for module in modules {
        let lines_of = |source: &Source| -> Vec<String> {
            let lines = source.code().filter(|(_, line)| is_forbidden(line));
            let place = |number| format!("{}:{number}", source.path.display());
            lines.map(|(number, line)| format!("{}: {}", place(number), line.trim())).collect()
        };
        let found: Vec<String> =
            all.iter().filter(|source| source.module == module).flat_map(lines_of).collect();
        let max = table.iter().find(|(name, _)| *name == module).map_or(0, |(_, max)| *max);
        if found.len() > max {
            complaints.push(format!("{} in {module}, at most {max} may be left:", found.len()));
            complaints.extend(found);
        }
    }
    settle(complaints);
}

#[test]
fn production_code_has_no_glob_imports() {
    limit(GLOBS_MAX, |line| {
        let line = line.trim_start();
        let is_import =
            line.starts_with("use ") || line.starts_with("pub") && line.contains(" use ");
        is_import && line.contains('*')
    });
}

#[test]
fn no_code_matches_on_a_mutant() {
    limit(MUTANT_MATCHES_MAX, |line| {
        line.split_once("match ")
            .is_some_and(|(_, rest)| rest.contains("mutant!(") || rest.contains("mutant::is("))
    });
}
