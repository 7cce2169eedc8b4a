//! Seeds: clusters of several shapes, with messages lost, doubled and overtaken, members that crash
//! with groups on their way to the disk, partitions, and disks that take their time.

use super::world::{World, draw};
use crate::model::NodeId;

/// Runs of the quick leg.
const SEEDS: u64 = 240;
const STEPS: usize = 700;

/// Voters and learners.
const SHAPES: [(u64, u64); 6] = [(3, 0), (1, 2), (5, 0), (3, 1), (1, 0), (2, 0)];

struct Outcome {
    committed: usize,
    rounds: usize,
    crashes: usize,
    trace: u64,
}

fn run(seed: u64) -> Outcome {
    let (voters, learners) = SHAPES[(seed % SHAPES.len() as u64) as usize];
    let mut rng = seed;
    let mut world = World::new(voters, learners, seed);
    if seed.is_multiple_of(3) {
        // Small enough that old entries are read from disk.
        world.tune = |config| {
            config.cache_bytes_max = 2_000;
            config.append_bytes_max = 200;
            config.commit_bytes_max = 300;
            config.inflight_max = 4;
        };
        for id in world.voters.clone() {
            world.crash(id, 0);
            world.start(id);
        }
    }
    let ids: Vec<NodeId> = world.members.keys().copied().collect();
    let (mut cut, mut crashes): (Option<NodeId>, _) = (None, 0);
    for step in 0..STEPS {
        let id = ids[(draw(&mut rng) % ids.len() as u64) as usize];
        match draw(&mut rng) % 100 {
            0..20 => world.tick(id),
            20..60 if !world.flying.is_empty() => {
                let place = (draw(&mut rng) % world.flying.len() as u64) as usize;
                let flying = match draw(&mut rng) % 20 {
                    0 => world.flying[place].clone(),
                    _ => world.flying.remove(place),
                };
                let is_lost = draw(&mut rng).is_multiple_of(12);
                if !is_lost && cut != Some(flying.from) && cut != Some(flying.to) {
                    world.deliver(flying);
                }
            }
            60..80 => {
                world.sync(id);
            }
            80..88 => {
                if let Some(leader) = world.leader() {
                    for n in 0..1 + draw(&mut rng) % 4 {
                        world.propose(leader, format!("{seed}.{step}.{n}").as_bytes());
                    }
                }
            }
            88..93 => {
                world.read(id);
            }
            93 => {
                let queued = world.members[&id].disk.look().queued.len() as u64;
                world.crash(id, (draw(&mut rng) % (queued + 1)) as usize);
                crashes += 1;
            }
            94..97 if !world.is_up(id) => world.start(id),
            97 => cut = draw(&mut rng).is_multiple_of(2).then_some(id),
            98 => {
                if let Some(consensus) = world.consensus(id) {
                    consensus.campaign();
                    world.turn(id).unwrap();
                }
            }
            99 => {
                if let Some(leader) = world.leader() {
                    world.consensus(leader).unwrap().transfer_to(id);
                    world.turn(leader).unwrap();
                }
            }
            _ => {}
        }
        if step % 100 == 0 {
            world.check_logs();
        }
    }
    heal(&mut world);
    Outcome {
        committed: world.history.len(),
        rounds: world.rounds_confirmed,
        crashes,
        trace: world.trace,
    }
}

/// All trouble ends, and everybody must come to agree.
fn heal(world: &mut World) {
    let ids: Vec<NodeId> = world.members.keys().copied().collect();
    for id in &ids {
        if !world.is_up(*id) {
            world.start(*id);
        }
    }
    let mut proposed = None;
    for _ in 0..400 {
        for id in &ids {
            world.tick(*id);
        }
        world.settle();
        if proposed.is_none()
            && let Some(leader) = world.leader()
        {
            proposed = world.propose(leader, b"after all");
            world.settle();
        }
        let last = world.history.keys().last().copied();
        let is_done = |id: &NodeId| Some(world.members[id].applied) == last;
        if proposed.is_some()
            && world.history.values().any(|e| e.data == "after all".as_bytes())
            && ids.iter().all(is_done)
        {
            world.check_logs();
            return;
        }
    }
    panic!("the cluster does not come to agree");
}

#[test]
fn whatever_happens_what_is_committed_stays_and_nothing_is_promised_before_it_is_durable() {
    let (mut committed, mut rounds, mut crashes) = (0, 0, 0);
    for seed in 0..SEEDS {
        let result = std::panic::catch_unwind(|| run(seed));
        let outcome = result.unwrap_or_else(|cause| {
            let why = cause.downcast_ref::<String>();
            panic!("seed {seed}: {}", why.map_or("panicked", |why| why));
        });
        committed += outcome.committed;
        rounds += outcome.rounds;
        crashes += outcome.crashes;
    }
    // A run in which nothing happens proves nothing.
    let seeds = SEEDS as usize;
    assert!(committed > 15 * seeds, "{committed} entries committed");
    assert!(rounds > seeds, "{rounds} rounds confirmed");
    assert!(crashes > 3 * seeds, "{crashes} crashes");
}

#[test]
fn a_seed_replays_bit_for_bit() {
    for seed in [1, 3, 6] {
        assert_eq!(run(seed).trace, run(seed).trace);
    }
    assert_ne!(run(6).trace, run(12).trace, "and another seed does not");
}
