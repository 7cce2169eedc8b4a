//! Randomized runs of clusters of several sizes. Messages are lost, duplicated and reordered,
//! members crash during disk writes, networks are partitioned, and disks are slow. Members are
//! added and removed, logs are truncated, and snapshots are fetched.

use super::world::{World, add, node};
use crate::model::{MemberChange, NodeId, SplitMix64};

/// Number of short runs, and of runs with membership changes.
const SEEDS: u64 = 240;
const CHANGING_SEEDS: u64 = 300;
const STEPS: usize = 700;
const CHANGING_STEPS: usize = 1_500;

/// Maximum number of members at a time, so that one leader can serve them.
const MEMBERS_MAX: usize = 7;

/// Numbers of voters and learners.
const SHAPES: [(u64, u64); 6] = [(3, 0), (1, 2), (5, 0), (3, 1), (1, 0), (2, 0)];

#[derive(Default)]
struct Outcome {
    committed: usize,
    rounds: usize,
    crashes: usize,
    changes: usize,
    joint: usize,
    removed_leaders: usize,
    installs: usize,
    trace: u64,
}

impl Outcome {
    fn add(&mut self, other: &Outcome) {
        self.committed += other.committed;
        self.rounds += other.rounds;
        self.crashes += other.crashes;
        self.changes += other.changes;
        self.joint += other.joint;
        self.removed_leaders += other.removed_leaders;
        self.installs += other.installs;
    }
}

fn run(seed: u64, changing: bool) -> Outcome {
    let (voters, learners) = SHAPES[(seed % SHAPES.len() as u64) as usize];
    let mut rng = SplitMix64::new(seed);
    let mut world = World::dark(voters, learners, seed);
    if seed.is_multiple_of(3) {
        // Use small limits, so that old entries are read from disk.
        world.tune = |config| {
            config.cache_bytes_max = 2_000;
            config.append_bytes_max = 200;
            config.commit_bytes_max = 300;
            config.inflight_max = 4;
        };
    }
    world.ids().into_iter().for_each(|id| world.start(id));
    world.holds_installs = changing && seed.is_multiple_of(2);
    let mut outcome = Outcome::default();
    let mut cut: Option<NodeId> = None;
    for step in 0..if changing { CHANGING_STEPS } else { STEPS } {
        let ids = world.ids();
        let id = ids[rng.below(ids.len() as u64) as usize];
        match rng.below(100) {
            0..20 => world.tick(id),
            20..60 if !world.flying.is_empty() => {
                let place = rng.below(world.flying.len() as u64) as usize;
                let flying = match rng.below(20) {
                    0 => world.flying[place].clone(),
                    _ => world.flying.remove(place),
                };
                let is_lost = rng.next_u64().is_multiple_of(12);
                if !is_lost && cut != Some(flying.from) && cut != Some(flying.to) {
                    world.deliver(flying);
                }
            }
            60..80 => {
                world.sync(id);
            }
            80..88 => {
                if let Some(leader) = world.leader() {
                    for n in 0..1 + rng.below(4) {
                        world.propose(leader, format!("{seed}.{step}.{n}").as_bytes());
                    }
                }
            }
            88..93 => {
                world.read(id);
            }
            93 => {
                let queued = world.members[&id].disk.look().queued.len() as u64;
                world.crash(id, rng.below(queued + 1) as usize);
                outcome.crashes += 1;
            }
            94..97 if !world.is_up(id) => world.start(id),
            97 => cut = rng.next_u64().is_multiple_of(2).then_some(id),
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
        if changing {
            campaign_repeatedly(&mut world, &mut rng, id);
        }
        if step % 100 == 0 {
            world.check_logs();
        }
    }
    heal(&mut world);
    outcome.committed = world.history.len();
    outcome.rounds = world.rounds_confirmed;
    outcome.installs = world.installs;
    outcome.trace = world.trace;
    outcome.removed_leaders = world.removed_leaders;
    let states: Vec<_> = world.states.values().map(|machine| &machine.members).collect();
    for pair in states.windows(2) {
        outcome.changes += usize::from(pair[0] != pair[1]);
        outcome.joint += usize::from(!pair[0].is_joint() && pair[1].is_joint());
    }
    outcome
}

/// Random events of the third phase: membership changes, snapshots and transfers of them, and log
/// truncation.
fn campaign_repeatedly(world: &mut World, rng: &mut SplitMix64, id: NodeId) {
    match rng.below(40) {
        0..10 => {
            if let Some(leader) = world.leader()
                && let Some(change) = propose_change(world, rng, leader)
            {
                world.change(leader, &change);
            }
        }
        10 => world.snapshot(id),
        11..13 => {
            let keep = rng.below(10);
            world.cut(id, keep);
            // The consensus may be informed of the truncated log later, or never.
            if let Some(consensus) = world.consensus(id)
                && rng.next_u64().is_multiple_of(2)
            {
                consensus.log_cut().unwrap();
            }
        }
        13 => world.prune(id),
        14..20 => {
            world.fetch(id);
        }
        20..24 => {
            world.finish_install(id);
        }
        24..27 => {
            world.serve(id);
        }
        _ => {}
    }
}

/// Returns a membership change that is reasonable in most cases.
fn propose_change(world: &mut World, rng: &mut SplitMix64, leader: NodeId) -> Option<MemberChange> {
    let members = world.members[&leader].machine.members.clone();
    let rows: Vec<NodeId> = members.rows().keys().copied().collect();
    let (voters, learners): (Vec<_>, Vec<_>) =
        (members.voters().collect(), members.learners().collect());
    let mut pick = |ids: &[NodeId]| match ids.len() as u64 {
        0 => None,
        len => Some(ids[rng.below(len) as usize]),
    };
    let (voter, learner, anybody) = (pick(&voters), pick(&learners), pick(&rows));
    let change = match rng.below(10) {
        // An invalid change.
        0 => MemberChange::Promote(
            voter.filter(|_| rng.next_u64().is_multiple_of(2)).unwrap_or(node(99)),
        ),
        1..3 => MemberChange::Remove(anybody?),
        3 if rows.len() < MEMBERS_MAX => add(members.next()),
        _ if learner.is_none() && rows.len() < MEMBERS_MAX => add(members.next()),
        4 => MemberChange::Promote(learner?),
        _ => MemberChange::Replace { old: voter?, new: learner? },
    };
    let consensus = world.consensus(leader)?;
    let comes = match &change {
        MemberChange::Promote(new) | MemberChange::Replace { new, .. } => Some(*new),
        _ => None,
    };
    let is_wise = consensus.would_lose_quorum(&change).is_none()
        && comes.is_none_or(|new| consensus.is_caught_up(new));
    // Sometimes propose an unreasonable change. Such a change may cost time, but must violate no
    // invariant.
    (is_wise || rng.next_u64().is_multiple_of(2)).then_some(change)
}

/// Ends all faults. All members must then agree, although removed members continue to send
/// messages.
fn heal(world: &mut World) {
    for id in world.ids() {
        if !world.is_up(id) {
            world.start(id);
        }
    }
    world.holds_installs = false;
    let mut proposed = None;
    for _ in 0..400 {
        for id in world.ids() {
            world.tick(id);
        }
        world.settle();
        if proposed.is_none()
            && let Some(leader) = world.leader()
        {
            proposed = world.propose(leader, b"after all");
            world.settle();
        }
        let Some((last, newest)) = world.states.last_key_value() else { continue };
        let is_done = |id: &NodeId| world.members[id].applied == *last;
        if proposed.is_some()
            && world.history.values().any(|e| e.data == "after all".as_bytes())
            && newest.members.rows().keys().all(is_done)
            && !newest.members.is_joint()
        {
            for id in newest.members.rows().keys() {
                assert_eq!(world.members[id].machine, *newest, "R-SM: {id}");
            }
            world.check_logs();
            return;
        }
    }
    let standing = |(id, member): (&NodeId, &super::world::Member)| {
        let status = member.consensus.as_ref().map(|consensus| consensus.status());
        format!("{id}: {:?} {status:?}", member.machine.members.voters().collect::<Vec<_>>())
    };
    let all: Vec<_> = world.members.iter().map(standing).collect();
    panic!("the cluster does not come to agree:\n{}", all.join("\n"));
}

fn run_all(seeds: std::ops::Range<u64>, changing: bool) -> Outcome {
    let mut sum = Outcome::default();
    for seed in seeds {
        let result = std::panic::catch_unwind(|| run(seed, changing));
        let outcome = result.unwrap_or_else(|cause| {
            let why = cause.downcast_ref::<String>().map(String::as_str);
            let why = why.or_else(|| cause.downcast_ref::<&str>().copied());
            panic!("seed {seed}: {}", why.unwrap_or("panicked"));
        });
        sum.add(&outcome);
    }
    sum
}

#[test]
fn committed_entries_survive_and_promises_wait_for_durability() {
    let sum = run_all(0..SEEDS, false);
    // A run without events would prove nothing.
    let seeds = SEEDS as usize;
    assert!(sum.committed > 15 * seeds, "{} entries committed", sum.committed);
    assert!(sum.rounds > seeds, "{} rounds confirmed", sum.rounds);
    assert!(sum.crashes > 3 * seeds, "{} crashes", sum.crashes);
}

#[test]
fn committed_entries_survive_membership_changes_and_log_truncation() {
    let sum = run_all(0..CHANGING_SEEDS, true);
    let seeds = CHANGING_SEEDS as usize;
    assert!(sum.committed > 15 * seeds, "{} entries committed", sum.committed);
    assert!(sum.changes > 2 * seeds, "{} changes of the members", sum.changes);
    assert!(sum.joint > seeds / 15, "{} replacements", sum.joint);
    assert!(sum.removed_leaders > 2, "{} leaders removed", sum.removed_leaders);
    assert!(sum.installs > seeds, "{} snapshots installed", sum.installs);
}

#[test]
fn a_seed_replays_bit_for_bit() {
    for (seed, changing) in [(1, false), (3, true), (6, true)] {
        assert_eq!(run(seed, changing).trace, run(seed, changing).trace);
    }
    assert_ne!(run(6, true).trace, run(12, true).trace, "and another seed does not");
}
