//! [`Granted`]: the lease of a key that is put with a TTL.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{Command, LeaseId, Reply};
use crate::node::{ReplyTo, Shared};

use super::undo_on_drop::run_undoable;
use super::until::Until;
use super::{Client, Error};

/// A lease that is revoked in the background unless it is kept. After the revocation, a put with
/// this lease that is still in flight is rejected. If the put was applied before, its key is
/// deleted with the lease.
pub(crate) struct Granted {
    shared: Arc<Shared>,
    lease: LeaseId,
    is_kept: bool,
}

impl Granted {
    pub(crate) async fn of(
        client: &Client,
        ttl: Duration,
        until: &Until,
    ) -> Result<Granted, Error> {
        let shared = Arc::clone(&client.shared);
        let command = client.signed(Command::Grant { id: None, ttl, session: None });
        let undo = |reply: &Reply| match reply {
            Reply::Grant(lease) => Some(Command::Revoke(lease.id)),
            _ => None,
        };
        match until.within(run_undoable(&shared, command, undo)).await?? {
            Reply::Grant(lease) => Ok(Granted { shared, lease: lease.id, is_kept: false }),
            other => unreachable!("unexpected reply to a grant: {other:?}"),
        }
    }

    pub(crate) fn lease(&self) -> LeaseId {
        self.lease
    }

    /// Keeps the lease and returns its id.
    pub(crate) fn keep(mut self) -> LeaseId {
        self.is_kept = true;
        self.lease
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if !self.is_kept {
            self.shared.propose_until_applied(Command::Revoke(self.lease), ReplyTo::Discard);
        }
    }
}
