//! Simulations of published failures of similar systems: each test has a cluster, its programs and a schedule of
//! faults. With the bug planted ([`mutant`](crate::mutant)), the judge must report the expected invariant. Without
//! the bug, all invariants must hold. `docs/assurance/incidents.md` gives the sources.

use std::collections::BTreeSet;
use std::time::Duration;

use super::locking::Program;
use super::net::NetConditions;
use super::plan::{Plan, PlanFault, ResetReach, SESSION_TTL, Split, Who};
use super::rng::Rng;
use super::rot::Rot;
use super::run::{Failure, Report, Run};
use crate::env::Point;
use crate::mutant::Mutant;

/// Number of seeds in which a bug must be found at least once.
const SEEDS: u64 = 40;

/// The seeds that find bugs which seed 1 does not find. They are tried first, to save time.
const FOUND_BY: &[(Mutant, u64)] =
    &[(Mutant::M08, 10), (Mutant::B46, 5), (Mutant::M11, 4), (Mutant::B52, 4)];

/// Minimum number of acknowledged operations in a run without a bug.
const ACKNOWLEDGED_MIN: u64 = 325;

/// A cluster and its faults.
struct SimStory {
    nodes: u64,
    /// Maximum delay of a message.
    delay_max: Duration,
    programs: &'static [Program],
    faults: Vec<(Duration, PlanFault)>,
    members_change: bool,
}

impl SimStory {
    /// Returns a cluster without faults.
    fn of(nodes: u64, programs: &'static [Program]) -> Self {
        let (faults, members_change) = (Vec::new(), false);
        Self { nodes, delay_max: ms(5), programs, faults, members_change }
    }

    /// Adds a fault at this time.
    fn at(mut self, seconds: f64, fault: PlanFault) -> Self {
        self.faults.push((Duration::from_secs_f64(seconds), fault));
        self
    }

    /// Adds a fault at regular times.
    fn every(mut self, from: f64, to: f64, step: f64, fault: PlanFault) -> Self {
        let mut at = from;
        while at < to {
            self = self.at(at, fault);
            at += step;
        }
        self
    }

    fn run(&self, seed: u64) -> Result<Report, Box<Failure>> {
        let mut faults = self.faults.clone();
        faults.sort_by_key(|(at, _)| *at);
        let plan = Plan {
            nodes: self.nodes,
            net: NetConditions {
                delay_min: Duration::from_micros(100),
                delay_max: self.delay_max,
                ..NetConditions::default()
            },
            sync_min: Duration::from_micros(100),
            sync_max: ms(4),
            faults,
            storm_end: Duration::ZERO,
            clients: 1 + 6 / self.nodes,
            think_max: ms(300),
            programs: self.programs.to_vec(),
            session_ttl: SESSION_TTL,
            members_change: self.members_change,
        };
        Run::of(seed, Rng::new(seed), plan, false, None).finish()
    }

    /// Runs the first seeds without a bug until each of these events has happened. Everything must hold.
    fn holds(&self, happened: &[&str]) -> &Self {
        let mut missing: BTreeSet<&str> = happened.iter().copied().collect();
        for seed in 1..=SEEDS {
            let report = self.run(seed).unwrap_or_else(|failure| panic!("{failure}"));
            let acknowledged = report.acknowledged;
            assert!(acknowledged >= ACKNOWLEDGED_MIN, "{acknowledged} were answered");
            missing.retain(|what| !report.counts.contains_key(what));
            if missing.is_empty() {
                return self;
            }
        }
        panic!("of what was to happen there was no {missing:?}");
    }

    /// Plants the bug. One of the first seeds must break one of these invariants.
    fn falls(&self, bug: Mutant, by: &[&str]) -> &Self {
        let _planted = bug.plant();
        let known = FOUND_BY.iter().filter(|(other, _)| *other == bug).map(|(_, seed)| *seed);
        let fallen: BTreeSet<&str> = known
            .chain(1..=SEEDS)
            .filter_map(|seed| self.run(seed).err())
            .map(|failure| failure.violation.invariant)
            .take(1)
            .collect();
        let found = by.iter().any(|invariant| fallen.contains(invariant));
        assert!(found, "{bug:?} ({}): {fallen:?}, not {by:?}", bug.breaks());
        self
    }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn pause(who: Who, millis: u64) -> PlanFault {
    PlanFault::Pause { who, time: ms(millis) }
}

fn kill(who: Who) -> PlanFault {
    PlanFault::Kill { who, down: ms(400) }
}

fn power_loss(who: Who) -> PlanFault {
    PlanFault::PowerLoss { who, down: ms(400) }
}

fn part(split: Split, millis: u64) -> PlanFault {
    PlanFault::Partition { split, time: ms(millis) }
}

/// Leaders change often: they are killed, lose power, are paused and isolated.
fn failovers(programs: &'static [Program]) -> SimStory {
    SimStory::of(5, programs)
        .every(3.0, 16.0, 4.0, part(Split::Isolate(Who::Leader), 1_500))
        .every(4.0, 16.0, 4.0, kill(Who::Leader))
        .every(5.0, 16.0, 4.0, pause(Who::Leader, 900))
        .every(6.0, 16.0, 4.0, power_loss(Who::Leader))
}

/// The holder of a lock is paused for longer than its lease lives.
fn stalled_holders() -> SimStory {
    SimStory::of(3, &[Program::Mutex]).every(3.0, 20.0, 3.4, pause(Who::Holder, 5_000)).every(
        4.5,
        20.0,
        3.4,
        pause(Who::Any, 3_000),
    )
}

#[test]
fn paused_holder_loses_updates_only_without_fencing() {
    stalled_holders().holds(&["guarded write refused"]).falls(Mutant::N01, &["K-UPDATE", "K-FIFO"]);
}

#[test]
fn pause_before_a_renewal_reply_does_not_extend_validity() {
    let pause_then_isolate =
        PlanFault::PauseThenIsolation { who: Who::Holder, still: ms(1_600), alone: ms(4_000) };
    let mut story = SimStory::of(3, &[Program::Mutex, Program::Election, Program::Permits]).every(
        3.0,
        48.0,
        5.0,
        pause_then_isolate,
    );
    story.delay_max = ms(100);
    story.falls(Mutant::B21, &["K-LOCAL", "K-PERMITS", "L-EARLY"]);
}

#[test]
fn partitioned_leader_serves_no_stale_read() {
    failovers(&[])
        .holds(&[])
        .falls(Mutant::M06, &["X-LIN", "X-WAKE"])
        .falls(Mutant::N02, &["X-LIN"]);
}

#[test]
fn leader_lease_is_no_proof_of_leadership() {
    let still =
        PlanFault::PauseThenIsolation { who: Who::Leader, still: ms(1_000), alone: ms(2_000) };
    failovers(&[]).every(4.2, 16.0, 3.5, still).falls(Mutant::M08, &["X-LIN", "L-EARLY", "X-WAKE"]);
}

#[test]
fn acknowledged_write_survives_the_leader() {
    failovers(&[])
        .falls(Mutant::M04, &["R-QUORUM", "R-SM", "M-HASH"])
        .falls(Mutant::M02, &["R-QUORUM"]);
}

#[test]
fn request_resent_to_a_new_leader_is_applied_once() {
    failovers(&[]).falls(Mutant::M39, &["X-ONCE"]).falls(Mutant::B28, &["X-ONCE"]);
}

#[test]
fn member_votes_once_per_term_despite_a_restart() {
    failovers(&[]).falls(Mutant::M03, &["R-VOTE", "R-ELECT", "R-TERM"]);
}

/// Leaders fail while some followers lag.
fn failovers_of_laggards() -> SimStory {
    let lag = PlanFault::SlowDisk { who: Who::Any, extra: ms(400), time: ms(3_000) };
    failovers(&[]).every(3.0, 16.0, 1.0, lag).every(3.5, 16.0, 1.0, part(Split::Random, 400))
}

#[test]
fn candidate_without_committed_entries_is_not_elected() {
    failovers_of_laggards().falls(Mutant::M31, &["R-COMPLETE"]);
}

#[test]
fn entries_of_earlier_terms_are_not_committed_by_counting() {
    failovers_of_laggards().falls(Mutant::M32, &["R-OWN"]);
}

#[test]
fn new_leader_gives_every_lease_its_full_ttl() {
    failovers(&[Program::Mutex]).falls(Mutant::M09, &["L-EARLY", "L-EPOCH"]);
}

#[test]
fn new_leader_counts_leases_without_keys() {
    failovers(&[Program::Mutex])
        .holds(&["lease end"])
        .falls(Mutant::B37, &["L-EARLY", "L-EPOCH"])
        .falls(Mutant::B38, &["L-CLOSE", "L-EARLY", "L-KEPT", "L-LATE"]);
}

/// Leadership is to be transferred to the other node, which has just been isolated. The transfer fails, and the
/// leader keeps leading.
fn leadership_that_does_not_move() -> SimStory {
    SimStory::of(2, &[]).every(4.0, 25.0, 3.0, part(Split::Isolate(Who::Leader), 650)).every(
        4.02,
        25.0,
        3.0,
        PlanFault::Transfer,
    )
}

#[test]
fn leases_due_during_a_failed_transfer_still_end() {
    leadership_that_does_not_move()
        .holds(&["leadership did not move", "lease end"])
        .falls(Mutant::B41, &["L-LATE"])
        .falls(Mutant::B42, &["L-LATE"]);
}

#[test]
fn leadership_transfer_ends_at_its_deadline() {
    leadership_that_does_not_move().falls(Mutant::B45, &["C-NOHANG"]);
}

#[test]
fn leader_with_a_stalled_disk_loses_its_leadership() {
    let hangs = PlanFault::SlowDisk { who: Who::Leader, extra: ms(6_000), time: ms(6_000) };
    SimStory::of(3, &[])
        .every(4.0, 40.0, 7.0, hangs)
        .holds(&["fault: slow disk"])
        .falls(Mutant::B43, &["R-DISK"]);
}

#[test]
fn only_evidence_replaces_a_leader_early() {
    let reset = |who, reach, millis| PlanFault::Reset { who, reach, time: ms(millis) };
    SimStory::of(3, &[])
        .every(3.5, 40.0, 3.0, PlanFault::Kill { who: Who::Leader, down: ms(300) })
        .holds(&["election on evidence"]);
    SimStory::of(3, &[])
        .every(3.0, 40.0, 0.7, reset(Who::Leader, ResetReach::Peer, 100))
        .every(3.3, 40.0, 0.9, reset(Who::Leader, ResetReach::Lane, 400))
        .every(9.0, 40.0, 7.0, reset(Who::Leader, ResetReach::Node, 2_000))
        .holds(&["election on evidence"])
        .falls(Mutant::B71, &["R-EVIDENCE"])
        .falls(Mutant::B72, &["R-EVIDENCE"])
        .falls(Mutant::B73, &["R-EVIDENCE"]);
}

#[test]
fn request_to_a_dead_leader_is_sent_to_the_next() {
    SimStory::of(3, &[Program::Mutex]).falls(Mutant::B46, &["L-SERVE"]);
}

#[test]
fn paused_node_does_not_catch_up_on_ticks() {
    SimStory::of(3, &[])
        .every(3.0, 16.0, 2.0, pause(Who::Any, 900))
        .at(17.0, PlanFault::PauseAll { time: ms(3_000) })
        .holds(&[])
        .falls(Mutant::B44, &["C-TICK"]);
}

#[test]
fn clocks_may_drift_up_to_the_bound() {
    let alone = |who, millis| part(Split::Isolate(who), millis);
    SimStory::of(3, &[Program::Mutex, Program::Election, Program::Permits])
        .every(3.0, 48.0, 6.0, alone(Who::Holder, 4_500))
        .every(5.9, 48.0, 6.0, PlanFault::ClockDrift)
        .holds(&["lock lost", "lease end"])
        .falls(Mutant::B39, &["K-LOCAL", "K-PERMITS", "L-EARLY"])
        .falls(Mutant::B40, &["K-LOCAL", "K-PERMITS", "L-EARLY", "L-EPOCH"]);
}

#[test]
fn half_of_the_members_is_no_quorum() {
    SimStory::of(4, &[])
        .every(3.0, 16.0, 2.0, part(Split::Halves, 1_500))
        .holds(&[])
        .falls(Mutant::M05, &["R-QUORUM"]);
}

#[test]
fn partial_partition_costs_neither_terms_nor_the_leader() {
    SimStory::of(5, &[])
        .every(3.0, 19.0, 4.0, part(Split::Bridge, 900))
        .every(4.0, 19.0, 4.0, part(Split::Isolate(Who::Leader), 2_900))
        .holds(&[])
        .falls(Mutant::M34, &["R-PREVOTE"])
        .falls(Mutant::M33, &["R-STEP"]);
}

#[test]
fn acknowledged_writes_survive_a_total_power_loss() {
    SimStory::of(3, &[])
        .every(4.0, 16.0, 4.0, PlanFault::Blackout { down: ms(500) })
        .holds(&[])
        .falls(Mutant::N03, &["S-REOPEN"])
        .falls(Mutant::M01, &["S-REOPEN"])
        .falls(Mutant::M22, &["S-REOPEN"]);
}

#[test]
fn acknowledged_writes_of_a_single_node_survive_power_loss() {
    SimStory::of(1, &[])
        .every(3.0, 16.0, 2.0, power_loss(Who::Any))
        .holds(&[])
        .falls(Mutant::N03, &["S-REOPEN", "R-SM", "X-LIN"]);
}

#[test]
fn failed_sync_ends_the_log_and_is_not_retried() {
    let failing = PlanFault::DiskError { who: Who::Any, down: ms(300) };
    SimStory::of(3, &[])
        .every(4.0, 16.0, 2.0, failing)
        .every(5.0, 16.0, 2.0, power_loss(Who::Any))
        .falls(Mutant::M23, &["S-REOPEN", "R-TERM"]);
}

#[test]
fn flipped_bit_in_a_log_stops_only_that_member() {
    let rot = |what| PlanFault::Rot { who: Who::Any, what, down: ms(300) };
    SimStory::of(5, &[])
        .at(5.0, rot(Rot::LogBit))
        .at(9.0, rot(Rot::LogSector))
        .holds(&["damaged log refused"])
        .falls(Mutant::M20, &["S-ROT"])
        .falls(Mutant::M21, &["S-ROT", "S-REOPEN"]);
}

#[test]
fn flipped_bit_in_a_snapshot_does_no_harm() {
    let rot = PlanFault::Rot { who: Who::Any, what: Rot::SnapshotBit, down: ms(300) };
    SimStory::of(3, &[]).every(8.0, 16.0, 3.0, rot).holds(&["snapshot bit flipped"]);
}

#[test]
fn snapshot_corrupted_at_runtime_does_no_harm() {
    let rot = PlanFault::Rot { who: Who::Any, what: Rot::SnapshotMeanwhile, down: ms(0) };
    let away = PlanFault::Kill { who: Who::Any, down: ms(2_000) };
    SimStory::of(3, &[])
        .every(8.0, 16.0, 1.0, rot)
        .at(13.5, away)
        .holds(&["snapshot rotten meanwhile"]);
}

#[test]
fn log_is_truncated_only_behind_a_durable_snapshot() {
    let cut = |point| PlanFault::PointCrash { who: Who::Any, point, down: ms(300) };
    SimStory::of(3, &[])
        .every(3.0, 16.0, 2.0, cut(Point::LogAfterCut))
        .every(4.0, 16.0, 2.0, cut(Point::LogRemovalSynced))
        .falls(Mutant::M19, &["S-REOPEN", "L-CONVERGE", "L-SERVE"]);
}

#[test]
fn incomplete_snapshot_stops_the_node_before_log_truncation() {
    for part in [Mutant::M16, Mutant::M18a, Mutant::M18b] {
        failovers(&[]).falls(part, &["C-STOP"]);
    }
}

#[test]
fn entries_applied_before_a_restart_are_not_applied_again() {
    failovers(&[]).falls(Mutant::M15, &["C-STOP", "M-HASH", "M-DENSE"]);
}

#[test]
fn replicas_apply_the_same_commands_in_the_same_order() {
    failovers(&[]).falls(Mutant::M29, &["M-HASH", "R-SM"]);
}

#[test]
fn compacted_read_is_rejected_on_every_node() {
    failovers(&[]).falls(Mutant::M37, &["M-HIST"]);
}

#[test]
fn rejoining_members_decide_nothing_from_old_state() {
    let mut story = failovers(&[])
        .every(3.2, 16.0, 2.5, PlanFault::Join)
        .every(4.0, 16.0, 2.5, PlanFault::Promote)
        .every(5.0, 16.0, 4.0, PlanFault::Remove)
        .at(8.0, PlanFault::Replace { lost: true });
    story.members_change = true;
    story
        .holds(&["joined", "member removed", "machine of a replaced voter lost"])
        .falls(
            Mutant::M30,
            &["R-CONF", "R-QUORUM", "L-CONVERGE", "L-SERVE", "C-STOP", "R-LEARNER", "S-SIZE"],
        )
        .falls(Mutant::M35, &["R-QUORUM"]);
}

#[test]
fn removed_member_stays_until_the_others_can_do_without() {
    let slow = PlanFault::SlowDisk { who: Who::Any, extra: ms(100), time: ms(2_000) };
    let mut story = SimStory::of(2, &[Program::Mutex])
        .every(3.0, 30.0, 0.7, slow)
        .every(3.2, 30.0, 0.8, PlanFault::Replace { lost: false })
        .every(3.5, 30.0, 1.1, PlanFault::Blackout { down: ms(250) });
    story.members_change = true;
    story
        .holds(&["member replaced", "stopped as removed"])
        .falls(Mutant::B52, &["L-CONVERGE", "L-SERVE"]);
}

#[test]
fn former_only_member_serves_no_stale_read_after_joins() {
    let mut story = SimStory::of(1, &[Program::Mutex])
        .every(3.0, 18.0, 3.0, PlanFault::Join)
        .every(4.0, 18.0, 1.5, PlanFault::Promote)
        .every(6.0, 18.0, 2.0, part(Split::Isolate(Who::Leader), 1_500))
        .every(9.0, 18.0, 2.5, PlanFault::Remove);
    story.members_change = true;
    story
        .holds(&["joined", "member promoted", "member removed"])
        .falls(Mutant::B53, &["X-LIN", "X-RYW"]);
}

#[test]
fn resumed_watch_has_no_gap() {
    failovers(&[]).falls(Mutant::M11, &["W-RELIABLE"]);
}

#[test]
fn queue_item_is_never_lost_or_claimed_twice() {
    failovers(&[Program::Queue])
        .holds(&["item taken", "acknowledged"])
        .falls(Mutant::B10, &["Q-ACK", "Q-LOST"])
        .falls(Mutant::B11, &["Q-LOST"])
        .falls(Mutant::B13, &["Q-ONE", "L-SERVE"]);
}

#[test]
fn lone_consumer_takes_the_first_item() {
    SimStory::of(1, &[Program::Queue])
        .every(4.0, 16.0, 4.0, kill(Who::Any))
        .holds(&["item taken without competition"])
        .falls(Mutant::B54, &["Q-ORDER"]);
}

#[test]
fn a_token_rises_with_every_holder() {
    stalled_holders().falls(Mutant::M25, &["K-FIFO", "K-TOKEN"]);
}

#[test]
fn release_affects_only_its_own_hold() {
    stalled_holders().falls(Mutant::M26, &["K-ROBBED", "K-LOCAL"]);
}

#[test]
fn calls_without_a_quorum_end_with_an_unknown_outcome() {
    let kill = || PlanFault::Kill { who: Who::Any, down: ms(6_500) };
    SimStory::of(3, &[Program::Mutex])
        .at(4.0, part(Split::Isolate(Who::Leader), 7_000))
        // One node is left with uncommitted proposals, and continues with them when the others are back.
        .every(13.0, 45.0, 10.0, kill())
        .every(13.5, 45.0, 10.0, kill())
        .holds(&[])
        .falls(Mutant::M38, &["X-UNKNOWN"]);
}
