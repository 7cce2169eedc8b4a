//! Tests that kill real processes during writes: at every named point of the log and the driver, and at random times.
//! Acknowledged writes must be stored exactly once, and writes of unknown outcome at most once. A killed process must
//! be able to restart.
//!
//! `BOWLINE_CRASH_ROUNDS` multiplies the number of crashes (default 1). `BOWLINE_CRASH_SEED` is the seed of the random
//! times.

#![allow(clippy::print_stderr, reason = "the counts are part of the test's result")]

use std::collections::BTreeMap;

use bowline::env::Point;
use bowline_jepsen::process::LIMIT;
use bowline_jepsen::{Cluster, Death, Dice, HarnessError, number_in};

use crate::NODE;

fn rounds() -> u64 {
    number_in("BOWLINE_CRASH_ROUNDS").unwrap_or(1)
}

/// Returns the random numbers for the targets and the times.
fn dice() -> Dice {
    let seed = number_in("BOWLINE_CRASH_SEED").unwrap_or(1);
    eprintln!("BOWLINE_CRASH_SEED={seed} draws these moments");
    Dice::new(seed)
}

/// Number of deaths of processes at each point.
#[derive(Default)]
struct Coverage(BTreeMap<Point, u64>);

impl Coverage {
    fn died(&mut self, death: Death, expected: Point) {
        assert_eq!(death, Death::At(expected));
        *self.0.entry(expected).or_default() += 1;
    }

    fn is_complete(&self) {
        let missing: Vec<_> =
            Point::ALL.into_iter().filter(|point| !self.0.contains_key(point)).collect();
        assert!(missing.is_empty(), "no process died at {missing:?}");
    }
}

/// Returns whether the point is reached rarely, as when segments change, so that many hits would take long.
fn is_rare(point: Point) -> bool {
    use Point::*;
    matches!(
        point,
        LogSegmentCreated
            | LogSegmentSynced
            | LogBeforeCut
            | LogAfterCut
            | LogSegmentRemoved
            | LogRemovalSynced
    )
}

/// Returns every point with each of these hit counts, and with random ones in further rounds.
fn crashes(hits: [u64; 2]) -> Vec<(Point, u64)> {
    let mut dice = dice();
    let mut crashes = Vec::new();
    for round in 0..rounds() {
        for point in Point::ALL {
            for hits in hits {
                let rare = is_rare(point);
                let more = if round == 0 { 0 } else { dice.below(if rare { 3 } else { 60 }) };
                crashes.push((point, if rare { 1 } else { hits } + more));
            }
        }
    }
    crashes
}

/// Number of deaths after which another cluster is used: the larger the store, the more writes are needed until the
/// log is truncated.
const DEATHS_OF_A_CLUSTER: usize = 5;

/// Kills the `victim` at every point during writes.
fn killed_at_every_point(
    members: usize,
    hits: [u64; 2],
    victim: impl Fn(&Cluster) -> Result<usize, HarnessError>,
) -> Result<(), HarnessError> {
    let mut coverage = Coverage::default();
    let mut done = 0;
    for crashes in crashes(hits).chunks(DEATHS_OF_A_CLUSTER) {
        let cluster = Cluster::new(NODE, members)?;
        cluster.start()?;
        cluster.load().more(10)?;
        for &(point, hits) in crashes {
            let victim = victim(&cluster)?;
            cluster.arm(victim, point, hits)?;
            coverage.died(cluster.died(victim)?, point);
            if cluster.members() > 1 {
                cluster.load().more(5)?;
            }
            cluster.restart(victim)?;
            cluster.judge(victim)?;
            cluster.load().more(5)?;
        }
        done += cluster.conclude()?.done;
    }
    coverage.is_complete();
    eprintln!("deaths: {:?}; {done} writes acknowledged, all there once", coverage.0);
    Ok(())
}

#[test]
fn single_node_killed_at_any_point_keeps_acknowledged_writes() -> Result<(), HarnessError> {
    killed_at_every_point(1, [1, 17], |_| Ok(0))
}

#[test]
fn leader_killed_at_any_point_loses_nothing_and_restarts() -> Result<(), HarnessError> {
    killed_at_every_point(3, [1, 6], |cluster| Ok(cluster.await_leader(LIMIT)?.0))
}

#[test]
fn follower_killed_at_any_point_loses_nothing_and_restarts() -> Result<(), HarnessError> {
    let follower = |cluster: &Cluster| Ok((cluster.await_leader(LIMIT)?.0 + 1) % cluster.members());
    killed_at_every_point(3, [2, 9], follower)
}

#[test]
fn member_killed_during_bootstrap_joins_after_its_restart() -> Result<(), HarnessError> {
    let mut coverage = Coverage::default();
    let hits = (0..=rounds()).map(|round| 1 + 2 * round);
    let all = Point::ALL.into_iter().flat_map(|point| hits.clone().map(move |hits| (point, hits)));
    for (i, (point, hits)) in all.enumerate() {
        let hits = if is_rare(point) { 1 } else { hits };
        let members = if i % 4 == 0 { 3 } else { 1 };
        let victim = i % members;
        let cluster = Cluster::new(NODE, members)?;
        for member in 0..members {
            cluster.spawn_armed(member, (member == victim).then_some((point, hits)))?;
        }
        for member in (0..members).filter(|member| *member != victim) {
            cluster.join(member)?;
        }
        // The victim may die before it is ready, or later because of its own writers.
        if cluster.process(victim).ready()? {
            cluster.load().write_to(victim, &cluster.process(victim));
        }
        coverage.died(cluster.died(victim)?, point);
        cluster.restart(victim)?;
        cluster.load().more(5)?;
        cluster.conclude()?;
    }
    coverage.is_complete();
    eprintln!("deaths while founding: {:?}", coverage.0);
    Ok(())
}

#[test]
fn node_killed_during_recovery_recovers_at_the_next_start() -> Result<(), HarnessError> {
    let cluster = Cluster::new(NODE, 1)?;
    cluster.start()?;
    let mut deaths = 0;
    for point in [Point::LogBeforeWrite, Point::LogAfterWrite, Point::LogAfterSync] {
        for hits in 1..=1 + 2 * rounds() {
            cluster.load().more(20)?;
            cluster.kill(0)?;
            cluster.spawn_armed(0, Some((point, hits)))?;
            if cluster.process(0).ready()? {
                cluster.load().write_to(0, &cluster.process(0));
            }
            assert_eq!(cluster.died(0)?, Death::At(point));
            deaths += 1;
            cluster.restart(0)?;
            cluster.judge(0)?;
        }
    }
    eprintln!("{deaths} deaths while recovering; {}", cluster.conclude()?);
    Ok(())
}

#[test]
fn members_killed_at_random_times_lose_nothing() -> Result<(), HarnessError> {
    let mut dice = dice();
    let cluster = Cluster::new(NODE, 3)?;
    cluster.start()?;
    let (mut minorities, mut majorities, mut all) = (0, 0, 0);
    for round in 0..9 * rounds() {
        cluster.load().more(1 + dice.below(120))?;
        // One, two or all three at once, in turn.
        let many = 1 + usize::try_from(round % 3).unwrap_or(0);
        let first = dice.one_of(3);
        let victims: Vec<usize> = (0..many).map(|i| (first + i) % 3).collect();
        victims.iter().try_for_each(|victim| cluster.kill(*victim))?;
        match many {
            1 => minorities += 1,
            2 => majorities += 1,
            _ => all += 1,
        }
        if many == 1 {
            cluster.load().more(1 + dice.below(40))?;
        }
        for victim in victims {
            cluster.restart(victim)?;
        }
        cluster.judge(first)?;
    }
    eprintln!(
        "kills of one: {minorities}, of two: {majorities}, of all: {all}; {}",
        cluster.conclude()?
    );
    Ok(())
}
