//! [`MemberConfig`]: the settings of the members that a scenario can change.

use std::time::Duration;

use crate::api::Config;
use crate::model::{ClusterId, Limits, NodeId};
use crate::node::Settings;

/// The settings that a scenario can change. All members have the same.
#[derive(Clone, Debug)]
pub(crate) struct MemberConfig {
    pub(super) session_ttl: Duration,
    pub(super) call_deadline: Duration,
    pub(super) lock_waiters_max: usize,
    pub(super) limits: Limits,
    pub(super) open_writes_max: usize,
    pub(super) open_bytes_max: usize,
    pub(super) open_reads_max: usize,
    pub(super) quota_bytes: u64,
}

impl Default for MemberConfig {
    fn default() -> Self {
        Self {
            session_ttl: Duration::from_secs(5),
            call_deadline: Duration::from_secs(5),
            lock_waiters_max: 1000,
            limits: Limits::default(),
            open_writes_max: 4096,
            open_bytes_max: 64 << 20,
            open_reads_max: 4096,
            quota_bytes: 2 << 30,
        }
    }
}

impl MemberConfig {
    /// Lets a scenario change the settings.
    ///
    /// # Panics
    /// Panics if a setting is invalid, or if the simulator determines it.
    pub(super) fn changed(&self, with: impl FnOnce(Config) -> Config) -> Self {
        let before = self.applied_to(Config::new(super::world::DIR, "n1"));
        let after = with(before.clone());
        let checked = after.check().unwrap_or_else(|error| panic!("Scenario::configure: {error}"));
        let id = NodeId::new(1).expect("not zero");
        let changed = Self::of(checked.settings(id, ClusterId(0), [].into()));
        let (rest, was) = (format!("{:?}", self.applied_to(after)), format!("{before:?}"));
        assert_eq!(
            rest, was,
            "Scenario::configure: a setting was changed that the simulator determines; its documentation lists the \
             settings that a scenario can change"
        );
        changed
    }

    fn of(settings: Settings) -> Self {
        Self {
            session_ttl: settings.session_ttl,
            call_deadline: settings.call_deadline,
            lock_waiters_max: settings.lock_waiters_max,
            limits: settings.limits,
            open_writes_max: settings.open_writes_max,
            open_bytes_max: settings.open_bytes_max,
            open_reads_max: settings.open_reads_max,
            quota_bytes: settings.quota_bytes,
        }
    }

    /// Returns the configuration with these settings.
    fn applied_to(&self, config: Config) -> Config {
        config
            .session_ttl(self.session_ttl)
            .call_deadline(self.call_deadline)
            .lock_waiters_max(self.lock_waiters_max)
            .limits(self.limits.clone())
            .open_writes_max(self.open_writes_max, self.open_bytes_max)
            .open_reads_max(self.open_reads_max)
            .quota_bytes(self.quota_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_changed_setting_differs() {
        let changed = MemberConfig::default().changed(|config| config.quota_bytes(1 << 20));
        let back = MemberConfig { quota_bytes: 2 << 30, ..changed.clone() };
        assert_eq!(changed.quota_bytes, 1 << 20);
        assert_eq!(format!("{back:?}"), format!("{:?}", MemberConfig::default()));
        // A second change keeps the first.
        let both = changed.changed(|config| config.session_ttl(Duration::from_secs(2)));
        assert_eq!((both.quota_bytes, both.session_ttl), (1 << 20, Duration::from_secs(2)));
    }

    #[test]
    #[should_panic(expected = "a setting was changed that the simulator determines")]
    fn setting_of_the_simulator_is_rejected() {
        let timeout = Duration::from_secs(2);
        MemberConfig::default().changed(|config| config.election_timeout(timeout));
    }

    #[test]
    #[should_panic(expected = "Scenario::configure: the setting call_deadline is 0ns")]
    fn invalid_setting_is_rejected() {
        MemberConfig::default().changed(|config| config.call_deadline(Duration::ZERO));
    }
}
