//! Runs the fuzz targets of `tests/fuzz` as ordinary tests, on stable Rust and within seconds.
//!
//! Each target runs on every file of its corpus and on some hundred generated inputs. Generated
//! inputs are random bytes, and files of the corpus with flipped bits, inserted numbers, and parts
//! that are removed, repeated or joined. The inputs are the same in each run; `PROPTEST_CASES` sets
//! their number. A failure prints the shortest failing input as a Rust array, for a regression
//! test, and saves it as a corpus file in `target/fuzzing`.
//!
//! `BOWLINE_FUZZ_SEEDS=write cargo test --test fuzzing` rewrites the initial files of the corpora from values that
//! the library encodes. Files that a fuzzer has found have other names and stay.

#[allow(dead_code, reason = "shared with other tests")]
mod histories;
#[allow(dead_code, reason = "shared with other tests")]
mod naive;
#[path = "fuzz/src/store.rs"]
mod store;
#[allow(dead_code, reason = "shared with other tests")]
mod subject;

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use bowline::fuzz::{Came, Target};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

/// Number of generated inputs for each target, unless `PROPTEST_CASES` is set.
const CASES: u32 = 400;

/// Maximum number of bytes of all files of one corpus.
const CORPUS_BYTES_MAX: usize = 200 << 10;

fn targets() -> impl Iterator<Item = &'static Target> {
    bowline::fuzz::TARGETS.iter().chain(&store::TARGETS)
}

fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/seeds").join(target.name)
}

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    if std::env::var("BOWLINE_FUZZ_SEEDS").is_ok_and(|what| what == "write") {
        write_seeds(target);
    }
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder(target)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn write_seeds(target: &Target) {
    let folder = folder(target);
    fs::create_dir_all(&folder).unwrap();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("seed-") {
            fs::remove_file(path).unwrap();
        }
    }
    for (number, bytes) in (target.seeds)().into_iter().enumerate() {
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

/// Runs a target. Returns the message if it panics.
fn run(target: &Target, bytes: &[u8]) -> Result<Came, String> {
    panic::catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
    })
}

/// Saves the failing input and panics with its path.
fn fail(target: &Target, bytes: &[u8], why: &str) -> ! {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzzing");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(target.name);
    fs::write(&path, bytes).unwrap();
    panic!("{}: {why}\n{bytes:?}\nalso in {}", target.name, path.display());
}

fn play(name: &str) {
    let target = targets().find(|target| target.name == name).expect("a target");
    let corpus = corpus(target);
    let bytes: usize = corpus.iter().map(Vec::len).sum();
    assert!(bytes <= CORPUS_BYTES_MAX, "{name}: {bytes} bytes of corpus");
    let mut through = 0;
    for bytes in &corpus {
        match run(target, bytes) {
            Ok(came) => through += usize::from(came == Came::Through),
            Err(why) => fail(target, bytes, &why),
        }
    }
    assert!(through >= 10, "{name}: {through} of {} files mean anything", corpus.len());

    let cases = ProptestConfig::default().cases;
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { cases } else { CASES };
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let tally = std::cell::Cell::new([0_u32; 2]);
    let result = TestRunner::new_with_rng(config, rng).run(&input(&corpus), |bytes| {
        let came = run(target, &bytes).map_err(TestCaseError::fail)?;
        let [through, refused] = tally.get();
        tally.set(match came {
            Came::Through => [through + 1, refused],
            Came::Refused => [through, refused + 1],
        });
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, bytes)) => fail(target, &bytes, why.message()),
        Err(TestError::Abort(why)) => panic!("{name}: {why}"),
    }
    let [through, refused] = tally.get();
    assert!(through * 20 >= cases, "{name}: {through} of {cases} inputs got anywhere");
    assert!(through + refused == cases);
}

macro_rules! twins {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            play($name);
        })*

        const NAMES: &[&str] = &[$($name),*];
    };
}

twins! {
    records_of_the_log_in_any_order_are_refused_or_a_log: "log_records",
    a_damaged_log_is_refused_or_says_what_it_once_said: "log_directory",
    a_snapshot_of_any_bytes_is_refused_or_a_state: "snapshots",
    a_stream_is_the_frames_that_are_cut_out_of_it: "frames",
    only_who_belongs_comes_through_the_handshake: "handshake",
    a_message_has_one_encoding: "messages",
    no_message_of_a_peer_breaks_a_member: "gate",
    every_command_that_can_be_read_can_be_applied: "commands",
    transactions_do_what_the_naive_model_does: "transactions",
    a_range_is_a_filter_of_all_rows: "ranges",
    a_history_of_any_bytes_is_refused_or_has_one_verdict: "histories",
}

#[test]
fn every_fuzz_target_has_a_twin_and_a_binary() {
    let mut names: Vec<&str> = targets().map(|target| target.name).collect();
    names.sort_unstable();
    let mut twins = NAMES.to_vec();
    twins.sort_unstable();
    assert_eq!(names, twins);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    for name in names {
        assert!(manifest.contains(&format!("path = \"targets/{name}.rs\"")), "{name}");
        let target = fs::read_to_string(root.join(format!("targets/{name}.rs"))).unwrap();
        assert!(target.contains(&format!("run(\"{name}\", data)")), "{name}");
    }
}
