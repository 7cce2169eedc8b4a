//! `/livez` and `/readyz`: what is looked at, one thing after the other, and what is said of each.
//!
//! `?verbose` names them all, `?exclude=NAME` leaves one out, and each can be asked for alone, as in `/readyz/non_learner`.
//! The names are etcd's, but for the first of each: what the member itself thinks of its health. Whoever leaves out one of
//! etcd's knows nothing of ours: that which would fail for the same reason is left out with it.

use bowline::{Health, HealthStatus, KeyRange, cluster::AlarmKind};

use super::alarms;
use super::member::Member;

/// Something that is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Check {
    /// The member's threads move.
    Alive,
    /// It thinks that reads and writes would succeed.
    Serving,
    /// Its replica is like the others', and nobody has raised an alarm that says otherwise.
    DataCorruption,
    /// Its replica can be read.
    SerializableRead,
    /// It is in touch with a leader that is one.
    LinearizableRead,
    /// It votes.
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

    /// The one of etcd's that fails whenever this one does; itself, if it is etcd's.
    fn stands_for(self) -> Self {
        match self {
            Check::Alive => Check::SerializableRead,
            Check::Serving => Check::LinearizableRead,
            check => check,
        }
    }

    /// What is wrong, if anything is.
    async fn fails(self, member: &Member) -> Option<String> {
        let health = member.node().health();
        let read = member.client().range(KeyRange::key("health")).limit(1);
        let says = |is_well: bool| (!is_well).then(|| health.to_string());
        match self {
            Check::Alive => says(health.is_alive()),
            Check::Serving => says(health.is_serving()),
            Check::DataCorruption => {
                let ails = alarms::ails(member, AlarmKind::Corrupt);
                ails.then(|| "alarm activated: CORRUPT".to_owned())
            }
            Check::SerializableRead if has_no_state_yet(&health) => None,
            Check::SerializableRead => read.local().await.err().map(|error| error.to_string()),
            // The only member reads without its driver.
            Check::LinearizableRead if !health.is_alive() => Some(health.to_string()),
            Check::LinearizableRead => read.await.err().map(|error| error.to_string()),
            Check::NonLearner => {
                member.is_learner().then(|| "the member does not vote yet".to_owned())
            }
        }
    }
}

/// Whether a local read has nothing to read yet, which no restart would change. As in etcd such a member is alive: whoever
/// probes it must not restart it.
pub(super) fn has_no_state_yet(health: &Health) -> bool {
    matches!(health.status, HealthStatus::Founding | HealthStatus::Restoring)
}

/// What is looked at for a path; nothing if it is not one of these.
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

/// Whether somebody probes who asks for that.
pub(super) fn is_probe(path: &str) -> bool {
    checks(path).is_some()
}

/// What is said in a query.
fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// What is looked at for a path and a query.
fn wanted(path: &str, query: &str) -> Vec<Check> {
    let is_left_out =
        |check: Check| pairs(query).any(|(key, value)| key == "exclude" && value == check.name());
    let mut checks = checks(path).unwrap_or_default();
    checks.retain(|check| !is_left_out(*check) && !is_left_out(check.stands_for()));
    checks
}

/// Whether all is well, and what there is to be said.
pub(super) async fn answer(member: &Member, path: &str, query: &str) -> (bool, String) {
    let (mut is_well, mut said) = (true, String::new());
    for check in wanted(path, query) {
        let name = check.name();
        match check.fails(member).await {
            None => said += &format!("[+]{name} ok\n"),
            Some(why) => {
                is_well = false;
                said += &format!("[-]{name} failed: {why}\n");
            }
        }
    }
    let is_verbose = pairs(query).any(|(key, _)| key == "verbose");
    match is_well {
        true if is_verbose => (true, said + "ok\n"),
        true => (true, "ok\n".to_owned()),
        false => (false, said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_what_is_looked_at() {
        assert_eq!(checks("/livez").unwrap(), LIVE);
        assert_eq!(checks("/readyz").unwrap(), READY);
        assert_eq!(checks("/readyz/non_learner").unwrap(), [Check::NonLearner]);
        for path in ["/", "livez", "/livez/", "/livez/non_learner", "/readyz/alive/x", "/healthz"] {
            assert_eq!(checks(path), None, "{path}");
        }
    }

    #[test]
    fn what_is_left_out_takes_along_what_would_fail_for_the_same_reason() {
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
