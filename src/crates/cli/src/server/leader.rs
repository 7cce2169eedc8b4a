//! Ends streams when there is no leader. One task checks this for all streams.

use std::sync::{Arc, Weak};
use std::time::Duration;

use http::HeaderMap;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Request, Status};

use super::member::Member;
use super::wire::Reason;

/// Interval between checks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The time since which there has been no leader; `None` while there is one.
pub(super) struct Leaderless(watch::Sender<Option<Instant>>);

impl Leaderless {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Observes a member until it is dropped.
    pub(super) fn keep_looking(&self, member: &Arc<Member>) {
        tokio::spawn(look(Arc::downgrade(member), self.0.clone()));
    }
}

async fn look(member: Weak<Member>, says: watch::Sender<Option<Instant>>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(has_leader) = member.upgrade().map(|member| member.has_leader()) else { return };
        says.send_if_modified(|since| {
            let is_news = since.is_some() == has_leader;
            if is_news {
                *since = (!has_leader).then(Instant::now);
            }
            is_news
        });
    }
}

/// Returns whether a call must be rejected without a leader.
pub(super) fn asks_for_leader(headers: &HeaderMap) -> bool {
    headers.get("hasleader").is_some_and(|value| value == "true")
}

/// Returns whether a stream must end without a leader.
pub(super) fn needs_leader<T>(request: &Request<T>) -> bool {
    asks_for_leader(request.metadata().as_ref())
}

/// Completes when there has been no leader for too long, counted from now at the earliest.
pub(super) async fn leader_lost(member: &Member) -> Status {
    let begun = Instant::now();
    let mut seen = member.leaderless().0.subscribe();
    loop {
        let since = *seen.borrow_and_update();
        let ends = async {
            match since {
                Some(since) => tokio::time::sleep_until(since.max(begun) + member.patience()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = ends => return Reason::NoLeader.into(),
            // The sender lives as long as the member.
            _ = seen.changed() => {}
        }
    }
}
