//! Fuzz targets for messages and commands. A decoded value must encode to the same bytes again, and
//! no command that can be decoded may make the state machine panic.

use bytes::Bytes;

use super::sample::Sample;
use super::*;
use crate::fuzz::{Came, Feed};
use crate::machine::{Applied, Change, Machine, MachineOptions};
use crate::model::{DiskId, Fault, Item, JoinAnswer, JoinAsk, Term};

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    bytes
}

/// Decodes messages and other values. The first byte selects the type; the remaining bytes are the
/// input.
pub(crate) fn messages(data: &[u8]) -> Came {
    let Some((kind, bytes)) = data.split_first() else { return Came::Refused };
    let input = Bytes::copy_from_slice(bytes);
    let again = match kind % 6 {
        0 => decode_message(input).map(|message| {
            let again = written(|out| encode_message(&message, out));
            assert_eq!(message_len(&message), again.len());
            again
        }),
        1 => decode_join_ask(input).map(|ask| written(|out| encode_join_ask(&ask, out))),
        2 => {
            decode_join_answer(input).map(|answer| written(|out| encode_join_answer(&answer, out)))
        }
        3 => decode_member_change(input).map(|change| encode_member_change(&change)),
        4 => decode_head(input).map(|head| written(|out| encode_head(&head, out))),
        _ => decode_piece(input).map(|piece| written(|out| encode_piece(&piece, out))),
    };
    let Ok(again) = again else { return Came::Refused };
    assert_eq!(again, bytes, "one value has two encodings");
    Came::Through
}

pub(crate) fn message_seeds() -> Vec<Vec<u8>> {
    let mut sample = Sample::new(1);
    let mut seeds = Vec::new();
    for _ in 0..60 {
        let message = sample.draw();
        seeds.push(written(|out| {
            out.push(0);
            encode_message(&message, out);
        }));
    }
    let ask = JoinAsk {
        disk: DiskId(7),
        name: "d".to_owned(),
        address: "h:1".to_owned(),
        replaces: Some("b".to_owned()),
    };
    seeds.push(written(|out| {
        out.push(1);
        encode_join_ask(&ask, out);
    }));
    for answer in [JoinAnswer::Refused("no".to_owned()), JoinAnswer::Later("soon".to_owned())] {
        seeds.push(written(|out| {
            out.push(2);
            encode_join_answer(&answer, out);
        }));
    }
    for _ in 0..8 {
        let change = encode_member_change(&sample.draw());
        seeds.push([&[3], &change[..]].concat());
        let (head, piece) = (sample.draw(), sample.draw());
        seeds.push(written(|out| {
            out.push(4);
            encode_head(&head, out);
        }));
        seeds.push(written(|out| {
            out.push(5);
            encode_piece(&piece, out);
        }));
    }
    seeds
}

/// Applies arbitrary log entries to two machines: entry by entry to one, item by item to the other.
/// Both machines must reach the same state.
pub(crate) fn commands(data: &[u8]) -> Came {
    let mut feed = Feed::new(data);
    let machine =
        |sweep_rows| Machine::new(MachineOptions { sweep_rows, ..MachineOptions::default() });
    let mut whole = machine([0, 1, 64][feed.below(3) as usize]);
    let mut parts = machine(64);
    let mut came = Came::Refused;
    // Applies several entries, so that later commands meet the effects of earlier ones.
    while !feed.is_empty() {
        let bytes = feed.bytes(4096);
        let Ok(items) = decode_items(Bytes::copy_from_slice(bytes)) else { continue };
        assert_eq!(encode_items(&items), bytes, "one entry has two encodings");
        came = Came::Through;
        let one_by_one: Result<Vec<_>, _> =
            items.iter().map(|item| apply(&mut parts, vec![item.clone()])).collect();
        let at_once = apply(&mut whole, items);
        let (Ok(one_by_one), Ok(at_once)) = (&one_by_one, &at_once) else {
            assert!(one_by_one.is_err() && at_once.is_err(), "{one_by_one:?}, {at_once:?}");
            return came;
        };
        let outcomes: Vec<_> = one_by_one.iter().flat_map(|one| one.outcomes.clone()).collect();
        assert_eq!(outcomes, at_once.outcomes);
        let changes: Vec<_> = one_by_one.iter().flat_map(|one| one.changes.clone()).collect();
        assert_eq!(changes, at_once.changes);
        let dense = |two: &[Change]| two[1].revision() == two[0].revision().next();
        assert!(changes.windows(2).all(dense), "M-DENSE");
        let end = whole.applied().max(parts.applied());
        for machine in [&mut whole, &mut parts] {
            while machine.applied() < end {
                apply(machine, Vec::new()).expect("an empty entry");
            }
            machine.publish();
        }
        assert_eq!(whole.digest(), parts.digest(), "how items are batched makes a difference");
        // The image of the machine must restore to the same state.
        let mut image = whole.image();
        let head = image.head().clone();
        let pieces = std::iter::from_fn(|| image.next(1 + bytes.len()).expect("readable"));
        let restored =
            Machine::restore(MachineOptions::default(), head, pieces.collect::<Vec<_>>());
        assert_eq!(restored.expect("its own image").digest(), whole.digest());
    }
    came
}

fn apply(machine: &mut Machine, items: Vec<Item>) -> Result<Applied, Fault> {
    machine.apply(machine.applied().next(), Term(7), items)
}

pub(crate) fn command_seeds() -> Vec<Vec<u8>> {
    let mut sample = Sample::new(2);
    let mut seeds = Vec::new();
    while seeds.len() < 40 {
        let mut seed = vec![sample.below(3) as u8];
        for _ in 0..1 + sample.below(4) {
            let entry = encode_items(&sample.draw::<Vec<Item>>());
            if entry.len() <= 4096 {
                seed.extend((entry.len() as u16).to_le_bytes());
                seed.extend(entry);
            }
        }
        if seed.len() < 4096 {
            seeds.push(seed);
        }
    }
    seeds
}
