//! Tests every fault once: the fault begins, lasts for a short window, and ends. Afterwards every member must serve
//! requests and have all acknowledged writes. Clients write all the time.
//!
//! Faults that the machine does not support are skipped with a message. Long runs with workloads and checkers are made
//! by the harness itself, and not by these tests.

#![allow(clippy::print_stderr, reason = "what was done is part of the test's result")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bowline_jepsen::fleet::{Fleet, Setup};
use bowline_jepsen::links::Traffic;
use bowline_jepsen::nemesis::{self, Kind};
use bowline_jepsen::process::LIMIT;
use bowline_jepsen::{Answer, Cluster, Dice, HarnessError, Over};

use crate::{NODE, beside};

/// Length of a fault. The windows of the harness are longer than a session lives.
const WINDOW: Duration = Duration::from_millis(500);

/// Length of a fault that needs many steps.
const LONG_WINDOW: Duration = Duration::from_secs(4);

/// Maximum time that a writer waits for a reply.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Pause between two writes, so that they last for the whole run without too many to check.
const WRITE_EVERY: Duration = Duration::from_millis(4);

/// Makes a write through a member, which may be down or isolated. Returns whether it was acknowledged.
fn write(cluster: &Cluster, member: usize) -> bool {
    let Some(process) = Fleet::process(cluster, member) else { return false };
    matches!(cluster.load().once(member, &process, WAIT_MAX), Some(Answer::Done(_)))
}

/// Applies these faults to one cluster, one after the other.
fn one_after_the_other(members: usize, names: &[&str]) -> Result<(), HarnessError> {
    one_after_the_other_to(Over::Embedded, members, names)
}

/// Like `one_after_the_other`, for nodes or servers.
fn one_after_the_other_to(over: Over, members: usize, names: &[&str]) -> Result<(), HarnessError> {
    let kinds: Vec<&Kind> = (names.iter())
        .map(|name| nemesis::named(name).unwrap_or_else(|| panic!("there is no {name}")))
        .filter(|kind| match (kind.possible)() {
            Ok(()) => true,
            Err(why) => {
                eprintln!("NOT POSSIBLE HERE, skipped: {}: {why}", kind.name);
                false
            }
        })
        .collect();
    if kinds.is_empty() {
        return Ok(());
    }
    let mut faults: Vec<_> = kinds.iter().map(|kind| (kind.name, (kind.make)())).collect();
    let mut setup = Setup { over, ..Setup::of(members) };
    faults.iter().for_each(|(_, fault)| fault.prepare(&mut setup));
    let program = match over {
        Over::Embedded => NODE.into(),
        Over::Server => beside::server(),
    };
    let (cluster, mut dice) = (Cluster::of(program, setup)?, Dice::new(5));
    // Starts the fleet without its writers, which would end with their processes.
    Fleet::start(&cluster)?;
    let ending = AtomicBool::new(false);
    thread::scope(|scope| {
        for member in 0..members {
            let (cluster, ending) = (&cluster, &ending);
            scope.spawn(move || {
                while !ending.load(Ordering::Relaxed) {
                    write(cluster, member);
                    thread::sleep(WRITE_EVERY);
                }
            });
        }
        let end = scopeguard(|| ending.store(true, Ordering::Relaxed));
        for (name, fault) in &mut faults {
            let begun = Instant::now();
            let said = fault.begin(&cluster, &mut dice)?;
            let window = if *name == "churn" { LONG_WINDOW } else { WINDOW };
            nemesis::pass(&mut **fault, &cluster, &mut dice, window)?;
            while !has_struck(&cluster, name) {
                if begun.elapsed() > LIMIT {
                    return Err(HarnessError::TooLate(format!("{name} had no effect: {said}")));
                }
                nemesis::pass(&mut **fault, &cluster, &mut dice, WINDOW)?;
            }
            fault.end(&cluster, &mut dice)?;
            serves(&cluster, name)?;
            eprintln!("{name}: {said}; {:.1} s", begun.elapsed().as_secs_f64());
        }
        drop(end);
        Ok::<(), HarnessError>(())
    })?;
    cluster.heal()?;
    cluster.await_leader(LIMIT)?;
    for member in 0..members {
        cluster.judge(member)?;
    }
    eprintln!("{} writes acknowledged", cluster.load().history().done());
    // The proxy cannot identify the connection of a joining member at first. It must identify all other connections.
    assert!(cluster.links().strangers() == 0 || cluster.setup().spare > 0);
    Ok(())
}

/// Returns whether the traffic between members shows that a network fault had an effect.
fn has_struck(fleet: &Fleet, name: &str) -> bool {
    let places = 0..fleet.places();
    let pairs = places.clone().flat_map(|from| places.clone().map(move |to| (from, to)));
    let any = |count: fn(&Traffic) -> u64| {
        pairs.clone().any(|(from, to)| count(&fleet.links().traffic(from, to)) > 0)
    };
    match name {
        "loss" => any(|traffic| traffic.lost),
        "duplicates" => any(|traffic| traffic.doubled),
        "corruption" => any(|traffic| traffic.spoiled),
        "churn" => fleet.links().strangers() > 0,
        _ => true,
    }
}

/// Ends the writers when the test ends in any way.
fn scopeguard<F: FnMut()>(end: F) -> impl Drop {
    struct Guard<F: FnMut()>(F);
    impl<F: FnMut()> Drop for Guard<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    Guard(end)
}

/// Checks that every founder acknowledges a write and reads all acknowledged writes.
fn serves(cluster: &Cluster, after: &str) -> Result<(), HarnessError> {
    for member in 0..cluster.members() {
        let begun = Instant::now();
        while !write(cluster, member) {
            if begun.elapsed() > LIMIT {
                return Err(HarnessError::TooLate(format!(
                    "m{member} rejects writes after {after}"
                )));
            }
        }
    }
    cluster.judge(0).map(drop)
}

#[test]
fn cluster_serves_after_kills_and_pauses() -> Result<(), HarnessError> {
    one_after_the_other(
        3,
        &[
            "kill",
            "kill-minority",
            "kill-majority",
            "kill-all",
            "pause",
            "pause-short",
            "pause-all",
        ],
    )
}

#[test]
fn cluster_serves_after_partitions() -> Result<(), HarnessError> {
    one_after_the_other(
        5,
        &[
            "partition-halves",
            "partition-minority",
            "partition-leader",
            "partition-one-way",
            "partition-bridge",
            "partition-ring",
        ],
    )
}

#[test]
fn cluster_serves_after_link_faults() -> Result<(), HarnessError> {
    one_after_the_other(3, &["delay", "loss", "duplicates", "corruption", "slow-link"])
}

#[test]
fn cluster_serves_after_clock_and_disk_faults() -> Result<(), HarnessError> {
    one_after_the_other(3, &["clock-rates", "clock-jumps", "disk-slow", "disk-full", "disk-dead"])
}

#[test]
fn cluster_serves_after_power_failures() -> Result<(), HarnessError> {
    one_after_the_other(3, &["power-one", "power-most", "power-all"])
}

#[test]
fn cluster_serves_after_bit_rot_on_a_minority() -> Result<(), HarnessError> {
    one_after_the_other(3, &["rot-log", "rot-snapshot", "rot-warm", "rot-log"])
}

#[test]
fn cluster_serves_after_operator_actions() -> Result<(), HarnessError> {
    one_after_the_other(3, &["transfer", "compaction", "snapshots", "rolling-restart", "churn"])
}

#[test]
fn cluster_serves_after_mixed_faults() -> Result<(), HarnessError> {
    one_after_the_other(3, &["mixed", "mixed"])
}

#[test]
fn servers_serve_after_kills_pauses_and_partitions() -> Result<(), HarnessError> {
    let names = ["kill", "kill-all", "pause", "pause-all", "partition-leader", "corruption"];
    one_after_the_other_to(Over::Server, 3, &names)
}

#[test]
fn servers_serve_after_operator_actions_and_power_failures() -> Result<(), HarnessError> {
    let names = ["transfer", "compaction", "snapshots", "rolling-restart", "mixed"];
    one_after_the_other_to(Over::Server, 3, &names)?;
    one_after_the_other_to(Over::Server, 3, &["power-one", "power-all"])
}

#[test]
fn every_nemesis_is_tested() {
    let tried = include_str!("faults.rs");
    for kind in nemesis::ALL.iter().filter(|kind| kind.name != "none") {
        assert!(tried.contains(&format!("\"{}\"", kind.name)), "{} is not tried", kind.name);
    }
}
