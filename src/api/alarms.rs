//! Alarms that somebody raises: asked for, raised and ended. What they forbid the state machine refuses.

use std::sync::Arc;

use crate::model::{Alarm, AlarmChange, Alarms, Command, Reply, Revision};

use super::call::Consistency;
use super::{Client, Error, UserClient};

/// The result of a change of alarms; see [`Client::change_alarms`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct AlarmReply {
    /// The store's revision when the change was applied.
    pub revision: Revision,
    /// The alarms that were raised, or have ended.
    pub alarms: Vec<Alarm>,
}

impl Client {
    /// Raises an alarm for the whole cluster, or ends some: etcd's `NOSPACE` and `CORRUPT`, for operators. While one
    /// stands, what it [forbids](crate::cluster::AlarmKind) is refused on every node with
    /// [`Rejection::Alarm`](crate::Rejection::Alarm), also to this program, and has no effect; it stands until somebody ends
    /// it, whatever is restarted or replaced meanwhile. This program's locks are released and broken, its sessions renewed and
    /// leases ended all the same; nobody comes into a line. Whoever would enter anew behind a hold of its own node's
    /// (after [`commit_and_release`](crate::lock::GuardTxn::commit_and_release), say) is refused too; a candidacy tries again until
    /// it may; a lock that was to be handed over is released, and its holder told so. A write lock whose upgrade was given up in
    /// the same moment stays one until its guard goes.
    ///
    /// Returns the alarm that was raised, or was active already; or those that have ended. Takes no revision of the
    /// store.
    ///
    /// # Errors
    /// [`Rejection::TooManyAlarms`](crate::Rejection::TooManyAlarms); see [`Error`] for the rest.
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
            other => unreachable!("a change of alarms is answered by {other:?}"),
        }
    }

    /// The alarms that were raised and have not been ended, as this replica knows them. Local: perhaps not the newest.
    pub fn alarms(&self) -> Arc<Alarms> {
        self.shared.reader.alarms()
    }

    /// The alarms that were raised and have not been ended. Linearizable.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn read_alarms(&self) -> Result<Arc<Alarms>, Error> {
        self.be_current(Consistency::Linearizable, self.shared.deadline(None)).await?;
        Ok(self.alarms())
    }
}

impl UserClient {
    /// As [`Client::change_alarms`]; only for callers with the role `root`.
    ///
    /// # Errors
    /// As there, and [`AuthError`](crate::auth::AuthError).
    pub async fn change_alarms(&self, change: AlarmChange) -> Result<AlarmReply, Error> {
        self.0.change_alarms(change).await
    }
}
