//! Tests a rolling restart during writes: each real process in turn is shut down gracefully and started again.
//! Restarting the leader may cost at most one election, and restarting a follower none. No write may be lost or
//! applied twice.
//!
//! `BOWLINE_ROLLING_ROUNDS` is the number of restarts of each member (default 2).

#![allow(clippy::print_stderr, reason = "the counts are part of the test's result")]

use std::time::Duration;

use bowline_jepsen::fleet::Setup;
use bowline_jepsen::process::LIMIT;
use bowline_jepsen::{Cluster, HarnessError, number_in};

use crate::NODE;

/// Long enough that no machine, however busy, has an election without a cause.
const ELECTION: Duration = Duration::from_secs(10);

#[test]
fn rolling_restart_costs_one_election_per_member_and_no_writes() -> Result<(), HarnessError> {
    let cluster = Cluster::of(NODE, Setup { election: ELECTION, ..Cluster::usual(3) })?;
    cluster.start()?;
    cluster.load().more(20)?;
    let (mut handed_over, mut elections) = (0, 0);
    for round in 0..number_in("BOWLINE_ROLLING_ROUNDS").unwrap_or(2) {
        for member in 0..cluster.members() {
            let (leader, before) = cluster.await_leader(LIMIT)?;
            cluster.stop(member)?;
            cluster.load().more(10)?;
            cluster.restart(member)?;
            cluster.load().more(10)?;
            let (_, after) = cluster.await_leader(LIMIT)?;
            let allowed = u64::from(leader == member);
            assert!(
                after - before <= allowed,
                "round {round}: restarting m{member} took {} elections, while m{leader} led",
                after - before
            );
            handed_over += allowed;
            elections += after - before;
            cluster.judge(member)?;
        }
    }
    assert!(handed_over > 0, "no leader was ever restarted");
    eprintln!("{handed_over} leaders restarted, {elections} elections; {}", cluster.conclude()?);
    Ok(())
}
