//! Runs fuzz targets as ordinary tests, on stable Rust and within seconds.
//!
//! Each target runs on every file of its corpus and on some hundred generated inputs. Generated
//! inputs are random bytes, and files of the corpus with flipped bits, inserted numbers, and parts
//! that are removed, repeated or joined. The inputs are the same in each run; `PROPTEST_CASES` sets
//! their number. A failure prints the shortest failing input as a Rust array, for a regression
//! test, and saves it as a corpus file in `target/fuzzing`.
//!
//! `BOWLINE_FUZZ_SEEDS=write cargo test --workspace --lib fuzz` rewrites the initial files of the corpora from values that the
//! library encodes. Files that a fuzzer has found have other names and stay.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

/// Number of generated inputs for each target, unless `PROPTEST_CASES` is set.
const CASES: u32 = 400;

/// Maximum number of bytes of all files of one corpus.
const CORPUS_BYTES_MAX: usize = 200 << 10;

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn folder(name: &str) -> PathBuf {
    root().join("tests/fuzz/seeds").join(name)
}

fn corpus(name: &str, seeds: fn() -> Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    if std::env::var("BOWLINE_FUZZ_SEEDS").is_ok_and(|what| what == "write") {
        write_seeds(name, &seeds());
    }
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn write_seeds(name: &str, seeds: &[Vec<u8>]) {
    let folder = folder(name);
    fs::create_dir_all(&folder).unwrap();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("seed-") {
            fs::remove_file(path).unwrap();
        }
    }
    for (number, bytes) in seeds.iter().enumerate() {
        fs::write(folder.join(format!("seed-{number:03}")), bytes).unwrap();
    }
}

/// A change to an input of the corpus.
#[derive(Clone, Debug)]
enum Edit {
    Flip(Index, u8),
    Put(Index, Vec<u8>),
    Insert(Index, Vec<u8>),
    Cut(Index, Index),
    Double(Index, Index),
    End(Index),
    Join(Index, Vec<u8>),
}

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let at = |index: &Index| index.index(bytes.len());
        let span = |one: &Index, other: &Index| {
            let (one, other) = (at(one), at(other));
            one.min(other)..one.max(other).min(one.min(other) + 64)
        };
        match self {
            Edit::Flip(place, bit) => {
                let place = at(place);
                bytes[place] ^= 1 << (bit % 8);
            }
            Edit::Put(place, with) => {
                let place = at(place);
                let len = with.len().min(bytes.len() - place);
                bytes[place..place + len].copy_from_slice(&with[..len]);
            }
            Edit::Insert(place, with) => {
                let place = at(place);
                bytes.splice(place..place, with.iter().copied());
            }
            Edit::Cut(from, to) => {
                let span = span(from, to);
                bytes.drain(span);
            }
            Edit::Double(from, to) => {
                let span = span(from, to);
                let part = bytes[span.clone()].to_vec();
                bytes.splice(span.start..span.start, part);
            }
            Edit::End(place) => {
                let place = at(place);
                bytes.truncate(place);
            }
            Edit::Join(place, other) => {
                let place = at(place);
                bytes.truncate(place);
                bytes.extend(other);
            }
        }
    }
}

/// Generates numbers that often cause errors.
fn number() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        select(vec![0_u64, 1, 127, 128, 255, 256, 65_535, 1 << 31, 1 << 32, 1 << 62, 1 << 63])
            .prop_map(|number| number.to_le_bytes().to_vec()),
        Just(u64::MAX.to_le_bytes().to_vec()),
        vec(any::<u8>(), 1..4),
        // As varints.
        select(vec![&b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"[..], b"\x80\x00", b"\xff\x7f"])
            .prop_map(<[u8]>::to_vec),
    ]
}

fn edit(corpus: Vec<Vec<u8>>) -> impl Strategy<Value = Edit> {
    let place = any::<Index>;
    prop_oneof![
        3 => (place(), any::<u8>()).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        3 => (place(), number()).prop_map(|(at, with)| Edit::Put(at, with)),
        1 => (place(), number()).prop_map(|(at, with)| Edit::Insert(at, with)),
        1 => (place(), place()).prop_map(|(from, to)| Edit::Cut(from, to)),
        1 => (place(), place()).prop_map(|(from, to)| Edit::Double(from, to)),
        1 => place().prop_map(Edit::End),
        1 => (place(), select(corpus)).prop_map(|(at, other)| Edit::Join(at, other)),
    ]
}

/// Generates random inputs and changed inputs of the corpus.
fn input(corpus: &[Vec<u8>]) -> impl Strategy<Value = Vec<u8>> {
    let edits = vec(edit(corpus.to_vec()), 1..6);
    let edited = (select(corpus.to_vec()), edits).prop_map(|(mut bytes, edits)| {
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        bytes
    });
    prop_oneof![1 => vec(any::<u8>(), 0..300), 4 => edited]
}

/// Runs a target on one input. Returns whether the target accepts the input, or the message if it panics.
fn run(accepts: &impl Fn(&[u8]) -> bool, bytes: &[u8]) -> Result<bool, String> {
    panic::catch_unwind(AssertUnwindSafe(|| accepts(bytes))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
    })
}

/// Saves the failing input and panics with its path.
fn fail(name: &str, bytes: &[u8], why: &str) -> ! {
    let folder = root().join("target/fuzzing");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    panic!("{name}: {why}\n{bytes:?}\nalso in {}", path.display());
}

/// Runs a target on its corpus and on generated inputs. `accepts` runs the target on one input and returns whether
/// the target accepts it.
///
/// # Panics
/// Panics if the target has found an error, or if it accepts so few inputs that it tests nothing.
pub fn play(name: &str, accepts: impl Fn(&[u8]) -> bool, seeds: fn() -> Vec<Vec<u8>>) {
    let corpus = corpus(name, seeds);
    let bytes: usize = corpus.iter().map(Vec::len).sum();
    assert!(bytes <= CORPUS_BYTES_MAX, "{name}: {bytes} bytes of corpus");
    let mut through = 0;
    for bytes in &corpus {
        match run(&accepts, bytes) {
            Ok(accepted) => through += usize::from(accepted),
            Err(why) => fail(name, bytes, &why),
        }
    }
    assert!(through >= 10, "{name}: {through} of {} files mean anything", corpus.len());

    let cases = ProptestConfig::default().cases;
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { cases } else { CASES };
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let tally = std::cell::Cell::new([0_u32; 2]);
    let result = TestRunner::new_with_rng(config, rng).run(&input(&corpus), |bytes| {
        let accepted = run(&accepts, &bytes).map_err(TestCaseError::fail)?;
        let [through, refused] = tally.get();
        tally.set(if accepted { [through + 1, refused] } else { [through, refused + 1] });
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, bytes)) => fail(name, &bytes, why.message()),
        Err(TestError::Abort(why)) => panic!("{name}: {why}"),
    }
    let [through, refused] = tally.get();
    assert!(through * 20 >= cases, "{name}: {through} of {cases} inputs got anywhere");
    assert!(through + refused == cases);
}

/// Checks that these targets are the tested ones, and that cargo-fuzz has a binary for each.
///
/// # Panics
/// Panics if a test or a binary is missing.
pub fn assert_complete(targets: &[&str], tested: &[&str]) {
    assert_eq!(targets, tested);
    let root = root().join("tests/fuzz");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    for name in targets {
        assert!(manifest.contains(&format!("path = \"targets/{name}.rs\"")), "{name}");
        let target = fs::read_to_string(root.join(format!("targets/{name}.rs"))).unwrap();
        assert!(target.contains(&format!("run(\"{name}\", data)")), "{name}");
    }
}
