//! The digest that replicas compare: one number that represents everything that was applied.
//!
//! Each part of the state keeps a sum of the mixed checksums of its items, which is updated when an
//! item is added or removed. Therefore updating the digest costs the same for a small and for a
//! large state, and the sums do not depend on the order of the items. Rows are in two parts of the
//! digest: `live` sums the newest version of each key, and `past` is a chained checksum of every
//! change ever applied. Through `past`, the digest covers the whole history, including the part
//! that a replica has already discarded.

use std::ops::Range as Span;

use crate::model::{
    Access, Alarm, AlarmKind, Alarms, ClusterVersion, Incarnation, KeyRange, KeyValue, LogIndex,
    MemberRole, Members, NodeId, Outcome, RangeEnd, RangeReply, Rejection, Reply, Revision,
    TxnReply, TxnResult,
};

/// The parts of the state that the digest is computed from.
pub(super) struct DigestParts {
    pub(super) applied: LogIndex,
    /// `live` and `past`.
    pub(super) rows: [u64; 2],
    pub(super) revision: Revision,
    pub(super) compacted: Option<Revision>,
    /// Sum of the leases and their attached keys, and the next lease id.
    pub(super) leases: [u64; 2],
    pub(super) dedup: u64,
    pub(super) configuration: u64,
}

impl DigestParts {
    pub(super) fn digest(self) -> u64 {
        let compacted = self.compacted.map_or(u64::MAX, Revision::get);
        let print = Fingerprint::default().number(self.applied.get());
        let print = self.rows.into_iter().fold(print, Fingerprint::number);
        let print = print.number(self.revision.get()).number(compacted);
        let print = self.leases.into_iter().fold(print, Fingerprint::number);
        print.number(self.dedup).number(self.configuration).finish()
    }
}

/// Returns the contribution of members, users, alarms and version to the digest.
pub(super) fn configuration(
    members: &Members,
    access: &Access,
    alarms: &Alarms,
    version: ClusterVersion,
) -> u64 {
    let print = Fingerprint::default().members(members).access(access).alarms(alarms);
    print.number(version.get()).finish()
}

/// Spreads a number over 64 bits (the finalizer of splitmix64).
pub(super) const fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Combines the fields of one item of the state into a number, which depends on their order.
#[derive(Default)]
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    #[must_use]
    pub(super) fn number(self, number: u64) -> Self {
        Self(mix(self.0.rotate_left(17) ^ mix(number)))
    }

    #[must_use]
    pub(super) fn bytes(self, bytes: &[u8]) -> Self {
        self.number(bytes.len() as u64).number(u64::from(crc32fast::hash(bytes)))
    }

    pub(super) fn finish(self) -> u64 {
        self.0
    }

    #[must_use]
    fn row(self, kv: &KeyValue) -> Self {
        self.bytes(&kv.key)
            .bytes(&kv.value)
            .number(kv.create_revision.get())
            .number(kv.mod_revision.get())
            .number(kv.version)
            .number(kv.lease.map_or(0, |lease| lease.get()))
    }

    #[must_use]
    fn rows<'a>(self, kvs: impl IntoIterator<Item = &'a KeyValue>) -> Self {
        kvs.into_iter().fold(self, Self::row)
    }

    #[must_use]
    fn range(self, reply: &RangeReply) -> Self {
        let RangeReply { revision, kvs, more, count } = reply;
        self.number(revision.get()).rows(kvs).number(u64::from(*more)).number(*count)
    }

    #[must_use]
    fn txn(self, reply: &TxnReply) -> Self {
        let TxnReply { revision, succeeded, results } = reply;
        let start = self.number(revision.get()).number(u64::from(*succeeded));
        results.iter().fold(start, |print, result| match result {
            TxnResult::Range(reply) => print.number(1).range(reply),
            TxnResult::Put(reply) => print.number(2).number(reply.revision.get()).rows(&reply.prev),
            TxnResult::Delete(reply) => print.number(3).number(reply.deleted).rows(&reply.prev_kvs),
            TxnResult::Txn(reply) => print.number(4).txn(reply),
        })
    }

    /// Adds the members of the cluster.
    #[must_use]
    pub(super) fn members(self, members: &Members) -> Self {
        let rows = members.rows();
        let print = rows.iter().fold(self.number(rows.len() as u64), |print, (id, member)| {
            let print =
                member.endpoints.iter().fold(print, |print, url| print.bytes(url.as_bytes()));
            let print = member
                .moves_to
                .iter()
                .fold(print, |print, address| print.number(u64::MAX).bytes(address.as_bytes()));
            print
                .number(id.get())
                .number(member.disk.0 as u64)
                .number((member.disk.0 >> 64) as u64)
                .bytes(member.name.as_bytes())
                .bytes(member.address.as_bytes())
                .number(match member.role {
                    MemberRole::Learner => 0,
                    MemberRole::Voter => 1,
                })
                .number(member.replaces.map_or(0, NodeId::get))
                .number(member.since.get())
        });
        let outgoing = members.outgoing();
        let print = outgoing
            .iter()
            .fold(print.number(outgoing.len() as u64), |print, id| print.number(id.get()));
        print.number(members.next())
    }

    /// Adds users and roles. A table that was never used adds nothing.
    #[must_use]
    pub(super) fn access(self, access: &Access) -> Self {
        if *access == Access::default() {
            return self;
        }
        let print = self
            .number(u64::from(access.is_enabled()))
            .number(access.revision())
            .bytes(access.secret().expose())
            .number(access.users().len() as u64);
        let print = access.users().iter().fold(print, |print, (name, user)| {
            let print = print.bytes(name.as_bytes()).number(user.since);
            let print = match &user.password {
                None => print.number(0),
                Some(password) => print.number(1).bytes(password.expose()),
            };
            let print = print.number(user.roles.len() as u64);
            user.roles.iter().fold(print, |print, role| print.bytes(role.as_bytes()))
        });
        access.roles().iter().fold(print, |print, (name, role)| {
            let print = print.bytes(name.as_bytes()).number(role.len() as u64);
            role.iter()
                .fold(print, |print, grant| print.keys(&grant.range).number(grant.rights as u64))
        })
    }

    /// Adds the active alarms. If there are none, adds nothing.
    #[must_use]
    pub(super) fn alarms(self, alarms: &Alarms) -> Self {
        if alarms.is_empty() {
            return self;
        }
        alarms.iter().fold(self.number(alarms.len() as u64), Self::alarm)
    }

    #[must_use]
    fn alarm(self, alarm: &Alarm) -> Self {
        self.number(alarm.member.map_or(0, NodeId::get)).alarm_kind(alarm.kind)
    }

    #[must_use]
    fn alarm_kind(self, kind: AlarmKind) -> Self {
        self.number(match kind {
            AlarmKind::NoSpace => 1,
            AlarmKind::Corrupt => 2,
        })
    }

    #[must_use]
    fn keys(self, range: &KeyRange) -> Self {
        let print = self.bytes(range.start());
        match range.end() {
            RangeEnd::Single => print.number(0),
            RangeEnd::Before(end) => print.number(1).bytes(end),
            RangeEnd::Unbounded => print.number(2),
        }
    }

    /// Adds the requests of an incarnation of a node: the sum of the replies, the open requests,
    /// and the frontier.
    #[must_use]
    pub(super) fn life(
        self,
        node: NodeId,
        incarnation: Incarnation,
        sum: u64,
        (frontier, open): (u64, &[Span<u64>]),
    ) -> Self {
        let print = self.number(node.get()).number(incarnation.get()).number(sum).number(frontier);
        open.iter().fold(print, |print, span| print.number(span.start).number(span.end))
    }

    /// Adds a reply as the dedup table records it.
    #[must_use]
    pub(super) fn outcome(self, outcome: &Outcome) -> Self {
        match outcome {
            Ok(reply) => {
                let print = self.number(reply.revision().get());
                match reply {
                    Reply::Put(reply) => print.number(1).rows(&reply.prev),
                    Reply::Delete(reply) => {
                        print.number(2).number(reply.deleted).rows(&reply.prev_kvs)
                    }
                    Reply::Txn(reply) => print.number(3).txn(reply),
                    Reply::Compacted { .. } => print.number(4),
                    Reply::Grant(reply) => print.number(5).number(reply.id.get()),
                    Reply::Revoke(reply) => print.number(6).number(reply.deleted),
                    Reply::AppliedBefore { .. } => print.number(7),
                    Reply::Noted { .. } => print.number(9),
                    Reply::Alarms { alarms, .. } => {
                        alarms.iter().fold(print.number(10), Self::alarm)
                    }
                }
            }
            // The texts of these rejections contain instructions for the operator and may change,
            // so the digest uses numbers for them.
            Err(Rejection::Alarm(kind)) => self.number(11).alarm_kind(*kind),
            Err(Rejection::TooManyAlarms { max }) => self.number(12).number(*max as u64),
            // The text identifies the kind of rejection and its values.
            Err(rejection) => self.number(8).bytes(digest_text(rejection).as_bytes()),
        }
    }
}

/// Returns the text of a rejection that is part of the digest. If earlier versions had another
/// text, returns that text, so that the digest equals that of earlier versions.
fn digest_text(rejection: &Rejection) -> String {
    match rejection {
        Rejection::Compacted { asked, compacted } => {
            format!("required revision {asked} has been compacted; the oldest left is {compacted}")
        }
        Rejection::TooManyKeys { max } => format!(
            "the ranges of the transaction pass over more than {max} keys: name fewer, or make \
             several of it"
        ),
        Rejection::AddressTaken(member) => {
            format!("member {member} is at this address, or is to be: choose another")
        }
        rejection => rejection.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AuthError, PutReply, Revision};
    use std::time::Duration;

    #[test]
    fn different_outcomes_have_different_fingerprints() {
        let put = |revision| Ok(Reply::Put(PutReply { revision: Revision(revision), prev: None }));
        let outcomes = [
            put(2),
            put(3),
            Ok(Reply::AppliedBefore { revision: Revision(2) }),
            Ok(Reply::Compacted { revision: Revision(2) }),
            Err(Rejection::EmptyKey),
            Err(Rejection::KeyNotFound),
        ];
        let prints: std::collections::BTreeSet<u64> =
            outcomes.iter().map(|o| Fingerprint::default().outcome(o).finish()).collect();
        assert_eq!(prints.len(), outcomes.len());
    }

    /// Returns the text of a rejection that is part of the digest, or `None` if the rejection has a
    /// number instead. Members that run different versions compare their digests, and a new version
    /// reads the state of an old one. Therefore such a text must not change. To change the text
    /// that callers see, add the old text to [`digest_text`].
    fn words(rejection: &Rejection) -> Option<&'static str> {
        Some(match rejection {
            Rejection::EmptyKey => "key is not provided",
            Rejection::KeyNotFound => "key not found",
            Rejection::Compacted { .. } => {
                "required revision 7 has been compacted; the oldest left is 5"
            }
            Rejection::Future { .. } => "required revision 7 is a future revision; the newest is 5",
            Rejection::LeaseNotFound(_) => "requested lease not found: 2a",
            Rejection::LeaseExists(_) => "lease already exists: 2a",
            Rejection::LeaseTtl { .. } => "lease TTL of 0ns is not between 1 ms and 9s",
            Rejection::DuplicateKey(_) => "duplicate key given in txn request: k",
            Rejection::TooManyOps { .. } => "too many operations in txn request: 9, at most 8",
            Rejection::TooDeep { .. } => "transactions nested deeper than 8",
            Rejection::TooManyKeys { .. } => {
                "the ranges of the transaction pass over more than 8 keys: name fewer, or make several of it"
            }
            Rejection::KeyTooLarge { .. } => "key of 9 bytes, at most 8",
            Rejection::ValueTooLarge { .. } => "value of 9 bytes, at most 8",
            Rejection::RequestTooLarge { .. } => "request is too large: 9 bytes, at most 8",
            Rejection::Closed => "request is closed: its node gave it up or has restarted",
            Rejection::Access(rejection) => match rejection {
                AuthError::Denied => "permission denied",
                AuthError::Outdated => "revision of auth store is old",
                AuthError::NoUser => "user name is empty",
                AuthError::NoRoot => "root user does not exist",
                AuthError::RootWithoutRole => "root user does not have root role",
                AuthError::UserExists => "user name already exists",
                AuthError::UserNotFound => "user name not found",
                AuthError::RoleExists => "role name already exists",
                AuthError::RoleNotFound => "role name not found",
                AuthError::NoRole => "role name is empty",
                AuthError::RoleNotGranted => "role is not granted to the user",
                AuthError::NotGranted => "permission is not granted to the role",
                AuthError::Invalid => "invalid auth management",
                AuthError::TooMuch => {
                    "users, roles and permissions take more than 262144 bytes, or a name more than 256"
                }
            },
            Rejection::Alarm(_) | Rejection::TooManyAlarms { .. } => return None,
            Rejection::NotMember(_) => "node 3 is not a member of the cluster",
            Rejection::AddressTaken(_) => {
                "member 3 is at this address, or is to be: choose another"
            }
        })
    }

    #[test]
    fn repeated_compaction_has_the_fingerprint_of_earlier_versions() {
        let text =
            |asked| format!("required revision {asked} has been compacted; the oldest left is 5");
        for asked in [4, 5] {
            let (asked, compacted) = (Revision(asked), Revision(5));
            let outcome = Err(Rejection::Compacted { asked, compacted });
            let expected = Fingerprint::default().number(8).bytes(text(asked).as_bytes());
            assert_eq!(Fingerprint::default().outcome(&outcome).finish(), expected.finish());
        }
    }

    #[test]
    fn rejection_texts_are_frozen() {
        let (asked, newest) = (Revision(7), Revision(5));
        let lease = crate::model::LeaseId::new(0x2a).unwrap();
        let node = crate::model::NodeId::new(3).unwrap();
        let (bytes, max) = (9, 8);
        let mut rejections = vec![
            Rejection::EmptyKey,
            Rejection::KeyNotFound,
            Rejection::Compacted { asked, compacted: newest },
            Rejection::Future { asked, newest },
            Rejection::LeaseNotFound(lease),
            Rejection::LeaseExists(lease),
            Rejection::LeaseTtl { asked: Duration::ZERO, max: Duration::from_secs(9) },
            Rejection::DuplicateKey(bytes::Bytes::from_static(b"k")),
            Rejection::TooManyOps { count: 9, max },
            Rejection::TooDeep { max },
            Rejection::TooManyKeys { max },
            Rejection::KeyTooLarge { bytes, max },
            Rejection::ValueTooLarge { bytes, max },
            Rejection::RequestTooLarge { bytes, max },
            Rejection::Closed,
            Rejection::NotMember(node),
            Rejection::AddressTaken(node),
        ];
        rejections.extend(AuthError::ALL.map(Rejection::Access));
        for rejection in &rejections {
            assert_eq!(Some(&*digest_text(rejection)), words(rejection));
        }
        // Every rejection has a text of its own, and none is missing.
        let all: std::collections::BTreeSet<_> = rejections.iter().map(words).collect();
        assert_eq!((all.len(), rejections.len()), (31, 31));
    }
}
