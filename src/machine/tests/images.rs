//! The state taken apart and put together again: what was there, what was kept, what was refused.

use super::*;
use crate::model::DiskId;

/// The pieces of an image, small ones.
fn pieces(mut image: Image, bytes_max: usize) -> (StateHead, Vec<Piece>) {
    let mut pieces = Vec::new();
    while let Some(piece) = image.next(bytes_max).unwrap() {
        pieces.push(piece);
    }
    (image.head().clone(), pieces)
}

fn restored(machine: &Machine) -> Machine {
    let (head, pieces) = pieces(machine.image(), 100);
    Machine::restore(MachineOptions::default(), head, pieces).unwrap()
}

fn world() -> World {
    let mut world = World::new();
    world.machine.found(Members::founded(&(1..=3).map(|n| (node(n), DiskId(n.into()))).collect()));
    world
}

#[test]
fn an_empty_store_is_restored() {
    let world = world();
    let machine = restored(&world.machine);
    assert_eq!(machine.digest(), world.machine.digest());
    assert_eq!(machine.members(), world.machine.members());
}

#[test]
fn rows_history_leases_and_answers_are_restored() {
    let mut world = world();
    let lease = world.grant(None);
    for number in 0..40 {
        world.put(&format!("k{}", number % 7), &number.to_string());
    }
    world.put_with("leased", lease);
    world.delete("k3".into());
    let compacted = world.reader.revision();
    world.run(Command::Compact(compacted)).unwrap();
    world.put("k3", "again");
    let machine = restored(&world.machine);
    assert_eq!(machine.digest(), world.machine.digest());
    let reader = machine.reader();
    let events = |reader: &Reader| reader.events(&KeyRange::all(), compacted, 1 << 20).unwrap();
    assert_eq!(events(&reader), events(&world.reader));
    for revision in compacted.get()..=world.reader.revision().get() {
        let range = Range { revision: at(revision), ..Range::new(KeyRange::all()) };
        assert_eq!(reader.range(&range), world.reader.range(&range));
    }
    assert_eq!(reader.lease(lease), world.reader.lease(lease));
    let id = RequestId { node: node(1), incarnation: Incarnation(1), seq: world.seq };
    assert_eq!(machine.answer(id), world.machine.answer(id));
    world.machine.sweep(1000);
    assert_eq!(reader.bytes(), world.reader.bytes());
}
