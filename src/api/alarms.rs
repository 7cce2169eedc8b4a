//! Alarms: raising, ending and reading them. The state machine rejects the commands that an active
//! alarm forbids.

use std::sync::Arc;

use crate::model::{Alarm, AlarmChange, Alarms, Command, Reply, Revision};

use super::call::Consistency;
use super::{Client, Error, UserClient};

/// The result of a change to the alarms; see [`Client::change_alarms`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct AlarmReply {
    /// Revision of the store when the change was applied.
    pub revision: Revision,
    /// The alarms that were raised or ended.
    pub alarms: Vec<Alarm>,
}

impl Client {
    /// Raises an alarm for the whole cluster, or ends alarms. These are etcd's `NOSPACE` and
    /// `CORRUPT` alarms, for operators.
    ///
    /// While an alarm is active, every node rejects the commands that it
    /// [forbids](crate::cluster::AlarmKind) with [`Rejection::Alarm`](crate::Rejection::Alarm).
    /// Commands of the embedding program are also rejected. An alarm stays active until it is
    /// ended, across restarts and replacements of members.
    ///
    /// An alarm has these effects on sessions and locks:
    ///
    /// - Sessions are still renewed, leases still expire, and locks can still be released and
    ///   force-released.
    /// - New lock requests are rejected. A local waiter is also rejected if it needs a new key
    ///   because the hold before it has ended (for example after
    ///   [`commit_and_release`](crate::lock::GuardTxn::commit_and_release)).
    /// - A candidacy retries until the alarm has ended.
    /// - A transfer of a lock releases the lock instead, and returns an error to the holder.
    /// - If an upgrade to a write lock is abandoned at the moment when the alarm is raised, the
    ///   lock stays a write lock until its guard is dropped.
    ///
    /// Returns the alarm that was raised or was already active, or the alarms that were ended. Does
    /// not increase the revision of the store.
    ///
    /// # Errors
    /// Returns [`Rejection::TooManyAlarms`](crate::Rejection::TooManyAlarms) if there are already
    /// too many active alarms. See [`Error`] for other errors.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Error, Node, Rejection, cluster::{Alarm, AlarmChange, AlarmKind}};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// kv.put("k", "v").block()?;
    /// let full = Alarm { member: None, kind: AlarmKind::NoSpace };
    /// kv.change_alarms(AlarmChange::Raise(full)).block()?;
    /// let refused = kv.put("k", "w").block().unwrap_err();
    /// assert_eq!(refused, Error::Rejected(Rejection::Alarm(AlarmKind::NoSpace)));
    /// assert_eq!(kv.get("k").block()?.unwrap().value, "v");
    /// kv.delete("k").block()?;
    /// assert_eq!(kv.change_alarms(AlarmChange::EndAll).block()?.alarms, [full]);
    /// kv.put("k", "w").block()?;
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn change_alarms(&self, change: AlarmChange) -> Result<AlarmReply, Error> {
        match self.propose(Command::Alarm(change), None).await? {
            Reply::Alarms { revision, alarms } => Ok(AlarmReply { revision, alarms }),
            other => unreachable!("unexpected reply to a change of alarms: {other:?}"),
        }
    }

    /// Returns the active alarms as known to the local replica, which may lag behind the leader.
    pub fn alarms(&self) -> Arc<Alarms> {
        self.shared.reader.alarms()
    }

    /// Returns the active alarms with a linearizable read.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn read_alarms(&self) -> Result<Arc<Alarms>, Error> {
        self.wait_until_current(Consistency::Linearizable, self.shared.deadline(None)).await?;
        Ok(self.alarms())
    }
}

impl UserClient {
    /// Like [`Client::change_alarms`]. The caller needs the role `root`.
    ///
    /// # Errors
    /// The errors of [`Client::change_alarms`], and [`AuthError`](crate::auth::AuthError) if the
    /// caller lacks the role.
    pub async fn change_alarms(&self, change: AlarmChange) -> Result<AlarmReply, Error> {
        self.0.change_alarms(change).await
    }
}
