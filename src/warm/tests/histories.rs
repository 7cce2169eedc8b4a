//! Tests with random sequences of writes, compactions, sweeps, updates of the copy, and kills. The
//! state that is loaded from a copy must always equal a state that the machine had before.

use super::*;
use crate::env::Entropy;
use crate::sim::Rng;

fn key(rng: &Rng) -> String {
    format!("k{:02}", rng.below(30))
}

fn value(rng: &Rng) -> String {
    "v".repeat(rng.below(40) as usize)
}

impl World {
    fn random_entry(&mut self, rng: &Rng, leases: &mut Vec<LeaseId>) {
        match rng.below(12) {
            0..=4 => self.put(&key(rng), &value(rng)),
            5 => {
                let (from, to) = (key(rng), key(rng));
                let range = KeyRange::between(from.clone().min(to.clone()), from.max(to) + "0");
                drop(self.run(Command::Delete(Delete { range, prev_kv: rng.below(2) == 0 })));
            }
            6 => {
                let keys: std::collections::BTreeSet<String> =
                    (0..rng.below(5)).map(|_| key(rng)).collect();
                let puts = keys.into_iter().map(|key| Op::Put(Put::new(key, value(rng))));
                let txn = Txn { success: puts.collect(), ..Txn::default() };
                drop(self.run(Command::Txn(txn)));
            }
            7 => {
                let ttl = Duration::from_secs(5);
                let granted = self.run(Command::Grant { id: None, ttl, session: None });
                if let Ok(Reply::Grant(reply)) = granted {
                    leases.push(reply.id);
                }
            }
            8 if !leases.is_empty() => {
                let lease = leases[rng.below(leases.len() as u64) as usize];
                let put = Put::new(key(rng), value(rng));
                drop(self.run(Command::Put(Put { lease: PutLease::Attach(lease), ..put })));
            }
            9 if !leases.is_empty() => {
                let lease = leases.swap_remove(rng.below(leases.len() as u64) as usize);
                drop(self.run(Command::Revoke(lease)));
            }
            10 => {
                let newest = self.machine().revision().get();
                let at = Revision(newest - rng.below(newest.min(20)));
                drop(self.run(Command::Compact(at)));
            }
            _ => drop(self.entry(Vec::new())),
        }
    }
}

fn history(seed: u64) -> usize {
    let rng = Rng::new(seed);
    let (mut world, _) = World::new();
    let mut leases = Vec::new();
    let (mut warm, mut last) = (0, None);
    world.start();
    for _ in 0..600 {
        match rng.below(40) {
            0 => {
                world.kill();
                let loaded = world.start();
                assert!(
                    loaded >= last,
                    "what was loaded once is loaded again: {loaded:?} {last:?}"
                );
                last = loaded;
                warm += usize::from(loaded.is_some());
            }
            1 => {
                world.stop();
                world.boot();
                let loaded = world.start();
                assert!(loaded >= last, "a stop in good order loses nothing");
                last = loaded;
                warm += usize::from(loaded.is_some());
            }
            2 => {
                world.kill();
                world.boot();
                // A copy that was closed properly because a new one is being built is still valid.
                let manifest = Manifest::read(&*world.disk, &world.dir()).unwrap();
                last = world.start();
                assert!(
                    last.is_none() || last == manifest.unwrap().stop,
                    "trusted after a power cut"
                );
            }
            3 => {
                // After the worker has fallen behind, it waits before it begins a new copy.
                *world.clock.now.lock().unwrap() += Duration::from_secs(60);
            }
            4..=17 => {
                for _ in 0..rng.below(8) {
                    world.turn();
                }
            }
            18 => drop(world.machine().sweep(rng.below(1000) as usize)),
            _ => world.random_entry(&rng, &mut leases),
        }
    }
    world.settle();
    world.kill();
    world.start();
    warm
}

#[test]
fn loaded_copy_equals_the_stored_state() {
    let warm: usize = (0..60).map(history).sum();
    assert!(warm > 300, "a copy was loaded {warm} times only: the test has no teeth");
}

#[test]
fn idle_state_writes_nothing_to_the_copy() {
    let (mut world, store) = World::new();
    world.start();
    world.put("k", "v");
    world.settle();
    let dir = world.copies().remove(0);
    let before = store.modify(&dir, |records| records.clone());
    for _ in 0..10 {
        assert!(!world.turn());
    }
    assert_eq!(store.modify(&dir, |records| records.clone()), before);
}

#[test]
fn grown_copy_is_rewritten_and_the_old_one_removed() {
    let (mut world, _) = World::new();
    world.start();
    let mut seen = std::collections::BTreeSet::new();
    for number in 0..400 {
        world.put("hot", &number.to_string());
        if number % 10 == 9 {
            world.compact();
            world.machine().sweep(100);
        }
        world.settle();
        let copies = world.copies();
        assert!(copies.len() <= 2, "{copies:?}");
        seen.extend(copies);
    }
    assert!(seen.len() > 3, "{seen:?}");
    world.kill();
    assert!(world.start().is_some());
}

#[test]
fn lagging_copy_is_rewritten_and_loaded_until_then() {
    let (mut world, _) = World::new();
    world.start();
    world.put("a", "1");
    world.settle();
    let old = world.machine().applied();
    for number in 0..20 {
        world.put("b", &number.to_string());
    }
    world.compact();
    while world.machine().sweep(100) {}
    world.settle();
    world.kill();
    assert_eq!(world.start(), Some(old));
    *world.clock.now.lock().unwrap() += Duration::from_secs(60);
    world.settle();
    let newest = world.machine().applied();
    world.kill();
    assert_eq!(world.start(), Some(newest));
}

#[test]
fn image_older_than_the_copied_rows_does_not_become_the_head() {
    let (mut world, _) = World::new();
    world.start();
    for number in 0..40 {
        world.put(&format!("k{number:02}"), "before");
    }
    world.compact();
    while world.machine().sweep(100) {}
    world.turn();
    world.turn();
    let process = world.process();
    process.post.deliver(process.machine.image());
    for number in 0..40 {
        world.put(&format!("k{number:02}"), "after");
    }
    // Enough turns to copy the changes, but not all rows.
    for _ in 0..8 {
        world.turn();
    }
    world.compact();
    while world.machine().sweep(100) {}
    while Manifest::read(&*world.disk, &world.dir()).unwrap().unwrap().copy.is_none() {
        world.turn();
    }
    let newest = world.machine().applied();
    world.kill();
    assert_eq!(world.start(), Some(newest));
}

#[test]
fn worker_pauses_under_load() {
    let (mut world, store) = World::new();
    world.sizes = CopySizes::default();
    world.start();
    world.settle();
    // All these changes are made since the last turn, two seconds ago.
    for number in 0..1_000 {
        let put = || Command::Put(Put::new("k", Bytes::new()));
        let items = vec![Item::Proposal(Proposal {
            node: node(1),
            incarnation: Incarnation(1),
            window: AckWindow { frontier: number * 80, open: Vec::new() },
            requests: (number * 80..(number + 1) * 80).map(|seq| (seq, put())).collect(),
        })];
        let machine = world.machine();
        machine.apply(machine.applied().next(), Term(1), items).unwrap();
    }
    world.machine().publish();
    let dir = world.copies().remove(0);
    let before = store.modify(&dir, |records| records.clone());
    world.turn();
    assert_eq!(store.modify(&dir, |records| records.clone()), before, "it worked under load");
    world.settle();
    assert!(store.modify(&dir, |records| records.len()) > before.len(), "it goes on afterwards");
}
