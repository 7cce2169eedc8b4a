//! The fuzz target for snapshot files. The input is either arbitrary bytes, or arbitrary chunk
//! contents to which correct checksums are added.

use std::path::Path;
use std::sync::Arc;

use super::format::{Chunks, Sums, kind};
use super::*;
use crate::codec::{self, sample::Sample};
use crate::env::Disk;
use crate::fuzz::{Came, Feed};
use crate::machine::{Machine, MachineOptions, RestoreError};
use crate::model::{ClusterId, Item, LogIndex, PieceCounts, SnapshotRecord, StateHead, Term};
use crate::sim::SimDisk;

const CLUSTER: ClusterId = ClusterId(0xc1);
const FILE: &str = "/data/read";

/// Makes a snapshot file from the input; the first byte selects how. All decoded data must encode
/// to the same bytes again, and the pieces must either restore to a state or be rejected.
pub(crate) fn snapshots(data: &[u8]) -> Came {
    let mut feed = Feed::new(data);
    let bytes = match feed.byte() % 8 {
        0 => feed.rest().to_vec(),
        _ => forged(&mut feed),
    };
    let sim = Arc::new(SimDisk::new(1));
    sim.replace(Path::new(FILE), &bytes);
    let disk: Arc<dyn Disk> = sim;
    let Ok((head, records, cluster)) = read(&disk) else { return Came::Refused };
    let (mut chunks, mut again) = Chunks::begin(cluster, &head);
    for record in &records {
        again.extend(chunks.record(record));
    }
    again.extend(chunks.end().0);
    assert_eq!(again, bytes, "one state has two files");
    // The pieces may be valid one by one but not belong together, as a peer may send them.
    let (head, restored) = restore(head, records);
    if let Ok(machine) = restored {
        assert_eq!(machine.digest(), head.digest);
        let mut image = machine.image();
        let again = image.head().clone();
        let records = std::iter::from_fn(|| image.next(4096).expect("readable")).collect();
        let (_, again) = restore(again, records);
        assert_eq!(again.expect("its own image").digest(), head.digest);
    }
    Came::Through
}

/// Restores with the correct digest, which no fuzzer can guess.
fn restore(
    mut head: StateHead,
    records: Vec<SnapshotRecord>,
) -> (StateHead, Result<Machine, RestoreError>) {
    let again = |head: &StateHead| {
        Machine::restore(MachineOptions::default(), head.clone(), records.iter().cloned())
    };
    match again(&head) {
        Err(RestoreError::Digest { found, .. }) => {
            head.digest = found;
            let restored = again(&head);
            (head, restored)
        }
        restored => (head, restored),
    }
}

fn read(
    disk: &Arc<dyn Disk>,
) -> Result<(StateHead, Vec<SnapshotRecord>, ClusterId), SnapshotError> {
    let mut reader = SnapshotReader::open(disk, Path::new(FILE))?;
    let mut records = Vec::new();
    while let Some(record) = reader.next()? {
        records.push(record);
    }
    assert_eq!(reader.sound(), reader.bytes(), "read to its end");
    Ok((reader.head().clone(), records, reader.cluster()))
}

/// Makes a file of chunks, each with a kind and a content from the input. In most cases, the file
/// begins with a head, has valid pieces, and ends with a correct footer.
fn forged(feed: &mut Feed<'_>) -> Vec<u8> {
    let (_, begin) = Chunks::begin(CLUSTER, machine(0).image().head());
    let mut bytes = begin[..format::HEADER_BYTES].to_vec();
    let (mut sums, mut counts) = (Sums::begin(&bytes), PieceCounts::default());
    let put = |bytes: &mut Vec<u8>, sums: &mut Sums, kind: u8, content: &[u8]| {
        let content = [&[kind], content].concat();
        let length = content.len() as u32;
        let crc = sums.next(length, &content);
        let chunk = [&length.to_le_bytes()[..], &crc.to_le_bytes(), &content].concat();
        sums.pass(&chunk, crc);
        bytes.extend(chunk);
    };
    let is_wild = feed.once_in(16);
    let mut head = feed.bytes(400).to_vec();
    if !is_wild && codec::decode_head(head.clone().into()).is_err() {
        head.clear();
        codec::encode_head(machine(0).image().head(), &mut head);
    }
    put(&mut bytes, &mut sums, kind::HEAD, &head);
    while !feed.is_empty() {
        let kind = if is_wild { feed.byte() % 5 } else { kind::PIECE };
        let content = feed.bytes(2000);
        if let Ok(record) = codec::decode_piece(content.to_vec().into()) {
            counts.add(&record);
        } else if !is_wild {
            continue;
        }
        put(&mut bytes, &mut sums, kind, content);
    }
    let mut footer = sums.footer(counts);
    if is_wild {
        footer.counts.rows = footer.counts.rows.wrapping_add(1);
    }
    put(&mut bytes, &mut sums, kind::FOOTER, &footer.encoded());
    bytes
}

/// Returns a machine with some data.
fn machine(seed: u64) -> Machine {
    let (mut machine, mut sample) = (Machine::new(MachineOptions::default()), Sample::new(seed));
    for _ in 0..seed {
        let items: Vec<Item> = sample.draw();
        let index: LogIndex = machine.applied().next();
        if machine.apply(index, Term(3), items).is_err() {
            break;
        }
    }
    machine
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for seed in 0..12 {
        let machine = machine(seed);
        let mut image = machine.image();
        let head = image.head().clone();
        let records: Vec<SnapshotRecord> =
            std::iter::from_fn(|| image.next(300).expect("readable")).collect();
        let (mut chunks, mut whole) = Chunks::begin(CLUSTER, &head);
        let mut orders = vec![1, 0];
        // An input that starts with these two bytes is turned into a mostly valid file. The head of
        // the state follows.
        let mut body = Vec::new();
        codec::encode_head(&head, &mut body);
        let put = |orders: &mut Vec<u8>, body: &[u8]| {
            orders.extend((body.len() as u16).to_le_bytes());
            orders.extend(body);
        };
        put(&mut orders, &body);
        for record in &records {
            whole.extend(chunks.record(record));
            let mut body = Vec::new();
            codec::encode_piece(record, &mut body);
            put(&mut orders, &body);
        }
        whole.extend(chunks.end().0);
        if orders.len() < 3000 {
            seeds.push(orders);
            seeds.push([&[0], &whole[..]].concat());
        }
    }
    seeds
}
