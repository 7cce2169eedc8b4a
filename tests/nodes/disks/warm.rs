//! Tests of the warm copy: if the copy is damaged, deleted or outdated, the node still starts with
//! its complete state.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bowline::testing;
use bowline::{Blocking, Config, Node};

use super::files::{config, count};

fn warm(dir: &Path) -> Config {
    config(dir).warm_copy(true)
}

/// Starts a node, expects `keys` keys, writes one more, and waits until the copy contains it.
fn life(dir: &Path, keys: &mut usize, when: &str) -> Node {
    let node = Node::start(warm(dir)).block().unwrap();
    assert_eq!(count(&node), *keys as u64, "{when}");
    node.client().put(format!("k{keys:04}"), "v").block().unwrap();
    *keys += 1;
    let patience = Instant::now();
    while !is_copied(dir, *keys) {
        assert!(patience.elapsed() < Duration::from_secs(60), "{when}: no copy was made");
        std::thread::sleep(Duration::from_millis(50));
    }
    node
}

/// Returns whether the files of the copy contain the newest key.
fn is_copied(dir: &Path, keys: usize) -> bool {
    let newest = format!("k{:04}", keys - 1).into_bytes();
    fs::read_dir(dir.join("warm")).is_ok_and(|entries| {
        entries.flatten().any(|entry| {
            let bytes = fs::read(entry.path().join("db")).unwrap_or_default();
            bytes.windows(newest.len()).any(|window| window == newest)
        })
    })
}

fn copies(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir.join("warm")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

#[test]
fn damage_to_the_warm_copy_loses_no_data() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut keys = 0;
    let stop = |node: Node| assert!(testing::shutdown(node).block().hanging.is_empty());
    stop(life(dir, &mut keys, "the beginning"));
    stop(life(dir, &mut keys, "after a stop in good order"));
    for copy in copies(dir) {
        fs::remove_dir_all(copy).unwrap();
    }
    stop(life(dir, &mut keys, "the copy was deleted"));
    fs::remove_dir_all(dir.join("warm")).unwrap();
    stop(life(dir, &mut keys, "everything of it was deleted"));
    for cut in [0, 100, 5000] {
        for copy in copies(dir) {
            let db = fs::OpenOptions::new().write(true).open(copy.join("db")).unwrap();
            db.set_len(cut).unwrap();
        }
        stop(life(dir, &mut keys, "it was cut short"));
    }
    for copy in copies(dir) {
        let mut bytes = fs::read(copy.join("db")).unwrap();
        bytes.iter_mut().step_by(997).for_each(|byte| *byte ^= 0x10);
        fs::write(copy.join("db"), bytes).unwrap();
    }
    stop(life(dir, &mut keys, "bits of it were flipped"));
    let mark = dir.join("warm/mark");
    fs::write(&mark, "none").unwrap();
    stop(life(dir, &mut keys, "its mark was overwritten"));
    let node = Node::start(config(dir)).block().unwrap();
    assert_eq!(count(&node), keys as u64, "without it");
    stop(node);
}
