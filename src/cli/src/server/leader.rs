//! Streams that end when there is no leader: one look for all of them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use http::HeaderMap;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Request, Status};

use super::member::Member;
use super::wire::Reason;

/// How often it is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Since when there has been none; none, if there is one.
pub(super) struct Leaderless(watch::Sender<Option<Instant>>);

impl Leaderless {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Looks at a member from now on, for as long as it is there.
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

/// Whether a call is refused where there is no leader.
pub(super) fn asks_for_leader(headers: &HeaderMap) -> bool {
    headers.get("hasleader").is_some_and(|value| value == "true")
}

/// Whether a stream is to end when there is no leader.
pub(super) fn needs_leader<T>(request: &Request<T>) -> bool {
    asks_for_leader(request.metadata().as_ref())
}

/// Ends when there was no leader for too long, from now on.
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
            // It says so for as long as the member is there.
            _ = seen.changed() => {}
        }
    }
}
