//! Tests full disks. Three processes each have their own small file system. The test fills the file systems of one,
//! two or all three processes to the last block and frees them again, on leaders and on followers. While a disk is
//! full, writes that grow the state must be rejected with the reason, and reads, deletions, compactions and lease
//! expiry must work. After space is freed, everything must work without a restart, and no acknowledged write may be
//! lost.
//!
//! The test needs root and loop devices, like `power.rs`. `BOWLINE_FULL_CYCLES` is the number of cycles (default 8).

use std::io::Write;
use std::time::{Duration, Instant};

use bowline_jepsen::fleet::{Fleet, Setup};
use bowline_jepsen::process::LIMIT;
use bowline_jepsen::{Answer, Cluster, HarnessError, Medium, Order, Volumes, number_in};

use crate::NODE;

/// Size of the file system of a member.
const VOLUME_BYTES: u64 = 64 << 20;

/// Call deadline: longer than any unplanned leader change, and shorter than [`LIMIT`].
const DEADLINE: Duration = Duration::from_secs(30);

/// Maximum number of writes: many times what fills the space preallocated for the log.
const WRITES_MAX: usize = 2_000;

/// Prints a line that must be visible even if the test passes.
fn say(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// Runs an order through a member. It must succeed.
fn done(cluster: &Cluster, member: usize, order: Order) -> Result<u64, HarnessError> {
    match cluster.process(member).answer(&order)? {
        Some(Answer::Done(result)) => Ok(result),
        Some(answer) => Err(HarnessError::Answered { order, answer }),
        None => Err(HarnessError::Ended(format!("m{member} died of {order:?}"))),
    }
}

/// Makes one write through a member. Returns whether there was space.
fn has_room(cluster: &Cluster, member: usize) -> Result<bool, HarnessError> {
    let writer = 10 + member;
    match cluster.load().once(writer, &cluster.process(member), LIMIT) {
        Some(Answer::Done(_)) => Ok(true),
        Some(Answer::Refused(why)) if why.contains("the disk is full") => Ok(false),
        Some(answer) => Err(HarnessError::Answered { order: Order::Write("?".to_owned()), answer }),
        None => {
            Err(HarnessError::Ended(format!("m{member} died or does not answer with a full disk")))
        }
    }
}

/// Writes through a member until there is no space. Returns the number of successful writes.
fn until_full(cluster: &Cluster, member: usize) -> Result<usize, HarnessError> {
    for fitted in 0..WRITES_MAX {
        if !has_room(cluster, member)? {
            return Ok(fitted);
        }
    }
    Err(HarnessError::Ended(format!("m{member} has a full disk but accepts writes")))
}

/// Writes through a member until a write succeeds.
fn until_healed(cluster: &Cluster, member: usize) -> Result<(), HarnessError> {
    let begun = Instant::now();
    while !has_room(cluster, member)? {
        if begun.elapsed() > LIMIT {
            return Err(HarnessError::TooLate(format!(
                "m{member} has space again but rejects writes"
            )));
        }
    }
    Ok(())
}

#[test]
fn full_disks_lose_nothing_and_recover_without_a_restart() -> Result<(), HarnessError> {
    if let Err(why) = Volumes::possible() {
        say(&format!("NOT POSSIBLE HERE, 0 disks filled: {why}"));
        return Ok(());
    }
    let cycles = number_in("BOWLINE_FULL_CYCLES").unwrap_or(8);
    let volumes = Some((vec![Medium::Plain], VOLUME_BYTES));
    let cluster = Cluster::of(NODE, Setup { volumes, deadline: DEADLINE, ..Cluster::usual(3) })?;
    let volumes = || cluster.volumes().expect("they were asked for");
    // There is no load: the test makes each write itself.
    Fleet::start(&cluster)?;
    let (mut fitted, mut still_full) = (0, 0);
    for cycle in 0..cycles {
        let (leader, _) = cluster.await_leader(LIMIT)?;
        let full: Vec<usize> = match cycle % 4 {
            0 => vec![leader],
            1 => vec![(leader + 1) % 3],
            2 => vec![leader, (leader + 1) % 3],
            _ => vec![0, 1, 2],
        };
        let (victim, other) = (full[0], (full[0] + 2) % 3);
        let scrap = format!("scrap/{cycle}");
        let lease = done(&cluster, victim, Order::Grant)?;
        let revision = done(&cluster, victim, Order::Put(scrap.clone()))?;
        full.iter().try_for_each(|member| volumes().fill(*member))?;

        fitted += until_full(&cluster, victim)?;
        if full.len() == 1 {
            // The other members continue under a leader with space.
            for _ in 0..20 {
                until_healed(&cluster, other)?;
            }
            // If it happens to be elected, it transfers leadership as soon as it finds out.
            let begun = Instant::now();
            while cluster.await_leader(LIMIT)?.0 == victim {
                assert!(begun.elapsed() < LIMIT, "a full member leads while others have room");
                until_healed(&cluster, other)?;
            }
        } else {
            fitted += until_full(&cluster, other)?;
        }
        for member in [victim, other] {
            cluster.judge(member)?;
        }
        done(&cluster, victim, Order::Delete(scrap))?;
        done(&cluster, victim, Order::Revoke(lease))?;
        done(&cluster, victim, Order::Compact(revision))?;
        // A truncation of its log may just have made space.
        still_full += u64::from(!has_room(&cluster, victim)?);
        if cycle % 8 == 3 {
            // A member can also start on a full disk.
            cluster.kill(victim)?;
            Fleet::restart(&cluster, victim)?;
            cluster.judge(victim)?;
        }

        full.iter().try_for_each(|member| volumes().free(*member))?;
        for member in 0..3 {
            until_healed(&cluster, member)?;
            cluster.judge(member)?;
        }
    }
    assert!(still_full * 2 >= cycles, "{still_full} of {cycles} were full when all had been made");
    let verdict = cluster.conclude()?;
    say(&format!("{cycles} times full, {fitted} writes fitted meanwhile; {verdict}"));
    Ok(())
}
