//! The node's own session, which is replaced by a new one after it has ended.

use std::sync::Arc;

use tokio::sync::Mutex;

use crate::node::Shared;

use super::{Client, Effect, Error, OpenSession, Session};

/// A session that is opened on first use, shared by all callers, and replaced by a new session
/// after it has ended.
#[derive(Debug)]
pub(crate) struct OwnSession {
    client: Client,
    session: Mutex<Option<Session>>,
}

impl OwnSession {
    /// Creates the value for the client's node, without opening a session yet.
    pub(crate) fn of(client: Client) -> Arc<Self> {
        Arc::new(Self { client, session: Mutex::new(None) })
    }

    /// Returns the current session, or opens a new one if it has ended.
    ///
    /// # Errors
    /// See [`Error`].
    pub(crate) async fn get(&self) -> Result<Session, Error> {
        let shared = self.shared();
        let deadline = shared.deadline(None);
        // Limit the wait for the mutex: each earlier caller may hold it for its whole deadline
        // while it opens the session.
        let mut session = tokio::select! {
            biased;
            session = self.session.lock() => session,
            // A stopped node is reported as stopped, not as an exceeded deadline.
            () = shared.sleep_until(deadline) => return Err(match shared.stop_reason() {
                Some(reason) => Error::Stopped { reason, effect: Effect::NotApplied },
                None => Error::Deadline { effect: Effect::NotApplied },
            }),
        };
        if let Some(session) = session.as_ref().filter(|session| session.end().is_none()) {
            return Ok(session.clone());
        }
        let left = deadline.since(shared.now());
        let opened = OpenSession::on(self.client.clone(), true).deadline(left).await?;
        *session = Some(opened.clone());
        Ok(opened)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.client.shared
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::{Blocking, Config, LeadError, LockError, Node};

    #[test]
    fn leader_task_waiter_reports_a_stopped_node() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
        let (own, leading) = (Arc::clone(node.own_session()), node.leader_task("a", "b"));
        let _held = own.session.try_lock().unwrap();
        node.shutdown().block();
        let outcome = pin!(leading.run(async |_| ())).poll(&mut Context::from_waker(Waker::noop()));
        let is_reported =
            matches!(outcome, Poll::Ready(Err(LeadError::NotElected(LockError::NodeStopped(_)))));
        assert!(is_reported, "{outcome:?}");
    }
}
