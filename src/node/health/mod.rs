//! The health of a node: the facts that its driver records at each tick, and their interpretation.
//!
//! ```text
//!   stopped ─ stuck ─ founding ─ restoring ─ diverged ─ no quorum ─ disk full ─ disk slow ─ catching up ─ healthy
//!   worst                                                                                                   best
//! ```
//!
//! The driver only records facts. The caller of `health` interprets the facts at the time of the
//! call, because a driver that hangs cannot report its own state.

pub(super) mod data_fault;
pub(super) mod digests;
pub(super) mod log_times;
pub(super) mod node_state;
pub(super) mod replica_state;
pub(super) mod space;
pub(super) mod status;

use std::fmt;
use std::time::Duration;

use crate::metrics::Histogram;
use crate::model::Moment;

use crate::node::requests::answer::StopReason;

/// The facts that a driver records at each of its ticks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct HealthSample {
    /// Time of the tick.
    pub(crate) at: Moment,
    /// While the cluster is not founded: the founding members for which the node waits, by name and
    /// address.
    pub(crate) founding: Option<Vec<String>>,
    /// Whether the state of this node was lost and has not been fetched yet.
    pub(crate) restoring: bool,
    /// Whether the node is fetching a snapshot.
    pub(crate) fetching: bool,
    /// Whether the node is the leader.
    pub(crate) leads: bool,
    /// The name of the leader. If no leader is known, the name of the last leader.
    pub(crate) leader: Option<String>,
    /// Time of the last contact with a leader or, on a leader, with a quorum. The time is kept when
    /// a connection breaks and during an election.
    pub(crate) touched: Option<Moment>,
    /// Whether no leader is known at present.
    pub(crate) electing: bool,
    /// Whether enough voters are connected to elect a leader.
    pub(crate) quorum_connected: bool,
    /// Number of committed entries that the node has not applied.
    pub(crate) behind: u64,
    /// Time since which a request to the log has been unanswered.
    pub(crate) log_owes_since: Option<Moment>,
    /// Duration of the slowest recent sync.
    pub(crate) slowest_sync: Duration,
    pub(crate) disk_full: bool,
    /// Whether the replicas differ and no majority of them agrees.
    pub(crate) diverged: bool,
    /// Peers without a connection to this node because one of the two nodes rejects the other, each
    /// with the reason.
    pub(crate) rejected: Vec<String>,
}

impl HealthSample {
    /// Returns the facts before the first tick.
    pub(crate) fn initial(now: Moment) -> Self {
        Self { at: now, electing: true, ..Self::default() }
    }
}

/// Overall status of a node: the worst condition that applies. See [`Health`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum HealthStatus {
    /// The node has stopped.
    Stopped,
    /// The driver has not run for two election timeouts: the process is paused, or the driver is blocked.
    Stuck,
    /// The node has not met the other founding members yet, so it can neither read nor write.
    Founding,
    /// The node has lost the state before the beginning of its log, and fetches this state from
    /// another member. Until the node has the state, it can neither read nor write.
    Restoring,
    /// The replicas differ, and no majority of them agrees. Writes are rejected.
    Diverged,
    /// For two election timeouts, the node has had no contact with a leader or, as the leader, with
    /// a quorum. The limit is four election timeouts while enough voters are connected to elect a
    /// leader. Only local reads work. A broken connection or an election that succeeds in time does
    /// not cause this status.
    NoQuorum,
    /// The disk is full. Writes that would make the state grow are rejected.
    DiskFull,
    /// A sync of the log took longer than half an election timeout, or has been running for longer
    /// than that.
    DiskSlow,
    /// The node works, but lags behind the committed entries.
    CatchingUp,
    /// None of the other conditions applies.
    Healthy,
}

impl HealthStatus {
    /// Returns the name of the status, for programs to compare. Names never change.
    pub fn as_str(self) -> &'static str {
        match self {
            HealthStatus::Stopped => "stopped",
            HealthStatus::Stuck => "stuck",
            HealthStatus::Founding => "founding",
            HealthStatus::Restoring => "restoring",
            HealthStatus::Diverged => "diverged",
            HealthStatus::NoQuorum => "no_quorum",
            HealthStatus::DiskFull => "disk_full",
            HealthStatus::DiskSlow => "disk_slow",
            HealthStatus::CatchingUp => "catching_up",
            HealthStatus::Healthy => "healthy",
        }
    }
}

/// Writes [`HealthStatus::as_str`].
impl fmt::Display for HealthStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Health of a node; see [`Node::health`](crate::Node::health). The `Display` text is a sentence
/// that describes the health. Serialized durations are numbers of seconds.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Health {
    /// The worst condition that applies.
    pub status: HealthStatus,
    /// The reason for which the node has stopped, or `None` if it is running.
    pub stopped: Option<StopReason>,
    /// Time since the driver last ran.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::model::serialize::seconds"))]
    pub silent: Duration,
    /// While the cluster is not founded: the founding members for which the node waits, each as
    /// `NAME (ADDRESS)`. The list contains the founding members that the node has not met. If the
    /// node has met all founding members, the list contains the founder.
    pub unreached: Vec<String>,
    /// Whether the node is the leader of the consensus, which is not the leader of an
    /// [`Election`](crate::Election).
    pub leads: bool,
    /// The name of the leader of the consensus. If no leader is known, the name of the last leader.
    pub leader: Option<String>,
    /// Time since the last contact with a leader or, on the leader, with a quorum. `None` if there
    /// was no contact since the start.
    #[cfg_attr(
        feature = "serde",
        serde(serialize_with = "crate::model::serialize::seconds_option")
    )]
    pub in_touch: Option<Duration>,
    /// Whether calls that need a leader can be expected to find one. This field stays true while a
    /// failed leader is replaced, and becomes false as described at [`HealthStatus::NoQuorum`]. The
    /// field is evaluated for the time at which the driver last ran.
    pub has_leader: bool,
    /// Whether the node has had no contact with a leader for an election timeout, or knows no leader, so that an
    /// election may be under way. Calls wait for the result of the election, up to their deadlines.
    pub electing: bool,
    /// Number of committed entries that the node has not applied.
    pub behind: u64,
    /// Whether the node is fetching a snapshot, which replaces most of the entries that it lacks.
    pub fetching: bool,
    /// Duration of the slowest sync of the log in the last 5 to 10 seconds, or of the sync that is
    /// still running if it takes longer.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::model::serialize::seconds"))]
    pub sync: Duration,
    /// Whether the disk is full.
    pub disk_full: bool,
    /// Whether the replicas differ and no majority of them agrees.
    pub diverged: bool,
    /// Members without a connection to this node because one of the two nodes rejects the other,
    /// each with the reason.
    pub rejected: Vec<String>,
}

/// Number of election timeouts without contact after which a member without connections reports
/// that it has no leader. Members begin an election after one to two election timeouts.
const CUT_OFF_TIMEOUTS: u32 = 2;

/// Like [`CUT_OFF_TIMEOUTS`], for a member that is connected to enough voters to elect a leader.
/// This limit is longer, because an election with split votes is repeated after one to two more
/// election timeouts.
const NO_LEADER_TIMEOUTS: u32 = 4;

/// Number of unapplied entries from which a node counts as lagging. Under load there are always
/// some unapplied entries.
const LAG_MIN: u64 = 512;

impl Health {
    /// Derives the health from the facts of a driver.
    pub(crate) fn evaluate(
        sample: HealthSample,
        stopped: Option<StopReason>,
        now: Moment,
        election_timeout: Duration,
    ) -> Self {
        let owed = sample.log_owes_since.map_or(Duration::ZERO, |since| now.since(since));
        let mut health = Self {
            status: HealthStatus::Healthy,
            stopped,
            silent: now.since(sample.at),
            unreached: sample.founding.clone().unwrap_or_default(),
            leads: sample.leads,
            leader: sample.leader,
            in_touch: sample.touched.map(|touched| now.since(touched)),
            has_leader: false,
            electing: sample.electing,
            behind: sample.behind,
            fetching: sample.fetching,
            sync: sample.slowest_sync.max(owed),
            disk_full: sample.disk_full,
            diverged: sample.diverged,
            rejected: sample.rejected,
        };
        let patience = election_timeout * 2;
        let timeouts = if sample.quorum_connected { NO_LEADER_TIMEOUTS } else { CUT_OFF_TIMEOUTS };
        let limit = election_timeout * timeouts;
        let is_within = |moment: Moment, limit| {
            sample.touched.is_some_and(|touched| moment.since(touched) <= limit)
        };
        // Evaluate `has_leader` for the time of the sample: a process that was paused since then has
        // not lost its leader.
        health.has_leader = health.stopped.is_none() && is_within(sample.at, limit);
        health.electing |= !is_within(now, election_timeout);
        let lost = !is_within(now, limit);
        let verdicts = [
            (HealthStatus::Stopped, health.stopped.is_some()),
            (HealthStatus::Stuck, health.silent > patience),
            (HealthStatus::Founding, sample.founding.is_some()),
            (HealthStatus::Restoring, sample.restoring),
            (HealthStatus::Diverged, health.diverged),
            (HealthStatus::NoQuorum, lost),
            (HealthStatus::DiskFull, health.disk_full),
            (HealthStatus::DiskSlow, health.sync >= election_timeout / 2),
            (HealthStatus::CatchingUp, health.fetching || health.behind >= LAG_MIN),
        ];
        let gravest = verdicts.into_iter().find(|(_, is)| *is).map(|(verdict, _)| verdict);
        health.status = gravest.unwrap_or(HealthStatus::Healthy);
        health
    }

    /// Returns whether the node is alive: it has not stopped, and its driver runs. If the node is
    /// not alive, restart it.
    pub fn is_alive(&self) -> bool {
        !matches!(self.status, HealthStatus::Stopped | HealthStatus::Stuck)
    }

    /// Returns whether reads and writes through the node can be expected to succeed. While its disk is full, only
    /// writes that do not make the state grow succeed. Alarms that an operator has raised are not considered
    /// ([`Client::alarms`](crate::Client::alarms)).
    pub fn is_serving(&self) -> bool {
        self.status >= HealthStatus::DiskFull
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state(f)?;
        match self.status {
            HealthStatus::Founding | HealthStatus::NoQuorum => {
                self.rejected.iter().try_for_each(|why| write!(f, "; rejected: {why}"))
            }
            _ => Ok(()),
        }
    }
}

impl Health {
    /// Writes the status as a sentence.
    fn state(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leader = self.leader.as_deref().unwrap_or("an unknown leader");
        match self.status {
            HealthStatus::Stopped => match &self.stopped {
                Some(why) => write!(f, "the node has stopped: {why}"),
                None => f.write_str("the node has stopped"),
            },
            HealthStatus::Stuck => {
                write!(f, "the driver of the node has not run for {:.1?}", self.silent)
            }
            HealthStatus::Founding if self.unreached.is_empty() => {
                f.write_str("the node is waiting for its cluster to be founded")
            }
            HealthStatus::Founding => {
                write!(
                    f,
                    "the cluster is not founded yet: waiting for {}",
                    self.unreached.join(", ")
                )
            }
            HealthStatus::Restoring => {
                f.write_str("the node has lost its state and is fetching it from another member")
            }
            HealthStatus::Diverged => f.write_str(
                "the replicas differ and no majority of them agrees: writes are rejected",
            ),
            HealthStatus::NoQuorum => match (&self.leader, self.in_touch) {
                (None, None) => f.write_str("the node knows no leader"),
                (None, Some(touched)) => {
                    write!(f, "the node has known no leader for {touched:.1?}")
                }
                (Some(_), None) => write!(f, "the node has not heard from its leader {leader}"),
                (Some(_), Some(touched)) if self.leads => {
                    write!(
                        f,
                        "the node is the leader, but has had no contact with a quorum for {touched:.1?}"
                    )
                }
                (Some(_), Some(touched)) => {
                    write!(f, "the node has not heard from its leader {leader} for {touched:.1?}")
                }
            },
            HealthStatus::DiskFull => f.write_str(
                "the disk is full: writes that grow the state are rejected until there is space",
            ),
            HealthStatus::DiskSlow => {
                write!(f, "the disk is slow: a sync of the log took {:.1?}", self.sync)
            }
            HealthStatus::CatchingUp if self.fetching => {
                write!(f, "the node is fetching a snapshot: {} entries behind", self.behind)
            }
            HealthStatus::CatchingUp => {
                write!(f, "the node is catching up with {leader}: {} entries to go", self.behind)
            }
            HealthStatus::Healthy if self.electing => {
                let touched = self.in_touch.unwrap_or_default();
                write!(
                    f,
                    "the node is waiting for a leader: the last contact was {touched:.1?} ago"
                )
            }
            HealthStatus::Healthy if self.leads => f.write_str("healthy: the node is the leader"),
            HealthStatus::Healthy => write!(f, "healthy: the node follows {leader}"),
        }
    }
}

/// The slowest sync of the current window and the previous window.
#[derive(Debug)]
pub(crate) struct RecentSyncs {
    since: Moment,
    before: Histogram,
    last: Duration,
}

/// Length of a window.
const WINDOW: Duration = Duration::from_secs(5);

impl RecentSyncs {
    /// Starts the first window.
    pub(crate) fn new(syncs: Histogram, now: Moment) -> Self {
        Self { since: now, before: syncs, last: Duration::ZERO }
    }

    /// Returns the duration of the slowest recent sync, from the histogram of all syncs so far. The result is at most
    /// 50 % too high, because it is the upper bound of a bucket.
    pub(crate) fn slowest(&mut self, syncs: Histogram, now: Moment) -> Duration {
        let slowest = syncs.since(&self.before).quantile(1.0).unwrap_or(0.0);
        // The last bucket has no upper bound.
        let slowest = Duration::try_from_secs_f64(slowest).unwrap_or(Duration::MAX);
        let found = slowest.max(self.last);
        if now.since(self.since) >= WINDOW {
            *self = Self { since: now, before: syncs, last: slowest };
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::at;

    const T: Duration = Duration::from_millis(500);

    fn well() -> HealthSample {
        HealthSample {
            leader: Some("m2".to_owned()),
            touched: Some(at(9_900)),
            electing: false,
            ..HealthSample::initial(at(10_000))
        }
    }

    fn evaluate(sample: HealthSample) -> (&'static str, String) {
        let health = Health::evaluate(sample, None, at(10_010), T);
        (health.status.as_str(), health.to_string())
    }

    #[test]
    fn each_health_status_has_its_word_and_sentence() {
        let moment = Some(at(8_000));
        let cases = [
            (well(), "healthy", "healthy: the node follows m2"),
            (HealthSample { leads: true, ..well() }, "healthy", "healthy: the node is the leader"),
            (
                HealthSample {
                    founding: Some(vec!["m2".to_owned()]),
                    rejected: vec!["m2: different lists".to_owned()],
                    ..well()
                },
                "founding",
                "the cluster is not founded yet: waiting for m2; rejected: m2: different lists",
            ),
            (
                HealthSample { rejected: vec!["m3: different lists".to_owned()], ..well() },
                "healthy",
                "healthy: the node follows m2",
            ),
            (HealthSample { behind: 511, ..well() }, "healthy", "healthy: the node follows m2"),
            (
                HealthSample { behind: 512, ..well() },
                "catching_up",
                "the node is catching up with m2: 512 entries to go",
            ),
            (
                HealthSample { slowest_sync: T / 2, ..well() },
                "disk_slow",
                "the disk is slow: a sync of the log took 250.0ms",
            ),
            (
                HealthSample { log_owes_since: moment, ..well() },
                "disk_slow",
                "the disk is slow: a sync of the log took 2.0s",
            ),
            (
                HealthSample { disk_full: true, behind: 9999, ..well() },
                "disk_full",
                "the disk is full: writes that grow the state are rejected until there is space",
            ),
            (
                HealthSample { touched: moment, disk_full: true, ..well() },
                "no_quorum",
                "the node has not heard from its leader m2 for 2.0s",
            ),
            (
                HealthSample { touched: moment, leads: true, ..well() },
                "no_quorum",
                "the node is the leader, but has had no contact with a quorum for 2.0s",
            ),
            (
                HealthSample { behind: 7, fetching: true, ..well() },
                "catching_up",
                "the node is fetching a snapshot: 7 entries behind",
            ),
            (
                HealthSample { restoring: true, ..HealthSample::initial(at(10_000)) },
                "restoring",
                "the node has lost its state and is fetching it from another member",
            ),
            (
                HealthSample { leader: None, touched: None, ..well() },
                "no_quorum",
                "the node knows no leader",
            ),
            (
                HealthSample { leader: None, touched: moment, ..well() },
                "no_quorum",
                "the node has known no leader for 2.0s",
            ),
            (
                HealthSample { electing: true, ..well() },
                "healthy",
                "the node is waiting for a leader: the last contact was 110.0ms ago",
            ),
            (
                HealthSample { diverged: true, leader: None, ..well() },
                "diverged",
                "the replicas differ and no majority of them agrees: writes are rejected",
            ),
            (
                HealthSample {
                    founding: Some(vec!["m1 (h1:1)".into(), "m3 (h3:1)".into()]),
                    ..HealthSample::initial(at(10_000))
                },
                "founding",
                "the cluster is not founded yet: waiting for m1 (h1:1), m3 (h3:1)",
            ),
            (
                HealthSample { at: at(9_000), ..well() },
                "stuck",
                "the driver of the node has not run for 1.0s",
            ),
        ];
        for (sample, word, sentence) in cases {
            assert_eq!(evaluate(sample), (word, sentence.to_owned()));
        }
        let gone = Health::evaluate(well(), Some(StopReason::Shutdown), at(99_999), T);
        assert_eq!(gone.to_string(), "the node has stopped: shutdown was requested");
        assert!(!gone.is_alive() && !gone.is_serving());
    }

    #[test]
    fn last_known_leader_counts_until_elections_must_have_ended() {
        let health = |age: u64, quorum_connected| {
            let touched = Some(at(10_000 - age));
            let sample =
                HealthSample { touched, electing: true, leader: None, quorum_connected, ..well() };
            Health::evaluate(sample, None, at(10_000), T)
        };
        for (age, quorum_connected, has_leader) in [
            (1_000, false, true),
            (1_001, false, false),
            (1_001, true, true),
            (2_000, true, true),
            (2_001, true, false),
        ] {
            let health = health(age, quorum_connected);
            assert_eq!(health.has_leader, has_leader, "{age} {quorum_connected}");
            assert_eq!(health.is_serving(), has_leader, "{age} {quorum_connected}");
            assert!(health.electing);
        }
        let never = HealthSample { quorum_connected: true, ..HealthSample::initial(at(10_000)) };
        let never = Health::evaluate(never, None, at(10_000), T);
        assert!(!never.has_leader && never.status == HealthStatus::NoQuorum);
        let stopped = Health::evaluate(well(), Some(StopReason::Shutdown), at(10_000), T);
        assert!(!stopped.has_leader);
    }

    #[test]
    fn process_pause_is_not_a_leader_loss() {
        let health = Health::evaluate(well(), None, at(60_000), T);
        assert!(health.has_leader && health.status == HealthStatus::Stuck);
    }

    #[test]
    fn silence_is_measured_up_to_the_query() {
        let health = |now| Health::evaluate(well(), None, at(now), T);
        assert_eq!(health(10_900).status, HealthStatus::Healthy);
        assert_eq!(
            health(10_901).status,
            HealthStatus::NoQuorum,
            "two election timeouts have passed"
        );
        assert_eq!(health(11_001).status, HealthStatus::Stuck);
        assert!(health(10_901).is_alive() && !health(10_901).is_serving());
    }

    #[test]
    fn slow_sync_is_remembered_for_one_window() {
        let meters = crate::metrics::Meters::default();
        let read = || meters.log_sync_seconds.histogram();
        let mut recent = RecentSyncs::new(read(), at(0));
        assert_eq!(recent.slowest(read(), at(100)), Duration::ZERO);
        meters.log_sync_seconds.add(Duration::from_millis(400));
        let slow = Duration::from_millis(400)..=Duration::from_millis(600);
        for ms in [200, 4_000, 5_000, 7_000, 10_000] {
            assert!(slow.contains(&recent.slowest(read(), at(ms))), "at {ms}");
        }
        assert_eq!(recent.slowest(read(), at(15_000)), Duration::ZERO);
    }
}
