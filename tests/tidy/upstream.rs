//! Checks that the packaged sources of the crate raft are those of upstream.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::root;

/// The folders with sources of another project.
pub(super) const FOLDERS: [&str; 2] = ["src/crates/raft", "src/crates/raft-proto"];

/// The only file that differs from upstream's, its changed line, and upstream's line.
const CHANGED_FILE: &str = "src/crates/raft-proto/src/lib.rs";
const CHANGED: &str = "    pub mod eraftpb; // Changed by Bowline: upstream includes it from the output of its build script.\n";
const UPSTREAM: &str = "    include!(concat!(env!(\"OUT_DIR\"), \"/protos/mod.rs\"));\n";

/// Returns the SHA-256 sum of a text in hexadecimal.
fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the sums in the list of a folder, by path.
fn listed(folder: &Path) -> BTreeMap<String, String> {
    let list = fs::read_to_string(folder.join("upstream.sha256")).unwrap();
    let row = |line: &str| {
        let (sum, path) = line.split_once("  ").expect("a sum, two spaces, a path");
        (path.to_owned(), sum.to_owned())
    };
    list.lines().map(row).collect()
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

/// Returns the sums of the files of a folder, by path. The changed line counts as upstream's line.
fn present(folder: &Path) -> BTreeMap<String, String> {
    let mut paths = vec![folder.join("LICENSE")];
    for below in ["src", "proto"].map(|below| folder.join(below)) {
        if below.exists() {
            files(&below, &mut paths);
        }
    }
    paths.retain(|path| !path.ends_with("rustfmt.toml"));
    let sum = |path: PathBuf| {
        let mut text = fs::read_to_string(&path).unwrap();
        if path == root().join(CHANGED_FILE) {
            assert_eq!(text.matches(CHANGED).count(), 1, "{CHANGED_FILE}: the changed line");
            text = text.replace(CHANGED, UPSTREAM);
        }
        (path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned(), sha256(&text))
    };
    paths.into_iter().map(sum).collect()
}

#[test]
fn packaged_sources_are_those_of_upstream() {
    for (folder, files) in FOLDERS.map(|folder| root().join(folder)).iter().zip([22, 6]) {
        let listed = listed(folder);
        assert_eq!(listed.len(), files, "{}: files in the list", folder.display());
        assert_eq!(present(folder), listed, "{}", folder.display());
    }
}
