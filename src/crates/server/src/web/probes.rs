//! `/livez` and `/readyz`: run a list of checks in order, and report the result of each.
//!
//! `?verbose` lists all checks, and `?exclude=NAME` skips one. Each check can also be requested alone, as in
//! `/readyz/non_learner`. The names of the checks are etcd's, except for the first check of each probe, which reports
//! the health that the member determines itself. A client that excludes an etcd check does not know about Bowline's
//! check. Therefore Bowline's check is skipped too, if it would fail for the same reason as the excluded check.

use bowline::{Health, HealthStatus, KeyRange, cluster::AlarmKind};

use crate::alarms::Alarms;
use crate::member::Member;

/// A health check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Check {
    /// The member's threads make progress.
    Alive,
    /// Reads and writes are expected to succeed.
    Serving,
    /// The replica equals the others, and no corruption alarm is raised.
    DataCorruption,
    /// The replica can be read.
    SerializableRead,
    /// The member is in contact with a leader that has a majority.
    LinearizableRead,
    /// The member votes.
    NonLearner,
}

const LIVE: [Check; 2] = [Check::Alive, Check::SerializableRead];
const READY: [Check; 5] = [
    Check::Serving,
    Check::DataCorruption,
    Check::SerializableRead,
    Check::LinearizableRead,
    Check::NonLearner,
];

impl Check {
    fn name(self) -> &'static str {
        match self {
            Check::Alive => "alive",
            Check::Serving => "serving",
            Check::DataCorruption => "data_corruption",
            Check::SerializableRead => "serializable_read",
            Check::LinearizableRead => "linearizable_read",
            Check::NonLearner => "non_learner",
        }
    }

    /// Returns the etcd check that fails whenever this one does, which is itself for etcd's own.
    fn stands_for(self) -> Self {
        match self {
            Check::Alive => Check::SerializableRead,
            Check::Serving => Check::LinearizableRead,
            check => check,
        }
    }

    /// Returns the problem, if there is one.
    async fn fails(self, member: &Member, alarms: &Alarms) -> Option<String> {
        let health = member.node().health();
        let read = member.client().range(KeyRange::key("health")).limit(1);
        let failure_unless = |is_well: bool| (!is_well).then(|| health.to_string());
        match self {
            Check::Alive => failure_unless(health.is_alive()),
            Check::Serving => failure_unless(health.is_serving()),
            Check::DataCorruption => {
                let ails = alarms.is_unhealthy(AlarmKind::Corrupt);
                ails.then(|| "alarm activated: CORRUPT".to_owned())
            }
            Check::SerializableRead if has_no_state_yet(&health) => None,
            Check::SerializableRead => read.local().await.err().map(|error| error.to_string()),
            // The only member of a cluster can read without its driver thread, so the health is checked before the
            // read.
            Check::LinearizableRead if !health.is_alive() => Some(health.to_string()),
            Check::LinearizableRead => read.await.err().map(|error| error.to_string()),
            Check::NonLearner => member.is_learner().then(|| "the member is a learner".to_owned()),
        }
    }
}

/// Returns whether the replica has no state yet, which a restart would not change. As in etcd such a member counts as
/// alive, so that it is not restarted.
pub(crate) fn has_no_state_yet(health: &Health) -> bool {
    matches!(health.status, HealthStatus::Founding | HealthStatus::Restoring)
}

/// Returns the checks for a path, or `None` if it is not a probe.
fn checks(path: &str) -> Option<Vec<Check>> {
    let path = path.strip_prefix('/')?;
    let (probe, name) =
        path.split_once('/').map_or((path, None), |(probe, name)| (probe, Some(name)));
    let all: &[Check] = match probe {
        "livez" => &LIVE,
        "readyz" => &READY,
        _ => return None,
    };
    let Some(name) = name else { return Some(all.to_vec()) };
    all.iter().find(|check| check.name() == name).map(|check| vec![*check])
}

pub(crate) fn is_probe(path: &str) -> bool {
    checks(path).is_some()
}

/// Splits a query into pairs.
fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

fn wanted(path: &str, query: &str) -> Vec<Check> {
    let is_left_out =
        |check: Check| pairs(query).any(|(key, value)| key == "exclude" && value == check.name());
    let mut checks = checks(path).unwrap_or_default();
    checks.retain(|check| !is_left_out(*check) && !is_left_out(check.stands_for()));
    checks
}

/// Runs the checks. Returns whether all have passed, and the report.
pub(crate) async fn answer(
    member: &Member,
    alarms: &Alarms,
    path: &str,
    query: &str,
) -> (bool, String) {
    let (mut is_well, mut body) = (true, String::new());
    for check in wanted(path, query) {
        let name = check.name();
        match check.fails(member, alarms).await {
            None => body += &format!("[+]{name} ok\n"),
            Some(why) => {
                is_well = false;
                body += &format!("[-]{name} failed: {why}\n");
            }
        }
    }
    let is_verbose = pairs(query).any(|(key, _)| key == "verbose");
    match is_well {
        true if is_verbose => (true, body + "ok\n"),
        true => (true, "ok\n".to_owned()),
        false => (false, body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_path_selects_its_checks() {
        assert_eq!(checks("/livez").unwrap(), LIVE);
        assert_eq!(checks("/readyz").unwrap(), READY);
        assert_eq!(checks("/readyz/non_learner").unwrap(), [Check::NonLearner]);
        for path in ["/", "livez", "/livez/", "/livez/non_learner", "/readyz/alive/x", "/healthz"] {
            assert_eq!(checks(path), None, "{path}");
        }
    }

    #[test]
    fn excluded_check_also_excludes_its_dependents() {
        use Check::*;
        for (path, query, expected) in [
            ("/livez", "exclude=serializable_read", &[][..]),
            ("/livez", "verbose&exclude=alive&exclude=nothing", &[SerializableRead]),
            (
                "/readyz",
                "exclude=linearizable_read",
                &[DataCorruption, SerializableRead, NonLearner],
            ),
            (
                "/readyz",
                "exclude=non_learner&exclude=serving",
                &[DataCorruption, SerializableRead, LinearizableRead],
            ),
            ("/readyz/serving", "", &[Serving]),
        ] {
            assert_eq!(wanted(path, query), expected, "{path}?{query}");
        }
    }
}
