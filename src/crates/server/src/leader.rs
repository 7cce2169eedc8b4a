//! Ends streams when there is no leader. One task checks this for all streams.

use std::sync::{Arc, Weak};
use std::time::Duration;

use http::HeaderMap;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Request, Status};

use crate::member::Member;
use crate::wire::Reason;

/// Interval between checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Observes the absence of a leader on behalf of all streams.
pub(crate) struct Leaderless {
    /// The time since which there has been no leader; `None` while there is one.
    since: watch::Sender<Option<Instant>>,
    /// How long a stream that requires a leader stays open after [`Member::has_leader`] has become false. In total, a
    /// stream ends four to six election timeouts after the last contact with a leader (in etcd, four to five).
    patience: Duration,
}

impl Leaderless {
    /// Observes a member until it is dropped.
    pub(crate) fn of(member: &Arc<Member>) -> Arc<Self> {
        let since = watch::Sender::new(None);
        tokio::spawn(look(Arc::downgrade(member), since.clone()));
        Arc::new(Self { since, patience: member.settings().election_timeout * 2 })
    }

    /// Completes when there has been no leader for too long, counted from now at the earliest.
    pub(crate) async fn lost(&self) -> Status {
        let begun = Instant::now();
        let mut seen = self.since.subscribe();
        loop {
            let since = *seen.borrow_and_update();
            let ends = async {
                match since {
                    Some(since) => tokio::time::sleep_until(since.max(begun) + self.patience).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ends => return Reason::NoLeader.into(),
                // The sender lives as long as this value.
                _ = seen.changed() => {}
            }
        }
    }
}

async fn look(member: Weak<Member>, sender: watch::Sender<Option<Instant>>) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let Some(has_leader) = member.upgrade().map(|member| member.has_leader()) else { return };
        sender.send_if_modified(|since| {
            let is_news = since.is_some() == has_leader;
            if is_news {
                *since = (!has_leader).then(Instant::now);
            }
            is_news
        });
    }
}

/// Returns whether a call must be rejected without a leader.
pub(crate) fn asks_for_leader(headers: &HeaderMap) -> bool {
    headers.get("hasleader").is_some_and(|value| value == "true")
}

/// Returns whether a stream must end without a leader.
pub(crate) fn needs_leader<T>(request: &Request<T>) -> bool {
    asks_for_leader(request.metadata().as_ref())
}
