//! Checks that the packaged sources of the crate raft are those of upstream.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::root;

/// The folders with sources of another project.
pub(super) const FOLDERS: [&str; 2] = ["src/crates/raft", "src/crates/raft-proto"];

/// The only file that differs from upstream's, its changed line, and upstream's line.
const CHANGED_FILE: &str = "src/crates/raft-proto/src/lib.rs";
const CHANGED: &str = "    pub mod eraftpb; // Changed by Bowline: upstream includes it from the output of its build script.\n";
const UPSTREAM: &str = "    include!(concat!(env!(\"OUT_DIR\"), \"/protos/mod.rs\"));\n";

/// Returns the first 32 bits of the fractional part of `value`.
fn fraction(value: f64) -> u32 {
    (value.fract() * 2f64.powi(32)) as u32
}

/// Returns the SHA-256 sum of `data` in hexadecimal. Tests of these rules compile without crates.
fn sha256(data: &[u8]) -> String {
    let primes: Vec<u32> = (2..312).filter(|n| (2..*n).all(|d| n % d != 0)).collect();
    let rounds: Vec<u32> = primes.iter().map(|prime| fraction(f64::from(*prime).cbrt())).collect();
    let mut state: Vec<u32> =
        primes[..8].iter().map(|prime| fraction(f64::from(*prime).sqrt())).collect();
    let mut message = data.to_vec();
    message.push(0x80);
    message.resize((message.len() + 8).next_multiple_of(64) - 8, 0);
    message.extend((data.len() as u64 * 8).to_be_bytes());
    for block in message.chunks_exact(64) {
        let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        let mut words: Vec<u32> = block.chunks_exact(4).map(word).collect();
        for i in 16..64 {
            let (near, far) = (words[i - 2], words[i - 15]);
            let near = near.rotate_right(17) ^ near.rotate_right(19) ^ (near >> 10);
            let far = far.rotate_right(7) ^ far.rotate_right(18) ^ (far >> 3);
            let sum = words[i - 16].wrapping_add(far).wrapping_add(words[i - 7]).wrapping_add(near);
            words.push(sum);
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state[..] else {
            unreachable!()
        };
        for i in 0..64 {
            let mixed = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
            let chosen = (e & f) ^ (!e & g);
            let first = h.wrapping_add(mixed).wrapping_add(chosen);
            let first = first.wrapping_add(rounds[i]).wrapping_add(words[i]);
            let mixed = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
            let second = mixed.wrapping_add((a & b) ^ (a & c) ^ (b & c));
            (h, g, f, e) = (g, f, e, d.wrapping_add(first));
            (d, c, b, a) = (c, b, a, first.wrapping_add(second));
        }
        for (sum, word) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *sum = sum.wrapping_add(word);
        }
    }
    state.iter().map(|word| format!("{word:08x}")).collect()
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
        (path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned(), sha256(text.as_bytes()))
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
