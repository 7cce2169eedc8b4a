//! Peers without a connection to this node because one of the two nodes rejects the other. Decides
//! when to log a rejection, and lists the rejections for the health status. Both sides keep
//! dialing, so the same reason is reported up to twice a second.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::Moment;

/// Time after which an unchanged reason is logged again.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Time for which a reason counts as current after it was last reported.
const VALID_FOR: Duration = Duration::from_secs(10);
/// Maximum number of peers. Further peers can only come from forged introductions.
const PEERS_MAX: usize = 16;
/// Maximum number of reasons for each peer. The two sides may word one fact differently.
const REASONS_MAX: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct PeerRejections(BTreeMap<String, Rejected>);

#[derive(Debug)]
struct Rejected {
    /// Newest last.
    reasons: Vec<String>,
    last: Moment,
    logged: Moment,
}

impl PeerRejections {
    /// Adds a rejection. Returns whether to log the rejection.
    pub(crate) fn add(&mut self, peer: &str, why: &str, now: Moment) -> bool {
        let Some(rejected) = self.0.get_mut(peer) else {
            if self.0.len() >= PEERS_MAX {
                let oldest = self.0.iter().min_by_key(|(_, one)| one.last);
                let oldest = oldest.map(|(peer, _)| peer.clone()).unwrap_or_default();
                self.0.remove(&oldest);
            }
            let reasons = vec![why.to_owned()];
            self.0.insert(peer.to_owned(), Rejected { reasons, last: now, logged: now });
            return true;
        };
        rejected.last = now;
        let known = rejected.reasons.iter().position(|reason| reason == why);
        if let Some(at) = known {
            rejected.reasons.remove(at);
        } else if rejected.reasons.len() >= REASONS_MAX {
            rejected.reasons.remove(0);
        }
        rejected.reasons.push(why.to_owned());
        let logs = known.is_none() || now.since(rejected.logged) >= LOG_INTERVAL;
        if logs {
            rejected.logged = now;
        }
        logs
    }

    /// Removes the entry of a peer that is now connected.
    pub(crate) fn resolve(&mut self, peer: &str) {
        self.0.remove(peer);
    }

    /// Returns the peers with a current rejection, each with its newest reason.
    pub(crate) fn current(&self, now: Moment) -> Vec<String> {
        let current = self.0.iter().filter(|(_, one)| now.since(one.last) < VALID_FOR);
        let words = |(peer, one): (&String, &Rejected)| {
            one.reasons.last().map(|why| format!("{peer}: {why}"))
        };
        current.filter_map(words).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::at;

    #[test]
    fn rejection_is_logged_once_per_change_and_minute() {
        let mut peer_rejections = PeerRejections::default();
        // Both sides report their reasons twice a second for two minutes.
        let mut logged = Vec::new();
        for half in 0..240 {
            for why in ["other list", "the same in other words"] {
                if peer_rejections.add("n2", why, at(half * 500)) {
                    logged.push(half / 2);
                }
            }
        }
        assert_eq!(logged, [0, 0, 60]);
        assert!(peer_rejections.add("n2", "other token", at(119_900)), "a change");
        assert!(peer_rejections.add("n3", "other list", at(119_900)), "another peer");
        let current = peer_rejections.current(at(120_000));
        assert_eq!(current, ["n2: other token", "n3: other list"]);
        peer_rejections.resolve("n2");
        assert_eq!(peer_rejections.current(at(120_000)), ["n3: other list"]);
        assert_eq!(peer_rejections.current(at(130_000)), [""; 0], "no longer given");
    }

    #[test]
    fn invented_peers_and_reasons_use_bounded_memory() {
        let mut peer_rejections = PeerRejections::default();
        for number in 0..1000 {
            peer_rejections.add(&format!("n{number}"), "x", at(number));
            peer_rejections.add("n0", &number.to_string(), at(number));
        }
        assert!(peer_rejections.0.len() <= PEERS_MAX);
        assert!(peer_rejections.0["n0"].reasons.len() <= REASONS_MAX);
    }
}
