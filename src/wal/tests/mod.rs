//! Tests of the log on a simulated disk that fails in every permitted way, and in some ways that
//! are not permitted.

mod boundaries;
mod crashes;
mod cuts;
mod damage;
mod failures;
mod full;
mod keep;
mod model;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::env::{BootClock, Disk, Entropy, NoPoints, Points};
use crate::model::samples::node;
use crate::sim::{Rng, SimDisk};
use model::{LogContent, any_group};

const DIR: &str = "log";

fn env(disk: &Arc<SimDisk>, points: Arc<dyn Points>) -> Env {
    Env {
        clock: Arc::new(BootClock),
        entropy: Arc::new(Rng::new(42)),
        disk: Arc::clone(disk) as Arc<dyn Disk>,
        points,
    }
}

fn identity() -> Identity {
    Identity { cluster: ClusterId(7), node: node(1) }
}

/// Opens the log with the smallest segments and without a reserve.
fn try_open(disk: &Arc<SimDisk>) -> Result<Opened, LogError> {
    open_with(disk, Arc::new(NoPoints), 0)
}

fn open_with(
    disk: &Arc<SimDisk>,
    points: Arc<dyn Points>,
    reserve_bytes: u64,
) -> Result<Opened, LogError> {
    let options = LogOptions { segment_bytes: 2048, reserve_bytes, disk: None };
    open(&env(disk, points), Path::new(DIR), identity(), options)
}

fn reopen(disk: &Arc<SimDisk>) -> Opened {
    try_open(disk).unwrap_or_else(|error| panic!("{error}"))
}

fn entry(index: u64, term: u64, data: &[u8]) -> Entry {
    Entry {
        index: LogIndex(index),
        term: Term(term),
        kind: if index.is_multiple_of(7) { EntryKind::Membership } else { EntryKind::Data },
        data: Bytes::copy_from_slice(data),
    }
}

fn base(index: u64, term: u64) -> Base {
    Base { index: LogIndex(index), term: Term(term) }
}

fn group(number: u64, entries: Vec<Entry>) -> Group {
    Group { number, entries, ..Group::default() }
}

fn hard_state(term: u64, vote: Option<u64>, commit: u64) -> HardState {
    HardState { term: Term(term), vote: vote.map(node), commit: LogIndex(commit) }
}

fn path(number: u32) -> PathBuf {
    Path::new(DIR).join(format!("{number:010}.log"))
}

/// Returns the numbers of the existing segments.
fn segments(disk: &SimDisk) -> Vec<u32> {
    let names = disk.list(Path::new(DIR)).unwrap();
    names.iter().filter_map(|name| name.strip_suffix(".log")?.parse().ok()).collect()
}
